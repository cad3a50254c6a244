"""The lessons as a static site, for `make site`. Its source folder is the repository: links stay."""

import html
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]  # the pages show wrong answers, which the tests keep

import reading  # noqa: E402
import sections  # noqa: E402

from flashcore_numba.course import lessons  # noqa: E402
from flashcore_numba.course.book import weave  # noqa: E402
from flashcore_numba.stages.files import is_cuda  # noqa: E402

project = html_title = "FlashCore"
author = "The FlashCore authors"
copyright = f"2026 {author}"
language = "en"
extensions = ["myst_nb"]
root_doc = "site/home"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "docs/*.md",
    "lessons/*.md",
    "notebooks/*.ipynb",
    "site/home.md",
]
exclude_patterns = ["lessons/[0-9][0-9]_*.md", ".*", "build", "workspace"]  # lessons: as notebooks
html_theme = "furo"
highlight_language = "none"
html_copy_source = html_use_index = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
# Of MathJax the one file that needs no other: it draws formulas without fonts.
mathjax = find_spec("sphinx-mathjax-offline")
assert mathjax and mathjax.origin
templates_path = ["templates"]
html_additional_pages = {"search": "search.html"}
html_static_path = ["static", str(Path(mathjax.origin).parent / "static/mathjax/tex-svg.js")]
html_extra_path = ["extra"]
html_css_files, html_js_files = ["site.css"], [("site.js", {"defer": "defer"})]
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}  # which would stop the Tab key at every formula

FIRST = ["/lessons/README", "/lessons/plan", "/lessons/glossary", "/docs/tools"]
LAST = ["/lessons/instructor", "/lessons/wrong_answers", "/CHANGELOG"]
PICTURE = re.compile(r'<picture>\n<source [^>]*srcset="(.*)">\n<img alt="(.*)" src="(.*)">\n</picture>')
ATTEMPT = re.compile(r"^<!-- attempt (\d+) -->$", re.MULTILINE)


def contents(folder: Path) -> str:
    """The pages in the order of the sidebar; what a lesson leaves to an appendix follows the lesson."""
    chapters = []
    for number, lesson in lessons.LESSONS.items():
        chapters.append(f"/notebooks/{lesson.file}")
        chapters += [f"/lessons/{path.stem}" for path in folder.glob(f"lessons/appendix_{number:02d}*.md")]
    docs = sorted(f"/docs/{path.stem}" for path in folder.glob("docs/*.md"))
    behind = ["The ladder and its times </README>", *(page for page in docs if page not in FIRST), *LAST]
    parts = {"The course": FIRST, "Lessons": chapters, "Behind the lessons": behind}
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
        + "".join(f"{page}\n" for page in pages)
        + "```\n"
        for caption, pages in parts.items()
    )


def listed() -> str:
    """The lessons with the idea of each."""
    return "\n".join(
        f"- [{number:02d} {lesson.title}](../lessons/{lesson.file}.md): {lesson.idea}"
        for number, lesson in lessons.LESSONS.items()
    )


def both(picture: re.Match[str]) -> str:
    """A picture for the light page and one for the dark, by the theme's button and not the system alone."""
    dark, alt, light = picture.groups()
    alt = json.dumps(html.unescape(alt), ensure_ascii=False)
    shown = ((light, "only-light"), (dark, "only-dark"))
    return "\n".join(f"```{{image}} {file}\n:alt: {alt}\n:class: {name}\n```" for file, name in shown)


def ladder(folder: Path) -> str:
    """The first picture of the README, which the page does not repeat."""
    first = PICTURE.search((folder / "README.md").read_text())
    assert first, "README.md has no picture"
    return re.sub(r"(?<=```\{image\} )", "/", both(first))


def attempted(mark: re.Match[str]) -> str:
    """A real attempt at a lesson, with the judge's replies."""
    return f"```{{raw}} html\n{reading.shown_attempt(lessons.find(mark[1]))}\n```"


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead from a lesson's text to its notebook, and to no folder, which has no page."""
    if page.startswith("notebooks/"):
        source[0] = reading.edition(source[0], page)
        for path in reading.sources(page):
            app.env.note_dependency(str(path))
        return
    text = PICTURE.sub(both, weave.plain(source[0]))
    if page == root_doc:
        text = text.replace("<!-- ladder -->", ladder(Path(app.srcdir)))
        text = ATTEMPT.sub(attempted, text).replace("<!-- lessons -->", listed()) + contents(Path(app.srcdir))
    text = re.sub(r"\]\((?:\.\./)?(?:lessons/)?(\d\d_\w+)\.md", r"](/notebooks/\1.ipynb", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*/\)", r"\1", text)
    source[0] = text


def complete(app: Sphinx, page: nodes.document) -> None:
    """Cells with an answer in CUDA C are no Python; each column of a table has a head in text."""
    for block in page.findall(nodes.literal_block):
        if (cell := re.match(r"%%write ([\w-]+)", block.astext())) and is_cuda(
            lessons.find(cell[1]).exercise.file
        ):
            block["language"] = "cpp"
    for head in page.findall(nodes.thead):
        for entry in head.findall(nodes.entry):
            drawn = list(entry.findall(nodes.math))
            if entry.astext() == "".join(formula.astext() for formula in drawn):
                said = " ".join(formula.astext() for formula in drawn) or "name"
                entry += nodes.paragraph("", "", nodes.inline("", said, classes=["visually-hidden"]))


def level(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """The captions of the sidebar are headings; a heading has a level."""
    key = "furo_navigation_tree"
    context[key] = context[key].replace('role="heading"', 'role="heading" aria-level="2"')


def without_index(app: Sphinx) -> None:
    """The search has texts of its own, with sections; Sphinx's index has words alone."""
    app.builder.search = False  # type: ignore[attr-defined]


def write_sections(app: Sphinx, error: Exception | None) -> None:
    """The texts that the search looks through."""
    if error is None:
        found = sections.of_site(app.env, app.builder.get_target_uri)
        text = f"const SECTIONS = {json.dumps(found, ensure_ascii=False)};\n"
        Path(app.outdir, "_static", "sections.js").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx's hook: the lessons' sources become what the site shows."""
    app.connect("builder-inited", without_index)
    app.connect("doctree-read", complete)
    app.connect("source-read", adapt)
    app.connect("html-page-context", level, priority=900)
    app.connect("build-finished", write_sections)
