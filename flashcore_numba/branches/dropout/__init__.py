"""Dropout of attention's weights, forward and backward: the mask is made again wherever it is needed."""
