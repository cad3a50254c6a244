"""`flashcore profile`: one stage under Nsight Compute, or its recorded metrics."""

import sys
from argparse import Namespace
from typing import Any

from flashcore_numba.branches.find import find
from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.cli.selection import variant_of
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence import extracts, nsight
from flashcore_numba.evidence import profile as profiling
from flashcore_numba.stages.runs import Run


def run(args: Namespace) -> int:
    """Profile, or print what is recorded. Returns 1 where there is nothing, or the output is wrong."""
    stage, shape = find(args.stages), parse(args.shape)
    chosen = Run(stage, variant_of(args, stage))
    profiling.refuse(chosen, shape, args.causal)
    if (why_not := nsight.why_not()) is not None:
        if args.save:
            raise ArgumentError(f"--save {str(args.save)!r}: needs a measurement on a GPU; {why_not}")
        return _show_recorded(args, chosen, shape, why_not)
    with progress_bar() as progress:
        progress.step(f"ncu: {chosen.label} at {shape}{', causal' if args.causal else ''}")
        try:
            measured, *reports = profiling.profile(chosen, shape, args.causal, args.save or profiling.FOLDER)
        except nsight.NsightError as error:
            print(f"flashcore profile: {error}", file=sys.stderr)
            return 1
    extract = extracts.extract(shape, args.causal, [measured])
    _print(args, chosen, extract, {"reports": [str(path) for path in reports]})
    if args.json != "-":
        print("\n".join(f"Saved {path}" for path in reports))
    return 0 if measured.error["right"] else 1


def _show_recorded(args: Namespace, chosen: Run, shape: Shape, why_not: str) -> int:
    print(f"flashcore profile: nothing is measured here, {why_not}", file=sys.stderr)
    extract = extracts.find(shape, args.causal)
    if extract is None or profiling.find(chosen, extract) is None:
        shapes = ", ".join(profiling.which(chosen)) or "none"
        at = f"{shape}{' causal' if args.causal else ''}"
        message = f"{chosen.label} has no recorded profile at {at}; recorded are: {shapes}"
        print(f"flashcore profile: {message}", file=sys.stderr)
        return 1
    _print(args, chosen, extract, {"why_not_measured": why_not})
    return 0


def _print(args: Namespace, chosen: Run, extract: dict[str, Any], more: dict[str, Any]) -> None:
    found = profiling.find(chosen, extract) or {}
    about = {name: value for name, value in extract.items() if name != "runs"}
    if not give_json(args, lambda: {"stage": chosen.label, **about, "measured": found, **more}):
        console().print(profiling.table(chosen, found, extract))
