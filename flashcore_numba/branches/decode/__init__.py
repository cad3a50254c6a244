"""Decoding: some query tokens of each request over a long cache of keys and values, in pages."""
