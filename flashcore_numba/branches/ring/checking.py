"""`flashcore check ring`: every way on several ranks in one process, in several orders, against float64."""

import secrets
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.backward import bounds as gradient_bounds
from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.ring.machine import Hazard, Machine, Order, Stuck, orders
from flashcore_numba.branches.ring.numerics import Float32, Numerics
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, PIECE_BYTES, Layer, decode
from flashcore_numba.branches.ring.schedule import steps
from flashcore_numba.branches.ring.sequence import Split, even
from flashcore_numba.checks import bounds
from flashcore_numba.checks.runner import CaseResult, CheckReport
from flashcore_numba.checks.trial import Failed, Inputs
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.mask import UNBOUNDED, Mask
from flashcore_numba.core.operation import Verdict

RANKS = (2, 3, 4)
MORE_THAN_SLOTS = 6  # ranks, of which each writes to a slot of `programs.SLOTS` again, twice
CALLS = 2  # the second call overwrites what a peer may still read of the first
FLOAT32 = Float32()


class Outputs(NamedTuple):
    """What all ranks of one call returned, put together: out [B, H, S, D], lse [B, H, S]."""

    out: np.ndarray
    lse: np.ndarray


@dataclass(frozen=True)
class Case:
    """One thing to check: `run(rng)` returns the smallest margin it saw, or raises `Failed`."""

    name: str
    run: Callable[[np.random.Generator], float]


def forward(
    way: str, split: Split, calls: Sequence[Inputs], order: Order, numerics: Numerics = FLOAT32
) -> list[Outputs]:
    """Calls of a way, one after the other on the same ranks. Raises Hazard or Stuck."""
    machine, made = Machine(split.ranks, order), []
    for n, x in enumerate(calls):
        piece_bytes = (PIECE_BYTES, 1)[n % 2]  # all heads at once, and one after the other
        layer, parts = Layer(split, x.causal, numerics, x.scale, piece_bytes), []
        for rank in machine.ranks:
            q, k, v = (split.cut(each, rank.number) for each in (x.q, x.k, x.v))
            parts.append(_outputs(q))
            FORWARD[way](rank, layer, q, k, v, *parts[-1])
        made.append(parts)
        machine.next_call()
    machine.run()
    return [Outputs(*(split.joined(list(each)) for each in zip(*parts, strict=True))) for parts in made]


def gradients(
    way: str, split: Split, calls: Sequence[BackwardInputs], order: Order, numerics: Numerics = FLOAT32
) -> list[tuple[np.ndarray, ...]]:
    """dq, dk and dv of each call of a way, one after the other on the same ranks. Raises Hazard or Stuck."""
    machine, made = Machine(split.ranks, order), []
    for x in calls:
        f = x.forward
        layer, parts = Layer(split, f.causal, numerics, f.scale), []
        for rank in machine.ranks:
            arrays = [split.cut(each, rank.number) for each in (f.q, f.k, f.v, x.out, x.lse, x.dout)]
            parts.append([np.full_like(each, np.nan) for each in arrays[:3]])
            BACKWARD[way](rank, layer, *arrays, *parts[-1])
        made.append(parts)
        machine.next_call()
    machine.run()
    return [tuple(split.joined(list(each)) for each in zip(*parts, strict=True)) for parts in made]


def decoded(
    shares: Sequence[int], calls: Sequence[Inputs], order: Order, numerics: Numerics = FLOAT32
) -> list[list[Outputs]]:
    """What each rank returned for each call; shares: keys that each rank holds. Raises Hazard or Stuck."""
    machine, made = Machine(len(shares), order), []
    ends = np.cumsum(shares)
    for x in calls:
        layer, parts = Layer(even(2 * len(shares), len(shares)), x.causal, numerics, x.scale), []
        for rank, end, share in zip(machine.ranks, ends, shares, strict=True):
            k, v = (each[:, :, end - share : end].copy() for each in (x.k, x.v))
            parts.append(_outputs(x.q))
            decode(rank, layer, x.q.copy(), k, v, *parts[-1])
        made.append(parts)
        machine.next_call()
    machine.run()
    return made


def _outputs(q: np.ndarray) -> Outputs:
    return Outputs(np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32))


# Cases


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, int, int, int, int],
    causal: bool,
    keys: int | None = None,
    size: float = 1.0,
    dtype: Any = np.float32,
) -> Inputs:
    """Normal numbers; shape: B, H, H_kv, rows, D. size: of the queries, for unequal weights."""
    batch, heads, kv_heads, rows, dim = shape
    keys = rows if keys is None else keys
    sizes = ((heads, rows), (kv_heads, keys), (kv_heads, keys))
    q, k, v = (rng.standard_normal((batch, h, s, dim)).astype(FLOAT16.dtype).astype(dtype) for h, s in sizes)
    return Inputs(q * dtype(size), k, v, causal)


