"""A T4 that is played by another executor: the CPU's, or a newer GPU."""

from dataclasses import replace

from cuda_reference import Source
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.core.wrapping import Passing

__all__ = ["T4"]


class T4(Passing):
    """Launchers are told of its SMs and its shared memory, and kernels in CUDA C do what they do on sm_75
    (PTX_ARCH in ptx.cuh).
    """

    sm_count = 40
    shared_limit = shared_limit((7, 5))

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        assert shared_bytes <= self.shared_limit
        if isinstance(kernel, Source):
            kernel = replace(kernel, defines=(*kernel.defines, ("PTX_ARCH", 750)))
        self.executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
