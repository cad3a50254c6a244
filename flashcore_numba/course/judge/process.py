"""Runs an answer in a process of its own, which may be endless, greedy or hostile, and says how it ended."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_reference.files import MachineError, cache_folder
from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError

DEFAULT_TIME_LIMIT = 60.0  # seconds
KEPT_OUTPUT = 4_000  # characters of what an answer printed
LARGEST_RESULT = 8 << 20  # bytes
CHUNK = 65_536
POLL = 0.25  # seconds
PACKAGES = Path(__file__).parents[3]
Progress = Callable[[int, int, str], None]


def run(
    job: Mapping[str, Any], time_limit: float = DEFAULT_TIME_LIMIT, progress: Progress | None = None
) -> dict[str, Any]:
    """Do a job on an answer in a child process.

    job: {"job": "check", "watch" or "measure", "lesson": 5} and either "answer", the region's lines, or
    "file": {"name", "text"}, or neither for the stage itself; "watch" takes "figure", a name of the lesson's
    figures, "check" may take "seed" and "through", the last layer to run. time_limit: seconds. progress(done,
    total, label) is called from this process.

    Returns a dict with "status", a key of `verdict.STATUSES` or "done"; "result", what the job made (of
    "check" a `CheckResult.as_dict()`, of "watch" a figure's, None when it did not end); "printed", the first
    characters of what the answer printed; "last", the label of the last step begun; "layer", the last layer
    of a check that began, "" before the first; "why", a sentence when there is no result. Raises
    ArgumentError for a job that is none, or whose file cannot be judged, and MachineError where this machine
    cannot compile it.
    """
    if not isinstance(time_limit, int | float) or not 0 < time_limit < 86_400:
        raise ArgumentError(f"time_limit: {shown(time_limit)} is no number of seconds between 0 and 86400")
    cache_folder("cpu")  # what it says of a folder that cannot be written is nothing that the answer prints
    command = [sys.executable, "-P", "-m", "flashcore_numba.course.judge.child"]
    reply = supervise(command, {**job, "time_limit": time_limit}, time_limit, progress)
    if "argument_error" in reply:
        raise ArgumentError(reply["argument_error"])
    if "machine_error" in reply:
        raise MachineError(reply["machine_error"])
    return reply


def supervise(
    command: Sequence[str], job: Mapping[str, Any], time_limit: float, progress: Progress | None = None
) -> dict[str, Any]:
    """Run `command` with the job as JSON on its standard input and a pipe for JSON lines, whose number is its
    last argument. Whatever it does, it, its children and their temporary files are gone when this returns.
    """
    with tempfile.TemporaryDirectory(prefix="flashcore-judge-", ignore_cleanup_errors=True) as folder:
        child, deadline = _begun(command, job, folder, progress), time.monotonic() + time_limit
        try:
            ended = child.listen(deadline)
        finally:
            child.end()
    return child.reply(ended, time_limit)


def _begun(
    command: Sequence[str], job: Mapping[str, Any], folder: str, progress: Progress | None
) -> "_Child":
    """The child; its temporary files are in the folder."""
    reader, writer = os.pipe()
    path = os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH"))))
    try:
        with tempfile.TemporaryFile() as stdin:  # a pipe would fill up when nobody reads it
            stdin.write(json.dumps(job).encode())
            stdin.seek(0)
            process = subprocess.Popen(
                [*command, str(writer)],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(writer,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
            )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return _Child(process, reader, progress)


class _Child:
    """A running child: what it says on its pipe, and what it prints."""

    def __init__(self, process: subprocess.Popen, reader: int, progress: Progress | None) -> None:
        self.process, self.reader, self.progress = process, reader, progress
        self.pending, self.result, self.last, self.layer = bytearray(), None, "", ""
        self.printed: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.nonsense = False  # it sent what is no line of JSON, or far too much

    def listen(self, deadline: float) -> bool:
        """Read until the child has a result or is gone; False at the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.reader, selectors.EVENT_READ, "result")
            for name in self.printed:
                selector.register(getattr(self.process, name), selectors.EVENT_READ, name)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                events = selector.select(min(left, POLL))
                if not events and self.process.poll() is not None:
                    return True  # gone, though a process that it left behind still holds the pipe
                for key, _ in events:
                    data = os.read(key.fd, CHUNK)
                    if not data:
                        selector.unregister(key.fileobj)
                        if key.data == "result":
                            return True
                    elif key.data == "result":
                        if self._take(data):
                            return True
                    else:
                        self.printed[key.data] = (self.printed[key.data] + data)[:KEPT_OUTPUT]
        return True

    def _take(self, data: bytes) -> bool:
        """Read whole lines; True when there is a result, or never will be."""
        self.pending += data
        self.nonsense = len(self.pending) > LARGEST_RESULT
        if b"\n" not in data:
            return self.nonsense
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                if message.keys() & {"result", "argument_error", "machine_error"}:
                    self.result = message
                    return True
                if "layer" in message:
                    self.layer = str(message["layer"])
                    continue
                done, total, self.last = message["step"]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self.nonsense = True
                return True
            if self.progress is not None:
                self.progress(done, total, self.last)
        return self.nonsense

    def end(self) -> None:
        """Nothing of the child's process group is left after this."""
        if self.process.poll() is None and self.result is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to leave: let it say how
                self.process.wait(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.reader)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def reply(self, ended: bool, time_limit: float) -> dict[str, Any]:
        printed = b"".join(self.printed.values()).decode(errors="replace").strip()
        common = {"printed": printed[:KEPT_OUTPUT], "last": self.last, "layer": self.layer, "result": None}
        if self.result is not None:
            return common | self.result
        if not ended:
            why = f"It had not ended after {time_limit:g} s"
            return common | {
                "status": "timeout",
                "why": f"{why}, in: {self.last}." if self.last else f"{why}.",
            }
        return common | {"status": "crashed", "why": self._how_it_ended()}

    def _how_it_ended(self) -> str:
        code = self.process.returncode
        at = f" in: {self.last}" if self.last else ""
        if self.nonsense:
            return f"It sent something that is no result{at}."
        if code == -signal.SIGXCPU or code == -signal.SIGKILL:
            return f"The process was killed{at}: it used more memory or processor time than it may."
        if code < 0:
            return f"The process was ended by signal {-code} ({signal.Signals(-code).name}){at}."
        return f"The process left with exit status {code} before the check was over{at}."
