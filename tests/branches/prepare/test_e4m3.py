"""write_kv_pages() into pools of e4m3: rounded once, at most 448, with scales of any kind, by the formula."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba import ArgumentError, attention, attention_paged, write_kv_pages
from flashcore_numba.branches.prepare import oracle
from flashcore_numba.branches.prepare.inputs import drawn
from flashcore_numba.branches.prepare.mutants import MUTANTS, SCALED
from flashcore_numba.branches.prepare.outputs import WRITTEN
from flashcore_numba.branches.prepare.prepare_pages import ROWS, STAGE
from flashcore_numba.checks import kill_one
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.element import E4M3
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator

NAMES = ("slot_mapping", "positions", "cos", "sin", "norm_eps", "q_weight", "k_weight", "interleaved")
OF_BYTES = [name for name in names(STAGE) if name.startswith("e4m3")]
HEADS = np.array([0.02, 0.05], np.float32)


def called(x, pools=None, **options):
    """out and the pools, which are full of NaN before."""
    rows = [each[0].swapaxes(0, 1) for each in (x.q, x.k, x.v)]
    shape = (x.pages, x.page, *x.k.shape[1::2])
    pools = pools or [np.full(shape, np.nan, E4M3.dtype) for _ in range(2)]
    given = {name: getattr(x, name) for name in (*NAMES, "k_scale", "v_scale")}
    return write_kv_pages(*rows, *pools, **given | options), *pools


def right(x, out, *pools):
    found = (out.swapaxes(0, 1)[None], *(pool.view(E4M3.dtype) for pool in pools))
    ref = oracle.reference(x)
    return all(oracle.judge(*each, ref, None).passed for each in zip(WRITTEN, found, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant):
    report = check_stage(STAGE, variant, names=OF_BYTES)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(OF_BYTES) > 12


def test_a_call_of_every_kind(rng):
    """Pools as uint8 too, scales with any stride: the same bytes, and slots of nobody keep theirs."""
    x = drawn(rng, 21, 4, 2, 64, padding=3, stored=E4M3, k_scale=HEADS, v_scale=0.03)
    out, *pools = called(x)
    assert right(x, out, *pools)
    free = np.delete(pools[0].reshape(-1, 128).view(np.uint8), x.slot_mapping[x.slot_mapping >= 0], axis=0)
    assert (free & 0x7F == 0x7F).all()
    wide, once = np.full((2, 3), HEADS[:, None]), np.broadcast_to(np.float32(0.03), 2)
    again = [np.zeros(pool.shape, np.uint8) | 0x7F for pool in pools]
    same_out, *_ = called(x, again, k_scale=wide[:, 2], v_scale=once)
    padding = x.slot_mapping < 0
    assert np.array_equal(out[~padding], same_out[~padding])
    assert all(np.array_equal(one.view(np.uint8), other) for one, other in zip(pools, again, strict=True))


def test_what_is_beyond_448_becomes_448(rng):
    x = drawn(rng, 4, 2, 2, 64, rotated=0, norm_eps=None, stored=E4M3, v_scale=2.0**-10)
    x = x.but(v=np.where(np.abs(x.v) < 0.5, np.float16(3), x.v))
    _, _, pool = called(x)
    stored = pool.reshape(-1, 2, 64)[x.slot_mapping].astype(np.float32)
    assert (stored == 448 * np.sign(x.v[0].swapaxes(0, 1))).all()


@pytest.mark.long
def test_what_attention_reads_is_what_was_written(rng):
    """Both calls on the same pools and scales: attention over what was rounded to e4m3."""
    tokens = 37
    x = drawn(rng, tokens, 4, 2, 64, rotated=0, norm_eps=None, stored=E4M3, k_scale=HEADS, v_scale=0.03)
    out, *pools = called(x)
    slots = x.slot_mapping.astype(np.int32)[None]
    each_slot = [pool.reshape(-1, 1, 2, 64) for pool in pools]  # pages of one key
    lengths, scales = np.array([tokens], np.int32), {"k_scale": HEADS, "v_scale": 0.03}
    q = np.ascontiguousarray(out[-1:].swapaxes(0, 1))[None]
    found = attention_paged(q, *each_slot, slots, lengths, **scales)
    k, v = (
        pool.reshape(-1, 2, 64)[x.slot_mapping].astype(np.float32) * np.reshape(scale, (-1, 1))
        for pool, scale in zip(pools, (HEADS, np.float32(0.03)), strict=True)
    )
    near = attention(q, *(np.float16(y.swapaxes(0, 1)[None]) for y in (k, v)), stage=5)
    assert np.allclose(found.astype(float), near.astype(float), atol=3e-3)
    exact = attention(q, x.k, x.v, stage=5)
    assert np.abs(found.astype(float) - exact.astype(float)).max() > 3e-3  # e4m3 is not float16


def test_bad_arguments(rng):
    x = drawn(rng, 5, 4, 2, 64)
    bytes_ = [np.zeros((x.pages, x.page, 2, 64), E4M3.dtype) for _ in range(2)]
    plain = [np.zeros(bytes_[0].shape, np.float16) for _ in range(2)]
    for pools, options, message in (
        (plain, {"k_scale": 0.5}, "k_scale is given for pools of float16: only pools of float8_e4m3fn"),
        (bytes_, {"v_scale": 0.0}, "v_scale is 0.0: it must be a number above 0"),
        (bytes_, {"v_scale": np.ones(3, np.float32)}, r"v_scale has shape \(3,\): it must be \(2,\)"),
        ([bytes_[0], plain[1]], {}, "v_pool has dtype float16: only float8_e4m3fn is accepted"),
        ([plain[0], bytes_[1]], {}, "v_pool has dtype float8_e4m3fn: only float16 is accepted"),
        ([bytes_[0], bytes_[1][..., ::-1]], {}, "v_pool has strides"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            called(x, pools, **options)


@pytest.mark.parametrize(
    "options", [{"k_scale": HEADS, "v_scale": 0.1, "padding": 4}, {"rotated": 0}], ids=str
)
@pytest.mark.parametrize(
    ("variant", "head_dim"), few([(v, d) for v in ROWS for d in (64, 128)], ("one_row", 64))
)
def test_the_formula_is_what_is_counted(variant, head_dim, options, rng):
    x = drawn(rng, int(rng.integers(5, 30)), 6, 2, head_dim, stored=E4M3, **options)
    problem, executor = x.problem(x.arrays), Simulator(races=False)
    STAGE.run(problem, executor, variant)
    (launch,) = executor.launches
    assert predict(STAGE, variant, problem, 132) == Traffic.of_totals(launch.totals()), x.label


def test_bytes_that_must_move(rng):
    x = drawn(rng, 10, 8, 2, 128, rotated=0, norm_eps=None, stored=E4M3)
    problem = x.problem(x.arrays)
    assert problem.e4m3 and problem.min_bytes == 10 * 128 * (12 * 2 + 8 * 2 + 4) + 10 * 8


@pytest.mark.parametrize("mutant", few(SCALED, SCALED[0]), ids=lambda mutant: mutant.name)
def test_mutants_die(mutant):
    fate = kill_one(mutant, names=OF_BYTES)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"
    assert len(SCALED) >= 5 and {*SCALED} <= {*MUTANTS}
