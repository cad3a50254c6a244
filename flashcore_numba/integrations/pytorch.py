"""FlashCore as operators of PyTorch: `attention`, `attention_varlen` and `attention_paged`, with gradients.

`torch.ops.flashcore.attention`, its backward and `torch.ops.flashcore.attention_paged` are what a compiler, a
transform or a dispatch mode sees. A plain call without any of them does not pass through the dispatcher.
`integrations.sdpa` offers the same kernels to `scaled_dot_product_attention`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn.functional import pad
from torch.utils.flop_counter import register_flop_formula

from flashcore_numba.attention import attention as call_forward
from flashcore_numba.attention import attention_varlen as call_varlen
from flashcore_numba.attention import planned as by_a_plan
from flashcore_numba.branches.backward.call import attention_backward as call_backward
from flashcore_numba.branches.backward.call import attention_varlen_backward as call_varlen_backward
from flashcore_numba.branches.backward.call import planned as gradients_by_a_plan
from flashcore_numba.branches.decode.call import attention_paged as call_paged
from flashcore_numba.core.element import ACCEPTED, ACCEPTED_NAMES
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.problem import HEAD_DIMS, checked_flag, checked_scale
from flashcore_numba.core.scaled import checked_scale_of, is_number

NAMESPACE = "flashcore"
GRADIENT_DIMS = (64, 128)  # head dimensions that the kernels of the backward pass have
TYPES = tuple(getattr(torch, each.name) for each in ACCEPTED)
UNBOUNDED = OFF.window
OF_E4M3 = (torch.float8_e4m3fn, torch.uint8)
BYTE = np.dtype(np.uint8)  # in which pools of e4m3 may come
FARTHEST = 1 << 31  # from the diagonal, beyond every side of a window
DEVICES = ("CPU", "CUDA")
NO_SECOND = f"{NAMESPACE}::attention has no second derivative"

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
    "bool batch_invariant=False, bool return_lse=False, float k_scale=1.0, float v_scale=1.0, "
    "Tensor? k_scales=None, Tensor? v_scales=None) -> (Tensor out, Tensor lse)"
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
    softcap: float = OFF.softcap,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqused_k: Tensor | None = None,
    head_norm: tuple[Tensor, float] | None = None,
    gate: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """`flashcore_numba.attention` of tensors, with gradients by q, k, v and sinks.

    q: [B, H, S_q, D], k: [B, H_kv, S_k, D], v: [B, H_kv, S_k, D_v], float16 or bfloat16, of any strides;
    under autocast of any floating-point type. causal: aligned bottom-right, so that the last query row sees
    every key. The other options are those of `flashcore_numba.attention`; sinks may be of any floating-point
    type, and these arrays of any strides. A gradient by alibi_slopes is refused. deterministic: gradients
    have the same bits in every run; `torch.use_deterministic_algorithms` asks for the same.

    head_norm and gate have no gradients: where one is wanted of any argument, they are refused. A compiler
    leaves its graph for a call with them.

    Head dimensions that no kernel has are padded to one that there is, up to 256, and up to 128 where a
    gradient is wanted: this costs a copy of each array. B, S_q and S_k may be 0: a row without keys is zeros,
    its LSE -inf or the sink.

    Returns out [B, H, S_q, D_v], its dimensions in the order in memory of those of q, or (out, lse), lse
    float32 [B, H, S_q], natural logarithm. CUDA tensors run on PyTorch's current stream, CPU tensors on the
    CPU executor. Raises ArgumentError and UnsupportedError as `flashcore_numba.attention` does; a second
    derivative and one in forward mode raise RuntimeError.
    """
    if deterministic is not False or return_lse is not False:
        deterministic, return_lse = _flags(deterministic=deterministic, return_lse=return_lse)
    if head_norm is not None or gate is not None:
        given = {"causal": causal, "scale": scale, "window": window, "softcap": softcap}
        arrays = {"sinks": sinks, "alibi_slopes": alibi_slopes, "seqused_k": seqused_k}
        return _followed(call_forward, q, k, v, head_norm, gate, arrays, given | {"return_lse": return_lse})
    window = window if window is UNBOUNDED else _sides(window)
    options = (causal, scale, window, softcap, sinks, alibi_slopes, seqused_k)
    return _called(q, k, v, options, (), deterministic, return_lse)


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
    softcap: float = OFF.softcap,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqused_k: Tensor | None = None,
    head_norm: tuple[Tensor, float] | None = None,
    gate: Tensor | None = None,
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
    if deterministic is not False or return_lse is not False:
        deterministic, return_lse = _flags(deterministic=deterministic, return_lse=return_lse)
    if head_norm is not None or gate is not None:
        given = {"causal": causal, "scale": scale, "window": window, "softcap": softcap}
        arrays = {"sinks": sinks, "alibi_slopes": alibi_slopes, "seqused_k": seqused_k}
        arrays |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        return _followed(call_varlen, q, k, v, head_norm, gate, arrays, given | {"return_lse": return_lse})
    window = window if window is UNBOUNDED else _sides(window)
    options = (causal, scale, window, softcap, sinks, alibi_slopes, seqused_k)
    return _called(q, k, v, options, (cu_seqlens_q, cu_seqlens_k), deterministic, return_lse)


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
    softcap: float = OFF.softcap,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    return_lse: bool = False,
) -> Any:
    """`flashcore_numba.attention_paged` of tensors, as an operator that a compiler keeps.

    It has no gradients: where one is wanted, or an array carries a derivative of forward mode, it raises
    RuntimeError. Shapes, options and errors are those of `flashcore_numba.attention_paged`, without its
    stage, out and time_limit; sinks may be of any floating-point type. k_scale, v_scale: of pools of e4m3, a
    number above 0 or float32 [H_kv]. q, block_table and lengths may have any strides. Autocast casts q to the
    type of the pools, or to its own where they are of e4m3, and never the pools.
    """
    check_tensors(q=q, k_pool=k_pool, v_pool=v_pool, block_table=block_table, lengths=lengths)
    if sinks is not None:
        check_tensors(sinks=sinks)
    causal, scale, softcap = _numbers(causal, scale, softcap)
    batch_invariant, return_lse = _flags(batch_invariant=batch_invariant, return_lse=return_lse)
    k_scale, k_scales = _one_or_many("k_scale", k_scale)
    v_scale, v_scales = _one_or_many("v_scale", v_scale)
    options = (causal, scale, *_sides(window), softcap, _in_float32(sinks), batch_invariant, return_lse)
    scales = (k_scale, v_scale, k_scales, v_scales)
    found = _operators.attention_paged(q, k_pool, v_pool, block_table, lengths, *options, *scales)
    return found if return_lse else found[0]


def _one_or_many(name: str, scale: Any) -> tuple[float, Tensor | None]:
    """A scale of a pool as the operator takes it: one for all heads, and one for each."""
    if isinstance(scale, Tensor):
        check_tensors(**{name: scale})
        return 1.0, scale
    if type(scale) is int and 0 < scale < FARTHEST:
        scale = float(scale)
    return (scale if type(scale) is float else _scale_of_pool(name, scale)), None


def _flags(**named: Any) -> tuple[bool, ...]:
    return tuple([flag if type(flag) is bool else _flag(name, flag) for name, flag in named.items()])


def _numbers(causal: Any, scale: Any, softcap: Any) -> tuple[bool, float | None, float]:
    """As the dispatcher takes them, which would make 1.0 of a scale of True."""
    if type(scale) is int and abs(scale) < FARTHEST:
        scale = float(scale)
    if type(softcap) is int and abs(softcap) < FARTHEST:
        softcap = float(softcap)
    if type(causal) is not bool:
        causal = _flag("causal", causal)
    if type(scale) not in NUMBERS:
        scale = _scale(scale)
    if type(softcap) is not float:
        softcap = _features(softcap=softcap).softcap
    return causal, scale, softcap


# A compiler takes a number of NumPy for an array, and must leave its graph to look at one.
_outside = torch.compiler.disable(
    reason="causal, scale, window, softcap and flags must be of Python's classes"
)


@_outside
def _flag(name: str, flag: Any) -> bool:
    return checked_flag(name, flag)


@_outside
def _scale(scale: Any) -> float:
    return checked_scale(scale, 1)


@_outside
def _scale_of_pool(name: str, scale: Any) -> float:
    if not is_number(scale):
        raise ArgumentError(
            f"{name} is of type {type(scale).__qualname__}: a number or a torch.Tensor is needed"
        )
    return checked_scale_of(name, scale, BYTE, 0, None)


@_outside
def _features(**options: Any) -> Features:
    return Features(**options).fitted({}, FARTHEST)


def _check_numbers(options: Sequence[Any]) -> None:
    """Raise ArgumentError for a scale, a window or a softcap of an operator that is out of range; one that
    only a call of a graph knows is taken as right.
    """
    _, scale, left, right, softcap, *_ = options
    if type(scale) is float:
        checked_scale(scale, 1)
    if type(left) is type(right) is int and type(softcap) in (float, int):
        _features(window=(left, right), softcap=softcap)


def _sides(window: Any) -> tuple[int, int]:
    if type(window) in (tuple, list) and len(window) == 2:
        left, right = window
        if type(left) is int and type(right) is int and -1 <= left < FARTHEST and -1 <= right < FARTHEST:
            return _window(left, right)
    return _window(*_features(window=window).window)


def _window(left: int, right: int) -> tuple[int, int]:
    """Both; where they are the default, the very object, which plans know without looking inside."""
    return UNBOUNDED if (left, right) == UNBOUNDED else (left, right)


def _in_float32(sinks: Tensor | None) -> Tensor | None:
    """As the kernels take them: a model in bfloat16 has its sinks in bfloat16 too."""
    return sinks if sinks is None or not sinks.dtype.is_floating_point else sinks.float()


NUMBERS = (float, type(None))
SINKS, SLOPES, USED, PACKED = 5, 6, 7, 8  # places among the options of `attention`
RETURN_LSE = 7  # a place among those of `attention_paged`
ARRAYS = slice(SINKS, -1)  # those of them that are tensors
NAMES = ("sinks", "alibi_slopes", "seqused_k", "cu_seqlens_q", "cu_seqlens_k")


def _called(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: tuple,
    bounds: tuple[Tensor, ...],
    deterministic: bool,
    return_lse: bool,
) -> Any:
    """By the plan of an earlier call if there is one, which comes to the same as `_directly`, many
    microseconds earlier. given: the options from causal to seqused_k. bounds: those of packed sequences.
    """
    causal, scale, window, softcap, sinks, alibi_slopes, seqused_k = given
    if type(causal) is not bool or type(softcap) is not float or type(scale) not in NUMBERS:
        causal, scale, softcap = _numbers(causal, scale, softcap)
    found = None
    if not torch.compiler.is_compiling() and _plain(q, k, v) and _as_autocast_has_it(q, k, v):
        wanted = _wanted(q, k, v, sinks, alibi_slopes)
        out = torch.zeros_like(q) if bounds else None  # rows outside all sequences are not written
        if out is None and not q.is_contiguous():
            out = torch.empty_like(q)
        arguments = (q, k, v, causal, scale, window, softcap, sinks, alibi_slopes, seqused_k, out)
        found = by_a_plan(*arguments, wanted or return_lse, *bounds)
        if found is not None and not wanted:
            return found if return_lse else found[0]
    arrays = (sinks, alibi_slopes, seqused_k, *(bounds or (None, None)))
    options = (causal, scale, *window, softcap, *arrays, deterministic)
    if found is None:
        return _directly(q, k, v, options, return_lse)
    _check_gradient(q, v, options)
    return _joined(q, k, v, sinks, found, options, return_lse)


def _directly(q: Tensor, k: Tensor, v: Tensor, options: tuple, return_lse: bool) -> Any:
    """As an operator where somebody looks on, otherwise as directly as gradients allow."""
    arrays = zip(NAMES, options[ARRAYS], strict=True)
    check_tensors(q=q, k=k, v=v, **{name: x for name, x in arrays if x is not None})
    sinks = _in_float32(options[SINKS])
    if sinks is not options[SINKS]:
        options = (*options[:SINKS], sinks, *options[SINKS + 1 :])
    if torch.compiler.is_compiling() or q.is_meta:
        found = _operators.attention(q, k, v, *options, True)
        return found if return_lse else found[0]
    q, k, v = under_autocast(q, k, v)
    wanted = _wanted(q, k, v, sinks, options[SLOPES])
    if _plain(q, k, v):
        if wanted:
            _check_gradient(q, v, options)
            found = compute(q, k, v, *options, True)
            return _Eager.apply(q, k, v, sinks, found, options, return_lse)
        found = compute(q, k, v, *options, return_lse)
    else:
        found = _operators.attention(q, k, v, *options, return_lse)
    return found if return_lse else found[0]


@torch.compiler.disable
def _followed(
    call: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    head_norm: Any,
    gate: Tensor | None,
    arrays: dict[str, Tensor | None],
    options: dict[str, Any],
) -> Any:
    """With a norm or a gate: `call` on tensors without a history. Head dimensions are not padded, since a
    norm would count the zeros.
    """
    given = {"q": q, "k": k, "v": v, "gate": gate, **arrays}
    check_tensors(**{name: x for name, x in given.items() if x is not None or name in ("q", "k", "v")})
    weight = head_norm[0] if isinstance(head_norm, tuple | list) and head_norm else None
    named = given | {"head_norm[0]": weight}
    for name, x in named.items():
        if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            raise UnsupportedError(
                f"{name} requires a gradient, and the backward pass knows no gate and no head_norm: call "
                "under torch.no_grad(), or apply them to what attention returns"
            )
    _check_tangents("attention with head_norm or gate", "apply them to what it returns", named.values())
    check_values(
        q,
        "head_norm or gate inside a transform of torch.func: no transform can follow them, so apply them to "
        "what attention returns",
        "head_norm and gate take",
    )
    q, k, v, *gates = under_autocast(q, k, v, *(() if gate is None else (gate,)))
    gate = gates[0] if gates else None
    _check(q, k, v)
    if isinstance(weight, Tensor):
        head_norm = (weight.detach().contiguous(), *head_norm[1:])
    if isinstance(arrays["sinks"], Tensor):
        arrays = arrays | {"sinks": arrays["sinks"].float()}
    arrays = {name: x.detach().contiguous() if isinstance(x, Tensor) else x for name, x in arrays.items()}
    packed = call is call_varlen
    out: Any = _like(q, v.shape[-1]) if packed or not q.is_contiguous() else None
    if packed:
        out.zero_()  # rows outside all sequences are not written
    gate = _readable(gate) if isinstance(gate, Tensor) else gate
    q, k, v = _readable(q), _readable(k), _readable(v)
    return call(q, k, v, head_norm=head_norm, gate=gate, out=out, **arrays, **options)


def _wanted(q: Tensor, k: Tensor, v: Tensor, sinks: Any, slopes: Any) -> bool:
    """Whether a gradient is, also one of the slopes, which `_check_gradient` refuses."""
    return torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (sinks is not None and getattr(sinks, "requires_grad", False))
        or (slopes is not None and getattr(slopes, "requires_grad", False))
    )


def _plain(q: Any, k: Any, v: Any) -> bool:
    """Whether nothing of PyTorch needs to see the call: no subclass, no mode, no transform, no tracer."""
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not _in_forward_mode()
        and not torch._C._is_tracing()
    )


def _in_forward_mode() -> bool:
    """Whether tensors may carry derivatives with them; no longer inside a `Function`, which has seen them."""
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def _check_tangents(name: str, advice: str, arrays: Iterable[Any]) -> None:
    """Raise for an array that carries a derivative, which a call without a formula would lose."""
    if _in_forward_mode() and any(
        isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arrays
    ):
        raise RuntimeError(f"{NAMESPACE}::{name} has no derivative in forward mode: {advice}")


def under_autocast(*arrays: Tensor) -> Sequence[Tensor]:
    """Tensors of one device, cast as autocast has it where it is on."""
    device = arrays[0].device.type
    return _cast(device, *arrays) if torch.is_autocast_enabled(device) else arrays


def _as_autocast_has_it(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether autocast is off or leaves the three as they are, which come from a linear layer as a rule."""
    if not torch._C._is_any_autocast_enabled() or q.is_meta:  # which autocast does not know
        return True
    if not torch.is_autocast_enabled(device := q.device.type):
        return True
    return torch.get_autocast_dtype(device) is q.dtype is k.dtype is v.dtype


