"""FlashCore as operators of PyTorch: `attention`, `attention_varlen` and `attention_paged`, with gradients.

`torch.ops.flashcore.attention`, its backward and `torch.ops.flashcore.attention_paged` are what a compiler, a
transform or a dispatch mode sees. A plain call without any of them does not pass through the dispatcher.
`register_flash_attention("flashcore")` offers the kernels to `scaled_dot_product_attention`, of PyTorch 2.11
or newer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import flashcore_numba
from cuda_reference.shown import shown
from flashcore_numba.core.element import ACCEPTED_NAMES
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.problem import HEAD_DIMS, listed

NAMESPACE = "flashcore"
GRADIENT_DIMS = (64, 128)  # head dimensions that the kernels of the backward pass have
TYPES = (torch.float16, torch.bfloat16)
UNBOUNDED = (-1, -1)
DEVICES = ("CPU", "CUDA")

_OPTIONS = (
    "bool causal=False, float? scale=None, int left=-1, int right=-1, float softcap=0.0, Tensor? sinks=None, "
    "Tensor? alibi_slopes=None, Tensor? seqused_k=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, bool deterministic=False"
)
_library = torch.library.Library(NAMESPACE, "DEF")
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool return_lse=True) -> (Tensor out, Tensor lse)"
)
_library.define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, "
    f"{_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv)"
)
_library.define(
    "attention_paged(Tensor q, Tensor k_pool, Tensor v_pool, Tensor block_table, Tensor lengths, "
    "bool causal=True, float? scale=None, int left=-1, int right=-1, float softcap=0.0, Tensor? sinks=None, "
    "bool batch_invariant=False, bool return_lse=False) -> (Tensor out, Tensor lse)"
)
_operators = getattr(torch.ops, NAMESPACE)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = UNBOUNDED,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqused_k: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """`flashcore_numba.attention` of tensors, with gradients by q, k, v and sinks.

    q: [B, H, S_q, D], k: [B, H_kv, S_k, D], v: [B, H_kv, S_k, D_v], float16 or bfloat16, of any strides; under
    autocast of any floating-point type. causal: aligned bottom-right, so that the last query row sees every
    key. The other options are those of `flashcore_numba.attention`; sinks may be of any floating-point type.
    deterministic: gradients have the same bits in every run; `torch.use_deterministic_algorithms` asks for
    the same.

    Head dimensions that no kernel has are padded to one that there is, up to 256, and up to 128 where a
    gradient is wanted: this costs a copy of each array.

    Returns out [B, H, S_q, D_v], its dimensions in the order in memory of those of q, or (out, lse), lse
    float32 [B, H, S_q], natural logarithm. CUDA tensors run on PyTorch's current stream, CPU tensors on the
    CPU executor. Raises ArgumentError and UnsupportedError as `flashcore_numba.attention` does; a second
    derivative raises RuntimeError.
    """
    options = (causal, scale, *_sides(window), softcap, sinks, alibi_slopes, seqused_k, None, None)
    return _called(q, k, v, (*options, deterministic), return_lse)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = UNBOUNDED,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqused_k: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """`flashcore_numba.attention_varlen` of tensors: sequences packed one after the other, with gradients.

    q: [total_q, H, D], k: [total_k, H_kv, D], v: [total_k, H_kv, D_v]; cu_seqlens_q, cu_seqlens_k: int32
    [B + 1]. Everything else is as for `attention`. Returns out [total_q, H, D_v], or (out, lse), lse
    [H, total_q]. Rows outside all sequences are zeros in out and in the gradients; their LSE is not defined.
    """
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if given is None:
            raise ArgumentError(f"{name} is None: it must say where each sequence begins, int32 [B + 1]")
    options = (causal, scale, *_sides(window), softcap, sinks, alibi_slopes, seqused_k)
    return _called(q, k, v, (*options, cu_seqlens_q, cu_seqlens_k, deterministic), return_lse)


def attention_paged(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: tuple[int, int] = UNBOUNDED,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
) -> Any:
    """`flashcore_numba.attention_paged` of tensors, as an operator that a compiler keeps. It has no gradients.

    Shapes, options and errors are those of `flashcore_numba.attention_paged`, for pools of q's type.
    """
    options = (causal, scale, *_sides(window), softcap, sinks, batch_invariant, return_lse)
    found = _operators.attention_paged(q, k_pool, v_pool, block_table, lengths, *options)
    return found if return_lse else found[0]


def _sides(window: Any) -> tuple[int, int]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ArgumentError(
            f"window is {shown(window)}: it must be (left, right), two numbers of keys, -1 for unbounded"
        ) from None
    return left, right


SINKS, SEQUSED, PACKED = 5, 7, 8  # places among the options of `attention`
OPTIONS = 11


def _called(q: Tensor, k: Tensor, v: Tensor, options: tuple, return_lse: bool) -> Any:
    """As an operator for who looks on, otherwise as directly as gradients allow."""
    if options[SINKS] is not None and options[SINKS].dtype is not torch.float32:
        options = (*options[:SINKS], options[SINKS].float(), *options[SINKS + 1 :])
    if torch.compiler.is_compiling():
        found = _operators.attention(q, k, v, *options, True)
        return found if return_lse else found[0]
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = _cast(q.device.type, q, k, v)
    sinks = options[SINKS]
    wanted = (
        q.requires_grad or k.requires_grad or v.requires_grad or (sinks is not None and sinks.requires_grad)
    )
    if torch._C._functorch.peek_interpreter_stack() is not None or (wanted and torch.is_grad_enabled()):
        found = _Attention.apply(q, k, v, *options)
    elif _plain(q, k, v):
        found = _forward(q, k, v, *options, return_lse)
    else:
        found = _operators.attention(q, k, v, *options, return_lse)
    return found if return_lse else found[0]


def _plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing of PyTorch needs to see the call: no subclass, no mode, no transform."""
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _cast(device: str, *arrays: Tensor) -> list[Tensor]:
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x.is_floating_point() else x for x in arrays]


