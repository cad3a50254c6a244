"""One run of a stage under hostile conditions: poisoned surroundings, poisoned outputs, a chosen schedule.

Inputs are windows of larger arrays filled with NaN, so a read past an end shows in the answer. Outputs are
windows of NaN in larger arrays of one bit pattern, so an element never written and a write beside the output
both show.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np

from flashcore_numba.core.element import of
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.mask import Mask
from flashcore_numba.core.operation import Inputs as AnyInputs
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage

GUARD_ROWS, GUARD_COLUMNS, GUARD_BYTES = 3, 8, 16  # which keep every row at a multiple of 16 bytes
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes of an element
INTEGER_GUARD = 0x5A5A5A5A  # a length that leads out of every array
MAX_TURNS = 10_000  # a loop that a mutant never leaves becomes a report


class Failed(Exception):
    """A run that is wrong whatever its numbers are.

    kind: a key of `runner.KINDS`. what: the finding. question: what to ask next, part of the message.
    problem: what the simulator or the CPU executor reported, None where it is something else.
    """

    def __init__(self, kind: str, what: str, question: str = "", problem: Any = None) -> None:
        super().__init__(what)
        self.kind, self.what, self.question, self.problem = kind, what, question, problem

    @property
    def text(self) -> str:
        """The whole message."""
        return f"{self.what}. {self.question}" if self.question else self.what


@dataclass(frozen=True)
class Inputs:
    """Host arrays of attention, all of one element type: q [B, H, S_q, D], k and v [B, H_kv, S_k, D]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    causal: bool = False
    scale: float | None = None
    features: Features = OFF

    def but(self, **changes: Any) -> "Inputs":
        return replace(self, **changes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"q": self.q, "k": self.k, "v": self.v, **self.features.arrays}

    def problem(self, arrays: Mapping[str, Any]) -> Problem:
        placed = {name: arrays[name] for name in self.features.arrays}
        features = replace(self.features, **placed) if self.features is not OFF else OFF
        q, k, v = (arrays[name] for name in "qkv")
        return Problem(q, k, v, self.causal, self.scale, features)

    @property
    def mask(self) -> Mask:
        """Which keys each query row sees, where all sequences are as long as the arrays."""
        return self.features.mask(self.q.shape[2], self.k.shape[2], self.causal)

    @property
    def label(self) -> str:
        batch, heads, seq_q, head_dim = self.q.shape
        kv_heads, seq_k = self.k.shape[1:3]
        heads_label = f"H={heads}" if heads == kv_heads else f"H={heads} H_kv={kv_heads}"
        scale = "" if self.scale is None else f" scale={self.scale:.4g}"
        mask = " causal" if self.causal else ""
        options = f" {self.features.label}" if self.features is not OFF else ""
        return f"B={batch} {heads_label} S_q={seq_q} S_k={seq_k} D={head_dim}{mask}{scale}{options}"


class Answer(SimpleNamespace):
    """What came out, on the host: each output that the stage writes, by its name."""


