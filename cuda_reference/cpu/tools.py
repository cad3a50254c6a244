"""Runs the compiler and what reads its output, and says what went wrong where one of them fails."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cuda_reference.files import CACHE_VARIABLE, MachineError

TOLD = 2000  # characters of what a failed command said
FULL = re.compile(r"No space left on device|Disk quota exceeded|File size limit exceeded|File too large")
# What compilers, assemblers and linkers say of the machine, never of what they translate.
MACHINE = re.compile(
    rf"{FULL.pattern}|Read-only file system|Input/output error|Cannot allocate memory|out of memory|"
    r"virtual memory exhausted|Too many open files|Resource temporarily unavailable|Killed signal|"
    r"cannot execute|error trying to exec"
)


def call(
    command: Sequence[str], text: str = "", files: Sequence[int] = (), scratch: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command whose messages are in English; its status is the caller's to look at.

    text: its standard input. files: descriptors that it may open as /proc/self/fd/N. scratch: where it puts
    temporary files. Raises MachineError where it cannot be started, or was ended by a signal.
    """
    environment = os.environ | {"LC_ALL": "C"} | ({} if scratch is None else {"TMPDIR": str(scratch)})
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=files,
            env=environment,
        )
    except OSError as error:
        raise MachineError(f"{command[0]} cannot be started: {error.strerror}") from None
    if done.returncode < 0:
        raise MachineError(_failure(done))
    return done


def check(done: subprocess.CompletedProcess[str], always: bool = True) -> None:
    """Raises MachineError for a command that failed; unless `always`, only where the machine made it fail."""
    if not done.returncode:
        return
    if FULL.search(done.stderr):
        raise MachineError(
            f"the disk is full: free some space, or set {CACHE_VARIABLE} to a folder on another disk. "
            + _failure(done)
        )
    if always or MACHINE.search(done.stderr):
        raise MachineError(_failure(done))


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    how = f"exit status {done.returncode}" if done.returncode > 0 else f"ended by signal {-done.returncode}"
    command = shlex.join(done.args)
    shown = command if len(command) < 200 else f"{command[:200]} ..."
    return f"this command failed, {how}: {shown}\n{done.stderr.strip()[-TOLD:]}".strip()
