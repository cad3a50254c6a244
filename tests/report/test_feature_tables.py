"""What features cost, in a table and a sentence, is computed from the times of one run."""

import pytest
from artifacts import results

from flashcore_numba.records import artifact
from flashcore_numba.report import feature_tables

LENGTHS = [3, 5]


LABELS = ("12 mma_sync", "15 ping_pong", "FA3", "FA4")


def timed(name, us, features=None, element="float16", **more):
    """Of one workload: stages 12 and 15, and two libraries; us: their times."""
    if features is not None:
        more = {"features": features, "flops": 6_000_000_000} | more
    return results(name, dict(zip(LABELS, us, strict=True)), element=element, **more)


@pytest.fixture
def folder(fake, tmp_path, monkeypatch):
    """A run with a window beside the same without, a ragged batch and its yardstick, both element types."""
    monkeypatch.setattr(artifact, "load", artifact.read)  # the numbers are not those of a schedule
    window = [
        timed("1x2x4096x64", (90.0, 80.0, 100.0, 70.0)),
        timed("1x2x4096x64", (30.0, 20.0, 25.0, 15.0), {"window": [1023, 0]}),
    ]
    packed = {"lengths": LENGTHS}
    ragged = [
        timed("2x2x3-5x64", (60.0, 50.0, 55.0, 45.0), packed, equal_lengths="2x2x4x64"),
        timed("2x2x4x64", (40.0, 40.0, 40.0, 40.0), {}, flops=6_000_000_000),
    ]
    elements = [
        timed("1x8x512x64", (10.0, 20.0, 30.0, 40.0)),
        timed("1x8x512x64", (10.1, 19.0, 30.0, 40.0), element="bfloat16"),
    ]
    for label, shapes in (("window", window), ("ragged", ragged), ("element", elements)):
        record = fake(label=label, shapes=shapes)
        artifact.layout.save(record, tmp_path / f"imaginary-gpu-{label}.json", "entries")
    return tmp_path


def rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| " in line
    ][1:]


def test_a_row_has_the_fastest_stage_beside_itself_without_and_beside_libraries(folder):
    found = {row[0]: row[1:] for row in rows(feature_tables.costs(folder))}
    assert found == {
        "1x2x4096x64": ["window=1023,0", "15", "20.0", "300", "25%", "1.25", "0.75", "-", "-"],
        "2x2x3-5x64": ["packed", "15", "50.0", "120", "80% of the rate", "1.10", "0.90", "-", "-"],
    }


def test_a_gate_is_beside_two_launches(folder, fake):
    bare = results("1x2x512x64", {"16 cluster_split": 4.0, "FA3": 8.0}, element="float16")
    given = {"features": {"head_norm": True, "gate": True}, "flops": 6_000_000_000}
    us = {"16 cluster_split": 5.0, "FA3": 9.0, "two launches": 4.5}
    record = fake(label="gate", shapes=[bare, results("1x2x512x64", us, element="float16", **given)])
    artifact.layout.save(record, folder / "imaginary-gpu-gate.json", "entries")
    text = feature_tables.costs(folder)
    assert text.splitlines()[0].endswith("| against SDPA cuDNN | against two launches |")
    found = {row[0]: row[1:] for row in rows(text)}
    assert found["1x2x512x64"][0] == "head_norm gate" and found["1x2x512x64"][4] == "125%"
    assert [row[-1] for row in found.values()] == ["0.90", "-", "-"]


def test_a_wrong_output_is_neither_ours_nor_a_librarys(folder):
    path = folder / "imaginary-gpu-window.json"
    record = artifact.read(path)
    record["shapes"][1]["entries"][1]["error"]["right"] = False
    record["shapes"][1]["entries"][2]["error"]["right"] = False
    artifact.layout.save(record, path, "entries")
    found = {row[0]: row[1:] for row in rows(feature_tables.costs(folder))}
    assert found["1x2x4096x64"] == ["window=1023,0", "12", "30.0", "200", "38%", "-", "0.50", "-", "-"]


def test_bf16_stands_beside_fp16_where_one_run_has_both(folder):
    assert rows(feature_tables.elements(folder)) == [
        ["1x8x512x64", "12 mma_sync", "10.0", "10.1", "+1.0%"],
        ["1x8x512x64", "15 ping_pong", "20.0", "19.0", "-5.0%"],
    ]


def test_the_sentence_names_a_window_and_a_ragged_batch(folder):
    says = feature_tables.sentence(folder)
    assert "a window of 1024 keys takes 25% of the time of all 4096 at 1x2x4096x64" in says
    assert "a ragged batch of 2x2x3-5x64 reaches 80% of the rate of equal lengths" in says
    assert "is 1.10 times as fast as FlashAttention-3" in says


def test_without_such_a_run_there_is_nothing(fake, recorded):
    record = fake()
    artifact.save(record, recorded / artifact.file_name(record))
    assert feature_tables.costs() is feature_tables.elements() is feature_tables.sentence() is None
