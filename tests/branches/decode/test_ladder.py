"""Every stage of decoding on inputs that no case names, and on what `flashcore compare` draws."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba.branches.decode.inputs import JOINED, paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import cut_by_all_lengths
from flashcore_numba.checks.trial import LAYOUTS, Trial
from flashcore_numba.core.features import Features
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload, options

by_stage = pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)


def random_problem(rng, stage):
    """Of what the stage serves: types, head dimensions, groups, tokens, pages, lengths, features, layouts."""
    kv_heads, group, tokens, page = (int(n) for n in rng.integers(1, (3, 9, 9, 70)))
    longest = int(rng.choice([20, 150, 600]))
    dims = [int(dim) for dim in rng.choice(stage.head_dims, 2 if stage.value_dims else 1)]
    sinks = rng.standard_normal(kv_heads * group).astype(np.float32) if rng.integers(2) else None
    window = tuple(int(n) for n in rng.integers(-1, longest, 2)) if rng.integers(2) else (-1, -1)
    given = {"window": window, "softcap": float(rng.choice([0, 5.0])), "sinks": sinks}
    return paged(
        rng,
        rng.integers(0, longest, rng.integers(1, 5)).tolist(),
        kv_heads * group,
        kv_heads,
        tokens,
        dims[0],
        page,
        value_dim=dims[-1],
        spare_columns=int(rng.integers(0, 50)),
        element=stage.elements[rng.integers(len(stage.elements))],
        causal=bool(rng.integers(2)),
        scale=float(rng.uniform(-0.5, 0.5)),
        features=Features(**{name: value for name, value in given.items() if name in stage.features}),
        batch_invariant=stage.limit is not cut_by_all_lengths and bool(rng.integers(2)),
        joined=str(rng.choice([way for way in JOINED if way != "pages" or dims[0] == dims[-1]])),
    )


def judged(stage, x, answer):
    reference = DECODE.reference(x)
    for output in DECODE.outputs:
        verdict = DECODE.judge(output, getattr(answer, output.name), reference, None)
        assert verdict.passed, (stage.key, x.label, output.name, verdict.where, verdict.reason)


@pytest.mark.parametrize("count", few([1, 8], 1))
@by_stage
def test_random_problems(stage, count, rng):
    for _ in range(count):
        x = random_problem(rng, stage)
        judged(stage, x, Trial(stage)(x, layout=str(rng.choice([*LAYOUTS, "mixed"]))))


@pytest.mark.long
@by_stage
def test_workloads_with_lengths_are_served(stage, rng):
    """A ragged batch, and requests that use a part of S keys."""
    for text, features in (("6x4/2x1-100x64", "none"), ("3x4/2x100x64", "seqused_k sinks window=40,0")):
        (workload, *_) = Workload(parse_any(text), True, **options(features)).drawn_with(7)
        assert {*workload.arguments} <= {*stage.features}
        x = DECODE.draw(workload.arrays, True, rng, features=workload.features(rng))
        assert len({*x.lengths.tolist()}) > 1 and stage.why_not(x.problem(x.arrays)) is None
        judged(stage, x, Trial(stage)(x))
