"""Norm, RoPE and the write into pages: right in every case, in one launch, by the formula, without spills."""

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from cuda_reference.compile import why_not
from flashcore_numba.branches.prepare import oracle
from flashcore_numba.branches.prepare.inputs import drawn, tables
from flashcore_numba.branches.prepare.operation import PREPARE
from flashcore_numba.branches.prepare.outputs import WRITTEN, tokens_written
from flashcore_numba.branches.prepare.prepare_pages import ROWS, STAGE, choose
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator

TELLING = (
    "one token, D = 128",
    "7 tokens, 9 heads on 3, D = 256",
    "37 tokens, D = 64, bfloat16",
    "padding, D = 64",
    "page 7, D = 128",
    "slots as int32, D = 64",
    "R = 48, D = 64",
    "interleaved, R = 32, D = 64",
    "neither norm nor RoPE, D = 128, bfloat16",
    "scores depend on the distance of positions",
    "a token alone has the same bits",
)


@pytest.mark.parametrize("variant", few(STAGE.variants, "one_row"))
def test_the_cases_that_tell_most(variant):
    report = check_stage(STAGE, variant, names=TELLING)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(TELLING)


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant):
    report = check_stage(STAGE, variant)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(names(STAGE)) > 35


def test_the_variant_follows_the_size(rng):
    few_tokens, many = (drawn(rng, n, 4, 2, 64) for n in (2, 200))
    problems = [x.problem(x.arrays) for x in (few_tokens, many)]
    assert [choose(p, 1) for p in problems] == ["one_row", "two_rows"]
    assert choose(problems[1], 132) == "one_row"


OPTIONS = [
    {"padding": 4, "pages": 9},
    {"rotated": 16, "interleaved": True},
    {"rotated": 48, "slots": np.int32},
    {"rotated": 0, "weights": False},
    {"rotated": 48, "interleaved": True, "norm_eps": None},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("variant", "head_dim"), few([(v, d) for v in ROWS for d in (64, 128)], ("one_row", 64))
)
def test_the_formula_is_what_is_counted(variant, head_dim, options, rng):
    kv_heads = int(rng.integers(1, 5))
    x = drawn(
        rng, int(rng.integers(5, 30)), kv_heads * int(rng.integers(1, 5)), kv_heads, head_dim, **options
    )
    problem, executor = x.problem(x.arrays), Simulator(races=False)
    outputs = STAGE.run(problem, executor, variant)
    (launch,) = executor.launches
    assert predict(STAGE, variant, problem, 132) == Traffic.of_totals(launch.totals()), x.label
    tokens, heads = int(tokens_written(x).sum()), problem.heads + 2 * problem.kv_heads
    if problem.rotated % 32 == 0:  # else a sector has chunks of two requests, and counts twice
        assert launch.totals()["global_store_bytes_moved"] == 2 * tokens * heads * head_dim
    assert {name: each.shape for name, each in outputs.items()} == {
        each.name: each.shape(problem) for each in WRITTEN
    }


def test_bytes_that_must_move(rng):
    """Rows twice, a slot, a position and a row of both tables per token, the weights once."""
    x = drawn(rng, 10, 8, 2, 128, rotated=64)
    problem = x.problem(x.arrays)
    assert problem.min_bytes == 2 * 10 * 12 * 128 * 2 + 10 * (8 + 4 + 2 * 32 * 4) + 2 * 128 * 4
    plain = x.but(positions=None, cos=None, sin=None, norm_eps=None, q_weight=None, k_weight=None)
    assert plain.problem(plain.arrays).min_bytes == 2 * 10 * 12 * 128 * 2 + 10 * 8
    assert problem.flops == 10 * 10 * (4 * 128 + 3 * 64) and problem.exponentials == 0


def textbook(x, positions, heads, pairs):
    """Rows [heads, tokens, D], float64, R = D: after the norm each is turned by a matrix of its position."""
    found = np.zeros(heads.shape)
    half = heads.shape[2] // 2
    for token, position in enumerate(positions):
        turn = np.zeros((2 * half, 2 * half))
        for i in range(half):
            angle = position * 10_000.0 ** (-i / half)
            a, b = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + half)
            turn[[a, a, b, b], [a, b, a, b]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
        rms = np.sqrt((heads[:, token] ** 2).mean(axis=1, keepdims=True) + x.norm_eps)
        found[:, token] = (heads[:, token] / rms) @ turn.T
    return found


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_the_oracle_is_the_textbook(pairs, rng):
    """A rotation of the plane by position * 10000^(-2 i / D), after x / RMS(x)."""
    x = drawn(rng, 9, 3, 3, 64, weights=False, interleaved=pairs == "neighbours")
    right = oracle.reference(x)["out"].right[0]
    own = textbook(x, x.positions, x.q[0].astype(np.float64), pairs)
    assert np.abs(right - own).max() < 1e-4  # cos and sin are rounded to float32: positions up to 300
    assert not PREPARE.judge(WRITTEN[0], FLOAT16.round(1.01 * own[None]), oracle.reference(x), None).passed


def test_what_stays_keeps_its_bits(rng):
    """A row of V that differs in its last bit is wrong, and so is a column of K that is not rotated."""
    x = drawn(rng, 9, 2, 2, 64, norm_eps=None, rotated=32)
    ref = oracle.reference(x)
    executor = Simulator()
    found = STAGE.run(x.problem(x.arrays), executor, "one_row")
    at = divmod(int(x.slot_mapping[3]), x.page)
    for output, column in ((WRITTEN[2], 5), (WRITTEN[1], 40)):
        pool = found[output.name]
        assert PREPARE.judge(output, pool, ref, None).passed
        pool[(*at, 1, column)] = np.nextafter(pool[(*at, 1, column)], np.float16(np.inf))
        assert not PREPARE.judge(output, pool, ref, None).passed


def test_tables_begin_at_one():
    cos, sin = tables(3, 16)
    assert cos.shape == sin.shape == (3, 8) and (cos[0] == 1).all() and not sin[0].any()


KERNELS = [
    (d, rows, element, e4m3)
    for d in STAGE.head_dims
    for rows in ROWS.values()
    for element in (FLOAT16, BFLOAT16)
    for e4m3 in (False, True)
]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0)], ids=str)
@pytest.mark.parametrize(("head_dim", "rows", "element", "e4m3"), few(KERNELS, *KERNELS[-2:]), ids=str)
def test_nothing_spills_and_many_warps_fit(head_dim, rows, element, e4m3, capability):
    macros = {
        "HEAD_DIM": head_dim,
        "ROWS": rows,
        "ELEMENT": element.name,
        "SLOT": "int64_t",
        "INTERLEAVED": 0,
    } | ({"E4M3": True} if e4m3 else {})
    found = compiled(source("prepare_pages", **macros), capability)
    assert (found.spill_bytes, found.stack_bytes, found.warnings) == (0, 0, ())
    most = 64 if rows == 1 else 72 if e4m3 and capability == (9, 0) else 80
    assert found.registers <= most  # 32, 28 and 24 of 64 warps per SM
