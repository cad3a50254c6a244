"""What is asked of the CUDA driver itself, through ctypes: mostly about streams that are being captured.

While a thread captures in CUDA's default mode, a call that allocates memory or loads a kernel gets an error
and ruins the capture, also from another thread. `Allowed` is the driver's own way out of that.
"""

from ctypes import CDLL, byref, c_int, c_uint64, c_void_p, cast
from functools import cache
from typing import Any

PORTABLE_CLUSTER = 8  # blocks that CUDA promises of every GPU from sm_90 on
NON_PORTABLE = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
LEGACY = (0, 1)  # handles of the default stream, which cannot be captured
PER_THREAD = 2  # the handle of each thread's own default stream
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU before
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
NO_DESTRUCTOR_SYNC = MOVE = 1  # flags of a CUuserObject and of its reference
SEMAPHORE_BYTES = 64  # no sem_t is larger


@cache
def driver() -> CDLL:
    """The library of the NVIDIA driver. Raises OSError where there is none."""
    return CDLL("libcuda.so.1")


def check(status: int) -> None:
    """Raise CuPy's CUDADriverError for a status that is not success."""
    if status:
        import cupy

        cupy.cuda.driver.check_status(status)


def _call(name: str, *args: Any) -> None:
    status = getattr(driver(), name)(*args)
    if status == INVALID_CONTEXT:
        import cupy

        cupy.cuda.Device().use()
        status = getattr(driver(), name)(*args)
    check(status)


def allow_large_clusters(function: int) -> None:
    """Let the kernel of this handle have clusters of more than `PORTABLE_CLUSTER` blocks."""
    _call("cuFuncSetAttribute", c_void_p(function), NON_PORTABLE, 1)


class Allowed:
    """`with Allowed():` this thread may allocate memory and load kernels although something is captured.

    CUDA Driver API, `cuThreadExchangeStreamCaptureMode`. What is queued on a stream is captured as before.
    """

    def __enter__(self) -> None:
        self._mode = c_int(RELAXED)
        _call("cuThreadExchangeStreamCaptureMode", byref(self._mode))

    def __exit__(self, *_: object) -> None:
        _call("cuThreadExchangeStreamCaptureMode", byref(self._mode))


def number_of(stream: int) -> int:
    """The number of the stream with this handle: a handle is used again after its stream is gone, the number
    never is.
    """
    number = c_uint64()
    _call("cuStreamGetId", c_void_p(stream), byref(number))
    return number.value


def graph_of(stream: int) -> tuple[int, int] | None:
    """The number of the capture that the stream of this handle is part of, and the graph that is made; None
    while the stream is not captured.
    """
    if stream in LEGACY:
        return None
    status, number, graph = c_int(), c_uint64(), c_void_p()
    _call(
        "cuStreamGetCaptureInfo_v2",
        *(c_void_p(stream), byref(status), byref(number), byref(graph), None, None),
    )
    return (number.value, graph.value or 0) if status.value == ACTIVE else None


@cache
def _libc() -> CDLL:
    library = CDLL(None)
    library.calloc.restype = c_void_p
    return library


class Tie:
    """Tells when a graph, given while it is captured, is gone with all that was made of it and runs no more.

    The driver posts a semaphore then. It must not call Python: the thread that destroys the graph may hold
    Python's lock, and a graph may outlive the interpreter.
    """

    def __init__(self, graph: int) -> None:
        libc, made = _libc(), c_void_p()
        self._semaphore = c_void_p(libc.calloc(1, SEMAPHORE_BYTES))
        libc.sem_init(self._semaphore, 0, 0)
        post = cast(libc.sem_post, c_void_p)
        _call("cuUserObjectCreate", byref(made), self._semaphore, post, 1, NO_DESTRUCTOR_SYNC)
        _call("cuGraphRetainUserObject", c_void_p(graph), made, 1, MOVE)

    def is_over(self) -> bool:
        """Whether the graph is gone; asked no more once it is."""
        if _libc().sem_trywait(self._semaphore):
            return False
        _libc().free(self._semaphore)
        return True


class Handle:
    """A stream by its handle, in the protocol that `cupy.cuda.Stream.from_external` reads."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream
