"""The first stage of decoding: right, free of races, the same in every order, all in registers."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba.branches.decode.cases import AROUND
from flashcore_numba.branches.decode.decode_chunks import STAGE
from flashcore_numba.branches.decode.decode_chunks_attend import chunk_keys
from flashcore_numba.branches.decode.inputs import paged
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.runner import names
from flashcore_numba.core.features import Features
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.runs import Run

QUICK = (
    "lengths around pages of 16",
    "5 tokens, causal, 4 query heads on 2",
    "100 times as many keys",
    "rows of K and V in turn",
    "window: 33 keys before, causal",
    "sinks: with a window and a softcap",
    "D=64, D_v=256",
    "pages of 1",
    "alone and in a batch: the same bits",
    "two halves merged are the whole",
)


def decoded(x, **options):
    """out and lse, after a check that no launch reports anything; what is not written stays NaN."""
    executor = Simulator(**options)
    problem = x.problem(x.arrays)
    found = STAGE.run(problem, executor, None, lambda shape, dtype: np.full(shape, np.nan, dtype))
    executor.check()
    return found


def assert_right(x, found):
    ref = DECODE.reference(x)
    for output in DECODE.outputs:
        verdict = DECODE.judge(output, found[output.name], ref, None)
        assert verdict.passed, (output.name, verdict)


@pytest.mark.parametrize("name", few(names(STAGE), *QUICK))
def test_every_case_and_property(name):
    report = check_stage(STAGE, names=[name])
    assert report.passed, report.failures[0]
    assert len(report.results) == 1 and report.margin > 1.5


@pytest.mark.long
def test_random_problems(rng):
    """Pages, lengths, tokens, groups and windows that no case names."""
    for _ in range(4):
        kv_heads, group, tokens, page = (int(n) for n in rng.integers(1, (3, 6, 5, 40)))
        left, right = (int(n) for n in rng.integers(-1, 60, 2))
        x = paged(
            rng,
            rng.integers(0, 150, 3).tolist(),
            kv_heads * group,
            kv_heads,
            tokens,
            page=page,
            causal=bool(rng.integers(2)),
            scale=float(rng.uniform(-0.3, 0.3)),
            features=Features(window=(left, right)),
        )
        assert_right(x, decoded(x))


@pytest.mark.long
def test_pages_do_not_show_in_the_bits(rng):
    """Requests on pages of 16 and as one contiguous cache give the same bits."""
    x = paged(rng, AROUND, 4, 2, 3)
    longest = max(AROUND)
    k, v = (np.zeros((len(AROUND), longest, 2, 64), np.float16) for _ in range(2))
    for number, length in enumerate(AROUND):
        one = x.request(number)
        k[number, :length], v[number, :length] = one.k[0].swapaxes(0, 1), one.v[0].swapaxes(0, 1)
    table = np.arange(len(AROUND), dtype=np.int32)[:, None]
    one, other = decoded(x), decoded(x.but(k_pool=k, v_pool=v, block_table=table))
    assert all(np.array_equal(one[name], other[name]) for name in ("out", "lse"))


def test_a_row_has_a_lane_for_every_chunk():
    """Chunks are whole tiles, of 64 keys where no more of them than lanes come of it."""
    for length in (0, 1, 64, 2047, 2048, 2049, 100_000, 2**30):
        keys = chunk_keys.py_func(length)
        assert keys % 32 == 0 and -(-length // keys) <= 32
        assert keys == 64 or length > 2048


@pytest.mark.long
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_all_is_in_registers(head_dim, capability):
    found = registers(Run(STAGE, None), examples(STAGE, head_dim), divmod(capability, 10))
    assert len(found) == 2
    for kernel in found:
        assert (kernel["spill_bytes"], kernel["stack_bytes"]) == (0, 0), kernel
        assert 0 < kernel["registers"] <= 96 and kernel["shared_bytes"] == 0, kernel


def test_formula_is_what_is_counted(rng):
    for _ in range(4):
        kv_heads, group, tokens, page = (int(n) for n in rng.integers(1, (3, 3, 3, 40)))
        window = tuple(int(n) for n in rng.integers(-1, 100, 2))
        sinks = np.zeros(kv_heads * group, np.float32) if rng.integers(2) else None
        x = paged(
            rng,
            [0, *rng.integers(0, 250, 2).tolist()],
            kv_heads * group,
            kv_heads,
            tokens,
            int(rng.choice([64, 128])),
            page,
            value_dim=int(rng.choice([64, 128])),
            spare_columns=int(rng.integers(200)),
            causal=bool(rng.integers(2)),
            features=Features(window=window, sinks=sinks),
        )
        problem, executor = x.problem(x.arrays), Simulator(races=False)
        STAGE.run(problem, executor, None, np.empty)
        counted = sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())
        assert predict(STAGE, None, problem, 132) == counted, (x.label, problem.width)
