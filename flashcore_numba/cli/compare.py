"""`flashcore compare`: times of stages and peers, recorded ones without a GPU, or two artifacts."""

import itertools
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.console import Console

from flashcore_numba.checks.forward import common_operation
from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.cli.parser import COUNT_SHAPE
from flashcore_numba.cli.selection import of_one_operation
from flashcore_numba.core import gpu
from flashcore_numba.core.element import ACCEPTED, FLOAT16, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape, parse, parse_any
from flashcore_numba.core.workload import CHOICES, Workload, options, word
from flashcore_numba.evidence import rehearse
from flashcore_numba.evidence.counts import count_all
from flashcore_numba.records import artifact
from flashcore_numba.report import pictures
from flashcore_numba.report.compare_artifacts import compare_artifacts, table
from flashcore_numba.report.tables import (
    clocks_seen,
    counted_table,
    kv_table,
    latency_table,
    limits_line,
    not_timed,
    rates_lines,
    throttled_lines,
)
from flashcore_numba.run.executor import simulated
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import runs

# Options that need a GPU.
MEASURED_WITH = ("save", "rounds", "label", "element", "features", *CHOICES, "peer")


def run(args: Namespace) -> int:
    """Time, rehearse or compare. Returns 1 for a wrong output, and for artifacts without a common shape."""
    if any(name.endswith(".json") for name in args.stages):
        return _compare_files(args)
    _, stages = of_one_operation(args)
    shapes = list(dict.fromkeys(map(parse_any, args.shape or ["mission"])))
    why_not = gpu.why_not()
    if why_not is None:
        return _compare_on_gpu(args, stages, shapes)
    for option in MEASURED_WITH:
        if getattr(args, option):
            given = f"--{_option(option)} {_as_given(option, getattr(args, option))!r}"
            raise ArgumentError(f"{given}: needs a measurement on a GPU; {why_not}")
    return _compare_without_gpu(args, stages, [(shape, args.causal) for shape in shapes], why_not)


