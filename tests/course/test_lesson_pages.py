"""A lesson can be read in an hour: how many words it has, and where what does not fit goes."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.front_matter import front_matter_plugin

from flashcore_numba.course import lessons
from flashcore_numba.course.book import notebooks, weave

LESSONS = Path(__file__).resolve().parents[2] / "lessons"
MOST_WORDS = 2_500
MARKDOWN = MarkdownIt("commonmark").enable("table").use(front_matter_plugin).use(dollarmath_plugin)


def page(number: int) -> Path:
    (found,) = (path for path in notebooks.lesson_files(LESSONS.parent) if int(path.name[:2]) == number)
    return found


def words(text: str) -> int:
    """The words of a lesson that a reader reads as prose.

    Headings, paragraphs, lists and tables count; of a link its text, a formula as one word, a generated
    number as one word, but not in a table. Front matter, code cells with their options, and excerpts of
    code do not count, and neither does a word without a letter or a digit.
    """
    rows = re.sub(
        r"^\|.*$", lambda row: re.sub(r"<!--[a-z]+ .*?-->.*?<!---->", "", row[0]), text, flags=re.MULTILINE
    )
    inlines = [token for token in MARKDOWN.parse(weave.plain(rows)) if token.type == "inline"]
    seen = " ".join(_text(token) for token in inlines)
    return sum(any(letter.isalnum() for letter in word) for word in seen.split())


def _text(inline: Token) -> str:
    kinds = {"text", "code_inline"}
    breaks = {"softbreak": " ", "hardbreak": " ", "math_inline": "formula"}
    parts = [c.content if c.type in kinds else breaks.get(c.type, "") for c in inline.children or ()]
    return "".join(parts)


PIECES = {
    "---\njupytext:\n  format_name: myst\n---\n\n# 99 Three words\n": 3,
    "two `words`\nand *one* more\n": 5,
    "[a link's text](../lessons/glossary.md#not-counted)\n": 3,
    "a formula: $2 \\cdot 64 \\cdot N$ - one word\n": 5,
    "it takes <!--us 14 tma_wgmma | .0f-->6.48<!----> µs\n": 4,
    "```{code-cell}\n:tags: [x]\nnot = counted\n```\n": 0,
    '\n<!--code x.cu "a" "b"-->\n```cpp\nint not_counted;\n```\n<!---->\n': 0,
    "| stage | µs |\n|---|--:|\n| two words | <!--us 14 tma_wgmma-->6.48<!----> |\n| typed | 6.54 |\n": 6,
    "- a list\n- of words\n\n> and a quotation\n": 7,
}


@pytest.mark.parametrize("text, count", PIECES.items())
def test_what_a_word_is(text, count):
    assert words(text) == count


@pytest.mark.parametrize("number", lessons.LESSONS)
def test_a_lesson_has_at_most_so_many_words(number):
    found = words(page(number).read_text())
    assert found <= MOST_WORDS, f"{page(number).name}: {found} words; what was tried belongs in its appendix"


@pytest.mark.parametrize("number", lessons.LESSONS)
def test_a_lesson_begins_with_its_title(number):
    tokens = MARKDOWN.parse(page(number).read_text())
    titles = [after.content for token, after in pairwise(tokens) if token.tag == "h1" and token.nesting == 1]
    assert titles == [f"{number:02} {lessons.LESSONS[number].title}"]


@pytest.mark.parametrize("path", sorted(LESSONS.glob("appendix_*.md")), ids=lambda path: path.stem)
def test_an_appendix_is_linked_from_its_lesson_and_back(path):
    lesson = page(int(path.stem.removeprefix("appendix_")))
    assert re.search(rf"\]\(\.\./lessons/{path.name}[)#]", lesson.read_text())
    assert f"]({path.name})" in (LESSONS / "README.md").read_text()
    text = path.read_text()
    assert f"]({lesson.name})" in text and "{code-cell}" not in text
