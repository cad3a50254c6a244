"""The commands that docs/benchmarking.md lists make what the records hold: the parser reads them back."""

import copy
import json
import shlex

import numpy as np
import pytest

from flashcore_numba.branches.find import BRANCHES
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.cli import compare
from flashcore_numba.cli.parser import build_parser
from flashcore_numba.cli.selection import of_one_operation
from flashcore_numba.core import workload
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.records import artifact
from flashcore_numba.report.command_tables import command, commands

RECORDS = {
    path.stem: record
    for path, record in artifact.recorded_whole()
    if artifact.operation_of(record) in (FORWARD.name, *BRANCHES)
}


def told(shape):
    """What a record says of a workload that was asked for, without numbers that are drawn."""
    features = {name: value for name, value in shape.get("features", {}).items() if name != "lengths"}
    defaults = {"page": workload.PAGE, "tokens": None}
    features = {name: value for name, value in features.items() if value != defaults.get(name)}
    return (
        shape["shape"],
        shape["causal"],
        shape.get("element", "float16"),
        json.dumps(features, sort_keys=True),
    )


def asked(each):
    """The same of a workload that the command line names."""
    features = each.features(np.random.default_rng(0))
    chosen = {name: value for name, value in each.chosen.items() if value is not None}
    shape = {"shape": str(each.shape), "causal": each.causal, "element": each.element.name}
    return told(shape | {"features": workload.fields(features, chosen)})


@pytest.mark.parametrize("name", RECORDS)
def test_a_command_asks_for_what_its_record_holds(name):
    record = RECORDS[name]
    program, *words = shlex.split(command(record))
    assert program == "flashcore"
    args = build_parser().parse_args(words)
    of, stages = of_one_operation(args)
    assert of == artifact.operation_of(record) and args.label == record["label"]
    assert (args.rounds or 20) == record["rounds"]
    shapes = [parse_any(text) for text in args.shape]
    wanted = [asked(each) for group in compare._workloads(args, stages, shapes) for each in group]
    equal = {shape.get("equal_lengths") for shape in record["shapes"]}
    assert sorted(wanted) == sorted(told(shape) for shape in record["shapes"] if shape["shape"] not in equal)
    entries = [entry for shape in record["shapes"] for entry in shape["entries"]]
    ran = {entry["label"].split()[0] for entry in entries if entry["kind"] == "stage"}
    named = {stage.key if stage.number is None else f"{stage.number:02d}" for stage in stages}
    assert ran == named or (not args.stages and ran > named), (ran, named)
    timed = {entry["label"] for entry in entries if entry["kind"] == "peer"}
    assert args.peer is None or {*args.peer} - {"none"} == timed


@pytest.mark.parametrize(
    "change, has",
    [
        (lambda r: r.update(label="other"), "--label other"),
        (lambda r: r.update(rounds=3), "--rounds 3"),
        (lambda r: [s.update(causal=True) for s in r["shapes"]], "--causal"),
        (lambda r: r["shapes"][0].update(element="bfloat16"), "--element bfloat16 --element float16"),
        (
            lambda r: r["shapes"][0].update(features={"window": [9, 0]}),
            "--features window=9,0 --features none",
        ),
        (lambda r: r["shapes"].reverse(), "--shape 4x8x256x64 --shape 1x8x1024x64"),
    ],
)
def test_another_record_has_another_command(change, has):
    record = copy.deepcopy(RECORDS["nvidia-h200"])
    assert has not in command(record)
    change(record)
    assert has in command(record)


def test_nothing_is_listed_where_nothing_is_recorded(tmp_path):
    assert commands(tmp_path) is None
    assert len(commands().splitlines()) == len({command(each) for each in RECORDS.values()}) + 2
