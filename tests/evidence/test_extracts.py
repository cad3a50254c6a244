"""Nsight Compute without a GPU: a program like it, pages like its own, a child on the simulator."""

import json
import stat
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba import cli
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.evidence import extracts, nsight, profile, reconcile
from flashcore_numba.predict import Traffic
from flashcore_numba.records import artifact
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run, runs

SHARED = '"L1 Wavefronts Shared","L1 Wavefronts Shared Ideal"'
EXECUTED = '"Instructions Executed","Predicated-On Thread Instructions Executed"'
NO_SHARED = f'"Address","Source",{EXECUTED},"L2 Theoretical Sectors Global"'
HEADER = f"{NO_SHARED},{SHARED}"


def raw_page(*launches):
    """ncu's raw page: (kernel, instructions, load requests, milliseconds) a launch."""
    names = ["ID", "Kernel Name", "inst_executed", "gpu__time_duration.sum", "launch__registers_per_thread"]
    units = ["", "", "inst", "ms", "register/thread"]
    counters = ("load_requests", "load_sectors", "store_requests", "tma_load_sectors", "tma_store_sectors")
    names += [nsight.METRICS[counter][0] for counter in counters]
    names += [f"{nsight.STALLS}{reason}" for reason in ("selected", "wait", "wait_not_issued", "barrier")]
    rows = [names, [*units, *[""] * 9]]
    for n, (kernel, instructions, requests, ms) in enumerate(launches):
        counts = [requests, 16 * requests, 2, 7000, 300, 50, 30, 29, 20]
        rows.append([n, kernel, f"{instructions:,}", ms, 40, *(f"{count:,}" for count in counts)])
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 7", *lines]) + "\n"


def table(kernel, *lines, header=HEADER):
    """Of an instruction: its text; how often executed, or that and in how many lanes; its other counters."""
    rows = [f'"Kernel Name","{kernel}",', header]
    for source, executed, *others in lines:
        times, lanes = executed if isinstance(executed, tuple) else (executed, 7)
        rows.append(",".join(f'"{cell}"' for cell in ("0x7f0", source, times, lanes, *others)))
    return "\n".join(rows) + "\n"


FIRST = table(
    "one",
    ("      LDS.128 R4, [R2]", "1,000", 0, "4,500", "4000"),
    ("@!P0 LDSM.16.M88.4 R8, [R3]", 100, 0, 400, 400),
    (" @P1 STS [R4], R5", 10, 0, 30, 10),
    ("      LDGSTS.E.BYPASS.128 [R4], [R6]", 20, 640, 200, 80),
    ("      LDGDEPBAR", 5, 0, 0, 0),
    ("      BAR.SYNC.DEFER_BLOCKING 0x0", (7, 7 * 32), 0, 0, 0),
    ("@!P1  BAR.ARV 0x1, 0x100", (12, 4 * 32), 0, 0, 0),
    ("      UTMALDG.4D [UR8], [UR6], desc[UR10]", 40, 0, 0, 0),
    ("      STAS.128 [R8.64], R4", 6, 0, 0, 0),
    ("      STSM.16.M88.4 [R4], R8", 8, 0, 32, 32),
    ("      UTMASTG.4D [UR4], [UR6]", 4, 0, 0, 0),
    ("      UCGABAR_ARV", (4, 4 * 32), 0, 0, 0),
    ("      UCGABAR_WAIT", 4, 0, 0, 0),
)
SECOND = table(
    "two",
    ("      LDG.E R4, [R2]", 3, 9),
    ("      BAR.ARV 0x1, 0x80", (2, 64), 0),
    ("@P0 STG.E.128 [R2], R4", 2, 32),
    ("      REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R4", 3, 48),
    header=NO_SHARED,
)


def test_a_launch_is_read_from_both_pages():
    steps = [{"kernels": ["one"], "name": "a"}, {"kernels": ["two"], "name": "b"}]
    raw = nsight.read_raw(raw_page(("one", 1220, 1234, 0.5), ("two", 10, 3, 2)))
    # ncu prints some tables twice.
    (step, (one,)), (_, (two,)) = nsight.match(steps, raw, nsight.read_source(FIRST + FIRST + SECOND))
    assert step["name"] == "a"
    assert one.traffic == Traffic(1274, 16 * 1234 + 7000, 6, 300, 4900, 262, 640, 15)
    assert two.traffic == Traffic(3, 7048, 2, 332, 0, 0, 0, 2, 3, 48)
    assert one.figures["duration_ns"] == 0.5e6
    assert one.figures["registers"] == 40
    assert "tensor_pct" not in one.figures
    assert one.stalls == {"wait": 0.3, "barrier": 0.2}