def _as_given(name: str, value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return " ".join(each.name if isinstance(each, Element) else word(name, each) for each in value)


def _option(name: str) -> str:
    return name.replace("_", "-")


def _compare_files(args: Namespace) -> int:
    if others := [name for name in args.stages if not name.endswith(".json")]:
        raise ArgumentError(f"{others[0]!r} beside a file: either stages or two artifacts are accepted")
    if len(args.stages) != 2:
        raise ArgumentError(f"artifacts: two files are accepted, not {len(args.stages)}")
    if given := [name for name in ("operation", "shape", "causal", *MEASURED_WITH) if getattr(args, name)]:
        raise ArgumentError(
            f"--{_option(given[0])}: is for a measurement, and does not go with two artifacts"
        )
    result = compare_artifacts(*map(Path, args.stages))
    status = 0 if result["shapes"] else 1
    if give_json(args, lambda: result):
        return status
    out = console()
    for letter in "ab":
        about = result[letter]
        out.print(f"{letter.upper()}: {about['file']}: {about['provenance']}", markup=False, soft_wrap=True)
    for sentence in result["warnings"]:
        out.print(f"Careful: {sentence}", markup=False, soft_wrap=True)
    for shape in result["shapes"]:
        out.print()
        out.print(table(shape, out.width))
    if not result["shapes"]:
        out.print("No shape and mask is in both, so nothing can be compared.")
    for letter in "ab":
        if only := result[f"only_{letter}"]:
            out.print(f"Only in {letter.upper()}: {'; '.join(only)}.", markup=False, soft_wrap=True)
    return status


def _peers(args: Namespace) -> list[str] | None:
    """Labels of the peers that are wanted; None is all."""
    return None if args.peer is None else [label for label in args.peer if label != "none"]


def _workloads(args: Namespace, stages: list[Stage], shapes: list[Shape]) -> list[list[Workload]]:
    """For each shape what is interleaved there."""
    elements = [each for each in ACCEPTED if each in (args.element or [FLOAT16])]
    for element in elements:
        if not any(element in stage.elements for stage in stages):
            raise ArgumentError(f"--element {element.name}: none of these stages serves it")
    for shape in shapes:
        if not any(shape.head_dim in stage.head_dims for stage in stages):
            raise ArgumentError(
                f"--shape {shape}: none of these stages serves head dimension {shape.head_dim}"
            )
    of = common_operation(stages)
    for name in CHOICES:
        if getattr(args, name) and name not in of.choices:
            raise ArgumentError(
                f"--{_option(name)} {_as_given(name, getattr(args, name))}: {of.name} has none"
            )
    for shape, features in itertools.product(shapes, args.features or ["none"]):
        needs = {*Workload(shape, **options(features)).arguments}
        if not any(needs <= {*stage.features} for stage in stages):
            given = [f"--features {features!r}"] if options(features) != options("none") else []
            given += [f"--shape {shape}, a ragged batch"] if shape.shortest is not None else []
            raise ArgumentError(f"{' with '.join(given)}: none of these stages serves it")
    chosen = [getattr(args, name) or [usual] for name, usual in CHOICES.items()]
    return [
        list(
            dict.fromkeys(
                Workload(
                    shape,
                    args.causal,
                    element,
                    **options(features),
                    **dict(zip(CHOICES, values, strict=True)),
                )
                for values in itertools.product(*chosen)
                for features in args.features or ["none"]
                for element in elements
            )
        )
        for shape in shapes
    ]


def _compare_on_gpu(args: Namespace, stages: list[Stage], shapes: list[Shape]) -> int:
    from flashcore_numba.measure.compare import ROUNDS, compare  # needs CuPy

    workloads = _workloads(args, stages, shapes)

    def keep(record: dict[str, Any]) -> None:
        artifact.save(record, args.save / artifact.file_name(record))

    with progress_bar() as progress:
        record = compare(
            stages,
            workloads,
            args.rounds or ROUNDS,
            progress,
            args.label,
            _peers(args),
            keep if args.save else None,
        )
        if args.save:
            file = args.save / artifact.file_name(record)
            artifact.save(record, file)
            drawn = [
                path
                for own in artifact.in_type([(file, record)])
                for path in pictures.ladder_beside(own, artifact.recorded()).draw(args.save)
            ]
        # What is saved is times: counts need no GPU, and a GPU to record on is paid for by the minute.
        able, not_run = ([], []) if args.save else simulated(stages)
        counted = count_all(runs(able), parse(COUNT_SHAPE), progress, args.causal)
    out = console(to_stderr=args.json == "-")
    for shape in record["shapes"]:
        _print_times(out, record, shape)
    out.print(clocks_seen(record), markup=False, soft_wrap=True)
    if counted:
        out.print()
        rows = [{"label": item.run.label, "right": item.right, "moved": item.moved()} for item in counted]
        out.print(counted_table(rows, _counted_at(args), out.width))
    for sentence in not_run:
        out.print(sentence, markup=False, soft_wrap=True)
    if args.save:
        out.print(f"Saved {', '.join(map(str, [file, *drawn]))}", markup=False, soft_wrap=True)
    give_json(args, lambda: record)
    timed = [entry["error"]["right"] for shape in record["shapes"] for entry in shape["entries"]]
    return 0 if all(timed) and all(item.right for item in counted) else 1


def _compare_without_gpu(
    args: Namespace, stages: list[Stage], shapes: list[tuple[Shape, bool]], why_not: str
) -> int:
    with progress_bar() as progress:
        result = rehearse.rehearse(stages, shapes, parse(COUNT_SHAPE), progress)
    if not give_json(args, lambda: {"backend": "simulator", "why_not_gpu": why_not, **result.as_dict()}):
        out = console()
        out.print(f"No GPU ({why_not}).", markup=False, soft_wrap=True)
        result.explain(out)
        out.print(counted_table(result.rows, _counted_at(args), out.width, next(iter(result.recorded), None)))
        for record, shape in result.recorded:
            _print_times(out, record, shape)
        for sentence in result.not_recorded + result.not_run:
            out.print(sentence, markup=False, soft_wrap=True)
    return 0 if result.right else 1


def _counted_at(args: Namespace) -> str:
    return f"{COUNT_SHAPE}{', causal' if args.causal else ''}"


def _print_times(out: Console, record: dict[str, Any], shape: dict[str, Any]) -> None:
    out.print()
    out.print(latency_table(record, shape, out.width))
    if "kv_bytes" in shape:
        out.print(kv_table(record, shape))
    out.print(f"Limits: {limits_line(shape)}.", markup=False, soft_wrap=True)
    for sentence in rates_lines(record, shape) + throttled_lines(shape) + not_timed(shape):
        out.print(sentence, markup=False, soft_wrap=True)
