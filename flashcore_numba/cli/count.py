"""`flashcore count`: what one stage moves, by source line."""

import sys
from argparse import Namespace

from flashcore_numba.branches.find import find
from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.cli.selection import variant_of
from flashcore_numba.core.shapes import parse
from flashcore_numba.evidence.counts import count
from flashcore_numba.report.tables import moved_line
from flashcore_numba.run.executor import simulated
from flashcore_numba.stages.runs import Run

LEGEND = (
    "sec/req: 32-byte sectors a warp's request touches; used: share of their bytes that it needs; waves: "
    "shared-memory wavefronts; deg: waves over the fewest possible, 1.0 without bank conflicts; worst: the "
    "most wavefronts of one request."
)


def run(args: Namespace) -> int:
    """Returns 0 where the output is right and nothing is reported."""
    stage = find(args.stages)
    variant = variant_of(args, stage)
    shape = parse(args.shape)
    if not (able := simulated([stage]))[0]:
        print(f"flashcore count: {able[1][0]}", file=sys.stderr)
        return 1
    with progress_bar() as progress:
        chosen = Run(stage, variant)
        progress.step(f"counting {chosen.label} at {shape}{', causal' if args.causal else ''}")
        counted = count(chosen, shape, args.causal)
    if not give_json(args, counted.as_dict):
        out = console()
        for launch in counted.launches:
            out.print(str(launch), markup=False, soft_wrap=True)
        out.print(LEGEND, markup=False, soft_wrap=True)
        out.print(moved_line(counted.moved()), soft_wrap=True)
        if not counted.error["right"]:
            out.print(f"WRONG output: {counted.error['reason']}")
    return 0 if counted.right else 1
