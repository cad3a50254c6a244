"""The backward passes of other libraries, which `measure.peers` times beside the stages.

Each runs its own forward pass once, outside what is timed, and goes back from what that saved: an output that
is rounded as it rounds, a log-sum-exp in its own form.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.measure.peers import (
    Prepared,
    Tensors,
    by_tokens,
    compiles_each,
    flex,
    from_packed,
    from_tokens,
    longest,
    packed,
    refuse,
    same_alignment,
    unchanged,
    window_of,
)

DOUT = ("q", "k", "v", "dout")


def _cudnn(problem: BackwardProblem, tensors: Tensors) -> Prepared:
    """The operator behind PyTorch's backend, because autograd would add its own launches."""
    import torch

    _plain(problem)
    aten = torch.ops.aten
    q, k, v, dout = (tensors[name] for name in DOUT)
    # No bias, the log-sum-exp, no dropout, no debug mask.
    saved = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, problem.causal, False, scale=problem.scale
    )
    out, lse, bounds_q, bounds_k, most_q, most_k, seed, offset = saved[:8]
    arguments = (dout, q, k, v, out, lse, seed, offset, None, bounds_q, bounds_k, most_q, most_k, 0.0)
    backward = aten._scaled_dot_product_cudnn_attention_backward
    return lambda: backward(*arguments, problem.causal, scale=problem.scale), nullcontext, unchanged


def _fa2(problem: BackwardProblem, tensors: Tensors) -> Prepared:
    """The same for FlashAttention-2, whose operators take their arguments in another order."""
    import torch

    _plain(problem)
    aten = torch.ops.aten
    q, k, v, dout = (tensors[name] for name in DOUT)
    saved = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, problem.causal, False, scale=problem.scale)
    out, lse, bounds_q, bounds_k, most_q, most_k, seed, offset = saved[:8]
    arguments = (dout, q, k, v, out, lse, bounds_q, bounds_k, most_q, most_k, 0.0, problem.causal, seed)
    backward = aten._scaled_dot_product_flash_attention_backward
    return lambda: backward(*arguments, offset, scale=problem.scale), nullcontext, unchanged


def _flex(problem: BackwardProblem, tensors: Tensors) -> Prepared:
    """What autograd runs of the compiled function; its engine uses the stream of the forward pass, so that
    runs in the first call, on the stream that is timed.
    """
    import torch
    from torch._functorch import config

    _no_dlse(problem)
    attend = flex(problem, tensors)
    leaves = [tensors[name].detach().requires_grad_() for name in "qkv"]
    saved: list[Any] = []

    def run_flex() -> Any:
        if not saved:
            # Else the compiled backward pass takes the saved arrays for its own and runs only once.
            with torch.enable_grad(), config.patch(donated_buffer=False):
                saved.append(attend(*leaves))
        return torch.autograd.grad(saved[0], leaves, tensors["dout"], retain_graph=True)

    return run_flex, compiles_each, unchanged


def _fa4(problem: BackwardProblem, tensors: Tensors) -> Prepared:
    from flash_attn.cute.interface import _flash_attn_bwd, flash_attn_func, flash_attn_varlen_func

    _no_dlse(problem)
    refuse(problem, "alibi_slopes", "sinks")
    given = problem.features
    options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal}
    options["softcap"] = given.softcap
    lengths = {
        name: x for name, x in tensors.items() if name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")
    }
    if given.ragged:
        lengths |= dict(zip(("max_seqlen_q", "max_seqlen_k"), longest(problem), strict=True))
        tokens, to_house = packed(tensors, DOUT), from_packed
    else:
        tokens, to_house = by_tokens(tensors, DOUT), from_tokens
    *tokens, dout = tokens
    forward = flash_attn_varlen_func if lengths else flash_attn_func
    window = window_of(problem)
    out, lse = forward(*tokens, **options, **lengths, window_size=window, return_lse=True)[:2]
    options |= dict(zip(("window_size_left", "window_size_right"), window, strict=True)) | lengths

    def run_fa4() -> Any:
        return _flash_attn_bwd(*tokens, out, dout, lse, **options)

    return run_fa4, nullcontext, to_house


def _plain(problem: BackwardProblem) -> None:
    _no_dlse(problem)
    refuse(problem, *problem.features.names)
    same_alignment(problem)


def _no_dlse(problem: BackwardProblem) -> None:
    if problem.dlse is not None:
        raise ValueError("it is not asked for the gradient of the LSE here")


PEERS: dict[str, Callable[[BackwardProblem, Tensors], Prepared]] = {
    "SDPA flash": _fa2,
    "SDPA cuDNN": _cudnn,
    "FlexAttention": _flex,
    "FA4": _fa4,
}
"""By label, as those of the forward pass. tensors: q, k, v, out, lse, dout and arrays of features."""
