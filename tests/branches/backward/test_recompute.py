"""The first stage of the backward pass: right, free of races, the same in every order, of known traffic."""

import numpy as np
import pytest
from matrix import few
from numba import cuda

from flashcore_numba.branches.backward import oracle
from flashcore_numba.branches.backward.backward_recompute import STAGE
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.features import Features
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.simulator import simulate
from flashcore_numba.stages.parts.mask import band
from flashcore_numba.stages.runs import Run

VARIANTS = list(STAGE.variants)
ORDERS = ("lockstep", "forward", "reverse", "random:3")
SHAPES = {  # batch, query heads, K/V heads, S_q, S_k, causal
    "full, GQA": (2, 4, 2, 33, 70, False),
    "causal, fewer rows": (1, 2, 2, 33, 70, True),
    "causal, rows that see no key": (1, 2, 1, 70, 33, True),
    "causal, MQA": (1, 3, 1, 40, 40, True),
    "one key": (1, 2, 2, 33, 1, False),
    "one row": (2, 1, 1, 1, 70, True),
}


def inputs(rng, batch, heads, kv_heads, seq_q, seq_k, causal, head_dim=64, dlse=True, **options):
    x = normal(rng, batch, heads, seq_q, seq_k, head_dim, kv_heads=kv_heads, causal=causal, **options)
    return backward_inputs(x, rng, dlse)


def gradients(x, variant, **options):
    """By name, after a check that no launch reports anything; what is not written stays NaN."""
    executor = Simulator(**options)
    problem = x.problem(x.arrays)
    found = STAGE.run(problem, executor, variant, lambda shape, dtype: np.full(shape, np.nan, dtype))
    executor.check()
    return found


