"""Attention with dropout in PyTorch: seed and offset come from a generator, gradients from the same mask."""

import warnings
from typing import Any

import torch
from torch import Tensor

from cuda_reference.shown import shown
from flashcore_numba.branches.dropout import call
from flashcore_numba.branches.dropout.dropout import EACH, SEEDS
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations.pytorch import check_tensors, check_values, under_autocast


@torch.compiler.disable  # a compiler would look into the launches of the CPU executor
def attention_dropout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    p: float,
    causal: bool = False,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`flashcore_numba.attention_dropout` of tensors, with gradients by q, k and v.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], float16 or bfloat16, D 64 or 128; under autocast they are
    cast to its type. A compiler leaves its graph for a call. generator: on q's device; None is the default
    one there. Each call takes what `reserve` says from it, also with p = 0, and a refused one nothing.

    Returns out [B, H, S_q, D]. Raises ArgumentError and UnsupportedError as
    `flashcore_numba.attention_dropout` does, ArgumentError for what is no tensor and for a generator of
    another device, and UnsupportedError inside a transform of torch.func, for tensors without values, and
    while a CUDA graph is captured, whose replays would all have one mask. A second derivative raises
    RuntimeError, and so does the backward pass under `torch.use_deterministic_algorithms`, because its sums
    depend on the order in which blocks come.
    """
    check_tensors(q=q, k=k, v=v)
    check_values(
        q,
        "attention_dropout is called inside a transform of torch.func, and none can follow it: call "
        "torch.autograd.grad for gradients",
        "attention_dropout takes",
    )
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("a CUDA graph is being captured: every replay would drop the same elements")
    if generator is None:
        generator = torch.cuda.default_generators[q.get_device()] if q.is_cuda else torch.default_generator
    if not isinstance(place := getattr(generator, "device", None), torch.device) or isinstance(
        generator, Tensor
    ):
        raise ArgumentError(
            f"generator is {shown(generator)}: it must be a torch.Generator on q's device, or None"
        )
    if place.type != q.device.type:
        raise ArgumentError(
            f"generator is on {place.type} but q is on {q.device.type}: both must be in one place"
        )
    q, k, v = under_autocast(q, k, v)
    before = generator.get_state()
    seed, offset = reserve(generator)
    options = {"p": p, "seed": seed, "offset": offset, "causal": causal, "scale": scale}
    try:
        return _Attention.apply(q, k, v, options)
    except Exception:
        generator.set_state(before)
        raise


def reserve(generator: torch.Generator) -> tuple[int, int]:
    """The seed and the offset of one call, which no later call of the generator gets.

    A CUDA generator keeps its seed, and its offset advances by 4, as PyTorch's own kernels have it. One of
    the CPU has no offset: it draws a seed.
    """
    if generator.device.type == "cpu":
        place = {"dtype": torch.int64, "device": "cpu"}  # the default device may be another
        return int(torch.randint((SEEDS >> 1) - 1, (), generator=generator, **place)), 0
    offset = generator.get_offset()
    generator.set_offset(offset + EACH)
    return generator.initial_seed() % SEEDS, offset


def _check_deterministic() -> None:
    """Raise RuntimeError, or warn, as PyTorch's own operators do that have no deterministic way."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    said = (
        "the gradients of attention_dropout are not deterministic: torch.use_deterministic_algorithms(True, "
        "warn_only=True) lets them pass"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(said)
    warnings.warn(said, stacklevel=2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        out, lse = call.attention_dropout(q.detach(), k.detach(), v.detach(), **options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        _check_deterministic()
        dq, dk, dv = _Gradients.apply(dout, *ctx.saved_tensors, ctx.options)
        return dq, dk, dv, None


class _Gradients(torch.autograd.Function):
    """(dq, dk, dv), where somebody may ask for their derivatives, which the kernels do not have."""

    @staticmethod
    def forward(ctx: Any, dout: Tensor, *saved: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, lse = (x.detach() for x in saved[:-1])
        # What a sum sends back is one number with strides of 0, and rows must be contiguous.
        dout = dout.detach().contiguous()
        return call.attention_dropout_backward(dout, q, k, v, out, lse, **saved[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("attention_dropout has no second derivative")
