"""The forward pass in 8 bits: Q, K and V are quantised to e4m3 on the way, and so is P."""
