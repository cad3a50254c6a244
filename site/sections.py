"""The texts of the site's pages, by section: what the search looks through and quotes."""

import html
import re
from collections.abc import Callable, Iterator

from docutils import nodes
from sphinx.environment import BuildEnvironment

TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)


def of_site(env: BuildEnvironment, address: Callable[[str], str]) -> list[dict[str, str]]:
    """Of every section its page, its title, where it is and what it says, nested sections left out."""
    found = []
    for page in sorted(env.found_docs):
        title = env.titles[page].astext()
        for section in env.get_doctree(page).findall(nodes.section):
            anchor = "" if isinstance(section.parent, nodes.document) else f"#{section['ids'][0]}"
            text = " ".join(" ".join(_texts(section)).split())
            found.append(
                {"page": title, "title": section[0].astext(), "url": address(page) + anchor, "text": text}
            )
    return found


def _texts(node: nodes.Element) -> Iterator[str]:
    """What a reader sees of a section, without its title and the sections inside it."""
    for child in node.children:
        if isinstance(child, nodes.raw):
            if "html" in child.get("format", ""):
                yield html.unescape(TAG.sub(" ", child.astext()))
        elif isinstance(child, nodes.TextElement) and not isinstance(child, nodes.title | nodes.Invisible):
            yield child.astext()
        elif isinstance(child, nodes.Element) and not isinstance(child, nodes.section):
            yield from _texts(child)
