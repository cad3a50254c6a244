"""What each stage moves, predicted: one closed formula a stage, from its tile sizes alone.

`predict(run, problem, sm_count)` gives what `flashcore count` counts and Nsight Compute measures. Nothing
here runs a kernel or reads an input's values.
"""

from importlib import import_module
from typing import Any

from flashcore_numba.predict.formula import Traffic

__all__ = ["Traffic", "predict"]


def predict(stage: Any, variant: str | None, problem: Any, sm_count: int) -> Traffic:
    """The traffic of `stage.launch(problem, ..., variant=variant)` on a GPU of so many SMs.

    `problem` needs what `Problem` has: batch, heads, kv_heads, group, seq_q, seq_k, head_dim, causal. Arrays
    are taken as C-contiguous. A stage with a lazy maximum (12, 13, 15) is taken to need no tile twice.
    """
    formula = import_module(f"{__name__}.stage{stage.number:02d}")
    return formula.traffic(problem, variant or stage.default_variant, sm_count)
