"""What leaves the ladder: operations with a short ladder each, which the spine never imports."""
