"""What passes for right in 8 bits: quantising alone does, and small errors everywhere do not."""

from pathlib import Path

import numpy as np
import pytest

from flashcore_numba.branches.fp8.bounds import reference
from flashcore_numba.branches.fp8.cases import mean_of_one, needle, outliers
from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.fp8.twin import dequantised, quantised
from flashcore_numba.checks.cases import normal
from flashcore_numba.core import oracle
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.run.executor import Simulator

DRAWN = {
    "normal": lambda rng: normal(rng, 1, 2, 40, 300, 128, 1),
    "causal": lambda rng: normal(rng, 1, 1, 130, 200, 64, causal=True),
    "outliers": lambda rng: outliers(rng, 1, 1, 40, 300, 128),
    "needle": lambda rng: needle(rng, 500, 128, FLOAT16),
    "mean": lambda rng: mean_of_one(rng, 1000, 64, FLOAT16),
}


def standard(x, lost=0.0):
    """Attention of the quantised numbers and rounded weights, and its LSE. lost: by P V, of itself."""
    scale = x.q.shape[3] ** -0.5
    stored = dequantised(quantised(x.q, x.k, x.v), x.k.shape[2], scale)
    out, lse = np.empty(x.q.shape), np.empty(x.q.shape[:3])
    for h in range(x.q.shape[1]):
        h_kv = h // (x.q.shape[1] // x.k.shape[1])
        seen = np.arange(x.k.shape[2]) < x.mask.interval(np.arange(x.q.shape[2]))[1][:, None]
        scores = np.where(seen, stored.q[0, h] @ stored.k[0, h_kv].T, -np.inf)
        largest = scores.max(axis=1, keepdims=True)
        p = 32 * np.exp(scores - largest)
        total = p.sum(axis=1, keepdims=True)
        rounded = E4M3.round(p).astype(np.float64)
        out[0, h] = (1 - lost) * (rounded @ stored.v[0, h_kv]) / total
        lse[0, h] = largest[:, 0] + np.log(total[:, 0] / 32)
    return FLOAT16.round(out), lse.astype(np.float32)


@pytest.mark.parametrize("name", DRAWN)
def test_a_textbook_in_8_bits_is_right(name, rng):
    x = DRAWN[name](rng)
    ref = reference(x)
    for output, value in zip((OUT, LSE), standard(x), strict=True):
        verdict = FP8.judge(output, value, ref, None)
        assert verdict.passed, (output.name, verdict)
    assert np.array_equal(FP8.expected(OUT, ref), oracle.attention(x.q, x.k, x.v, x.causal)[0])


def test_what_all_outputs_lose_together_shows(rng):
    """5 % of every output is within the bound of each element, and beyond that of all."""
    x = mean_of_one(rng, 1000, 64, FLOAT16)
    ref = reference(x)
    assert not FP8.judge(OUT, standard(x, lost=0.05)[0], ref, None).passed
    small = normal(rng, 1, 1, 40, 300, 64)
    ref = reference(small)
    noise = np.where(rng.random(ref.out.shape) < 0.5, -1, 1) * 0.99 * ref.allowed
    verdict = FP8.judge(OUT, ref.out + noise, ref, None)
    assert not verdict.passed and "RMSE" in verdict.reason


def test_nothing_else_passes(rng):
    x = normal(rng, 1, 1, 40, 300, 128)
    ref, (out, lse) = reference(x), standard(x)
    for wrong in (0 * out, 1.3 * out, np.roll(out, 1, axis=2), np.full_like(out, np.nan)):
        assert not FP8.judge(OUT, wrong, ref, None).passed
    for wrong in (lse + 0.2, np.where(np.arange(40) == 7, np.inf, lse)):
        assert not FP8.judge(LSE, wrong, ref, None).passed


def test_bounds_are_of_use(rng):
    """For normal inputs the RMSE that is allowed is below 10 % of the outputs."""
    ref = reference(normal(rng, 1, 1, 64, 500, 128))
    assert ref.rmse < 0.1 * ref.out.std() and np.median(ref.allowed) < 0.4 * ref.out.std()


PAGE = Path(__file__).resolve().parents[3] / "docs/fp8.md"
ROWS = {  # of the page's table, by how they begin
    "N(0, 1) |": lambda rng: normal(rng, 1, 1, 192, 1024, 128),
    "and 0.1 %": lambda rng: outliers(rng, 1, 1, 192, 1024, 128),
    "N(0, 1), scale 1": lambda rng: normal(rng, 1, 1, 192, 1024, 128, scale=1.0),
    "one key": lambda rng: needle(rng, 1024, 128, FLOAT16),
    "V around 1": lambda rng: mean_of_one(rng, 2048, 128, FLOAT16),
}


def errors(x):
    """In percent: of the kernel, then what Q and K cost alone, V alone, P alone."""
    scale = 128**-0.5 if x.scale is None else x.scale
    q, k, v = (getattr(x, each)[0, 0].astype(np.float64) for each in "qkv")
    stored = dequantised(quantised(x.q, x.k, x.v), len(k), scale)
    scores = scale * q @ k.T
    p = 32 * np.exp(scores - scores.max(axis=1, keepdims=True))
    total = p.sum(axis=1, keepdims=True)
    right = p @ v / total
    moved = stored.q[0, 0] @ stored.k[0, 0].T
    off = np.exp(moved - moved.max(axis=1, keepdims=True))
    kernel = STAGE.run(x.problem(x.arrays), Simulator())["out"][0, 0].astype(np.float64)
    found = (
        *(kernel, off @ v / off.sum(axis=1, keepdims=True), p @ stored.v[0, 0] / total),
        E4M3.round(p).astype(np.float64) @ v / total,
    )
    return [100 * np.linalg.norm(each - right) / np.linalg.norm(right) for each in found]


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_the_page(name, rng):
    """The median of some draws: with outliers they differ."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}")]
    said = [float(cell.strip(" %")) for cell in row.split("|")[2:6]]
    found = np.median([errors(ROWS[name](rng)) for _ in range(5)], axis=0)
    assert found == pytest.approx(said, rel=0.3, abs=1.0 if "0.1" in name else 0.06)
