"""The process that runs an answer: one job from standard input, JSON lines on the pipe that argv names.

It limits its own memory before it imports anything of the answer. `process.supervise` limits its time.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # nothing of the answer's world before its memory is limited
    from flashcore_numba.course.exercise import Answer
    from flashcore_numba.course.spec import Lesson

MEMORY = 4 << 30  # bytes that a check may allocate
PR_SET_PDEATHSIG = 1  # of Linux's prctl
PROCESSOR_FACTOR = 8  # seconds of processor time for each second of the limit, should the parent be gone
Step = Callable[[int, int, str], None]


def main() -> None:
    """Do the job and leave, whatever the answer has left running."""
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who asked is gone: nobody wants the answer
    job = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(PROCESSOR_FACTOR * job["time_limit"]) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    if job.get("job") != "measure":  # a GPU's driver maps far more than it uses
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

    def say(message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]

    from cuda_reference.files import MachineError
    from flashcore_numba.core.errors import ArgumentError

    try:
        reply = do(
            job,
            lambda done, total, label: say({"step": [done, total, label]}),
            lambda layer: say({"layer": layer}),
        )
    except ArgumentError as error:
        reply = {"argument_error": str(error)}
    except MachineError as error:
        reply = {"machine_error": str(error)}
    except MemoryError:
        reply = {
            "status": "crashed",
            "result": None,
            "why": f"It asked for more than {MEMORY >> 30} GB of memory.",
        }
    except BaseException as error:  # of the answer: SystemExit, KeyboardInterrupt and what else there is
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        reply = {"status": "crashed", "result": None, "why": f"It raised {text} and ended its own process."}
    say(reply)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(0)  # whatever the answer left running does not hold this process


def do(job: Mapping[str, Any], step: Step, entered: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """One job of `process.run`, in this process. entered(layer): called as one of a check begins.

    Raises ArgumentError for a job that is none.
    """
    from flashcore_numba.core.errors import ArgumentError
    from flashcore_numba.course import exercise
    from flashcore_numba.course.lessons import find

    check = partial(_check, entered=entered)
    kinds: dict[str, Callable] = {"check": check, "watch": _watch, "measure": _measure}
    if job.get("job") not in kinds or "lesson" not in job:
        raise ArgumentError(f"job: {job.get('job')!r} is none of {', '.join(kinds)}")
    lesson = find(job["lesson"])
    answer = None
    if job.get("answer") is not None:
        answer = exercise.answer_in_cell(lesson, job["answer"])
    elif job.get("file") is not None:
        answer = exercise.answer_in_file(lesson, job["file"]["text"], job["file"]["name"])
    return kinds[job["job"]](lesson, answer, job, step)


def _check(
    lesson: "Lesson",
    answer: "Answer | None",
    job: Mapping[str, Any],
    step: Step,
    entered: Callable[[str], None],
) -> dict[str, Any]:
    from flashcore_numba.course import exercise
    from flashcore_numba.course.judge.grade import check
    from flashcore_numba.course.judge.layers import Layers

    if answer is None:
        answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    layers = Layers(job.get("through"), entered)
    result = check(lesson, answer, seed=job.get("seed"), step=step, layers=layers)
    return {"status": result.status, "result": result.as_dict()}


def _watch(lesson: "Lesson", answer: "Answer | None", job: Mapping[str, Any], step: Step) -> dict[str, Any]:
    """The figure of the answer's kernel, or search, where it runs, of the stage's own otherwise."""
    from flashcore_numba.course import figures
    from flashcore_numba.course.judge.answer_stage import drawn_from
    from flashcore_numba.course.judge.screen import screen
    from flashcore_numba.stages import edited

    name = job.get("figure") or next(iter(lesson.figures))
    why, own = "There is no answer yet.", f"your {lesson.exercise.subject}"
    if answer is not None:
        refusal = screen(lesson, answer)
        if refusal is None:
            try:
                step(0, 1, f"drawing {name} of {own}")
                with drawn_from(lesson, answer) as stage:
                    figure = figures.draw(lesson, name, stage, own)
                return {"status": "done", "result": figure.as_dict(), "whose": "yours"}
            except Exception as error:
                why = f"{own.capitalize()} does not run to its end: {error}"
        else:
            why = refusal.what
    step(0, 1, f"drawing {name} of {lesson.exercise.model}")
    stage = edited.original(lesson.exercise.stage)
    figure = figures.draw(lesson, name, stage, figures.whose(stage))
    return {"status": "done", "result": figure.as_dict(), "whose": "stage", "why": why}


def _measure(lesson: "Lesson", answer: "Answer | None", job: Mapping[str, Any], step: Step) -> dict[str, Any]:
    """Times of the answer (None: only the stages), as `answer_times.time_answer` gives them."""
    from flashcore_numba.course.judge.answer_stage import loaded
    from flashcore_numba.course.judge.answer_times import time_answer

    step(0, 1, "measuring on the GPU")
    if answer is None:
        return {"status": "done", "result": time_answer(lesson, None)}
    with loaded(lesson, answer) as stage:
        return {"status": "done", "result": time_answer(lesson, stage)}


if __name__ == "__main__":
    main()
