"""What a command prints: tables, JSON, and how far it has come."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from cuda_reference.files import write
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.run.progress import Progress

PIPE_WIDTH = 160  # columns of a table that goes to a file or a pipe


def console(to_stderr: bool = False) -> Console:
    """Where tables go: as wide as a terminal, and of one width in a file or a pipe."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False)  # `file.cu:100:` is no emoji


def give_json(args: Namespace, data: Callable[[], Any]) -> bool:
    """Write `data()` as JSON where asked to. True when that is stdout: then nothing else may go there."""
    if not args.json:
        return False
    text = json.dumps(data(), indent=1, allow_nan=False)
    if args.json == "-":
        print(text)
        return True
    try:
        write(Path(args.json), text + "\n")
    except OSError as error:
        raise ArgumentError(f"--json {args.json!r}: cannot be written ({error.strerror})") from None
    return False


def progress_bar() -> Progress:
    """How far a command has come, on stderr."""
    return Progress(console(to_stderr=True))


def parts(progress: Progress, what: str) -> Callable[[int, int, str], None]:
    """What `checks` calls after each of its parts."""
    return lambda done, total, label: progress.count(what, done, total, label)
