"""The roofline says which unit limits, from times that were measured and ceilings that are named."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from flashcore_numba import cli
from flashcore_numba.branches import find as branches
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence import extracts, roofline
from flashcore_numba.evidence.counts import count
from flashcore_numba.evidence.roofline import LATENCY, Row, budget, source
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.predict.limits import DATA_SHEETS
from flashcore_numba.records import artifact
from flashcore_numba.run.registers import stand_in
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find, select
from flashcore_numba.stages.runs import Run, runs

MISSION = Shape(1, 8, 512, 64)
CEILINGS = {
    "fp32_tflops": 60.0, "tensor_tflops": 900.0, "mma_sync_tflops": 600.0, "exp_gops": 4e3,
    "l1_gbs": 3e4, "l2_gbs": 6e3, "dram_gbs": 4e3, "launch_us": 0.5,
}  # fmt: skip


@pytest.fixture
def saved(fake, recorded):
    """Record an imaginary GPU's run, with these ceilings or none."""

    def save(ceilings=CEILINGS, **changes):
        record = fake(ceilings=ceilings, **changes)
        artifact.save(record, recorded / artifact.file_name(record))
        return record

    return save


def row(units, gpu_us, l2_measured=False):
    return Row("x", 1, None, True, units, l2_measured, gpu_us, 1.0, 1, 1, 1)


def test_the_busiest_unit_limits_unless_it_mostly_waits():
    busy = row({"fp32": 5.0, "exp": 1.0, "dram": 2.0}, 10.0)
    assert (busy.limiter, busy.share) == ("fp32", 0.5)
    waits = replace(busy, gpu_us=5.0 / LATENCY * 1.01)
    assert (waits.limiter, waits.busiest) == ("latency", "fp32")
    assert waits.share == pytest.approx(LATENCY / 1.01)


def test_without_a_time_there_is_a_limiter_at_best_and_no_share():
    untimed = row({"fp32": 5.0, "exp": 1.0}, None)
    assert (untimed.limiter, untimed.share) == ("fp32", None)
    assert budget(untimed) == "x: not measured"


def test_an_upper_bound_never_limits():
    units = {"exp": 6.0, "l2": 9.0}
    assert row(units, 10.0).limiter == "exp"
    assert row(units, 10.0, l2_measured=True).limiter == "l2"
    assert budget(row(units, 10.0)) == "x: 10.0 us: L2 ≤ 90%, exponentials 60%"


def test_the_rows_of_an_artifact(saved):
    record = saved()
    shape = record["shapes"][0]
    found = {each.label: each for each in roofline.rows(record, shape)}
    timed = {e["label"]: e["gpu_us"]["p50"] for e in shape["entries"] if e["kind"] == "stage"}
    assert {label: each.gpu_us for label, each in found.items()} == timed
    last = found["06 register_tiles"]
    assert last.units_us["fp32"] == pytest.approx(4 * 8 * 512 * 512 * 64 / 60e12 * 1e6)
    assert last.units_us["dram"] == pytest.approx(4 * 8 * 512 * 64 * 2 / 4e12 * 1e6)
    assert last.units_us["l1"] == pytest.approx(last.l1_bytes / 3e13 * 1e6)
    assert last.units_us["launch"] == 0.5
    assert not last.l2_measured


def test_writing_rows_into_pages_needs_no_tensor_cores() -> None:
    chosen = runs(branches.select("prepare"))
    for row in roofline.of_data_sheet(DATA_SHEETS[0], chosen, Shape(1, 8, 512, 64), False).rows:
        assert row.units_us["fp32"] > 0 and not row.units_us.get("tensor")


@pytest.mark.long
@pytest.mark.parametrize("name", ["online_softmax", "mma_sync"])
def test_bytes_are_those_that_are_counted(name, rng):
    run, shape = Run(find(name), find(name).default_variant), Shape(1, 1, 128, 64)
    (found,) = roofline.of_data_sheet(DATA_SHEETS[0], [run], shape, False).rows
    moved = Traffic.of_totals(count(run, shape, rng=rng).totals())
    sectors = moved.global_load_sectors + moved.global_store_sectors
    assert found.l2_bytes == 32 * sectors
    through_registers = moved.global_store_sectors if name == "mma_sync" else sectors
    assert found.l1_bytes == 32 * through_registers + 128 * (
        moved.shared_load_wavefronts + moved.shared_store_wavefronts
    )


