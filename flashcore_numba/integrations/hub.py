"""The functions of the flash-attn package on FlashCore, and a package of them for Hugging Face's `kernels`.

`write_hub_package(path)` writes a kernel repository that needs no compiled file: with
LOCAL_KERNELS=flashcore/attention=path in the environment, transformers loads it as
`attn_implementation="flashcore/attention"`. There transformers' own code removes padding and finds packed
sequences; `integrations.huggingface` serves more and refuses more. Tested with transformers 5.17.0 and
kernels 0.16.0.
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations.pytorch import attention, attention_varlen, check_tensors

VARIANT = "torch-universal"  # any version of PyTorch, any device
UNBOUNDED = (-1, -1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = UNBOUNDED,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """`flash_attn.flash_attn_func` of flash-attn 2, with sinks as `s_aux` [H], and with gradients.

    q: [B, S_q, H, D], k: [B, S_k, H_kv, D], v: [B, S_k, H_kv, D_v], float16 or bfloat16. Returns out
    [B, S_q, H, D_v]; with return_attn_probs (out, lse, None), lse float32 [B, H, S_q]: the kernels never hold
    the weights. Raises UnsupportedError for dropout, and what `flashcore_numba.attention` raises.
    """
    _refuse_dropout(dropout_p)
    check_tensors(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:  # said of [B, H, S, D], the shape would be another
            raise ArgumentError(
                f"{name} has shape {tuple(x.shape)}: four dimensions are needed, [batch, rows, heads, D]"
            )
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    out, lse = attention(q, k, v, **options, return_lse=True)
    out = out.transpose(1, 2)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = UNBOUNDED,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """`flash_attn.flash_attn_varlen_func` of flash-attn 2: sequences packed one after the other.

    q: [total_q, H, D], k: [total_k, H_kv, D], v: [total_k, H_kv, D_v]; cu_seqlens_q and cu_seqlens_k: int32
    [B + 1]. max_seqlen_q and max_seqlen_k are not needed. Otherwise as `flash_attn_func`, with lse
    [H, total_q]. Raises UnsupportedError for a block_table: `flashcore_numba.attention_paged` reads pages.
    """
    _refuse_dropout(dropout_p)
    if block_table is not None:
        raise UnsupportedError(
            "block_table is given: this function reads no pages; flashcore_numba.attention_paged does"
        )
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, s_aux)
    out, lse = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options, return_lse=True)
    return (out, lse, None) if return_attn_probs else out


def _options(
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    sinks: Tensor | None,
) -> dict[str, Any]:
    return {
        "scale": scale,
        "causal": causal,
        "window": window,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "deterministic": deterministic,
        "sinks": sinks,
    }


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise UnsupportedError(f"dropout_p is {dropout_p}: this function drops no weights, so it must be 0")


def write_hub_package(path: str | Path) -> Path:
    """Write a kernel repository for the `kernels` package to a folder, and return the folder.

    It holds build/torch-universal with a Python file that imports this module, so FlashCore must be installed
    where it is loaded. Files of the same names are overwritten.
    """
    path = Path(path)
    build = path / "build" / VARIANT
    build.mkdir(parents=True, exist_ok=True)
    (build / "__init__.py").write_text(
        f'"""Attention by FlashCore."""\n\nfrom {__name__} import flash_attn_func, flash_attn_varlen_func\n\n'
        '__all__ = ["flash_attn_func", "flash_attn_varlen_func"]\n'
    )
    metadata = {
        "id": "flashcore_attention",
        "name": "flashcore-attention",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return path
