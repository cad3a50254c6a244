"""Lesson 25: its pictures say what they show, and the times that it quotes are those of the pages."""

import re
from pathlib import Path

import pytest

from flashcore_numba.branches.find import find
from flashcore_numba.course.figures import draw, fusing
from flashcore_numba.course.lessons.lesson25 import LESSON

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "lessons" / "25_what_fuses.md").read_text()


def rows(page, title):
    """The cells of the first table of a page that has `title` as the beginning of its head."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(title))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize("name", [LESSON.picture, "timed"])
def test_pictures_are_small_and_say_what_they_show(name):
    figure = draw(LESSON, name, find(LESSON.exercise.stage), "your kernel")
    assert max(len(frame.png) for frame in figure.frames) <= 60_000
    assert len({frame.png for frame in figure.frames}) == len(figure.frames)
    assert all(frame.png.startswith(b"\x89PNG") and len(frame.alt) > 100 for frame in figure.frames)


def test_the_times_of_the_norm_are_those_of_its_page():
    table = {
        shape: (fused, two, apart) for shape, fused, two, apart in rows("epilogue.md", "| shape | a block")
    }
    assert {each.shape: (f"{each.fused:g}", f"{each.apart:g}") for each in fusing.MEASURED} == {
        shape: (fused, apart) for shape, (fused, _, apart) in table.items()
    }
    fused, two, apart = table["1x8x512x64"]
    assert all(re.search(rf"(?<![\d.]){re.escape(us)}(?![\d.])", TEXT) for us in (fused, two, apart))


def test_the_price_of_dropout_is_that_of_its_page():
    table = rows("dropout.md", "| shape | mask | forward")
    narrow, wide = ([row[2:] for row in table if row[0].endswith(d)] for d in ("x64", "x128"))
    spans = [sorted(column) for half in (narrow, wide) for column in zip(*half, strict=True)]
    said = re.sub(r"\s+", " ", TEXT)
    for (low, high), word in zip(spans, ("to", "to", "or", "or"), strict=True):
        assert f"{low} {word} {high}" in said, (low, high)
    more = next(
        row for row in rows("dropout.md", "| kernel | D") if row[:2] == ["forward, tile `large`", "64"]
    )
    assert f"{more[-1]} instructions per element" in said
