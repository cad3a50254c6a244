"""How a record is written: JSON with a line per entry, and floats of five significant digits."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cuda_reference.files import write

DIGITS = 5
MORE = {"p50": 7}
"""Digits of members that texts quote and compute with: a number shown with four digits is rounded once."""
ROUNDING = 0.5 * 10 ** (1 - DIGITS)
"""How far `rounded` moves a float at most, as a part of it."""


def save(record: Any, path: Path, *entries: str) -> None:
    """Write `text` of a record; the file appears whole or not at all. Raises OSError and what `text` raises."""
    write(path, text(record, *entries))


def text(record: Any, *entries: str) -> str:
    """The JSON text of a record: each of its members is a line, and so is each item of a list or an object
    that is called one of `entries`, wherever it is. Floats are `rounded`, everything else is exact.

    Raises ValueError for a float that is not finite.
    """
    return _broken(rounded(record), entries, "") + "\n"


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """The same with floats of so many significant digits, or as many as `MORE` says: what a record keeps."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(part, MORE.get(key, digits)) for key, part in value.items()}
    return [rounded(part, digits) for part in value] if isinstance(value, list | tuple) else value


def _broken(value: dict[str, Any] | list[Any], entries: Collection[str], indent: str) -> str:
    """An item per line, or several lines for an item that holds entries."""
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{_line(key)}: {_text(part, entries, inner, key in entries)}" for key, part in value.items()
        ]
    else:
        parts = [_text(part, entries, inner) for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return first + ",".join(f"\n{inner}{part}" for part in parts) + f"\n{indent}{last}"


def _text(value: Any, entries: Collection[str], indent: str, called: bool = False) -> str:
    parts = isinstance(value, dict | list) and len(value)
    return _broken(value, entries, indent) if parts and (called or _holds(value, entries)) else _line(value)


def _holds(value: Any, entries: Collection[str]) -> bool:
    """Whether a part of `value`, at any depth, is called one of `entries`."""
    if isinstance(value, dict):
        return any(key in entries or _holds(part, entries) for key, part in value.items())
    return isinstance(value, list) and any(_holds(part, entries) for part in value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
