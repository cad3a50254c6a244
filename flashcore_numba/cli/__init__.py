"""The command `flashcore`: a parser, and one module per command, which is imported when it is asked for."""

import errno
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from cuda_reference.extras import MissingPackageError, explained
from cuda_reference.files import MachineError
from flashcore_numba.cli.parser import parsed
from flashcore_numba.core.errors import ArgumentError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 when what was run is wrong or cannot run; 2 for a bad argument; 130 for
    Ctrl-C, 143 for SIGTERM: then no process that it started is left.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or pipe that cannot show a character gets a "?"
            stream.reconfigure(errors="replace")
    args = parsed(sys.argv[1:] if argv is None else list(argv))
    warnings.formatwarning = lambda message, *_, **__: f"flashcore {args.command}: {message}\n"
    try:
        with explained():
            status = importlib.import_module(f"{__name__}.{args.command}").run(args)
        sys.stdout.flush()
        return status
    except ArgumentError as error:
        print(f"flashcore {args.command}: {error}", file=sys.stderr)
        return 2
    except (MachineError, MissingPackageError) as error:
        print(f"flashcore {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except MemoryError as error:
        print(f"flashcore {args.command}: out of memory; choose a smaller shape ({error})", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None:
            print(f"flashcore {args.command}: {error.filename!r}: {error.strerror}", file=sys.stderr)
            return 1
        if error.errno == errno.ENOENT:  # only the current folder is asked for without a name
            print(f"flashcore {args.command}: the current folder no longer exists", file=sys.stderr)
            return 1
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python writes once more at exit
        if error.errno == errno.EPIPE:  # the reader of a pipe has seen enough
            return 0
        print(f"flashcore {args.command}: the output cannot be written ({error.strerror})", file=sys.stderr)
        return 1


def _end(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signal.SIGTERM)
