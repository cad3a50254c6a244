"""`flashcore resources`: registers, spills and shared memory of compiled stages."""

import sys
from argparse import Namespace

from rich.table import Table

from flashcore_numba.cli.output import console, give_json, parts, progress_bar
from flashcore_numba.cli.selection import left_out, selected
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.multiprocessors import MULTIPROCESSORS, shared_limit
from flashcore_numba.core.problem import HEAD_DIMS, listed
from flashcore_numba.evidence import resource_table
from flashcore_numba.predict.occupancy import of_kernel
from flashcore_numba.records.amounts import fit
from flashcore_numba.run.compiler import supported_capabilities
from flashcore_numba.run.registers import examples, registers, why_not
from flashcore_numba.stages import LADDER, Stage
from flashcore_numba.stages.runs import Run, runs

HELD = "an SM holds"
HEAD_DIM = 64  # where none is named


def run(args: Namespace) -> int:
    """Compile and print. Returns 1 where no compiler is installed."""
    head_dim = HEAD_DIM if args.head_dim is None else args.head_dim
    if head_dim not in HEAD_DIMS:
        raise ArgumentError(f"--head-dim {head_dim}: accepted are {', '.join(map(str, HEAD_DIMS))}")
    stages = selected(args)
    if (reason := next(filter(None, map(why_not, stages)), None)) is not None:
        print(f"flashcore resources: {reason}", file=sys.stderr)
        return 1
    if args.cc and args.cc not in (served := supported_capabilities()):
        raise ArgumentError(
            f"--cc {'.'.join(map(str, args.cc))}: this CUDA compiler accepts "
            + ", ".join(f"{major}.{minor}" for major, minor in served)
        )
    if args.save:
        return _save_resources(args)
    capability = args.cc or gpu.compute_capability() or (9, 0)
    limits = {run: _limit(run, head_dim, capability) for run in runs(stages)}
    of_stage: dict[Stage, set[str | None]] = {}
    for each, limit in limits.items():
        of_stage.setdefault(each.stage, set()).add(limit)
    without = left_out(
        {
            each.label if len(of_stage[each.stage]) > 1 else each.stage.label: limit
            for each, limit in limits.items()
        }
    )
    chosen = [run for run, limit in limits.items() if limit is None]
    found = {}
    with progress_bar() as progress:
        for run in chosen:
            progress.step(f"compiling {run.label}")
            found[run.label] = registers(run, examples(run.stage, head_dim), capability)
    if give_json(
        args,
        lambda: {
            "compute_capability": list(capability),
            "head_dim": head_dim,
            "kernels": found,
            "left_out": without,
        },
    ):
        return 0
    target = f"sm_{capability[0]}{capability[1]}"
    out = console()
    table = Table(
        title=f"Compiled for {target}, D = {head_dim}",
        title_justify="left",
        caption_justify="left",
    )
    columns = {"kernel": "kernel", "registers": "regs", "spill_bytes": "spill", "stack_bytes": "local"}
    columns |= {"shared_bytes": "shared", "threads": "threads"}
    table.add_column("stage", no_wrap=True)
    longest = max(
        (len(kernel["kernel"]) for kernels in found.values() for kernel in kernels or []), default=0
    )
    table.add_column("kernel", min_width=min(longest, 30), overflow="fold")
    for name in list(columns.values())[1:]:
        table.add_column(name, overflow="fold", justify="right")
    if capability in MULTIPROCESSORS:
        table.add_column(HELD, no_wrap=True)
    for label, kernels in found.items():
        for kernel in kernels or []:
            cells = ["?" if kernel[field] is None else str(kernel[field]) for field in columns]
            if held := of_kernel(capability, kernel):
                cells.append(str(held))
            table.add_row(label, *cells)
    shown = fit(table, out.width, HELD, "kernel", "threads")
    table.caption = "Registers, and bytes spilled and of local memory, per thread; bytes of shared memory"
    table.caption += ", and threads, per block." if "threads" in shown else " per block."
    if HELD in shown:
        table.caption += " An SM holds: blocks (their share of its warps), and what allows no more."
    out.print(table)
    for sentence in without:
        out.print(sentence, markup=False, soft_wrap=True)
    return 0


def _limit(run: Run, head_dim: int, capability: tuple[int, int]) -> str | None:
    """Why a run has no kernels to compile, in words that follow its name; None where it has some."""
    stage, room = run.stage, shared_limit(capability)
    if head_dim not in stage.head_dims:
        return f"does not serve head dimension {head_dim}, only {listed(stage.head_dims)}"
    if limit := stage.why_not_on(capability):
        return limit
    limits = [
        stage.why_not_in(room, getattr(problem, "head_dim", 0), run.variant)
        for problem in examples(stage, head_dim)
    ]
    return limits[0] if limits and all(limits) else None


def _save_resources(args: Namespace) -> int:
    if args.cc or args.stages or args.head_dim is not None:
        raise ArgumentError("--save: writes the whole table, for every GPU, so nothing else goes with it")
    with progress_bar() as progress:
        path = resource_table.save(LADDER, parts(progress, "compiling"))
    if not give_json(args, resource_table.read):
        print(f"wrote {path}")
    return 0
