"""Figures as objects: what they refuse, how they cross a process boundary, and how a browser shows them."""

import base64
import io
import json
import re

import pytest
from PIL import Image

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.figures import Figure, Frame


def picture(rng):
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype="uint8")).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def figure(rng):
    frames = [Frame(picture(rng), f'tile {k} of "3" <b>', f"What & where: {k}") for k in range(3)]
    return Figure("A walk </script> in steps", tuple(frames), telling=1)


def test_crosses_a_process_boundary_as_json(figure):
    assert Figure.from_dict(json.loads(json.dumps(figure.as_dict()))) == figure


@pytest.mark.parametrize("data", [{}, [], {"title": "x", "telling": 0, "frames": [{"png": "?"}]}])
def test_foreign_data_is_refused(data):
    with pytest.raises(ArgumentError, match=r"not what Figure\.as_dict gives"):
        Figure.from_dict(data)


def test_number_of_frames_is_bounded(figure):
    with pytest.raises(ArgumentError, match="frames: 0 of them; a figure has 1 to 12"):
        Figure("nothing", ())
    with pytest.raises(ArgumentError, match="frames: 13 of them"):
        Figure("much", figure.frames[:1] * 13)
    with pytest.raises(ArgumentError, match="telling: 3 is no frame of 0 to 2"):
        Figure("other", figure.frames, 3)


def test_bundle_of_a_notebook(figure):
    bundle = figure._repr_mimebundle_()
    for frame in figure.frames:
        assert str(bundle).count(base64.b64encode(frame.png).decode()) == 1
    assert bundle["text/plain"] == str(figure) and "What & where: 2" in str(figure)
    assert figure.alt == "A walk </script> in steps. What & where: 1"
    assert Figure.from_dict(figure.as_dict())._repr_mimebundle_() == bundle
    assert bundle["text/html"].count("<img ") == 1 and 'alt="What &amp; where: 0"' in bundle["text/html"]
    assert not re.search(r"\bid=", bundle["text/html"])


def test_saved_as_page_or_picture(figure, tmp_path):
    assert figure.save(tmp_path / "a.png").read_bytes() == figure.frames[1].png
    assert figure.html() in figure.save(tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"ends in '\.gif'; a figure is saved as \.html or \.png"):
        figure.save(tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()


def shown(group):
    return group.locator("[data-caption]").inner_text(), group.locator("img").get_attribute("alt")


@pytest.mark.browser
def test_a_keyboard_moves_through_the_steps(figure, browser, tmp_path):
    page = browser.new_page()
    file = tmp_path / "twice.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8><p>{figure.html()}<hr>{figure.html()}")
    page.goto(file.as_uri())
    groups = page.get_by_role("group", name="A walk </script> in steps, 3 steps")
    assert groups.count() == 2
    first, second = groups.nth(0), groups.nth(1)
    assert shown(first) == ('step 1 of 3: tile 0 of "3" <b>', "What & where: 0")
    page.keyboard.press("Tab")
    assert first.evaluate("e => e === document.activeElement && e.matches(':focus-visible')")
    assert "3px" in first.evaluate("e => getComputedStyle(e).outline")
    for key, step in [("ArrowRight", 2), ("ArrowRight", 3), ("ArrowRight", 3), ("ArrowLeft", 2), ("Home", 1),
                      ("ArrowLeft", 1), ("End", 3)]:  # fmt: skip
        page.keyboard.press(key)
        assert shown(first) == (f'step {step} of 3: tile {step - 1} of "3" <b>', f"What & where: {step - 1}")
    assert shown(second)[0].startswith("step 1 of 3")
    second.get_by_role("button", name="next step").click()
    assert shown(second)[0].startswith("step 2 of 3") and shown(first)[0].startswith("step 3 of 3")
    assert first.locator("[aria-live=polite]").count() == 1
    assert first.get_attribute("data-lm-suppress-shortcuts") == "true"
    assert first.locator("img").evaluate("e => e.naturalWidth") == 60


@pytest.mark.browser
def test_without_scripts_the_first_frame_stands_alone(figure, browser, tmp_path):
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(figure.save(tmp_path / "a.html").as_uri())
    assert plain.locator("img").count() == 1 and plain.locator("button").count() == 0
    assert plain.locator("body").inner_text().splitlines()[-1] == 'tile 0 of "3" <b>'
