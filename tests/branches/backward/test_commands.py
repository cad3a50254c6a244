"""The commands that tell what a stage costs, for stages of the backward pass: on the simulator."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba import checks, cli
from flashcore_numba.branches.backward.ladder import LADDER
from flashcore_numba.branches.find import find
from flashcore_numba.checks.forward import FORWARD, common_operation
from flashcore_numba.cli import selection
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence import extracts, nsight, profile, reconcile, rehearse, resource_table, roofline
from flashcore_numba.predict import FORMULAS, Traffic
from flashcore_numba.predict.limits import DATA_SHEETS, Device, limits_us
from flashcore_numba.records import artifact
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.registers import examples, stand_in_for, why_not
from flashcore_numba.stages import ladder as spine
from flashcore_numba.stages.runs import Run, runs

from . import numpy_stage

RECOMPUTE = find("backward/recompute")
SMALL = "1x1x40x64"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setattr(nsight, "why_not", lambda: "no ncu in this test")
    monkeypatch.setenv("COLUMNS", "200")


def test_check(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "check", lambda stages, **options: seen.extend(stages) or [])
    assert cli.main(["check", "backward"]) == 0
    assert seen == simulated(LADDER)[0] and RECOMPUTE in seen


def test_the_ladder_of_an_operation_is_selected_by_its_name():
    def selected_by(*stages, operation=None):
        return selection.selected(Namespace(stages=stages, operation=operation))

    assert selected_by(operation="backward") == selected_by("backward") == list(LADDER)
    assert selected_by(operation="forward") == selected_by() == list(spine.LADDER)
    assert selected_by(RECOMPUTE.key, operation="backward") == [RECOMPUTE]
    assert selection.of_one_operation(Namespace(stages=["backward"]))[0] == "backward"


def test_count(capsys):
    assert cli.main(["count", RECOMPUTE.key, "--shape", SMALL, "--causal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == RECOMPUTE.key and found["right"] and not found["problems"]
    problem = stand_in_for(RECOMPUTE, parse(SMALL), True)
    assert found["moved"]["times_needed"] == found["moved"]["global_bytes"] / problem.min_bytes


@pytest.mark.long
def test_reconcile(capsys):
    """Every variant, in another process too, which finds the stage by its key."""
    assert cli.main(["reconcile", RECOMPUTE.key, "--shape", SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["stage"] for run in found["runs"]] == [run.label for run in runs([RECOMPUTE])]
    assert not any(row["flagged"] for run in found["runs"] for row in run["rows"])
    variant = RECOMPUTE.default_variant
    again = Traffic(**reconcile._count_one(RECOMPUTE.key, variant, SMALL, False, EXAMPLE_SM_COUNT))
    assert again == reconcile.predicted(Run(RECOMPUTE, variant), parse(SMALL), False)


def test_what_no_formula_predicts_is_not_reconciled(capsys, monkeypatch):
    monkeypatch.delitem(FORMULAS, RECOMPUTE.key)
    able, others = reconcile.foretold([RECOMPUTE, find(5)])
    assert [stage.key for stage in able] == ["online_softmax"]
    assert others == ["backward/recompute: not reconciled, no formula predicts the traffic"]
    assert cli.main(["reconcile", RECOMPUTE.key, "--shape", SMALL]) == 1
    assert "no formula predicts the traffic" in capsys.readouterr().out


def test_roofline_by_a_data_sheet(capsys, monkeypatch):
    monkeypatch.setattr(roofline, "why_not", lambda stage: "nothing is compiled in this test")
    assert cli.main(["roofline", "backward", "--gpu", "H100", "--shape", "1x2x128x64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operation"] == "backward"
    by_label = {row["label"]: row for row in found["rows"]}
    row, problem = by_label[RECOMPUTE.label], stand_in_for(RECOMPUTE, Shape(1, 2, 128, 64))
    assert row["flops"] == problem.flops == 10 * 2 * 128 * 128 * 64 and row["stage"] is None
    sheet = next(each for each in DATA_SHEETS if "H100" in each.name)
    assert row["units_us"]["fp32"] == pytest.approx(problem.flops / sheet.fp32_tflops / 1e6)
    assert row["units_us"]["dram"] == pytest.approx(problem.min_bytes / sheet.dram_gbs / 1e3)
    assert row["units_us"]["exp"] == pytest.approx(problem.exponentials / sheet.ceilings().exp_gops / 1e3)


def test_roofline_without_a_formula_has_the_units_that_the_problem_gives(monkeypatch):
    monkeypatch.setattr(roofline, "why_not", lambda stage: "nothing is compiled in this test")
    monkeypatch.delitem(FORMULAS, RECOMPUTE.key)
    sheet = roofline.source("H100")
    found = roofline.of_data_sheet(sheet, [Run(RECOMPUTE, "tiles")], Shape(1, 1, 64, 64), False)
    (row,) = found.rows
    assert {"fp32", "exp", "dram"} == set(row.units_us) and row.l1_bytes == row.l2_bytes == 0


@pytest.mark.long
def test_roofline_of_a_recorded_gpu(fake, recorded, capsys):
    """The ceilings of any run of that GPU; times only of the operation's own."""
    ceilings = {"fp32_tflops": 60.0, "tensor_tflops": 900.0, "exp_gops": 4000.0, "l1_gbs": 3e4}
    ceilings |= {"l2_gbs": 1e4, "dram_gbs": 4000.0, "launch_us": 0.5, "mma_sync_tflops": 600.0}
    forward = fake(ceilings=ceilings)
    artifact.save(forward, recorded / artifact.file_name(forward))
    arguments = ["roofline", "backward", "--shape", "mission"]
    assert cli.main(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "backward, 1x8x512x64: what each unit of Imaginary GPU needs" in shown
    assert "flashcore compare --operation backward --shape 1x8x512x64 measures them" in shown
    assert "Tensor cores of backward/mma_sync: as fast as mma.sync drives them" in shown
    assert cli.main([*arguments, "--save", str(recorded.parent / "drawn")]) == 2
    assert "No times are recorded" in capsys.readouterr().err
    own = fake(ceilings=ceilings, operation="backward")
    own["shapes"][0]["entries"][0] |= {"label": RECOMPUTE.label, "stage": None, "variant": "tiles"}
    artifact.derive(own["shapes"][0])
    artifact.save(own, recorded / artifact.file_name(own))
    assert cli.main([*arguments, "--json"]) == 0
    rows = {row["label"]: row["gpu_us"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows[RECOMPUTE.label] == pytest.approx(2200.0)
    assert roofline.is_recorded("Imaginary GPU", runs([RECOMPUTE]), parse("mission"), False)
    assert not roofline.is_recorded("Imaginary GPU", runs([RECOMPUTE]), parse("small"), False)
    drawn = recorded.parent / "drawn"
    assert cli.main([*arguments, "--save", str(drawn)]) == 0
    assert [path.name for path in drawn.iterdir()] == ["roofline-imaginary-gpu-backward.json"]


def test_a_table_is_of_one_operation(capsys):
    for command in ("roofline", "compare"):
        assert cli.main([command, "5", "backward"]) == 2
        assert "stages of one operation are accepted, not of 2 (forward: " in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="backward: backward/recompute"):
        common_operation([find(1), RECOMPUTE])
    assert common_operation([]) is FORWARD


@pytest.mark.skipif(why_not(RECOMPUTE) is not None, reason=f"no CUDA compiler: {why_not(RECOMPUTE)}")
@pytest.mark.long
def test_resources(capsys):
    assert cli.main(["resources", RECOMPUTE.key, "--cc", "9.0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kernels"]
    assert list(found) == [run.label for run in runs([RECOMPUTE])]
    for kernels in found.values():
        assert kernels and all(kernel["registers"] > 0 for kernel in kernels)


def test_what_is_compiled_is_a_problem_of_the_operation():
    in_cuda = replace(numpy_stage.stage(), language="CUDA C")
    (one,) = examples(RECOMPUTE, 128)
    assert one.head_dim == 128 and one.dout.shape == (1, 1, 64, 128)
    several = examples(in_cuda, 64)
    assert len(several) > 1 and {each.causal for each in several} == {False, True}
    assert resource_table.name((RECOMPUTE.key, "rows", 64, (9, 0))).startswith(
        "backward/recompute rows, D = 64"
    )


def test_profile_without_a_gpu(capsys):
    assert cli.main(["profile", RECOMPUTE.key]) == 1
    assert (
        "backward/recompute has no recorded profile at 1x8x512x64; recorded are: none"
        in capsys.readouterr().err
    )
    assert (
        profile._stem(Run(RECOMPUTE, "rows"), parse(SMALL), True)
        == "backward-recompute-rows-1x1x40x64-causal"
    )


def test_an_extract_calls_a_stage_by_its_key(tmp_path, monkeypatch, capsys):
    """Beside those of the spine, which it calls by number, in one file of a GPU, shape and mask."""
    kernel = nsight.Kernel("k", {"duration_ns": 1500.0}, {"wait": 0.5}, Traffic(1))

    def measured(stage):
        job = extracts.Job(parse(SMALL), False, Run(stage, stage.default_variant))
        return extracts.Measured(job, [kernel], {"max": 1e-4, "right": True})

    monkeypatch.setattr(extracts.environment, "gpu", lambda: {"name": "GPU", "sm_count": 132, "driver": "1"})
    monkeypatch.setattr(extracts, "version", lambda: "1")
    several = [measured(RECOMPUTE), measured(find(12)), measured(find(3))]
    extracts.save(extracts.extract(parse(SMALL), False, several), tmp_path)
    (extract,) = extracts.recorded(tmp_path)
    assert [run["stage"] for run in extract["runs"]] == [3, 12, RECOMPUTE.key]
    assert profile.find(Run(RECOMPUTE, "tiles"), extract)["traffic"]["global_load_requests"] == 1
    assert profile.find(Run(RECOMPUTE, "rows"), extract) is None
    extract["runs"][-1]["commit"], extract["runs"][-1]["date"] = "c" * 40, "2001-02-03T04:05:06Z"
    assert "backward/recompute measured on 2001-02-03" in reconcile.where(extract, parse(SMALL), False)
    *_, packed = extracts.command(tmp_path / "r.json", 1, [several[0].job])
    assert extracts._unpack(packed) == [several[0].job]
    jobs = reconcile.jobs_to_save([find(2), RECOMPUTE])
    assert {job.run.stage for job in jobs} == {find(2), RECOMPUTE}


@pytest.mark.long
def test_compare_without_a_gpu(capsys, monkeypatch):
    def quick(stages, **options):
        return [
            checks.check_stage(stage, variant, names=["ragged 33"])
            for stage in stages
            for variant in stage.variants or (None,)
        ]

    monkeypatch.setattr(rehearse, "check", quick)
    monkeypatch.setattr("flashcore_numba.cli.compare.COUNT_SHAPE", SMALL)
    assert cli.main(["compare", RECOMPUTE.key, "--shape", "1x2x64x64", "--causal"]) == 0
    out = capsys.readouterr().out
    assert "flashcore compare --operation backward --shape 1x2x64x64 --causal" in " ".join(out.split())
    assert all(run.label in out for run in runs([RECOMPUTE]))
    assert "every input read once, every output written once" in " ".join(out.split())


def test_the_limits_of_a_backward_problem():
    """Five products and one exponential a pair; q, k, v, out, dout, LSE in, three gradients out."""
    shape, device = Shape(4, 32, 4096, 64), Device((9, 0), 132, 1980.0, 4917.0)
    problem = stand_in_for(RECOMPUTE, shape, False)
    found = limits_us(problem, device)
    pairs, array = 4 * 32 * 4096**2, 4 * 32 * 4096 * 64 * 2
    assert found["tensor"] == pytest.approx(10 * pairs * 64 / (4096 * 132 * 1980))
    assert found["exp"] == pytest.approx(pairs / (16 * 132 * 1980))
    assert found["memory"] == pytest.approx((8 * array + 4 * 32 * 4096 * 4) / 4917e3)
    causal = limits_us(stand_in_for(RECOMPUTE, shape, True), device)
    assert causal["exp"] / found["exp"] == pytest.approx(0.5, rel=1e-3)
    assert causal["memory"] == found["memory"] and np.isfinite(causal["fp32"])
