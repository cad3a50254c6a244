"""`attention_backward()` and `attention_varlen_backward()`: check arguments, choose a stage, run it."""

from dataclasses import replace
from typing import Any, NamedTuple

from cuda_reference.extras import explained
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem, check_contiguous
from flashcore_numba.calls import (
    Written,
    adopted,
    as_packed,
    check_given,
    check_limit_of_time,
    check_packed_shape,
    first_that_serves,
    refuse,
    run,
    told,
)
from flashcore_numba.core.arrays import Adopted, adopt, same_kind
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem, checked_flag
from flashcore_numba.run import plans

ORDER = ("q", "k", "v", "dq", "dout", "out", "lse", "dlse", "dk", "dv")  # as `plans.find` is given them


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = OFF.window,
    softcap: float = OFF.softcap,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqused_k: Any = None,
    dlse: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    deterministic: bool = False,
    stage: Any = None,
    time_limit: float | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of `attention(q, k, v, ...)` (Dao et al. 2022, FlashAttention, algorithm 4).

    q, k, v, and the arguments from causal to seqused_k: as `attention` took them. out [B, H, S_q, D_v] and
    lse float32 [B, H, S_q]: what it returned with `return_lse=True`. dout: the gradient of the loss by out,
    of its shape and type. dlse: the gradient by lse, float32 [B, H, S_q], finite also where lse is -inf; None
    is zero.

    dq, dk, dv: where to write, of the kind, type and shape of q, k and v, each row at a multiple of 16 bytes.
    deterministic: the same input gives the same bits again. Otherwise a stage may add the parts of dQ in the
    order in which blocks come, which differs from run to run in the last bits.
    stage: the key of a stage of the backward pass ("backward/mma_sync") or a `Stage`; None is the first
    in `ladder.preferred` that serves the problem on this machine.

    Returns (dq, dk, dv) of q's type, of the caller's kind and on its device. A row that sees no key and a key
    that no row sees have gradients of zero. Where dS = P (dP - D) is beyond the type (65504 in float16), as
    large scales of the loss can make it, gradients hold infinities or NaN. time_limit, streams and capture
    are as for `attention`.

    Raises ArgumentError for a bad argument and UnsupportedError when no stage serves the problem; then
    nothing has been written. Raises SimulationError as `attention` does.
    """
    features = {"sinks": sinks, "alibi_slopes": alibi_slopes, "seqused_k": seqused_k}
    call = _Call(causal, scale, window, softcap, deterministic, stage, time_limit)
    arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse, "dlse": dlse}
    return call(arrays, features, {"dq": dq, "dk": dk, "dv": dv})


def planned(
    arrays: tuple,
    features: tuple,
    targets: tuple,
    causal: bool,
    scale: float | None,
    window: tuple[int, int],
    softcap: float,
    deterministic: bool,
) -> tuple[Any, Any, Any] | None:
    """What `attention_backward`, or `attention_varlen_backward`, returns where an earlier call like this one
    left its plan. Otherwise None, and nothing was launched. The tensors may require gradients, of which the
    caller takes care.

    arrays: dout, q, k, v, out, lse, dlse. features: sinks, alibi_slopes, seqused_k, and of packed sequences
    cu_seqlens_q, cu_seqlens_k; () where all are None. targets: dq, dk, dv.
    """
    wanted = (causal, scale, window, softcap, deterministic, None)
    _, addresses, plan = _find(arrays, features, targets, *wanted, history=True)
    return None if plan is None else plan.run(addresses, arrays[1:4], targets)


def _find(
    arrays: tuple,
    features: tuple,
    targets: tuple,
    causal: Any,
    scale: Any,
    window: Any,
    softcap: Any,
    deterministic: Any,
    stage: Any,
    history: bool = False,
) -> tuple:
    """`plans.find` for arrays, features and targets as `planned` takes them. Its addresses are in `ORDER`,
    followed by the features; they end after lse where nothing later is given.
    """
    options: tuple = ("backward", causal, scale, deterministic, stage)
    if window is not OFF.window or softcap is not OFF.softcap:
        options += told(window, softcap)
    dout, q, k, v, out, lse, dlse = arrays
    dq, dk, dv = targets
    others = (dout, out, lse)
    if features or dlse is not None or dk is not None or dv is not None:
        others += (dlse, dk, dv, *features)
    return plans.find(q, k, v, dq, options, others, history)


def attention_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = OFF.window,
    softcap: float = OFF.softcap,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqused_k: Any = None,
    dlse: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    deterministic: bool = False,
    stage: Any = None,
    time_limit: float | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of `attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, ...)`.

    q, out, dout, dq: [total_q, H, D]; k, v, dk, dv: [total_k, H_kv, D]; lse, dlse: float32 [H, total_q]. Rows
    outside all sequences are not written. Everything else is as for `attention_backward`.
    """
    features = {
        "sinks": sinks,
        "alibi_slopes": alibi_slopes,
        "seqused_k": seqused_k,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        check_given(name, features[name])
    call = _Call(causal, scale, window, softcap, deterministic, stage, time_limit, packed=True)
    arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse, "dlse": dlse}
    return call(arrays, features, {"dq": dq, "dk": dk, "dv": dv})


