"""The stages and the variant that a command line names."""

import sys
from argparse import Namespace

from flashcore_numba.core import gpu
from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.run.executor import simulated
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import select


def selected(args: Namespace) -> list[Stage]:
    """The stages named, all where none is. Raises ArgumentError."""
    return select(*args.stages)


def runnable(args: Namespace) -> tuple[list[Stage], list[str]]:
    """The selected stages that run here, and sentences, told on stderr, about those that do not."""
    stages = selected(args)
    if gpu.available():
        return stages, []
    able, not_run = simulated(stages)
    for sentence in not_run:
        print(f"flashcore {args.command}: {sentence}", file=sys.stderr)
    return able, not_run


def variant_of(args: Namespace, stage: Stage) -> str | None:
    """The variant named, or the stage's default. Raises ArgumentError."""
    if args.variant is not None and args.variant not in stage.variants:
        accepted = ", ".join(stage.variants) or "none, this stage has no variants"
        raise ArgumentError(f"--variant {args.variant!r} of stage {stage.label}: accepted are {accepted}")
    return args.variant or stage.default_variant
