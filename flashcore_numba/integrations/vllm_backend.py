"""FlashCore as the attention backend of vLLM 0.32: decoding, chunked prefill and shared prefixes.

`vllm_plugin.register` offers it to vLLM as `attention_backend="CUSTOM"`. A decoding request has one query
token and is read from its pages, `attention_paged`. All other requests of a step are one call of
`attention_varlen`, whose keys are gathered from the pages first. New keys are written by `write_kv_pages`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from flashcore_numba.attention import attention_varlen
from flashcore_numba.branches.decode.call import attention_paged
from flashcore_numba.branches.prepare.call import write_kv_pages
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.errors import UnsupportedError

HEAD_DIMS = (64, 128, 256)  # of the kernels of decoding and of writing
CAPABILITY = (8, 0)  # the oldest GPU that has them
OWN_TYPE = {each.name: getattr(torch, each.name) for each in ACCEPTED}  # of the cache, as it can be asked for
E4M3 = ("fp8", "fp8_e4m3")


def pools(kv_cache: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """K and V [pages, page, H_kv, D] of a layer's cache [pages, H_kv, page, 2 D], as views, of any strides.

    The only place that knows how vLLM 0.29 to 0.32 arranges a cache. Raises UnsupportedError for another
    arrangement.
    """
    if kv_cache.ndim != 4 or kv_cache.shape[3] != 2 * head_size:
        raise UnsupportedError(
            f"kv_cache has shape {tuple(kv_cache.shape)}: [pages, H_kv, page, {2 * head_size}] is needed, "
            "K and V of equal head dimension side by side, as vLLM 0.32 has it"
        )
    k, v = kv_cache.transpose(1, 2).split(head_size, dim=3)
    return k, v


class FlashCoreBackend(AttentionBackend):
    """What the kernels serve, as vLLM's selector asks for it."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [*OWN_TYPE.values()]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", *OWN_TYPE, *E4M3]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["FlashCoreImpl"]:
        return FlashCoreImpl

    @staticmethod
    def get_builder_cls() -> type["FlashCoreBuilder"]:
        return FlashCoreBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(HEAD_DIMS)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # which requests decode is read on the host

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return (capability.major, capability.minor) >= CAPABILITY

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *others: Any, **named: Any
    ) -> str | None:
        """Why not, where each argument alone is served."""
        if OWN_TYPE.get(kv_cache_dtype or "auto", dtype) != dtype:
            return f"a cache of {kv_cache_dtype} for queries of {dtype} is not supported"
        return None


@dataclass
class Prefill:
    """The requests of a step that are not decoding, at the end of the batch.

    pages: int64, those of all these requests, in the order of their keys. cu_seqlens_q, cu_seqlens_k: int32
    [requests + 1], where their query rows and their gathered keys begin; keys begin with a page. used: int32
    [requests], how many of them count.
    """

    pages: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    used: Tensor


@dataclass
class FlashCoreMetadata(AttentionMetadata):
    """One step. The first `decoding` requests have a query token each, tokens 0 to `decoding`; the tokens
    from there to `tokens` are those of `prefill`. block_table: int32 [decoding, pages], lengths: int32
    [decoding].
    """

    tokens: int
    decoding: int
    block_table: Tensor
    lengths: Tensor
    prefill: Prefill | None = None


