"""What `measure.peers` times beside `fp8/wgmma`: FlashAttention-3 in e4m3, and attention in 16 bits.

FlashAttention-3 is given Q, K and V in e4m3: what rounds them is no part of its time. Each head of K and V
has one scale, its queries share one.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from flashcore_numba.attention import attention
from flashcore_numba.branches.fp8.problem import Fp8Problem
from flashcore_numba.measure.peers import (
    Prepared,
    Tensors,
    fa3_arguments,
    fa3_forward,
    from_tokens,
    longest,
    unchanged,
)

LARGEST = 448.0  # of e4m3


def in_e4m3(x: Any, group: int = 1) -> tuple[Any, Any]:
    """x [B, H, S, D] as e4m3 [B * S, H, D], and the factors that belong to it, float32 [B, H / group]."""
    import torch

    of_heads = x.unflatten(1, (-1, group)).float()
    scales = of_heads.abs().amax(dim=(2, 3, 4)).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    found = (of_heads / scales[:, :, None, None, None]).flatten(1, 2).to(torch.float8_e4m3fn)
    return found.transpose(1, 2).contiguous().flatten(0, 1), scales


def _fa3(problem: Fp8Problem, tensors: Tensors) -> Prepared:
    import torch

    forward = fa3_forward()
    made = [in_e4m3(tensors[name], group) for name, group in (("q", problem.group), ("k", 1), ("v", 1))]
    tokens, scales = zip(*made, strict=True)
    batch, rows = problem.batch, problem.seq_q
    bounds = [
        torch.arange(0, (batch + 1) * each, each, dtype=torch.int32, device=tokens[0].device)
        for each in (rows, problem.seq_k)
    ]
    arguments = fa3_arguments(
        problem, tensors, tokens, bounds, None, longest(problem), None, 1, descales=scales
    )

    def to_house(out: Any) -> Any:
        return from_tokens(out.unflatten(0, (batch, rows)))

    return lambda: forward(*arguments)[0], nullcontext, to_house


def _sixteen_bits(problem: Fp8Problem, tensors: Tensors) -> Prepared:
    """The stage of this library that `attention` chooses."""
    q, k, v = (tensors[name] for name in "qkv")
    out = q.new_empty((*q.shape[:3], v.shape[3]))

    def run() -> Any:
        return attention(q, k, v, causal=problem.causal, scale=problem.scale, out=out)

    return run, nullcontext, unchanged


PEERS: dict[str, Callable[[Fp8Problem, Tensors], Prepared]] = {
    "FA3": _fa3,
    "attention, 16 bits": _sixteen_bits,
}
"""By label, as those of the forward pass. tensors: q, k and v."""