def _cast(device: str, *arrays: Tensor) -> list[Tensor]:
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x.is_floating_point() else x for x in arrays]


class _Eager(torch.autograd.Function):
    """Gives `found`, (out, lse) of plain tensors, its gradients: `_Attention` with less around it."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        found: tuple[Tensor, Tensor],
        options: tuple,
        return_lse: bool,
    ) -> Any:
        ctx.set_materialize_grads(False)
        # Lengths and bounds too: autograd then sees whether somebody writes to them before the backward pass.
        ctx.save_for_backward(q, k, v, *found, sinks, *options[SLOPES:-1])
        ctx.numbers = options[:SINKS], options[-1]
        return found if return_lse else found[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None = None) -> tuple:
        q, k, v, out, lse, *arrays = ctx.saved_tensors
        first, last = ctx.numbers
        of_q, of_k, of_v, of_sinks, *_ = ctx.needs_input_grad
        if of_sinks or torch.is_grad_enabled() or not _direct(dout, q, k, dlse):
            saved, options = (q, k, v, out, lse), (*first, *arrays, last)
            found = _chained(dout, dlse, saved, options, of_q or of_k or of_v, of_sinks)
            return *found, None, None, None
        found = compute_gradients(dout, q, k, v, out, lse, dlse, *first, *arrays, last)
        return *found, None, None, None, None


# `Function.apply` without its search for transforms and what they left, which `_plain` and a plan rule out.
_joined = super(torch.autograd.Function, _Eager).apply


def _below(operator: Callable, *arguments: Any) -> Any:
    """What an operator returns inside `forward` of a `Function`, which turns gradients off, of forward mode
    too. For the transforms of torch.func around the one that is served they must be on: those would record
    nothing, and their derivatives would be zeros.
    """
    if torch._C._functorch.peek_interpreter_stack() is None:
        return operator(*arguments)
    with (
        torch._C._AutoDispatchBelowAutograd(),
        torch.enable_grad(),
        forward_ad._set_fwd_grad_enabled(True),
    ):
        return operator(*arguments)


class _Attention(torch.autograd.Function):
    """(out, lse), by the operators, so that transforms and compilers can follow."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        _check_gradient(q, v, options)
        return _below(_operators.attention, q, k, v, *options, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        arrays = [x for x in inputs if isinstance(x, Tensor)]
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
        ctx.save_for_backward(*arrays, *output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        *arrays, out, lse = ctx.saved_tensors
        given = list(ctx.others)
        for place, x in zip(ctx.places, arrays, strict=True):
            given[place] = x
        q, k, v, *options = given
        wanted = ctx.needs_input_grad
        dq, dk, dv, dsinks = _chained(
            dout, dlse, (q, k, v, out, lse), options, any(wanted[:3]), wanted[3 + SINKS]
        )
        gradients = [dq, dk, dv, *(None for _ in options)]
        gradients[3 + SINKS] = dsinks
        return tuple(gradients)


def _check_gradient(q: Tensor, v: Tensor, options: Sequence[Any]) -> None:
    """Raise for what the backward pass would refuse later."""
    if q.shape[-1] not in GRADIENT_DIMS or v.shape[-1] not in GRADIENT_DIMS:
        _padded_dim(max(q.shape[-1], v.shape[-1]), GRADIENT_DIMS, "gradients")
    slopes = options[SLOPES]
    if slopes is not None and slopes.requires_grad:
        raise UnsupportedError("alibi_slopes require a gradient, which no kernel has: detach them")


def _chained(
    dout: Tensor | None,
    dlse: Tensor | None,
    saved: Sequence[Tensor],
    options: Sequence[Any],
    of_inputs: bool,
    of_sinks: bool,
) -> tuple[Tensor | None, ...]:
    """dQ, dK, dV and the gradient of the sinks, None where none is wanted. saved: q, k, v, out and lse."""
    *_, out, lse = saved
    if dout is None and dlse is None:
        return None, None, None, None
    dout = torch.zeros_like(out) if dout is None else dout
    dsinks = _gradient_of_sinks(dout, out, lse, dlse, options) if of_sinks else None
    if dsinks is not None and torch.is_grad_enabled():
        dsinks = _Once.apply(dsinks)
    if not of_inputs:
        return None, None, None, dsinks
    given = (dout, *saved, dlse, *options)
    # Where gradients are on, somebody may differentiate what comes.
    run = _operators.attention_backward if torch.is_grad_enabled() else _gradients
    return *run(*given), dsinks


def _gradients(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), as directly as those allow who look on."""
    dout, q, k, _, _, _, dlse, *_ = arguments
    run = compute_gradients if _direct(dout, q, k, dlse) else _operators.attention_backward
    return run(*arguments)


def _direct(dout: Tensor | None, q: Tensor, k: Tensor, dlse: Tensor | None) -> bool:
    """Whether there is a dout, and no compiler, mode or transform needs to see what becomes of it. The vmap
    of `is_grads_batched` of `torch.autograd.grad` is another than that of torch.func.
    """
    return (
        not torch.compiler.is_compiling()  # first: Dynamo cannot trace the last two questions
        and _plain(dout, q, k)
        and not q.is_meta
        and not torch._C._functorch.is_legacy_batchedtensor(dout)
        and (dlse is None or not torch._C._functorch.is_legacy_batchedtensor(dlse))
    )


class _Gradients(torch.autograd.Function):
    """(dq, dk, dv), where somebody may ask for their derivatives, which the kernels do not have."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _below(_gradients, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(NO_SECOND)


class _Once(_Gradients):
    """A gradient as it is, without derivatives: what it was made of may have lost its own history."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(f"{NAMESPACE}::attention_backward has no derivative in forward mode")


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
    found = found.where(lse != -torch.inf, 0.0)  # such a row has no sum that a sink could take of
    if bounds is None:
        return found.sum((0, 2))
    rows = torch.arange(lse.shape[1], device=lse.device)
    return found.where((rows >= bounds[0]) & (rows < bounds[-1]), 0.0).sum(1)


def _readable(x: Tensor) -> Tensor:
    """Without its history, and with contiguous rows."""
    x = x.detach() if x.requires_grad else x
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _like(x: Tensor, columns: int) -> Tensor:
    """Uninitialised contiguous rows of so many columns, ordered in memory as those of x."""
    if columns > x.shape[-1] or x.stride(-1) != 1:
        return x.new_empty((*x.shape[:-1], columns))
    return torch.empty_like(x if columns == x.shape[-1] else x[..., :columns])  # a slice takes microseconds


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
    arrays = {
        name: x if x is None else (x.detach() if x.requires_grad else x).contiguous()
        for name, x in arrays.items()
    }
    return {"causal": causal, "scale": scale, "window": _window(left, right), "softcap": softcap} | arrays


def check_values(q: Tensor, transformed: str, takes: str) -> None:
    """Raise UnsupportedError inside a transform of torch.func, with `transformed` as its message, and for a q
    without values. takes: who takes what has values.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UnsupportedError(transformed)
    if q.is_meta or isinstance(q, FakeTensor):
        raise UnsupportedError(f"q has no values: {takes} tensors of cpu and cuda")


def check_tensors(**named: Any) -> None:
    """Raise ArgumentError for what is no tensor, or holds its elements in no order."""
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{name} is of type {type(x).__qualname__}: a torch.Tensor is needed")
        if x.layout is not torch.strided or x.is_nested:
            kind = "nested" if x.is_nested else f"of layout {str(x.layout).removeprefix('torch.')}"
            raise ArgumentError(
                f"{name} is {kind}: a strided tensor is needed; attention_varlen takes sequences of "
                "different lengths"
            )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(q: Any, k: Any, v: Any) -> None:
    """Raise ArgumentError for types that no kernel has, and for what padding would hide."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in TYPES:
            raise ArgumentError(
                f"{name} has dtype {_named(x.dtype)}: accepted are {ACCEPTED_NAMES}, so "
                f"pass {name}.half() or {name}.bfloat16(), or call under torch.autocast"
            )
        if not x.ndim or guard_or_false(x.shape[-1] == 0):
            raise ArgumentError(f"{name} has shape {tuple(x.shape)}: it has no columns")
    if guard_or_false(k.shape[-1] != q.shape[-1]):  # zeros that widen one of them would hide it
        raise ArgumentError(
            f"k has head dimension {k.shape[-1]}: q has {q.shape[-1]}, and they must be equal"
        )


def _check_without_values(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> None:
    """Raise ArgumentError for what a call with values would refuse, of types, places and shapes. A size that
    only a call knows is taken as right.
    """
    _check(q, k, v)
    ndim, length, axes = 4, 2, "four dimensions are needed, [batch, heads, rows, D]"
    if packed:
        ndim, length, axes = 3, 0, "three dimensions are needed, [total, heads, D]"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != ndim:
            raise ArgumentError(f"{name} has shape {tuple(x.shape)}: {axes}")
        if x.dtype != q.dtype:
            raise ArgumentError(
                f"{name} has dtype {_named(x.dtype)}: q has {_named(q.dtype)}, and they must be equal"
            )
        if x.device != q.device:
            raise ArgumentError(f"{name} is on {x.device} but q is on {q.device}: all must be in one place")
        if not packed and guard_or_false(x.shape[0] != q.shape[0]):
            raise ArgumentError(
                f"{name} has batch {x.shape[0]}: q has batch {q.shape[0]}, and they must be equal"
            )
    if guard_or_false(v.shape[1] != k.shape[1]):
        raise ArgumentError(f"v has {v.shape[1]} heads: k has {k.shape[1]}, and they must be equal")
    if guard_or_false(v.shape[length] != k.shape[length]):
        raise ArgumentError(
            f"v has length {v.shape[length]}: k has {k.shape[length]}, and each key needs one value"
        )
    if guard_or_false(k.shape[1] == 0) or guard_or_false(q.shape[1] % k.shape[1] != 0):
        raise ArgumentError(f"k has {k.shape[1]} heads: q has {q.shape[1]}, which must be a multiple of that")


def _check_pages_without_values(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, block_table: Tensor, lengths: Tensor
) -> None:
    """`_check_without_values` of `attention_paged`."""
    if q.dtype not in TYPES:
        raise ArgumentError(f"q has dtype {_named(q.dtype)}: accepted are {ACCEPTED_NAMES}")
    pages = "four dimensions are needed, [pages, keys of a page, heads, D]"
    for name, x, ndim, needed in (
        ("q", q, 4, "four dimensions are needed, [batch, heads, rows, D]"),
        ("k_pool", k_pool, 4, pages),
        ("v_pool", v_pool, 4, pages),
        ("block_table", block_table, 2, "[B, pages of a request] is needed"),
        ("lengths", lengths, 1, "[B] is needed"),
    ):
        if x.ndim != ndim:
            raise ArgumentError(f"{name} has shape {tuple(x.shape)}: {needed}")
        of_counter = q.is_meta and ndim < 4  # lengths with values tell it how many keys there are
        if x.device != q.device and not of_counter:
            raise ArgumentError(f"{name} is on {x.device} but q is on {q.device}: all must be in one place")
    for name, x in (("block_table", block_table), ("lengths", lengths)):
        if x.dtype is not torch.int32:
            raise ArgumentError(f"{name} has dtype {_named(x.dtype)}: only int32 is accepted")
        if guard_or_false(x.shape[0] != q.shape[0]):
            raise ArgumentError(
                f"{name} has shape {tuple(x.shape)}: a row for each request is needed, and q has batch "
                f"{q.shape[0]}"
            )
    for name, x in (("k_pool", k_pool), ("v_pool", v_pool)):
        if x.dtype not in (q.dtype, *OF_E4M3):
            raise ArgumentError(
                f"{name} has dtype {_named(x.dtype)}: q has {_named(q.dtype)}, and they must be equal, or "
                "the pools float8_e4m3fn"
            )
    if guard_or_false(k_pool.shape[3] != q.shape[3]):
        raise ArgumentError(
            f"k_pool has head dimension {k_pool.shape[3]}: q has {q.shape[3]}, and they must be equal"
        )
    if any(guard_or_false(v_pool.shape[i] != k_pool.shape[i]) for i in range(3)):
        raise ArgumentError(
            f"v_pool has shape {tuple(v_pool.shape)}: k_pool has {tuple(k_pool.shape)}, and all but the last "
            "dimension must be equal"
        )
    if guard_or_false(k_pool.shape[2] == 0) or guard_or_false(q.shape[1] % k_pool.shape[2] != 0):
        raise ArgumentError(
            f"k_pool has {k_pool.shape[2]} heads: q has {q.shape[1]}, which must be a multiple of that"
        )


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    left: int,
    right: int,
    softcap: float,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
    seqused_k: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    deterministic: bool,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    """What `flashcore::attention` computes. Without `return_lse`, the LSE is an empty tensor."""
    options = (causal, scale, left, right, softcap, sinks, alibi_slopes, seqused_k)
    _check(q, k, v)
    packed, columns = cu_seqlens_q is not None, v.shape[-1]
    if not (q.numel() and k.numel()) and all(
        x.ndim == (3 if packed else 4) and x.shape[1] for x in (q, k, v)
    ):
        return _of_nothing(q, k, v, (*options, cu_seqlens_q, cu_seqlens_k, deterministic, return_lse))
    keywords = _keywords(options)
    needs_room = not {q.shape[-1], columns} <= {*HEAD_DIMS}
    out: Any = None
    if packed or needs_room or q.shape[-1] != columns or not q.is_contiguous():
        out = _like(q, columns)
    q, k, v, target = _readable(q), _readable(k), _readable(v), out
    if needs_room:
        keywords["scale"] = q.shape[-1] ** -0.5 if scale is None else scale
        width = _padded_dim(max(q.shape[-1], columns), HEAD_DIMS, "attention")
        q, k, v = _widened(width, q, k, v)
        target = torch.empty_like(q)
    call: Callable = call_forward
    bounds: Sequence[Tensor] = ()
    if packed:
        target.zero_()
        call, bounds = call_varlen, _contiguous(cu_seqlens_q, cu_seqlens_k)
    found = call(q, k, v, *bounds, **keywords, out=target, return_lse=return_lse)
    made, lse = found if return_lse else (found, _no_lse(q))
    if needs_room:
        out.copy_(made[..., :columns])
    return (made if out is None else out), lse


compute: Callable[..., tuple[Tensor, Tensor]] = _forward


def _of_nothing(q: Tensor, k: Tensor, v: Tensor, options: tuple) -> tuple[Tensor, Tensor]:
    """Without a batch, a query row or a key. No kernel is launched for nothing, so there is a row or a key
    that nobody sees or gets, and the other arguments are checked as ever. Raises ArgumentError where what
    the caller gave does not fit together: larger arrays would hide it.
    """
    packed = options[PACKED] is not None
    _check_without_values(q, k, v, packed)
    if not packed and not q.shape[0] and options[USED] is not None and options[USED].numel():
        raise ArgumentError(f"seqused_k has shape {tuple(options[USED].shape)}: it must be (0,) here")
    slopes, used, *rest = (x if x is None else _at_least_one(x) for x in options[SLOPES:-2])
    wide = [_at_least_one(x) for x in (q, k, v)]
    if k.ndim == 4 and not k.shape[2] and used is None:
        used = torch.zeros(wide[0].shape[0], dtype=torch.int32, device=q.device)
    out, lse = compute(*wide, *options[:SLOPES], slopes, used, *rest, *options[-2:])
    if q.device.type == "cpu":  # nobody looks at lengths on a GPU
        lengths = zip(NAMES[USED - SINKS :], options[USED : USED + 3], strict=True)
        given = {name: x.numpy() for name, x in lengths if x is not None}
        Features(**given).check_lengths(*(x.transpose(0, 1)[None] if packed else x for x in (q, k)))
    return (out, lse) if q.numel() else _fake_forward(q, k, v, *options)


def _at_least_one(x: Tensor) -> Tensor:
    """Zeros in place of an empty tensor, for one batch and one row."""
    if x.numel():
        return x
    return x.new_zeros([size or int(place in (0, x.ndim - 2)) for place, size in enumerate(x.shape)])


def _contiguous(*arrays: Tensor) -> list[Tensor]:
    return [x.contiguous() for x in arrays]


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
    causal, scale, left, right, softcap, sinks, slopes, used, *bounds, deterministic = options
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    packed = bounds[0] is not None
    features: tuple = ()
    gradients: Any = (None, None, None)
    if packed or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        gradients = tuple([_like(x, x.shape[-1]) for x in (q, k, v)])
    if packed:
        features = (sinks, slopes, used, *bounds)
        _clear(gradients)
    elif sinks is not None or slopes is not None or used is not None:
        features = (sinks, slopes, used)
    arrays, window = (dout, q, k, v, out, lse, dlse), _window(left, right)
    found = gradients_by_a_plan(arrays, features, gradients, causal, scale, window, softcap, deterministic)
    if found is not None:
        return found
    if not (q.numel() and k.numel()):
        return tuple([_like(x, x.shape[-1]).zero_() for x in (q, k, v)])
    if not lse.numel() and out.numel():
        raise ArgumentError("lse is empty: call the operator with return_lse=True where a gradient is wanted")
    keywords = _keywords(options) | {"deterministic": deterministic}
    inputs = [_readable(x) for x in (dout, q, k, v, out)]
    targets = gradients
    needs_room = q.shape[-1] != v.shape[-1] or q.shape[-1] not in GRADIENT_DIMS
    if needs_room:
        gradients = tuple([_like(x, x.shape[-1]) for x in (q, k, v)])
        keywords["scale"] = q.shape[-1] ** -0.5 if scale is None else scale
        width = _padded_dim(max(q.shape[-1], v.shape[-1]), GRADIENT_DIMS, "gradients")
        inputs = _widened(width, *inputs)
        targets = [torch.empty_like(x) for x in inputs[1:4]]
        if packed:
            _clear(targets)
    call: Callable = call_backward
    if packed:
        call, bounds = call_varlen_backward, _contiguous(*bounds)
    else:
        bounds = []
    lse = lse.detach().contiguous()
    dlse = None if dlse is None else dlse.detach().contiguous()
    dq, dk, dv = targets
    made = call(*inputs, lse, *bounds, **keywords, dlse=dlse, dq=dq, dk=dk, dv=dv)
    if not needs_room:
        return made
    for wide, narrow in zip(made, gradients, strict=True):
        narrow.copy_(wide[..., : narrow.shape[-1]])
    return gradients


def _clear(gradients: Sequence[Tensor]) -> None:
    """Rows outside all sequences are not written."""
    torch._foreach_zero_(gradients)  # one call for all three


compute_gradients: Callable[..., tuple[Tensor, Tensor, Tensor]] = _backward


def _forward_paged(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, block_table: Tensor, lengths: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    causal, scale, left, right, softcap, sinks, batch_invariant, return_lse, *scales = options
    k_scale, v_scale = (
        one if many is None else many.detach() for one, many in zip(scales[:2], scales[2:], strict=True)
    )
    q, block_table, lengths = (_readable(x) if x.ndim else x for x in (q, block_table, lengths))
    found = call_paged(
        *(q, k_pool.detach(), v_pool.detach(), block_table, lengths),
        causal=causal,
        scale=scale,
        window=(left, right),
        softcap=softcap,
        sinks=None if sinks is None else sinks.detach(),
        batch_invariant=batch_invariant,
        k_scale=k_scale,
        v_scale=v_scale,
        return_lse=return_lse,
    )
    return found if return_lse else (found, _no_lse(q))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Shapes, types and strides of what `_forward` returns."""
    *_, return_lse = options
    _check_without_values(q, k, v, options[PACKED] is not None)
    _check_numbers(options)
    rows = q.shape[:-1] if options[PACKED] is None else (q.shape[1], q.shape[0])
    return _like(q, v.shape[-1]), q.new_empty(rows if return_lse else (0,), dtype=torch.float32)


def _fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return tuple(_like(x, x.shape[-1]) for x in (q, k, v))


def _fake_paged(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, block_table: Tensor, lengths: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    return_lse = options[RETURN_LSE]
    _check_pages_without_values(q, k_pool, v_pool, block_table, lengths)
    _check_numbers(options)
    out = q.new_empty((*q.shape[:-1], v_pool.shape[-1]))
    return out, q.new_empty(q.shape[:-1] if return_lse else (0,), dtype=torch.float32)


def _with_second(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _check_tangents("attention_backward", "it has no derivatives", arguments)
    if _any_gradient(arguments):
        return _noted(_Gradients, *arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention_backward(*arguments)


def _noted(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply` inside a kernel of the key Autograd. A transform of torch.func has already chosen the
    level that is differentiated, so `apply` must not look for one again.
    """
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*arguments)


def _any_gradient(arguments: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)


def _no_gradient(*arguments: Any) -> Any:
    if _any_gradient(arguments):
        raise RuntimeError(f"{NAMESPACE}::attention_paged has no gradients: call it under torch.no_grad()")
    _check_tangents("attention_paged", "it has no gradients", arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention_paged(*arguments)


def _with_gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """An operator that somebody called under autograd. Its LSE is there whether or not it was asked for."""
    _check_tangents("attention", "use reverse mode", arguments)
    if _any_gradient(arguments):
        return _noted(_Attention, *arguments[:-1])
    with torch._C._AutoDispatchBelowAutograd():
        return _operators.attention(*arguments)


def _under_autocast(device: str, key: Any, operator: Any, cast: Callable) -> Callable:
    def run(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return operator(*cast(device, q, k, v), *others)

    return run


def _cast_to_pools(device: str, q: Tensor, k_pool: Tensor, v_pool: Tensor) -> tuple[Tensor, ...]:
    """Only q is cast: a copy of the pools for each call would cost more than the call."""
    dtype = k_pool.dtype if k_pool.dtype in TYPES else torch.get_autocast_dtype(device)
    return q.to(dtype) if q.is_floating_point() else q, k_pool, v_pool


def _mapped(operator: Any, batches: Sequence[str]) -> Callable:
    """The rule of vmap: the dimension over which it maps is joined to the batch. batches: the arguments that
    have one; what has none must be the same for all.
    """
    names = [each.name for each in operator.default._schema.arguments]

    def run(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple:
        joined, each = [], 0
        for name, dim, x in zip(names, in_dims, arguments, strict=False):
            if name == "cu_seqlens_q" and x is not None:
                raise UnsupportedError("vmap of packed sequences: add more sequences to the packed arrays")
            has_batch = name in batches or (name == "alibi_slopes" and x is not None and _rank(x, dim) == 2)
            if has_batch and x is not None:
                x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                each = x.shape[1]
                x = x.flatten(0, 1)
            elif dim is not None:
                raise UnsupportedError(f"{name} is mapped by vmap: it has no batch that could be joined")
            joined.append(x)
        found = operator(*joined)
        # Of no entries nothing says how large one is, save what was given.
        sizes = [x.shape[0] // info.batch_size if info.batch_size else each for x in found]
        made = (x.unflatten(0, (info.batch_size, size)) for x, size in zip(found, sizes, strict=True))
        return tuple(made), (0,) * len(found)

    return run


def _rank(x: Tensor, dim: int | None) -> int:
    return x.ndim - (dim is not None)


def _flops(q: Tensor, k: Tensor, v: Tensor, *options: Any, **named: Any) -> int:
    """For `torch.utils.flop_counter`: two products, without a mask, as it counts PyTorch's own attention."""
    return 2 * _scores(q, k, options, named) * (q.shape[-1] + v.shape[-1])


def _flops_of_gradients(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any, **named: Any) -> int:
    """Five products: scores again, dV, dP, dQ and dK."""
    return 2 * _scores(q, k, others[3:], named) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _flops_of_pages(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, block_table: Tensor, lengths: Tensor, *_: Any, **named: Any
) -> int:
    """As `_flops`, over the keys of all requests, or all slots of the table where lengths have no values."""
    keys = int(lengths.sum()) if _has_values(lengths) else block_table.numel() * k_pool.shape[1]
    return 2 * q.shape[1] * q.shape[2] * keys * (q.shape[-1] + v_pool.shape[-1])


def _scores(q: Tensor, k: Tensor, options: tuple, named: dict[str, Any]) -> int:
    """Pairs of a query row and a key, of all heads. Sequences whose bounds have no values are taken for
    equally long.
    """
    in_order = dict(zip(NAMES, options[ARRAYS.start :], strict=False)) | named
    rows, keys = (in_order.get(f"cu_seqlens_{x}") for x in "qk")
    if rows is None or keys is None:
        return q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if _has_values(rows) and _has_values(keys):
        return q.shape[1] * int((rows.long().diff() * keys.diff()).sum())
    return q.shape[1] * q.shape[0] * k.shape[0] // (len(rows) - 1)


def _has_values(x: Tensor) -> bool:
    return not (x.is_meta or isinstance(x, FakeTensor | FunctionalTensor))


def _register() -> None:
    """All that PyTorch is told of the three operators."""
    defaults = (False, None, -1, -1, 0.0, None, None, None, None, None, False)
    of_pages = (True, None, -1, -1, 0.0, None, False, False, 1.0, 1.0, None, None)
    for name, run, fake, autograd, fixed, filled in (
        ("attention", compute, _fake_forward, _with_gradients, 3, (*defaults, True)),
        ("attention_backward", compute_gradients, _fake_backward, _with_second, 7, defaults),
        ("attention_paged", _forward_paged, _fake_paged, _no_gradient, 5, of_pages),
    ):
        for device in DEVICES:
            _library.impl(name, _filled(run, fixed, filled), device)
        _library.impl(name, _filled(autograd, fixed, filled), "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _filled(fake, fixed, filled), lib=_library)
    for device in DEVICES:
        key = getattr(torch._C.DispatchKey, f"Autocast{device}")
        for name, cast in (("attention", _cast), ("attention_paged", _cast_to_pools)):
            run = _under_autocast(device.lower(), key, getattr(_operators, name), cast)
            _library.impl(name, run, f"Autocast{device}")
    batches = ("q", "k", "v", "seqused_k")
    of_backward = (*batches, "dout", "out", "lse", "dlse")
    for operator, joined in (
        (_operators.attention, batches),
        (_operators.attention_backward, of_backward),
    ):
        torch.library.register_vmap(operator.default, _mapped(operator, joined), lib=_library)
    register_flop_formula(_operators.attention, get_raw=True)(_flops)
    register_flop_formula(_operators.attention_backward, get_raw=True)(_flops_of_gradients)
    register_flop_formula(_operators.attention_paged, get_raw=True)(_flops_of_pages)


def _filled(run: Callable, fixed: int, defaults: tuple) -> Callable:
    """PyTorch leaves out last arguments that are at their defaults."""
    return lambda *given: run(*given, *defaults[len(given) - fixed :])


_register()
