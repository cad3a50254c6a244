"""Answers that do not end, eat memory, flood, crash or reach out: each ends with a message in time."""

import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.judge import child, process, screen_python
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.lessons import LESSONS

SLACK = 20.0  # seconds that a busy machine may take beyond a time limit


def check(number, text, time_limit=60.0):
    return process.run({"job": "check", "lesson": number, "answer": textwrap.dedent(text)}, time_limit)


def check_file(number, text, time_limit=60.0):
    job = {"job": "check", "lesson": number, "file": {"name": "mine.py", "text": textwrap.dedent(text)}}
    return process.run(job, time_limit)


def solved(number):
    """A whole file that is right."""
    lesson = LESSONS[number]
    text = exercise.region(lesson.exercise).text
    starter = exercise.starter(lesson)
    indent = exercise.region(lesson.exercise).indent
    head, _, rest = starter.partition("# <exercise>\n")
    return (
        head + "# <exercise>\n" + text + " " * indent + "# </exercise>" + rest.partition("# </exercise>")[2]
    )


@pytest.mark.long
def test_a_file_that_is_right_passes():
    reply = check_file(0, solved(0))
    assert reply["status"] == "passed", reply


@pytest.mark.long
def test_an_endless_loop_of_python_is_stopped():
    start = time.monotonic()
    reply = check(0, "while True:\n    pass", time_limit=2)
    assert time.monotonic() - start < 2 + SLACK
    assert reply["status"] == "timeout" and reply["result"] is None
    assert "2 s" in reply["why"] and "small" in reply["why"]


@pytest.mark.long
def test_an_endless_loop_at_import_is_stopped():
    reply = check_file(0, solved(0) + "\nwhile True:\n    pass\n", time_limit=4)
    assert reply["status"] == "timeout"


@pytest.mark.long
def test_an_endless_loop_of_a_kernel_is_reported_with_its_line():
    reply = check(5, "m_new = m\nwhile m_new == m:\n    l = l + 0\nm = m_new\np_smem[warp, lane] = l\n")
    assert reply["status"] == "failed", reply
    assert reply["result"]["kind"] == "hang"
    assert reply["result"]["line_text"] == "while m_new == m:"


@pytest.mark.long
def test_more_memory_than_a_check_may_use():
    reply = check(0, "kept = [np.empty(1 << 28) for n in range(64)]\nout[row] = kept[0][0]")
    assert reply["status"] in ("failed", "crashed")
    assert "memory" in (reply["result"] or {"message": reply["why"]})["message"]


@pytest.mark.long
def test_a_function_that_calls_itself():
    text = solved(0).replace("def launch", "def deep(n):\n    return deep(n + 1)\n\n\ndef launch", 1)
    reply = check_file(0, text.replace("scores = np.zeros(visible)", "scores = deep(0)"))
    assert reply["status"] == "failed"
    assert "calls itself" in reply["result"]["message"]


@pytest.mark.long
def test_much_output_is_cut():
    reply = check(0, 'for n in range(20):\n    print("x" * 100000)\nout[row] = 0', time_limit=60)
    assert reply["status"] == "failed"
    assert len(reply["printed"]) <= process.KEPT_OUTPUT


@pytest.mark.long
@pytest.mark.parametrize("exception", ["SystemExit(0)", "KeyboardInterrupt", "BaseException('enough')"])
def test_an_exception_that_ends_processes(exception):
    reply = check_file(0, solved(0) + f"\nraise {exception}\n")
    assert reply["status"] == "crashed" and exception.partition("(")[0] in reply["why"]


@pytest.mark.long
def test_an_input_is_not_written_to():
    text = exercise.region(LESSONS[1].exercise).text + "            k[b, h, 0, 0] = 0\n"
    reply = check(1, text)
    assert reply["status"] == "failed"
    assert "k[b, h, 0, 0] = 0" in reply["result"]["message"] or "input" in reply["result"]["message"]


