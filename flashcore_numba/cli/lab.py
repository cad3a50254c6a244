"""`flashcore lab`: JupyterLab at a lesson."""

import sys
from argparse import Namespace
from importlib.util import find_spec

from flashcore_numba.course import lessons
from flashcore_numba.course.book import notebooks
from flashcore_numba.course.session import lab
from flashcore_numba.course.session.session import overview


def run(args: Namespace) -> int:
    """Start JupyterLab. Returns its exit status, or 1 where it is not installed."""
    folder = notebooks.root()
    if missing := [name for name in ("jupyterlab", "nbformat") if find_spec(name) is None]:
        print(
            f"flashcore lab: {missing[0]} is not installed: run make lab-env, "
            "or pip install -e '.[notebooks]' in the clone",
            file=sys.stderr,
        )
        return 1
    key = " ".join(args.lesson) or overview().data["next"]  # two words are no lesson
    chosen = lessons.find(max(lessons.LESSONS) if key is None else key)
    notebook, sentence = lab.working_copy(folder, chosen.number, args.again)
    print(f"flashcore lab: {sentence}", flush=True)
    return lab.start(lab.command(folder, notebook, args.after))
