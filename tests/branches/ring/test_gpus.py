"""`GpuRank` on stand-ins for CUDA: which stream work goes to, and that nothing of an earlier call is used."""

import ctypes
import gc
import sys
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashcore_numba.branches.ring import gpus, processes
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, Layer
from flashcore_numba.branches.ring.rank import ALSO, MAIN, SIDE
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.branches.ring.stamps import Stamped


@dataclass
class Stream:
    cuda_stream: int
    waited: list[Any] = field(default_factory=list)

    def record_event(self) -> tuple[str, int]:
        return "event", self.cuda_stream

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class Cuda:
    """The current stream, and what was queued: (what, handle of the stream)."""

    def __init__(self) -> None:
        self.current, self.made, self.queued = Stream(7), 0, list[tuple[str, int]]()

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: Any = None) -> Stream:
        return self.current

    def Stream(self, device: Any, priority: int = 0) -> Stream:
        self.made += 1
        return Stream(100 + self.made)

    def stream(self, stream: Stream) -> "Aside":
        return Aside(self, stream)

    def note(self, what: str) -> None:
        self.queued.append((what, self.current.cuda_stream))

    def memcpy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(to, source, size)
        self.queued.append(("copy", stream))

    def memcpy_2d(self, to: int, pitch: int, source: int, other: int, width: int, height: int, *more: int):
        for row in range(height):
            ctypes.memmove(to + row * pitch, source + row * other, width)
        self.queued.append(("copy of heads", more[1]))


class Aside:
    """Another current stream, as often as it is entered."""

    def __init__(self, cuda: Cuda, stream: Stream) -> None:
        self.cuda, self.stream = cuda, stream

    def __enter__(self) -> None:
        self.before, self.cuda.current = self.cuda.current, self.stream

    def __exit__(self, *error: object) -> None:
        self.cuda.current = self.before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    runtime = SimpleNamespace(
        memcpyAsync=found.memcpy, memcpy2DAsync=found.memcpy_2d, memcpyDefault=4, memcpyHostToDevice=1
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=runtime))
    stub = SimpleNamespace(
        cuda=found, float32=torch.float32, int32=torch.int32, empty=torch.empty, zeros=torch.zeros,
        device=lambda *_: torch.device("cpu"),
        full=lambda *a, **k: SimpleNamespace(pin_memory=lambda: torch.full(*a, **k)),
    )  # fmt: skip
    monkeypatch.setattr(gpus, "torch", stub)

    def rendezvous(tensor: torch.Tensor, group: Any) -> Any:
        return SimpleNamespace(
            get_buffer=lambda peer, shape, dtype: torch.full(shape, float(peer), dtype=dtype),
            barrier=lambda channel: found.note(f"barrier {channel}"),
        )

    monkeypatch.setattr(gpus, "symmetric", SimpleNamespace(empty=torch.empty, rendezvous=rendezvous))
    ranks = SimpleNamespace(get_rank=lambda group: 0, get_world_size=lambda group: 2)
    ranks.group = SimpleNamespace(WORLD="world")
    monkeypatch.setattr(gpus, "dist", ranks)
    return found


def test_what_a_graph_uses_outlives_what_replaces_it(cuda: Cuda) -> None:
    """Symmetric memory of another shape, and memory of another type, and the rank itself gone."""
    rank = gpus.GpuRank()
    alive = [weakref.ref(rank.shared("keys", (4,))), weakref.ref(rank.of(1, "keys"))]
    alive += [weakref.ref(rank.empty("part", (3,))), weakref.ref(rank.kept(lambda _: torch.zeros(2)))]
    held = rank.held()
    rank.shared("keys", (8,))
    rank.empty("part", (3,), torch.int32)
    del rank
    gc.collect()
    assert all(each() is not None for each in alive)
    del held
    gc.collect()
    assert all(each() is None for each in alive)