class FlashCoreBuilder(AttentionMetadataBuilder[FlashCoreMetadata]):
    """Makes the metadata of a step, for all layers that share a block table.

    A batch of decoding requests can be captured: lengths and block table are read on the device, from the
    tensors that vLLM keeps. A prefill cannot: how many pages it gathers is known on the host.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    reorder_batch_threshold: int | None = 1  # decoding requests come first

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.page = kv_cache_spec.block_size
        # Of a group whose layers all have a window, and the same. Speculation leaves the host with bounds of
        # the lengths, from which no row's first key can be told.
        told = isinstance(kv_cache_spec, SlidingWindowSpec) and vllm_config.speculative_config is None
        self.window = kv_cache_spec.sliding_window if told else None

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlashCoreMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise UnsupportedError("causal is not True: only causal attention is supported")
        starts = common.query_start_loc_cpu.numpy()[: common.num_reqs + 1]
        longer = np.flatnonzero(np.diff(starts) > 1)
        # Padding may add requests without tokens, or tokens without requests, to a batch that only decodes.
        decoding = int(longer[0]) if longer.size else min(common.num_reqs, common.num_actual_tokens)
        filled = min(int(starts[decoding]), decoding)
        if int(starts[filled]) != filled or (longer.size and filled != decoding):
            raise UnsupportedError("a request without query tokens comes before one with some")
        return FlashCoreMetadata(
            tokens=common.num_actual_tokens,
            decoding=decoding,
            block_table=common.block_table_tensor[:decoding],
            lengths=common.seq_lens[:decoding],
            prefill=self._prefill(common, starts, decoding) if longer.size else None,
        )

    def _prefill(self, common: Any, starts: np.ndarray, first: int) -> Prefill:
        """Of the requests from `first` on."""
        bound = common.seq_lens_cpu_upper_bound
        lengths = (common.seq_lens.cpu() if bound is None else bound).numpy()[first : common.num_reqs]
        starts = starts[first:]
        # Pages that no query row sees are left out, from the beginning of a sequence.
        rows = np.diff(starts)
        skipped = np.zeros_like(lengths)
        if self.window is not None:
            skipped = np.maximum(lengths - rows - (self.window - 1), 0) // self.page
        counts = -(-lengths // self.page) - skipped
        ends = np.concatenate([[0], np.cumsum(counts)])
        request = np.repeat(np.arange(len(counts)), counts)
        column = np.arange(ends[-1]) - ends[request] + skipped[request]
        device = common.seq_lens.device
        parts = (request + first, column, ends * self.page, starts - starts[0], skipped * self.page)
        sizes = [len(part) for part in parts]
        sent = torch.from_numpy(np.concatenate(parts).astype(np.int32)).to(device, non_blocking=True)
        places, columns, keys, queries, before = sent.split(sizes)
        return Prefill(
            pages=common.block_table_tensor[places, columns].long(),
            cu_seqlens_q=queries,
            cu_seqlens_k=keys,
            used=common.seq_lens[first : common.num_reqs] - before,
        )


class FlashCoreImpl(AttentionImpl[FlashCoreMetadata]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """As vLLM's layers give them. Raises UnsupportedError for what its selector does not ask about."""
        if alibi_slopes is not None:
            raise UnsupportedError("alibi_slopes are given: no kernel that reads pages has ALiBi")
        if not FlashCoreBackend.supports_attn_type(attn_type):
            raise UnsupportedError(f"attn_type is {attn_type!r}: only decoders are supported")
        if not FlashCoreBackend.supports_kv_cache_dtype(kv_cache_dtype):  # a CPU's selector asks nothing
            accepted = ", ".join(FlashCoreBackend.supported_kv_cache_dtypes)
            raise UnsupportedError(f"kv_cache_dtype is {kv_cache_dtype!r}: accepted are {accepted}")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.sliding_window = sliding_window
        self.sinks = sinks
        # A row sees W keys, its own included.
        self.window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
        self.softcap = logits_soft_cap or 0.0

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """The rows of the new tokens into their slots: those of slot -1, which are padding, nowhere."""
        tokens = len(slot_mapping)
        if not tokens:
            return
        key, value = key[:tokens], value[:tokens]
        scales = self._scales(layer)
        # The kernel also writes what becomes of Q, which is nothing here: its memory is not looked at.
        write_kv_pages(key, key, value, *pools(kv_cache, self.head_size), slot_mapping, **scales)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: FlashCoreMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query, output: [tokens, H, D], padded at the end; new keys and values are in kv_cache already."""
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedError("output_scale is given: the kernels do not quantise their output")
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        step = attn_metadata
        k_pool, v_pool = pools(kv_cache, self.head_size)
        scales = self._scales(layer)
        sinks = None if self.sinks is None else self.sinks.float()
        options: dict[str, Any] = {
            "causal": True,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": sinks,
        }
        if step.decoding:
            attention_paged(
                query[: step.decoding].unsqueeze(2),
                k_pool,
                v_pool,
                step.block_table,
                step.lengths,
                **options,
                **scales,
                out=output[: step.decoding].unsqueeze(2),
            )
        if step.prefill is not None:
            pages = step.prefill.pages
            attention_varlen(
                query[step.decoding : step.tokens],
                _gathered(k_pool, pages, scales.get("k_scale"), query.dtype),
                _gathered(v_pool, pages, scales.get("v_scale"), query.dtype),
                step.prefill.cu_seqlens_q,
                step.prefill.cu_seqlens_k,
                seqused_k=step.prefill.used,
                **options,
                out=output[step.decoding : step.tokens],
            )
        return output

    def _scales(self, layer: Any) -> dict[str, Any]:
        """Of a cache of e4m3: float32 [H_kv] each, read on the device."""
        if self.kv_cache_dtype not in E4M3:
            return {}
        heads = self.num_kv_heads
        return {"k_scale": layer._k_scale.expand(heads), "v_scale": layer._v_scale.expand(heads)}


def _gathered(pool: Tensor, pages: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The keys or values of these pages, [keys, H_kv, D] of this type, contiguous."""
    rows = pool.index_select(0, pages).flatten(0, 1)
    if scale is None:
        return rows
    return (rows.view(torch.float8_e4m3fn).float() * scale[:, None]).to(dtype)