class _Attention(torch.autograd.Function):
    """(out, lse), by the operators, so that transforms and compilers can follow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        if _plain(q, k, v):
            return _forward(q, k, v, *options, True)
        return _operators.attention(q, k, v, *options, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        arrays = [x for x in inputs if isinstance(x, Tensor)]
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
        ctx.save_for_backward(*arrays, *output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        *arrays, out, lse = ctx.saved_tensors
        given = list(ctx.others)
        for place, x in zip(ctx.places, arrays, strict=True):
            given[place] = x
        q, k, v, *options = given
        gradients: list[Tensor | None] = [None] * len(given)
        if dout is None and dlse is None:
            return tuple(gradients)
        dout = torch.zeros_like(out) if dout is None else dout
        if any(ctx.needs_input_grad[:3]):
            run = _backward if _plain(q, dout, out) else _operators.attention_backward
            gradients[:3] = run(dout, q, k, v, out, lse, dlse, *options)
        if ctx.needs_input_grad[3 + SINKS]:
            gradients[3 + SINKS] = _gradient_of_sinks(dout, out, lse, dlse, options)
        if ctx.needs_input_grad[3 + SINKS + 1]:
            raise UnsupportedError("alibi_slopes require a gradient, which no kernel has: detach them")
        return tuple(gradients)


def _gradient_of_sinks(
    dout: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None, options: Sequence[Any]
) -> Tensor:
    """Float32 [H]: what a sink takes of a row's sum, exp(sink - LSE), times dLSE - dO . O, of all rows."""
    sinks, bounds = options[SINKS], options[PACKED]
    taken = (dout.float() * out.float()).sum(-1)
    if bounds is not None:
        taken = taken.T  # [H, total_q], as the LSE
    taken = -taken if dlse is None else dlse - taken
    found = torch.exp(sinks[:, None] - lse) * taken
    if bounds is None:
        return found.sum((0, 2))
    rows = torch.arange(lse.shape[1], device=lse.device)
    return found.where((rows >= bounds[0]) & (rows < bounds[-1]), 0.0).sum(1)


def _readable(x: Tensor) -> Tensor:
    """Without its history, and with contiguous rows."""
    x = x.detach() if x.requires_grad else x
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _like(x: Tensor, columns: int) -> Tensor:
    """Uninitialised rows of so many columns, ordered in memory as those of x."""
    if columns > x.shape[-1]:
        return x.new_empty((*x.shape[:-1], columns))
    return torch.empty_like(x[..., :columns])


def _padded_dim(columns: int, dims: Sequence[int], task: str) -> int:
    """The smallest head dimension of the kernels that has room. Raises ArgumentError."""
    for each in dims:
        if each >= columns:
            return each
    raise ArgumentError(f"q, k or v has head dimension {columns}: for {task} it can be at most {dims[-1]}")


