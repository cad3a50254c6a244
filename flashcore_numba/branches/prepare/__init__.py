"""What comes between projections and attention: RMSNorm, RoPE, and K and V into the pages of a cache."""
