"""`attention()` and `attention_varlen()`: check arguments, choose a stage, run it where the arrays are."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from cuda_reference.shown import shown
from flashcore_numba.calls import (
    Written,
    adopted,
    check_given,
    check_limit_of_time,
    check_packed_shape,
    find_stage,
    first_that_serves,
    refuse,
    run,
    spine,
    told,
)
from flashcore_numba.core import gpu
from flashcore_numba.core.arrays import Adopted, same_kind
from flashcore_numba.core.element import FLOAT32
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import CALLED, OFF, Features
from flashcore_numba.core.output import LSE, OUT, Output
from flashcore_numba.core.problem import Problem, checked_flag
from flashcore_numba.run import plans
from flashcore_numba.stages.tuning.dispatch import ranking

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = OFF.window,
    softcap: float = OFF.softcap,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqused_k: Any = None,
    prior: "tuple[Any, Any] | None" = None,
    head_norm: "tuple[Any, float] | None" = None,
    gate: Any = None,
    keys_from: Any = None,
    stage: "int | str | Stage | None" = None,
    out: Any = None,
    return_lse: bool = False,
    time_limit: float | None = None,
) -> Any:
    """softmax(scale * Q K^T) V (Vaswani et al. 2017, section 3.2.1) by one stage of the ladder.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], all float16 or all bfloat16 (of NumPy and CuPy: that of
    ml_dtypes), of one kind in one place: NumPy, CuPy, PyTorch, Numba device arrays, or anything with
    `__cuda_array_interface__` or `__dlpack__`; nothing is copied, save inputs whose rows do not start at a
    multiple of 16 bytes (one extra read and write of each). NumPy arrays and CPU tensors run on the
    simulator, which also reports races and bad accesses. See `Problem` for shapes, strides and `scale`.

    causal: the last query row sees every key, and each row before it one key less: the mask is aligned
    bottom-right, as in FlashAttention. PyTorch's `is_causal` is aligned top-left, which differs where
    S_q != S_k.

    window, softcap, sinks, alibi_slopes, seqused_k: what models add, see `core.features.Features`; the arrays
    are of the kind of q and in the same place. Not every stage serves them.

    prior: (o, lse), float32 [B, H, S_q, D_v] and [B, H, S_q], natural logarithm: what this function returned
    for the same rows over other keys. The call then returns attention over both sets of keys, and the LSE
    over both. Where lse is -inf, the row has seen no key yet, and what o holds does not matter. Sinks must be
    given with one of the parts alone. The last dimension of both must be contiguous, and each row of o start
    at a multiple of 16 bytes.

    head_norm, gate: out is norm(attention) * sigmoid(gate), in this order. head_norm: (weight, eps) of an
    RMSNorm over the D_v columns of each head; the weight is float32 or of q's type, [D_v] or [H, D_v]. gate:
    [B, H, S_q, D_v] of q's type, strided like q, each row at a multiple of 16 bytes. The LSE knows neither.
    Of parts that are merged by `prior`, the last one takes them.

    keys_from: int32 [1] or [H_kv], on the device of q: k and v are still being copied to, the last keys
    first, and those from this number on are there, of all heads or of each; the kernel waits for the others
    as it needs them, and begins with the last heads. Only stage 15 does. The copies must not wait for this
    call, or for an SM: it may hold all of them until they are done.

    stage: a number, a name or a `Stage`; None is the one that was fastest at the recorded problem most like
    this one, of those that serve it on this machine (`dispatch`; `flashcore dispatch` shows the table).
    out: where to write, of the kind of q and of its type, or float32, in which nothing is rounded between
    parts that are merged by `prior`; it may be strided like q. It may be o of `prior`, the same array: each
    element is read by the thread that writes it. Otherwise it must not overlap an input.
    return_lse: also return the log-sum-exp of the scaled scores, float32 [B, H, S_q], natural logarithm.
    time_limit: of host arrays, seconds after which the simulator stops a kernel; None lets it run to its end,
    which Ctrl-C may bring nearer. An endless loop that changes nothing is found without a limit. On a GPU the
    call does not wait for its work, so a limit is refused there.

    Returns out [B, H, S_q, D_v] of q's type, or as given, or (out, lse), of the caller's kind and on its
    device. A row that sees no key is zeros, its LSE -inf, or the sink. On a GPU the work is queued on the
    caller's current stream (PyTorch's for tensors, otherwise CuPy's) and the call does not wait for it. The
    first call of a layout compiles and prepares the launches; later calls of the same layout only launch them
    (`run.plans`). Any call can be captured into a CUDA graph, the first one too: the kernels are its only
    nodes.

    A NaN or an infinity in an input is no error: the rows that see it hold what IEEE arithmetic makes of it,
    and so may rows whose mask hides it, because 0 * NaN is NaN. Sums are float32 and are divided last:
    bfloat16 values whose sum over the keys is beyond 3e38 become infinite.

    Raises ArgumentError for a bad argument and UnsupportedError when the stage does not serve the problem;
    then nothing has been written; MissingPackageError where Numba is not installed. Raises SimulationError,
    which names the line of the kernel, when the simulator saw a race, a bad access or, in a kernel in Numba,
    a NaN made of finite numbers, or stopped at the time limit; what `out` holds then is not the answer.
    """
    options: tuple = (causal, scale, stage, return_lse)
    if window is not OFF.window or softcap is not OFF.softcap:
        options += told(window, softcap)
    features: tuple = ()
    if sinks is not None or alibi_slopes is not None or seqused_k is not None or prior is not None:
        features = sinks, alibi_slopes, seqused_k
    prior_out = prior_lse = None
    if prior is not None:
        prior_out, prior_lse = _pair(prior)
        features += prior_out, prior_lse
        options += (out is prior_out,)
    norm_weight, norm_eps = None, 0.0
    if head_norm is not None or gate is not None:
        if head_norm is not None:
            norm_weight, norm_eps = _weight_and_eps(head_norm)
        features = sinks, alibi_slopes, seqused_k, prior_out, prior_lse, norm_weight, gate
        options += (norm_eps,)
    if keys_from is not None:
        features = sinks, alibi_slopes, seqused_k, prior_out, prior_lse, norm_weight, gate, keys_from
    found = plans.find(q, k, v, out, options, features) if time_limit is None else plans.NOT_SERVED
    key, addresses, plan = found
    if plan is not None and (done := plan.run(addresses, (q, k, v), (out, None))) is not None:
        return done if return_lse else done[0]
    call = _Call(causal, scale, window, softcap, stage, return_lse, time_limit, norm_eps)
    optional = {"sinks": sinks, "alibi_slopes": alibi_slopes, "seqused_k": seqused_k}
    optional |= {"prior_out": prior_out, "prior_lse": prior_lse, "norm_weight": norm_weight, "gate": gate}
    optional["keys_from"] = keys_from
    order = ("q", "k", "v", "out", *optional)[: len(addresses)]
    return call.run({"q": q, "k": k, "v": v}, optional, out, None if plan is not None else key, order)


def planned(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    window: tuple[int, int],
    softcap: float,
    sinks: Any,
    alibi_slopes: Any,
    seqused_k: Any,
    out: Any,
    return_lse: bool,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
) -> tuple | None:
    """(out, lse) of `attention`, or with cu_seqlens_q and cu_seqlens_k of `attention_varlen`, where an
    earlier call like this one left its plan, lse None or absent without `return_lse`. Otherwise None, and
    nothing was launched.

    The tensors may require gradients, of which the caller takes care: what is returned has no history.
    """
    options: tuple = (causal, scale, None, return_lse)
    if window is not OFF.window or softcap is not OFF.softcap:
        options += told(window, softcap)
    features: tuple = ()
    if sinks is not None or alibi_slopes is not None or seqused_k is not None:
        features = sinks, alibi_slopes, seqused_k
    if cu_seqlens_q is not None:
        features = sinks, alibi_slopes, seqused_k, cu_seqlens_q, cu_seqlens_k
    _, addresses, plan = plans.find(q, k, v, out, options, features, history=True)
    return None if plan is None else plan.run(addresses, (q, k, v), (out, None))


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
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
    head_norm: "tuple[Any, float] | None" = None,
    gate: Any = None,
    stage: "int | str | Stage | None" = None,
    out: Any = None,
    return_lse: bool = False,
    time_limit: float | None = None,
) -> Any:
    """Attention in each of B sequences of different lengths, packed one after the other without padding.

    q: [total_q, H, D], k and v: [total_k, H_kv, D]. cu_seqlens_q, cu_seqlens_k: int32 [B + 1], where the
    query rows and the keys of each sequence begin, and where the last ones end. A sequence may be empty on
    either side. The kernels read the lengths: on a GPU a captured call serves other lengths of the same
    totals, and nothing checks them; those of host arrays are checked. Rows after the last sequence are not
    written.

    Other arguments, what is returned and what is raised are as for `attention`, with out and gate
    [total_q, H, D] and the LSE [H, total_q]. seqused_k counts keys from the beginning of each sequence. There
    is no `prior`.
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
    options: tuple = (causal, scale, stage, return_lse)
    if window is not OFF.window or softcap is not OFF.softcap:
        options += told(window, softcap)
    norm_eps = 0.0
    if head_norm is not None or gate is not None:
        norm_weight = None
        if head_norm is not None:
            norm_weight, norm_eps = _weight_and_eps(head_norm)
        features |= {"norm_weight": norm_weight, "gate": gate}
        options += (norm_eps,)
    others = tuple(features.values())
    found = plans.find(q, k, v, out, options, others) if time_limit is None else plans.NOT_SERVED
    key, addresses, plan = found
    if plan is not None and (done := plan.run(addresses, (q, k, v), (out, None))) is not None:
        return done if return_lse else done[0]
    call = _Call(causal, scale, window, softcap, stage, return_lse, time_limit, norm_eps, packed=True)
    order = ("q", "k", "v", "out", *features)
    return call.run({"q": q, "k": k, "v": v}, features, out, None if plan is not None else key, order)