def test_the_main_stream_is_the_current_one_of_each_call(cuda: Cuda) -> None:
    rank = gpus.GpuRank()
    rank.shared("keys", (4,))
    a, b = torch.arange(4.0), torch.zeros(4)
    for handle in (7, 8):
        cuda.current = Stream(handle)
        cuda.queued.clear()
        for stream in (MAIN, SIDE, ALSO):
            rank.launch(stream, "work", lambda reads, writes: cuda.note("work"), (), (), 0)
            rank.barrier(stream, "end")
            rank.copy(stream, b, a, 0)
            assert rank.record(stream) == ("event", cuda.queued[-1][1])
        assert cuda.queued == [
            (what, at) for at in (handle, 101, 102) for what in ("work", "barrier 1", "copy")
        ]
        rank.wait(MAIN, "one")
        assert cuda.current.waited == ["one"] and cuda.current.cuda_stream == handle
    assert torch.equal(a, b)


def test_stamps_are_on_the_stream_of_what_they_follow(cuda: Cuda) -> None:
    rank = gpus.GpuRank()
    rank.shared("keys", (4,))
    a, b = torch.arange(4.0), torch.zeros(4)
    through = Stamped(rank, lambda: cuda.current.cuda_stream)
    for stream in (MAIN, SIDE, ALSO):
        through.launch(stream, "work", lambda reads, writes: cuda.note("work"), (), (), 0)
        through.barrier(stream, "end")
        through.copy(stream, b, a, 3)
        through.wait(SIDE, through.record(stream))
    found = [(each.stream, each.kind, each.begin.value, each.end.value) for each in through.pieces]
    assert found == [
        each
        for name, handle in ((MAIN, 7), (SIDE, 101), (ALSO, 102))
        for each in (
            *((name, kind, handle, handle) for kind in ("kernel", "barrier", "copy")),
            (SIDE, "wait", 101, 101),
        )
    ]
    assert torch.equal(a, b) and {each.step for each in through.pieces if each.kind == "wait"} == {3}


