"""The values at the end of a region in CUDA C: a copy of the kernel that notes them, run on the CPU executor.

A line behind the region calls a function that appends one record a thread: where the thread is, and what each
expression is worth. The copy is compiled without checks, since nothing but its values is asked for.
"""

import ctypes
from typing import Any

import numpy as np

from cuda_reference.cpu import CpuModule
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT
from flashcore_numba.course.cuda_text import words
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.spec import Lesson, Wanted
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.simulator import scratch
from flashcore_numba.stages import edited

MOST = 1 << 20  # numbers that are noted
SECONDS = 10.0
# Before the kernel's own first line and on that line, so that lines keep their numbers.
PRELUDE = (
    'extern "C" {{ extern __attribute__((visibility("default"))) float flashcore_probed[{most}]; '
    'extern __attribute__((visibility("default"))) int flashcore_probed_count; }} '
    "float flashcore_probed[{most}]; int flashcore_probed_count; "
    "template <class... T> CPU_UNCHECKED static void flashcore_probe(T... values) {{ "
    "const float all[] = {{(float)((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x), "
    "(float)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x), (float)values...}}; "
    "if (flashcore_probed_count + 2 + (int)sizeof...(values) > {most}) return; "
    "for (float value : all) flashcore_probed[flashcore_probed_count++] = value; }} "
)


def usable(answer: Answer, wanted: tuple[Wanted, ...]) -> list[Wanted]:
    """Those of the expressions whose names the answer's file has."""
    names = words(answer.text)
    return [w for w in wanted if words(w.expression) <= names]


def values(
    lesson: Lesson, answer: Answer, wanted: list[Wanted], inputs: Inputs
) -> list[tuple[int, dict, list]]:
    """(number of the visit, places, one array a wanted expression) of every arrival at the region's end.

    The arrays have an element for each thread of every block that came so often, in one order; `places` has
    "block" and "thread". Raises CompileError when an expression does not compile in this answer.
    """
    expressions = ", ".join(f"({w.expression})" for w in wanted)
    meet = "__syncwarp(); " * ("_smem[" in expressions)  # or a lane might still write what another one notes
    text = PRELUDE.format(most=MOST) + answer.with_at_the_end(f"{meet}flashcore_probe({expressions});")
    executor = _Probing()
    stage = edited.load(lesson.exercise.stage, {lesson.exercise.file: text})
    stage.run(inputs.problem(inputs.arrays), executor, lesson.exercise.variant)
    visits: list[tuple[int, dict, list]] = []
    for noted in executor.noted:  # a later launch may read what an earlier one left wrong
        first = len(visits)
        visits += [(first + n, places, found) for n, places, found in _visits(noted, len(wanted))]
    return visits


def _visits(noted: np.ndarray, count: int) -> list[tuple[int, dict, list]]:
    records = noted[: len(noted) // (2 + count) * (2 + count)].reshape(-1, 2 + count)
    times: dict[tuple[float, float], int] = {}
    numbers = np.empty(len(records), int)
    for n, (block, thread) in enumerate(records[:, :2]):
        numbers[n] = times[block, thread] = times.get((block, thread), -1) + 1
    out = []
    for number in range(numbers.max(initial=-1) + 1):
        some = records[numbers == number]
        some = some[np.lexsort((some[:, 1], some[:, 0]))]
        places = {"block": some[:, 0].astype(int), "thread": some[:, 1].astype(int)}
        out.append((number, places, [some[:, 2 + n] for n in range(count)]))
    return out


class _Probing:
    """An executor that runs copies without checks and keeps what each launch with a probe has noted."""

    def __init__(self) -> None:
        self.sm_count, self.shared_limit = EXAMPLE_SM_COUNT, EXAMPLE_SHARED_LIMIT
        self.noted: list[np.ndarray] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.asarray(scratch(shape, dtype))

    def counter(self, count: int = 1) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        module = CpuModule(kernel.path, dict(kernel.defines), checks=False, counts=False, time_limit=SECONDS)
        try:
            count = ctypes.c_int.in_dll(module.code, "flashcore_probed_count")
        except ValueError:
            count = None  # a kernel of the stage that the region is not in
        if count is not None:
            count.value = 0
        module.kernel(kernel.entry)(grid, block, args, shared_mem=shared_bytes)
        if count is not None:
            probed = (ctypes.c_float * MOST).in_dll(module.code, "flashcore_probed")
            self.noted.append(np.ctypeslib.as_array(probed)[: count.value].copy())
