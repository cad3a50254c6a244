"""`flashcore readme`: what README.md and docs/ quote from the recorded runs, and the pictures."""

from argparse import Namespace

from flashcore_numba.cli.output import give_json
from flashcore_numba.report import readme


def run(args: Namespace) -> int:
    """Write or check. Returns 1 where a check finds a difference."""
    if args.check:
        found = readme.differences(args.file)
        if not give_json(args, lambda: {"up_to_date": not found, "differences": found}):
            for sentence in found or [f"{args.file} agrees with the record"]:
                print(sentence)
        return 1 if found else 0
    changed = readme.update(args.file)
    if not give_json(args, lambda: {"changed": [str(path) for path in changed]}):
        print("\n".join(f"wrote {path}" for path in changed) or f"{args.file} agrees with the record already")
    return 0
