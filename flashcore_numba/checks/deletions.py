"""The mutants that nobody has to write: a kernel in CUDA C without one of its barriers, waits or fences."""

import re
from collections.abc import Iterable
from pathlib import Path

import cuda_reference
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages import LADDER, Stage, files
from flashcore_numba.stages.edited import edit_at

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
# Statements whose absence nothing can report, and why they are there: (file, the line's text) -> reason.
HARMLESS: dict[tuple[str, str], str] = {
    (
        "decode_wgmma.cuh",
        "ptx::fence_proxy_async();          // wgmma sees it: Q",
    ): "By the PTX model the fence that each thread has before its first K would do: it comes after the "
    "barrier. The programming guide has one of the threads that wrote.",
    (
        "epilogue_norm.cu",
        "if (EARLY) ptx::grid_dependency_wait();  // kernels before have written the residual and read out",
    ): "The producer has waited, and the mbarriers of its keys tell it to these threads. The programming "
    "guide has every thread that reads wait.",
    (
        "decode_clusters.cuh",
        "__syncwarp();  // the warp's lanes arrive together",
    ): "The barrier of a cluster takes lanes that are together; a compiler joins them after the branch.",
    (
        "backward_wgmma.cu",
        "__threadfence();  // these adds, which came before the wait's end, are done",
    ): "Adds are atomics, between which the CPU executor looks for no order. On a GPU the next block could "
    "add first, and the bits would change.",
    ("backward_wgmma.cu", "__syncwarp();  // all lanes have added"): "The same.",
    (
        "backward_wgmma.cu",
        "if (DETERMINISTIC) ptx::mbarrier_wait(may_add, number % 2);  // it is the block's turn",
    ): "The cases have too few tiles: with more of them, warps that add early leave the keepers of "
    "the turns a phase short.",
    (
        "backward_wgmma.cu",
        "ptx::wgmma_fence();  // those of dV, dK and S came after the adds too, but the assembler would "
        "add one",
    ): "A fence came after the adds before. The assembler does not see that, and adds one.",
    (
        "backward_wgmma.cu",
        "ptx::wgmma_wait<0>();  // dV has read P, whose registers the next S may take",
    ): "The wait for dK is one for dV, too. This one ends before the next S begins: so the compiler may give "
    "it P's registers.",
    (
        "backward_wgmma.cu",
        "if (PING_PONG) ptx::bar_sync(3 + consumer, 256);  // the other warpgroup has issued its products",
    ): "It orders products in time, for speed: no memory depends on it.",
    (
        "fp8_wgmma.cu",
        "__syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin",
    ): "A lane would have to lag a whole turn of the ring: turns forbid that, and without them it takes more "
    "idle tiles than a ring has slots.",
    (
        "fp8_wgmma.cu",
        "if (TURNS) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products",
    ): "It orders products in time, for speed: no memory depends on it.",
    (
        "fp8_wgmma.cu",
        "__syncwarp();  // or ptxas takes the warp for apart, and moves addresses in every tile",
    ): "No memory depends on it: it tells the assembler that the lanes are together.",
    (
        "warpgroup_rows.cuh",
        "ptx::fence_proxy_async_global();  // TMA reads what was there when the number was read",
    ): "In the cases of a stage all keys are there before the launch. In tests/cuda/arrivals.cu another "
    "block brings them, and the executor reports that this fence is missing.",
    (
        "stage15_ping_pong.cu",
        "if (PING_PONG) ptx::bar_sync(1 + consumer, 256);  // the warpgroup before has issued its products",
    ): "It orders products in time, for speed: no memory depends on it.",
    (
        "stage15_ping_pong.cu",
        "__syncwarp();  // all lanes have seen these phases before lane 0 lets the next ones begin",
    ): "A lane would have to lag a whole turn of the ring: turns forbid that, and without them it takes more "
    "idle tiles than a ring has slots.",
    (
        "stage15_ping_pong.cu",
        "__syncwarp();  // all lanes have read Q before lane 0 releases it",
    ): "Only batches of more sequences than the checks' inputs have take tiles that keep all of Q in "
    "registers, and ldmatrix reads for all lanes at once.",
}


def deletions(stage: Stage, harmless: bool = False) -> list[Mutant]:
    """One mutant for each ordering statement of a stage's `.cu` file and of the headers that it is the first
    to include, ptx.cuh aside: the statement is replaced by an empty one.

    harmless: those of `HARMLESS`, which survive, instead of all others, which must not.
    """
    found = []
    for path in _files(stage):
        text = path.read_text()
        named = (variant for variant in stage.variants if path.stem.endswith(f"_{variant}"))
        variant = next(named, stage.default_variant)  # the first to be tried: the one that the file is for
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
                    *(files.place_of(stage), name, mistake, (edit,), EXPECTED, variant),
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


def _files(stage: Stage) -> list[Path]:
    """Its kernels and headers, without what an earlier stage has: of the spine, of its own branch, or of one
    that its branch takes kernels from.
    """
    kernels = files.kernels_of(files.place_of(stage))
    earlier: list[Path] = []
    own_operation = operation(stage)
    for each in (*LADDER, *own_operation.borrowed(), *own_operation.ladder()):
        if each.key == stage.key:
            break
        earlier += files.kernels_of(files.place_of(each))
    new = _included(kernels) - _included(earlier) - {"ptx.cuh"}
    own = [path for path in kernels if path not in earlier]
    return [*own, *(cuda_reference.INCLUDE / name for name in sorted(new))]


def _included(kernels: Iterable[Path]) -> set[str]:
    return {name for path in kernels for name in re.findall(r'#include "(\w+\.cuh)"', path.read_text())}
