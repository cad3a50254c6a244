"""Well-known mistakes, each as the output that it gives in float64; an output that equals one is recognised.

`cause` is a key of the course's table of causes. A mistake that changes nothing on an input gives the right
output there, so one that is recognised explains what is right as well as what is wrong.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flashcore_numba.checks.trial import Inputs

TILES = (16, 32, 64, 128)  # keys that a stage may take at a time
LARGEST, MEAN = 2e-3, 2e-4  # of the largest element: what half-precision weights may be off by
Values = np.ndarray


@dataclass(frozen=True)
class Mistake:
    """output(inputs) -> float64 [B, H, S_q, D]. Two of one `cause` differ in a number only."""

    cause: str
    output: Callable[[Inputs], Values]


@dataclass(frozen=True)
class _Head:
    """One input as float64, K and V repeated for the query heads. seen: bool [S_q, S_k]."""

    q: Values
    k: Values
    v: Values
    scale: float
    seen: Values

    @property
    def scores(self) -> Values:
        return self.scale * self.q @ self.k.swapaxes(2, 3)


def _taken(x: Inputs, kv_head: Callable[[int], int] | None = None) -> _Head:
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    wanted = kv_head or (lambda h: h // (heads // kv_heads))
    index = [wanted(h) for h in range(heads)]
    q, k, v = x.q.astype(float), x.k.astype(float)[:, index], x.v.astype(float)[:, index]
    return _Head(q, k, v, 1 / math.sqrt(q.shape[3]) if x.scale is None else x.scale, x.mask.matrix())


def _softmax(
    scores: Values,
    v: Values,
    seen: Values,
    *,
    power: Callable[[Values], Values] = np.exp,
    shift: Callable[[Values], Values] | None = None,
    summed: Values | None = None,
    added: Values | None = None,
    divided: Callable[[Values], Values] = lambda total: total,
) -> Values:
    """sum of power(score - max) v over `added` keys, divided by the sum of them over `summed` ones."""
    masked = np.where(seen, scores, -np.inf)
    top = masked.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top) if shift is None else shift(top)
    p = np.where(seen, power(np.where(seen, scores, 0) - top), 0)
    total = (p if summed is None else np.where(summed, p, 0)).sum(axis=-1, keepdims=True)
    o = (p if added is None else np.where(added, p, 0)) @ v
    return np.where(seen.any(axis=-1, keepdims=True), o / divided(total), 0)


def _scaled(x: Inputs, factor: Callable[[float, int], float]) -> Values:
    """With another scale: factor(scale, D)."""
    head = _taken(x)
    return _softmax(factor(head.scale, x.q.shape[3]) / head.scale * head.scores, head.v, head.seen)


def _seeing(x: Inputs, mask: Callable[[Inputs, Values, Values], Values]) -> Values:
    """With another mask: mask(inputs, rows [S_q, 1], keys [S_k])."""
    head = _taken(x)
    rows, keys = np.arange(x.mask.seq_q)[:, None], np.arange(x.mask.seq_k)
    seen = np.broadcast_to(mask(x, rows, keys), head.seen.shape)
    return _softmax(head.scores, head.v, seen)


def _causal(x: Inputs, rows: Values, keys: Values, more: int) -> Values:
    """The mask with `more` keys for each row of a causal input."""
    begin, end = x.mask.interval(rows)
    return (keys >= begin) & (keys < end + (more if x.causal else 0))


def _of_arrays(x: Inputs, score_with: str, weigh: str) -> Values:
    """Scores with one array, weighted sum of another."""
    head = _taken(x)
    arrays = {"k": head.k, "v": head.v}
    return _softmax(head.scale * head.q @ arrays[score_with].swapaxes(2, 3), arrays[weigh], head.seen)


def _of_head(x: Inputs, names: str, kv_head: Callable[[int], int]) -> Values:
    """K, V or both from another head than the query's own."""
    right, other = _taken(x), _taken(x, kv_head)
    k, v = other.k if "k" in names else right.k, other.v if "v" in names else right.v
    return _softmax(right.scale * right.q @ k.swapaxes(2, 3), v, right.seen)


def _of_batch_0(x: Inputs, names: str) -> Values:
    head = _taken(x)
    k, v = head.k[:1] if "k" in names else head.k, head.v[:1] if "v" in names else head.v
    k, v = np.broadcast_to(k, head.k.shape), np.broadcast_to(v, head.v.shape)
    return _softmax(head.scale * head.q @ k.swapaxes(2, 3), v, head.seen)


