"""FlashCore as the core attention of Megatron-Core: what a layer's specification names `core_attention`."""

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations.pytorch import TYPES, UNBOUNDED, attention, attention_varlen

TOP_LEFT = (AttnMaskType.causal, AttnMaskType.padding_causal)
UNPACKED = (AttnMaskType.causal, AttnMaskType.causal_bottom_right, AttnMaskType.no_mask)
PACKED = (*UNPACKED, AttnMaskType.padding, AttnMaskType.padding_causal)
# Options of a configuration that would change the result or ask for more than it, and what to set instead.
REFUSED = (
    ("context_parallel_size", 1, "each rank must have whole sequences: set it to 1"),
    ("qk_clip", False, "the kernels do not return the largest score: set it to False"),
    ("log_max_attention_logit", False, "the kernels do not return the largest score: set it to False"),
    ("fp8_dot_product_attention", False, "attention is computed in bfloat16 or float16: set it to False"),
)


class FlashCoreAttention(DotProductAttention):
    """Attention of one layer by the kernels of FlashCore, with gradients.

    It has the constructor, the parameters and the checkpoints of Megatron-Core's `DotProductAttention`, and
    follows `window_size`, `window_attn_skip_freq`, `softmax_scale`, `kv_channels`, `softmax_type` and
    `deterministic_mode` of the configuration. `apply_query_key_layer_scaling` guards float16 scores against
    overflow and changes no result: the kernels keep scores in float32. Raises UnsupportedError for dropout
    and for options that no kernel has.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        if dropout:
            raise UnsupportedError(
                f"attention_dropout is {dropout}: the adapter drops no weights, set it to 0.0"
            )
        for name, right, remedy in REFUSED:
            if (given := getattr(config, name, right)) != right:
                raise UnsupportedError(f"{name} is {given}: {remedy}")
        super().__init__(
            config,
            layer_number,
            attn_mask_type,
            attention_type,
            attention_dropout,
            softmax_scale,
            cp_comm_type,
            pg_collection,
        )
        # Not self.softmax_scale, which `apply_query_key_layer_scaling` divides by the number of the layer.
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale
        _check_window(config.window_size)
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = tuple(config.window_size) if windowed else UNBOUNDED

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """query: [S, B, H, D], key and value: [S_k, B, H_kv, D], of any strides; packed sequences [T, H, D].

        attention_mask: None, or what `attn_mask_type` says, True where a key is hidden; it is then compared
        with it, which waits for the GPU. packed_seq_params: of `qkv_format` "thd". Padding between sequences
        is served for causal attention; what its rows return is to be ignored. Returns [S, B, H * D], or
        [T, H * D]. Raises ArgumentError for other types and shapes, UnsupportedError for what no kernel has.
        """
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        if attention_bias is not None:
            raise UnsupportedError("attention_bias is given: no kernel adds one to scores, it must be None")
        if query.dtype not in TYPES and not torch.is_autocast_enabled(query.device.type):
            raise ArgumentError(
                f"query has dtype {str(query.dtype).removeprefix('torch.')}: set bf16=True and "
                "params_dtype=torch.bfloat16, or fp16=True and params_dtype=torch.float16"
            )
        causal = kind not in (AttnMaskType.no_mask, AttnMaskType.padding)
        if causal and self.window[1] > 0:
            raise ArgumentError(
                f"window_size is {self.window}: with the mask {kind.name} its second number must be 0 or -1"
            )
        options: dict[str, Any] = {
            "causal": causal,
            "scale": self.scale,
            "window": self.window,
            "sinks": None if self.softmax_offset is None else self.softmax_offset.to(query.device),
            "deterministic": self.config.deterministic_mode,
        }
        if packed_seq_params is not None:
            bounds = _bounds(packed_seq_params, kind, query, attention_mask)
            return attention_varlen(query, key, value, *bounds, **options).flatten(1)
        if query.dim() != 4:
            raise ArgumentError(
                f"query has shape {tuple(query.shape)}: without packed_seq_params it must be [S, B, H, D]"
            )
        _check_mask(attention_mask, kind, len(query), len(key))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        return attention(q, k, v, **options).permute(2, 0, 1, 3).flatten(2)


def _check_window(window: Any) -> None:
    """Raise ArgumentError unless it is None or two numbers, which `attention` looks at again."""
    pair = isinstance(window, tuple | list) and len(window) == 2 and all(isinstance(x, int) for x in window)
    if window is not None and not pair:
        raise ArgumentError(
            f"window_size is {shown(window)}: it must be (left, right), two numbers of keys, -1 for unbounded"
        )


def _check_mask(mask: Tensor | None, kind: AttnMaskType, rows: int, keys: int) -> None:
    """Raise unless the kernels have this mask."""
    if kind not in UNPACKED:
        raise UnsupportedError(
            f"attn_mask_type is {kind.name}: without packed_seq_params it must be "
            f"{_either(UNPACKED)}; pack sequences of different lengths"
        )
    if kind in TOP_LEFT and rows != keys:
        raise UnsupportedError(
            f"attn_mask_type is {kind.name} with {rows} query rows and {keys} keys: it must be "
            "causal_bottom_right where these differ"
        )
    if mask is None:
        return
    right = torch.ones(rows, keys, dtype=torch.bool, device=mask.device).triu(1 + keys - rows)
    if kind is AttnMaskType.no_mask:
        right.zero_()
    if mask.shape[-2:] != right.shape or mask.dtype is not torch.bool or not (mask == right).all():
        raise UnsupportedError(
            f"attention_mask is not that of attn_mask_type {kind.name}: no kernel has other masks; "
            "pass None, and pack sequences that must not see each other"
        )


def _bounds(
    params: PackedSeqParams, kind: AttnMaskType, query: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Where sequences begin, of queries and of keys. Raises for what no kernel has."""
    if params.qkv_format != "thd" or query.dim() != 3:
        raise UnsupportedError(
            f"packed_seq_params.qkv_format is {params.qkv_format!r} and query is {tuple(query.shape)}: "
            "packed sequences must be in 'thd', [T, H, D]"
        )
    if kind not in PACKED:
        raise UnsupportedError(
            f"attn_mask_type is {kind.name}: with packed_seq_params it must be {_either(PACKED)}"
        )
    if mask is not None:
        raise UnsupportedError("attention_mask is given with packed_seq_params: it must be None")
    if (getattr(params, "local_cp_size", None) or 1) != 1:
        raise UnsupportedError(
            f"packed_seq_params.local_cp_size is {params.local_cp_size}: it must be None or 1"
        )
    found = []
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        used, padded = getattr(params, name), getattr(params, f"{name}_padded")
        if not isinstance(used, Tensor):
            raise ArgumentError(
                f"packed_seq_params.{name} is {shown(used)}: it must say where each sequence begins, "
                "int32 [B + 1]"
            )
        if padded is not None and kind not in TOP_LEFT and not _equal(padded, used):
            raise UnsupportedError(
                f"packed_seq_params.{name}_padded is not {name}: padding between sequences is hidden by the "
                f"masks {_either(TOP_LEFT)} alone, not by {kind.name}"
            )
        found.append(used if padded is None else padded)
    if kind in TOP_LEFT and not _equal(*found):
        raise UnsupportedError(
            f"packed_seq_params.cu_seqlens_q is not cu_seqlens_kv: with the mask {kind.name} they must be "
            "equal, or the mask causal_bottom_right"
        )
    return found[0], found[1]


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or torch.equal(one, other)


def _either(kinds: tuple[AttnMaskType, ...]) -> str:
    *others, last = (each.name for each in kinds)
    return f"{', '.join(others)} or {last}"