def test_a_copy_of_heads(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [torch.randn(2, 3, 9, 4).half() for _ in range(2)]
    right = whole[0].clone()
    right[:, 1:, 2:5] = whole[1][:, 1:, 4:7]
    gpus.GpuRank().copy(SIDE, whole[0][:, 1:, 2:5], whole[1][:, 1:, 4:7], 0)
    assert torch.equal(whole[0], right) and cuda.queued == [("copy of heads", 101)] * 2
    monkeypatch.setattr(gpus, "PITCH_LIMIT", 71)  # a head of the whole has 72 bytes
    whole[0].zero_(), right.zero_()
    right[:, 1:, 2:5] = whole[1][:, 1:, 4:7]
    gpus.GpuRank().copy(SIDE, whole[0][:, 1:, 2:5], whole[1][:, 1:, 4:7], 0)
    assert torch.equal(whole[0], right) and cuda.queued[2:] == [("copy", 103)] * 4
    with pytest.raises(AssertionError, match="rows of a head follow each other"):
        gpus.copy(whole[0].swapaxes(2, 3), whole[1].swapaxes(2, 3), 0)


def test_numbers_that_a_kernel_looks_at(cuda: Cuda) -> None:
    rank = gpus.GpuRank()
    few, many = (rank.word("numbers", count) for count in (2, 5))
    for stream, handle in ((MAIN, 7), (SIDE, 101)):
        for value in (6, 3):
            rank.signal(stream, few, value, 0)
            rank.signal(stream, many[1:4], value, 0)
            assert few.tolist() == [value] * 2 and many.tolist() == [0, *[value] * 3, 0]
            assert cuda.queued[-2:] == [("copy", handle)] * 2
    assert few is rank.word("numbers", 2)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("module, kind", [(gpus, gpus.GpuRank), (processes, processes.ProcessRank)])
def test_an_exchange_is_with_ranks_of_the_group(module: Any, kind: Any, monkeypatch: Any) -> None:
    """Which `torch.distributed` wants by the numbers that they have among all processes."""
    ranks = SimpleNamespace(
        isend="send", irecv="receive", get_rank=lambda group: 1, get_world_size=lambda group: 4,
        get_global_rank=lambda group, number: {"some": 10}[group] + number, P2POp=lambda *each: each,
        batch_isend_irecv=lambda operations: queued.extend(operations) or [],
    )  # fmt: skip
    queued: list[Any] = []
    monkeypatch.setattr(module, "dist", ranks)
    send, receive = (torch.full((3,), each) for each in (1.0, 2.0))
    arrays = (send, receive) if module is gpus else (send.numpy(), receive.numpy())
    kind("some").exchange(SIDE, arrays[0], 0, arrays[1], 2, 0)
    assert [(what, place(array), *more) for what, array, *more in queued] == [
        ("send", place(send), 10, "some"), ("receive", place(receive), 12, "some"),
    ]  # fmt: skip


def views(rank: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, Any]:
    return rank.empty("own", shape, dtype)[1:], rank.shared("keys", shape, dtype)[1:], rank.of(1, "keys")[1:]


def other_views(rank: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return rank.empty("other", (1,))


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.usefixtures("cuda")
class TestWhatIsKept:
    def test_it_is_made_once_for_equal_arguments(self) -> None:
        rank, aside = gpus.GpuRank(), gpus.GpuRank()
        rank.empty("other", (1,))
        found = rank.kept(views, (4, 2), torch.half)
        assert rank.kept(views, (4, 2), torch.half) is found
        assert rank.kept(other_views, (4, 2), torch.half) is rank.empty("other", (1,))
        assert not {*map(place, found)} & {*map(place, aside.kept(views, (4, 2), torch.half))}

    @pytest.mark.parametrize("shape, dtype", [((5, 2), torch.half), ((4, 2), torch.bfloat16)])
    def test_it_is_of_the_memory_of_now(self, shape: tuple[int, ...], dtype: Any) -> None:
        rank = gpus.GpuRank()
        for how in (((4, 2), torch.half), (shape, dtype), ((4, 2), torch.half)):
            own, keys, peers = rank.kept(views, *how)
            assert own.dtype == how[1] and own.shape[0] == how[0][0] - 1
            assert place(own) == place(rank.empty("own", *how))
            assert place(keys) == place(rank.shared("keys", *how))
            assert place(peers) == place(rank.of(1, "keys"))

    def test_memory_that_another_part_of_a_program_replaces(self) -> None:
        rank = gpus.GpuRank()
        rank.kept(views, (4, 2), torch.half)
        for replace in (rank.empty, rank.shared):
            name = "own" if replace == rank.empty else "keys"
            replace(name, (4, 2), torch.bfloat16)
            now = replace(name, (4, 2), torch.half)
            assert place(now) in map(place, rank.kept(views, (4, 2), torch.half))


class Noted(gpus.GpuRank):
    """It notes the memory that launches, copies and signals use."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[int] = set()

    def launch(self, stream, what, function, reads, writes, step, late=(), word=None):
        self.places |= {place(x) for x in (*reads, *writes, *late)}

    def copy(self, stream, to, source, step):
        self.places |= {place(to), place(source)}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "way, backward", [("pull", False), ("gather", False), ("gated", False), ("pull", True)]
)
def test_a_call_uses_its_own_arrays_and_no_older_ones(way: str, backward: bool, causal: bool) -> None:
    """Two ranks side by side, which have no memory in common."""
    split, ranks, used = even(16, 2), (Noted(), Noted()), list[set[int]]()
    numerics = SimpleNamespace(check_waits=lambda: None, attend=None, backward=None)
    numerics.attend = numerics.backward = lambda *_, **__: None
    alive = []
    for transposed in (False, False, True):
        for rank in ranks:
            shapes = [(1, h, 8, 4) for h in (4, 2, 2, 4)] + [(1, 4, 8)]
            shapes += [(1, h, 8, 4) for h in (4, 4, 2, 2)] if backward else []
            arrays = [torch.zeros(shape) for shape in shapes]
            if transposed:
                arrays = [x.swapaxes(1, 2).contiguous().swapaxes(1, 2) for x in arrays]
            rank.places.clear()
            (BACKWARD if backward else FORWARD)[way](rank, Layer(split, causal, numerics), *arrays)
            alive.append(arrays)
            own = {*map(place, arrays)}
            assert own <= rank.places
            used.append(rank.places - own)
    older = {place(x) for arrays in alive for x in arrays}
    assert not older & set().union(*used)
    assert used[0] == used[2] == used[4] and not used[0] & used[1]
