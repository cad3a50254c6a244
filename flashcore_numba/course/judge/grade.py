"""The check of one answer, in the process that runs it."""

import secrets
import time
import warnings
from dataclasses import replace

import numpy as np

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.answer_stage import loaded
from flashcore_numba.course.judge.causes import stated
from flashcore_numba.course.judge.grade_cuda import CudaGrading
from flashcore_numba.course.judge.grade_python import PythonGrading, line_of
from flashcore_numba.course.judge.grade_ranks import RanksGrading
from flashcore_numba.course.judge.grade_search import SearchGrading
from flashcore_numba.course.judge.grading import Step, at
from flashcore_numba.course.judge.layers import CHECKS, COMPILE, SCREEN, Layers
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.spec import FunctionsExercise, Lesson, SearchExercise
from flashcore_numba.run.executor import why_not_simulated
from flashcore_numba.stages.edited import EditError


def check(
    lesson: Lesson,
    answer: Answer,
    seed: int | None = None,
    step: Step = lambda *_: None,
    layers: Layers | None = None,
) -> CheckResult:
    """Judge an answer in this process, which it may harm: `process.run` does it in another one.

    seed: of the random inputs, fresh when None. step(done, total, label) is called before each part. layers:
    which are to run, and who is told. Raises ArgumentError for a whole file of something else, and for CUDA C
    where no C++ compiler is installed.
    """
    layers = layers or Layers()
    result = _checked(lesson, answer, seed, step, layers)
    refused = "" if result.passed else layers.current
    return replace(result, layer=refused, layers=layers.done())


def _checked(lesson: Lesson, answer: Answer, seed: int | None, step: Step, layers: Layers) -> CheckResult:
    start = time.perf_counter()
    layers.enter(SCREEN)
    refusal = screen(lesson, answer)
    if refusal is not None:
        look = lesson.exercise.task.strip() if refusal.status == "empty" else refusal.look
        result = CheckResult(lesson.key, refusal.status, refusal.what, look=look)
        if refusal.status == "refused":
            result = stated(result, "refused")
        if refusal.line is not None and refusal.status != "empty":
            result = at(result, answer, refusal.line)
        return replace(result, seconds=time.perf_counter() - start)
    if answer.is_cuda and (reason := why_not_simulated("CUDA C")) is not None:
        raise ArgumentError(f"lesson {lesson.key} is in CUDA C: {reason}")
    seed = secrets.randbits(31) if seed is None else seed
    of_functions = isinstance(lesson.exercise, FunctionsExercise)
    first = CHECKS if of_functions else COMPILE
    if not layers.asked(first):
        return CheckResult(lesson.key, "passed", "Nothing keeps it from being compiled.", seed=seed)
    layers.enter(first)
    if of_functions:
        kind = SearchGrading if isinstance(lesson.exercise, SearchExercise) else RanksGrading
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = kind(lesson, answer, seed, step).result()
        return replace(result, seed=seed, seconds=time.perf_counter() - start)
    grading = CudaGrading if answer.is_cuda else PythonGrading
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), loaded(lesson, answer) as stage:
            warnings.simplefilter("ignore")  # an infinity or a NaN is judged where it comes out
            result = grading(lesson, answer, stage, seed, step, layers).result()
    except EditError as error:
        result = _not_loaded(lesson, answer, error.__cause__ or error)
    return replace(result, seed=seed, seconds=time.perf_counter() - start)


def _not_loaded(lesson: Lesson, answer: Answer, error: BaseException) -> CheckResult:
    line = error.lineno if isinstance(error, SyntaxError) else line_of(error, lesson.exercise.file)
    what = f"The file cannot be imported: {type(error).__name__}: {error}"
    result = CheckResult(lesson.key, "failed", what, kind="error")
    return result if line is None else at(result, answer, line)
