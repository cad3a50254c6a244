"""Weaving: every kind of generated text, that it settles, and what is said of a comment that is wrong."""

import re

import pytest

from flashcore_numba.course import exercise, lessons
from flashcore_numba.course.book import weave
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.records.amounts import short_us

SHAPE = "1x1x64x64"
e = Evidence()


def written(comment, file="lessons/05_x.md"):
    text = f"It is <!--{comment}-->old<!----> here.\n"
    new = weave.woven(text, file)
    assert weave.woven(new, file) == new and weave.differences(new, file) == []
    return re.fullmatch(r"It is <!--.*?-->(.*)<!----> here\.\n", new, re.DOTALL)[1]


@pytest.mark.parametrize(
    "comment, value",
    [
        ("us 05 online_softmax", lambda: short_us(e.us(5))),
        ("us SDPA flash @1x8x1024x64", lambda: short_us(e.us("SDPA flash", "large"))),
        ("us 05 online_softmax @1x8x512x64 causal", lambda: short_us(e.us(5, causal=True))),
        ("ratio 04 shared_tiles / 05 online_softmax", lambda: short_us(e.us(4) / e.us(5))),
        ("registers 06 register_tiles", lambda: str(e.registers(6))),
        ("local 06 kv_outer_local", lambda: str(e.local("06 kv_outer_local"))),
        ("spilled 06 register_tiles", lambda: "0"),
        ("limit fp32", lambda: short_us(e.limit("fp32"))),
        (f"count 2 global_bytes @{SHAPE}", lambda: f"{e.count(2, 'global_bytes', SHAPE):,}"),
        (f"count 6:q_outer shuffles @{SHAPE}", lambda: f"{e.count(6, 'shuffles', SHAPE, 'q_outer'):,}"),
        (f'line 2 "scores[b, h, j, row] = score" store sectors/request @{SHAPE}', lambda: "4"),
        (f'calc 2 * count(2, "global_bytes", "{SHAPE}") / 1e3 | .1f',
         lambda: f"{2 * e.count(2, 'global_bytes', SHAPE) / 1e3:.1f}"),
        ('calc us("01 scalar") / us("05 online_softmax")', lambda: short_us(e.us(1) / e.us(5))),
        ("calc 1024 * 1024", lambda: "1,048,576"),
    ],
)  # fmt: skip
def test_each_kind(comment, value):
    assert written(comment) == value()


def test_an_excerpt_is_the_source(tmp_path):
    text = '<!--code stage05_online_softmax "for first_key in" "score = score if"-->\n<!---->\n'
    new = weave.woven(text, "lessons/05_x.md")
    body = re.search(r"-->\n```python\n(.*)```\n<!---->\n\Z", new, re.DOTALL)[1]
    source = exercise.source_text("stage05_online_softmax")
    assert all(line.strip() in source for line in body.splitlines()) and body.startswith("for first_key")
    assert weave.woven(new, "lessons/05_x.md") == new


def test_the_write_cell_is_the_starter():
    text = "```{code-cell} ipython3\n%%write 5\nanything\n```\n\n```{code-cell} ipython3\nprint(1)\n```\n"
    starter = exercise.starter_cell(lessons.find(5))
    assert weave.woven(text, "05_x.md") == text.replace("anything\n", starter)


def test_a_line_does_not_begin_with_a_value():
    text = "It moves\n<!--limit fp32-->1<!----> us.\n"
    assert re.fullmatch(r"It moves <!--limit fp32-->[\d.]+<!----> us\.\n", weave.woven(text, "x.md"))


def test_a_notebook_shows_no_comment():
    text = weave.woven(
        'It is <!--limit fp32--><!----> us.\n\n<!--code common "def fma4" "return total"-->\n<!---->\n',
        "x.md",
    )
    plain = weave.plain(text)
    assert "<!--" not in plain and "```python\ndef fma4" in plain
    assert f"It is {short_us(e.limit('fp32'))} us." in plain


@pytest.mark.parametrize(
    "comment, says",
    [
        ("us 05 nothing", "label '05 nothing' is not in the recorded run"),
        ("time 05", "kind 'time': accepted are us, ratio"),
        ("ratio 05 online_softmax", "LABEL / LABEL is accepted"),
        ("count 5", r"STAGE\[:VARIANT\] KEY is accepted"),
        ("calc 1 / 0", "cannot be calculated"),
        ("calc __import__('os')", "cannot be calculated"),
        ('code stage99 "a" "b"', "there is no stage99.py among the stages"),
        (
            'code common "import" "x"',
            r"is in \d+ lines of common.py, not in one",
        ),
        ('code common "def fma4" "nowhere"', "is in no line of common.py"),
        ('code stage05_online_softmax "m_new = max" "m = m_new"', "shows lines of the exercise"),
    ],
)
def test_a_wrong_comment_is_named(comment, says):
    text = f"one\n\nIt is <!--{comment}-->x<!---->.\n"
    with pytest.raises(weave.WeaveError, match=rf"(?s)lessons/05_x\.md:3: <!--.*-->: .*({says})"):
        weave.woven(text, "lessons/05_x.md")


def test_an_appendix_shows_no_solution_either():
    text = '<!--code stage05_online_softmax "m_new = max" "m = m_new"-->\n<!---->\n'
    assert "```python" in weave.woven(text, "lessons/glossary.md")
    with pytest.raises(weave.WeaveError, match="shows lines of the exercise"):
        weave.woven(text, "lessons/appendix_05.md")


@pytest.mark.parametrize(
    "text", ["a <!--limit fp32-->1\n", "a <!--limit fp32-->1 <!--limit exp-->2<!---->\n"]
)
def test_an_open_comment_is_named(text):
    with pytest.raises(weave.WeaveError, match=r"x\.md:1: <!--limit fp32-->: no <!----> ends"):
        weave.woven(text, "x.md")


def test_a_paragraph_may_not_begin_with_a_value():
    for text in ("<!--limit fp32-->1<!---->\n", "a\n\n- <!--limit fp32-->1<!---->\n"):
        with pytest.raises(weave.WeaveError, match="a paragraph cannot begin with it"):
            weave.woven(text, "x.md")


def test_a_stale_number_is_shown():
    (found,) = weave.differences("ok\nIt is <!--limit fp32-->1.23<!---->.\n", "lessons/x.md")
    assert (
        found.startswith("lessons/x.md:2: says ") and "1.23" in found and short_us(e.limit("fp32")) in found
    )
