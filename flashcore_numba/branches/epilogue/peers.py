"""The peers: attention of the ladder or of another library, then one kernel that Inductor makes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from flashcore_numba.attention import attention
from flashcore_numba.branches.epilogue.problem import EpilogueProblem
from flashcore_numba.measure.peers import (
    SDPA,
    Prepared,
    Tensors,
    compiles_each,
    same_alignment,
    unchanged,
)


def _norm(problem: EpilogueProblem, tensors: Tensors) -> Callable[[Any], Any]:
    """Residual and norm of what attention gives, [B, S_q, N], as one compiled function."""
    import torch

    residual, weight, bias = (tensors.get(name) for name in ("residual", "weight", "bias"))
    columns, eps = (problem.columns_of_all,), problem.eps

    def norm(attended: Any) -> Any:
        x = attended if residual is None else residual[:, 0] + attended
        if problem.norm == "layer":
            return torch.nn.functional.layer_norm(x, columns, weight, bias, eps)[:, None]
        normed = torch.nn.functional.rms_norm(x, columns, weight, eps)
        return (normed if bias is None else normed + bias)[:, None]

    return torch.compile(norm, dynamic=False)


def _tokens(problem: EpilogueProblem, like: Any) -> Any:
    """Memory for what attention gives, [B, S_q, H, D]."""
    return like.new_empty(problem.batch, problem.seq_q, problem.heads, problem.head_dim)


def _ours(problem: EpilogueProblem, tensors: Tensors) -> Prepared:
    """The stage that `attention` chooses, which writes where the norm reads."""
    q, k, v = (tensors[name] for name in "qkv")
    norm, attended = _norm(problem, tensors), _tokens(problem, tensors["q"])
    heads_first = attended.transpose(1, 2)

    def run() -> Any:
        attention(q, k, v, causal=problem.causal, scale=problem.scale, out=heads_first)
        return norm(attended.flatten(2))

    return run, compiles_each, unchanged


def _sdpa(label: str, problem: EpilogueProblem, tensors: Tensors) -> Prepared:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    same_alignment(problem)
    q, k, v = (tensors[name] for name in "qkv")
    norm, sdpa = _norm(problem, tensors), torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        options = {"is_causal": problem.causal, "scale": problem.scale, "enable_gqa": problem.group > 1}
        return norm(sdpa(q, k, v, **options).transpose(1, 2).flatten(2))

    @contextmanager
    def chosen() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(compiles_each())
            stack.enter_context(sdpa_kernel(getattr(SDPBackend, SDPA[label])))
            yield

    backend: Callable[[], AbstractContextManager] = chosen
    return run, backend, unchanged


PEERS: Mapping[str, Callable[[EpilogueProblem, Tensors], Prepared]] = {
    "attention() + Inductor": _ours,
    **{f"{label} + Inductor": partial(_sdpa, label) for label in ("SDPA flash", "SDPA cuDNN")},
}
"""By label, as those of the forward pass. tensors: q, k, v, residual, weight and bias."""