def assert_right(x, found):
    reference = BACKWARD.reference(x)
    for output in BACKWARD.outputs:
        verdict = BACKWARD.judge(output, found[output.name], reference, None)
        assert verdict.passed, (output.name, verdict)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_right(variant, shape, head_dim, rng):
    x = inputs(rng, *SHAPES[shape], head_dim)
    found = gradients(x, variant)
    assert_right(x, found)
    unseen = ~np.isfinite(x.lse)
    assert (found["dq"][unseen] == 0).all() and unseen.any() == (shape == "causal, rows that see no key")


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_scale(variant, scale, rng):
    x = inputs(rng, 1, 2, 1, 20, 45, True, scale=scale)
    assert_right(x, gradients(x, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_in_the_thousands(variant, rng):
    x = normal(rng, 1, 1, 33, 45, 64, scale=1.0)
    x = backward_inputs(x.but(q=(x.q * np.float16(400))), rng)
    assert np.abs(x.lse).max() > 5000
    assert_right(x, gradients(x, variant))


@pytest.mark.long
@pytest.mark.parametrize(("left", "right"), [(17, 5), (3, -1), (0, 0)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_windows(variant, left, right, rng):
    for seq_q, seq_k in ((50, 90), (90, 50)):
        x = inputs(rng, 1, 2, 1, seq_q, seq_k, False, features=Features(window=(left, right)))
        assert_right(x, gradients(x, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_strides_are_free(variant, rng):
    """[B, S, H, D] in memory with room after each row, and gradients likewise."""
    x = inputs(rng, 1, 2, 1, 33, 20, False)

    def strided(array):
        batch, heads, rows, width = array.shape
        room = np.full((batch, rows, heads, width + 8), np.nan, array.dtype)[..., :width].swapaxes(1, 2)
        room[...] = array
        return room

    spread = {name: strided(x.arrays[name]) for name in ("q", "k", "v", "out", "dout")}
    problem = x.problem(x.arrays | spread)
    found = {name: strided(np.full_like(x.arrays[name[1:]], np.nan)) for name in ("dq", "dk", "dv")}
    executor = Simulator()
    STAGE.launch(problem, executor=executor, variant=variant, **found)
    executor.check()
    assert_right(x, found)


class Kept(Simulator):
    """Keeps what it gave as scratch memory."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scratch = []

    def empty(self, shape, dtype):
        self.scratch.append(super().empty(shape, dtype))
        return self.scratch[-1]


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_orders(variant, rng):
    """No order makes a race; where nobody adds to what others add to, no order changes a bit."""
    x = inputs(rng, 1, 2, 1, 18, 24, True)
    found, sums = [], []
    for order in ORDERS:
        executor = Kept(order=order)
        found.append(STAGE.run(x.problem(x.arrays), executor, variant, np.empty))
        executor.check()
        assert_right(x, found[-1])
        sums.append(np.array(executor.scratch[-1]))  # of dQ, in float32, where it is added in memory
    for name in ("dk", "dv") if variant == "atomics" else ("dq", "dk", "dv"):
        assert all(np.array_equal(found[0][name], each[name]) for each in found)
    if variant == "atomics":
        assert not any(np.array_equal(sums[1], each) for each in sums[2:])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_case_and_property(variant, rng):
    """Of the variants that nobody gets unasked, some cases."""
    every = names(STAGE)
    chosen = every if variant == STAGE.default else rng.choice(every, 20, replace=False)
    report = check_stage(STAGE, variant, names=chosen)
    assert report.passed, report.failures[0]
    assert report.margin > 1.5 and len(report.results) == len(chosen)


@pytest.mark.long
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_is_in_registers(variant, head_dim, capability):
    found = registers(Run(STAGE, variant), examples(STAGE, head_dim), divmod(capability, 10))
    assert len(found) == 3
    for kernel in found:
        assert (kernel["spill_bytes"], kernel["stack_bytes"]) == (0, 0), kernel
        assert 0 < kernel["registers"] <= 168 and kernel["shared_bytes"] <= 48 * 1024, kernel


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize("variant", VARIANTS)
def test_formula_is_what_is_counted(variant, head_dim, rng):
    longest = 150 if variant == "tiles" else 60
    for causal, window in ((False, None), (True, None), (False, (20, 7)), (True, (9, -1))):
        seq_q, seq_k = rng.integers(1, longest, 2)
        kv_heads, group, batch = rng.integers(1, 3, 3)
        features = Features(window=window) if window else Features()
        shape = (int(batch), int(kv_heads * group), int(kv_heads), int(seq_q), int(seq_k), causal)
        x = inputs(rng, *shape, head_dim, dlse=bool(rng.integers(2)), features=features)
        problem, executor = x.problem(x.arrays), Simulator(races=False)
        STAGE.run(problem, executor, variant, np.empty)
        counted = sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())
        assert predict(STAGE, variant, problem, 132) == counted, (shape, window)


def test_the_default_has_no_bank_conflict_of_its_own(rng):
    """Tiles end in the middle of nothing: whole tiles come and go without a conflict."""
    x = inputs(rng, 1, 1, 1, 128, 128, False)
    assert predict(STAGE, None, x.problem(x.arrays), 132).bank_conflicts == 0


@cuda.jit
def ends(out, seq_q, seq_k, left, right):
    row = cuda.grid(1)
    if row < seq_q:
        out[row, 0], out[row, 1] = band(row, seq_q, seq_k, left, right)


@pytest.mark.parametrize("bounds", [(-1, -1), (-1, 0), (5, -1), (5, 0), (0, 3), (40, 40)])
def test_band_is_the_mask_and_its_transposed(bounds):
    for seq_q, seq_k in ((7, 20), (20, 7), (9, 9), (1, 5)):
        left, right = bounds
        mask = Mask(seq_q, seq_k, left, right)
        for of, length, arguments in (
            (mask.interval, seq_q, (seq_q, seq_k, left, right)),
            (mask.rows, seq_k, (seq_k, seq_q, right, left)),
        ):
            out = np.zeros((length, 2), np.int64)
            simulate(ends, 1, 32, out, *arguments).check()
            assert np.array_equal(out, np.stack(of(np.arange(length)), 1))


def test_p_is_of_the_lse_that_is_given(rng):
    """No softmax is made again: another LSE is another P."""
    x = inputs(rng, 1, 1, 1, 10, 20, False, dlse=False)
    other = x.but(lse=x.lse + np.float32(np.log(2)))
    assert_right(other, gradients(other, "rows"))
    once, twice = oracle.gradients(other).dv, oracle.gradients(x).dv
    assert np.abs(2 * once - twice).max() < 1e-5 * np.abs(twice).max()
