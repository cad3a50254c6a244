"""What the course's calls return: a few paragraphs and tables, as text and as HTML."""

import html
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashcore_numba.course.judge.verdict import TICK, badge

TEXT_WIDTH = 100
NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?( ?%|x)?|-|")


@dataclass(frozen=True)
class Table:
    """caption above, one header a column; the first cell of a row is its header."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def right(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return column > 0 and all(NUMBER.fullmatch(row[column]) for row in self.rows)


@dataclass(frozen=True)
class Code:
    """Numbered lines: (number, text) pairs."""

    lines: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        width = len(str(max(number for number, _ in self.lines)))
        return "\n".join(f"{number:>{width}}  {text}".rstrip() for number, text in self.lines)


@dataclass(frozen=True)
class Card:
    """title, and below it paragraphs (text in which `x` is code), tables and code.

    passed: whether what was asked is done; None where nothing was asked. data: the same for a program.
    """

    title: str
    parts: tuple[str | Table | Code, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    passed: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """`data` with title and passed; JSON."""
        return {"title": self.title, "passed": self.passed, **self.data}

    def render(self, console: Any) -> None:
        """Print on a rich console."""
        console.print(self.title, markup=False, soft_wrap=True)
        for part in self.parts:
            if isinstance(part, Table):
                console.print(_rich(part))
            else:
                console.print(str(part), markup=False, soft_wrap=isinstance(part, Code))

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(
            file=io.StringIO(),
            width=TEXT_WIDTH,
            highlight=False,
            emoji=False,
            force_jupyter=False,
            force_terminal=False,
        )
        self.render(console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines())

    def _repr_html_(self) -> str:
        return f"<p><strong>{_inline(self.title)}</strong></p>" + "".join(map(_html, self.parts))


def _rich(table: Table) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(title=table.caption, title_justify="left")
    for n, name in enumerate(table.columns):
        out.add_column(name, justify="right" if table.right(n) else "left")
    for row in table.rows:
        out.add_row(*(Text(cell, style="green" if cell.startswith(TICK) else "") for cell in row))
    return out


def _html(part: str | Table | Code) -> str:
    if isinstance(part, str):
        return f"<p>{_inline(part)}</p>"
    if isinstance(part, Code):
        style = "white-space:pre;overflow-x:auto"
        return f'<pre style="{style}"><code style="white-space:pre">{html.escape(str(part))}</code></pre>'
    sides = ["right" if part.right(n) else "left" for n in range(len(part.columns))]
    head = "".join(
        f'<th scope="col" style="text-align:{side}">{_inline(name)}</th>'
        for name, side in zip(part.columns, sides, strict=True)
    )
    body = "".join(
        "<tr>"
        f'<th scope="row" style="text-align:left">{_inline(row[0])}</th>'
        + "".join(
            f'<td style="text-align:{side}">{_cell(cell)}</td>'
            for cell, side in zip(row[1:], sides[1:], strict=True)
        )
        + "</tr>"
        for row in part.rows
    )
    caption = f'<caption style="text-align:left">{_inline(part.caption)}</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    return badge(text, True) if text.startswith(TICK) else _inline(text)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
