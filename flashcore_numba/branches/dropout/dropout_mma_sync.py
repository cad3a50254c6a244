"""Stage 12, its kernel, with dropout: a lane draws for eight elements at once, all of them its own."""

from flashcore_numba.branches.dropout.operation import DROPOUT
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages import stage12_mma_sync
from flashcore_numba.stages.stage import Stage


def launch(
    problem: DropoutProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the kernel; where nothing is dropped, that of stage 12."""
    dropout = problem.dropout
    stage12_mma_sync.launch(problem, out, executor, lse, variant, dropout.macros, dropout.arguments)


STAGE = Stage(
    number=None,
    name="mma_sync",
    title="Dropout where P is packed",
    idea="What decides on an element is drawn from its place: nothing is stored, and any kernel can redo it.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    elements=ACCEPTED,
    grouped_queries=True,
    outputs=(OUT, LSE),
    operation=DROPOUT,
    variants={
        "large": "128 query rows per block, 32 per warp",
        "medium": "64 query rows per block, 16 per warp",
        "small": "32 query rows per block, 16 per warp: for short problems",
        "mma_sync": "the largest of these tiles that fills the GPU",
    },
)