def _pair(prior: Any) -> tuple[Any, Any]:
    """Both arrays. Raises ArgumentError unless there are two."""
    if not isinstance(prior, tuple | list) or len(prior) != 2 or any(each is None for each in prior):
        raise ArgumentError(
            f"prior is {shown(prior)}: it must be (o, lse), what attention over other keys returned, or None"
        )
    return prior[0], prior[1]


def _weight_and_eps(head_norm: Any) -> tuple[Any, Any]:
    """Both. Raises ArgumentError unless there are two."""
    if not isinstance(head_norm, tuple | list) or len(head_norm) != 2 or head_norm[0] is None:
        raise ArgumentError(
            f"head_norm is {shown(head_norm)}: it must be (weight, eps), of an RMSNorm over the columns of a "
            "head, or None"
        )
    return head_norm[0], head_norm[1]


class _Call(NamedTuple):
    """The arguments of a call that are no arrays."""

    causal: Any
    scale: Any
    window: Any
    softcap: Any
    stage: Any
    return_lse: Any
    time_limit: Any
    norm_eps: Any
    packed: bool = False  # arrays are [total, H, D]

    def run(
        self,
        given: dict[str, Any],
        optional: dict[str, Any],
        out: Any,
        key: tuple | None,
        order: tuple[str, ...],
    ) -> Any:
        """Check everything and `calls.run`."""
        wants_lse = checked_flag("return_lse", self.return_lse)
        chosen = None if self.stage is None else find_stage(self.stage)
        arrays = {name: adopted(array, name, self.packed) for name, array in given.items()}
        given_too = {name: array for name, array in optional.items() if array is not None}
        added = {
            name: adopted(array, CALLED.get(name, name), self.packed and name == "gate")
            for name, array in given_too.items()
        }
        if self.packed and "gate" in added:
            q, v = (arrays[name].view for name in "qv")
            check_packed_shape("gate", added["gate"].view, (*q.shape[:3], v.shape[3]))
        targets = {} if out is None else {"out": adopted(out, "out", self.packed)}
        same_kind(**arrays, **{CALLED.get(name, name): x for name, x in added.items()}, **targets)
        check_limit_of_time(self.time_limit, arrays["q"].view)
        problem = self._problem(arrays, added, targets)
        wanted = (LSE,) if wants_lse else ()
        if chosen is None:
            chosen = best_stage(problem, wanted)
        else:
            refuse(chosen, problem, wanted)
        in_place = {"out": "prior_out"} if out is not None and out is optional.get("prior_out") else {}
        written = Written((OUT, *wanted), targets, self.packed, in_place, added)
        arrays |= {name: added[name] for name in problem.features.prior | problem.features.epilogue}
        done = run(chosen, chosen.called, problem, arrays, written, self.time_limit, key, order)
        return done if wants_lse else done[0]

    def _problem(
        self, arrays: dict[str, Adopted], added: dict[str, Adopted], targets: dict[str, Adopted]
    ) -> Problem:
        views = {name: array.view for name, array in added.items()}
        float32_out = any(target.view.dtype == FLOAT32.dtype for target in targets.values())
        features = Features(
            self.window, self.softcap, float32_out=float32_out, norm_eps=self.norm_eps, **views
        )
        q, k, v = (array.view for array in arrays.values())
        problem = Problem(q, k, v, self.causal, self.scale, features)
        for name, target in targets.items():
            if (dtype := target.view.dtype) not in (q.dtype, FLOAT32.dtype):
                only = f"only {q.dtype.name} and float32 are accepted"
                raise ArgumentError(f"{name} has dtype {str(dtype)[:100]}: {only}")
        if not problem.on_gpu:
            problem.features.check_lengths(q, k)
        return problem


def best_stage(problem: Problem, outputs: tuple[Output, ...] = ()) -> "Stage":
    """The fastest stage, by the table of `dispatch`, that serves the problem on this machine; for few query
    rows over many keys on a GPU one of decoding.

    outputs: what is wanted beside the outputs that are always written. Raises UnsupportedError when no stage
    does; one without recorded times must be named to run.
    """
    capability = gpu.compute_capability(problem.q.device.id) if problem.on_gpu else None
    rows, keys = problem.batch * problem.heads * problem.seq_q, problem.seq_k
    if problem.features.ragged:
        keys = -(-keys // problem.sequence_count)  # of a sequence, on average
    stages = {stage.number: stage for stage in spine()}
    numbers = ranking(capability, problem.causal, problem.head_dim, rows, keys)
    few_rows = import_module("flashcore_numba.branches.decode.few_rows")  # which is above the spine
    ranked = [*few_rows.preferred(problem), *(stages[number] for number in numbers if number in stages)]
    return first_that_serves(ranked, spine(), problem, outputs)
