"""What stages share: helpers of the Numba kernels, and the arguments of those in CUDA C."""
