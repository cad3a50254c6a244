"""An operation of one's own goes through check, count and a rehearsed comparison, without an edit of them."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from toy_operation import (
    ROW_SOFTMAX,
    STAGE,
    SUMS,
    P,
    Rows,
    last_row_left_out,
    launcher,
    without_maximum,
)

from flashcore_numba.checks import check, check_stage
from flashcore_numba.checks.forward import FORWARD, operation
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence.counts import count
from flashcore_numba.evidence.rehearse import rehearse
from flashcore_numba.predict import predict
from flashcore_numba.predict.limits import Device, limits_us
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import Run, runs


def test_it_has_an_identity_of_its_own():
    assert (STAGE.key, STAGE.label) == ("row_softmax/one_thread", "row_softmax/one_thread")
    assert len({stage.key for stage in (*LADDER, STAGE)}) == len(LADDER) + 1
    assert [run.label for run in runs([STAGE])] == [STAGE.label]
    with pytest.raises(ValueError, match="not on the spine"):
        _ = STAGE.place
    assert operation(STAGE) is ROW_SOFTMAX and operation(LADDER[0]) is FORWARD
    assert ROW_SOFTMAX.ladder() == (STAGE,) and FORWARD.ladder() == LADDER


def test_its_limits_are_in_words():
    wide = Rows(np.zeros((1, 2000), np.float32))
    assert STAGE.why_not(wide) == "does not serve more than 1024 columns"
    assert STAGE.why_not(Rows(np.zeros((1, 10), np.float32)), (SUMS,)) is None
    assert replace(STAGE, outputs=(P,)).why_not(wide, (SUMS,)) == "does not return the sum (sums=True)"


def test_the_check_passes():
    report = check_stage(STAGE)
    assert report.passed, report.failures
    assert [result.name for result in report.results] == [
        "ragged 33 x 45", "one row", "one column", "large", "a row adds up to one", "fixed"
    ]  # fmt: skip
    assert (report.key, report.number, report.scaled) == (STAGE.key, None, ("fixed smaller",))
    assert 1 < report.margin < 1e6
    assert json.loads(json.dumps(report.as_dict()))["stage"] == STAGE.label


def test_wrong_kernels_fail_with_what_is_wrong():
    report = check_stage(replace(STAGE, launch=launcher(without_maximum)), seed=1)
    failed = {result.name: result for result in report.failures}
    assert set(failed) == {result.name for result in report.results} - {"a row adds up to one"}
    assert {result.kind for result in failed.values()} == {"value"}
    assert failed["large"].message.startswith("not a number")
    told = failed["one row"].message
    assert told.startswith("rows=1 columns=70: sum[row=0] = ")
    assert "beyond the bound" in told and told.endswith("Likely: the maximum is not subtracted")

    report = check_stage(replace(STAGE, launch=launcher(last_row_left_out)), names=["one row"])
    (only,) = report.failures
    assert only.kind == "unwritten" and "of p were never written, first [row=0, col=0]" in only.message

    report = check_stage(replace(STAGE, launch=launcher(last_row_left_out)), names=["a row adds up to one"])
    assert not report.passed


def test_check_takes_it_beside_the_ladder():
    (report,) = check([STAGE], backend="simulator", workers=1, seed=3)
    assert report.passed and report.label == STAGE.label


def test_it_is_counted(rng):
    counted = count(Run(STAGE, None), Shape(1, 2, 20, 64), rng=rng)
    assert counted.right, (counted.error, counted.problems)
    assert counted.min_bytes == 2 * 40 * 64 * 4
    assert counted.totals()["global_load_requests"] > 0
    assert 0 < counted.error["relative"] < 1e-5
    wrong = count(Run(replace(STAGE, launch=launcher(last_row_left_out)), None), Shape(1, 2, 20, 64), rng=rng)
    assert not wrong.right and wrong.error["max"] is None


@pytest.mark.long
def test_a_comparison_is_rehearsed():
    shape = Shape(1, 1, 33, 64)
    found = rehearse([STAGE], [(shape, False)], shape, Progress(Console(file=io.StringIO())))
    assert found.right
    (row,) = found.rows
    assert (row["label"], row["checks"]) == (STAGE.label, "6/6") and row["moved"]["global_bytes"] > 0
    (sentence,) = found.not_recorded
    assert "No times are recorded" in sentence
    json.dumps(found.as_dict())


def test_the_limits_of_a_gpu_follow_from_its_work():
    x = np.zeros((1000, 1000), np.float32)
    limits = limits_us(Rows(x), Device((9, 0), 132, 1980.0, 4917.0))
    assert limits["exp"] == pytest.approx(1e6 / (16 * 132 * 1980))
    assert limits["memory"] == pytest.approx(8e6 / 4917e3)


def test_what_is_not_there_for_it_says_so():
    with pytest.raises(ArgumentError, match="row_softmax/one_thread: no formula predicts its traffic"):
        predict(STAGE, None, Rows(np.zeros((1, 1), np.float32)), 132)
