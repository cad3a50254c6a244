"""Copies of CUDA C files with an answer in them, named by their text: the same answer is compiled once."""

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import platformdirs

import cuda_reference

from ..checks.mutation import with_copies
from ..executor import Simulator
from ..stages import Stage
from ..stages.find import find
from .spec import Lesson

__all__ = ["folder_with", "stage_with"]

KEPT = 60  # folders
LAUNCH_SECONDS = 5.0  # of the CPU executor: a launch of the checks takes a tenth of a second


def stage_with(lesson: Lesson, text: str) -> Stage:
    """The lesson's stage, launching its kernel from a copy in which the exercise's file has this text."""
    copied = with_copies(find(lesson.exercise.stage), folder_with(lesson, text))

    def launch(problem: Any, out: Any, executor: Any, **options: Any) -> None:
        if isinstance(executor, Simulator):
            executor.options.setdefault("time_limit", LAUNCH_SECONDS)
        copied.launch(problem, out, executor, **options)

    return replace(copied, launch=launch)


def folder_with(lesson: Lesson, text: str) -> Path:
    """A folder with the stage's kernel and the exercise's file, that file with this text."""
    kernels = cuda_reference.FOLDER.glob(f"stage{lesson.exercise.stage:02d}_*.cu")
    texts = {path.name: path.read_text() for path in kernels} | {lesson.exercise.file: text}
    name = sha256("\0".join(part for item in sorted(texts.items()) for part in item).encode()).hexdigest()[
        :20
    ]
    root = Path(platformdirs.user_cache_dir("flashcore", appauthor=False)) / "answers"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / name
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)
            return folder
    made = Path(tempfile.mkdtemp(dir=root))
    for file, content in texts.items():
        (made / file).write_text(content)
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
    for _, path in sorted(used)[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
