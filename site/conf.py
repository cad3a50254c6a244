"""The lessons as a static site, for `make site`. Its source folder is the repository: links stay."""

import html
import json
import re
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from flashcore_numba.course import exercise, lessons
from flashcore_numba.course.book import weave

project = html_title = "FlashCore"
language = "en"
extensions = ["myst_nb"]
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", "lessons/*.md", "notebooks/*.ipynb"]
exclude_patterns = ["lessons/[0-9][0-9]_*.md", ".*", "build", "workspace"]  # lessons: as notebooks
html_theme = "furo"
highlight_language = "none"
html_copy_source = html_use_index = html_show_search_summary = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
# Of MathJax the one file that needs no other: it draws formulas without fonts.
mathjax = find_spec("sphinx-mathjax-offline")
assert mathjax and mathjax.origin
html_static_path = ["static", str(Path(mathjax.origin).parent / "static/mathjax/tex-svg.js")]
html_extra_path = ["extra"]
html_css_files = ["site.css"]
mathjax_path = "tex-svg.js"

CONTENTS = """
```{toctree}
:hidden:

lessons/README
lessons/glossary
docs/benchmarking
docs/trust
docs/edits
lessons/instructor
lessons/wrong_answers
```

```{toctree}
:hidden:
:glob:
:caption: Lessons

notebooks/*
```
"""
PICTURE = re.compile(r'<picture>\n<source [^>]*srcset="(.*)">\n<img alt="(.*)" src="(.*)">\n</picture>')


def both(picture: re.Match[str]) -> str:
    """A picture for the light page and one for the dark, by the theme's button and not the system alone."""
    dark, alt, light = picture.groups()
    alt = json.dumps(html.unescape(alt), ensure_ascii=False)
    shown = ((light, "only-light"), (dark, "only-dark"))
    return "\n".join(f"```{{image}} {file}\n:alt: {alt}\n:class: {name}\n```" for file, name in shown)


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead from a lesson's text to its notebook, and to no folder, which has no page."""
    if page.startswith("notebooks/"):
        return
    text = PICTURE.sub(both, weave.plain(source[0]))
    text = re.sub(r"\]\((?:lessons/)?(\d\d_\w+)\.md", r"](/notebooks/\1.ipynb", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*/\)", r"\1", text)
    source[0] = text + CONTENTS * (page == root_doc)


def colour(app: Sphinx, page: nodes.document) -> None:
    """Cells with an answer in CUDA C are no Python."""
    for block in page.findall(nodes.literal_block):
        if (cell := re.match(r"%%write (\d+)", block.astext())) and exercise.is_cuda(
            lessons.find(cell[1]).exercise.file
        ):
            block["language"] = "cpp"


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", colour)
    app.connect("source-read", adapt)
