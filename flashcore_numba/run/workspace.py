"""GPU memory that a stage needs in addition to its arrays, kept so that a call allocates nothing.

Kernels of one stream run one after the other and may use the same memory, so a call takes a piece that the
stream has, and gives it back as soon as its kernels are queued. Threads that queue at the same time have a
piece each, for their kernels may alternate. A call that is captured takes a piece that belongs to the graph,
which runs on any stream at any time; the piece serves another graph when this one is gone.
"""

from threading import Lock
from typing import Any

from cuda_reference.driver import Allowed, Handle, Tie, graph_of, number_of

MOST = 64  # streams whose pieces are kept
MOST_BYTES = 32 << 20  # of a piece that a stream keeps; a call that needs more allocates it each time
COUNTERS, COUNTER_BYTES = 1024, 32  # counters of a sector each, as most are, allocated at a time


class Piece:
    """`size` bytes from address `at` on, and `counter_bytes` from address `counter` on: uint32s that are 0,
    and that every launch which uses them leaves 0.
    """

    def __init__(
        self, key: tuple[int, ...], memory: Any, size: int, counter: int, counter_bytes: int
    ) -> None:
        self.key, self.memory, self.size = key, memory, size
        self.counter, self.counter_bytes = counter, counter_bytes

    @property
    def at(self) -> int:
        return self.memory.ptr if self.size else 0


_idle: dict[tuple[int, ...], list[Piece]] = {}  # by device and number of the stream, or stream and capture
_tied: list[tuple[Tie, Any]] = []  # what graphs use
_released: list[Piece] = []  # by graphs that are gone
_counters: dict[tuple[int, int], list[int]] = {}  # by device and bytes: addresses that nobody has
_memory_of_counters: list[Any] = []
_lock = Lock()


def forget() -> None:
    """Drop what no call and no graph uses."""
    with _lock:
        _collect()
        for key in list(_idle):
            _idle.pop(key, None)
        _drop_released()


def take(device: int, stream: int, size: int, captured: bool = True, counters: int = 1) -> Piece:
    """A piece of `size` bytes and so many counters, or more, on the current device, for kernels that are
    queued on the stream of this handle before `give_back`.

    captured: whether the stream may be part of a capture.
    """
    graph = graph_of(stream) if captured else None
    key = (device, number_of(stream)) if graph is None else (device, stream, graph[0])
    try:
        piece = _idle[key].pop()
    except (KeyError, IndexError):
        piece = None
    if piece is not None and piece.size >= size and piece.counter_bytes >= 4 * counters:
        return piece
    room = max(COUNTER_BYTES, 1 << (4 * counters - 1).bit_length())
    with _lock, Allowed():
        if graph is not None:
            return _for_graph(key, graph[1], size, room)
        return _for_stream(key, stream, size, room, piece)


def give_back(piece: Piece) -> None:
    """The kernels that use the piece are queued."""
    if piece.size > MOST_BYTES and len(piece.key) == 2:
        piece.memory, piece.size = None, 0  # CuPy's pool gives it out again in the order of the stream
    _idle.setdefault(piece.key, []).append(piece)
    if len(_idle) > MOST:
        for oldest in list(_idle)[:-MOST]:
            _idle.pop(oldest, None)


def keep(stream: int, owner: Any) -> None:
    """Keep `owner`, and so its memory, as long as the graph that is captured on the stream, if any."""
    graph = graph_of(stream)
    if graph is not None:
        with _lock:
            _collect()
            _tied.append((Tie(graph[1]), owner))


def _for_stream(key: tuple[int, ...], stream: int, size: int, room: int, smaller: Piece | None) -> Piece:
    """Memory that CuPy's pool gives out, and takes back, in the order of the stream.

    The counters of a smaller piece are too few or go on; nobody else gets them, for kernels may count there.
    """
    import cupy

    _collect()
    _drop_released()
    memory = None
    if size:
        with cupy.cuda.Stream.from_external(Handle(stream)):
            memory = cupy.cuda.alloc(size)
    if smaller is not None and smaller.counter_bytes >= room:
        return Piece(key, memory, size, smaller.counter, smaller.counter_bytes)
    return Piece(key, memory, size, _counter(key[0], room), room)


def _for_graph(key: tuple[int, ...], graph: int, size: int, room: int) -> Piece:
    """Memory of no pool: what a pool has may still be used by the stream, and the graph does not wait."""
    import cupy

    _collect()
    fits = [
        piece
        for piece in _released
        if piece.key[0] == key[0] and piece.size >= size and piece.counter_bytes >= room
    ]
    if fits:
        piece = min(fits, key=lambda each: each.size)
        _released.remove(piece)
        piece.key = key
    else:
        _drop_released()
        memory = cupy.cuda.Memory(size) if size else None
        piece = Piece(key, memory, size, _counter(key[0], room), room)
    _tied.append((Tie(graph), piece))
    return piece


def _collect() -> None:
    """Take back what belonged to graphs that are gone."""
    over = [each for each in _tied if each[0].is_over()]
    for each in over:
        _tied.remove(each)
        if isinstance(each[1], Piece):
            _idle.pop(each[1].key, None)
            _released.append(each[1])


def _drop_released() -> None:
    for piece in _released:
        _counters[piece.key[0], piece.counter_bytes].append(piece.counter)
    _released.clear()


def _counter(device: int, room: int) -> int:
    """The address of `room` bytes of counters that nobody has."""
    import cupy

    free = _counters.setdefault((device, room), [])
    if not free:
        size = max(room, COUNTERS * COUNTER_BYTES)
        memory = cupy.cuda.Memory(size)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.memsetAsync(memory.ptr, 0, size, stream.ptr)
        stream.synchronize()
        _memory_of_counters.append(memory)
        free.extend(memory.ptr + at for at in range(0, size, room))
    return free.pop()
