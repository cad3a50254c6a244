"""`flashcore lessons`: the numbers in `lessons/*.md`, and the notebooks."""

from argparse import Namespace
from collections.abc import Mapping

from flashcore_numba.cli.output import give_json, progress_bar
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.book import notebooks


def run(args: Namespace) -> int:
    """Write, execute or check. Returns 1 where a check finds a difference."""
    if args.check and (args.execute or args.numbers):
        raise ArgumentError("--check: looks at all lessons and changes none, so nothing else goes with it")
    folder = notebooks.root()
    if args.check:
        found = notebooks.notebook_differences(folder)
        if not give_json(args, lambda: {"up_to_date": not found, "differences": found}):
            print("\n".join(found or ["lessons and notebooks agree with their sources"]))
        return 1 if found else 0
    with progress_bar() as progress:
        progress.step("writing numbers and notebooks")
        changed = [str(path.relative_to(folder)) for path in notebooks.update(folder, args.numbers)]
        seconds: Mapping[str, float] = {}
        if args.execute:
            seconds = notebooks.execute_files(
                folder,
                args.numbers,
                lambda name, done, total: progress.count("executing", done, total, name),
            )
    if not give_json(args, lambda: {"changed": changed, "seconds": seconds}):
        lines = [f"wrote {name}" for name in changed]
        lines += [f"executed {name} in {each:.0f} s" for name, each in seconds.items()]
        print("\n".join(lines) or "lessons and notebooks agree with their sources already")
    return 0
