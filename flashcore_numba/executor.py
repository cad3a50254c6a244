"""Where a stage runs: the same launch function on the simulator, on a GPU, or only through the compiler."""

import numpy as np

from .simulator import simulate


class Simulator:
    def __init__(self, **options):
        self.options, self.launches = options, []

    def empty(self, shape, dtype):
        return np.full(shape, np.nan, dtype) if np.dtype(dtype).kind == "f" else np.empty(shape, dtype)

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        result = simulate(kernel, grid, block, *args, shared_bytes=shared_bytes, **self.options)
        self.launches.append(result)
