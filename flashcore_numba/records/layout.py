"""How a record is written: JSON with a line per entry, and floats of five significant digits."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cuda_reference.files import write

DIGITS = 5
# By the name of a member. Texts quote medians with four digits or fewer: rounded to five before, a tie would
# change what they say.
MORE_DIGITS = {"limits_us": 7, "p50": 7}
ROUNDING = 0.5 * 10 ** (1 - DIGITS)
"""How far `rounded` moves a float at most, as a part of it."""


def save(record: Any, path: Path, *entries: str) -> None:
    """Write the `text` of a record, whole or not at all. Raises OSError, and ValueError as `text` does."""
    write(path, text(record, *entries))


def text(record: dict[str, Any], *entries: str) -> str:
    """The JSON text of a record. Every member is a line, and so is every item of the lists and objects that
    are called one of `entries`, at any depth. Floats are `rounded`; everything else is exact.

    Raises ValueError for a float that is not finite.
    """
    return _item_per_line(rounded(record), entries, "") + "\n"


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """The same data with floats of so many significant digits; those called as in `MORE_DIGITS` have more."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(part, MORE_DIGITS.get(name, digits)) for name, part in value.items()}
    return [rounded(part, digits) for part in value] if isinstance(value, list | tuple) else value


def _item_per_line(value: Any, entries: Collection[str], indent: str) -> str:
    def item(part: Any, name: str = "") -> str:
        spread = part and (_holds(part, entries) or (name in entries and isinstance(part, dict | list)))
        return _item_per_line(part, entries, inner) if spread else _line(part)

    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{_line(name)}: {item(part, name)}" for name, part in value.items()]
    else:
        items = [item(part) for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return first + ",".join(f"\n{inner}{each}" for each in items) + f"\n{indent}{last}"


def _holds(value: Any, entries: Collection[str]) -> bool:
    """Whether something in `value`, at any depth, is called one of `entries`."""
    if isinstance(value, dict):
        return any(name in entries or _holds(part, entries) for name, part in value.items())
    return isinstance(value, list) and any(_holds(part, entries) for part in value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