def test_stage_07_multiplies_on_both_kinds_of_cores(saved):
    saved()
    found = {
        each.stage: each
        for each in roofline.of_record("Imaginary GPU", runs(select("5-8")), MISSION, True).rows
        if each.default
    }
    assert {"fp32", "tensor"} <= set(found[7].units_us)
    assert found[7].units_us["tensor"] == pytest.approx(found[8].units_us["tensor"] / 2)
    assert found[7].units_us["fp32"] == pytest.approx(found[5].units_us["fp32"] / 2)


def test_the_tensor_cores_of_a_stage_without_wgmma_are_as_fast_as_mma_sync(saved):
    saved()
    run = Run(find("mma_sync"), find("mma_sync").default_variant)
    (found,) = roofline.of_record("Imaginary GPU", [run], MISSION, False).rows
    assert found.units_us["tensor"] == pytest.approx(found.flops / 600e12 * 1e6)


@pytest.mark.parametrize(
    ("of", "without"),
    [
        ("12-16", {"12 mma_sync", "13 split_kv"}),
        (
            "decode",
            {"decode/cluster", "decode/cluster rows", "decode/even", "decode/split", "decode/split rows"},
        ),
        ("backward", {"backward/mma_sync"}),
        ("fp8", set()),
        ("epilogue", set()),
    ],
)
def test_the_kernels_launched_tell_who_uses_wgmma(of, without, saved):
    """A cluster of decoding has tiles of both kinds."""
    saved()
    chosen = runs(branches.select(*(select(of) if of[0].isdigit() else [of])))
    found = roofline.of_record("Imaginary GPU", chosen, MISSION, False).rows
    slower = {row.label for row in found if "tensor" in row.units_us and row.mma_sync}
    shown = {run.label for run in chosen if run.is_default or run.variant in ("rows", "wide")}
    assert slower & shown == without


def test_a_stage_with_tiles_of_both_kinds_is_named_by_its_runs(saved):
    saved()
    found = roofline.of_record("Imaginary GPU", runs(branches.select("decode")), MISSION, True)
    assert "Tensor cores of decode/split, decode/cluster overlapped, decode/cluster rows, " in _text(found)


def test_grouped_heads_have_their_own_times(saved):
    """Pages of the usual size are what a cache has where nothing is said; others are another measurement."""
    record, grouped = saved(), Shape(2, 8, 512, 64, kv_heads=2)
    (plain,) = record["shapes"]
    chosen = runs(select("5-6"))
    for us, features in ((1000.0, {"page": "contiguous"}), (500.0, {"page": 16}), (700.0, {"softcap": 5.0})):
        entries = [e | {"gpu_us": {**e["gpu_us"], "p50": us}} for e in plain["entries"]]
        record["shapes"].append(plain | {"shape": str(grouped), "features": features, "entries": entries})
    rows = roofline.of_record("Imaginary GPU", chosen, grouped, False, record).rows
    assert {row.gpu_us for row in rows} - {None} == {500.0}
    alone = roofline.of_record("Imaginary GPU", chosen, MISSION, False, record).rows
    read = {name: {row.label: row.units_us[name] for row in rows} for name in ("fp32", "dram")}
    for row in alone:
        assert read["fp32"][row.label] == pytest.approx(2 * row.units_us["fp32"])
        assert read["dram"][row.label] == pytest.approx(2 * row.units_us["dram"] * (2 + 2 / 4) / 4)
        assert row.gpu_us != 500.0


def test_recorded_times_of_grouped_heads_are_found() -> None:
    shape, chosen = Shape(1, 64, 8192, 128, kv_heads=8), runs(branches.select("decode"))
    assert roofline.is_recorded("NVIDIA H200", chosen, shape, True)
    rows = {row.label: row for row in roofline.of_record("NVIDIA H200", chosen, shape, True).rows}
    assert 0.5 < rows["decode/cluster"].share < 1.05 and rows["decode/cluster"].limiter == "dram"


def test_times_of_other_stages_are_no_times_of_these() -> None:
    """On the GPU itself these are then measured."""
    shape = Shape(1, 8, 128, 128)
    assert roofline.is_recorded("NVIDIA H200", runs(select("15")), shape, False)
    assert not roofline.is_recorded("NVIDIA H200", runs(select("9")), shape, False)


def test_times_that_were_throttled_are_told(saved):
    record = saved()
    assert "Throttled" not in roofline.of_record("Imaginary GPU", runs(select("5-6")), MISSION, False).about
    entries = record["shapes"][0]["entries"]
    next(e for e in entries if e["label"] == "05 online_softmax")["throttled"] = ["the power limit in 1 of 5"]
    found = roofline.of_record("Imaginary GPU", runs(select("5-6")), MISSION, False, record)
    assert "Throttled, unlike the units: 05 online_softmax." in found.about