def _inside(shape: tuple[int, ...], dtype: Any, fill: int) -> tuple[np.ndarray, Callable[[Any], Any]]:
    """A window with guard rows, columns, heads and batches on every side where one fits."""
    columns = max(GUARD_COLUMNS, GUARD_BYTES // np.dtype(dtype).itemsize)
    outer = [n + 1 for n in shape[:-1]] + [shape[-1] + 2 * columns]
    inner = [slice(0, n) for n in shape[:-1]] + [slice(columns, columns + shape[-1])]
    if len(shape) == 4:  # rows of D elements; the last dimension of the LSE is rows
        outer[2], inner[2] = shape[2] + 2 * GUARD_ROWS, slice(GUARD_ROWS, GUARD_ROWS + shape[2])
    window = tuple(inner)
    return _filled(outer, dtype, fill), lambda parent: parent[window]


def _contiguous(shape: tuple[int, ...], dtype: Any, fill: int) -> tuple[np.ndarray, Callable[[Any], Any]]:
    """A contiguous window in the middle of a flat array."""
    size, guard = math.prod(shape), 256
    flat = _filled((size + 2 * guard,), dtype, fill)
    return flat, lambda parent: parent[guard : guard + size].reshape(shape)


def _transposed(shape: tuple[int, ...], dtype: Any, fill: int) -> tuple[np.ndarray, Callable[[Any], Any]]:
    """[B, S, H, D] in memory, seen as [B, H, S, D]: heads and rows have changed places."""
    if len(shape) != 4:
        return _contiguous(shape, dtype, fill)
    batch, heads, rows, head_dim = shape
    parent, window = _inside((batch, rows, heads, head_dim), dtype, fill)
    return parent, lambda parent: window(parent).swapaxes(1, 2)


LAYOUTS: dict[str, Callable[..., tuple[np.ndarray, Callable[[Any], Any]]]] = {
    "contiguous": _contiguous,
    "inside": _inside,
    "transposed": _transposed,
}
# In their order, each with strides of its own.
MIXED, MIXED_OUTPUTS = ("transposed", "inside", "contiguous"), ("inside", "transposed", "contiguous")


def _filled(shape: Sequence[int], dtype: Any, bits: int) -> np.ndarray:
    """A parent array of one bit pattern whose first element is at a multiple of 16 bytes."""
    dtype = np.dtype(dtype)
    size = math.prod(shape)
    spare = np.empty(size * dtype.itemsize + 16, np.uint8)
    start = -spare.ctypes.data % 16
    parent = spare[start : start + size * dtype.itemsize].view(BITS[dtype.itemsize])
    parent[:] = bits
    return parent.view(dtype).reshape(shape)


class _Window:
    """One array of the problem inside its poisoned parent, on the host and where the kernel runs."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        layout: str,
        guard: int,
        to_device: Callable,
        to_host: Callable,
    ) -> None:
        self.parent, self.window = LAYOUTS[layout](shape, dtype, guard)
        self.to_device, self.to_host = to_device, to_host

    def place(self, value: np.ndarray) -> Any:
        self.window(self.parent)[...] = value
        self.before = self.parent.copy()
        self.device_parent = self.to_device(self.parent)
        return self.window(self.device_parent)

    def place_unwritten(self) -> Any:
        inside = self.window(self.parent)
        bits = np.full(inside.shape, of(inside.dtype).unwritten, BITS[inside.dtype.itemsize])
        return self.place(bits.view(inside.dtype))

    def after(self, name: str, axes: tuple[str, ...] = (), written: np.ndarray | None = None) -> np.ndarray:
        """The contents now. Raises Failed for a touched guard, a changed input, and of an output, which has
        `axes`, for an element that was not written though it is one of `written`, or was though it is none.
        """
        parent = self.to_host(self.device_parent).view(self.parent.dtype)
        inside = self.window(parent).copy()
        if axes:
            bits = inside.view(BITS[inside.dtype.itemsize])
            missing = bits == of(inside.dtype).unwritten
            if written is not None:
                foreign = ~missing & ~written
                if foreign.any():
                    at = place(axes, np.unravel_index(foreign.argmax(), foreign.shape))
                    what = f"{int(foreign.sum())} elements of {name} were written that must keep their bits"
                    raise Failed("guard", f"{what}, first {at}")
                missing &= written
            if missing.any():
                at = place(axes, np.unravel_index(missing.argmax(), missing.shape))
                count = f"{int(missing.sum())} of {missing.size} elements of {name}"
                rows = "query row a thread, also in the last tile, head and batch"
                whose = rows if "h" in axes else "element a thread, also in the last tile"
                raise Failed("unwritten", f"{count} were never written, first {at}", f"Has every {whose}?")
            self.window(self.before)[...] = inside
        same = _bits(parent) == _bits(self.before)
        if not same.all():
            what = "memory beside it was written" if axes else "an input (or memory beside it) was written"
            raise Failed("guard", f"{name}: {what}, {int((~same).sum())} elements: an index runs past an end")
        return inside


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(BITS[x.dtype.itemsize])


def place(axes: Iterable[str], index: Iterable[Any]) -> str:
    """`[b=0, h=1, row=2]`: how a report names an element."""
    return "[" + ", ".join(f"{name}={int(i)}" for name, i in zip(axes, index, strict=True)) + "]"


@dataclass(frozen=True)
class Trial:
    """A stage (and variant) on a back end, `simulator` or `gpu`; calling it runs the stage once.

    launch_limit: seconds that a launch on the simulator may take. deadline: `time.time()` at which it is
    stopped there in any case.
    """

    stage: Stage
    variant: str | None = None
    backend: str = "simulator"
    launch_limit: float | None = None
    deadline: float | None = None

    def __call__(
        self, inputs: AnyInputs, layout: str = "inside", order: str = "lockstep", sm_count: int = 132
    ) -> Answer:
        """Raises Failed for anything that is wrong whatever the numbers are.

        layout: a key of `LAYOUTS` for all arrays, or "mixed", where they all differ in their strides.
        order and sm_count, how many multiprocessors a launcher is told of, are for the simulator.
        """
        if self.backend == "gpu":
            return self._on_gpu(inputs, layout)
        # The simulator follows a NaN to its origin only while it counts arithmetic.
        ops = self.stage.kernels.counts_for_nan
        options: dict[str, Any] = {"order": order, "max_turns": MAX_TURNS, "ops": ops, "sm_count": sm_count}
        if (limit := self._seconds_left()) is not None:
            options["time_limit"] = limit
        executor = Simulator(**options)
        return self._run(inputs, layout, executor, lambda parent: parent, lambda parent: parent)

    def _seconds_left(self) -> float | None:
        left = None if self.deadline is None else max(1e-3, self.deadline - time.time())
        return min((limit for limit in (left, self.launch_limit) if limit is not None), default=None)

    def _on_gpu(self, inputs: AnyInputs, layout: str) -> Answer:
        import cupy

        from flashcore_numba.run.executor import Gpu

        def to_device(parent: np.ndarray) -> Any:
            bits = cupy.asarray(parent.view(BITS[parent.dtype.itemsize]))
            return bits if parent.dtype.itemsize == 1 else bits.view(parent.dtype)  # CuPy knows no e4m3

        def to_host(parent: Any) -> np.ndarray:
            return cupy.asnumpy(parent.view(BITS[parent.dtype.itemsize]))

        return self._run(inputs, layout, Gpu(), to_device, to_host)

    def _run(
        self, inputs: AnyInputs, layout: str, executor: Any, to_device: Callable, to_host: Callable
    ) -> Answer:
        def window(shape: tuple[int, ...], dtype: Any, layout: str) -> _Window:
            guard = INTEGER_GUARD if np.issubdtype(dtype, np.integer) else of(dtype).guard
            return _Window(shape, dtype, layout, guard, to_device, to_host)

        layouts = cycle(MIXED if layout == "mixed" else (layout,))
        read = {
            name: window(x.shape, x.dtype, next(layouts) if x.ndim == 4 else "contiguous")
            for name, x in inputs.arrays.items()
        }
        placed = {name: read[name].place(x) for name, x in inputs.arrays.items()}
        problem = inputs.problem(placed)
        written = {}
        layouts = cycle(MIXED_OUTPUTS if layout == "mixed" else (layout,))
        for output in self.stage.outputs:
            shape = output.shape(problem)
            strided = len(shape) == 4 or (self.stage.kernels.strided_rows and layout != "mixed")
            own = next(layouts) if strided else "contiguous"
            written[output] = window(shape, output.dtype(problem), own)
        outputs = {output.name: each.place_unwritten() for output, each in written.items()}
        self.stage.launch(problem, executor=executor, variant=self.variant, **outputs)
        _raise_reported(executor)
        for name, each in read.items():
            each.after(name)
        found = {}
        for output, each in written.items():
            some = output.written(inputs) if output.written else None
            found[output.name] = each.after(output.name, output.axes, some)
        return Answer(**found)


def _raise_reported(executor: Any) -> None:
    """Turn the simulator's first report into a failure that quotes file and line."""
    reports = [problem for launch in getattr(executor, "launches", ()) for problem in launch.problems]
    if reports:
        others = len(reports) - 1
        more = f" ({others} more {'report' if others == 1 else 'reports'})" if others else ""
        raise Failed(family(reports[0].kind), f"{reports[0]}{more}", problem=reports[0])


FAMILIES = {
    "race": "race",
    "race between blocks": "race",
    "divergent barrier": "barrier",
    "barrier after exit": "barrier",
    "out of bounds": "memory",
    "uninitialised read": "memory",
    "misaligned": "memory",
    "finished block": "memory",
    "stack overflow": "memory",
    "missing wait": "copy",
    "missing fence": "copy",
    "warp mask": "warp",
    "not a number": "value",
    "undefined value": "value",
    "endless loop": "hang",
    "deadlock": "hang",
    "counter left over": "counter",
    "time limit": "time",
    "division by zero": "simulator",
    "bad instruction": "simulator",
}
"""The kinds of report, in the few families that checks and mutants speak of: keys of `runner.KINDS`."""


def family(kind: str) -> str:
    """The family of a kind of report, of the simulator or of the CPU executor."""
    return FAMILIES[kind]
