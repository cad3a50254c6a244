"""The stages and the variant that a command line names."""

import sys
from argparse import Namespace
from collections.abc import Mapping

from flashcore_numba.branches.find import BRANCHES, select
from flashcore_numba.checks.forward import FORWARD, common_operation, operation
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.run.executor import simulated
from flashcore_numba.stages import Stage


def selected(args: Namespace) -> list[Stage]:
    """The stages named; where none is, the ladder, that of `--operation` where it is given. Raises
    ArgumentError.
    """
    name, command = getattr(args, "operation", None), getattr(args, "command", None)
    if name is None:
        return select(*args.stages, also=("ring",) if command in ("check", "mutants") else ())
    if name not in (FORWARD.name, *BRANCHES):
        accepted = ", ".join((FORWARD.name, *BRANCHES))
        raise ArgumentError(f"--operation {name!r}: accepted are {accepted}")
    if not args.stages:
        return select(*([] if name == FORWARD.name else [name]))
    stages = select(*args.stages)
    if others := [stage.label for stage in stages if operation(stage).name != name]:
        raise ArgumentError(f"--operation {name}: {', '.join(others)} computes another one")
    return stages


def of_one_operation(args: Namespace) -> tuple[str, list[Stage]]:
    """The operation, by name, and the stages selected, which all compute it: for tables that set one beside
    another. Raises ArgumentError.
    """
    stages = selected(args)
    return common_operation(stages).name, stages


def runnable(args: Namespace) -> tuple[list[Stage], list[str]]:
    """The selected stages that run here, and sentences, told on stderr, about those that do not."""
    stages = selected(args)
    if gpu.available():
        return stages, []
    able, not_run = simulated(stages)
    for sentence in not_run:
        print(f"flashcore {args.command}: {sentence}", file=sys.stderr)
    return able, not_run


def left_out(limits: Mapping[str, str | None]) -> list[str]:
    """A sentence for each reason to leave stages out; `limits`: the reasons by label, None for a stage that
    stays. Raises ArgumentError where none stays.
    """
    labels: dict[str, list[str]] = {}
    for label, reason in limits.items():
        if reason is not None:
            labels.setdefault(reason, []).append(label)
    if labels and None not in limits.values():
        raise ArgumentError("; ".join(f"{', '.join(named)}: {reason}" for reason, named in labels.items()))
    return [f"{', '.join(named)}: left out, {reason}" for reason, named in labels.items()]


def variant_of(args: Namespace, stage: Stage) -> str | None:
    """The variant named, or the stage's default. Raises ArgumentError."""
    if args.variant is not None and args.variant not in stage.variants:
        accepted = ", ".join(stage.variants) or "none, this stage has no variants"
        raise ArgumentError(f"--variant {args.variant!r} of stage {stage.label}: accepted are {accepted}")
    return args.variant or stage.default_variant