def test_another_launch_than_ours_is_refused():
    raw = nsight.read_raw(raw_page(("one", 1220, 1, 1)))
    with pytest.raises(nsight.NsightError, match="ncu saw one where three was launched"):
        list(nsight.match([{"kernels": ["three"]}], raw, nsight.read_source(FIRST)))


@pytest.mark.parametrize("instructions, name", [(1219, "one"), (1220, "other")])
def test_another_table_than_ours_is_not_taken(instructions, name):
    raw = nsight.read_raw(raw_page(("one", instructions, 1, 1), ("two", 10, 3, 2)))
    tables = nsight.read_source(FIRST.replace('"one"', f'"{name}"') + SECOND)
    (_, (one,)), (_, (two,)) = nsight.match([{"kernels": ["one"]}, {"kernels": ["two"]}], raw, tables)
    assert one.traffic is None
    assert two.traffic.barriers == 2


def test_what_was_not_profiled_any_more_is_left_out():
    raw = nsight.read_raw(raw_page(("one", 1220, 1, 1)))
    steps = [{"kernels": ["one"]}, {"kernels": ["one", "two"]}]
    assert len(list(nsight.match(steps, raw, nsight.read_source(FIRST)))) == 1


FAKE_NCU = """
import json, subprocess, sys
args, here = sys.argv[1:], {here!r}
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps(args) + "\\n")
if "--import" in args:
    print(open(here + "/" + args[args.index("--page") + 1]).read())
    sys.exit(0)
for refused in {refuse!r}:
    if refused in args[args.index("--metrics") + 1]:
        print("==ERROR== Failed to find metric regex:^" + refused + "(\\\\.|$)")
        sys.exit(1)
if {says!r}:
    print({says!r})
    sys.exit(1)
command = args[args.index("--export") + 2 :]
status = subprocess.run(command).returncode
open(args[args.index("--export") + 1], "w").write("a report")
sys.exit(status)
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Puts a program `ncu` first in PATH that runs the command and has these pages; returns its calls."""

    def make(raw="", source="", refuse=(), says=""):
        (tmp_path / "raw").write_text(raw)
        (tmp_path / "source").write_text(source)
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir()
        body = FAKE_NCU.format(here=str(tmp_path), refuse=refuse, says=says)
        program.write_text(f"#!{sys.executable}\n{body}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        monkeypatch.setattr(nsight, "_UNKNOWN", set())
        return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return make


def child_that_records(tmp_path, kernels, status=0):
    record = tmp_path / "record.json"
    text = json.dumps([{"kernels": kernels}])
    code = f"import sys; open({str(record)!r}, 'w').write({text!r}); print('Oh!'); sys.exit({status})"
    return [sys.executable, "-c", code], record


def test_ncu_is_run_over_a_child_and_its_report_read(tmp_path, fake_ncu):
    refused = nsight.METRICS["tensor_busy_pct"][0]
    calls = fake_ncu(raw_page(("one", 1220, 9, 1)), FIRST, refuse=[refused.partition(".")[0]])
    command, record = child_that_records(tmp_path, ["one"])
    ((_, (one,)),) = nsight.collect(command, record, 60, report=tmp_path / "kept" / "x.ncu-rep")
    assert one.traffic.global_load_requests == 9 + 40
    assert (tmp_path / "kept" / "x.ncu-rep").read_text() == "a report"
    first, second = (call[call.index("--metrics") + 1].split(",") for call in calls()[:2])
    assert set(first) - set(second) == {refused}, "only what ncu does not know is left out"
    assert [call[call.index("--clock-control") + 1] for call in calls()[:2]] == ["none", "none"]


def test_a_child_that_fails_is_told_after_what_it_launched(tmp_path, fake_ncu):
    fake_ncu(raw_page(("one", 1220, 9, 1)), FIRST)
    command, record = child_that_records(tmp_path, ["one"], status=3)
    launches = nsight.collect(command, record, 60)
    assert next(launches)[1][0].name == "one"
    with pytest.raises(nsight.NsightError, match=r"ended with status 3, saying: Oh!"):
        next(launches)


def test_a_run_that_failed_or_was_not_counted_is_named(tmp_path, fake_ncu, monkeypatch):
    fake_ncu(raw_page(("one", 1220, 9, 1), ("two", 8, 3, 2)), FIRST + SECOND)
    steps = [{"kernels": [name], "error": {"max": 1e-4, "right": True}} for name in ("one", "two")]
    steps.insert(1, {"kernels": [], "failed": "OSError: Oh!"})

    def command(record, seconds, jobs):
        return [sys.executable, "-c", f"open({str(record)!r}, 'w').write({json.dumps(steps)!r})"]

    monkeypatch.setattr(extracts, "command", command)
    chosen = [Run(find(number), None) for number in (3, 1, 4)]
    found = []
    with pytest.raises(nsight.NsightError) as caught:
        extracts.measure(
            [extracts.Job(parse("1x1x32x64"), False, run) for run in chosen], 60, launched=found.append
        )
    assert [measured.job.run.label for measured in found] == ["03 warp_reduction"]
    assert str(caught.value) == (
        "01 scalar at 1x1x32x64: OSError: Oh!; "
        "04 shared_tiles at 1x1x32x64: ncu counted nothing by instruction"
    )


def test_no_right_to_the_counters_is_said_so(tmp_path, fake_ncu):
    fake_ncu(says="==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters")
    command, record = child_that_records(tmp_path, ["one"])
    with pytest.raises(nsight.NsightError, match="only the administrator"):
        list(nsight.collect(command, record, 60))


def test_a_process_past_its_time_is_ended_with_its_children():
    said, status = nsight.run_limited(
        [sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(60)"], 1
    )
    assert (said, status) == ("begun\n", None)


class OnSimulator(Simulator):
    """Stands for the executor of a GPU."""

    def __init__(self):
        super().__init__(ops=False, races=False)

    def launch(self, kernel, *args, **options):
        super().launch(kernel, *args, **options)


@pytest.mark.long
def test_the_child_launches_every_run_and_judges_it(tmp_path, monkeypatch):
    cupy = types.SimpleNamespace(asarray=np.asarray, asnumpy=np.asarray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("flashcore_numba.run.executor.Gpu", OnSimulator)
    shape = parse("1x1x40x64")
    chosen = [Run(find(13), "two_splits"), Run(find(3), None)]
    jobs = [extracts.Job(shape, True, run) for run in chosen]
    _, _, path, seconds, packed = extracts.command(tmp_path / "record.json", 60, jobs)[1:]
    extracts.child(Path(path), float(seconds), extracts._unpack(packed))
    steps = json.loads((tmp_path / "record.json").read_text())
    assert [step["kernels"] for step in steps] == [["split_kv", "merge_splits"], ["warp_reduction"]]
    assert all(step["error"]["right"] and 0 < step["error"]["max"] < 1e-2 for step in steps)
    extracts.child(tmp_path / "late.json", -1, jobs)
    assert not (tmp_path / "late.json").exists(), "nothing is begun when the time is up"

    def fail(*_, **__):
        raise OSError("Oh!")

    broken = Run(replace(find(5), launch=fail), None)
    extracts.child(tmp_path / "failed.json", 60, [extracts.Job(shape, True, broken), jobs[1]])
    steps = json.loads((tmp_path / "failed.json").read_text())
    assert steps[0] == {"kernels": [], "failed": "OSError: Oh!"}
    assert steps[1]["error"]["right"], "the others have their chance"


def make_extract(shape="1x1x32x64", causal=False, gpu="NVIDIA H200"):
    stalls = {"wait": 0.5, "barrier": 0.25, "misc": 0.1, "membar": 0.05}
    kernel = nsight.Kernel("k", {"duration_ns": 1500.0, "xu_pct": 12.345}, stalls, Traffic(1))
    job = extracts.Job(parse(shape), causal, Run(find(3), None))
    measured = extracts.Measured(job, [kernel, kernel], {"max": 1e-4, "right": True, "reason": ""})
    about = {"date": "2001-02-03T04:05:06Z", "commit": "c" * 40, "dirty": False, "sm_count": 132}
    about |= {"driver": "1", "ncu": "2", "seed": extracts.SEED}
    return {"shape": shape, "causal": causal, "gpu": gpu, **about, "runs": [measured.as_dict()]}


def test_saving_replaces_the_extract_of_the_same_shape_and_mask(tmp_path):
    extracts.save(make_extract(), tmp_path)
    extracts.save(make_extract(causal=True), tmp_path)
    path = extracts.save(make_extract() | {"date": "2002-02-03T04:05:06Z"}, tmp_path)
    other = extracts.save(make_extract(gpu="NVIDIA L4"), tmp_path)
    assert (path.name, other.name) == ("nsight-h200.json", "nsight-l4.json")
    found = extracts.recorded(tmp_path)
    assert [(e["gpu"], e["causal"], e["date"][:4]) for e in found] == [
        ("NVIDIA H200", True, "2001"),
        ("NVIDIA H200", False, "2002"),
        ("NVIDIA L4", False, "2001"),
    ]
    assert artifact.recorded(tmp_path) == [], "an extract is no artifact"
    run = extracts.find(parse("1x1x32x64"), False, found)["runs"][0]
    assert run["traffic"]["global_load_requests"] == 2, "the launches of a run are added"
    assert run["kernels"][0] == run["kernels"][1]
    assert run["kernels"][0]["duration_us"] == 1.5
    assert run["kernels"][0]["stalls"] == {"wait": 0.5, "barrier": 0.25, "misc": 0.1}
    path.write_text("[]")
    with pytest.raises(ArgumentError, match=r"nsight-h200.json: is not a file of measured extracts"):
        extracts.recorded(tmp_path)


def test_runs_that_were_not_measured_again_stay_with_their_date(tmp_path):
    former = make_extract()
    other = {**former["runs"][0], "stage": 9}
    extracts.save({**former, "runs": [*former["runs"], other]}, tmp_path)
    for year in (2002, 2003):
        fresh = make_extract() | {"date": f"{year}-02-03T04:05:06Z", "commit": "d" * 40}
        extracts.save(fresh, tmp_path)
    (extract,) = extracts.recorded(tmp_path)
    assert (extract["date"], extract["commit"]) == (fresh["date"], fresh["commit"])
    assert extract["runs"] == [*fresh["runs"], {**other, "date": former["date"], "commit": former["commit"]}]
    assert "09 async_copy measured on 2001-02-03, commit cccccccccc" in reconcile.where(extract, None, None)


def test_what_was_not_measured_is_not_said_to_be():
    """`reconcile epilogue` has the shape of an extract that says nothing of its runs."""
    extract = make_extract()
    assert reconcile.where(extract, None, None, [Run(find(3), None)]).startswith(extract["gpu"])
    assert reconcile.where(extract, None, None, [Run(find(9), None)]) == "none of these"
    assert reconcile.where(extract, None, None, [Run(find(9), None), Run(find(3), None)]) != "none of these"


def test_a_profile_gives_every_figure_a_value_and_a_meaning():
    extract = make_extract()
    rows = profile.rows(profile.find(Run(find(3), None), extract))
    assert all(name and value and meaning for name, value, meaning in rows)
    found = {name: value for name, value, _ in rows}
    assert found["duration"] == "1.50 us, 1.50 us"
    assert found["tensor pipe"] == "not measured, not measured"
    assert found["stall 1 of k"] == "wait 50%"
    assert profile.find(Run(find(4), None), extract) is None


RECORDED = extracts.recorded()


@pytest.mark.parametrize("extract", RECORDED, ids=lambda e: f"{e['shape']}{'-causal' if e['causal'] else ''}")
def test_every_stall_that_was_recorded_has_a_meaning(extract):
    reasons = {reason for run in extract["runs"] for kernel in run["kernels"] for reason in kernel["stalls"]}
    assert reasons
    assert reasons <= set(profile.STALLS)


def test_without_a_gpu_the_recorded_profile_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(nsight, "why_not", lambda: "there is no GPU")
    assert RECORDED
    extract = RECORDED[0]
    run = next(run for run in runs(LADDER) if run.is_default and profile.find(run, extract))
    options = ["--shape", extract["shape"], *(["--causal"] if extract["causal"] else [])]
    assert cli.main(["profile", run.stage.name, *options]) == 0
    said = capsys.readouterr()
    assert "nothing is measured here, there is no GPU" in said.err
    assert extract["gpu"] in said.out and extract["commit"][:10] in said.out and "registers" in said.out
    assert cli.main(["profile", run.stage.name, "--shape", "1x1x17x64"]) == 1
    said = capsys.readouterr()
    assert "no recorded profile at 1x1x17x64; recorded are" in said.err and extract["shape"] in said.err
    assert cli.main(["profile", run.stage.name, "--save", "profiles"]) == 2
    assert "needs a measurement on a GPU; there is no GPU" in capsys.readouterr().err


def test_a_profile_is_measured_and_its_report_kept(capsys, monkeypatch, tmp_path, fake_ncu):
    fake_ncu(raw_page(("warp_reduction", 1220, 9, 1)), FIRST.replace('"one"', '"warp_reduction"'))
    about = {"name": "NVIDIA H200", "sm_count": 132, "driver": "1"}
    monkeypatch.setattr(nsight, "why_not", lambda: None)
    monkeypatch.setattr(extracts.environment, "gpu", lambda: about)

    def command(record, seconds, jobs):
        step = {"kernels": ["warp_reduction"], "error": {"max": 1e-4, "right": True}}
        return [sys.executable, "-c", f"open({str(record)!r}, 'w').write({json.dumps([step])!r})"]

    monkeypatch.setattr(extracts, "command", command)
    folder = tmp_path / "reports"
    assert cli.main(["profile", "3", "--shape", "1x1x32x64", "--save", str(folder)]) == 0
    said = capsys.readouterr().out
    report = folder / "03-warp_reduction-1x1x32x64.ncu-rep"
    assert report.exists() and str(report) in said
    assert "1000 us" in said and "barriers" in said
