"""Print the CUDA extra for this machine's NVIDIA driver: cuda13, cuda12, or nothing without a GPU."""

import ctypes


def main() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return
    driver.cuDriverGetVersion(ctypes.byref(version))
    if version.value >= 12000:
        print("cuda13" if version.value >= 13000 else "cuda12")


main()
