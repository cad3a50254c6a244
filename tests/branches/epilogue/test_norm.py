"""The kernel: right in every case and order, without spills, with as many blocks as a cluster holds."""

import numpy as np
import pytest
from matrix import few

from cuda_reference.compile import why_not
from flashcore_numba.branches.epilogue import epilogue_norm
from flashcore_numba.branches.epilogue.epilogue_norm import STAGE, choose
from flashcore_numba.branches.epilogue.inputs import drawn
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.outputs import WRITTEN
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.checks.trial import LAYOUTS, Trial
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.runs import Run

TELLING = (
    "ragged 33 rows, 70 keys, two heads, two batches",
    "causal 70 rows, 600 keys, 4 heads on 2",
    "RMSNorm, 40 rows, 300 keys, 2 heads",
    "rows of equal numbers",
    "rows in another order: the same bits",
)


@pytest.mark.parametrize("variant", few(STAGE.variants, "norm"))
def test_the_cases_that_tell_most(variant):
    report = check_stage(STAGE, variant, names=TELLING)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(TELLING)


@pytest.mark.long
def test_every_case():
    report = check_stage(STAGE)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(names(STAGE)) > 28


def random_problem(rng):
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    batch, rows, keys = (int(n) for n in rng.integers(1, (3, 80, 600)))
    options = {name: bool(rng.integers(2)) for name in ("causal", "bias", "residual")}
    options |= {"norm": str(rng.choice(["layer", "rms"])), "eps": float(10.0 ** rng.uniform(-6, 0))}
    options |= {"element": STAGE.elements[rng.integers(2)], "scale": float(rng.uniform(-0.3, 0.3))}
    d = int(rng.choice(STAGE.head_dims))
    return drawn(rng, batch, kv_heads * group, rows, keys, d, kv_heads, **options)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 4])
def test_random_problems(count, rng):
    for _ in range(count):
        x = random_problem(rng)
        answer = Trial(STAGE, str(rng.choice(list(STAGE.variants))))(x, str(rng.choice([*LAYOUTS, "mixed"])))
        reference = EPILOGUE.reference(x)
        for output in WRITTEN:
            verdict = EPILOGUE.judge(output, getattr(answer, output.name), reference, None)
            assert verdict.passed, (x.label, output.name, verdict.where, verdict.reason)


def test_the_oracle_is_the_textbook(rng):
    """Row by row, and a change of one part in a hundred is wrong."""
    for norm in ("layer", "rms"):
        x = drawn(rng, 1, 2, 3, 5, 64, norm=norm, eps=0.1)
        right = EPILOGUE.reference(x)["out"].right
        for row in range(3):
            attended = []
            for h in range(2):
                scores = x.q[0, h, row].astype(float) @ x.k[0, h].astype(float).T / 8
                p = np.exp(scores - scores.max())
                attended.append(p / p.sum() @ x.v[0, h].astype(float))
            own = np.concatenate(attended) + x.residual[0, 0, row]
            if norm == "layer":
                own = own - own.mean()
            own = own / np.sqrt((own**2).mean() + 0.1) * x.weight.astype(float) + x.bias.astype(float)
            assert np.allclose(own, right[0, 0, row], rtol=1e-12, atol=1e-12)
        assert not EPILOGUE.judge(WRITTEN[0], 1.01 * right, EPILOGUE.reference(x), None).passed


def test_how_many_blocks_a_head_has(rng):
    """One, unless the variant says two and the cluster has room for them."""

    def chosen(heads, variant=None):
        x = drawn(rng, 1, heads, 64, 512, 64)
        return choose(x.problem(x.arrays), variant).cluster

    assert chosen(8) == chosen(8, "norm") == chosen(8, "overlapped") == 1
    assert chosen(8, "two_blocks") == 2 and chosen(9, "two_blocks") == chosen(16) == 1


COUNTED = [(variant, d) for variant in ("norm", "two_blocks") for d in STAGE.head_dims]


@pytest.mark.long
@pytest.mark.parametrize(("variant", "d"), COUNTED)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_formula_is_what_is_counted(variant, d, causal, rng):
    rows, keys, heads, group = (int(n) for n in rng.integers(1, (80, 500, 4, 3)))
    options = {name: bool(rng.integers(2)) for name in ("bias", "residual")}
    norm = str(rng.choice(["layer", "rms"]))
    x = drawn(rng, 1, group * heads, rows, keys, d, heads, causal=causal, norm=norm, **options)
    problem, executor = x.problem(x.arrays), Simulator(races=False)
    STAGE.run(problem, executor, variant, optional=False)
    (launch,) = executor.launches
    assert predict(STAGE, variant, problem, 132) == Traffic.of_totals(launch.totals()), x.label


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("head_dim", STAGE.head_dims)
@pytest.mark.parametrize("variant", ["norm", "overlapped"])
def test_nothing_spills(variant, head_dim):
    """Of one block per head and of two: the examples are small, of few rows and keys enough, and large."""
    found = registers(Run(STAGE, variant), examples(STAGE, head_dim), (9, 0))
    assert {each["kernel"].partition(" ")[0] for each in found} == {"epilogue_norm"}
    for each in found:
        assert (each["spill_bytes"], each["stack_bytes"], each["warnings"]) == (0, 0, []), each


@pytest.mark.parametrize("head_dim", STAGE.head_dims)
@pytest.mark.parametrize(("blocks", "heads"), [(1, 16), (2, 8)])
def test_the_most_shared_memory(blocks, heads, head_dim):
    split = epilogue_norm.SPLITS[head_dim][blocks]
    assert epilogue_norm.shared_bytes(heads, head_dim, split) <= 227 * 1024
