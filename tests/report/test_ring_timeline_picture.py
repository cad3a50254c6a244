"""The picture of a ring's time line: what it says in words, and that labels keep apart and in the frame."""

from itertools import combinations
from pathlib import Path

import pytest
from timelines import made_up

from flashcore_numba.records import ring_timeline
from flashcore_numba.report import pictures
from flashcore_numba.report.pictures import ring_timeline as of_ring
from flashcore_numba.report.pictures import style


def test_which_time_line_is_drawn_and_what_is_missing(tmp_path: Path) -> None:
    found, lacking = pictures.drawable([], [(tmp_path / "a.json", made_up())])
    assert [each.name for each in found] == ["ring-timeline"]
    assert lacking["ring-timeline-backward"] == "no time line of a ring's backward pass is recorded"


def test_a_newer_time_line_does_not_take_the_place_of_the_one_described(tmp_path: Path) -> None:
    made = [made_up(*how) for how in (("pull", 4, False), ("gated", 4, False), ("gated", 2, False))]
    records = [(tmp_path / f"{i}.json", record) for i, record in enumerate(made)]
    assert of_ring.picture(records, False).sources == (tmp_path / "2.json",)
    assert of_ring.picture(records[:2], False).sources == (tmp_path / "0.json",)


def test_the_words() -> None:
    record = made_up()
    picture = of_ring.picture([(Path("a.json"), record)], False)
    piece = next(each for each in record["ranks"][1]["pieces"] if each["what"] == "copy")
    assert f"copy 1 on the side stream {piece['begin_us']:.1f} to {piece['end_us']:.1f}" in picture.alt
    assert "Imaginary GPU" in picture.alt and "without stamps 8.00" in picture.alt
    for kind, what, step, said in (
        ("wait", "copy", 1, ("waits for copy 1", "waits")),
        ("barrier", "end", None, ("barrier: end", "barrier")),
        ("kernel", "rounding", 2, ("rounding", "rounding")),
        ("kernel", "the backward pass", 1, ("the backward pass 1", "backward 1")),
    ):
        assert of_ring.label({"kind": kind, "what": what, "step": step}) == said


@pytest.mark.parametrize("way, ranks, backward", [("gather", 3, False), ("pull", 3, True)])
def test_labels_are_apart_and_inside(way: str, ranks: int, backward: bool, tmp_path: Path) -> None:
    record = made_up(way, ranks, backward)
    path = tmp_path / ring_timeline.file_name(record)
    ring_timeline.save(record, path)
    picture = of_ring.picture([(path, record)], backward)
    with style._settings(style.LIGHT):
        figure = picture.paint(style.LIGHT)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    from matplotlib.text import Text

    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]
    assert len(boxes) > 6 * ranks
    frame = axes.get_window_extent(renderer).padded(3)
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
