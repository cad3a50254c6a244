"""The CUDA C kernels of stages 07 and later, one `.cu` file a stage. Imports nothing of flashcore_numba."""