def _calls(rng: np.random.Generator, shape: tuple[int, int, int, int, int], causal: bool) -> list[Inputs]:
    """The second one has scores of some 10, so that parts differ by far in weight."""
    return [drawn(rng, shape, causal, size=size) for size in (1.0, 8.0)][:CALLS]


def _uneven(ranks: int, rng: np.random.Generator, zigzag: bool) -> Split:
    """Pieces of 1 to 6 rows."""
    lengths = rng.integers(1, 7, 2 * ranks)
    return Split((0, *(int(each) for each in np.cumsum(lengths))), zigzag)


def _forward_case(way: str, ranks: int, causal: bool, uneven: bool) -> Case:
    def run(rng: np.random.Generator) -> float:
        zigzag = way != "ulysses"
        split = _uneven(ranks, rng, zigzag) if uneven else even(8 * ranks + 3, ranks, zigzag)
        kv_heads = ranks if way == "ulysses" else 2
        calls = _calls(rng, (2, 2 * kv_heads, kv_heads, split.length, 16), causal)
        found = _in_every_order(lambda order: forward(way, split, calls, order), ranks, rng)
        return min(_judged(x, each) for x, each in zip(calls, found, strict=True))

    pieces = "pieces of different lengths" if uneven else "pieces that differ by a row"
    return Case(f"{ranks} ranks, {_mask(causal)}, {pieces}", run)


def _calls_that_differ(way: str, backward: bool = False) -> Case:
    """Of other masks, batches, heads and scales: ranks keep memory and views of it from call to call."""

    def run(rng: np.random.Generator) -> float:
        ranks = 3
        split = even(8 * ranks + 3, ranks, way != "ulysses")
        calls = [
            drawn(rng, (batch, 6 * group, 6, split.length, 16), causal).but(scale=scale)
            for batch, group, causal, scale in (
                (2, 1, True, None), (2, 1, False, None), (1, 2, False, None), (2, 1, True, 0.5),
                (1, 2, True, None),
            )
        ]  # fmt: skip
        if not backward:
            found = _in_every_order(lambda order: forward(way, split, calls, order), ranks, rng)
            return min(_judged(x, each) for x, each in zip(calls, found, strict=True))
        both = [backward_inputs(x, rng) for x in calls]
        made = _in_every_order(lambda order: gradients(way, split, both, order), ranks, rng)
        return min(_gradients_judged(x, each) for x, each in zip(both, made, strict=True))

    return Case(f"{way}, calls that differ on the same ranks", run)


def _backward_case(way: str, ranks: int, causal: bool, uneven: bool) -> Case:
    def run(rng: np.random.Generator) -> float:
        zigzag = way != "ulysses"
        split = _uneven(ranks, rng, zigzag) if uneven else even(6 * ranks + 1, ranks, zigzag)
        kv_heads = ranks if way == "ulysses" else 2
        shape = (2, 2 * kv_heads, kv_heads, split.length, 16)
        calls = [backward_inputs(x, rng) for x in _calls(rng, shape, causal)]
        found = _in_every_order(lambda order: gradients(way, split, calls, order), ranks, rng)
        return min(_gradients_judged(x, each) for x, each in zip(calls, found, strict=True))

    pieces = "pieces of different lengths" if uneven else "pieces that differ by a row"
    return Case(f"{way}, {ranks} ranks, {_mask(causal)}, {pieces}", run)


def _decode_case(shares: tuple[int, ...], tokens: int, causal: bool) -> Case:
    def run(rng: np.random.Generator) -> float:
        shape = (2, 4, 2, tokens, 16)
        calls = [drawn(rng, shape, causal, sum(shares), size) for size in (1.0, 8.0)]
        found = _in_every_order(
            lambda order: [each for call in decoded(shares, calls, order) for each in call], len(shares), rng
        )
        per_call = [found[i : i + len(shares)] for i in range(0, len(found), len(shares))]
        for call in per_call:
            for other in call[1:]:
                _same(call[0], other, "two ranks")
        return min(_judged(x, call[0]) for x, call in zip(calls, per_call, strict=True))

    return Case(f"{len(shares)} ranks with {shares} keys, {tokens} tokens, {_mask(causal)}", run)


def _any_number_of_ranks(way: str) -> Case:
    """One sequence by 1 to 4 ranks: each result within the bound, and no two farther apart than that."""

    def run(rng: np.random.Generator) -> float:
        zigzag = way != "ulysses"
        x = drawn(rng, (1, 12, 12, 29, 16), zigzag)
        ref = bounds.reference(x.q, x.k, x.v, x.causal)
        order = Order("transfers late")
        found = [forward(way, even(29, n, zigzag), [x], order)[0] for n in (1, *RANKS)]
        margin = min(_judged(x, each) for each in found)
        for n, each in zip(RANKS, found[1:], strict=True):
            margin = min(margin, _passed(bounds.compare(each.out, found[0].out, ref.allowed), f"{n} ranks"))
        return margin

    return Case("the same for any number of ranks", run)


