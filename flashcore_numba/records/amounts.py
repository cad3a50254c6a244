"""Amounts of a record as text: microseconds, factors, percentages, bytes, where they are from, and which
columns of a table a terminal has room for.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Column, Table

FOLDED = 12  # characters of a word that stay on one line where a column folds
SMALL, NARROW, WIDE = 80, 100, 160  # columns of a terminal below which a table leaves columns out


def short_us(value: float | None) -> str:
    """Microseconds with three significant digits, fewer below 1: 0.004, 0.51, 3.51, 35.1, 351, 3510."""
    return "-" if value is None else _three_digits(value)


def times(value: float | None) -> str:
    """A factor, written like microseconds: 0.005x, 0.93x, 5.84x, 66.2x, 209x."""
    return "-" if value is None else f"{_three_digits(value)}x"


def _three_digits(value: float) -> str:
    digits = 3 if value < 0.0995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share: 3.4%, 27%, or - where there is none."""
    return "-" if value is None else f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"


def amount(value: float) -> str:
    """A count or a number of bytes: 981, 12.3k, 4.56M."""
    for size, letter, least in ((1e9, "G", 999.5e6), (1e6, "M", 999.5e3), (1e3, "k", 9999.5)):
        if value >= least:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def tflops(shape: dict[str, Any], entry: dict[str, Any]) -> float:
    """10^12 operations per second of an entry, where those of its shape are recorded."""
    return shape["flops"] / entry["gpu_us"]["p50"] / 1e6


def terabytes(shape: dict[str, Any], entry: dict[str, Any]) -> float:
    """10^12 bytes of K and V per second of an entry, where those of its shape are recorded."""
    return shape["kv_bytes"] / entry["gpu_us"]["p50"] / 1e6


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """A table in Markdown: the first `words` columns to the left, numbers to the right."""
    marks = ["---"] * words + ["--:"] * (len(head) - words)
    rows = [f"| {' | '.join(cells)} |" for cells in (head, *lines)]
    return "\n".join([rows[0], f"|{'|'.join(marks)}|", *rows[1:]])


def fit(table: "Table", width: int, *dispensable: str) -> list[str]:
    """Drop columns of a full table, the first named first, until the others fit. Returns their headers."""
    for name in dispensable:
        if sum(_needs(column) + 3 for column in table.columns) + 1 <= width:
            break
        table.columns = [column for column in table.columns if column.header != name]
    return [str(column.header) for column in table.columns]


def _needs(column: "Column") -> int:
    """The characters without which a column is cut, or is no longer readable."""
    texts = [str(column.header), *map(str, column.cells)]
    if column.no_wrap:
        return max(map(len, texts))
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return column.width or column.min_width or min(longest, FOLDED if column.overflow == "fold" else longest)


def compiled(resources: list[dict[str, Any]] | None) -> list[str]:
    """Registers, spilled bytes and local memory in bytes, all a thread: the largest of the kernels."""
    names = ("registers", "spill_bytes", "stack_bytes")
    found = [[kernel[name] for kernel in resources or [] if kernel[name] is not None] for name in names]
    return [str(max(values)) if values else "-" for values in found]


def provenance(artifact: dict[str, Any]) -> str:
    """`NVIDIA H200, 2026-01-31, commit 0123456`: what every recorded number is labelled with."""
    dirty = " with uncommitted changes" if artifact["dirty"] else ""
    return f"{artifact['gpu']['name']}, {artifact['date'][:10]}, commit {artifact['commit'][:10]}{dirty}"
