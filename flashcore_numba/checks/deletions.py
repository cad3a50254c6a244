"""The mutants that nobody has to write: a kernel in CUDA C without one of its barriers, waits or fences."""

import re
from collections.abc import Iterable
from pathlib import Path

import cuda_reference
from flashcore_numba.checks.mutation import Mutant, edit_at
from flashcore_numba.stages import Stage

# A call, as a statement, of something that orders memory: __syncthreads(), ptx::cp_async_wait<1>(), ...
ORDERING = re.compile(
    r"(?<![\w:.])(?:\w+::)*"
    r"(?P<name>__sync(?:threads|warp)\w*|\w*(?:fence|wait|commit|arrive|barrier)\w*|bar_\w+|\w+_sync)"
    r"(?:<[^;<>]*>)?\([^;{}]*\);"
)
# Calls that match the pattern and do something else.
OTHER = re.compile(r"matrix_sync|mma_sync|^mbarrier_init$|shfl|ballot|any_sync|all_sync|match_")
EXPECTED = (
    *("race", "barrier", "memory", "warp", "copy", "hang", "value", "property", "unwritten", "guard"),
    "simulator",  # an mbarrier that more arrive at than it counts is a bad instruction
)
# Statements whose absence nothing can report, and why they stand there: (file, the line's text) -> reason.
HARMLESS: dict[tuple[str, str], str] = {
    (
        "stage16_cluster_split.cu",
        "if (EARLY) ptx::grid_dependency_wait();  // kernels before have written Q, K, V and read out",
    ): "The CPU executor runs one kernel after the other, and on an H200 a block finds room when one of the "
    "kernel before ends, so nothing shows. The programming guide asks for it: blocks that still run write.",
    (
        "stage15_ping_pong.cu",
        "if (PING_PONG) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products",
    ): "It orders products in time, for speed: no memory depends on it.",
    (
        "stage15_ping_pong.cu",
        "__syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin",
    ): "A lane would have to lag a whole turn of the ring: turns forbid that, and without them it takes more "
    "idle tiles than a ring has slots.",
}


def deletions(stage: Stage, harmless: bool = False) -> list[Mutant]:
    """One mutant for each ordering statement of a stage's `.cu` file and of the headers that it is the first
    to include, ptx.cuh aside: the statement is replaced by an empty one.

    harmless: those of `HARMLESS`, which survive, instead of all others, which must not.
    """
    found = []
    for path in _files(stage.place):
        text = path.read_text()
        code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
        for call in ORDERING.finditer(code):
            if OTHER.search(call["name"]):
                continue
            number = text.count("\n", 0, call.start()) + 1
            line = text.splitlines()[number - 1].strip()
            if ((path.name, line) in HARMLESS) is not harmless:
                continue
            edit = edit_at(text, call.start(), call.end(), ";", path.name)
            mistake = f"{path.name}:{number}: `{call[0]}` is left out."
            name = f"without_line_{number}"
            found.append(
                Mutant(
                    *(stage.place, name, mistake, (edit,), EXPECTED, stage.default_variant),
                    any_variant=True,
                    on_gpu=False,  # it may hang
                )
            )
    return found


def one_of_each(mutants: Iterable[Mutant]) -> list[Mutant]:
    """The first of these deletions of each stage and of each function that is no longer called there."""
    first: dict[tuple, Mutant] = {}
    for mutant in mutants:
        call = ORDERING.search(mutant.mistake)
        assert call is not None
        first.setdefault((mutant.stage, call["name"]), mutant)
    return list(first.values())


def _files(number: int) -> list[Path]:
    kernels = sorted(cuda_reference.FOLDER.glob(f"stage{number:02d}_*.cu"))
    earlier = [path for path in cuda_reference.FOLDER.glob("stage*.cu") if path.name < f"stage{number:02d}"]
    new = _included(kernels) - _included(earlier) - {"ptx.cuh"}
    return [*kernels, *(cuda_reference.INCLUDE / name for name in sorted(new))]


def _included(kernels: Iterable[Path]) -> set[str]:
    return {name for path in kernels for name in re.findall(r'#include "(\w+\.cuh)"', path.read_text())}
