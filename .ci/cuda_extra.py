"""Print the CUDA extra for this machine's NVIDIA driver: cuda13, cuda12, or nothing without a GPU."""

import ctypes

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def main() -> None:
    """Print the extra, or nothing where no GPU is found."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    version, count, major, minor = (ctypes.c_int() for _ in range(4))
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, 0)
    # CUDA 13 compiles for Turing and later only; its driver still runs Volta.
    if version.value >= 13000 and (major.value, minor.value) >= (7, 5):
        print("cuda13")
    elif version.value >= 12000:
        print("cuda12")


main()
