"""What gates of CUDA C exercises count: functions of the launches of an answer."""

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

SUMS = {
    "shared_wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts", "shared_atomic_wavefronts"),
    "bank_conflicts": ("shared_load_conflicts", "shared_store_conflicts", "shared_atomic_conflicts"),
    "global_requests": ("global_load_requests", "global_store_requests", "global_atomic_requests"),
}
Value = Callable[[list[Any]], float]


def total(key: str) -> Value:
    """A counter of `Launch.totals`, or one of SUMS, over all launches; 0 where a launch has none."""

    def value(launches: list[Any]) -> float:
        return sum(launch.totals().get(name, 0) for launch in launches for name in SUMS.get(key, (key,)))

    return value


def of_line(text: str, op: str, field: str = "requests") -> Value:
    """A field of `Row`, summed over the rows of this op whose source line has `text` in it."""
    return _of_rows(lambda row: text in row.text and row.op == op, field)


def in_file(file: str, op: str, field: str = "requests") -> Value:
    """A field of `Row`, summed over the rows of this op in a file, "stage08_wmma_full.cu"."""
    return _of_rows(lambda row: PurePath(row.file).name == file and row.op == op, field)


def _of_rows(fits: Callable[[Any], bool], field: str) -> Value:
    def value(launches: list[Any]) -> float:
        rows = [row for launch in launches for row in launch.lines() if fits(row)]
        return sum(getattr(row, field) for row in rows)

    return value