def _backward_by_any_number_of_ranks(way: str) -> Case:
    """One sequence by 1 to 4 ranks: each gradient within the bound."""

    def run(rng: np.random.Generator) -> float:
        zigzag = way != "ulysses"
        x = backward_inputs(drawn(rng, (1, 12, 12, 29, 16), zigzag), rng)
        order = Order("transfers late")
        found = [gradients(way, even(29, n, zigzag), [x], order)[0] for n in (1, *RANKS)]
        return min(_gradients_judged(x, each) for each in found)

    return Case(f"{way}, any number of ranks", run)


def _covers(causal: bool) -> Case:
    """Every pair of row and key that the mask shows is in one step of one rank, and no other pair is."""

    def run(rng: np.random.Generator) -> float:
        for ranks in (1, *RANKS, 5, 8):
            for split in (even(4 * ranks + 1, ranks), _uneven(ranks, rng, True)):
                seen = np.zeros((split.length, split.length), int)
                for rank in range(ranks):
                    for step in steps(split, rank, causal):
                        rows = split.indices(rank)[step.rows]
                        keys = split.indices(step.owner)[step.keys]
                        shown = Mask(len(rows), len(keys), right=0 if step.causal else UNBOUNDED)
                        seen[np.ix_(rows, keys)] += shown.matrix()
                whole = Mask(split.length, split.length, right=0 if causal else UNBOUNDED)
                wanted = whole.matrix().astype(int)
                if (wrong := seen != wanted).any():
                    row, key = (int(each[0]) for each in np.nonzero(wrong))
                    raise Failed(
                        "property",
                        f"{ranks} ranks, pieces at {split.bounds}: row {row} sees key {key} "
                        f"{seen[row, key]} times, and must see it {wanted[row, key]} times",
                    )
        return float("inf")

    return Case(f"every pair once, {_mask(causal)}", run)


def _same_work() -> Case:
    def run(rng: np.random.Generator) -> float:
        for ranks in RANKS:
            split = even(8 * ranks, ranks)
            work = {
                tuple(
                    (s.rows.stop - s.rows.start) * (s.keys.stop - s.keys.start) for s in steps(split, r, True)
                )
                for r in range(ranks)
            }
            if len(work) != 1:
                raise Failed("property", f"{ranks} ranks have different work at their steps: {work}")
            owners = [[step.owner for step in steps(split, r, True)] for r in range(ranks)]
            if any(len(set(column)) != ranks for column in zip(*owners, strict=True)):
                raise Failed(
                    "property", f"{ranks} ranks: two use the keys of one owner at one step: {owners}"
                )
        return float("inf")

    return Case("every rank has the same work under a causal mask", run)


def _refused(name: str, call: Callable[[], Any], word: str) -> Case:
    def run(rng: np.random.Generator) -> float:
        try:
            call()
        except ArgumentError as error:
            if word in str(error):
                return float("inf")
            raise Failed("property", f"the error does not name {word!r}: {error}") from error
        raise Failed("property", f"{name}: it was not refused")

    return Case(f"refused: {name}", run)


def _heads_not_divisible() -> Any:
    x = drawn(np.random.default_rng(0), (1, 6, 3, 16, 16), False)
    return forward("ulysses", even(16, 2, zigzag=False), [x], Order("transfers late"))


def _ulysses_in_zigzag() -> Any:
    x = drawn(np.random.default_rng(0), (1, 2, 2, 16, 16), True)
    return forward("ulysses", even(16, 2), [x], Order("transfers late"))


def _causal_without_zigzag() -> Any:
    x = drawn(np.random.default_rng(0), (1, 2, 2, 16, 16), True)
    return forward("ring", even(16, 2, zigzag=False), [x], Order("transfers late"))


def cases() -> dict[str, list[Case]]:
    """What is checked, by the name of a way: "schedule", those of `FORWARD`, "backward" and "decode"."""
    kinds = [(n, causal, uneven) for n in RANKS for causal in (True, False) for uneven in (False, True)]
    found = {"schedule": [_covers(True), _covers(False), _same_work()]}
    for way in FORWARD:
        found[way] = [_forward_case(way, *kind) for kind in kinds] + [_any_number_of_ranks(way)]
        found[way].append(_calls_that_differ(way))
    found["ring"].append(_refused("causal without zigzag", _causal_without_zigzag, "zigzag"))
    found["ulysses"].append(_refused("K/V heads that N does not divide", _heads_not_divisible, "K/V heads"))
    found["ulysses"].append(_refused("rows in zigzag", _ulysses_in_zigzag, "zigzag"))
    found["backward"] = [_backward_case(way, *kind) for kind in kinds for way in BACKWARD]
    found["backward"] += [_backward_case("pull", MORE_THAN_SLOTS, causal, True) for causal in (True, False)]
    found["backward"] += [_calls_that_differ(way, backward=True) for way in BACKWARD]
    found["backward"] += [_backward_by_any_number_of_ranks(way) for way in BACKWARD]
    shares = ((9, 8), (0, 7, 6), (5, 0, 0, 4), (0, 0, 3))
    found["decode"] = [_decode_case(each, 3, causal) for each in shares for causal in (False, True)]
    found["decode"].append(_decode_case((0, 0, 0), 2, False))
    return found


