"""`attention_paged()`: check arguments, choose a stage, run it where the arrays are."""

from typing import TYPE_CHECKING, Any, NamedTuple

from cuda_reference.extras import explained
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.calls import (
    Written,
    check_limit_of_time,
    first_that_serves,
    refuse,
    run,
    told,
)
from flashcore_numba.core.arrays import Adopted, adopt, same_kind
from flashcore_numba.core.features import OFF
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import checked_flag
from flashcore_numba.core.scaled import SCALES, is_number
from flashcore_numba.run import plans

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage

GIVEN = ("q", "k_pool", "v_pool", "block_table", "lengths")
# As `plans.find` is given them.
ORDER = ("q", "k_pool", "v_pool", "out", "block_table", "lengths", "sinks", *SCALES)


def attention_paged(
    q: Any,
    k_pool: Any,
    v_pool: Any,
    block_table: Any,
    lengths: Any,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: tuple[int, int] = OFF.window,
    softcap: float = OFF.softcap,
    sinks: Any = None,
    batch_invariant: bool = False,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    stage: "str | Stage | None" = None,
    out: Any = None,
    return_lse: bool = False,
    time_limit: float | None = None,
) -> Any:
    """Attention of some query tokens of each request over its keys and values, which are in pages.

    q: [B, H, S_q, D], float16 or bfloat16: the S_q newest tokens of each of B requests. k_pool:
    [pages, page, H_kv, D], v_pool: [pages, page, H_kv, D_v], of q's type or of e4m3: key j of request b is
    slot j % page of page block_table[b, j // page]. block_table: int32 [B, width]; lengths: int32 [B], the
    keys of each request, those of the query tokens included, 0 to width * page. A page may hold any number of
    keys, and any strides with contiguous rows will do: views of [pages, 2, page, H_kv, D] or of
    [pages, H_kv, page, 2 D] are fine. Arrays are of one kind in one place, as for `attention`; nothing is
    copied, save q and pools whose rows do not start at multiples of 16 bytes, which are copied whole.

    What is in pages that no request uses, in slots past a request's last key and in the table past its last
    page is not looked at. The kernels read lengths and table: on a GPU a captured call serves other contents,
    and nothing checks them; those of host arrays are checked.

    causal: the last query token sees every key, each one before it one key less. window, softcap, sinks: see
    `core.features.Features`. batch_invariant: the bits of a request's output depend on nothing but that
    request: not on the others, nor on how wide the table is.

    k_scale, v_scale: of pools of e4m3, which are arrays of float8_e4m3fn, or of its bytes as uint8: a key is
    what is stored times k_scale, a value times v_scale. Each is a number above 0, for all heads, or float32
    [H_kv] of any stride, which kernels read and nothing checks.

    stage: the name or key of a stage of decoding ("decode/chunks") or a `Stage`; None is the first in
    `ladder.preferred` that serves the problem on this machine. out: where to write, [B, H, S_q, D_v],
    each row at a multiple of 16 bytes. return_lse: also return the log-sum-exp of the scaled scores, float32
    [B, H, S_q], natural logarithm, with the sink. time_limit, streams and capture are as for `attention`.

    Returns out of q's type, or (out, lse), of the caller's kind and on its device. A token that sees no key
    has zeros, its LSE is -inf, or the sink. `merge` makes one of two calls over different keys: over a prefix
    that requests share, and over what follows it.

    Raises ArgumentError for a bad argument and UnsupportedError when no stage serves the problem; then
    nothing has been written. Raises SimulationError as `attention` does.
    """
    options = (
        *("decode", causal, scale, batch_invariant, stage, return_lse),
        *told(window, softcap),
        *(each if is_number(each) else None for each in (k_scale, v_scale)),
    )
    others = (
        *(block_table, lengths, sinks),
        *(None if is_number(each) else each for each in (k_scale, v_scale)),
    )
    found = plans.find(q, k_pool, v_pool, out, options, others) if time_limit is None else plans.NOT_SERVED
    key, addresses, plan = found
    if plan is not None and (done := plan.run(addresses, (q, k_pool, v_pool), (out, None))) is not None:
        return done if return_lse else done[0]
    call = _Call(
        causal, scale, window, softcap, batch_invariant, k_scale, v_scale, stage, return_lse, time_limit
    )
    given = dict(zip(GIVEN, (q, k_pool, v_pool, block_table, lengths), strict=True))
    return call.run(given, sinks, out, None if plan is not None else key)


class _Call(NamedTuple):
    """The arguments of a call that are no arrays."""

    causal: Any
    scale: Any
    window: Any
    softcap: Any
    batch_invariant: Any
    k_scale: Any
    v_scale: Any
    stage: Any
    return_lse: Any
    time_limit: Any

    def run(self, given: dict[str, Any], sinks: Any, out: Any, key: tuple | None) -> Any:
        """Check everything and `calls.run`."""
        wants_lse = checked_flag("return_lse", self.return_lse)
        arrays = {name: adopt(array, name, name.endswith("pool")) for name, array in given.items()}
        if sinks is not None:
            arrays["sinks"] = adopt(sinks, "sinks")
        scales = {name: getattr(self, name) for name in SCALES}
        arrays |= {name: adopt(scale, name) for name, scale in scales.items() if not is_number(scale)}
        targets = {} if out is None else {"out": adopt(out, "out")}
        same_kind(**arrays, **targets)
        check_limit_of_time(self.time_limit, arrays["q"].view)
        problem = self._problem(arrays)
        wanted = (LSE,) if wants_lse else ()
        stage = self._stage(problem, wanted)
        written = Written((OUT, *wanted), targets, packed=False)
        done = run(stage, stage.called, problem, arrays, written, self.time_limit, key, ORDER)
        return done if wants_lse else done[0]

    def _problem(self, arrays: dict[str, Adopted]) -> DecodeProblem:
        views = {name: each.view for name, each in arrays.items()}
        names = ("causal", "scale", "window", "softcap", "batch_invariant", *SCALES)
        options = {name: getattr(self, name) for name in names}
        problem = DecodeProblem(**options | views)
        if not problem.on_gpu:
            problem.check_table()
        return problem

    def _stage(self, problem: DecodeProblem, wanted: tuple) -> Any:
        """The stage that runs. Raises ArgumentError or UnsupportedError."""
        with explained():
            from flashcore_numba.branches.decode import ladder
        if self.stage is None:
            return first_that_serves(ladder.preferred(problem), ladder.LADDER, problem, wanted)
        chosen = ladder.find(self.stage)
        refuse(chosen, problem, wanted)
        return chosen