def _of_components(x: Inputs, count: Callable[[int], int]) -> Values:
    """Scores from the first components of q and k only."""
    head, n = _taken(x), count(x.q.shape[3])
    return _softmax(head.scale * head.q[..., :n] @ head.k[..., :n].swapaxes(2, 3), head.v, head.seen)


def _last(seen: Values) -> Values:
    """Where a row's last visible key is."""
    return seen & (seen.cumsum(axis=-1) == seen.sum(axis=-1, keepdims=True))


def _without_last(x: Inputs, sums: bool, adds: bool) -> Values:
    head = _taken(x)
    kept = head.seen & ~_last(head.seen)
    return _softmax(
        head.scores, head.v, head.seen, summed=kept if sums else None, added=kept if adds else None
    )


def _of_keys(x: Inputs, kept: Callable[[int], Values]) -> Values:
    """Only the keys of bool [S_k] kept(S_k)."""
    head = _taken(x)
    return _softmax(head.scores, head.v, head.seen & kept(x.mask.seq_k))


def _padded(x: Inputs, tile: int) -> Values:
    """The zeros that fill the last tile count as keys of score 0."""
    head = _taken(x)
    more = -x.mask.seq_k % tile
    scores = np.pad(head.scores, [(0, 0)] * 3 + [(0, more)])
    v = np.pad(head.v, [(0, 0)] * 2 + [(0, more), (0, 0)])
    return _softmax(scores, v, np.pad(head.seen, [(0, 0), (0, more)], constant_values=True))


def _walked(x: Inputs, tile: int, rescale_l: bool, rescale_o: bool) -> Values:
    """Tile by tile with a running maximum, and a sum that stays as it was when the maximum grows."""
    head = _taken(x)
    scores = np.where(head.seen, head.scores, -np.inf)
    m = np.full((*scores.shape[:3], 1), -np.inf)
    l, o = np.zeros_like(m), np.zeros_like(head.q)
    for first in range(0, x.mask.seq_k, tile):
        part = scores[..., first : first + tile]
        new = np.maximum(m, part.max(axis=-1, keepdims=True))
        safe = np.where(np.isneginf(new), 0, new)
        p, factor = np.exp(part - safe), np.exp(m - safe)
        l = l * (factor if rescale_l else 1) + p.sum(axis=-1, keepdims=True)
        o = o * (factor if rescale_o else 1) + p @ head.v[:, :, first : first + tile]
        m = new
    return np.where(l > 0, o / l, 0)


def _powers(x: Inputs, **how: object) -> Values:
    head = _taken(x)
    return _softmax(head.scores, head.v, head.seen, **how)  # type: ignore[arg-type]


def _linear(x: Inputs) -> Values:
    """The scores themselves as weights."""
    head = _taken(x)
    s = np.where(head.seen, head.scores, 0)
    return s @ head.v / s.sum(axis=-1, keepdims=True)


def _counted(x: Inputs, all_keys: bool) -> Values:
    """The weighted sum divided by a number of keys."""
    head = _taken(x)
    count = x.mask.seq_k if all_keys else np.maximum(head.seen.sum(axis=-1, keepdims=True), 1)
    return _softmax(head.scores, head.v, head.seen, divided=lambda total: count + 0 * total)