@pytest.mark.parametrize(
    "more, named",
    [
        ("STAGE: object = 3", "STAGE"),
        (
            "if True:\n    def launch(problem, out, executor, lse=None, variant=None):\n        out[:] = 0",
            "launch",
        ),
        ("for launch in (print,):\n    pass", "launch"),
        ("def Stage(**options):\n    return 1", "Stage"),
        ("from flashcore_numba.stages.stage import Stage as STAGE", "STAGE"),
    ],
)
def test_a_file_keeps_the_launch_and_the_stage_that_are_judged(more, named):
    answer = exercise.answer_in_file(LESSONS[1], f"{solved(1)}\n{more}\n", "mine.py")
    finding = screen(LESSONS[1], answer)
    assert finding.status == "refused"
    assert f"`{named}` is given another value" in finding.what


@pytest.mark.long
def test_an_exception_with_a_long_message():
    reply = check(0, "raise ValueError('x' * 10**8)")
    assert reply["status"] == "failed"
    assert len(reply["result"]["message"]) < 5_000


@pytest.mark.long
def test_functions_inside_the_region_of_lesson_00():
    reply = check(0, "def again(n):\n    return again(n + 1)\nout[row] = again(0)")
    assert reply["status"] == "failed"
    assert "calls itself" in reply["result"]["message"]


@pytest.mark.parametrize(
    "text, named",
    [
        ("import os\nos._exit(0)", "os"),
        ("from numpy import load", "load"),
        ("__import__('os').system('true')", ".system"),
        ("exec('1')", "exec"),
        ("eval('1')", "eval"),
        ("open('x', 'w')", "open"),
        ("().__class__.__bases__", "__bases__"),
        ("np.exp = None", "np.exp"),
        ("np.load('x')", "load"),
        ("np.ctypeslib.load_library('x', '.')", ".ctypeslib"),
        ("np.polynomial.polyutils.operator.attrgetter('__globals__')", ".operator"),
        ("np.polynomial.polyutils", ".polynomial"),
        ("np.random.seed(1)", ".random"),
        ("of = np.random\nof.seed(1)", ".random"),
        ("from numpy import random", "random"),
        ("np.sctypeDict['kept'] = 1", ".sctypeDict"),
        ("q.tofile('x')", "tofile"),
        ("getattr(np, 'load')", "getattr"),
        ("(n for n in (1,)).gi_frame.f_builtins", "f_builtins"),
        ("globals()", "globals"),
        ("global q\nq = 1", "outside"),
        ("import threading\nthreading.Thread(target=print).start()", "threading"),
        ("from functools import update_wrapper", "update_wrapper"),
        ("import flashcore_numba.wide", "flashcore_numba.wide"),
        ("from flashcore_numba.stages.stage00_three_loops import three_loops", "stage00_three_loops"),
    ],
)
def test_what_reaches_out_is_refused_by_name(text, named):
    answer = exercise.answer_in_cell(LESSONS[0], text)
    finding = screen(LESSONS[0], answer)
    assert finding.status == "refused" and named in f"{finding.what} {finding.look}"
    assert answer.number(finding.line) in (1, 2)


def test_no_module_of_numpys_is_left_and_nothing_to_keep_things_in():
    """Whatever NumPy is installed: a module leads on to Python's own, a dict outlives a launch."""
    names = {*dir(np), *getattr(np, "__numpy_submodules__", ())} - screen_python.ATTRIBUTES - {"random"}
    left = [name for name in sorted(names) if not name.startswith("_")]
    kinds = ModuleType | dict | list | set
    assert len(left) > 300 and not [n for n in left if isinstance(getattr(np, n, None), kinds)]


@pytest.mark.long
def test_what_is_refused_is_not_run(tmp_path):
    written = tmp_path / "written"
    reply = check(0, f"open({str(written)!r}, 'w')\nout[row] = 0")
    assert reply["status"] == "refused" and reply["result"]["line"] == 1
    assert "open" in reply["result"]["message"] and not written.exists()


