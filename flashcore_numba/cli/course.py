"""`flashcore course`: the lessons and what is done of them."""

from argparse import Namespace

from flashcore_numba.cli.output import console, give_json
from flashcore_numba.course.session.session import overview


def run(args: Namespace) -> int:
    """Print the lessons. Returns 0."""
    shown = overview()
    if not give_json(args, shown.as_dict):
        shown.render(console())
    return 0