def test_asynchronous_copies_pass_through_the_l1_once():
    """Stage 11 loads K and V through registers in phase 3, past them in phase 4, and Q the same in both."""
    problem = stand_in(1, 2, 192, 64)
    through, past = (predict(find("warp_specialized"), phase, problem, 132) for phase in "34")
    assert through.async_sectors == 0
    assert past.global_load_sectors == through.global_load_sectors
    assert past.async_sectors == past.global_load_sectors - 2 * 192 * 64 * 2 // 32


def test_launches_are_those_of_the_stage(saved):
    """Splitting the keys takes a second kernel that merges."""
    saved()
    found = {
        each.variant: each.units_us["launch"]
        for each in roofline.of_record("Imaginary GPU", runs([find("split_kv")]), MISSION, False).rows
    }
    assert found["two_splits"] == 2 * found["unsplit"] == 1.0


def test_measured_l2_bytes_take_the_place_of_the_bound(saved, recorded, monkeypatch):
    saved()
    monkeypatch.setattr(extracts, "recorded_dir", lambda: recorded)
    kernels = [{"name": "a", "l2_bytes": 6_000_000}, {"name": "b", "l2_bytes": 6_000_000}]
    extract = {"shape": str(MISSION), "causal": False, "gpu": "Imaginary GPU"}
    extract["runs"] = [{"stage": 5, "variant": None, "kernels": kernels}]
    other = extract | {"gpu": "Another GPU", "runs": [{"stage": 4, "variant": None, "kernels": kernels}]}
    (recorded / "nsight-imaginary.json").write_text(json.dumps({"extracts": [other, extract]}))
    chosen = runs(select("4-5"))
    four, five = roofline.of_record("Imaginary GPU", chosen, MISSION, False).rows
    assert (five.l2_measured, five.l2_bytes) == (True, 12_000_000)
    assert five.units_us["l2"] == pytest.approx(2.0)
    assert not four.l2_measured
    (causal, _) = roofline.of_record("Imaginary GPU", chosen[::-1], MISSION, True).rows
    assert not causal.l2_measured


@pytest.mark.long
def test_any_shape_has_units_and_what_is_not_measured_says_so(saved):
    saved()
    found = roofline.of_record("Imaginary GPU", runs(LADDER), Shape(4, 16, 4096, 128), True)
    assert {each.gpu_us for each in found.rows} == {None}
    assert {each.stage for each in found.rows} >= {12, 13}
    assert "No times are recorded" in found.about
    labels = {each.label for each in found.rows}
    assert all(sentence.partition(":")[0] not in labels for sentence in found.refused)
    text = _text(found)
    assert "not measured" in text
    assert "at best" in text


def _text(found, width=200):
    console = Console(width=width, file=None, record=True, quiet=False)
    with console.capture() as captured:
        console.print(found.table(width))
    return " ".join(captured.get().split())


def test_the_source_of_the_ceilings_is_told(saved):
    saved()
    measured = roofline.of_record("Imaginary GPU", runs(LADDER[4:6]), MISSION, False)
    assert "Units: measured on Imaginary GPU, 2001-02-03." in _text(measured)
    saved(ceilings=None)
    table = roofline.of_record("Imaginary GPU", runs(LADDER[4:6]), MISSION, False)
    assert "by the table of rates at 1980 MHz, not measured" in _text(table)


def test_the_record_with_the_shape_comes_first(saved):
    saved(date="2001-01-01T00:00:00Z")
    saved(ceilings=None, label="other", shape=Shape(1, 2, 64, 64), date="2002-01-01T00:00:00Z")
    found = roofline.of_record("Imaginary GPU", runs(LADDER[4:5]), MISSION, False)
    assert found.rows[0].gpu_us
    assert found.ceilings.measured
    other = roofline.of_record("Imaginary GPU", runs(LADDER[4:5]), Shape(1, 2, 64, 64), False)
    assert other.rows[0].gpu_us
    assert not other.ceilings.measured, "ceilings of another run do not go with these times"


