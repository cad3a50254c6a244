"""`flashcore starter`: the file of a lesson's exercise with the region empty."""

from argparse import Namespace
from pathlib import Path

from cuda_reference.files import write
from flashcore_numba.cli.output import give_json
from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.course.exercise import is_cuda, starter
from flashcore_numba.course.lessons import find


def run(args: Namespace) -> int:
    """Write the file. Returns 0."""
    lesson = find(args.lesson)
    ending = "cu" if is_cuda(lesson.exercise.file) else "py"
    path = Path(args.file or f"lesson{lesson.number:02d}.{ending}")
    text = starter(lesson)
    try:
        write(path, text, new=True)
    except FileExistsError:
        raise ArgumentError(f"{str(path)!r} exists already and stays as it is: choose another name") from None
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be written ({error.strerror})") from None
    if not give_json(args, lambda: {"lesson": lesson.number, "file": str(path)}):
        print(f"Wrote {path}. Fill in its region, then: flashcore check {path} --lesson {lesson.number}")
    return 0
