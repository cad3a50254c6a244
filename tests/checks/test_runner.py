"""The check of a whole stage: right ones pass with margin, wrong ones fail with a message that helps."""

import io
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from flashcore_numba.checks import KINDS, check, check_stage, render
from flashcore_numba.checks.cases import IN_EVERY_TYPE, SCALED_SHAPES, SEEDS, cases
from flashcore_numba.checks.runner import names
from flashcore_numba.core import oracle
from flashcore_numba.core.element import ACCEPTED, FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import PLAN_SHAPES
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find

from .stand_in import honest, stand_in

RUNS = [(stage, variant) for stage in LADDER for variant in stage.variants or [None]]


# A variant divides the work differently, so it is tried where that shows; the numbers are the default's.
NOT_OF_A_VARIANT = re.compile(
    r"^extreme: (?!scores rise|one key)|^(medium|mission|large|multi_batch) |seed (0|12345)$"
    r"|change nothing|moves between|exactly|lies in the hull|^ragged 3[13]$|one key$"
)


def once(stage, variant, rng):
    """Names of a stage's check without its repetitions, all of which `flashcore check` runs.

    Of a variant a half, another one each time: it shares most lines with the default.
    """
    if variant not in (None, stage.default_variant):
        own = [name for name in names(stage) if not NOT_OF_A_VARIANT.search(name)]
        return [own[i] for i in sorted(rng.permutation(len(own))[: (len(own) + 1) // 2])]
    fixed = [case.name for case in cases(stage, full_size=False) if case.seed is not None]
    # Of the plan's five shapes each with one of the three seeds.
    repeated = {name for i, name in enumerate(fixed) if i // len(SEEDS) % len(SEEDS) != i % len(SEEDS)}
    return [name for name in names(stage) if name not in repeated]


@pytest.mark.long
@pytest.mark.parametrize(("stage", "variant"), RUNS, ids=lambda x: getattr(x, "label", x))
def test_a_stage_of_the_ladder_passes_with_margin(stage, variant, rng):
    report = check_stage(stage, variant, names=once(stage, variant, rng))
    told = "\n".join(f"{failure.name}: {failure.message}" for failure in report.failures)
    assert report.passed, f"seed {report.seed}\n{told}"
    assert report.margin >= 1.25  # of fresh numbers, in bfloat16 too


def test_the_oracle_itself_passes_everything():
    report = check_stage(stand_in())
    assert report.passed
    assert report.margin >= 2


def test_every_shape_of_the_plan_runs_with_every_seed():
    found = [result.name for result in check_stage(stand_in()).results]
    for shape in PLAN_SHAPES:
        for seed in SEEDS:
            assert sum(name.startswith(f"{shape} ") and name.endswith(f"seed {seed}") for name in found) == 1


def test_on_a_gpu_the_shapes_are_those_of_the_plan(rng):
    for case in cases(LADDER[0], full_size=True):
        if case.seed is not None:
            assert not case.scaled
            assert case.make(rng).q.shape == PLAN_SHAPES[case.name.split()[0]]


def test_a_type_of_elements_is_checked_where_it_is_served(rng):
    with_both = replace(LADDER[11], elements=ACCEPTED)
    plain = {case.name for case in cases(replace(LADDER[11], elements=(FLOAT16,)), full_size=False)}
    both = {case.name: case for case in cases(with_both, full_size=False)}
    added = both.keys() - plain
    assert plain < both.keys() and len(added) >= len(IN_EVERY_TYPE) and len(added) <= len(plain) / 4
    for name in added:
        assert name.endswith(", bfloat16")
        made = both[name].make(rng)
        assert {x.dtype.name for x in (made.q, made.k, made.v)} == {"bfloat16"}
    for start in IN_EVERY_TYPE:
        assert any(name.startswith(start) for name in added), start


def test_what_the_simulator_makes_smaller_is_said():
    report = check_stage(stand_in(), names=[])
    smaller = {name for name, shape in PLAN_SHAPES.items() if SCALED_SHAPES[name] != shape}
    assert {note.split()[0] for note in report.scaled} == smaller
    text = _rendered([report])
    for name in smaller:
        assert f"{name} {'x'.join(map(str, PLAN_SHAPES[name]))} ->" in text


def test_a_report_of_nothing_has_not_passed():
    assert not check_stage(stand_in(), names=[]).passed


def test_fixed_seeds_draw_the_same_and_fresh_ones_do_not(rng):
    fixed = next(case for case in cases(LADDER[0], full_size=False) if case.seed == 42)
    draw = [fixed.make(np.random.default_rng(fixed.seed)).q for _ in range(2)]
    assert np.array_equal(*draw)
    seen = []
    for _ in range(2):
        stage = stand_in(lambda problem: seen.append(problem.q.copy()) or honest(problem)[0])
        check_stage(stage, names=["ragged 33"])
    assert not np.array_equal(seen[0], seen[-1])


def wrong_mask(problem):
    if not problem.causal:
        return honest(problem)[0]
    visible = np.arange(problem.seq_k) <= np.arange(problem.seq_q)[:, None]
    group = problem.q.shape[1] // problem.k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (problem.k, problem.v))
    scores = np.where(visible, problem.scale * (problem.q.astype(np.float64) @ k.swapaxes(2, 3)), -np.inf)
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    return p / p.sum(axis=3, keepdims=True) @ v


def wrong_scale(problem):
    return oracle.attention(problem.q, problem.k, problem.v, problem.causal, 1.0)[0]


def not_divided(problem):
    return 5 * honest(problem)[0]


def heads_modulo(problem):
    heads = np.arange(problem.q.shape[1]) % problem.k.shape[1]
    return oracle.attention(
        problem.q, problem.k[:, heads], problem.v[:, heads], problem.causal, problem.scale
    )[0]


def last_row_wrong(problem):
    out = honest(problem)[0].copy()
    out[:, :, -1] += 1
    return out


@pytest.mark.parametrize(
    ("answer", "name", "words"),
    [
        (wrong_mask, "causal ragged 33 rows, 70 keys", "top-left"),
        (wrong_scale, "ragged 33", "the scale is missing"),
        (not_divided, "ragged 33", "divided by the sum of the weights"),
        (heads_modulo, "grouped queries, 4 heads on 2", "h // group"),
        (last_row_wrong, "ragged 33", "rows 32 of 33"),
    ],
)
def test_a_failure_says_where_how_far_and_why(answer, name, words):
    (failure,) = check_stage(stand_in(answer), names=[name]).failures
    assert failure.kind == "value"
    for part in ("out[b=", "row=", "col=", "expected", "off by", "allowed", words):
        assert part in failure.message
    assert failure.error > failure.bound
    assert failure.margin < 1


def test_wrong_lse_alone_fails():
    def no_maximum(problem):
        out, lse = honest(problem)
        return out, lse - 1

    (failure,) = check_stage(stand_in(no_maximum), names=["ragged 33"]).failures
    assert "LSE[b=0, h=0, row=" in failure.message


def test_nan_fails_every_case_that_meets_it():
    report = check_stage(stand_in(lambda problem: honest(problem)[0] * np.nan))
    assert len(report.failures) == len(report.results)
    json.dumps(report.as_dict(), allow_nan=False)


def test_an_exception_is_a_failure_of_the_stage():
    def launch_fails(problem):
        raise RuntimeError("no such kernel")

    (failure,) = check_stage(stand_in(launch_fails), names=["ragged 33"]).failures
    assert failure.kind == "error"
    assert "no such kernel" in failure.message
    assert "test_runner.py" in failure.message


def test_it_stops_at_the_first_failure_when_asked():
    report = check_stage(stand_in(wrong_scale), stop_at_first=True)
    assert len(report.results) == 1


def test_what_the_time_limit_leaves_out_is_a_failure():
    report = check_stage(stand_in(), deadline=time.time() - 1)
    assert not report.passed
    assert {result.kind for result in report.results} == {"time"}


@pytest.mark.long
def test_check_runs_parts_in_processes_and_says_how_far_it_is():
    seen = []
    (report,) = check([14], backend="simulator", workers=2, seed=7, progress=lambda *now: seen.append(now))
    assert report.passed
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total, _ in seen} == {len(seen)}
    alone = check_stage(find(14), seed=7)
    assert [r.name for r in report.results] == [r.name for r in alone.results]
    assert [r.error for r in report.results] == [r.error for r in alone.results]
    json.dumps(report.as_dict(), allow_nan=False)


def test_bad_arguments_are_named():
    with pytest.raises(ArgumentError, match="'fpga'"):
        check([1], backend="fpga")
    with pytest.raises(ArgumentError, match="'no_such_variant'"):
        check([1], backend="simulator", variants=["no_such_variant"])
    with pytest.raises(ArgumentError, match="99"):
        check([99], backend="simulator")


def test_the_report_tells_failures_first():
    good, bad = (
        check_stage(stand_in(), names=["ragged 33"]),
        check_stage(stand_in(wrong_scale), names=["ragged 33"]),
    )
    text = _rendered([good, bad])
    assert text.index("the scale is missing") < text.index("worst margin")
    assert KINDS["value"] in text
    assert "FAILED" in text
    assert "FAILED" not in _rendered([good])


def _rendered(reports) -> str:
    out = io.StringIO()
    render(reports, Console(file=out, width=200))
    return out.getvalue()
