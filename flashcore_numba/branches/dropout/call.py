"""`attention_dropout()` and `attention_dropout_backward()`: check arguments, choose a stage, run it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuda_reference.extras import explained
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.dropout.dropout import Dropout
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.calls import Written, adopted, check_limit_of_time, first_that_serves, refuse, run
from flashcore_numba.core.arrays import Adopted, adopt, same_kind
from flashcore_numba.core.output import LSE, OUT

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage


def attention_dropout(
    q: Any,
    k: Any,
    v: Any,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
    out: Any = None,
    stage: "str | Stage | None" = None,
    time_limit: float | None = None,
) -> tuple[Any, Any]:
    """dropout(softmax(scale * Q K^T)) V: with probability p an element of the softmax is dropped, and those
    that are kept are multiplied by 1 / (1 - p) (Srivastava et al. 2014, Dropout).

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], float16 or bfloat16, D 64 or 128: everything else about
    them is as for `attention`. p: 0 <= p < 1, rounded to a multiple of 2^-16, 1 - 2^-16 at most. seed: 0 to
    2^64 - 1. offset: a multiple of 4 below 2^34. `dropout_mask` says which elements are kept: it depends on
    seed, offset, batch, query head, row and key, and on nothing else. Each call of a training run needs an
    offset of its own, 4 more than the one before, as PyTorch's generators count.

    causal, scale, out, time_limit and streams are as for `attention`; a captured call has the same mask
    whenever its graph runs. stage: the key or name of a stage ("dropout/mma_sync") or a `Stage`; None is the
    one that serves the problem on this machine.

    Returns (out, lse), of the caller's kind and on its device: out [B, H, S_q, D] of q's type and lse float32
    [B, H, S_q]. The LSE is that of all scores, without dropout. A row that sees no key is zeros, its LSE is
    -inf. Raises ArgumentError for a bad argument and UnsupportedError when no stage serves the problem; then
    nothing has been written. Raises SimulationError as `attention` does.
    """
    arrays = {name: adopted(x, name, False) for name, x in (("q", q), ("k", k), ("v", v))}
    targets = {} if out is None else {"out": adopt(out, "out")}
    same_kind(**arrays, **targets)
    check_limit_of_time(time_limit, arrays["q"].view)
    problem = _problem(arrays, p, seed, offset, causal, scale)
    with explained():
        from flashcore_numba.branches.dropout import ladder
    chosen = _stage(stage, ladder.FORWARD, problem)
    written = Written((OUT, LSE), targets, packed=False)
    made, lse = run(chosen, chosen.called, problem, arrays, written, time_limit, None, ())
    return made, lse


def attention_dropout_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
    dlse: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    stage: "str | Stage | None" = None,
    time_limit: float | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of `attention_dropout(q, k, v, p=p, seed=seed, offset=offset, ...)`, under the same mask.

    q, k, v, p, seed, offset, causal and scale: as `attention_dropout` took them; out and lse: what it
    returned. dout, dlse, dq, dk, dv, time_limit, what is returned and what it holds are as for
    `attention_backward`; dQ is summed in the order in which blocks come. stage: the key or name of a stage
    ("dropout_backward/mma_sync") or a `Stage`. A captured call has the same mask whenever its graph runs.

    Raises as `attention_dropout` does.
    """
    given = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse, "dlse": dlse}
    arrays = {
        name: adopt(x, name) if name in ("lse", "dlse") else adopted(x, name, False)
        for name, x in given.items()
        if x is not None or name != "dlse"
    }
    wanted = {"dq": dq, "dk": dk, "dv": dv}
    targets = {name: adopted(x, name, False) for name, x in wanted.items() if x is not None}
    same_kind(**{"q": arrays["q"]} | arrays | targets)
    check_limit_of_time(time_limit, arrays["q"].view)
    forward = _problem(arrays, p, seed, offset, causal, scale)
    views = {name: arrays[name].view for name in ("out", "lse", "dout")}
    problem = BackwardProblem(forward, **views, dlse=arrays["dlse"].view if "dlse" in arrays else None)
    with explained():
        from flashcore_numba.branches.dropout import ladder
    chosen = _stage(stage, ladder.BACKWARD, problem)
    written = Written(GRADIENTS, targets, packed=False)
    made_dq, made_dk, made_dv = run(chosen, chosen.called, problem, arrays, written, time_limit, None, ())
    return made_dq, made_dk, made_dv


def _problem(
    arrays: dict[str, Adopted], p: Any, seed: Any, offset: Any, causal: Any, scale: Any
) -> DropoutProblem:
    q, k, v = (arrays[name].view for name in "qkv")
    return DropoutProblem(q, k, v, causal, scale, dropout=Dropout(p, seed, offset))


def _stage(selector: Any, stages: "Sequence[Stage]", problem: Any) -> "Stage":
    """The stage that runs. Raises ArgumentError or UnsupportedError."""
    from flashcore_numba.branches.dropout import ladder

    if selector is None:
        return first_that_serves(stages, stages, problem)
    chosen = ladder.find(selector, tuple(stages))
    refuse(chosen, problem)
    return chosen
