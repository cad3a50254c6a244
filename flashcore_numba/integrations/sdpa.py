"""FlashCore behind `torch.nn.functional.scaled_dot_product_attention`, of PyTorch 2.11 or newer.

After `register()`, `torch.nn.attention.activate_flash_attention_impl("flashcore")` sends every call here that
PyTorch would give to FlashAttention: float16 or bfloat16 on a GPU, without an `attn_mask`. Which calls those
are, PyTorch decides, and what the kernels do not have is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.integrations import pytorch

NAME = "flashcore"


def register(name: str = NAME) -> None:
    """Offer the kernels to PyTorch under this name; nothing changes before somebody activates it.

    Raises UnsupportedError where PyTorch has no such switch.
    """
    offer = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if offer is None:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} does not let others implement its attention: 2.11 or newer does"
        )
    offer(name, register_fn=implement)


class Handle:
    """What holds the kernels in PyTorch's table; PyTorch calls `remove` for another implementation."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def remove(self) -> None:
        self.library = None


def implement(device: str = "CUDA") -> Handle:
    """Put the kernels into PyTorch's table for a kind of device."""
    library = torch.library.Library("aten", "IMPL", device)
    for name, run in (
        ("_scaled_dot_product_flash_attention", _dense),
        ("_scaled_dot_product_flash_attention_backward", _dense_backward),
        ("_flash_attention_forward", _forward),
        ("_flash_attention_forward_no_dropout_inplace", _forward_into),
        ("_flash_attention_backward", _backward),
    ):
        if hasattr(torch.ops.aten, name):
            library.impl(name, run, device)
    return Handle(library)


def _refuse(**arguments: Any) -> None:
    """Raise UnsupportedError for an argument that is on."""
    for name, value in arguments.items():
        if value is not None and value is not False and not (isinstance(value, float | int) and value == 0):
            raise UnsupportedError(
                f"{name} is {value if isinstance(value, float | int) else 'given'}: the kernels behind "
                "scaled_dot_product_attention have none; torch.nn.attention.restore_flash_attention_impl() "
                "brings PyTorch's own back"
            )


def _refuse_gradients(**arguments: Tensor | None) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedError(
                f"{name} is given and a gradient is wanted: PyTorch's operator has none with it; call under "
                "torch.no_grad(), or integrations.pytorch.attention_varlen"
            )


def _options(causal: bool, scale: float | None, sides: tuple = (None, None), *arrays: Tensor | None) -> tuple:
    """As the operators take them. arrays: alibi_slopes, seqused_k, and where packed sequences begin."""
    left, right = (-1 if side is None else side for side in sides)
    return (causal, scale, left, right, 0.0, None, *(arrays or (None,) * 4), False)


def _random_state(q: Tensor) -> tuple[Tensor, Tensor]:
    """The state of a generator that nobody draws from."""
    return q.new_empty(2, dtype=torch.uint64), q.new_empty((), dtype=torch.uint64)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple:
    _refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask)
    out, lse = pytorch.compute(q, k, v, *_options(is_causal, scale), True)
    lengths = (None, None, q.shape[2], k.shape[2])
    return out, lse, *lengths, *_random_state(q), q.new_empty(0)


def _dense_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *random_state: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _refuse(dropout_p=dropout_p)
    return pytorch.compute_gradients(dout, q, k, v, out, lse, None, *_options(is_causal, scale))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple:
    """Of `torch.nn.attention.varlen`: packed sequences [total, H, D], or [B, S, H, D] without bounds."""
    _refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask, block_table=block_table)
    _check_bounds(cum_seq_q, cum_seq_k)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        # PyTorch hands neither to `_backward`, whose gradients would be those of attention without them.
        _refuse_gradients(alibi_slopes=alibi_slopes, seqused_k=seqused_k)
    sides = window_size_left, window_size_right
    options = _options(is_causal, scale, sides, alibi_slopes, seqused_k, cum_seq_q, cum_seq_k)
    out, lse = _by_tokens(pytorch.compute, cum_seq_q, (q, k, v), (*options, True))
    return out, lse, *_random_state(q), q.new_empty(0)


def _forward_into(out: Tensor, *arguments: Any, **by_name: Any) -> Tensor:
    with torch.no_grad():
        made, lse, *_ = _forward(*arguments, **by_name)
    out.copy_(made)
    return lse


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *random_state: Tensor,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple:
    _refuse(dropout_p=dropout_p)
    sides = window_size_left, window_size_right
    options = _options(is_causal, scale, sides, None, None, cum_seq_q, cum_seq_k)

    def run(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *options: Any) -> tuple:
        return pytorch.compute_gradients(dout, q, k, v, out, lse, None, *options)

    return _by_tokens(run, cum_seq_q, (dout, q, k, v, out), options)


def _check_bounds(cum_seq_q: Tensor | None, cum_seq_k: Tensor | None) -> None:
    if (cum_seq_q is None) != (cum_seq_k is None):
        raise UnsupportedError("cum_seq_q and cum_seq_k: either both say where sequences begin, or neither")


def _by_tokens(run: Callable, bounds: Tensor | None, arrays: tuple, options: tuple) -> tuple:
    """Heads first for what is not packed, and back."""
    if bounds is not None:
        return run(*arrays, *options)
    found = run(*(x.transpose(1, 2) for x in arrays), *options)
    return tuple(x.transpose(1, 2) if x.ndim == 4 else x for x in found)
