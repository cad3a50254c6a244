"""Three columns that must agree: the formula's, the simulator's, and what an H200's own counters said."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from matrix import few

from flashcore_numba import cli
from flashcore_numba.core.shapes import parse
from flashcore_numba.evidence import extracts, nsight, profile, reconcile
from flashcore_numba.evidence.reasons import REASONS
from flashcore_numba.predict import Traffic
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run
from flashcore_numba.stages.tuning import recorded

RECORDED = {f"{e['shape']}{'-causal' if e['causal'] else ''}": e for e in extracts.recorded()}
MEASURED = [
    (name, run)
    for name, extract in RECORDED.items()
    for run in reconcile.served(LADDER, parse(extract["shape"]), extract["causal"])
    if profile.find(run, extract)
]
CHEAP = 2**16  # scores of all heads that a test may count


def three_columns(name, run, counted=None):
    extract = RECORDED[name]
    at = parse(extract["shape"]), extract["causal"], extract["sm_count"]
    predicted = reconcile.predicted(run, *at)
    return reconcile.block(run, predicted, counted or predicted, *reconcile.measured(run, extract))


@pytest.mark.parametrize(("name", "run"), MEASURED, ids=lambda x: getattr(x, "label", x))
def test_the_formula_gives_what_was_measured_or_the_reason_is_known(name, run):
    block = three_columns(name, run)
    assert [row.as_dict() for row in block.unexplained] == []


@pytest.mark.long
def test_every_reason_explains_a_difference():
    """Of a run that was measured; the reasons of others wait for their measurement."""
    used, measured = set(), set()
    for name, run in MEASURED:
        for row in three_columns(name, run).rows:
            keys = {(run.stage.key, variant, row.name) for variant in ("*", str(run.variant))}
            measured |= keys if row.measured is not None else set()
            used |= keys if row.flagged else set()
    assert used
    assert REASONS.keys() & measured <= used, "agrees now: take the reason out"


@pytest.mark.parametrize(("since", "known"), [("2026-01-01", True), ("2100-01-01", False)])
def test_an_extract_from_before_a_search_says_nothing_of_what_is_launched_now(since, known, monkeypatch):
    """The search found another configuration for this problem, which nobody has profiled yet."""
    name, extract = "1x8x512x64", RECORDED["1x8x512x64"]
    asked = []

    def found(stage, problem, sm_count):
        asked.append((stage, problem.q.shape, sm_count))
        return since if stage == 13 else None

    monkeypatch.setattr(recorded, "since", found)
    split, cluster = Run(find(13), "split_kv"), Run(find(16), "one_block")
    assert [(row.measured is not None) for row in three_columns(name, split).rows[:3]] == [known] * 3
    assert three_columns(name, cluster).rows[0].measured is not None
    assert asked[0] == (13, (1, 8, 512, 64), extract["sm_count"])


@pytest.mark.parametrize("name", RECORDED)
def test_an_extract_says_where_it_comes_from(name):
    extract = RECORDED[name]
    assert {"gpu", "driver", "date", "commit", "ncu", "seed", "sm_count"} <= extract.keys()
    keys = [(run["stage"], run["variant"]) for run in extract["runs"]]
    assert len(keys) == len(set(keys))
    served = {
        run.stage.number for run in reconcile.served(LADDER, parse(extract["shape"]), extract["causal"])
    }
    measured = {stage for stage, _ in keys}
    quoted = {(shape, causal): set(stages) for shape, causal, stages in reconcile.QUOTED}
    # The ladder may have grown since: its last stages may be missing, and no other.
    expected = {stage for stage in served if stage <= max(measured)}
    assert measured == quoted.get((extract["shape"], extract["causal"]), expected)
    assert not any(run["error"] and not run["error"]["right"] for run in extract["runs"])


class Launches:
    """An executor that only writes down what it is asked to launch."""

    def __init__(self, sm_count):
        self.sm_count, self.seen = sm_count, []

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def counter(self):
        return np.zeros(1, np.uint32)

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        plain = [arg.shape if isinstance(arg, np.ndarray) else arg for arg in args]
        self.seen.append((kernel, grid, block, plain, shared_bytes))


def launches(extract, stage, variant):
    executor = Launches(extract["sm_count"])
    problem = stand_in_for(find(stage), parse(extract["shape"]), extract["causal"])
    find(stage).launch(problem, np.empty_like(problem.q), executor, variant=variant)
    return executor.seen


@pytest.mark.parametrize("name", RECORDED)
def test_a_run_that_another_stands_for_is_the_same_launch(name):
    extract = RECORDED[name]
    for run in extract["runs"]:
        if other := run.get("same_launch_as"):
            assert launches(extract, run["stage"], run["variant"]) == launches(extract, run["stage"], other)
            measured = profile.find(Run(find(run["stage"]), other), extract)
            assert (run["traffic"], run["kernels"]) == (measured["traffic"], measured["kernels"])
    different = launches(extract, 13, "two_splits")
    assert different != launches(extract, 13, "unsplit"), "the comparison tells launches apart"


@pytest.mark.parametrize("text, causal", few(reconcile.SAVED))
def test_the_formula_gives_what_is_counted(text, causal, rng):
    shape = parse(text)
    if shape.batch * shape.heads * shape.seq**2 > CHEAP:
        shape = replace(shape, heads=1, kv_heads=1, seq=shape.seq // 4)
    served = reconcile.served(LADDER, shape, causal)
    for k in rng.permutation(len(served))[:4]:
        counted = reconcile.counted(served[k], shape, causal)
        assert reconcile.predicted(served[k], shape, causal) == counted, served[k].label


HUNDRED = Traffic(100, 1600, 10, 160, 50, 60, 7, 8)


def row(name, *columns):
    values = [of and replace(HUNDRED, **of) if of is not None else None for of in columns]
    values = [HUNDRED if value == {} else value for value in values]
    block = reconcile.block(Run(find(5), None), *values)
    return next(row for row in block.rows if row.name == name)


def test_two_percent_are_allowed_and_more_is_flagged():
    assert not row("barriers", {}, {}, {}).flagged
    assert not row("bytes loaded", {}, {}, {"global_load_sectors": 1568}).flagged
    apart = row("bytes loaded", {}, {}, {"global_load_sectors": 1567})
    assert apart.flagged and not apart.explained
    assert apart.as_dict()["reason"] == "unexplained"
    assert row("bank conflicts", {"bank_conflicts": 0}, {"bank_conflicts": 0}, {}).flagged, "few against none"
    assert not row("bank conflicts", {}, {}, None).flagged, "a column that there is not is no difference"
    assert row("sectors per load", {}, {}, {"global_load_requests": 0}).flagged


def test_a_reason_excuses_the_gpu_and_not_the_formula(monkeypatch):
    monkeypatch.setitem(REASONS, ("online_softmax", "*", "barriers"), "Because.")
    gpu = row("barriers", {}, {}, {"barriers": 9})
    assert gpu.explained and gpu.as_dict()["reason"] == "Because."
    formula = row("barriers", {"barriers": 9}, {}, {})
    assert formula.flagged and not formula.explained


def small_extract(shape, causal, runs, change=lambda traffic: traffic):
    """What a GPU would say that agrees with the formula, or with what `change` makes of it."""
    entries = []
    for run in runs:
        traffic = asdict(change(reconcile.predicted(run, parse(shape), causal)))
        entries.append({"stage": run.stage.number, "variant": run.variant, "traffic": traffic, "kernels": []})
    about = {"date": "2001-02-03T04:05:06Z", "commit": "c" * 40, "dirty": False, "gpu": "NVIDIA H200"}
    return {"shape": shape, "causal": causal, **about, "sm_count": 132, "ncu": "2", "runs": entries}


@pytest.mark.long
@pytest.mark.parametrize("extra, status", [(0, 0), (3, 1)])
def test_the_command_fails_where_a_difference_is_unexplained(extra, status, monkeypatch, capsys):
    def change(traffic):
        return replace(traffic, global_store_sectors=traffic.global_store_sectors + extra)

    extract = small_extract("1x1x17x64", True, [Run(find(3), None), Run(find(12), "small")], change)
    monkeypatch.setattr(extracts, "recorded", lambda folder=None: [extract])
    command = ["reconcile", "3", "12", "--shape", "1x1x17x64", "--causal"]
    assert cli.main(command) == status
    said = capsys.readouterr().out
    assert ("unexplained" in said) == bool(status)
    assert "NVIDIA H200, 2001-02-03, commit cccccccccc" in said
    assert cli.main([*command, "--json"]) == status
    found = {run["stage"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert found["03 warp_reduction"]["measured"] and found["12 small"]["measured"]
    assert not found["12 large"]["measured"], "what was not measured must not look measured"


def test_measuring_needs_a_gpu_and_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(nsight, "why_not", lambda: "there is no GPU")
    for option in (["--measure"], ["--save", str(tmp_path / "new")]):
        assert cli.main(["reconcile", *option]) == 2
        assert "needs a measurement on a GPU; there is no GPU" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_saving_keeps_what_was_measured_before_the_time_was_up(monkeypatch, capsys, tmp_path):
    def measure(jobs, limit, launched):
        for job in jobs[:-2]:
            kernel = nsight.Kernel("k", {}, {}, Traffic(1))
            launched(extracts.Measured(job, [kernel], {"max": 1e-4, "right": True}))
        raise nsight.NsightError("ncu was stopped at its time limit")

    monkeypatch.setattr(nsight, "why_not", lambda: None)
    monkeypatch.setattr(extracts, "measure", measure)
    monkeypatch.setattr(
        extracts.environment, "gpu", lambda: {"name": "NVIDIA H200", "sm_count": 132, "driver": "1"}
    )
    assert cli.main(["reconcile", "1", "2", "3", "--save", str(tmp_path)]) == 1
    found = extracts.recorded(tmp_path)
    assert [(e["shape"], e["causal"]) for e in found] == list(reconcile.SAVED)
    assert [len(e["runs"]) for e in found] == [2, 3, 3, 2, 1]
    said = capsys.readouterr()
    assert "10 of 12 runs were measured" in said.err
    assert "stopped at its time limit" in said.err and "nsight-h200.json" in said.out
    for alone in (["--causal"], ["--measure"]):
        assert cli.main(["reconcile", "--save", str(tmp_path), *alone]) == 2
        assert "--save: measures what is recorded; of the options only --shape" in capsys.readouterr().err
    one = ["2", "3", "4", "--shape", "1x3x48x64", "--causal"]
    monkeypatch.setattr(
        extracts, "measure", lambda jobs, limit, launched: measure([*jobs, *jobs[:2]], limit, launched)
    )
    assert cli.main(["reconcile", "--save", str(tmp_path), *one]) == 1
    found = extracts.recorded(tmp_path)
    assert [(e["shape"], e["causal"], len(e["runs"])) for e in found[5:]] == [("1x3x48x64", True, 2)]


def test_what_lessons_quote_is_measured_too():
    quoted = reconcile.jobs_to_save(LADDER)[-3:]
    assert [(str(job.shape), job.run.stage.number) for job in quoted] == [
        ("1x8x1024x64", 2),
        ("1x8x4096x64", 4),
        ("1x8x4096x64", 5),
    ]


@pytest.mark.parametrize("columns", [60, 66, 80])
def test_a_narrow_table_cuts_no_number_and_explains_what_it_shows(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["reconcile", "5"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out and out.count("278,528") == 3
    head = next(line for line in out.splitlines() if "predicted" in line)
    assert ("Apart: " in out) == ("apart" in head) and ("apart" in head) == (columns > 60)
