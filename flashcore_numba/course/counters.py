"""Counters of a kernel's launches, as the gates of the exercises compare them."""

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["in_file", "of_line", "total"]

SUMS = {
    "shared_wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts"),
    "bank_conflicts": ("shared_load_conflicts", "shared_store_conflicts"),
}


def total(key: str) -> Callable[[list[Any]], float]:
    """The launches' sum of `key` of their totals; of a kind of access that does not occur, 0."""
    parts = SUMS.get(key, (key,))

    def value(launches: list[Any]) -> float:
        return sum(launch.totals().get(part, 0) for launch in launches for part in parts)

    return value


def of_line(text: str, op: str, field: str) -> Callable[[list[Any]], float]:
    """The sum of `field` (requests, sectors, wavefronts, conflicts) over the accesses `op` whose source line
    contains `text`."""

    def value(launches: list[Any]) -> float:
        return sum(
            getattr(row, field) or 0
            for launch in launches
            for row in launch.lines()
            if row.op == op and (text in row.text or text in linecache.getline(str(row.file), row.line))
        )

    return value


def in_file(file: str, op: str, field: str) -> Callable[[list[Any]], float]:
    """The sum of `field` over the accesses `op` of one file, "stage08_wmma_full.cu" for example."""

    def value(launches: list[Any]) -> float:
        return sum(
            getattr(row, field) or 0
            for launch in launches
            for row in launch.lines()
            if row.op == op and Path(str(row.file)).name == file
        )

    return value
