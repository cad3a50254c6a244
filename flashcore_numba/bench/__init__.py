"""Timing the ladder beside its peers, and what is made of the record: tables, picture, README."""
