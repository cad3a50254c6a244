"""`flashcore starter`: the file of a lesson's exercise with the region empty."""

import shlex
from argparse import Namespace
from pathlib import Path

from cuda_reference.files import write
from flashcore_numba.cli.output import give_json
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.exercise import answer_in_file, starter, starter_name
from flashcore_numba.course.lessons import find

ROOT = Path(__file__).resolve().parents[2]  # a clone, where the package is not installed without one


def run(args: Namespace) -> int:
    """Write the file. Returns 0."""
    lesson = find(args.lesson)
    path = Path(args.file or starter_name(lesson))
    _refuse_the_repositorys(path)
    text = starter(lesson)
    answer_in_file(lesson, text, path.name)  # `check` would refuse a name of the other language too
    try:
        write(path, text, new=True)
    except FileExistsError:
        raise ArgumentError(f"{str(path)!r} exists already and stays as it is: choose another name") from None
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be written ({error.strerror})") from None
    if not give_json(args, lambda: {"lesson": lesson.key, "file": str(path)}):
        command = f"flashcore check {shlex.quote(str(path))} --lesson {lesson.key}"
        print(f"Wrote {path}. Fill in its region, then: {command}")
    return 0


def _refuse_the_repositorys(path: Path) -> None:
    """`lessons/` and `notebooks/` of a clone hold the course, and no answers."""
    folder = path.absolute().parent.resolve()
    for name in ("lessons", "notebooks"):
        if folder.is_relative_to(ROOT / name):
            raise ArgumentError(
                f"{str(path)!r}: {name}/ belongs to the course; name a file in another folder"
            )