BODIES = {
    "exit": ("import os; os._exit(7)", "crashed", "exit status 7"),
    "signal": ("import os; os.kill(os.getpid(), 11)", "crashed", "SIGSEGV"),
    "nothing": ("pass", "crashed", "exit status 0"),
    "flood": ("import os\nwhile True: os.write(fd, b'x' * 65536)", "crashed", "no result"),
    "silence": ("import time; time.sleep(600)", "timeout", "2 s"),
    "closed": ("import os, time; os.close(fd); os.close(0); time.sleep(600)", "crashed", ""),
    "no JSON": ("import os, time; os.write(fd, b'hello\\n'); time.sleep(600)", "crashed", "no result"),
    "grandchild": (
        "import os, time\npid = os.fork()\nif pid: print(pid, flush=True); os._exit(3)\ntime.sleep(600)",
        "crashed",
        "exit status 3",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_the_process_does_it_ends_and_leaves_nothing(name):
    """The judge alone, with a process in the child's place that does what no answer should be able to do."""
    body, status, why = BODIES[name]
    command = [sys.executable, "-c", f"import sys\nfd = int(sys.argv[1])\n{body}"]
    start = time.monotonic()
    reply = process.supervise(command, {"filler": "x" * 500_000}, 2.0)
    assert time.monotonic() - start < 2 + SLACK
    assert (reply["status"], reply["result"]) == (status, None)
    assert why in reply["why"]
    if name == "grandchild":
        deadline = time.monotonic() + SLACK
        while alive(int(reply["printed"])):  # it is killed; the kernel may need a moment
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_is_stopped_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    body = "import sys, tempfile, time\nprint(tempfile.mkdtemp(), flush=True)\ntime.sleep(600)"
    reply = process.supervise([sys.executable, "-c", body], {}, 3.0)
    assert reply["status"] == "timeout" and reply["printed"].startswith(str(tmp_path))
    assert not [*tmp_path.iterdir()]


def alive(pid):
    """Does a process run? One that ended and waits for its parent to notice does not."""
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_an_interrupt_ends_the_process():
    started = []

    def interrupt(done, total, label):
        started.append(label)
        raise KeyboardInterrupt

    threads, others = threading.active_count(), children()
    with pytest.raises(KeyboardInterrupt):
        process.run({"job": "check", "lesson": 0}, progress=interrupt)
    assert started and threading.active_count() == threads
    assert children() <= others


def children() -> set[int]:
    """The processes that this one has started and that have not been waited for."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for pids in lists for pid in pids.split()}


@pytest.mark.parametrize("limit", [0, -1, "60", 1e9, float("nan"), None])
def test_a_time_limit_is_a_number_of_seconds(limit):
    with pytest.raises(ArgumentError, match="time_limit"):
        process.run({"job": "check", "lesson": 0}, limit)


@pytest.mark.parametrize(
    "job, named",
    [
        ({"job": "dance", "lesson": 0}, "job: 'dance'"),
        ({"job": "check", "lesson": 77}, "lesson 77"),
        ({"job": "check", "lesson": 0, "answer": "x" * 300_000}, "at most 200000"),
        ({"job": "check", "lesson": 0, "answer": "\tx = 1"}, "tab"),
        ({"job": "check", "lesson": 0, "answer": "x = '\udcff'"}, "UTF-8"),
        ({"job": "check", "lesson": 0, "file": {"name": "a.py", "text": "x = 1\0"}}, "zero byte"),
        ({"job": "check", "lesson": 5, "file": {"name": "a.py", "text": "x = 1"}}, "no file of lesson 5"),
    ],
)
def test_a_job_that_is_none(job, named):
    with pytest.raises(ArgumentError, match=named):
        child.do(job, lambda *_: None)


@pytest.mark.long
def test_a_job_that_is_none_is_an_error_of_the_caller():
    with pytest.raises(ArgumentError, match="lesson 77"):
        process.run({"job": "check", "lesson": 77})


@pytest.mark.long
def test_the_seed_repeats_the_inputs(rng):
    seed = int(rng.integers(1 << 31))
    answer = exercise.region(LESSONS[0].exercise).text.replace("scale * ", "")
    one, two = (
        process.run({"job": "check", "lesson": 0, "answer": answer, "seed": seed})["result"] for _ in range(2)
    )
    assert one["seed"] == seed and one["message"] == two["message"]
    assert np.isfinite(one["seconds"])
