"""`write_kv_pages()`: what a layer does between its projections and attention over pages, in one launch."""

from typing import Any

from cuda_reference.extras import explained
from flashcore_numba.branches.prepare.outputs import WRITTEN
from flashcore_numba.branches.prepare.problem import NAMES, PrepareProblem
from flashcore_numba.calls import Written, adopted, check_limit_of_time, refuse, run
from flashcore_numba.core.arrays import adopt, same_kind
from flashcore_numba.core.element import E4M3
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import ALIGNMENT
from flashcore_numba.core.scaled import SCALES, is_e4m3, is_number
from flashcore_numba.run import plans

ORDER = ("q", "k", "v", "out", "k_pool", "v_pool", *NAMES, *SCALES)  # as `plans.find` is given them


def write_kv_pages(
    q: Any,
    k: Any,
    v: Any,
    k_pool: Any,
    v_pool: Any,
    slot_mapping: Any,
    *,
    positions: Any = None,
    cos: Any = None,
    sin: Any = None,
    interleaved: bool = False,
    norm_eps: float | None = None,
    q_weight: Any = None,
    k_weight: Any = None,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    out: Any = None,
    time_limit: float | None = None,
) -> Any:
    """RMSNorm and RoPE of the rows of Q and K, and the rows of K and V written into pages, in one launch.

    q: [tokens, H, D]; k, v: [tokens, H_kv, D], float16 or bfloat16, D 64, 128 or 256, for example views of
    one array of packed projections. k_pool, v_pool: [pages, page, H_kv, D], written where tokens have slots.
    All of them may have any strides as long as a row of D is contiguous. slot_mapping: int64 or int32
    [tokens]: slot s is slot s % page of page s // page. A token with the slot -1 is padding: nothing of it is
    written.

    positions: int32 [tokens], rows of cos and sin, float32 [positions, R / 2], for RoPE of the first R
    columns, R a multiple of 16; without the three nothing is rotated. interleaved: pairs are columns 2i and
    2i + 1 (GPT-J) instead of i and i + R / 2 (Llama, GPT-NeoX). norm_eps: for RMSNorm before it, of each
    head's row by itself; None is no norm. q_weight, k_weight: float32 [D], None for ones.

    k_scale, v_scale: of pools of e4m3, arrays of float8_e4m3fn or of its bytes as uint8, which get rows of K
    times 1 / k_scale and rows of V times 1 / v_scale, in float32, then rounded to nearest even, and 448 where
    they are beyond it. Each is a number above 0, for all heads, or float32 [H_kv] of any stride, which the
    kernel reads and nothing checks.

    out: where the rows of Q go, like q, or q itself for in place; None is new memory, whose rows of padding
    hold anything. Arithmetic is float32, rounded once. Returns out, of the caller's kind. time_limit, streams
    and capture are as for `attention`.

    Raises ArgumentError for a bad argument, on the host also for slots and positions that lead out of pools
    and tables and for a slot given twice; on a GPU their numbers are not read: a slot outside the pools is
    padding. Raises UnsupportedError for what the kernel does not serve; then nothing has been written.
    """
    arrays_of_scales = [None if is_number(each) else each for each in (k_scale, v_scale)]
    others = (k_pool, v_pool, slot_mapping, positions, cos, sin, q_weight, k_weight, *arrays_of_scales)
    numbers = [each if is_number(each) else None for each in (k_scale, v_scale)]
    options = ("prepare", out is q, interleaved, norm_eps, time_limit, *numbers)
    key, addresses, plan = plans.find(q, k, v, out, options, others)
    # A plan is kept by layout, which says nothing of where float32 arrays begin.
    if plan is not None and not any(place % ALIGNMENT for place in addresses[-6:-2]):
        done = plan.run(addresses, (q, k, v), (out, k_pool, v_pool))
        if done is not None:
            return done[0]
    if plan is not None:
        key = None
    with explained():
        from flashcore_numba.branches.prepare.prepare_pages import STAGE
    for name, scale in zip(SCALES, (k_scale, v_scale), strict=True):
        if scale is None:
            raise ArgumentError(f"{name} is None: it must be a number, or float32 [H_kv]")

    rows = {name: adopted(x, name, True) for name, x in (("q", q), ("k", k), ("v", v))}
    given = zip((*NAMES, *SCALES), others[2:], strict=True)
    added = {name: adopt(x, name) for name, x in given if x is not None or name == "slot_mapping"}
    targets = {"k_pool": adopt(k_pool, "k_pool", True), "v_pool": adopt(v_pool, "v_pool", True)}
    if out is not None:
        targets["out"] = adopted(out, "out", True)
    same_kind(**rows, **added, **targets)
    check_limit_of_time(time_limit, rows["q"].view)
    shape = tuple(targets["k_pool"].view.shape)
    if len(shape) != 4:
        raise ArgumentError(f"k_pool has shape {shape}: four dimensions are needed, [pages, page, H_kv, D]")
    arrays = {name: each.view for name, each in (rows | added).items()}
    if (stored := targets["k_pool"].view.dtype) != arrays["q"].dtype and not is_e4m3(stored):
        raise ArgumentError(
            f"k_pool has dtype {str(stored)[:100]}: accepted are {arrays['q'].dtype.name}, as q has, and "
            f"{E4M3.name}"
        )
    pages, page = shape[:2]
    found: dict[str, Any] = {"pages": pages, "page": page, "interleaved": interleaved, "norm_eps": norm_eps}
    found |= {name: each for name, each in zip(SCALES, numbers, strict=True) if each is not None}
    problem = PrepareProblem(**arrays, **found, stored=stored if is_e4m3(stored) else None)
    refuse(STAGE, problem)
    written = Written(WRITTEN, targets, True, {"out": "q"} if out is q else {})
    return run(STAGE, None, problem, rows | added, written, time_limit, key, ORDER)[0]
