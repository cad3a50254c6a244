"""`flashcore reconcile`: what stages move as predicted, counted and measured."""

import sys
from argparse import Namespace

from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.cli.parser import COUNT_SHAPE
from flashcore_numba.cli.selection import left_out, selected
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence import extracts, nsight, reconcile
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import Stage


def run(args: Namespace) -> int:
    """Compare the three. Returns 1 where a difference has no reason, or a stage did not run."""
    stages, shape = selected(args), parse(args.shape or COUNT_SHAPE)
    if (args.save or args.measure) and (why_not := nsight.why_not()) is not None:
        option = "--save" if args.save else "--measure"
        raise ArgumentError(f"{option}: needs a measurement on a GPU; {why_not}")
    if args.save:
        return _save_extracts(args, stages, shape)
    stages, not_run = simulated(stages)
    stages, not_foretold = reconcile.foretold(stages)
    not_run += not_foretold
    unserved = {each.label: each.why_not(stand_in_for(each, shape, args.causal)) for each in stages}
    without = left_out(unserved)
    chosen = reconcile.served(stages, shape, args.causal)
    with progress_bar() as progress:
        extract = extracts.find(shape, args.causal)
        if args.measure:
            progress.step(f"ncu: {len(chosen)} runs at {shape}{' causal' if args.causal else ''}")
            try:
                extract = reconcile.measure(chosen, shape, args.causal)
            except nsight.NsightError as error:
                print(f"flashcore reconcile: {error}", file=sys.stderr)
                return 1
        found = reconcile.blocks(chosen, shape, args.causal, extract, progress)
    at = f"{shape}{', causal' if args.causal else ''}"
    where = reconcile.where(extract, shape, args.causal, chosen)
    if not give_json(
        args, lambda: {"at": at, "measured": where, "runs": [b.as_dict() for b in found], "left_out": without}
    ):
        out = console()
        shown, notes = reconcile.table(found, f"Predicted, counted, measured at {at}", out.width)
        if found:
            out.print(shown)
        apart = " " + reconcile.APART if any(each.header == "apart" for each in shown.columns) else ""
        for line in (*notes, f"Measured: {where}.", reconcile.LEGEND + apart, *without, *not_run):
            out.print(line, markup=False, soft_wrap=True)
    return 1 if not_run or any(block.unexplained for block in found) else 0


def _save_extracts(args: Namespace, stages: list[Stage], shape: Shape) -> int:
    if args.measure or (args.causal and not args.shape):
        raise ArgumentError("--save: measures what is recorded; of the options only --shape goes with it")
    jobs = reconcile.jobs(stages, shape, args.causal) if args.shape else reconcile.jobs_to_save(stages)
    with progress_bar() as progress:
        path, failed = reconcile.save(args.save, progress, jobs)
    for sentence in failed:
        print(f"flashcore reconcile: {sentence}", file=sys.stderr)
    if not give_json(args, lambda: {"failed": failed, "extracts": extracts.recorded(args.save)}) and path:
        print(f"Saved {path}")
    return 1 if failed else 0
