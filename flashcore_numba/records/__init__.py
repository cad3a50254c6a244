"""Recorded runs: the artifact and its schema, where a run was made, and the committed data."""
