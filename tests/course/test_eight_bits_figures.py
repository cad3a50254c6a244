"""Lesson 22: its pictures are true of numbers, outliers and sums, and its wrong kernel can be killed."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference import load, source
from flashcore_numba.branches.find import find
from flashcore_numba.branches.fp8.twin import e4m3
from flashcore_numba.core.element import E4M3
from flashcore_numba.course import lesson
from flashcore_numba.course.figures import draw, eight_bits
from flashcore_numba.course.judge.killing import kill
from flashcore_numba.course.lessons.lesson22 import LESSON

CUDA = Path(__file__).resolve().parents[1] / "cuda"


@pytest.fixture
def stage():
    return find(LESSON.exercise.stage)


def test_sums_are_to_the_bit_those_of_the_cpu_executor(rng):
    """Two k-steps of wgmma, of products whose sizes differ by more than what is kept."""
    n, steps = 64, 2
    x, y = (e4m3(rng.standard_normal((n, n)) * np.exp2(rng.integers(-5, 6, (n, n)))) for _ in range(2))
    found = np.full((n, n), np.nan, np.float32)
    kernel = load(source("wrappers_sm90", "wgmma_e4m3_64", folder=CUDA, ELEMENT="float16"), "cpu")
    args = (x.view(np.uint8), y.view(np.uint8), found, np.int32(1))
    assert not kernel(1, 128, args, shared_mem=192 * 128).problems
    products = x.astype(np.float64)[:, None] * y.astype(np.float64)[None]
    total = np.zeros((n, n))
    for step in range(steps):
        total = eight_bits.accumulated(total, products[..., step * eight_bits.STEP :][..., : eight_bits.STEP])
    assert np.array_equal(found, total)
    assert not np.array_equal(found, products.sum(axis=-1))


def test_a_sum_stops_and_two_levels_do_not(rng):
    assert eight_bits.stuck_at() == 2.0 ** (eight_bits.KEPT + 1)
    products = rng.uniform(0.5, 1.0, (2, 1 << 16))
    right = products.cumsum(axis=1)[:, eight_bits.TILE_KEYS - 1 :: eight_bits.TILE_KEYS]
    one, two = (1 - each / right for each in eight_bits.sums(products))
    assert (one[:, -1] > 0.5).all() and (np.abs(two) < 0.005).all()
    assert np.allclose(two[:, -1], two[:, 7], atol=1e-3)


def test_spacing_is_that_of_the_numbers():
    every = np.arange(0x7F, dtype=np.uint8).view(E4M3.dtype).astype(np.float64)
    assert [eight_bits.spacing(x) for x in every[1:]] == np.diff(every).tolist()


@pytest.mark.parametrize("name", eight_bits.FORMATS)
def test_formats_keep_what_they_can_hold(name, rng):
    rounded = eight_bits.FORMATS[name]
    x = rng.standard_normal((256, 32))
    x[:128] *= 100
    found = rounded(x, 128)
    assert not np.array_equal(found, x) and np.array_equal(np.sign(found[found != 0]), np.sign(x[found != 0]))
    for rows in (x[:128], x[128:]):
        largest = np.abs(rows).argmax()
        assert rounded(rows, 128).flat[largest] == pytest.approx(rows.flat[largest])
    np.testing.assert_allclose(rounded(found, 128), found, rtol=1e-12)


@pytest.mark.long
def test_what_the_lesson_says_of_outliers():
    found = {key: np.array(errors) for key, errors in eight_bits.errors_of_outputs().items()}
    plain, spread = eight_bits.WAYS
    ten = eight_bits.SIZES.index(10.0)
    assert (found["int8", spread] < found["e4m3", spread]).all()
    assert found["int8", spread][ten] < 0.5 * found["int8", plain][ten]
    assert found["e4m3", spread][ten] < 0.85 * found["e4m3", plain][ten]
    assert found["e4m3", spread][0] == pytest.approx(found["e4m3", plain][0], rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rounding", "outliers", "levels"])
def test_pictures_are_small_and_say_what_they_show(name, stage):
    figure = draw(LESSON, name, stage, "your kernel")
    assert max(len(frame.png) for frame in figure.frames) <= 60_000
    assert len({frame.png for frame in figure.frames}) == len(figure.frames) == 2
    assert all(frame.png.startswith(b"\x89PNG") and "%" in figure.alt for frame in figure.frames)


@pytest.mark.long
def test_a_kernel_with_one_level_loses_more_with_every_key(stage):
    right, wrong = eight_bits.lost_by(stage), eight_bits._lost_by_one_level()
    assert max(map(abs, right)) < 0.01
    assert sorted(wrong) == list(wrong) and wrong[-1] > 0.05


def inputs(rng):
    return tuple(rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (64, 256, 256))


@pytest.mark.long
def test_the_vote_is_missed_on_no_random_input_and_on_the_hints(rng):
    (given,) = LESSON.given
    q, k, v = inputs(rng)
    assert not kill(LESSON, given, q, k, v).killed
    k[:, :, :64] = 3 * q
    assert kill(LESSON, given, q, k, v).killed


def test_what_was_never_timed_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    recorded = lesson(22).recorded()
    assert recorded.data == {"measured": []} and "not timed at" in repr(recorded)