class _Call(NamedTuple):
    """The arguments of a call that are no arrays."""

    causal: Any
    scale: Any
    window: Any
    softcap: Any
    deterministic: Any
    stage: Any
    time_limit: Any
    packed: bool = False  # arrays are [total, H, D]

    def __call__(
        self, given: dict[str, Any], optional: dict[str, Any], targets: dict[str, Any]
    ) -> tuple[Any, Any, Any]:
        """By a plan that an earlier call left, or the long way."""
        arrays, outputs = tuple(given.values()), tuple(targets.values())
        features = tuple(optional.values())
        if all(x is None for x in features):
            features = ()
        key, addresses, plan = plans.NOT_SERVED
        if self.time_limit is None:
            wanted = (self.causal, self.scale, self.window, self.softcap, self.deterministic, self.stage)
            key, addresses, plan = _find(arrays, features, outputs, *wanted)
        done = None if plan is None else plan.run(addresses, arrays[1:4], outputs)
        if done is None:
            order = (*ORDER, *optional)[: len(addresses)]
            done = self.run(given, optional, targets, None if plan is not None else key, order)
        dq, dk, dv = done
        return dq, dk, dv

    def run(
        self,
        given: dict[str, Any],
        optional: dict[str, Any],
        targets: dict[str, Any],
        key: tuple | None,
        order: tuple[str, ...],
    ) -> tuple[Any, ...]:
        """Check everything and `calls.run`."""
        deterministic = checked_flag("deterministic", self.deterministic)
        arrays = {
            name: self._adopted(x, name) for name, x in given.items() if x is not None or name != "dlse"
        }
        added = {name: adopt(x, name) for name, x in optional.items() if x is not None}
        wanted = {name: adopted(x, name, self.packed) for name, x in targets.items() if x is not None}
        same_kind(**{"q": arrays["q"]} | arrays | added | wanted)
        check_limit_of_time(self.time_limit, arrays["q"].view)
        problem = self._problem(arrays, added)
        stage, variant = self._stage(problem, deterministic)
        written = Written(GRADIENTS, wanted, self.packed, apart=added)
        return run(stage, variant, problem, arrays, written, self.time_limit, key, order)

    def _adopted(self, array: Any, name: str) -> Adopted:
        """With a view [B, H, S, D], or [B, H, S_q] of an LSE."""
        if name not in ("lse", "dlse"):
            return adopted(array, name, self.packed)
        found = adopt(array, name)
        if not self.packed:
            return found
        if found.view.ndim != 2:
            shape = tuple(found.view.shape)
            raise ArgumentError(f"{name} has shape {shape}: two dimensions are needed, [heads, total]")
        return replace(found, view=found.view[None])

    def _problem(self, arrays: dict[str, Adopted], added: dict[str, Adopted]) -> BackwardProblem:
        views = {name: array.view for name, array in added.items()}
        features = Features(self.window, self.softcap, **views)
        q, k, v, out, lse, dout = (arrays[name].view for name in ("q", "k", "v", "out", "lse", "dout"))
        forward = Problem(q, k, v, self.causal, self.scale, features)
        if not forward.on_gpu:
            forward.features.check_lengths(q, k)
        if self.packed:
            for name, like in (("out", OUT), ("dout", OUT), ("lse", LSE), ("dlse", LSE)):
                if name in arrays:
                    view = arrays[name].view
                    check_packed_shape(name, view, like.shape(forward))
                    if like is LSE:
                        check_contiguous(name, view, as_packed(view.strides))
        dlse = arrays["dlse"].view if "dlse" in arrays else None
        return BackwardProblem(forward, out, lse, dout, dlse)

    def _stage(self, problem: BackwardProblem, deterministic: bool) -> tuple[Any, str | None]:
        """The stage that runs, and its variant. Raises ArgumentError or UnsupportedError."""
        with explained():
            from flashcore_numba.branches.backward import ladder
        if self.stage is None:
            able = tuple(ladder.DETERMINISTIC) if deterministic else ladder.LADDER
            ranked = [each for each in ladder.preferred(problem) if each in able]
            try:
                chosen = first_that_serves(ranked, able, problem)
            except UnsupportedError as error:
                if not deterministic:
                    raise
                raise UnsupportedError(f"with deterministic=True {error}") from None
        else:
            chosen = ladder.find(self.stage)
            refuse(chosen, problem)
        return chosen, ladder.variant_of(chosen, deterministic)
