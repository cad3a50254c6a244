"""What must hold of decoding whatever the input: relations between answers to related inputs.

`run(inputs, **how) -> Answer` with out and lse; each property returns the smallest margin (allowed / error)
it saw, infinity where bits are compared.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.bounds import reference
from flashcore_numba.branches.decode.cache import Cache
from flashcore_numba.branches.decode.inputs import DecodeInputs, paged, poisoned, shuffled
from flashcore_numba.branches.decode.merging import merged
from flashcore_numba.branches.decode.problem import cut_by_all_lengths, own_type_alone
from flashcore_numba.checks.bounds import Reference, compare, verdict
from flashcore_numba.checks.trial import Answer, Failed, Trial, place
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.operation import Property
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage

Run = Callable[..., Answer]
LENGTHS = (70, 300, 0, 16, 129)
ORDERS = ("reverse", "random:7")


def properties(stage: Stage, backend: str) -> list[Property]:
    """The properties that the stage and the back end allow to test."""
    found = {**ALWAYS, **(SIMULATED if backend == "simulator" else {})}
    if "sinks" not in stage.features:
        del found[EMPTY]
    if stage.language == "Numba":  # whose simulator reports each NaN that is made of numbers
        del found[NAN]
    if stage.limit is own_type_alone:
        del found[TWICE]
    if stage.limit is cut_by_all_lengths:
        del found[ALONE]
    return [Property(name, holds) for name, holds in found.items()]


def _drawn(rng: np.random.Generator, tokens: int = 2, **options: Any) -> DecodeInputs:
    return paged(rng, rng.permutation(LENGTHS).tolist(), 4, 2, tokens, **options)


def _same_bits(what: str, one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    for output in (OUT, LSE):
        a, b = one[output.name], other[output.name]
        bits = np.uint16 if a.itemsize == 2 else np.uint32
        different = a.view(bits) != b.view(bits)
        if different.any():
            at = np.unravel_index(different.argmax(), different.shape)
            raise Failed(
                "property",
                f"{what}: {output.symbol}{place(output.axes, at)} {a[at]:.7g} became {b[at]:.7g}, "
                f"{int(different.sum())} of {different.size} elements have other bits",
            )
    return math.inf


def _outputs(answer: Answer) -> dict[str, np.ndarray]:
    return {"out": answer.out, "lse": answer.lse}


def _right(what: str, answer: Mapping[str, np.ndarray], ref: Reference) -> float:
    margins = []
    for output in (OUT, LSE):
        found = verdict(output, answer[output.name], ref, None)
        if not found.passed:
            raise Failed(
                "property", f"{what}: {output.symbol}{place(output.axes, found.where)}: {found.reason}"
            )
        margins.append(found.margin)
    return min(margins)


def alone_and_in_a_batch(run: Run, rng: np.random.Generator) -> float:
    """With batch_invariant the bits of a request do not depend on the others, nor on the table's width."""
    x = _drawn(rng, batch_invariant=True)
    together = run(x)
    for number in range(len(x.lengths)):
        width = max(1, -(-int(x.lengths[number]) // x.page))
        one = x.only([number])
        alone = run(one.but(block_table=one.block_table[:, :width].copy()))
        mine = {name: each[number : number + 1] for name, each in _outputs(together).items()}
        _same_bits(f"request {number} of {len(x.lengths)} alone", mine, _outputs(alone))
    return math.inf


def pages_permuted(run: Run, rng: np.random.Generator) -> float:
    """Where a page is does not matter to a bit, nor what the table holds after the pages that are used."""
    x = _drawn(rng)
    return _same_bits("pages in another order", _outputs(run(x)), _outputs(run(shuffled(x, rng))))


def two_halves(run: Run, rng: np.random.Generator) -> float:
    """The first pages of each request and the others, merged by their LSE, are the whole."""
    x, tokens = paged(rng, [200, 75, 40], 4, 2, 3), 3
    pages = int(rng.integers(1, 3))
    keys = np.int32(pages * x.page)
    first = x.but(lengths=np.full_like(x.lengths, keys), causal=False)
    table = np.ascontiguousarray(x.block_table[:, pages:])
    second = x.but(lengths=x.lengths - keys, block_table=table)
    assert (second.lengths >= tokens).all()
    a, b = run(first), run(second)
    out, lse = merged(a.out.astype(np.float64), a.lse, b.out.astype(np.float64), b.lse)
    ref = reference(x)
    rounded = 2 * FLOAT16.unit_roundoff * np.maximum(np.abs(a.out), np.abs(b.out)).astype(np.float64)
    whole = compare(out, ref.out, ref.allowed + rounded + 4 * FLOAT16.least)
    if not whole.passed:
        raise Failed("property", f"two halves merged: out{place(OUT.axes, whole.where)}: {whole.reason}")
    sums = compare(lse.astype(np.float64), ref.lse, 2 * ref.lse_allowed)
    if not sums.passed:
        raise Failed("property", f"two halves merged: LSE{place(LSE.axes, sums.where)}: {sums.reason}")
    return min(whole.margin, sums.margin)


def other_lengths(run: Trial, rng: np.random.Generator) -> float:
    """Launches one after another on the same arrays, whose lengths and table change in between: as a captured
    graph finds them.
    """
    x = poisoned(_drawn(rng), rng)
    gpu = run.backend == "gpu"
    executor: Any = Simulator()
    to_device, to_host = np.asarray, np.asarray
    if gpu:
        import cupy

        from flashcore_numba.run.executor import Gpu

        executor, to_device, to_host = Gpu(), cupy.asarray, cupy.asnumpy
    arrays = {name: to_device(each.copy()) for name, each in x.arrays.items()}
    problem = x.problem(arrays)
    outputs = {
        each.name: to_device(np.zeros(each.shape(problem), each.dtype(problem))) for each in (OUT, LSE)
    }
    margin = math.inf
    for turn in range(3):
        order = rng.permutation(len(x.lengths))
        moved = x.only(order.tolist())
        shorter = np.maximum(moved.lengths - rng.integers(0, 3, len(order), dtype=np.int32), 0)
        moved = moved.but(lengths=shorter if turn else moved.lengths, q=x.q)
        for name in ("block_table", "lengths"):
            arrays[name][...] = to_device(getattr(moved, name))
        run.stage.launch(problem, executor=executor, variant=run.variant, **outputs)
        if isinstance(executor, Simulator):
            executor.check()
        answer = {name: np.array(to_host(each)) for name, each in outputs.items()}
        margin = min(margin, _right(f"launch {turn + 1} on the same arrays", answer, reference(moved)))
    return margin


def cache_in_use(run: Run, rng: np.random.Generator) -> float:
    """Requests grow, end, and leave their pages to others: each step is right by what was written, which no
    page and no table tells.
    """
    cache, margin = Cache(rng, FLOAT16, 3, 4, 64), math.inf
    for step in range(8):
        for request in range(3):
            cache.append(request, int(rng.integers(1, 40)))
        if rng.integers(4) == 0:
            cache.end(int(rng.integers(3)))
        x = cache.ask(int(rng.integers(1, 4)))
        margin = min(margin, _right(f"step {step + 1} of a cache", _outputs(run(x)), cache.right(x)))
    return margin


def equal_values(run: Run, rng: np.random.Generator) -> float:
    """The weights of a row sum to 1: where all rows of V are equal the output is that row."""
    x = _drawn(rng)
    row = FLOAT16.round(rng.standard_normal((x.k_pool.shape[2], x.v_pool.shape[3])))
    x = poisoned(x.but(v_pool=np.broadcast_to(row, x.v_pool.shape).copy()), rng)
    group = x.q.shape[1] // x.k_pool.shape[2]
    each = np.repeat(row, group, axis=0).astype(np.float64)[None, :, None]
    seen = np.isfinite(reference(x).lse)[..., None]
    right = np.where(seen, each, 0.0)
    allowed = 2 * FLOAT16.unit_roundoff * np.abs(right) + FLOAT16.least
    found = compare(run(x).out.astype(np.float64), right, allowed)
    if not found.passed:
        raise Failed("property", f"equal rows of V: out{place(OUT.axes, found.where)} is not that row")
    return found.margin


def empty_requests(run: Run, rng: np.random.Generator) -> float:
    """A request without keys has an output of exactly 0, and for its LSE -inf, or the sink."""
    sinks = rng.standard_normal(4).astype(np.float32)
    for logits, right in ((None, np.full(4, -np.inf, np.float32)), (sinks, sinks)):
        x = paged(rng, [40, 0, 0], 4, 2, 2, features=Features(sinks=logits))
        answer = run(x)
        if answer.out[1:].any() or np.isnan(answer.out[1:]).any():
            raise Failed("property", "the output of a request without keys must be 0")
        if not np.isclose(answer.lse[1:], right[:, None], rtol=2**-21, atol=0).all():  # it may be in log2
            raise Failed("property", "the LSE of a request without keys must be -inf, or the sink")
    return math.inf


def nan_in_a_row(run: Run, rng: np.random.Generator) -> float:
    """A NaN in a row of q makes its output and its LSE NaN, and changes no bit of another row."""
    x = _drawn(rng)
    at = int(x.lengths.argmax()), int(rng.integers(4)), int(rng.integers(2))
    q = x.q.copy()
    q[*at, rng.integers(q.shape[3])] = np.nan
    right, found = _outputs(run(x)), _outputs(run(x.but(q=q)))
    for output in (OUT, LSE):
        row = found[output.name][at]
        if not np.isnan(row).all():
            raise Failed(
                "property", f"{output.symbol} of a row of q with a NaN must be NaN, and has {row.max()}"
            )
        found[output.name][at] = right[output.name][at]
    return _same_bits("a NaN in another row of q", right, found)


def twice_the_bytes(run: Run, rng: np.random.Generator) -> float:
    """Pools of e4m3 times 2 at half the scales hold the same numbers, and give the same bits."""
    scales: dict[str, Any] = {
        name: rng.uniform(0.5, 2, 2).astype(np.float32) for name in ("k_scale", "v_scale")
    }
    x = _drawn(rng, stored=E4M3, **scales)
    pools = {name: E4M3.round(2 * getattr(x, name).astype(np.float32)) for name in ("k_pool", "v_pool")}
    twice = x.but(**pools, **{name: scale / 2 for name, scale in scales.items()})
    what = "e4m3 times 2 at half the scales"
    return _same_bits(what, _outputs(run(x)), _outputs(run(poisoned(twice, rng))))


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps and blocks run must not show in a bit."""
    x = paged(rng, [150, 600, 20, 600, 0, 90], 2, 1)
    plain = _outputs(run(x))
    return min(_same_bits(f"scheduled {each}", plain, _outputs(run(x, order=each))) for each in ORDERS)


NAN, EMPTY = "a NaN in a row of q", "a request without keys"
TWICE = "e4m3 times 2 at half the scales: the same bits"
ALONE = "alone and in a batch: the same bits"
ALWAYS: dict[str, Callable[..., float]] = {
    "pages in another order: the same bits": pages_permuted,
    ALONE: alone_and_in_a_batch,
    "two halves merged are the whole": two_halves,
    "other lengths in the next launch": other_lengths,
    "a cache in use": cache_in_use,
    "equal rows of V": equal_values,
    EMPTY: empty_requests,
    NAN: nan_in_a_row,
    TWICE: twice_the_bytes,
}
SIMULATED = {"any schedule: the same bits": any_schedule}
