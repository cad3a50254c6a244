"""`attention_fp8()`: check arguments, choose a stage, run it where the arrays are."""

from typing import TYPE_CHECKING, Any

from cuda_reference.extras import explained
from flashcore_numba.attention import best_stage
from flashcore_numba.branches.fp8.problem import Fp8Problem
from flashcore_numba.calls import (
    Written,
    adopted,
    check_limit_of_time,
    first_that_serves,
    refuse,
    run,
)
from flashcore_numba.core.arrays import adopt, same_kind
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem, checked_flag
from flashcore_numba.run import plans

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage

ORDER = ("q", "k", "v", "out")  # as `plans.find` is given them


def attention_fp8(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    stage: "str | Stage | None" = None,
    out: Any = None,
    return_lse: bool = False,
    time_limit: float | None = None,
) -> Any:
    """softmax(scale * Q K^T) V with both products in e4m3, which Hopper multiplies twice as fast as halves.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], float16 or bfloat16, D 64 or 128: everything else about
    them is as for `attention`. They are quantised on the way: a row of Q and 128 rows of K have one scale
    after a Hadamard transform, 128 rows of V a power of 2. For normal inputs the error is about 5 % of the
    outputs, in the root mean square, and large scores make it larger (docs/fp8.md). Numbers of bfloat16 below
    2^-100 lose their precision, and Q and K beyond 2^120 overflow.

    causal, scale, out, return_lse, time_limit, streams and capture are as for `attention`. stage: the key or
    name of a stage ("fp8/wgmma") or a `Stage`; None is the one that serves the problem on this machine.

    Returns out [B, H, S_q, D] of q's type, or (out, lse), of the caller's kind and on its device; a row that
    sees no key is zeros, its LSE -inf. Raises ArgumentError for a bad argument and UnsupportedError when no
    stage serves the problem, which names a stage of `attention` that does; then nothing has been written.
    Raises SimulationError as `attention` does.
    """
    options = ("fp8", causal, scale, stage, return_lse)
    key, addresses, plan = plans.find(q, k, v, out, options, ()) if time_limit is None else plans.NOT_SERVED
    if plan is not None and (done := plan.run(addresses, (q, k, v), (out, None))) is not None:
        return done if return_lse else done[0]
    wants_lse = checked_flag("return_lse", return_lse)
    arrays = {name: adopted(x, name, False) for name, x in (("q", q), ("k", k), ("v", v))}
    targets = {} if out is None else {"out": adopt(out, "out")}
    same_kind(**arrays, **targets)
    check_limit_of_time(time_limit, arrays["q"].view)
    problem = Fp8Problem(arrays["q"].view, arrays["k"].view, arrays["v"].view, causal, scale)
    wanted = (LSE,) if wants_lse else ()
    chosen = _stage(stage, problem, wanted)
    written = Written((OUT, *wanted), targets, packed=False)
    done = run(
        chosen, chosen.called, problem, arrays, written, time_limit, None if plan is not None else key, ORDER
    )
    return done if wants_lse else done[0]


def _stage(selector: Any, problem: Problem, wanted: tuple) -> "Stage":
    """The stage that runs. Raises ArgumentError or UnsupportedError."""
    with explained():
        from flashcore_numba.branches.fp8 import ladder
    chosen = None if selector is None else ladder.find(selector)
    try:
        if chosen is None:
            return first_that_serves(ladder.LADDER, ladder.LADDER, problem, wanted)
        refuse(chosen, problem, wanted)
        return chosen
    except UnsupportedError as error:
        able = best_stage(problem, wanted).label
        raise UnsupportedError(f"{error}; attention() does not quantise: its stage {able} can") from None
