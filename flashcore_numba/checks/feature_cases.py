"""Inputs for what models add to attention: each feature alone, where it meets another, and at its edges."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Case
from flashcore_numba.stages import Stage

Draw = Callable[..., Inputs]


def feature_cases(stage: Stage, draw: Draw) -> list[Case]:
    """The cases of all features that the stage serves, together where it serves both.

    draw: `cases.normal`, which makes q, k and v of `(rng, B, H, S_q, S_k, D)`.
    """
    d = stage.head_dims[0]

    def case(name: str, make: Callable) -> Case:
        return Case(name, lambda rng: make(rng, draw, d))

    return [case(name, make) for name, make in MADE.items() if {*_needs(name)} <= {*stage.features}]


def _needs(name: str) -> tuple[str, ...]:
    """The features that a case's name says, before its colon."""
    said = name.partition(":")[0]
    return tuple(ARGUMENTS[word] for word in said.split(" and "))


ARGUMENTS = {
    "window": "window",
    "softcap": "softcap",
    "sinks": "sinks",
    "ALiBi": "alibi_slopes",
    "seqused_k": "seqused_k",
    "ragged": "cu_seqlens_q",
    "prior": "prior_out",
    "float32 output": "float32_out",
    "norm": "norm_weight",
    "gate": "gate",
    "keys_from": "keys_from",
}


def _window(left: int, right: int, causal: bool = False, rows: int = 200, keys: int = 230) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        return draw(rng, 1, 2, rows, keys, d, causal=causal).but(features=Features((left, right)))

    return make


def _softcap(softcap: float, **options: Any) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        return draw(rng, 1, 2, 70, 90, d, **options).but(features=Features(softcap=softcap))

    return make


def _sinks(rows: int, keys: int, **options: Any) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        sinks = _float32(3 * rng.standard_normal(2))
        return draw(rng, 2, 2, rows, keys, d, **options).but(features=Features(sinks=sinks))

    return make


def _alibi(softcap: float = 0, batch: bool = False, **options: Any) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        slopes = _float32(rng.uniform(0.02, 0.5, (2, 2) if batch else 2))
        return draw(rng, 2, 2, 70, 90, d, **options).but(
            features=Features(softcap=softcap, alibi_slopes=slopes)
        )

    return make


def _used(**options: Any) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        used = np.array([rng.integers(1, 90), 0, 90], np.int32)
        x = draw(rng, 3, 2, 50, 90, d, **options).but(features=Features(seqused_k=used))
        return _spoiled(x, used)

    return make


def _ragged(
    causal: bool = False, window: tuple[int, int] = OFF.window, sinks: bool = False, used: bool = False
) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        lengths_q = rng.permutation([0, 33, 67, *rng.integers(1, 130, 1)])
        lengths_k = rng.permutation([0, 20, 70, *rng.integers(1, 150, 1)])
        bounds = [np.cumsum([0, *lengths], dtype=np.int32) for lengths in (lengths_q, lengths_k)]
        x = draw(rng, 1, 4, bounds[0][-1], bounds[1][-1], d, kv_heads=2, causal=causal)
        count = (lengths_k * rng.uniform(0, 1, 4)).astype(np.int32) if used else None
        features = Features(
            window,
            sinks=_float32(rng.standard_normal(4)) if sinks else None,
            seqused_k=count,
            cu_seqlens_q=bounds[0],
            cu_seqlens_k=bounds[1],
        )
        x = x.but(features=features)
        return x if count is None else _spoiled(x, count)

    return make


def _plain(rows: int, keys: int, **options: Any) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        return draw(rng, 2, 4, rows, keys, d, kv_heads=2, **options).but(features=Features())

    return make


def _merged(make_now: Callable, float32_out: bool = False, offset: float = 4.0) -> Callable:
    """With a result over other keys, of which some rows have seen none: its LSE is about `offset`, where that
    of 50 keys is, but for weights that go from next to nothing to nearly 1.
    """

    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        x = make_now(rng, draw, d)
        lse = _float32(offset + 6 * rng.standard_normal(x.q.shape[:3]))
        lse[rng.uniform(size=lse.shape) < 0.2] = -np.inf
        out = _float32(rng.standard_normal((*lse.shape, x.v.shape[3])))
        out[np.isneginf(lse)] = np.nan
        return x.but(features=replace(x.features, float32_out=float32_out, prior_out=out, prior_lse=lse))

    return make


def _followed(
    make_before: Callable,
    eps: float | None = None,
    gated: bool = False,
    of_each_head: bool = True,
    in_float32: bool = False,
    **changes: Any,
) -> Callable:
    """With the norm of `eps`, where there is one, and a gate. An eps about as large as the mean square of a
    row shows a norm that comes too early, or that has none.
    """

    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        x = make_before(rng, draw, d)
        heads, columns, type_ = x.q.shape[1], x.v.shape[3], x.q.dtype
        added: dict[str, Any] = dict(changes)
        if eps is not None:
            weight = rng.standard_normal((heads, columns) if of_each_head else columns)
            added |= {"norm_weight": weight.astype(np.float32 if in_float32 else type_), "norm_eps": eps}
        if gated:
            gate = 3 * rng.standard_normal((*x.q.shape[:3], columns))
            gate[rng.uniform(size=gate.shape) < 0.1] *= 20  # all but closed, or open
            added["gate"] = gate.astype(type_)
        return x.but(features=replace(x.features, **added))

    return make


def _beyond(make_before: Callable) -> Callable:
    """With a norm that takes one column of every row to about 1.6e5, beyond float16, the others to less."""

    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        x = make_before(rng, draw, d)
        columns, v = x.v.shape[3], x.v.copy()
        v[..., rng.integers(columns)] += rng.choice([-40, 40])
        weight = _float32(rng.uniform(19000, 21000, columns))
        return x.but(v=v, features=replace(x.features, norm_weight=weight, norm_eps=1e-5))

    return make