def mistakes() -> Iterator[Mistake]:
    """All of them."""
    yield Mistake("scale missing", partial(_scaled, factor=lambda scale, d: 1.0))
    yield Mistake("scale twice", partial(_scaled, factor=lambda scale, d: scale * scale))
    yield Mistake("divided by the scale", partial(_scaled, factor=lambda scale, d: 1 / scale))
    yield Mistake("scale squared root", partial(_scaled, factor=lambda scale, d: math.sqrt(abs(scale))))
    yield Mistake("divided by D", partial(_scaled, factor=lambda scale, d: 1 / d))
    yield Mistake("scale not as given", partial(_scaled, factor=lambda scale, d: 1 / math.sqrt(d)))
    yield Mistake("scale of D = 64", partial(_scaled, factor=lambda scale, d: 1 / 8))
    yield Mistake("sign of the scores", partial(_scaled, factor=lambda scale, d: -scale))
    yield Mistake("mask ignored", partial(_seeing, mask=lambda x, rows, keys: keys >= 0 * rows))
    yield Mistake("mask top-left", partial(_seeing, mask=lambda x, r, k: (k <= r) | (not x.causal)))
    yield Mistake("mask hides the diagonal", partial(_seeing, mask=partial(_causal, more=-1)))
    yield Mistake("mask one key too many", partial(_seeing, mask=partial(_causal, more=1)))
    yield Mistake("last visible key lost", partial(_without_last, sums=True, adds=True))
    yield Mistake("last key not in the sum", partial(_without_last, sums=True, adds=False))
    yield Mistake("last key's value lost", partial(_without_last, sums=False, adds=True))
    yield Mistake("first key lost", partial(_of_keys, kept=lambda n: np.arange(n) > 0))
    yield Mistake("K for V", partial(_of_arrays, score_with="k", weigh="k"))
    yield Mistake("V for K", partial(_of_arrays, score_with="v", weigh="v"))
    yield Mistake("K and V swapped", partial(_of_arrays, score_with="v", weigh="k"))
    yield Mistake("not normalised", partial(_powers, divided=np.ones_like))
    yield Mistake("divided twice", partial(_powers, divided=np.square))
    yield Mistake("divided by the number of keys", partial(_counted, all_keys=True))
    yield Mistake("divided by the number of keys", partial(_counted, all_keys=False))
    yield Mistake("powers of 2", partial(_powers, power=np.exp2))
    yield Mistake("base 2 twice", partial(_scaled, factor=lambda scale, d: scale * math.log2(math.e)))
    yield Mistake("scores as weights", _linear)
    yield Mistake("half of the components", partial(_of_components, count=lambda d: d // 2))
    yield Mistake("always 64 components", partial(_of_components, count=lambda d: 64))
    yield Mistake("last component lost", partial(_of_components, count=lambda d: d - 1))
    for names, arrays in (("k", "K"), ("v", "V"), ("kv", "K and V")):
        yield Mistake(f"{arrays} of head 0", partial(_of_head, names=names, kv_head=lambda h: 0))
        yield Mistake(f"{arrays} of batch 0", partial(_of_batch_0, names=names))
    yield Mistake("K/V heads in turn", lambda x: _of_head(x, "kv", lambda h: h % x.k.shape[1]))
    for tile in TILES:
        yield Mistake("l not rescaled", partial(_walked, tile=tile, rescale_l=False, rescale_o=True))
        yield Mistake("O not rescaled", partial(_walked, tile=tile, rescale_l=True, rescale_o=False))
        yield Mistake("nothing rescaled", partial(_walked, tile=tile, rescale_l=False, rescale_o=False))
        yield Mistake("padding counted", partial(_padded, tile=tile))
        yield Mistake("first tile only", partial(_of_keys, kept=partial(_first, tile=tile)))
        yield Mistake("first tile lost", partial(_of_keys, kept=partial(_not_first, tile=tile)))
        yield Mistake("last tile lost", partial(_of_keys, kept=partial(_before_last, tile=tile)))
        yield Mistake("last tile only", partial(_of_keys, kept=partial(_last_tile, tile=tile)))
        yield Mistake("partial tile lost", partial(_of_keys, kept=partial(_whole, tile=tile)))


def _first(keys: int, tile: int) -> Values:
    return np.arange(keys) < tile


def _not_first(keys: int, tile: int) -> Values:
    return np.arange(keys) >= tile


def _last_tile(keys: int, tile: int) -> Values:
    return ~_before_last(keys, tile)


def _before_last(keys: int, tile: int) -> Values:
    """The keys of all tiles but the last one."""
    return np.arange(keys) < (keys - 1) // tile * tile


def _whole(keys: int, tile: int) -> Values:
    """The keys of whole tiles."""
    return np.arange(keys) < keys // tile * tile


def equal(out: Values, other: Values) -> bool:
    """Is this output, of a kernel, that one, in float64, up to what half precision may be off by?"""
    finite = np.isfinite(other)
    with np.errstate(invalid="ignore"):
        same = (out == other) | (np.isnan(out) & np.isnan(other))
        if not same[~finite].all():
            return False
        error = np.abs(out - other)[finite]
    largest = np.abs(other[finite]).max(initial=0)
    if not finite.any():
        return True
    return bool(error.max(initial=0) <= LARGEST * largest and error.mean() <= MEAN * largest)


def recognise(runs: Iterable[tuple[Inputs, Values]]) -> str:
    """The cause of the one mistake that gives all of these outputs, "" where none or more than one does.

    runs: inputs and outputs [B, H, S_q, D], wrong ones and right ones.
    """
    some = [(x, np.asarray(out, np.float64)) for x, out in runs]
    left: Sequence[Mistake] = list(mistakes())
    right = partial(_scaled, factor=lambda scale, d: scale)
    with np.errstate(all="ignore"):
        if not some or all(equal(out, right(x)) for x, out in some):
            return ""
        for x, out in some:
            left = [mistake for mistake in left if equal(out, mistake.output(x))]
    causes = {mistake.cause for mistake in left}
    return causes.pop() if len(causes) == 1 else ""
