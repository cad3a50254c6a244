import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence.counts import count, count_all
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import runs

LANGUAGES = ("Numba", "CUDA C")


@pytest.mark.long
def test_a_counted_run_is_right_and_moves_at_least_what_it_must(rng):
    counted = count(runs(LADDER[-1:])[-1], Shape(1, 2, 64, 64), causal=True, rng=rng)
    assert counted.right
    assert counted.error["heads_checked"] == 2
    moved = counted.moved()
    assert counted.min_bytes == 4 * 2 * 64 * 64 * 2
    assert moved["global_bytes"] >= counted.min_bytes
    assert moved["times_needed"] == pytest.approx(moved["global_bytes"] / counted.min_bytes)
    assert moved["barriers"] == sum(launch.totals()["barriers"] for launch in counted.launches)


def test_a_kernel_that_leaves_rows_out_is_not_right(rng):
    run = runs(LADDER[:1])[0]
    stage = run.stage

    def first_head_only(problem, out, executor, lse=None, variant=None):
        part = type(problem)(problem.q[:, :1], problem.k[:, :1], problem.v[:, :1])
        stage.launch(part, out[:, :1], executor)

    counted = count(replace(run, stage=replace(stage, launch=first_head_only)), Shape(1, 2, 33, 64), rng=rng)
    assert not counted.right
    assert counted.error["max"] is None
    assert "NaN" in counted.error["reason"]


def test_a_shape_that_a_stage_does_not_serve_is_refused():
    run = runs(LADDER[:1])[0]
    with pytest.raises(UnsupportedError, match="head dimension 128"):
        count(replace(run, stage=replace(run.stage, head_dims=(64,))), Shape(1, 1, 32, 128))


def test_every_run_is_counted_by_name():
    chosen = runs([next(stage for stage in LADDER if stage.language == language) for language in LANGUAGES])
    output = io.StringIO()
    counted = count_all(chosen, Shape(1, 1, 9, 64), Progress(Console(file=output)))
    labels = [item.run.label for item in counted]
    assert labels == [run.label for run in chosen]
    assert all(item.right and item.moved()["global_bytes"] > 0 for item in counted)
    assert output.getvalue() == "".join(
        f"counting on the simulator at 1x1x9x64 {k}/{len(labels)}: {label}\n"
        for k, label in enumerate(labels, 1)
    )


def test_shapes_are_parsed():
    assert parse("mission") == Shape(1, 8, 512, 64)
    assert parse("2x3x40x128") == Shape(2, 3, 40, 128)
    assert str(parse("2x3x40x128")) == "2x3x40x128"
    q, k, v = parse("2x3x40x128").inputs(np.random.default_rng())
    assert q.shape == (2, 3, 40, 128)
    assert q.dtype == np.float16
    assert not np.array_equal(k, v)


@pytest.mark.parametrize(
    "text", ["", "1x8x512", "1x8x512x64x1", "0x8x512x64", "1x8x-5x64", "axbxcxd", "1x8x5x65"]
)
def test_bad_shapes_are_named(text):
    with pytest.raises(ArgumentError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