def _arrived(make_before: Callable) -> Callable:
    """All keys are there: nobody would bring more of them. Whether a kernel waits is a property."""

    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        x = make_before(rng, draw, d)
        return x.but(features=replace(x.features, keys_from=np.zeros(1, np.int32)))

    return make


def _in_float32(make_in_type: Callable) -> Callable:
    def make(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
        x = make_in_type(rng, draw, d)
        return x.but(features=replace(x.features, float32_out=True))

    return make


def _spoiled(x: Inputs, used: np.ndarray) -> Inputs:
    """NaN where keys do not count."""
    k, v = x.k.copy(), x.v.copy()
    whole = Features(cu_seqlens_q=x.features.cu_seqlens_q, cu_seqlens_k=x.features.cu_seqlens_k)
    for each in whole.sequences(x.q, x.k, False):
        unused = slice(each.keys.start + int(used[each.number]), each.keys.stop)
        k[each.batch, :, unused] = v[each.batch, :, unused] = np.nan
    return x.but(k=k, v=v)


def _neighbours(rng: np.random.Generator, draw: Draw, d: int) -> Inputs:
    """A sequence of NaN between two others: their rows are what they are without it."""
    bounds = np.array([0, 40, 75, 133], np.int32)
    x = draw(rng, 1, 2, 133, 133, d)
    k, v = x.k.copy(), x.v.copy()
    k[:, :, 40:75] = v[:, :, 40:75] = np.nan
    empty = np.array([0, 40, 40, 98], np.int32)  # no query row sees them
    q = np.concatenate([x.q[:, :, :40], x.q[:, :, 75:]], axis=2)
    return x.but(q=q, k=k, v=v, features=Features(cu_seqlens_q=empty, cu_seqlens_k=bounds))


def _float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


MADE: dict[str, Callable[[np.random.Generator, Draw, int], Inputs]] = {
    "window: 40 keys before, 10 after": _window(40, 10),
    "window: causal, 33 keys before": _window(33, -1, causal=True, rows=300, keys=300),
    "window: whole tiles inside": _window(300, 0, rows=100, keys=500),
    "window: only keys after": _window(-1, 5),
    "window: only the diagonal": _window(0, 0, rows=90, keys=70),
    "window: rows that see no key": _window(3, 0, rows=70, keys=20),
    "softcap: 3": _softcap(3.0),
    "softcap: 50, large scores, causal": _softcap(50.0, scale=2.0, causal=True),
    "softcap: 5, a negative scale": _softcap(5.0, scale=-0.3),
    "sinks: two batches": _sinks(70, 90),
    "sinks: rows that see no key": _sinks(70, 40, causal=True),
    "sinks: 20 rows, 1100 keys": _sinks(20, 1100),
    "ALiBi: a slope per head": _alibi(),
    "ALiBi: a slope per batch and head, causal": _alibi(batch=True, causal=True),
    "ALiBi and softcap: 4": _alibi(softcap=4.0),
    "seqused_k: NaN behind": _used(),
    "seqused_k: NaN behind, causal": _used(causal=True),
    "ragged: empty sequences on both sides": _ragged(),
    "ragged: NaN in the sequence between": _neighbours,
    "ragged and window and sinks: causal": _ragged(sinks=True, causal=True, window=(30, -1)),
    "ragged and seqused_k: NaN behind, causal": _ragged(used=True, causal=True),
    "float32 output: grouped, causal": _in_float32(_plain(70, 90, causal=True)),
    "float32 output and ragged: empty sequences": _in_float32(_ragged()),
    "prior: grouped": _merged(_plain(70, 90)),
    "prior: rows that see no key, causal": _merged(_plain(70, 40, causal=True)),
    "prior: nearly all of the weight": _merged(_plain(40, 70), offset=30.0),
    "prior and sinks: rows that see no key": _merged(_sinks(70, 40, causal=True)),
    "prior and seqused_k: no keys in one": _merged(_used()),
    "prior and float32 output: 300 keys, causal": _merged(_plain(70, 300, causal=True), float32_out=True),
    "prior and float32 output: nearly all of the weight": _merged(_plain(40, 70), True, offset=30.0),
    "prior and float32 output and window: causal": _merged(_window(33, -1, causal=True), float32_out=True),
    "gate: grouped, causal": _followed(_plain(70, 90, causal=True), gated=True),
    "norm: a weight for all heads": _followed(_plain(70, 90), 0.02, of_each_head=False),
    "norm: float32 weights of each head, causal": _followed(
        _plain(70, 150, causal=True), 1e-6, in_float32=True
    ),
    "norm: weights of about 20000, beyond float16": _beyond(_plain(70, 90)),
    "norm and gate: grouped, rows that see no key": _followed(_plain(70, 40, causal=True), 0.02, gated=True),
    "norm and gate and ragged: causal": _followed(_ragged(causal=True), 0.02, gated=True, in_float32=True),
    "norm and gate and sinks and seqused_k: 20 rows, 1100 keys": _followed(
        _sinks(20, 1100), 0.001, gated=True, seqused_k=np.array([700, 1100], np.int32)
    ),
    "norm and gate and prior and float32 output: causal": _followed(
        _merged(_plain(70, 90, causal=True), float32_out=True), 0.02, gated=True
    ),
    "keys_from: grouped, causal": _arrived(_plain(200, 330, causal=True)),
    "keys_from and seqused_k: NaN behind, causal": _arrived(_used(causal=True)),
}