# Judging


def _in_every_order(run: Callable[[Order], Any], ranks: int, rng: np.random.Generator) -> Any:
    """What a run gives, which is the same to the last bit in every order. Raises Failed."""
    first = None
    for order in orders(ranks, rng):
        try:
            found = run(order)
        except Hazard as error:
            raise Failed("order", str(error), problem=error) from error
        except Stuck as error:
            raise Failed("hang", str(error), problem=error) from error
        if first is None:
            first = found
        for one, other in zip(first, found, strict=True):
            _same(one, other, f"the orders 'transfers at once' and '{order.name}'")
    return first


def _same(one: Iterable[np.ndarray], other: Iterable[np.ndarray], whose: str) -> None:
    for a, b in zip(one, other, strict=True):
        if not np.array_equal(a, b, equal_nan=True):
            raise Failed("property", f"the results of {whose} differ by up to {np.nanmax(np.abs(a - b)):.3g}")


def _judged(x: Inputs, found: Outputs) -> float:
    ref = bounds.reference(x.q, x.k, x.v, x.causal, x.scale)
    verdicts = {"out": bounds.judge(found.out, ref), "LSE": bounds.judge_lse(found.lse, ref)}
    return min(_passed(verdict, name) for name, verdict in verdicts.items())


def _gradients_judged(x: BackwardInputs, found: Sequence[np.ndarray]) -> float:
    ref = gradient_bounds.reference(x)
    verdicts = {
        output.name: gradient_bounds.judge(output, value, ref, None)
        for output, value in zip(GRADIENTS, found, strict=True)
    }
    return min(_passed(verdict, name) for name, verdict in verdicts.items())


def _passed(verdict: Verdict, name: str) -> float:
    if not verdict.passed:
        raise Failed(
            "value",
            f"{name}{list(verdict.where)}: off by {verdict.error:.3g}, allowed are {verdict.bound:.3g}; "
            f"{verdict.reason}",
        )
    return verdict.margin


def _mask(causal: bool) -> str:
    return "causal" if causal else "full"


# Running


def check_case(case: Case, rng: np.random.Generator) -> CaseResult:
    """The result of one case; what it raises that it should not is one of kind "error"."""
    start = time.perf_counter()
    result = CaseResult(case.name, False, 0.0)
    try:
        with np.errstate(all="ignore"):  # a wrong version may make NaN, which is then told as a wrong value
            result = replace(result, passed=True, margin=case.run(rng))
    except Failed as failed:
        result = replace(result, kind=failed.kind, message=failed.text, raised=failed)
    except Exception as error:  # a planted mistake may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        result = replace(result, kind="error", message=message, raised=error)
    return replace(result, seconds=time.perf_counter() - start)


def check(
    names: Sequence[str] = (),
    seed: int | None = None,
    stop_at_first: bool = False,
    time_limit: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[CheckReport]:
    """A report per way, of the ways named; all by default. Raises ArgumentError for another name.

    time_limit: seconds, after which no case begins: those left count as failed.
    """
    every, start = cases(), time.perf_counter()
    if unknown := [name for name in names if name not in every]:
        raise ArgumentError(f"ring/{unknown[0]}: accepted are {', '.join(f'ring/{name}' for name in every)}")
    seed = secrets.randbits(32) if seed is None else seed
    reports, done, total = [], 0, sum(len(every[name]) for name in names or every)
    for name in names or every:
        rng, results = np.random.default_rng(seed), []
        for case in every[name]:
            late = time_limit is not None and time.perf_counter() - start > time_limit
            not_run = CaseResult(case.name, False, 0.0, "time", f"not run: {time_limit} s were over")
            results.append(not_run if late else check_case(case, rng))
            done += 1
            if progress is not None:
                progress(done, total, f"ring/{name}: {case.name}")
            if stop_at_first and not results[-1].passed:
                break
        seconds = sum(each.seconds for each in results)
        label = f"ring/{name}"
        reports.append(CheckReport(label, label, None, None, "ranks", seed, tuple(results), (), seconds))
    return reports
