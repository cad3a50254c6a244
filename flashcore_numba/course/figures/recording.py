"""One block of a kernel on the simulator, kept for pictures: its requests, line by line and in order."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.course.figures.canvas import several, short
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator import Event
from flashcore_numba.simulator.count import count_wavefronts, sectors_of
from flashcore_numba.simulator.problems import Site
from flashcore_numba.stages import Stage

WARP = 32
ROWS = 64  # query rows of a recorded problem
HEAD_DIM = 64


@dataclass(frozen=True, eq=False)
class Line:
    """All requests of the recorded block that one source line makes to one array.

    `elements` [requests, 32] numbers what each lane touches, in units of `itemsize` bytes from the start of
    the array (of the block's part in shared memory); -1 for a lane that takes no part. `warps` [requests]
    are the warps' numbers in the block.
    """

    site: Site
    op: str
    space: str
    array: str
    itemsize: int
    elements: np.ndarray
    warps: np.ndarray

    @property
    def requests(self) -> int:
        return len(self.elements)

    def sectors(self) -> np.ndarray:
        """32-byte sectors of each request, [requests]."""
        return distinct(sectors_of(self.elements, self.itemsize))

    def used(self) -> np.ndarray:
        """Bytes that each request needs, an element shared by lanes once, [requests]."""
        return distinct(self.elements) * self.itemsize

    def wavefronts(self) -> tuple[np.ndarray, np.ndarray]:
        """Wavefronts of each request to shared memory, and how few they could be, both [requests]."""
        return count_wavefronts(self.elements, self.itemsize)

    def heading(self, main: str) -> str:
        """`line 43:  scores[b, h, row, j]`, with the file's name where it is not `main`."""
        name = PurePath(self.site.file).name
        where = "" if self.site.file == main else f"{name} "
        return f"{where}line {self.site.line}:  {short(self.site.text)}"

    def one_request(self, warp: int) -> str:
        return f"one {self.op} request of warp {warp}: {self.itemsize} bytes per lane, array {self.array}"

    def what(self, main: str) -> str:
        """`Line 43 writes scores`."""
        where = self.heading(main).partition(":")[0].removeprefix("line ")
        verb = {"load": "reads", "store": "writes"}.get(self.op, "updates")
        return f"{'Line ' if where.isdigit() else ''}{where} {verb} {self.array}"

    def in_all(self) -> str:
        return f"In block 0 this line makes {several(self.requests, 'request')} to {self.array}"


@dataclass(frozen=True, eq=False)
class Recording:
    """What block 0 of each launch did, in order; `file` is the kernel's own."""

    stage: Stage
    problem: Any
    launches: list[Any]
    events: list[Event]
    file: str
    warps: int

    @property
    def shape(self) -> str:
        p = self.problem
        keys = "" if p.seq_k == p.seq_q else f", {p.seq_k} keys"
        return f"{p.seq_q} query rows{keys}, D = {p.head_dim}"

    def lines(self, space: str) -> list[Line]:
        """The accesses to "global" or "shared" memory by source line and array, in order of first use."""
        found: dict[tuple, list[Event]] = {}
        for event in self.events:
            if event.space == space:
                key = (event.site, event.op, event.array, event.itemsize * event.width)
                found.setdefault(key, []).append(event)
        lines = []
        for (site, op, array, itemsize), events in found.items():
            parts = [requests(event) for event in events]
            warps, elements = (np.concatenate(part) for part in zip(*parts, strict=True))
            lines.append(Line(site, op, space, array, itemsize, elements, warps))
        return lines

    def note(self) -> str:
        """A sentence on what the simulator reported, empty for a kernel without problems."""
        problems = [problem for launch in self.launches for problem in launch.problems]
        if not problems:
            return ""
        first = problems[0]
        return f" The simulator reports a problem at line {first.line}: {first.kind}, {first.text}."


def requests(event: Event) -> tuple[np.ndarray, np.ndarray]:
    """The warps that take part, and what their lanes touch: [n], and [n, 32] with -1 for no part."""
    width = max(1, event.width)
    elements = np.where(event.active, event.element // width, -1).reshape(-1, WARP)
    here = event.active.reshape(-1, WARP).any(1)
    return event.warp.reshape(-1, WARP)[here, 0], elements[here]


def distinct(values: np.ndarray) -> np.ndarray:
    """How many different values of at least zero each row has, [rows]."""
    ordered = np.sort(values, axis=1)
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return new.sum(1)


def record(stage: Stage, keys: int = ROWS, causal: bool = False, variant: str | None = None) -> Recording:
    """Run the stage on one head with 64 query rows and record block 0 of every launch; a stage of a branch
    has as many keys.

    What a kernel does wrong is in `Recording.note`; raises what the simulator raises for a launch that no GPU
    accepts or Python that it does not know.
    """
    return _record(stage, keys, causal, variant)


@lru_cache(maxsize=8)
def _record(stage: Stage, keys: int, causal: bool, variant: str | None) -> Recording:
    problem = _problem(stage, keys, causal)
    executor = Simulator(record=True, count_blocks=[0], races=False, ops=False)
    stage.run(problem, executor, variant, optional=False)
    events = [event for launch in executor.launches for event in launch.events]
    file = executor.launches[0].kernel.__code__.co_filename
    warps = max((-(-int(np.prod(launch.block)) // WARP) for launch in executor.launches), default=0)
    return Recording(stage, problem, executor.launches, events, file, warps)


def _problem(stage: Stage, keys: int, causal: bool) -> Any:
    rng = np.random.default_rng(0)
    if stage.operation is not None:
        inputs = stage.operation.draw(Shape(1, 1, ROWS, HEAD_DIM), causal, rng)
        return inputs.problem(inputs.arrays)
    q, k, v = (_normal(rng, rows) for rows in (ROWS, keys, keys))
    return Problem(q, k, v, causal=causal)


def _normal(rng: np.random.Generator, rows: int) -> np.ndarray:
    return FLOAT16.round(rng.standard_normal((1, 1, rows, HEAD_DIM), dtype=np.float32))
