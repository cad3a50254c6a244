"""What other libraries have for decoding, which `measure.peers` times beside the stages.

FlashAttention-3 and FlashInfer read pages where they are. The others have no pages: they get the keys of each
request in one piece, gathered before anything is timed.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.core.features import Features, on_host
from flashcore_numba.measure.peers import (
    SDPA,
    Prepared,
    Tensors,
    by_tokens,
    compiles_each,
    fa3_arguments,
    fa3_forward,
    flex,
    from_tokens,
    refuse,
    unchanged,
)

FA3_CHOOSES = 0  # into how many parts it divides the keys
FLASHINFER_COLUMNS = (64, 128, 256)  # of a head
FLASHINFER_PAGE = 16  # keys; it divides the keys of a request between pages, never inside one
FLASHINFER_SCRATCH = 1 << 29  # bytes; the usual 128 MB are too few for 16 tokens of 8 heads per K/V head

_gathered: WeakKeyDictionary[DecodeProblem, tuple[Any, Any]] = WeakKeyDictionary()


def in_one_piece(problem: DecodeProblem, tensors: Tensors) -> tuple[Any, Any]:
    """K and V [B, H_kv, S, D], S keys of the longest request, once for all peers of a problem: gathered from
    the pages, or a view of a cache that has none. What follows the keys of a shorter request are other keys.
    """
    if problem not in _gathered:
        pools, most = (tensors["k_pool"], tensors["v_pool"]), _most_keys(problem)
        if _has_pages(problem):
            pools = tuple(_gather(pool, problem, tensors["block_table"], most) for pool in pools)
        k, v = (pool[:, :most].transpose(1, 2) for pool in pools)
        _gathered[problem] = k, v
    return _gathered[problem]


def _gather(pool: Any, problem: DecodeProblem, table: Any, most: int) -> Any:
    """[B, keys, H_kv, D] of the pages of a request, in memory head after head."""
    import torch

    used = table[:, : -(-most // problem.page)].to(torch.int64)
    return pool[used].flatten(1, 2).transpose(1, 2).contiguous().transpose(1, 2)


def _has_pages(problem: DecodeProblem) -> bool:
    """Whether it is more than a cache [B, S, H_kv, D] with a page per request, in order."""
    table = on_host(problem.block_table)
    a_page_each = problem.k_pool.shape[0] == problem.batch and table.shape[1] == 1
    return not (a_page_each and np.array_equal(table[:, 0], np.arange(problem.batch)))


def _most_keys(problem: DecodeProblem) -> int:
    return max(each.mask.seq_k for each in problem.sequences)


def _equal(problem: DecodeProblem) -> bool:
    return len({each.mask.seq_k for each in problem.sequences}) == 1


def _same_types(problem: DecodeProblem) -> None:
    if problem.e4m3:
        raise ValueError("it takes a cache of e4m3 only with queries of e4m3, or not at all")


def _sdpa(label: str, problem: DecodeProblem, tensors: Tensors) -> Prepared:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    refuse(problem, *problem.features.names)
    _same_types(problem)
    if not _equal(problem):
        raise ValueError("it has no lengths of requests, and these differ")
    q, (k, v) = tensors["q"], in_one_piece(problem, tensors)
    options: dict[str, Any] = {"scale": problem.scale}
    if problem.causal and problem.seq_q > 1:
        if label == "SDPA flash":
            # Its operator aligns the mask bottom-right; the function that chooses it refuses such a mask.
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return lambda: flash(q, k, v, 0.0, True, False, **options)[0], nullcontext, unchanged
        options["attn_mask"] = _added(problem, q)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def run_sdpa() -> Any:
        return sdpa(q, k, v, enable_gqa=problem.group > 1, **options)

    def backend() -> AbstractContextManager:
        return sdpa_kernel(getattr(SDPBackend, SDPA[label]))

    return run_sdpa, backend, unchanged


def _added(problem: DecodeProblem, q: Any) -> Any:
    """The causal mask as numbers that are added to scores, because as a flag it would be aligned top-left."""
    import torch

    seen = problem.sequences[0].mask.matrix()
    added = np.where(seen, np.float32(0), np.float32(-np.inf))[None, None]
    return torch.from_numpy(added).to(q.device).to(q.dtype)


def _flex(problem: DecodeProblem, tensors: Tensors) -> Prepared:
    """With a mask only where a token does not see every key."""
    _same_types(problem)
    q, (k, v) = tensors["q"], in_one_piece(problem, tensors)
    p, given = problem, problem.features
    features, mask = given, given.mask(p.seq_q, _most_keys(p), p.causal and p.seq_q > 1)
    if not _equal(p):
        features = Features(given.window, given.softcap, sinks=given.sinks, seqused_k=p.lengths)
    asked = SimpleNamespace(
        features=features,
        mask=mask,
        sequences=p.sequences,
        batch=p.batch,
        seq_q=p.seq_q,
        seq_k=_most_keys(p),
        group=p.group,
        scale=p.scale,
    )
    attend = flex(asked, tensors)
    return lambda: attend(q, k, v), compiles_each, unchanged


def _fa3(problem: DecodeProblem, tensors: Tensors) -> Prepared:
    """It divides the keys as it thinks best."""
    _same_types(problem)
    forward = fa3_forward()
    q = by_tokens(tensors, "q")[0].contiguous()
    tokens = (q, tensors["k_pool"], tensors["v_pool"])
    pages = tensors["block_table"] if _has_pages(problem) else None
    most = problem.seq_q, _most_keys(problem)
    arguments = fa3_arguments(
        problem, tensors, tokens, (None, None), tensors["lengths"], most, pages, FA3_CHOOSES
    )
    return lambda: forward(*arguments)[0], nullcontext, from_tokens


def _flashinfer(problem: DecodeProblem, tensors: Tensors) -> Prepared:
    """Its schedule is made here, on the host, before anything is timed; FA3 and the stages make theirs in
    every call. It is valid for these lengths alone, as the graph is.

    `use_cuda_graph` is for lengths that change under one graph: it launches blocks that find no work and
    always writes parts, so it is off.
    """
    refuse(problem, "sinks")
    _same_types(problem)
    if problem.head_dim != problem.value_dim or problem.head_dim not in FLASHINFER_COLUMNS:
        raise ValueError("it takes D = D_v = 64, 128 or 256")
    mask = problem.mask
    if mask.right > 0 and problem.seq_q > 1:
        raise ValueError("its window has no right side")
    import flashinfer

    pools, page, (bounds, pages, last) = _listed(problem, tensors)
    q = by_tokens(tensors, "q")[0].contiguous().flatten(0, 1)
    rest = problem.heads, problem.kv_heads, problem.head_dim, page
    options: dict[str, Any] = {"window_left": mask.left, "logits_soft_cap": problem.softcap}
    options |= {"sm_scale": problem.scale, "q_data_type": q.dtype}
    scratch = _flashinfer_scratch(q.device)
    if problem.seq_q == 1:
        few = problem.group < 4  # query heads, for which it has a kernel without tensor cores
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD", use_tensor_cores=not few)
        wrapper.plan(bounds, pages, last, *rest, **options)
    else:  # its kernel for Hopper does not divide keys
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, "NHD", backend="fa2")
        tokens = _int32(np.arange(problem.batch + 1) * problem.seq_q)
        wrapper.plan(tokens, bounds, pages, last, *rest, causal=mask.right == 0, **options)

    def run_flashinfer() -> Any:
        return wrapper.run(q, pools, out=q.new_empty(q.shape))  # of itself it may fill it with zeros first

    return run_flashinfer, nullcontext, lambda out: from_tokens(out.unflatten(0, (-1, problem.seq_q)))


def _listed(problem: DecodeProblem, tensors: Tensors) -> tuple[tuple[Any, ...], int, list[Any]]:
    """K and V, keys of a page, and on the host, int32: where the pages of each request begin among all, those
    pages, and how many keys the last of each request has.
    """
    pools: tuple[Any, ...] = (tensors["k_pool"], tensors["v_pool"])
    page = problem.page
    table, lengths = on_host(problem.block_table), on_host(problem.lengths)
    if not _has_pages(problem):
        page = math.gcd(page, FLASHINFER_PAGE)
        pools = tuple(pool.flatten(0, 1).unflatten(0, (-1, page)) for pool in pools)
        table = np.arange(len(lengths) * problem.page // page).reshape(len(lengths), -1)
    used = -(-lengths // page)
    bounds = np.cumsum([0, *used])
    pages = table[np.arange(table.shape[1]) < used[:, None]]
    last = np.where(used > 0, lengths - (used - 1) * page, 0)
    return pools, page, [_int32(x) for x in (bounds, pages, last)]


def _int32(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x.astype(np.int32))


@cache
def _flashinfer_scratch(device: Any) -> Any:
    """For all problems: they take turns on one stream. It must be zero at first."""
    import torch

    return torch.zeros(FLASHINFER_SCRATCH, dtype=torch.uint8, device=device)


PEERS: dict[str, Callable[[DecodeProblem, Tensors], Prepared]] = {
    **{label: partial(_sdpa, label) for label in ("SDPA flash", "SDPA cuDNN")},
    "FlexAttention": _flex,
    "FlashInfer": _flashinfer,
    "FA3": _fa3,
}
"""By label, as those of the forward pass. tensors: q, k_pool, v_pool, block_table, lengths and sinks."""
