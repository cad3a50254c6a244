"""Is there a GPU, and can we use it? Asked through ctypes, before Numba or CuPy are imported."""

import ctypes
import importlib.util
from functools import cache

from cuda_reference.extras import install

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


@cache
def _driver() -> ctypes.CDLL | None:
    """The initialised CUDA driver, or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    # 100 (no device) still leaves a driver whose version can be asked for.
    return driver if driver.cuInit(0) in (0, 100) else None


def _integer(function: str, *args: int) -> int:
    """What a driver function writes into its first argument, or 0 when it fails."""
    driver, value = _driver(), ctypes.c_int(0)
    if driver is None or getattr(driver, function)(ctypes.byref(value), *args):
        return 0
    return value.value


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver runs, (13, 0) for example; None without a driver."""
    version = _integer("cuDriverGetVersion")
    return (version // 1000, version % 1000 // 10) if version else None


def device_count() -> int:
    """How many GPUs the driver shows; 0 without a driver."""
    return _integer("cuDeviceGetCount")


@cache
def compute_capability(device: int = 0) -> tuple[int, int] | None:
    """(9, 0) for an H200; None when there is no such device."""
    if not 0 <= device < device_count():
        return None
    handle = _integer("cuDeviceGet", device)
    return _integer("cuDeviceGetAttribute", MAJOR, handle), _integer("cuDeviceGetAttribute", MINOR, handle)


@cache
def shared_limit(device: int = 0) -> int:
    """Bytes of shared memory that a block may have, 232448 on an H200; 0 when there is no such device."""
    if not 0 <= device < device_count():
        return 0
    return _integer("cuDeviceGetAttribute", SHARED_OPTIN, _integer("cuDeviceGet", device))


def name(device: int = 0) -> str | None:
    """The driver's name of a device; None when there is no such device."""
    driver = _driver()
    if driver is None or not 0 <= device < device_count():
        return None
    text = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(text, len(text), _integer("cuDeviceGet", device))
    return text.value.decode()


@cache
def why_not() -> str | None:
    """Why kernels cannot run on a GPU here, in one sentence that says what to do; None when they can."""
    version = driver_version()
    if version is None:
        return "no NVIDIA driver: libcuda.so.1 cannot be loaded or does not start"
    if device_count() == 0:
        return "an NVIDIA driver is installed but it shows no device (nvidia-smi, CUDA_VISIBLE_DEVICES)"
    if importlib.util.find_spec("cupy") is None:
        served = (compute_capability() or (9, 0)) >= (7, 5)  # CUDA 13 compiles for Turing and later only
        extra = "cuda13" if version >= (13, 0) and served else "cuda12"
        driver = ".".join(map(str, version))
        return f"CuPy is not installed: {install(extra)} (the driver runs CUDA {driver})"
    if importlib.util.find_spec("numba") is None:
        return f"Numba is not installed: {install()}"
    return _redirector_missing()


def _redirector_missing() -> str | None:
    """Whether Numba's built-in CUDA target loaded in place of numba-cuda, whose redirector is a .pth file."""
    import numba.cuda

    if "numba_cuda" in (numba.cuda.__file__ or ""):
        return None
    return (
        f"numba.cuda comes from {numba.cuda.__file__}, not from numba-cuda: its redirector (a .pth "
        "file) did not run; install with pip into the environment itself, not with --target and PYTHONPATH"
    )


def available() -> bool:
    """Whether kernels can run on a GPU here."""
    return why_not() is None
