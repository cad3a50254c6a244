"""Kernels that differ from a stage in one thing: what the lessons' experiments time.

An experiment is text of the stage's module and what stands in its place, so that it cannot differ in anything
else.

python -m flashcore_numba.course.experiments DIR   time all of them, on a GPU, and write their artifact
"""

import functools
import inspect
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.records import artifact
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run

ROUNDS = 10


@dataclass(frozen=True)
class Experiment:
    """Text of a stage's module, which must be there, and what takes its place wherever it is."""

    stage: int
    what: str
    changes: Mapping[str, str]


ROW_MAJOR = {
    "scores[b, h, j, row]": "scores[b, h, row, j]",
    "(p.batch, p.heads, p.seq_k, p.seq_q)": "(p.batch, p.heads, p.seq_q, p.seq_k)",
}
NARROW = {
    """\
    for c in range(0, q_rmem.shape[0], 8):
        part = load8(k_head, (j, c))
        for e in range(8):
            total += q_rmem[c + e] * part[e]
""": """\
    for c in range(q_rmem.shape[0]):
        total += q_rmem[c] * float32(k_head[j, c])
""",
    """\
    for c in range(0, o_rmem.shape[0], 8):
        part = load8(v_head, (j, c))
        for e in range(8):
            o_rmem[c + e] += p * part[e]
""": """\
    for c in range(o_rmem.shape[0]):
        o_rmem[c] += p * float32(v_head[j, c])
""",
}
IN_16_LANES = """
from numba import cuda
from flashcore_numba.stages.parts.common import ALL_LANES


@cuda.jit(device=True)
def row_max(value):
    for bit in range(4):
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 1 << bit))
    return value


@cuda.jit(device=True)
def row_sum(value):
    for bit in range(4):
        value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << bit)
    return value
"""

EXPERIMENTS = {
    "row_in_registers": Experiment(
        1,
        "the query row is loaded once, before the loops",
        {
            "        row_max = float32(-math.inf)\n": (
                "        q_rmem = cuda.local.array(D, float32)\n"
                "        for c in range(D):\n"
                "            q_rmem[c] = q[b, h, row, c]\n"
                "        row_max = float32(-math.inf)\n"
            ),
            "float32(q[b, h, row, c]) *": "q_rmem[c] *",
        },
    ),
    "scores_transposed": Experiment(
        1, "the lanes of a warp write neighbouring scores", {b: a for a, b in ROW_MAJOR.items()}
    ),
    "row_major": Experiment(2, "the scores lie as in stage 01", ROW_MAJOR),
    "narrow": Experiment(2, "K and V are loaded two bytes at a time", NARROW),
    "narrow_row_major": Experiment(2, "both", ROW_MAJOR | NARROW),
    "forty_registers": Experiment(
        5,
        "at most 40 registers a thread",
        {"@cuda.jit\n    def online_softmax(": "@cuda.jit(max_registers=40)\n    def online_softmax("},
    ),
    "lanes_side_by_side": Experiment(
        6,
        "lanes 0 to 15 lie side by side along the keys, and 16 to 31 have other rows",
        {
            "multiply_qk, row_max, row_sum\n": f"multiply_qk\n{IN_16_LANES}",
            "cuda.threadIdx.x % 32 // 2\n": "cuda.threadIdx.x % 16\n",
            "(thread // 32 * 2 + thread % 2)": "(thread // 16)",
        },
    ),
    "four_warps": Experiment(6, "blocks of 4 warps and half as many rows", {"{64: (8, 64)": "{64: (4, 64)"}),
}
"""By the name that makes it a variant of its stage: `01 row_in_registers`."""

PLAN: dict[str, tuple[int | str, ...]] = {
    "1x8x512x64": (1, 2, 4, 5, 6, *EXPERIMENTS),
    **{f"{batch}x8x512x64": (1, "row_in_registers") for batch in (2, 4, 16)},
    "8x8x512x64": (1, "row_in_registers", 2, 3),
    **{f"1x8x{length}x64": (4, 5, "forty_registers") for length in (1024, 2048, 4096)},
}
"""Which stages and experiments are timed beside each other, by shape."""


@functools.cache
def experiment(name: str) -> Run:
    """The run of an experiment: a stage made of the altered module, and the name as its variant."""
    chosen = EXPERIMENTS[name]
    module = inspect.getmodule(find(chosen.stage).launch)
    assert module is not None
    text = inspect.getsource(module)
    for old, new in chosen.changes.items():
        if old not in text:
            raise ArgumentError(f"experiment {name!r}: {old!r} is no longer in {module.__name__}")
        text = text.replace(old, new)
    file = f"{module.__file__}: {name}"
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # the simulator reads sources
    altered = ModuleType(module.__name__)
    altered.__package__ = module.__package__
    exec(compile(text, file, "exec"), vars(altered))
    stage: Stage = altered.STAGE
    return Run(replace(stage, variants={name: chosen.what}, default=None), name)


def planned() -> list[tuple[Any, bool, list[Run]]]:
    """What `measure.compare.timed` takes."""
    return [(parse(shape), False, [_run(what) for what in chosen]) for shape, chosen in PLAN.items()]


def _run(what: int | str) -> Run:
    if isinstance(what, str):
        return experiment(what)
    stage = find(what)
    return Run(stage, stage.default_variant)


@functools.cache
def recorded() -> dict[str, Any] | None:
    """The newest recorded artifact of the experiments; None when there is none."""
    files = artifact.recorded_dir().glob(f"*-{artifact.EXPERIMENTS}.json")
    found = [artifact.load(path) for path in files]
    return max(found, key=lambda record: record["date"], default=None)


def main(folder: Path) -> Path:
    """Time every experiment and save the artifact. Needs a GPU."""
    from rich.console import Console

    from flashcore_numba.measure.compare import timed
    from flashcore_numba.run.progress import Progress

    with Progress(Console(stderr=True)) as progress:
        record = timed(planned(), ROUNDS, progress, artifact.EXPERIMENTS, alone=True)
    path = folder / artifact.file_name(record)
    artifact.save(record, path)
    return path


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
