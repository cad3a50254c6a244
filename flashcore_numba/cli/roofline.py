"""`flashcore roofline`: how long each unit of a GPU needs for each stage, and which limits it."""

from argparse import Namespace
from pathlib import Path

from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.cli.parser import FEWEST_ROUNDS
from flashcore_numba.cli.selection import of_one_operation
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.evidence import roofline
from flashcore_numba.predict.limits import DataSheet
from flashcore_numba.records import artifact
from flashcore_numba.report import pictures
from flashcore_numba.stages.runs import runs


def run(args: Namespace) -> int:
    """Print the table. Returns 1 where no run has a row."""
    _, stages = of_one_operation(args)
    shape = parse_any(args.shape)
    if shape.shortest is not None:
        raise ArgumentError(f"--shape {args.shape}: accepted is one length, S, not S-S")
    here = gpu.name() if gpu.available() else None
    target = roofline.source(args.gpu, here)
    if args.save and isinstance(target, DataSheet):
        raise ArgumentError(f"--save {str(args.save)!r}: pictures show measured times, not {target.name}")
    if args.save and not shape.plain:
        raise ArgumentError(f"--save {str(args.save)!r}: pictures show shapes BxHxSxD, not {shape}")
    at = runs(stages), shape, args.causal
    with progress_bar() as progress:
        if isinstance(target, DataSheet):
            found = roofline.of_data_sheet(target, *at, progress)
        elif target == here and not roofline.is_recorded(target, *at):
            from flashcore_numba.measure.compare import compare  # needs CuPy

            record = compare(stages, [[Workload(shape, args.causal)]], FEWEST_ROUNDS, progress)
            found = roofline.of_record(target, *at, record)
        else:
            found = roofline.of_record(target, *at)
    saved = _save_roofline(args.save, found) if args.save else []
    if not give_json(args, found.as_dict):
        out = console()
        if found.rows:
            out.print(found.table(out.width))
        timed = [row for row in found.rows if row.gpu_us]
        for line in ["Parts of the time:", *map(roofline.budget, timed)] if timed else []:
            out.print(line, markup=False, soft_wrap=True)
        for sentence in [*found.refused, *saved]:
            out.print(sentence, markup=False, soft_wrap=True)
    return 0 if found.rows else 1


def _save_roofline(folder: Path, found: roofline.Roofline) -> list[str]:
    """The artifact with this shape alone, and the pictures that it allows; sentences about them."""
    record = found.record or {}
    same = bool(record) and artifact.operation_of(record) == found.operation
    shape = roofline.measured_at(record, found.shape, found.causal) if same else None
    if shape is None:
        raise ArgumentError(f"--save {str(folder)!r}: {found.about}")
    record = record | {"shapes": [shape]}
    path = folder / f"roofline-{artifact.file_name(record)}"
    artifact.save(record, path)
    drawn, lacking = pictures.drawable(artifact.in_type([(path, record)]))
    wanted = ("roofline", "time-budget")
    files = [file for picture in drawn if picture.name in wanted for file in picture.draw(folder)]
    return [
        f"Saved {', '.join(map(str, [path, *files]))}",
        *(f"Not drawn: {name}: {why}" for name, why in lacking.items() if name in wanted),
    ]
