"""`RingAttention`: attention over a sequence that the ranks of a process group hold together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cuda_reference.extras import MissingPackageError, install
from cuda_reference.shown import shown
from flashcore_numba.branches.ring import programs
from flashcore_numba.branches.ring.numerics import Float32, Numerics, Stages
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, Layer
from flashcore_numba.branches.ring.sequence import Split, even, whole
from flashcore_numba.core.arrays import adopt, same_kind
from flashcore_numba.core.element import ACCEPTED, FLOAT32
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.problem import checked_flag, checked_scale

TYPES = tuple(each.name for each in (*ACCEPTED, FLOAT32))  # the last one on the host alone
CAPTURED = ("gated", "gather", "pull")  # ways whose transfers are copies


class Captured(NamedTuple):
    """A CUDA graph of a call: `replay()` does it again on the memory of the arguments and of out and lse.

    held: what the graph reads and writes beside out and lse, alive as long as this is.
    """

    replay: Callable[[], None]
    out: Any
    lse: Any
    held: tuple[Any, ...]


class RingAttention:
    """Attention over a sequence of which every rank of a process group holds some rows.

    length: rows of the whole sequence, or a `Split` that says which of them each rank holds. Of a length,
    rank r of N holds pieces r and 2N - 1 - r of 2N ("zigzag"), but with way="ulysses" the pieces 2r and
    2r + 1; `split.cut` and `split.joined` go from the sequence to the ranks and back.
    way: "pull", each step's keys come from their owner by the copy engine (GPUs that reach each other's
    memory); "gather", those of all ranks, some heads after the others, and every rank has room for them;
    "gated", the same, and one launch waits for each piece of the keys when it needs it (Hopper);
    "ring", from the neighbour by NCCL or gloo; "ulysses", all-to-all of heads.
    group: of torch.distributed, None is all processes. stage, backward_stage: as for `attention` and
    `attention_backward`. On GPUs None is the fastest stage; on CPUs it is NumPy in float32, and a stage runs
    on the simulator.

    Every rank calls each method alike, in the same order. On CPUs the ranks tell each other first what they
    are called with: where one refuses its arguments or they differ, all raise, and none has begun. On GPUs
    that would make the host wait: the peers of a rank that refuses its arguments wait for it.

    Calls of one object, and replays of its graphs, use the same memory for keys on their way. On GPUs queue
    them on one stream, or let the stream of each wait for the one before.

    Raises MissingPackageError where torch is not installed, ArgumentError for a bad argument, also where no
    process group has been made.
    """

    def __init__(
        self,
        length: "int | Split",
        *,
        way: str = "pull",
        group: Any = None,
        stage: Any = None,
        backward_stage: Any = None,
    ) -> None:
        dist = _distributed()
        if not isinstance(way, str) or way not in FORWARD:
            raise ArgumentError(f"way is {shown(way)}: accepted are {', '.join(FORWARD)}")
        if not dist.is_initialized():
            raise ArgumentError("group: torch.distributed.init_process_group has not been called")
        self.way, self.group = way, group
        if (group is not None and not isinstance(group, dist.ProcessGroup)) or dist.get_rank(group) < 0:
            raise ArgumentError(
                f"group is {shown(group)}: it must be a process group of torch.distributed with this process "
                "in it, or None for all processes"
            )
        self.number, count = dist.get_rank(group), dist.get_world_size(group)
        if not isinstance(length, Split):
            length = even(whole("length", length, " of rows or a Split"), count, way != "ulysses")
        self.split = length
        if self.split.ranks != count:
            raise ArgumentError(f"length is a split for {self.split.ranks} ranks: the group has {count}")
        self._stages = stage, backward_stage
        self._ranks: dict[str, Any] = {}

    @property
    def rows(self) -> int:
        """Rows of the sequence that this rank holds."""
        return self.split.rows(self.number)

    def __call__(
        self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
    ) -> tuple[Any, Any]:
        """The rank's rows of softmax(scale * Q K^T) V, and their LSE.

        q: [B, H, rows, D], k, v: [B, H_kv, rows, D], the rows of this rank: tensors on its GPU, float16 or
        bfloat16, or on the host, tensors or NumPy arrays, also float32. causal: row i of the sequence sees
        the keys up to i. Returns out like q, and lse float32 [B, H, rows], natural logarithm. On a GPU the
        work is queued on the current stream.

        Raises ArgumentError or UnsupportedError.
        """
        layer = self._agreed("the call", causal, scale, q=q, k=k, v=v)
        out, lse = out_and_lse(q)
        FORWARD[self.way](self._rank(q), layer, *_views(q=q, k=k, v=v, out=out, lse=lse))
        return out, lse

    def backward(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[Any, Any, Any]:
        """(dq, dk, dv) of this rank's rows; out and lse: what the call returned. With way="gather" and
        "gated" chunks go round by NCCL, as with "ring".

        Raises as the call does.
        """
        more = {"dout": dout, "out": out, "lse": lse}
        layer = self._agreed("backward", causal, scale, q=q, k=k, v=v, **more)
        given = [_empty_like(each) for each in (q, k, v)]
        names = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")
        arrays = dict(zip(names, (q, k, v, out, lse, dout, *given), strict=True))
        way = self.way if self.way in BACKWARD else "ring"
        BACKWARD[way](self._rank(q), layer, *_views(**arrays))
        return given[0], given[1], given[2]

    def decode(
        self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
    ) -> tuple[Any, Any]:
        """Attention of a few tokens, the same on every rank, to the keys of all ranks: (out, lse) everywhere.

        q: [B, H, tokens, D]; k, v: [B, H_kv, keys, D], any number of keys on each rank, in the order of the
        ranks. causal: the tokens are the newest ones, and their keys are the last of the last rank.

        Raises as the call does.
        """
        layer = self._agreed("decode", causal, scale, q=q, k=k, v=v)
        out, lse = out_and_lse(q)
        programs.decode(self._rank(q), layer, *_views(q=q, k=k, v=v, out=out, lse=lse))
        return out, lse

    def captured(
        self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
    ) -> Captured:
        """The call as one CUDA graph with streams, copies and barriers: new contents of q, k and v, and
        `replay()`. All ranks replay alike.

        Raises as the call does, and UnsupportedError with another way than those of `CAPTURED`, or without a
        GPU.
        """
        if self.way not in CAPTURED or _on_host(q):
            able = ", ".join(f"way={way!r}" for way in CAPTURED)
            raise UnsupportedError(f"only {able} on GPUs can be captured: NCCL stays outside of CUDA graphs")
        import torch

        for _ in range(2):  # kernels are compiled, memory is allocated, plans are kept
            self(q, k, v, causal=causal, scale=scale)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, lse = self(q, k, v, causal=causal, scale=scale)
        return Captured(graph.replay, out, lse, (q, k, v, *self._rank(q).held()))

    def _agreed(self, method: str, causal: Any, scale: Any, **arrays: Any) -> Layer:
        """What the arguments of a method are for all ranks. Raises ArgumentError."""
        q, k = arrays["q"], arrays["k"]
        if not _on_host(q):
            return self._checked(method, causal, scale, **arrays)
        try:
            layer = self._checked(method, causal, scale, **arrays)
        except ArgumentError as error:
            self._rank(q).refuse(error)
        batch, heads, rows, dim = q.shape
        told = {"method": method} | ({} if method == "decode" else {"way": self.way, "split": self.split})
        told |= {"causal": layer.causal, "scale": layer.scale, "type": _type(q), "batch": batch}
        told |= {"heads of q": heads, "heads of k": k.shape[1], "D": dim}
        told |= {"tokens": rows} if method == "decode" else {}
        self._rank(q).agree(told)
        return layer

    def _checked(self, method: str, causal: Any, scale: Any, *, q: Any, k: Any, v: Any, **more: Any) -> Layer:
        _check_kinds(q=q, k=k, v=v, **more)
        decodes = method == "decode"
        if len(q.shape) != 4 or 0 in q.shape or not (decodes or q.shape[2] == self.rows):
            needed = "B, H, tokens" if decodes else f"B, H, {self.rows}"
            told = "" if decodes else f"rank {self.number} holds {self.rows} rows of the sequence: "
            raise ArgumentError(
                f"q has shape {tuple(q.shape)}: {told}[{needed}, D] is needed, all of them above 0"
            )
        _check_keys(q, k, v, None if decodes else self.rows)
        for name, each in more.items():
            _check_like(name, each, q)
        causal = checked_flag("causal", causal)
        numerics = self._numerics(q)
        if decodes:
            programs.check_newest(self.number, self.split.ranks, causal, q.shape[2], k.shape[2])
        scale = None if scale is None else checked_scale(scale, q.shape[3])
        if isinstance(numerics, Stages) and _on_host(q):
            self._check_stage(numerics, method, causal, q=q, k=k, v=v, **more)
        return Layer(self.split, causal, numerics, scale)

    def _check_stage(self, numerics: Stages, method: str, causal: bool, **arrays: Any) -> None:
        """Raise what a stage would say of arrays on the host later, when peers wait for this rank."""
        decodes = method == "decode"
        by_heads = self.way == "ulysses" and not decodes
        copied: tuple[str, ...] = tuple(arrays) if by_heads else ("k", "v")  # what travels is packed first
        if decodes and arrays["k"].shape[2]:
            copied = ()  # a rank without keys calls no stage
        views = dict(zip(arrays, _views(**arrays), strict=True))
        views |= {name: _copied(views[name]) for name in copied}
        if method == "backward":
            numerics.check_backward(**views, causal=causal)
        else:
            parts = decodes or (not by_heads and self.split.ranks > 1)
            numerics.check(**views, causal=causal, parts=parts)

    def _numerics(self, q: Any) -> Numerics:
        stage, backward_stage = self._stages
        if _on_host(q) and stage is None and backward_stage is None:
            return Float32()
        return Stages(stage, backward_stage)

    def _rank(self, q: Any) -> Any:
        """What carries out the programs where q is; it keeps its memory from call to call."""
        where = "host" if _on_host(q) else "GPU"
        if where not in self._ranks:
            if where == "host":
                from flashcore_numba.branches.ring.processes import ProcessRank

                self._ranks[where] = ProcessRank(self.group)
            else:
                from flashcore_numba.branches.ring.gpus import GpuRank

                self._ranks[where] = GpuRank(self.group)
        return self._ranks[where]


def _distributed() -> Any:
    """`torch.distributed`. Raises MissingPackageError."""
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"the package torch is not installed: {install('torch')}") from error
    return dist


def _on_host(array: Any) -> bool:
    """Whether it is no tensor of a GPU."""
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _check_kinds(**arrays: Any) -> None:
    """Raise unless they are of one kind in one place, and of a type that is served."""
    q = arrays["q"]
    if _on_host(q):
        adopted = {name: adopt(each, name) for name, each in arrays.items()}
        same_kind(**adopted)
        if adopted["q"].kind not in ("NumPy", "PyTorch"):
            raise ArgumentError(f"q is {adopted['q'].where}: tensors and NumPy arrays are accepted")
    for name, each in arrays.items():
        if not _on_host(q) and getattr(each, "device", None) != q.device:
            raise ArgumentError(f"{name} is not on {q.device}, where q is: all must be in one place")
    if _type(q) not in TYPES:
        raise ArgumentError(f"q is {q.dtype}: accepted are {', '.join(TYPES)}")


def _check_keys(q: Any, k: Any, v: Any, rows: int | None) -> None:
    """rows: that k and v must have, None for any number."""
    batch, heads, _, dim = q.shape
    needed = f"[{batch}, H_kv, {'keys' if rows is None else rows}, {dim}]"
    for name, each in (("k", k), ("v", v)):
        shape = tuple(each.shape)
        fits = len(shape) == 4 and shape == (batch, shape[1], shape[2] if rows is None else rows, dim)
        if not fits or not shape[1] or heads % shape[1]:
            raise ArgumentError(
                f"{name} has shape {shape}: {needed} is needed, as q has {tuple(q.shape)}, with an H_kv that "
                f"divides {heads}"
            )
        if each.dtype != q.dtype or tuple(k.shape) != shape:
            raise ArgumentError(
                f"{name} is {each.dtype} {shape}: q is {q.dtype}, k {tuple(k.shape)}; types and the shapes "
                "of k and v must be equal"
            )


def _check_like(name: str, each: Any, q: Any) -> None:
    """Of dout and out, and of the LSE, which is float32 and has no D."""
    shape, of_type = (q.shape[:3], "float32") if name == "lse" else (q.shape, _type(q))
    if tuple(each.shape) != tuple(shape):
        raise ArgumentError(
            f"{name} has shape {tuple(each.shape)}: {tuple(shape)} is needed, as q has {tuple(q.shape)}"
        )
    if _type(each) != of_type:
        raise ArgumentError(f"{name} is {each.dtype}: {of_type} is needed, and q is {q.dtype}")


def _type(array: Any) -> str:
    """The name of an array's type, or of a tensor's."""
    return str(array.dtype).removeprefix("torch.")


def out_and_lse(q: Any) -> tuple[Any, Any]:
    """Memory for both, where q is."""
    if isinstance(q, np.ndarray):
        return _empty_like(q), np.empty(q.shape[:3], np.float32)
    import torch

    return _empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_like(array: Any) -> Any:
    """C-contiguous memory of the shape, type and place of an array."""
    shape = array.shape
    return np.empty(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_empty(shape)


def _copied(array: np.ndarray) -> np.ndarray:
    """C-contiguous memory like a copy of [B, H, rows, ...], with a row at least."""
    batch, heads, rows, *dim = array.shape
    return np.empty((batch, heads, max(1, rows), *dim), array.dtype)


def _views(**arrays: Any) -> list[Any]:
    """On the host NumPy's view of each array, on a GPU the tensor itself."""
    return [adopt(each, name).view if _on_host(each) else each for name, each in arrays.items()]
