"""The ladder of the backward pass, and which stage runs when none is named."""

from collections.abc import Mapping

from cuda_reference.shown import shown
from flashcore_numba.branches.backward.backward_mma_sync import STAGE as MMA_SYNC
from flashcore_numba.branches.backward.backward_one_launch import ROWS
from flashcore_numba.branches.backward.backward_one_launch import STAGE as ONE_LAUNCH
from flashcore_numba.branches.backward.backward_recompute import STAGE as RECOMPUTE
from flashcore_numba.branches.backward.backward_wgmma import STAGE as WGMMA
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (RECOMPUTE, MMA_SYNC, WGMMA, ONE_LAUNCH)
# The variants that give the same bits in every run, by stage; None is the variant that runs anyway.
DETERMINISTIC: Mapping[Stage, str | None] = {RECOMPUTE: None, WGMMA: "deterministic", ONE_LAUNCH: None}
FEW_BLOCKS = 264  # two for each SM of an H200


def preferred(problem: BackwardProblem) -> tuple[Stage, ...]:
    """The stages in the order in which `attention_backward` tries them.

    Nobody has measured them yet. `one_launch` computes seven products for five, which a problem of few blocks
    should not notice; otherwise those for newer GPUs go first.
    """
    p = problem
    tiles = -(-p.seq_k // ROWS) + p.group * -(-p.seq_q // ROWS)
    few = p.batch * p.kv_heads * tiles <= FEW_BLOCKS
    return (ONE_LAUNCH, WGMMA, MMA_SYNC, RECOMPUTE) if few else (WGMMA, MMA_SYNC, ONE_LAUNCH, RECOMPUTE)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    for stage in LADDER:
        if selector is stage or selector in (stage.key, stage.name):
            return stage
    if (
        isinstance(selector, Stage)
        and selector.operation is not None
        and selector.operation.name == "backward"
    ):
        return selector  # one of the caller's own
    keys = ", ".join(stage.key for stage in LADDER)
    raise ArgumentError(
        f"stage {shown(selector)} is not in the ladder of the backward pass: accepted are {keys}"
    )


def variant_of(stage: Stage, deterministic: bool) -> str | None:
    """The variant that a call runs. Raises UnsupportedError where none of the stage is deterministic."""
    if not deterministic:
        return stage.called
    if stage not in DETERMINISTIC:
        able = ", ".join(each.label for each in DETERMINISTIC)
        raise UnsupportedError(
            f"stage {stage.label} does not serve deterministic=True: blocks add to dQ in any order; "
            f"accepted are {able}"
        )
    return DETERMINISTIC[stage]
