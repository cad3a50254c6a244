"""Copies of CUDA C files with an answer in them, named by their text: the same answer is compiled once."""

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import cuda_reference
from cuda_reference.files import MachineError, cache_folder
from flashcore_numba.checks.mutation import with_copies
from flashcore_numba.course.spec import Lesson
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import find

KEPT, IN_USE = 60, 24 * 3600.0  # folders; seconds for which one that was asked for stays in any case
LAUNCH_SECONDS = 5.0  # of the CPU executor: a launch of the checks takes a tenth of a second


def stage_with(lesson: Lesson, text: str) -> Stage:
    """The lesson's stage, launching its kernel from a copy in which the exercise's file has this text."""
    copied = with_copies(find(lesson.exercise.stage), folder_with(lesson, text))

    def launch(problem: Any, *outputs: Any, executor: Any, **options: Any) -> None:
        if isinstance(executor, Simulator):
            executor.options.setdefault("time_limit", LAUNCH_SECONDS)
        copied.launch(problem, *outputs, executor=executor, **options)

    return replace(copied, launch=launch)


def folder_with(lesson: Lesson, text: str) -> Path:
    """A folder with the stage's kernel and the exercise's file, that file with this text.

    Raises MachineError where it cannot be written.
    """
    kernels = cuda_reference.FOLDER.glob(f"stage{lesson.exercise.stage:02d}_*.cu")
    texts = {path.name: path.read_text() for path in kernels} | {lesson.exercise.file: text}
    name = sha256("\0".join(part for item in sorted(texts.items()) for part in item).encode()).hexdigest()[
        :20
    ]
    root = cache_folder("answers")
    folder = root / name
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)
            return folder
    try:
        made = Path(tempfile.mkdtemp(dir=root))
        for file, content in texts.items():
            (made / file).write_text(content)
    except OSError as error:
        raise MachineError(f"{root}: the answer cannot be written there ({error.strerror})") from None
    try:
        made.rename(folder)
    except OSError:  # another process has made it meanwhile
        shutil.rmtree(made, ignore_errors=True)
    _forget_the_oldest(root)
    return folder


def _forget_the_oldest(root: Path) -> None:
    used = []
    for path in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            used.append((path.stat().st_mtime, path))
    for when, path in sorted(used)[:-KEPT]:
        if time.time() - when < IN_USE:  # by another process, perhaps
            break
        shutil.rmtree(path, ignore_errors=True)
