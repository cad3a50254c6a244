"""Each property accepts a right implementation and rejects one that is broken in the way it looks for."""

from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba.checks.properties import (
    RELATIONS,
    any_gpu,
    any_schedule,
    edges_of_the_range,
    properties,
)
from flashcore_numba.checks.trial import Failed, Trial
from flashcore_numba.core import oracle
from flashcore_numba.core.element import ACCEPTED, BFLOAT16
from flashcore_numba.core.features import ALL

from .stand_in import honest, stand_in


def position_matters(problem):
    """Keys weigh more the later they come."""
    weights = np.linspace(0.5, 1.5, problem.seq_k)[:, None]
    return honest(problem)[0] * 0 + honest(_with(problem, v=problem.v * weights))[0]


def no_maximum(problem):
    """exp(score) in float16 without subtracting the maximum."""
    scores = _scores(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(scores).astype(np.float16).astype(np.float64)
        return (p / p.sum(axis=3, keepdims=True)) @ problem.v.astype(np.float64)


def too_long(problem):
    return 1.6 * honest(problem)[0]


def tile_of_32_counts_from_zero(problem):
    """The first key of every tile of 32 counts twice."""
    weights = np.where(np.arange(problem.seq_k) % 32 == 0, 2.0, 1.0)
    p = np.exp(_scores(problem) - _scores(problem).max(axis=3, keepdims=True)) * weights
    return (p / p.sum(axis=3, keepdims=True)) @ problem.v.astype(np.float64)


def top_left(problem):
    mask = np.arange(problem.seq_k) <= np.arange(problem.seq_q)[:, None]
    scores = np.where(mask, _scores(problem), -np.inf)
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    return (p / p.sum(axis=3, keepdims=True)) @ problem.v.astype(np.float64)


def nan_for_blind_rows(problem):
    out, lse = honest(problem)
    return np.where(np.isneginf(lse)[..., None], np.nan, out), lse


def lse_zero_for_blind_rows(problem):
    out, lse = honest(problem)
    return out, np.where(np.isneginf(lse), 0, lse)


def nearly_one(problem):
    return honest(problem)[0] * (1 - 2**-10)


def weights_in_halves(problem):
    """P is rounded to halves, its sum l is not, and O / l becomes a half as it is."""
    p = np.exp(_scores(problem) - _scores(problem).max(axis=3, keepdims=True))
    total = p.sum(axis=3, keepdims=True)
    with np.errstate(over="ignore"):
        return (p.astype(np.float16).astype(np.float64) @ problem.v.astype(np.float64) / total).astype(
            np.float16
        )


def infinities_clamped(problem):
    return np.clip(honest(problem)[0], -65504, 65504)


def scale_ignored(problem):
    return honest(_with(problem, scale=0.125))[0]


def prior_counts_twice(problem):
    out, lse = honest(problem)
    if not problem.features.prior:
        return out, lse
    return oracle.merged_with_prior(out, lse, problem.features)


def waits_for_nothing(problem):
    return honest(_with(problem, features=replace(problem.features, keys_from=None)))


def _with(problem, **changes):
    from types import SimpleNamespace

    names = ("q", "k", "v", "causal", "scale", "features")
    return SimpleNamespace(**{name: getattr(problem, name) for name in names} | changes)


def _scores(problem):
    return problem.scale * (problem.q.astype(np.float64) @ problem.k.astype(np.float64).swapaxes(2, 3))


BROKEN = {
    "keys_permuted": position_matters,
    "constant_added": no_maximum,
    "in_hull": too_long,
    "edges_of_the_range": weights_in_halves,
    "tile_start": tile_of_32_counts_from_zero,
    "tile_start_causal": top_left,
    "no_key": nan_for_blind_rows,
    "one_key": nearly_one,
    "scale_moves_into_q": scale_ignored,
    "parts_chained": prior_counts_twice,
    "waits_for_keys": waits_for_nothing,
}


@pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)
@pytest.mark.parametrize("item", RELATIONS, ids=lambda item: item.holds.__name__)
def test_a_right_implementation_has_every_property(item, element, rng):
    assert item.holds(Trial(stand_in()), rng, element) > 1


def test_an_answer_that_depends_on_the_gpu_is_seen(rng):
    def launch(problem, out, executor, lse=None, variant=None):
        stand_in().launch(problem, out, executor, lse)
        out += np.float16(0.1 * (executor.sm_count < 132))

    with pytest.raises(Failed, match="on a GPU of 1 multiprocessors"):
        any_gpu(Trial(replace(stand_in(), launch=launch)), rng)


@pytest.mark.parametrize(
    "item", [item for item in RELATIONS if not item.divided_only], ids=lambda item: item.holds.__name__
)
def test_a_broken_one_does_not(item, rng):
    if item.holds is any_schedule:
        calls = []

        def depends_on_the_run(problem):
            calls.append(None)
            return honest(problem)[0] + 0.01 * len(calls)

        broken = stand_in(depends_on_the_run)
    else:
        broken = stand_in(BROKEN[item.holds.__name__])
    with pytest.raises(Failed) as failure:
        item.holds(Trial(broken), rng)
    assert failure.value.kind == "property"
    assert len(failure.value.text) > 40


def test_an_infinity_of_v_must_stay_one(rng):
    with pytest.raises(Failed, match=r"65504.* where V has an infinity in the columns 3 and 60"):
        edges_of_the_range(Trial(stand_in(infinities_clamped)), rng)


def test_clamped_to_the_greatest_half(rng):
    """What a kernel for another type does that kept the number of float16."""
    with pytest.raises(Failed, match=r"is -?65536\.0, the mean of V that is \+-3\.3\d+e\+35"):
        edges_of_the_range(Trial(stand_in(infinities_clamped)), rng, BFLOAT16)


def test_lse_of_blind_rows_is_a_property_too(rng):
    item = next(item for item in RELATIONS if item.holds.__name__ == "no_key")
    with pytest.raises(Failed, match="-inf"):
        item.holds(Trial(stand_in(lse_zero_for_blind_rows)), rng)


def test_causal_properties_are_asked_of_causal_stages_only():
    def asked(backend="simulator", **data):
        return {item.name for item in properties(stand_in(**data), backend)}

    plain = [item for item in RELATIONS if not item.features]
    assert asked() == {item.name for item in plain if not item.divided_only}
    assert asked(language="CUDA C", features=ALL) == {item.name for item in RELATIONS}
    assert asked(causal=False) == {item.name for item in plain if not (item.causal or item.divided_only)}
    assert asked("gpu") == {i.name for i in plain if not (i.simulator_only or i.divided_only)}
    again = {f"{item.name}, bfloat16" for item in RELATIONS if item.in_every_type}
    assert asked(elements=ACCEPTED) == asked() | again and again
