"""The kernel of attention in 8 bits: right in every case and order, as foretold, with few spills."""

import numpy as np
import pytest
from matrix import few

from cuda_reference.compile import why_not
from flashcore_numba.branches.fp8 import fp8_wgmma
from flashcore_numba.branches.fp8.cases import outliers
from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.fp8.properties import one_value
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.checks.trial import LAYOUTS, Trial
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.runs import Run

KINDS = [(d, element) for d in STAGE.head_dims for element in STAGE.elements]
COMPILED = [(128, FLOAT16), (64, BFLOAT16)]  # for quick tests: each kind takes the compiler seconds
TELLING = (
    "ragged 33 rows, 270 keys, two heads, two batches",
    "causal 300 rows, 100 keys: rows that see none",
    "scores rise slowly",
    "tiles of V of many sizes",
    "keys of tiles that are not seen change no bit",
)


@pytest.mark.parametrize("variant", few(STAGE.variants, "wgmma"))
def test_the_cases_that_tell_most(variant):
    report = check_stage(STAGE, variant, names=TELLING)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(TELLING)


@pytest.mark.long
def test_every_case():
    report = check_stage(STAGE)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(names(STAGE)) > 60


def random_problem(rng, kinds):
    kv_heads, group, batch = (int(n) for n in rng.integers(1, 3, 3))
    rows, keys = (int(n) for n in rng.integers(1, (400, 600)))
    d, element = kinds[rng.integers(len(kinds))]
    scale = float(rng.uniform(-0.3, 0.3)) if rng.integers(2) else None
    options = {"element": element, "causal": bool(rng.integers(2)), "scale": scale}
    return normal(rng, batch, kv_heads * group, rows, keys, d, kv_heads, **options)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 8])
def test_random_problems(count, rng):
    for _ in range(count):
        x = random_problem(rng, COMPILED if count == 1 else KINDS)
        answer = Trial(STAGE)(x, layout=str(rng.choice([*LAYOUTS, "mixed"])))
        reference = FP8.reference(x)
        for output in (OUT, LSE):
            verdict = FP8.judge(output, getattr(answer, output.name), reference, None)
            assert verdict.passed, (x.label, output.name, verdict.where, verdict.reason)


COUNTED = [(variant, d) for variant in STAGE.variants for d in STAGE.head_dims]


@pytest.mark.long
@pytest.mark.parametrize(("variant", "d"), COUNTED)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_formula_is_what_is_counted(variant, d, causal, rng):
    sm_count = int(rng.choice([2, 132]))
    rows, keys = (int(n) for n in rng.integers(1, 400, 2))
    x = normal(rng, 2, 2, rows, keys, d, 1, causal=causal)
    problem, executor = x.problem(x.arrays), Simulator(races=False, sm_count=sm_count)
    STAGE.run(problem, executor, variant, optional=False)
    counted = sum((Traffic.of_totals(each.totals()) for each in executor.launches), Traffic())
    assert predict(STAGE, variant, problem, sm_count) == counted, (x.label, sm_count)


def test_a_nan_stays_one(rng):
    """In a row of Q it makes that row NaN, and no other."""
    x = normal(rng, 1, 1, 70, 200, 128)
    q = x.q.copy()
    q[0, 0, 20, 7] = np.nan
    x = x.but(q=q)
    executor = Simulator()
    found = STAGE.run(x.problem(x.arrays), executor)["out"][0, 0]
    assert np.isnan(found[20]).all() and np.isfinite(np.delete(found, 20, axis=0)).all()


def test_an_infinity_of_v_is_no_number(rng):
    x = normal(rng, 1, 1, 20, 200, 64)
    v = x.v.copy()
    v[0, 0, 5, 3] = np.inf
    x = x.but(v=v)
    assert np.isnan(STAGE.run(x.problem(x.arrays), Simulator())["out"]).all()


@pytest.mark.long
def test_what_outliers_cost(rng):
    """docs/fp8.md: a few percent of the outputs in the root mean square, in any variant."""
    x = outliers(rng, 1, 1, 64, 256, 128)
    right = FP8.reference(x).out
    for variant in STAGE.variants:
        found = STAGE.run(x.problem(x.arrays), Simulator(), variant)["out"].astype(np.float64)
        assert 0.01 < np.linalg.norm(found - right) / np.linalg.norm(right) < 0.1


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("head_dim", STAGE.head_dims)
@pytest.mark.parametrize("variant", STAGE.variants)
def test_registers(variant, head_dim):
    """At D = 128 some spills: O, S and P are 144 of the 160 registers. wgmma is not serialised."""
    found = registers(Run(STAGE, variant), examples(STAGE, head_dim), (9, 0))
    kernels = {each["kernel"].partition(" ")[0] for each in found}
    assert kernels == {"fp8_wgmma", "quantise_rows", "quantise_v"}
    for each in found:
        assert not each["warnings"]
        attends = each["kernel"].startswith("fp8_wgmma")
        assert each["spill_bytes"] <= (64 if attends and head_dim == 128 else 0), each
    assert fp8_wgmma.block_bytes(head_dim) <= 227 * 1024


def test_the_executor_rounds_a_product_before_it_is_added_to():
    """Else the maximum of a row is another one than its weights are taken from: here an output was 0."""
    assert one_value(Trial(STAGE), np.random.default_rng(11)) > 1