def _widened(columns: int, *arrays: Tensor) -> list[Tensor]:
    """With zeros up to so many columns."""
    return [pad(x, (0, columns - x.shape[-1])) if x.shape[-1] < columns else x for x in arrays]


def _keywords(options: Sequence[Any]) -> dict[str, Any]:
    causal, scale, left, right, softcap, sinks, alibi_slopes, seqused_k, *_ = options
    arrays = {"sinks": sinks, "alibi_slopes": alibi_slopes, "seqused_k": seqused_k}
    arrays = {name: x.detach() if x is not None and x.requires_grad else x for name, x in arrays.items()}
    return {"causal": causal, "scale": scale, "window": (left, right), "softcap": softcap} | arrays


def _check(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in TYPES:
            raise ArgumentError(
                f"{name} has dtype {str(x.dtype).removeprefix('torch.')}: accepted are {ACCEPTED_NAMES}, so "
                f"pass {name}.half() or {name}.bfloat16(), or call under torch.autocast"
            )
        if not x.ndim or not x.shape[-1]:
            raise ArgumentError(f"{name} has shape {tuple(x.shape)}: it has no columns")


def _forward(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """What `flashcore::attention` computes. Without `return_lse`, the LSE is an empty tensor."""
    *options, return_lse = given
    bounds = options[PACKED : PACKED + 2]
    packed = bounds[0] is not None
    columns = v.shape[-1] if v.ndim else 0
    if q.shape[-1:] == v.shape[-1:] and columns in HEAD_DIMS and q.is_contiguous() and not packed:
        # The usual case: nothing to pad, and the call makes an output that is ordered as q is.
        q, k, v = _readable(q), _readable(k), _readable(v)
        found = flashcore_numba.attention(q, k, v, **_keywords(options), return_lse=return_lse)
        return found if return_lse else (found, _no_lse(q))
    _check(q, k, v)
    out = _like(q, columns)
    keywords = _keywords(options)
    q, k, v, target = _readable(q), _readable(k), _readable(v), out
    if not {q.shape[-1], columns} <= {*HEAD_DIMS}:
        keywords["scale"] = q.shape[-1] ** -0.5 if options[1] is None else options[1]
        width = _padded_dim(max(q.shape[-1], columns), HEAD_DIMS, "attention")
        q, k, v = _widened(width, q, k, v)
        target = _like(q, width)
    if packed:
        target.zero_()
        call: Callable = flashcore_numba.attention_varlen
    else:
        bounds, call = (), flashcore_numba.attention
    found = call(q, k, v, *bounds, **keywords, out=target, return_lse=return_lse)
    if target is not out:
        out.copy_(target[..., :columns])
    return out, (found[1] if return_lse else _no_lse(q))


def _no_lse(q: Tensor) -> Tensor:
    return q.new_empty(0, dtype=torch.float32)


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `flashcore::attention_backward` computes."""
    bounds = options[PACKED : PACKED + 2]
    packed = bounds[0] is not None
    if not lse.numel() and out.numel():
        raise ArgumentError("lse is empty: call the operator with return_lse=True where a gradient is wanted")
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    keywords = _keywords(options)
    keywords["deterministic"] = options[-1] or torch.are_deterministic_algorithms_enabled()
    arrays = [_readable(x) for x in (dout, q, k, v, out)]
    targets = gradients
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in GRADIENT_DIMS:
        keywords["scale"] = q.shape[-1] ** -0.5 if options[1] is None else options[1]
        width = _padded_dim(max(q.shape[-1], v.shape[-1]), GRADIENT_DIMS, "gradients")
        arrays = _widened(width, *arrays)
        targets = [torch.empty_like(x) for x in arrays[1:4]]
    if packed:
        for each in targets:
            each.zero_()
        call: Callable = flashcore_numba.attention_varlen_backward
    else:
        bounds, call = (), flashcore_numba.attention_backward
    lse = lse.detach()
    dlse = None if dlse is None else dlse.detach().contiguous()
    dq, dk, dv = targets
    call(*arrays, lse, *bounds, **keywords, dlse=dlse, dq=dq, dk=dk, dv=dv)
    if targets is not gradients:
        for wide, narrow in zip(targets, gradients, strict=True):
            narrow.copy_(wide[..., : narrow.shape[-1]])
    dq, dk, dv = gradients
    return dq, dk, dv


def _forward_paged(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, block_table: Tensor, lengths: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    causal, scale, left, right, softcap, sinks, batch_invariant, return_lse = options
    found = flashcore_numba.attention_paged(
        *(q.detach(), k_pool.detach(), v_pool.detach(), block_table, lengths),
        causal=causal,
        scale=scale,
        window=(left, right),
        softcap=softcap,
        sinks=sinks,
        batch_invariant=batch_invariant,
        return_lse=return_lse,
    )
    return found if return_lse else (found, _no_lse(q))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Shapes, types and strides of what `_forward` returns."""
    *_, return_lse = options
    rows = q.shape[:-1] if options[PACKED] is None else (q.shape[1], q.shape[0])
    return _like(q, v.shape[-1]), q.new_empty(rows if return_lse else (0,), dtype=torch.float32)


def _fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _fake_paged(q: Tensor, k_pool: Tensor, v_pool: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, return_lse = others
    out = q.new_empty((*q.shape[:-1], v_pool.shape[-1]))
    return out, q.new_empty(q.shape[:-1] if return_lse else (0,), dtype=torch.float32)


def _second_derivative(*arguments: Any) -> Any:
    """Where gradients would need gradients. The kernels have none."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise RuntimeError(f"{NAMESPACE}::attention_backward has no derivative: it cannot be differentiated")
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention_backward(*arguments)


def _no_gradient(*arguments: Any) -> Any:
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise RuntimeError(f"{NAMESPACE}::attention_paged has no gradients: call it under torch.no_grad()")
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention_paged(*arguments)


def _with_gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """An operator that somebody called under autograd. Its LSE is there whether or not it was asked for."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        return _Attention.apply(*arguments[:-1])
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention(*arguments)


def _under_autocast(device: str, key: Any) -> Callable:
    def run(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return _operators.attention(*_cast(device, q, k, v), *options)

    return run


def _folded(
    info: Any, in_dims: Sequence[int | None], arguments: Sequence[Any], batches: Sequence[int]
) -> list:
    """Every array with the dimension over which vmap maps joined to its batch. batches: which arguments have
    one; the others must be the same for all.
    """
    found = []
    for i, (dim, x) in enumerate(zip(in_dims, arguments, strict=True)):
        if i in batches and isinstance(x, Tensor):
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        elif dim is not None:
            raise UnsupportedError(
                f"argument {i} of the operator is mapped by vmap: only arrays with a batch can be"
            )
        found.append(x)
    return found


def _mapped(operator: Any, batches: Sequence[int], bounds: int) -> Callable:
    """The rule of vmap. bounds: the place of cu_seqlens_q, without which there is a batch to join."""

    def run(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple:
        if len(arguments) > bounds and arguments[bounds] is not None:
            raise UnsupportedError("vmap of packed sequences: add them to the packed arrays instead")
        found = operator(*_folded(info, in_dims, arguments, batches))
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in found), (0,) * len(found)

    return run


def _register() -> None:
    """All that PyTorch is told of the three operators."""
    defaults = (False, None, -1, -1, 0.0, None, None, None, None, None, False)
    of_pages = (True, None, -1, -1, 0.0, None, False, False)
    for name, run, fake, autograd, fixed, filled in (
        ("attention", _forward, _fake_forward, _with_gradients, 3, (*defaults, True)),
        ("attention_backward", _backward, _fake_backward, _second_derivative, 7, defaults),
        ("attention_paged", _forward_paged, _fake_paged, _no_gradient, 5, of_pages),
    ):
        for device in DEVICES:
            _library.impl(name, _filled(run, fixed, filled), device)
        _library.impl(name, _filled(autograd, fixed, filled), "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _filled(fake, fixed, filled), lib=_library)
    for device in DEVICES:
        key = getattr(torch._C.DispatchKey, f"Autocast{device}")
        _library.impl("attention", _under_autocast(device.lower(), key), f"Autocast{device}")
    forward, backward = (3 + SEQUSED, 0, 1, 2), (*range(7), 7 + SEQUSED)
    for operator, batches, bounds in (
        (_operators.attention, forward, 3 + PACKED),
        (_operators.attention_backward, backward, 7 + PACKED),
    ):
        rule = _mapped(operator, batches, bounds)
        torch.library.register_vmap(operator.default, rule, lib=_library)


def _filled(run: Callable, fixed: int, defaults: tuple) -> Callable:
    """PyTorch leaves out last arguments that are at their defaults."""
    return lambda *given: run(*given, *defaults[len(given) - fixed :])


_register()
