"""The checks and the mutants on a GPU, at the sizes of the plan."""

import numpy as np
import pytest
from matrix import few, first_of_each

from flashcore_numba.checks import MUTANTS, check, check_stage, kill_one
from flashcore_numba.checks.cases import SEEDS
from flashcore_numba.checks.mutation import NOT_VISIBLE
from flashcore_numba.core.shapes import PLAN_SHAPES
from flashcore_numba.stages import LADDER

pytestmark = pytest.mark.gpu

RUNS = [(stage, variant) for stage in LADDER for variant in stage.variants or [None]]
DEFAULT = [(stage, stage.default_variant) for stage in LADDER]


@pytest.mark.parametrize(("stage", "variant"), few(RUNS, *DEFAULT), ids=lambda x: getattr(x, "label", x))
def test_a_stage_passes_with_margin_at_full_size(stage, variant):
    report = check_stage(stage, variant, backend="gpu")
    told = "\n".join(f"{failure.name}: {failure.message}" for failure in report.failures)
    assert report.passed, f"seed {report.seed}\n{told}"
    nearest = min(report.results, key=lambda result: result.margin or np.inf)
    assert report.margin >= 1.5, nearest
    assert not report.scaled
    planned = [result.name for result in report.results if ", seed " in result.name]
    in_float16 = [name for name in planned if name.endswith(tuple(f", seed {seed}" for seed in SEEDS))]
    assert len(in_float16) == len(PLAN_SHAPES) * len(SEEDS)
    mission = "x".join(map(str, PLAN_SHAPES["mission"]))
    in_others = {f"mission {mission}, seed {SEEDS[0]}, {each.name}" for each in stage.elements[1:]}
    assert set(planned) - set(in_float16) == in_others


def test_check_uses_the_gpu_where_there_is_one():
    (report,) = check([LADDER[-1]], variants=list(LADDER[-1].variants)[-1:] or None)
    assert report.backend == "gpu"
    assert report.passed


@pytest.mark.parametrize(
    "mutant",
    first_of_each(MUTANTS, lambda mutant: (mutant.stage, mutant.on_gpu)),
    ids=lambda mutant: mutant.label,
)
def test_a_mutant_dies_where_values_show_it(mutant):
    fate = kill_one(mutant, backend="gpu")
    if not mutant.on_gpu:
        assert fate.status == NOT_VISIBLE
        return
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"
