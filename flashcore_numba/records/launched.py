"""Which entry of a stage overlapped its launches.

A kernel may begin under the end of the kernel before it (programmatic dependent launch). Not every library in
a record does that, so a stage is timed without it, and what it adds is a variant's entry of its own.
"""

from typing import Any

OVERLAPPED = "overlapped"  # the variant's name


def overlapped(shape: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of a record's shape that overlaps its launches; None where none was measured."""
    return next((entry for entry in shape["entries"] if entry["variant"] == OVERLAPPED), None)
