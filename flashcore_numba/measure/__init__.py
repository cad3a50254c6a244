"""Clocks, sensors, peers and ceilings: how long a launch takes on a GPU."""
