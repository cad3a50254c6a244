"""Kernels that differ from a stage in one thing: what the lessons' experiments time.

An experiment is a few edits of the stage's module, so that it cannot differ in anything else.

python -m flashcore_numba.course.experiments DIR   time all of them, on a GPU, and write their artifact
"""

import argparse
import functools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.core.workload import Workload
from flashcore_numba.records import artifact
from flashcore_numba.stages import edited
from flashcore_numba.stages.edited import Edit, EditError
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run

ROUNDS = 10


@dataclass(frozen=True)
class Experiment:
    """A stage, what is different, and the edits that make it so."""

    stage: int
    what: str
    edits: tuple[Edit, ...]


# The scores as [.., row, j] in stage 01, where a thread writes its row, and as [.., j, row] in stage 02.
TRANSPOSED = (
    Edit("scores[b, h, row, j]", "scores[b, h, j, row]", times=4),
    Edit("(p.batch, p.heads, p.seq_q, p.seq_k)", "(p.batch, p.heads, p.seq_k, p.seq_q)"),
)
ROW_MAJOR = (
    Edit("scores[b, h, j, row]", "scores[b, h, row, j]", times=2),
    Edit("(p.batch, p.heads, p.seq_k, p.seq_q)", "(p.batch, p.heads, p.seq_q, p.seq_k)"),
)
NARROW = (
    Edit(
        """\
    for c in range(0, q_rmem.shape[0], 8):
        part = load8(k_head, (j, c))
        for e in range(8):
            total += q_rmem[c + e] * part[e]
""",
        """\
    for c in range(q_rmem.shape[0]):
        total += q_rmem[c] * float32(k_head[j, c])
""",
    ),
    Edit(
        """\
    for c in range(0, o_rmem.shape[0], 8):
        part = load8(v_head, (j, c))
        for e in range(8):
            o_rmem[c + e] += p * part[e]
""",
        """\
    for c in range(o_rmem.shape[0]):
        o_rmem[c] += p * float32(v_head[j, c])
""",
    ),
)

IN_REGISTERS = """\
        q_rmem = cuda.local.array(D, float32)
        for c in range(D):
            q_rmem[c] = q[b, h, row, c]
        row_max = float32(-math.inf)
"""

EXPERIMENTS = {
    "row_in_registers": Experiment(
        1,
        "the query row is loaded once, before the loops",
        (
            Edit("        row_max = float32(-math.inf)\n", IN_REGISTERS),
            Edit("float32(q[b, h, row, c]) *", "q_rmem[c] *"),
        ),
    ),
    "scores_transposed": Experiment(1, "the lanes of a warp write neighbouring scores", TRANSPOSED),
    "row_major": Experiment(2, "the scores lie as in stage 01", ROW_MAJOR),
    "narrow": Experiment(2, "K and V are loaded two bytes at a time", NARROW),
    "narrow_row_major": Experiment(2, "both", (*ROW_MAJOR, *NARROW)),
    "forty_registers": Experiment(
        5,
        "at most 40 registers per thread",
        (Edit("@cuda.jit\n    def online_softmax(", "@cuda.jit(max_registers=40)\n    def online_softmax("),),
    ),
    "lanes_side_by_side": Experiment(
        6,
        "lanes 0 to 15 lie side by side along the keys, and 16 to 31 have other rows",
        (
            Edit("cuda.threadIdx.x % 32 // 2\n", "cuda.threadIdx.x % 16\n"),
            Edit("(thread // 32 * 2 + thread % 2)", "(thread // 16)"),
            Edit("range(1, 5)", "range(4)", "stage06_fragments", times=2),  # lane bits across a row
        ),
    ),
    "four_warps": Experiment(
        6, "blocks of 4 warps and half as many rows", (Edit("{64: (8, 64)", "{64: (4, 64)"),)
    ),
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
    """The run of an experiment: the edited stage, and the name as its variant.

    Raises ArgumentError where an edit no longer fits the stage.
    """
    chosen = EXPERIMENTS[name]
    try:
        stage = edited.load(chosen.stage, edited.texts(chosen.stage, chosen.edits))
    except EditError as error:
        raise ArgumentError(f"experiment {name!r}: {error}") from None
    return Run(replace(stage, variants={name: chosen.what}, default=None), name)


def planned() -> list[tuple[list[Workload], list[Run]]]:
    """What `measure.compare.timed` takes."""
    return [([Workload(parse(shape))], [_run(what) for what in chosen]) for shape, chosen in PLAN.items()]


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


def _command() -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore_numba.course.experiments")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the artifact goes")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{str(folder)!r} is no folder")
    if reason := gpu.why_not():
        print(f"{parser.prog}: needs a GPU; {reason}", file=sys.stderr)
        return 1
    print(main(folder))
    return 0


if __name__ == "__main__":
    sys.exit(_command())
