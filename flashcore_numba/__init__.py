"""FlashCore: fused attention kernels, from a scalar loop to the tensor core, one idea per stage."""

from typing import Any

from flashcore_numba.attention import attention, attention_varlen
from flashcore_numba.branches.backward.call import attention_backward, attention_varlen_backward
from flashcore_numba.branches.decode.call import attention_paged
from flashcore_numba.branches.decode.merging import merge
from flashcore_numba.branches.dropout.call import attention_dropout, attention_dropout_backward
from flashcore_numba.branches.dropout.dropout import dropout_mask
from flashcore_numba.branches.epilogue.call import attention_norm
from flashcore_numba.branches.fp8.call import attention_fp8
from flashcore_numba.branches.prepare.call import write_kv_pages
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.version import VERSION

__all__ = [
    "LADDER",
    "ArgumentError",
    "Problem",
    "UnsupportedError",
    "__version__",
    "attention",
    "attention_backward",
    "attention_dropout",
    "attention_dropout_backward",
    "attention_fp8",
    "attention_norm",
    "attention_paged",
    "attention_varlen",
    "attention_varlen_backward",
    "dropout_mask",
    "merge",
    "write_kv_pages",
]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """`LADDER` on first use: it brings Numba, which takes a second to import."""
    if name == "LADDER":
        from flashcore_numba.stages import LADDER

        return LADDER
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
