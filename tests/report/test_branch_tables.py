"""The tables of eight bits and of several GPUs say what the recorded runs say."""

import json

from branches.ring.test_compare import made_up_backward

from flashcore_numba.records import artifact
from flashcore_numba.report import branch_tables

BACKWARD = "| backward, "  # how the second table of the ring begins


def recorded(operation):
    """Every workload of the operation, read without the code that writes the tables."""
    records = [json.loads(path.read_text()) for path in sorted(artifact.recorded_dir().glob("*.json"))]
    return [
        {"us": {e["label"]: e["gpu_us"]["p50"] for e in shape["entries"]}} | shape
        for record in records
        if record.get("operation") == operation
        for shape in record["shapes"]
    ]


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def agrees(text, number):
    digits = len(text.partition(".")[2].rstrip("%"))
    return abs(float(text.rstrip("%")) - number) <= max(0.51 * 10**-digits, 0.006 * number)


def test_a_row_of_the_ring_is_its_shape():
    shapes = recorded("ring")
    text, backward = branch_tables.ring().split(BACKWARD)
    assert len(rows(BACKWARD + backward)) == len(recorded("ring_backward")) > 1
    found = rows(text)
    assert len(found) == len(shapes) > 3
    torch, graphs = branch_tables.TORCH, branch_tables.TORCH_CAPTURED
    columns = {f"`{way}`": (way,) for way in branch_tables.WAYS} | {"torch": torch, "torch, captured": graphs}
    columns[branch_tables.CUDNN] = (branch_tables.CUDNN,)
    seen = {label for shape in shapes for label in shape["us"]}
    columns = {
        head: labels for head, labels in columns.items() if seen & {*labels}
    }  # the others are left out
    assert [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")][2:] == [*columns]
    for (name, alone, *cells), shape in zip(found, shapes, strict=True):
        assert name.startswith(shape["shape"]) and name.endswith("2 GPUs")
        us = shape["us"]
        assert agrees(alone, us[branch_tables.ALONE])
        wanted = [
            min((us[each] for each in labels if each in us), default=None) for labels in columns.values()
        ]
        for cell, time in zip(cells, wanted, strict=True):
            if time is None:
                assert cell == "-"
                continue
            text, share = cell.removesuffix(")").split(" (")
            assert agrees(text, time) and agrees(share, 200 * us[branch_tables.ALONE] / time)


def test_a_table_of_the_backward_pass(tmp_path):
    """Alone and with the forward pass, each beside one GPU that does as much."""
    record = made_up_backward()
    artifact.save(record, tmp_path / artifact.file_name(record))
    text = branch_tables.ring(tmp_path)
    head, _, row = (line for line in text.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.strip("|").split("|")][1:] == [
        "one GPU, its own rows", "`pull`", "one GPU, its own rows, with forward", "`pull`, with forward",
        "torch, with forward",
    ]  # fmt: skip
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "1x8/2x1024x64, causal, 2 GPUs", "90.0", "200 (90%)", "126", "280 (90%)", "420 (60%)",
    ]  # fmt: skip
    assert "forward and backward together, which is how torch's is timed" in text
    for path in artifact.recorded_dir().glob("*-ring-gpus-*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    forward = branch_tables.ring().split(BACKWARD)[0]
    assert branch_tables.ring(tmp_path) == forward + text


def test_a_row_of_eight_bits_is_its_shape():
    shapes = recorded("fp8")
    found = rows(branch_tables.fp8())
    assert len(found) == len(shapes) > 3
    by_name = {shape["shape"] + ", causal" * shape["causal"]: shape for shape in shapes}
    assert sorted(by_name) == sorted(row[0] for row in found)
    for name, time, rate, _, fa3, _, own, _ in found:
        shape = by_name[name]
        us = shape["us"]
        assert agrees(time, us["fp8/wgmma"]) and agrees(rate, shape["flops"] / us["fp8/wgmma"] / 1e6)
        assert agrees(fa3, us["FA3"] / us["fp8/wgmma"])
        assert agrees(own, us["attention, 16 bits"] / us["fp8/wgmma"])


def test_a_row_of_prepare_is_its_record():
    record = artifact.other("decode/prepare")
    found = rows(branch_tables.prepare())
    assert len(found) == len(record["rows"]) > 3
    for (tokens, *cells), row in zip(found, record["rows"], strict=True):
        assert int(tokens.replace(",", "")) == row["tokens"]
        for (time, share), kind in zip((cells[:2], cells[2:]), ("16 bits", "e4m3"), strict=True):
            us = row[kind]
            assert agrees(time, us["us"]) and agrees(share, 100 * us["copy"] / us["us"])
            assert us["us"] <= 1.01 * max(us["one_row"], us["two_rows"])


def test_without_records_there_is_none(tmp_path):
    assert all(table(tmp_path) is None for table in branch_tables.TABLES.values())
