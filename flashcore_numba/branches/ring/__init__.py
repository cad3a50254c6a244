"""Exact attention over a sequence that several GPUs hold together."""
