"""Ctrl-C, SIGTERM and SIGKILL: the status, what is left of processes and files, and what is said."""

import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from matrix import few

from cuda_reference.files import MachineError
from flashcore_numba.run import pool

ROOT = Path(__file__).resolve().parents[1]
MARK = "FLASHCORE_TEST_MARK"
POOL = """
import sys, time
from flashcore_numba.run import pool

def main():
    print("begun", flush=True)
    pool.run(time.sleep, [(600,)] * 4, 2)

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""


class Running:
    """A process of ours, and all that it starts, found by a mark in their environment."""

    def __init__(self, command, folder, **options):
        self.mark = secrets.token_hex(8)
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder), MARK: self.mark}
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                **options,
            )

    def alive(self):
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended, or is not ours
                continue
        return found

    def wait_until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (self.log.read_text(), self.alive())
            time.sleep(0.05)

    def ends(self, sent, to_all=False):
        (os.killpg if to_all else os.kill)(self.process.pid, sent)
        return self.process.wait(60)

    def nothing_is_left(self):
        self.wait_until(lambda: not self.alive(), 20)
        return True


@pytest.fixture
def start(tmp_path):
    started = []

    def start_one(command, **options):
        started.append(Running(command, tmp_path, **options))
        return started[-1]

    yield start_one
    for running in started:
        for pid in running.alive():
            os.kill(pid, signal.SIGKILL)
        running.process.wait(20)


def flashcore(*arguments):
    return [sys.executable, "-m", "flashcore_numba", *arguments]


SIGNALS = pytest.mark.parametrize(
    ("sent", "status", "to_all"),
    few(
        [(signal.SIGINT, 130, False), (signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)],
        (signal.SIGINT, 130, True),
    ),
    ids=["SIGINT", "Ctrl-C", "SIGTERM"],
)


@pytest.mark.long
@SIGNALS
@pytest.mark.parametrize("command", ["check 12 4", "mutants 12 4", "mutants 3 4"])
def test_a_command_with_workers_ends_at_once(command, sent, status, to_all, start, tmp_path):
    """Also while kernels compile, which stages 3 and 4 have no need of."""
    result = tmp_path / "result.json"
    running = start(flashcore(*command.split(), "--json", str(result)))
    running.wait_until(lambda: re.search(r"\d/\d", running.log.read_text()))  # a part is done
    began = time.monotonic()
    assert running.ends(sent, to_all) == status
    assert time.monotonic() - began < 20
    assert running.nothing_is_left()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


@pytest.mark.long
@SIGNALS
def test_the_judges_child_goes_with_it(sent, status, to_all, start, tmp_path):
    from flashcore_numba.course import exercise
    from flashcore_numba.course.lessons import find

    path = tmp_path / "lesson00.py"
    path.write_text(exercise.starter(find(0)).replace("...\n", "while True: pass\n", 1))
    running = start(flashcore("check", str(path), "--lesson", "0", "--time-limit", "600"))
    running.wait_until(lambda: any("course.judge.child" in line for line in running.alive().values()))
    time.sleep(1)
    assert running.ends(sent, to_all) == status
    assert running.nothing_is_left()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "status", "to_all"),
    [(signal.SIGINT, 130, False), (signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)],
    ids=["SIGINT", "Ctrl-C", "SIGTERM"],
)
def test_a_search_keeps_what_is_finished(sent, status, to_all, start, tmp_path):
    from flashcore_numba.evolve import lineage

    folder = tmp_path / "run"
    running = start(
        flashcore("evolve", "warm-up", "--iterations", "50", "--seed", "1", "--save", str(folder))
    )
    running.wait_until(lambda: "candidate 1:" in running.log.read_text())
    began = time.monotonic()
    assert running.ends(sent, to_all) == status
    assert time.monotonic() - began < 20
    assert running.nothing_is_left()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()
    finished = running.log.read_text().count("candidate ")
    assert len(lineage.load(folder).candidates) == finished + 1
    assert [path.name for path in folder.iterdir()] == [lineage.FILE]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "run"]


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_workers_go_with_who_started_them(sent, start, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(POOL))
    running = start([sys.executable, str(program)])
    running.wait_until(lambda: sum("spawn_main" in line for line in running.alive().values()) == 2)
    time.sleep(1)  # until they sleep
    assert running.ends(sent) == (130 if sent == signal.SIGINT else -sent)
    assert running.nothing_is_left()


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_kernel_that_is_timed_goes_with_who_timed_it(sent, start, tmp_path):
    program = tmp_path / "program.py"
    timed = POOL.replace("flashcore_numba.run import pool", "flashcore_numba.tune import timing")
    program.write_text(
        textwrap.dedent(
            timed.replace("pool.run(time.sleep, [(600,)] * 4, 2)", "timing.apart(time.sleep, (600,), 600)")
        )
    )
    running = start([sys.executable, str(program)])
    running.wait_until(lambda: any("spawn_main" in line for line in running.alive().values()))
    time.sleep(5)  # until it sleeps
    assert running.ends(sent) == (130 if sent == signal.SIGINT else -sent)
    assert running.nothing_is_left()


def test_workers_that_start_see_no_ctrl_c(start, tmp_path, monkeypatch):
    """Also while Python imports its own modules."""
    program, slow = (
        tmp_path / "program.py",
        "import sys, time\ntime.sleep(2 * ('spawn_main' in str(sys.orig_argv)))",
    )
    program.write_text(textwrap.dedent(POOL))
    (tmp_path / "sitecustomize.py").write_text(slow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    running = start([sys.executable, str(program)])
    running.wait_until(lambda: sum("spawn_main" in line for line in running.alive().values()) == 2)
    time.sleep(1)  # until they are in sitecustomize
    assert running.ends(signal.SIGINT, to_all=True) == 130
    assert running.nothing_is_left()
    assert running.log.read_text() == "begun\n"


def test_a_worker_that_is_gone_is_one_sentence():
    """As one that the kernel kills where no memory is left."""
    said = r"^a worker process was killed when 0 of 2 parts were done: .* too little memory for 2 at a time$"
    with pytest.raises(MachineError, match=said):
        pool.run(os._exit, [(9,), (9,)], 2)
    end = time.monotonic() + 20
    while multiprocessing.active_children():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_comes_through_after_workers_have_started():
    with pool.interrupts_held():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_the_judges_child_goes_when_the_judge_is_killed(start, tmp_path):
    program = tmp_path / "program.py"
    job = {"job": "check", "lesson": 0, "answer": "while True: pass"}
    program.write_text(f"from flashcore_numba.course.judge import process\nprocess.run({job}, 600)\n")
    running = start([sys.executable, str(program)])
    running.wait_until(lambda: any("course.judge.child" in line for line in running.alive().values()))
    time.sleep(1)
    assert running.ends(signal.SIGKILL) == -signal.SIGKILL
    assert running.nothing_is_left()
