"""Every command, through `main` or as a process of its own, with its exit status."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matrix import few

import flashcore_numba.core.gpu
from flashcore_numba import cli
from flashcore_numba.cli.output import console
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find

WITHOUT_JSON = ("lab",)
COMMANDS = (
    *("stages", "dispatch", "check", "starter", "predict", "hint", "mutants", "count", "compare"),
    *(
        "tune",
        "ring",
        "evolve",
        "resources",
        "profile",
        "reconcile",
        "roofline",
        "pictures",
        "readme",
        "course",
        "lab",
        "lessons",
    ),
)
LAST = str(LADDER[-1].number)
VARIANTS = [(stage.number, name) for stage in LADDER for name in stage.variants]
QUICK = find(14)  # its check takes the least time


def process(*arguments, **environment):
    """`python -m flashcore_numba` with the arguments, not on a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "flashcore_numba", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
    )


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(flashcore_numba.core.gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(flashcore_numba.core.gpu, "available", lambda: False)


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_help_is_quick_and_names_every_command():
    start = time.perf_counter()
    done = process("--help")
    seconds = time.perf_counter() - start
    assert done.returncode == 0
    listed = re.findall(r"^    (\w+)", done.stdout, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert seconds < 2, "help must not import Numba"
    check = "import sys, flashcore_numba.cli; sys.exit('numba' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert ("--json" in capsys.readouterr().out) == (command not in WITHOUT_JSON)


def test_the_help_of_check_names_a_file(capsys):
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    assert "STAGE|FILE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["check", "99"], "stage '99' is not in the ladder: accepted are 01 scalar"),
        (["check", "3-2"], "stage range '3-2' runs backwards"),
        (["mutants", "warp"], "stage 'warp' is not in the ladder"),
        (["count", "none"], "stage 'none' is not in the ladder"),
        (["check", "bakward"], "fp8, prepare, ring; and backward/NAME"),
        (["resources", "bakward"], "fp8, prepare; and backward/NAME"),
        (["check", "2-"], "stage range '2-' lacks an end: both are needed, as in 2-5"),
        (["check", "5,6"], "stage '5,6': separate several with spaces, as in 5 6"),
        (["count", "1-3"], "stage '1-3': one stage is accepted, and no range or list"),
        (["count", "5,6"], "stage '5,6': one stage is accepted, and no range or list"),
        (["count", "bakward"], "16 cluster_split; and stages of backward, decode"),
        (["mutants", "ring", "5"], "ring is checked by itself: name no other stage beside it"),
        (["count"], "required: STAGE"),
        (["count", "1", "2"], "flashcore count: unrecognized arguments: 2; one STAGE is accepted (see"),
        (["stages", "5"], "flashcore stages: unrecognized arguments: 5 (see flashcore stages --help)"),
        (["count", "1", "--fly"], "flashcore count: unrecognized arguments: --fly (see flashcore count"),
        (["predict"], "required: LESSON (see"),
        (["count", "1", "--shape", "1x8x512"], "shape '1x8x512': accepted are BxHxSxD"),
        (
            ["count", "1", "--shape", "1x1x64x72"],
            "the head dimension (the last number) must be one of 32, 64, 80",
        ),
        (
            ["compare", "1", "--shape", "1x8x9x72/64"],
            "dimension (the number before the last /) must be one of",
        ),
        (["count", "1", "--variant", "x"], "--variant 'x' of stage 01 scalar: accepted are none"),
        (["compare", "--shape", "tiny"], "shape 'tiny': accepted are BxHxSxD"),
        (["compare", "--rounds", "2"], "'2': a whole number of at least 5 is accepted"),
        (["compare", "--rounds", "ten"], "'ten': a whole number of at least 5 is accepted"),
        (["compare", "--rounds", "9"], "--rounds '9': needs a measurement on a GPU; no NVIDIA driver"),
        (["compare", "--save", "here"], "--save 'here': needs a measurement on a GPU; no NVIDIA driver"),
        (["compare", "--save", __file__], "is a file; the name of a folder is accepted"),
        (["compare", "--label", "try"], "--label 'try': needs a measurement on a GPU; no NVIDIA driver"),
        (["compare", "--label", "My run"], "'My run': small letters, digits and single hyphens are accepted"),
        (["compare", "--label", "long-causal"], "but not the word causal, which --causal adds"),
        (["compare", "--label", "decode"], "but not the word decode, which --operation adds"),
        (["compare", "--label", "in-bfloat16"], "but not the word bfloat16, which --element adds"),
        (["compare", "decode", "--cache", "own"], "--cache 'own': needs a measurement on a GPU"),
        (["compare", "decode", "--page", "contiguous"], "--page 'contiguous': needs a measurement on a GPU"),
        (["compare", "decode", "--batch-invariant", "no"], "--batch-invariant 'no': needs a measurement"),
        (["compare", "--features", "window=1,0 window=2,0"], "window is there twice; once is accepted"),
        (["compare", "none.json", "other.json"], "none.json: cannot be read"),
        (["compare", "--json", "05"], "'05' is not a file name that ends in .json"),
        (["stages", "--json", "/no/such/folder/x.json"], "cannot be written: there is no folder"),
        (["resources", "--cc", "9"], "'9': major.minor is accepted"),
        (["resources", "--cc", "1.0"], "--cc 1.0: this CUDA compiler accepts 7.5, 8.0"),
        (["resources", "--head-dim", "72"], "--head-dim 72: accepted are 32, 64, 80"),
        (["resources", "--save", "--head-dim", "128"], "--save: writes the whole table, for every GPU"),
        (["resources", "7", "--head-dim", "128"], "07 wmma_qk: does not serve head dimension 128, only 64"),
        (["resources", "14", "--cc", "8.9"], "14 tma_wgmma: needs compute capability 9.0"),
        (["resources", "9", "--cc", "7.5", "--head-dim", "128"], "bytes of shared memory per block"),
        (["reconcile", "14", "--shape", "1x1x64x32"], "14 tma_wgmma: does not serve head dimension 32, only"),
        (["readme", "/no/such/README.md"], "/no/such/README.md: cannot be read"),
        (["readme", __file__, "--check"], "has no place to write to, such as <!-- table:ladder -->"),
    ],
)
def test_bad_arguments_get_one_line_and_exit_2(arguments, says, capsys, no_gpu):
    try:
        status = cli.main(arguments)
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert status == 2
    assert says in err
    assert out == ""
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("option", ["--json", "--save"])
def test_a_read_only_folder_is_refused_before_the_work(option, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", option, str(tmp_path / "x.json")])
    assert stop.value.code == 2
    assert f"cannot be written: {tmp_path} is read-only" in capsys.readouterr().err


def test_a_folder_that_takes_no_file_is_refused_before_the_work(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["pictures", "--save", "/proc/pictures"])
    assert stop.value.code == 2
    assert "'/proc/pictures' cannot be written: /proc " in capsys.readouterr().err


def test_stages_lists_the_ladder(capsys, wide):
    assert cli.main(["stages"]) == 0
    out = capsys.readouterr().out
    for stage in LADDER:
        assert stage.label in out
        for variant in stage.variants:
            assert variant in out


def test_stages_as_json(capsys):
    assert cli.main(["stages", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in data] == [stage.name for stage in LADDER]
    assert [item["grouped_queries"] for item in data] == [stage.grouped_queries for stage in LADDER]


def test_json_into_a_file_leaves_stdout_to_the_table(capsys, tmp_path, wide):
    file = tmp_path / "stages.json"
    assert cli.main(["stages", "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())) == len(LADDER)
    assert LADDER[0].label in capsys.readouterr().out


def test_count_shows_lines_and_totals(capsys, wide):
    assert cli.main(["count", LAST, "--shape", "1x1x64x64", "--causal"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"In all: .* times what is needed", out)
    assert re.search(r"^\s*\d+ .*load", out, re.MULTILINE), "one row a source line"
    assert f"counting {LADDER[-1].label}" in err


def test_count_as_json(capsys):
    assert cli.main(["count", "1", "--shape", "1x1x33x64", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["right"] is True
    assert data["problems"] == []
    assert data["totals"]["global_load_requests"] > 0
    assert data["moved"]["times_needed"] >= 1
    assert {line["line"] for line in data["lines"]}


@pytest.mark.parametrize(
    "number, name",
    few(VARIANTS, VARIANTS[0], VARIANTS[-1]),
    ids=lambda x: x if isinstance(x, str) else f"{x:02d}",
)
def test_count_of_each_variant(number, name, capsys):
    assert cli.main(["count", str(number), "--variant", name, "--shape", "1x1x33x64", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["variant"] == name


def test_a_wrong_stage_fails_count(monkeypatch, capsys, wide):
    def half(problem, out, executor, lse=None, variant=None):
        LADDER[0].launch(problem, out, executor)
        out *= np.float16(0.5)

    from flashcore_numba.cli import count

    monkeypatch.setattr(count, "find", lambda selector: replace(LADDER[0], launch=half))
    assert cli.main(["count", "1", "--shape", "1x1x33x64"]) == 1
    assert "WRONG output" in capsys.readouterr().out


@pytest.mark.long  # `compare` below checks the same
def test_check_of_one_stage(capsys, no_gpu):
    assert cli.main(["check", QUICK.name, "--json"]) == 0
    out, err = capsys.readouterr()
    reports = json.loads(out)
    assert {report["number"] for report in reports} == {QUICK.number}
    assert all(report["passed"] for report in reports)
    assert "checking" in err


def test_a_failed_check_is_shown_and_exits_1(monkeypatch, capsys, wide):
    import flashcore_numba.checks as checks

    def zeros(problem, out, executor, lse=None, variant=None):
        out[...] = 0

    report = checks.check_stage(replace(LADDER[0], launch=zeros), names=["ragged 31"])
    monkeypatch.setattr(checks, "check", lambda *args, **options: [report])
    assert cli.main(["check", "1"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert cli.main(["check", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["passed"] is False


@pytest.mark.long
def test_a_mutant_is_killed(monkeypatch, capsys, no_gpu):
    from flashcore_numba.cli import mutants

    first = next(mutant for mutant in mutants.MUTANTS if mutant.stage == 1)
    monkeypatch.setattr(mutants, "MUTANTS", (first,))
    assert cli.main(["mutants", "1", "--json"]) == 0
    (kill,) = json.loads(capsys.readouterr().out)
    assert (kill["name"], kill["status"]) == (first.name, "killed")


def test_a_surviving_mutant_exits_1(monkeypatch, capsys, no_gpu, wide):
    from flashcore_numba.checks import library, mutation
    from flashcore_numba.cli import mutants

    def survived(mutants, progress):
        return [mutation.Kill(m.stage, m.name, m.mistake, "simulator", "survived") for m in mutants]

    monkeypatch.setattr(mutants, "kill", survived)
    assert cli.main(["mutants", "2-3"]) == 1
    out = capsys.readouterr().out
    assert f"0 of {sum(mutant.stage in (2, 3) for mutant in library.MUTANTS)} mutants killed" in out


@pytest.mark.long
def test_compare_without_a_gpu(monkeypatch, capsys, no_gpu, wide):
    """Checks and counts for real; times only from a record, labelled with GPU, date and commit."""
    assert cli.main(["compare", QUICK.name, "--shape", "1x1x64x64"]) == 0
    out = capsys.readouterr().out
    assert "No GPU (no NVIDIA driver in this test)." in out
    assert "No times are recorded for 1x1x64x64." in out
    row = next(line for line in out.splitlines() if QUICK.label in line)
    passed, of = re.search(r"(\d+)/(\d+)", row).groups()
    assert passed == of
    assert int(passed) > 20


def test_json_into_a_folder_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, no_gpu):
    from flashcore_numba.cli import compare

    folder = tmp_path / "runs.json"
    folder.mkdir()
    monkeypatch.setattr(compare, "_compare_without_gpu", lambda *args: pytest.fail("it ran"))
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compare", "1", "--json", str(folder)])
    assert "runs.json' is a folder; the name of a file is accepted" in capsys.readouterr().err


def test_compare_takes_a_shape_once(monkeypatch, no_gpu):
    from flashcore_numba.cli import compare

    asked = []
    monkeypatch.setattr(compare, "_compare_without_gpu", lambda *args: asked.extend(args[2]) or 0)
    assert cli.main(["compare", "1", "--shape", "mission", "--shape", "small", "--shape", "1x8x512x64"]) == 0
    assert [str(shape) for shape, _ in asked] == ["1x8x512x64", "1x2x64x64"]


def test_compare_takes_a_workload_once():
    from flashcore_numba.cli import compare
    from flashcore_numba.cli.parser import build_parser
    from flashcore_numba.core.shapes import parse

    words = ["--features", "sinks gate", "--features", "gate sinks", "--features", "window=-1,-1"]
    words += ["--features", "none", "--tokens", "9"]
    args = build_parser().parse_args(["compare", "15", *words, *words])
    (group,) = compare._workloads(args, [find(15)], [parse("mission")])
    assert [(each.drawn, each.tokens) for each in group] == [(("sinks", "gate"), 9), ((), 9)]


@pytest.mark.long
def test_compare_shows_the_record_and_labels_it(monkeypatch, capsys, no_gpu, wide, tmp_path, fake):
    from flashcore_numba import checks
    from flashcore_numba.evidence import rehearse
    from flashcore_numba.records import artifact

    record = fake()
    artifact.save(record, tmp_path / "imaginary-gpu.json")
    monkeypatch.setattr(artifact, "recorded_dir", lambda: tmp_path)
    quick = [checks.check_stage(LADDER[0], names=["ragged 31"])]
    monkeypatch.setattr(rehearse, "check", lambda *args, **options: quick)
    assert cli.main(["compare", "1"]) == 0
    out = capsys.readouterr().out
    assert "1x8x512x64: Imaginary GPU, 2001-02-03, commit 0123456789" in out
    assert "SDPA flash" in out
    assert "05 online_softmax" not in out, "only the chosen stage"
    assert cli.main(["compare", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["backend"] == "simulator"
    assert data["recorded"][0]["gpu"]["name"] == "Imaginary GPU"
    assert [item["stage"] for item in data["counted"]] == ["01 scalar"]


@pytest.mark.long
def test_a_wrong_stage_fails_compare(monkeypatch, capsys, no_gpu, wide):
    from flashcore_numba import checks
    from flashcore_numba.evidence import rehearse

    def zeros(problem, out, executor, lse=None, variant=None):
        out[...] = 0

    wrong = [checks.check_stage(replace(LADDER[0], launch=zeros), names=["ragged 31"])]
    monkeypatch.setattr(rehearse, "check", lambda *args, **options: wrong)
    assert cli.main(["compare", "1"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "ragged 31" in out


def test_dispatch_shows_its_table_and_writes_it(tmp_path, capsys, monkeypatch, wide):
    from flashcore_numba.stages.tuning import dispatch

    assert cli.main(["dispatch"]) == 0
    shown = capsys.readouterr().out
    for rule in dispatch.TABLE:
        assert find(rule.stages[0]).label in shown
    assert all(rule.stages[0] in shown for rule in dispatch.BACKWARD)
    assert cli.main(["dispatch", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for name, rules in (("forward", dispatch.TABLE), ("backward", dispatch.BACKWARD)):
        assert [entry["stages"] for entry in told[name]] == [list(rule.stages) for rule in rules]
    source = Path(dispatch.__file__).read_text()
    copy = tmp_path / "dispatch.py"
    copy.write_text(source.replace("    Rule((", "    Rule((1"))
    monkeypatch.setattr(dispatch, "__file__", str(copy))
    assert cli.main(["dispatch", "--save"]) == 0
    assert capsys.readouterr().out == f"wrote {copy}\n"
    assert copy.read_text() == source


def test_check_leaves_out_what_the_gpu_lacks(monkeypatch, capsys):
    checked = []
    monkeypatch.setattr(flashcore_numba.core.gpu, "available", lambda: True)
    monkeypatch.setattr(flashcore_numba.core.gpu, "compute_capability", lambda device=0: (7, 5))
    monkeypatch.setattr(
        "flashcore_numba.checks.check", lambda stages, **options: checked.extend(stages) or []
    )
    assert cli.main(["check", "12-14"]) == 1
    assert [stage.number for stage in checked] == [12]
    said = capsys.readouterr().err
    assert "13 split_kv: not run, needs compute capability 8.0, and this GPU has 7.5" in said
    assert "14 tma_wgmma: not run, needs compute capability 9.0, no newer one, and this GPU has 7.5" in said


@pytest.mark.long
def test_resources_lists_every_kernel(capsys, wide):
    assert cli.main(["resources", "1", LAST, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    kernels = [kernel for found in data["kernels"].values() for kernel in found]
    assert {label.split()[0] for label in data["kernels"]} == {"01", f"{int(LAST):02d}"}
    assert all(kernel["registers"] is None or 16 <= kernel["registers"] <= 255 for kernel in kernels)
    assert cli.main(["resources", "1", "--cc", "8.0"]) == 0
    assert "sm_80" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 99, 100, 118, 160])
def test_resources_cuts_nothing_and_explains_what_it_shows(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["resources", "5", "12"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    _, head, *_ = (line for line in out.splitlines() if "stage" in line or "Compiled" in line)
    assert [name in head for name in ("regs", "spill", "local", "shared")] == [True] * 4
    assert ("kernel" in head) == (columns >= 99) and ("mma_sync (" in out) == ("kernel" in head)
    legend = " ".join(out[out.index("Registers, and") :].split())
    assert ("threads, per block" in legend) == ("threads" in head)
    assert ("An SM holds: blocks" in legend) == ("an SM holds" in head)


def test_a_stage_that_is_left_out_is_named_with_its_limit(capsys, wide):
    assert cli.main(["resources", "1", "7", "14", "--cc", "8.0", "--head-dim", "128"]) == 0
    out = capsys.readouterr().out
    assert "07 wmma_qk: left out, does not serve head dimension 128, only 64\n" in out
    assert "14 tma_wgmma: left out, needs compute capability 9.0" in out
    assert cli.main(["reconcile", "1", "7", "--shape", "1x1x16x128"]) == 0
    assert "07 wmma_qk: left out, does not serve head dimension 128, only 64\n" in capsys.readouterr().out


def test_resources_writes_its_table(tmp_path, capsys, monkeypatch):
    from flashcore_numba.cli import resources
    from flashcore_numba.evidence import resource_table

    first = next(stage for stage in LADDER if stage.language == "CUDA C")
    monkeypatch.setattr(resources, "LADDER", (LADDER[0], first))
    monkeypatch.setattr(resource_table, "recorded_dir", lambda: tmp_path)
    assert cli.main(["resources", "--save"]) == 0
    assert "resources.json" in capsys.readouterr().out
    table = resource_table.read()
    compiled_for = (75, 80, 86, 89, 90, 100, 120)
    assert list(table["kernels"]) == [f"{first.label}, D = 64, sm_{cc}" for cc in compiled_for]
    for item in resource_table.items([first]):
        recorded = table["kernels"][resource_table.name(item)]
        assert resource_table.differences(item, recorded, resource_table.compiled(*item)) == []
    assert cli.main(["resources", "7", "--save"]) == 2
    assert "--save" in capsys.readouterr().err


def test_readme_writes_then_agrees(tmp_path, capsys, monkeypatch):
    from flashcore_numba.records import artifact

    monkeypatch.setattr(artifact, "recorded_dir", lambda: tmp_path / "recorded")
    page = tmp_path / "README.md"
    page.write_text("<!-- table:ladder -->\n<!-- table:end -->\n")
    assert cli.main(["readme", str(page), "--check"]) == 1
    assert "differs" in capsys.readouterr().out
    assert cli.main(["readme", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert cli.main(["readme", str(page), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"up_to_date": True, "differences": []}


@pytest.mark.long
def test_no_control_codes_off_a_terminal_and_narrow_ones_are_served():
    for columns in ("40", "80", "200"):
        done = process("stages", COLUMNS=columns)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr
        assert max(map(len, done.stdout.splitlines())) <= int(columns)


@pytest.mark.long
def test_a_narrow_terminal_keeps_the_ideas_readable():
    text = process("stages", COLUMNS="60").stdout
    assert "…" not in text
    assert "scalar" in text
    assert "LSE" not in text


def test_stages_says_what_each_needs_at_every_width(capsys, monkeypatch):
    for columns in range(60, 161):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["stages"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) < 170, f"{columns} columns: the ideas are unreadably narrow"
        assert max(map(len, lines)) <= columns
        assert not any("…" in line for line in lines), columns
        for stage in LADDER:
            row = next(line for line in lines if stage.label in line)
            assert "sm_{}{}".format(*stage.compute_capability) in row, columns
        assert ("D  " in lines[2]) == (columns >= 80)


@pytest.mark.parametrize("columns", [60, 80, 99, 100, 110, 118, 125, 160])
def test_dispatch_cuts_nothing_at_any_width(columns, capsys, monkeypatch):
    from flashcore_numba.stages.tuning import dispatch

    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["dispatch"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    for rule in (*dispatch.TABLE, *dispatch.BACKWARD):
        first = rule.stages[0]
        label = find(first).label if isinstance(first, int) else f"backward/{first}"
        rows = [
            line for line in out.splitlines() if label in line and "{}.{}".format(*rule.capability) in line
        ]
        assert rows and any(rule.rows is None or f"up to {rule.rows} " in row for row in rows)


def test_version():
    done = process("--version")
    assert re.fullmatch(r"flashcore \d\S*\n", done.stdout)


@pytest.mark.long
def test_a_full_disk_gets_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flashcore_numba", "stages", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "flashcore stages: the output cannot be written (No space left on device)\n"


def test_a_shape_beyond_memory_gets_one_line(capsys):
    assert cli.main(["count", "5", "--shape", "1x1x999999999999x64"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("flashcore count: out of memory; choose a smaller shape")
    assert len(err) == 2, "what it was doing, and why it stopped"


@pytest.mark.parametrize("arguments", [["starter", "5"], ["check", "14"]])
def test_a_deleted_folder_gets_one_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert cli.main(arguments) == 1
    assert capsys.readouterr().err.endswith(
        f"flashcore {arguments[0]}: the current folder no longer exists\n"
    )


@pytest.mark.long
def test_an_ascii_stdout_is_served():
    done = process("stages", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.long
def test_a_closed_pipe_ends_quietly():
    command = f"{sys.executable} -m flashcore_numba stages --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout == "["
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.long
def test_ctrl_c_ends_quietly_with_130():
    # A shell's background job, as this test may be part of, hands down a SIGINT that is ignored.
    interruptible = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from flashcore_numba.cli import main; sys.exit(main())"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", interruptible, "count", "1", "--shape", "1x8x512x64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "counting" in running.stderr.readline()
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err


def test_a_line_number_stays_a_number(capsys):
    console().print("mine.cu:100: 2", markup=False)
    assert capsys.readouterr().out == "mine.cu:100: 2\n"
