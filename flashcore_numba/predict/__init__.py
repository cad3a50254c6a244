"""What each stage moves, predicted: one closed formula per stage, from its tile sizes alone.

`predict(run, problem, sm_count)` gives what `flashcore count` counts and Nsight Compute measures. Nothing
here runs a kernel or reads an input's values, apart from the lengths of sequences.
"""

from importlib import import_module
from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.predict.formula import Traffic

__all__ = ["FORMULAS", "Traffic", "predict"]

FORMULAS = {  # the module by the key of the stage, here or in a branch; loaded when asked for, with the stage
    "scalar": "stage01",
    "coalesced": "stage02",
    "warp_reduction": "stage03",
    "shared_tiles": "stage04",
    "online_softmax": "stage05",
    "register_tiles": "stage06",
    "wmma_qk": "stage07",
    "wmma_full": "stage08",
    "async_copy": "stage09",
    "pipeline": "stage10",
    "warp_specialized": "stage11",
    "mma_sync": "stage12",
    "split_kv": "stage13",
    "tma_wgmma": "stage14",
    "ping_pong": "stage15",
    "cluster_split": "stage16",
    "backward/recompute": "flashcore_numba.branches.backward.recompute_traffic",
    "backward/mma_sync": "flashcore_numba.branches.backward.mma_sync_traffic",
    "backward/wgmma": "flashcore_numba.branches.backward.wgmma_traffic",
    "backward/one_launch": "flashcore_numba.branches.backward.one_launch_traffic",
    "decode/chunks": "flashcore_numba.branches.decode.chunks_traffic",
    "decode/cluster": "flashcore_numba.branches.decode.cluster_traffic",
    "decode/even": "flashcore_numba.branches.decode.even_traffic",
    "decode/split": "flashcore_numba.branches.decode.split_traffic",
    "dropout/mma_sync": "stage12",
    "dropout_backward/mma_sync": "flashcore_numba.branches.dropout.backward_traffic",
    "epilogue/norm": "flashcore_numba.branches.epilogue.norm_traffic",
    "fp8/wgmma": "flashcore_numba.branches.fp8.wgmma_traffic",
    "prepare/pages": "flashcore_numba.branches.prepare.pages_traffic",
}


def predict(stage: Any, variant: str | None, problem: Any, sm_count: int) -> Traffic:
    """The traffic of `stage.launch(problem, ..., variant=variant)` on a GPU of so many SMs.

    `problem` needs what `Problem` has: batch, heads, kv_heads, group, seq_q, seq_k, head_dim, mask, causal,
    features, sequences. Arrays are taken as C-contiguous. A stage with a lazy maximum (12, 13, 15) is taken
    to need no tile twice.

    Raises ArgumentError for a stage that no formula is for.
    """
    if stage.key not in FORMULAS:
        raise ArgumentError(
            f"stage {stage.label}: no formula predicts its traffic; predict.FORMULAS names those"
        )
    name = FORMULAS[stage.key]
    formula = import_module(name if "." in name else f"{__name__}.{name}")
    return formula.traffic(problem, variant or stage.default_variant, sm_count)