def test_a_run_of_a_few_stages_does_not_hide_the_whole_ladder(saved):
    saved(date="2001-01-01T00:00:00Z")
    few = saved(label="few", date="2002-01-01T00:00:00Z")
    few["shapes"][0]["entries"] = [e for e in few["shapes"][0]["entries"] if e["stage"] in (1, None)]
    artifact.derive(few["shapes"][0])
    artifact.save(few, artifact.recorded_dir() / artifact.file_name(few))
    for stages in (LADDER[4:6], LADDER[:2]):
        found = roofline.of_record("Imaginary GPU", runs(stages), MISSION, False)
        assert "2001-01-01" in found.about
        assert any(each.gpu_us for each in found.rows)


def test_a_gpu_is_found_by_a_part_of_its_name(saved):
    saved()
    assert source("imaginary") == "Imaginary GPU" == source(None)
    assert source(None, here="NVIDIA L4") == "NVIDIA L4"
    assert source("l4").name == "NVIDIA L4"
    assert source("rtx 4090").dram_gbs == 1008
    with pytest.raises(ArgumentError, match=r"--gpu '40': known are Imaginary GPU, NVIDIA L4, "):
        source("40")
    with pytest.raises(ArgumentError, match="known are"):
        source(" ")


def test_nothing_recorded_asks_for_a_name(recorded):
    with pytest.raises(ArgumentError, match="--gpu: nothing is recorded, so a name is needed"):
        source(None)


def test_a_data_sheet_gives_no_time_and_the_blocks_of_an_sm():
    found = roofline.of_data_sheet(source("L4"), runs(select("mma_sync")), MISSION, False)
    assert all(each.gpu_us is None and each.share is None for each in found.rows)
    small = next(each for each in found.rows if each.variant == "small")
    (held,) = small.occupancy
    assert (held.blocks, held.held_by) == (1, "shared memory")
    assert "from data sheets, not measured" in _text(found)
    # Of an H100 there are runs of features and of decoding, and its data sheet is shown all the same.
    assert found.about == "No run of the ladder is recorded for this GPU."


@pytest.mark.long
def test_a_stage_that_a_gpu_cannot_run_has_no_row():
    found = roofline.of_data_sheet(source("L4"), runs(select(5, "tma_wgmma")), MISSION, False)
    assert [row.stage for row in found.rows] == [5]
    (refused,) = found.refused
    assert refused.startswith(
        "14 tma_wgmma: needs compute capability 9.0, no newer one, and this GPU has 8.9"
    )


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("12", "Tensor cores: as fast as mma.sync"),
        ("12-14", "Tensor cores before stage 14: as"),
        ("14", None),
    ],
)
def test_the_sentence_on_mma_sync_names_the_stages_that_it_is_true_of(stages, said, saved):
    saved()
    text = _text(roofline.of_record("Imaginary GPU", runs(select(stages)), MISSION, False))
    assert (said in text) if said else ("mma.sync" not in text)


def test_the_command(saved, recorded, capsys, tmp_path):
    saved()
    assert cli.main(["roofline", "5-6", "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["latency_below"] == LATENCY
    by_label = {each["label"]: each for each in given["rows"]}
    assert by_label["06 register_tiles"]["gpu_us"] == pytest.approx(np.median([50, 55, 60]))
    assert cli.main(["roofline", "5-6"]) == 0
    shown = capsys.readouterr().out
    assert "Parts of the time:\n05 online_softmax: " in shown
    assert cli.main(["roofline", "5", "--gpu", "A100", "--save", str(tmp_path)]) == 2
    assert "pictures show measured times, not NVIDIA A100" in capsys.readouterr().err
    assert cli.main(["roofline", "7", "--shape", "1x1x64x128"]) == 1
    assert "07 wmma_qk" in capsys.readouterr().out
    assert cli.main(["roofline", "5", "--shape", "1x4/2x64x64", "--save", str(tmp_path)]) == 2
    assert "pictures show shapes BxHxSxD, not 1x4/2x64x64" in capsys.readouterr().err
    assert cli.main(["roofline", "--shape", "2x4/2x64-128x64"]) == 2
    assert "accepted is one length, S, not S-S" in capsys.readouterr().err
    assert cli.main(["roofline", "--shape", "1x2x64x192/128"]) == 0
    assert "11 warp_specialized 3: stage 11 warp_specialized does not serve" in capsys.readouterr().out


def test_a_kernel_that_no_sm_has_room_for_has_no_row():
    found = roofline.of_data_sheet(source("L4"), runs(select("pipeline")), MISSION, False)
    assert [row.label for row in found.rows] == ["10 pipeline 1", "10 pipeline 3", "10 pipeline"]
    (refused,) = found.refused
    assert refused.startswith(
        "10 pipeline 4: needs 115200 bytes of shared memory per block at head dimension 64"
    )
