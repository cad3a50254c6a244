"""The backward pass in a table and a picture: every number is that of a record."""

import pytest
from artifacts import results

from flashcore_numba.branches.backward.ladder import LADDER
from flashcore_numba.records import artifact
from flashcore_numba.report import backward_tables, pictures

FLOPS = 10 * 8 * 512 * 512 * 64


@pytest.fixture
def folder(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "load", artifact.read)  # the numbers are not those of a schedule
    mission = results(
        "1x8x512x64", {"backward/one_launch": 10.0, "backward/wgmma": 20.0, "FA4": 16.0}, flops=FLOPS
    )
    long = results("4x32x4096x64", {"backward/wgmma": 5.0, "FA4": 4.0, "SDPA cuDNN": 8.0}, flops=FLOPS)
    masked = results("4x32x4096x64", {"backward/wgmma": 4.0, "FA4": 5.0}, causal=True, flops=FLOPS)
    masked["entries"][1]["error"]["right"] = False
    longer = results("1x32x16384x64", {"backward/wgmma": 8.0}, flops=FLOPS)
    record = fake(operation="backward", shapes=[longer, mission, long, masked])
    artifact.layout.save(record, tmp_path / "imaginary-gpu-backward.json", "entries")
    artifact.layout.save(fake(), tmp_path / "imaginary-gpu.json", "entries")
    return tmp_path


def test_a_row_has_the_time_at_the_mission_shape_and_rates_elsewhere(folder):
    text = backward_tables.backward(folder)
    rows = {
        row.split(" | ")[0].strip("| *"): row.split(" | ")[2:] for row in text.splitlines() if "| " in row
    }
    assert rows["backward/one_launch"] == ["10.0", "- / -", "- / - |"]
    assert "| 4x32x4096x64, TFLOP/s | 1x32x16384x64, TFLOP/s |" in text, "short before long"
    rates = f"{FLOPS / 5e6:.0f} / {FLOPS / 4e6:.0f}", f"{FLOPS / 8e6:.0f} / - |"
    assert rows["backward/wgmma"] == ["20.0", *rates]
    assert rows["FA4"] == ["16.0", f"{FLOPS / 4e6:.0f} / wrong", "- / - |"]
    assert {"backward/recompute", "SDPA flash"}.isdisjoint(rows), "what was not timed has no row"
    (idea,) = (stage.idea for stage in LADDER if stage.name == "wgmma")
    assert f"| backward/wgmma | {idea} |" in text


def test_without_the_mission_shape_there_is_no_table(fake, recorded):
    record = fake()
    artifact.save(record, recorded / artifact.file_name(record))
    assert backward_tables.backward() is None


@pytest.mark.long
def test_the_picture_says_where_a_stage_is_ahead(folder):
    drawn, _ = pictures.drawable(artifact.recorded_whole(folder))
    (picture,) = (each for each in drawn if each.name == "backward")
    assert "1x8x512x64: backward/one_launch 134, backward/wgmma 67, FA4 84; 4x32x4096x64: " in picture.alt
    assert picture.sources == (folder / "imaginary-gpu-backward.json",)
    (light, dark) = picture.draw(folder)
    assert light.exists() and dark.exists() and picture.stale(folder) == []


def test_a_picture_takes_the_records_of_its_own_operation(fake, folder):
    _, lacking = pictures.drawable([(folder / "x.json", fake())])
    assert lacking["backward"] == "no artifact is of the backward pass"
    _, lacking = pictures.drawable(
        [each for each in artifact.recorded_whole(folder) if artifact.operation_of(each[1]) != "forward"]
    )
    assert {"ladder", "roofline", "time-budget", "lengths", "share"} <= set(lacking)
