"""The ladder of the backward pass, and which stage runs when none is named."""

from collections.abc import Mapping

from flashcore_numba.branches.backward.backward_mma_sync import STAGE as MMA_SYNC
from flashcore_numba.branches.backward.backward_one_launch import STAGE as ONE_LAUNCH
from flashcore_numba.branches.backward.backward_recompute import STAGE as RECOMPUTE
from flashcore_numba.branches.backward.backward_wgmma import STAGE as WGMMA
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning import dispatch

LADDER: tuple[Stage, ...] = (RECOMPUTE, MMA_SYNC, WGMMA, ONE_LAUNCH)
# The variants that give the same bits in every run, by stage; None is the variant that runs anyway.
DETERMINISTIC: Mapping[Stage, str | None] = {RECOMPUTE: None, WGMMA: "deterministic", ONE_LAUNCH: None}


def preferred(problem: BackwardProblem) -> tuple[Stage, ...]:
    """The stages in the order in which `attention_backward` tries them: those that were timed as
    `stages.tuning.dispatch` ranks them for problems of this size, then the others.
    """
    p = problem
    capability = gpu.compute_capability() if p.on_gpu else None
    keys = -(-p.seq_k // p.sequence_count) if p.features.ragged else p.seq_k  # of a sequence, on average
    rows = p.batch * p.heads * p.seq_q
    ranked = dispatch.ranking(capability, p.causal, p.head_dim, rows, keys, dispatch.BACKWARD)
    by_name: dict[int | str, Stage] = {stage.name: stage for stage in LADDER}
    return tuple(dict.fromkeys([*(by_name[name] for name in ranked), *LADDER]))


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "backward", "the backward pass")


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
