"""`attention_norm()`: attention, the residual and the norm of a layer in one launch, where the arrays are."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cuda_reference.extras import explained
from flashcore_numba.branches.epilogue.outputs import OUT, SUMMED
from flashcore_numba.branches.epilogue.problem import NAMES, EpilogueProblem
from flashcore_numba.calls import Written, adopted, check_limit_of_time, refuse, run
from flashcore_numba.core.arrays import Adopted, adopt, same_kind
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.problem import check_layout, checked_flag
from flashcore_numba.run import plans

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage

ORDER = ("q", "k", "v", "out", *NAMES)  # as `plans.find` is given them


def attention_norm(
    q: Any,
    k: Any,
    v: Any,
    residual: Any,
    weight: Any,
    bias: Any = None,
    *,
    norm: str = "layer",
    eps: float = 1e-5,
    causal: bool = False,
    scale: float | None = None,
    stage: "str | Stage | None" = None,
    out: Any = None,
    return_sum: bool = False,
    time_limit: float | None = None,
) -> Any:
    """norm(residual + softmax(scale * Q K^T) V) * weight + bias over all N = H * D columns of a row, at once.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], float16 or bfloat16, H up to 16, D 64 or 128: everything
    else about them is as for `attention`. residual: [B, S_q, N], rows contiguous, or None for none; column
    h * D + d is added to column d of head h. weight, bias: [N]; no bias: None. All are of q's type. norm:
    "layer", (x - mean) / sqrt(variance + eps), or "rms", x / sqrt(mean square + eps). Arithmetic is float32:
    what attention gives is not rounded before the norm. Where the squares of a row of bfloat16 add up to more
    than 3e38, out is the bias; numbers beyond about 1e37 may make it NaN.

    causal, scale, time_limit, streams and capture are as for `attention`. stage: "epilogue/norm", or a
    `Stage`; None is the same. out: [B, S_q, N] of q's type.

    Returns out [B, S_q, N], or with return_sum (out, residual + attention), both of q's type, of the caller's
    kind and on its device. Raises ArgumentError for a bad argument and UnsupportedError for what the kernel
    does not serve; then nothing has been written. Raises SimulationError as `attention` does.
    """
    options = ("epilogue", norm, eps, causal, scale, stage, return_sum)
    key, addresses, plan = plans.NOT_SERVED
    if time_limit is None:
        key, addresses, plan = plans.find(q, k, v, out, options, (residual, weight, bias))
    if plan is not None and (done := plan.run(addresses, (q, k, v), (out, None))) is not None:
        return _returned(done, out, return_sum)
    wants_sum = checked_flag("return_sum", return_sum)
    arrays = {name: adopted(x, name, False) for name, x in (("q", q), ("k", k), ("v", v))}
    given = zip(NAMES, (residual, weight, bias), strict=True)
    arrays |= {name: adopt(x, name) for name, x in given if x is not None}
    targets = {} if out is None else {"out": adopt(out, "out")}
    same_kind(**arrays, **targets)
    check_limit_of_time(time_limit, arrays["q"].view)
    rows = {name: _of_one_head(each, name) for name, each in (arrays | targets).items() if name in ROWS}
    arrays |= {name: each for name, each in rows.items() if name in arrays}
    targets = {name: rows[name] for name in targets}
    views = {name: each.view for name, each in arrays.items()}
    problem = EpilogueProblem(**views, causal=causal, scale=scale, norm=norm, eps=eps)
    for each in targets.values():
        (batch, _, *found), (_, _, *right) = each.view.shape, OUT.shape(problem)
        if (batch, *found) != (problem.batch, *right):
            raise ArgumentError(
                f"out has shape {(batch, *found)}: it must be {(problem.batch, *right)}, the rows of q with "
                "the columns of all heads"
            )
    wanted = (SUMMED,) if wants_sum else ()
    chosen = _stage(stage, problem, wanted)
    written = Written((OUT, *wanted), targets, packed=False)
    keep = None if plan is not None else key
    done = run(chosen, chosen.called, problem, arrays, written, time_limit, keep, ORDER)
    return _returned(done, out, wants_sum)


ROWS = ("residual", "out")


def _of_one_head(rows: Adopted, name: str) -> Adopted:
    """[B, S, N] seen as [B, 1, S, N], which kernels' arrays are."""
    if rows.view.ndim != 3:
        shape = tuple(rows.view.shape)
        raise ArgumentError(f"{name} has shape {shape}: three dimensions are needed, [B, S_q, H * D]")
    check_layout(name, rows.view, ("batch", "row"), last="H * D")
    return replace(rows, view=rows.view[None].swapaxes(0, 1))


def _returned(done: tuple, out: Any, both: bool) -> Any:
    """What was made, [B, 1, S, N], as [B, S, N]; what the caller gave as it is."""
    found = [x if x is out else _without_heads(x) for x in done[: 1 + both]]
    return tuple(found) if both else found[0]


def _without_heads(x: Any) -> Any:
    shape = (x.shape[0], *x.shape[2:])
    if hasattr(x, "reshape"):
        return x.reshape(*shape)
    return x.__array_namespace__().reshape(x, shape)  # the array API standard asks for no method


def _stage(selector: Any, problem: EpilogueProblem, wanted: tuple) -> "Stage":
    """The stage that runs. Raises ArgumentError or UnsupportedError."""
    with explained():
        from flashcore_numba.branches.epilogue.epilogue_norm import STAGE
        from flashcore_numba.stages.find import find_in

    chosen = STAGE if selector is None else find_in((STAGE,), selector, "epilogue", "attention with a norm")
    try:
        refuse(chosen, problem, wanted)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; attention() and a norm after it serve more") from None
    return chosen
