"""What follows attention in a layer, in its kernel: the residual and LayerNorm or RMSNorm over all heads."""
