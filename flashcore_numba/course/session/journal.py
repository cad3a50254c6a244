"""What the reader has done, kept in one JSON file in the user's data folder.

version  1
lessons  number of a lesson, or name of a warm-up -> predictions {key: [value, ...]}, answer (text),
         attempts, hints (how many were seen), passed (date, UTC), killed (names of given kernels),
         explanations (choices, in order)
"""

import copy
import fcntl
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuda_reference.files import write
from flashcore_numba.course.spec import Key

VERSION = 1
FILE = "progress.json"


def today() -> str:
    """The date in UTC, 2026-01-31."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _nothing() -> dict[str, Any]:
    return {
        "predictions": {},
        "answer": None,
        "attempts": 0,
        "hints": 0,
        "passed": None,
        "killed": [],
        "explanations": [],
    }


def _data_folder() -> Path:
    import platformdirs  # the command line prints its help without it

    try:
        return Path(platformdirs.user_data_dir("flashcore", appauthor=False))
    except RuntimeError:  # nobody knows a home folder: a place where nothing can be written
        return Path(os.devnull) / "flashcore"


class Journal:
    """Reads and changes the file, also while another notebook does.

    folder: where the file lies, the user's data folder by default. A file that cannot be read as progress is
    set aside under another name, with a warning. Where nothing can be written, one warning says so and
    progress lasts as long as the process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _data_folder()
        self._memory: dict[str, Any] | None = None  # in place of a file that cannot be written

    @property
    def file(self) -> Path:
        return self.folder / FILE

    def lesson(self, key: Key) -> dict[str, Any]:
        """What is known of one lesson; a copy."""
        return copy.deepcopy(_nothing() | self._all()["lessons"].get(str(key), {}))

    def change(self, key: Key, edit: Callable[[dict[str, Any]], None]) -> None:
        """Let `edit` change the record of one lesson in place, and keep the result."""
        with self._locked() as writable:
            record = self._all()
            one = _nothing() | record["lessons"].get(str(key), {})
            edit(one)
            record["lessons"][str(key)] = one
            if writable:
                self._write(record)
            else:
                self._memory = record

    def _all(self) -> dict[str, Any]:
        if self._memory is not None:
            return self._memory
        try:
            record = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {"version": VERSION, "lessons": {}}
        except OSError as error:
            self._give_up(error)
            return self._memory or {}
        except (ValueError, RecursionError):
            record = None
        if not _is_progress(record):
            self._set_aside()
            return {"version": VERSION, "lessons": {}}
        return record

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock on the folder; whether it can be written."""
        if self._memory is not None:
            yield False
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            self._give_up(error)
            yield False
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield True

    def _write(self, record: dict[str, Any]) -> None:
        try:
            write(self.file, json.dumps(record, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            self._give_up(error)
            self._memory = record

    def _set_aside(self) -> None:
        stem = f"progress-broken-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.json"
        try:
            self.file.replace(self.folder / stem)
        except OSError as error:
            self._give_up(error)
            return
        warnings.warn(
            f"{self.file} is no progress file of this version: it is kept as {stem}, progress starts anew",
            stacklevel=4,
        )

    def _give_up(self, error: OSError) -> None:
        self._memory = {"version": VERSION, "lessons": {}}
        warnings.warn(
            f"progress cannot be kept in {self.folder} ({error.strerror}): it lasts until this Python ends",
            stacklevel=5,
        )


def _is_progress(record: Any) -> bool:
    if not (isinstance(record, dict) and record.get("version") == VERSION):
        return False
    lessons = record.get("lessons")
    if not isinstance(lessons, dict):
        return False
    kinds = {name: type(value) for name, value in _nothing().items() if value is not None}
    return all(
        isinstance(one, dict)
        and all(isinstance(one.get(name, kind()), kind) for name, kind in kinds.items())
        and isinstance(one.get("answer"), str | None)
        and isinstance(one.get("passed"), str | None)
        for one in lessons.values()
    )
