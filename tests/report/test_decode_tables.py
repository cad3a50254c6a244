"""The tables of decoding say what the recorded runs say."""

import json
import re

import pytest

from flashcore_numba.records import artifact
from flashcore_numba.report import decode_tables, feature_tables


def recorded():
    """Every workload of decoding in the folder, read without the code that writes the tables."""
    files = sorted(artifact.recorded_dir().glob("nvidia-h*-decode*.json"))
    return [
        (record, shape)
        for record in map(json.loads, (f.read_text() for f in files))
        for shape in record["shapes"]
    ]


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def us(shape, label, clock="gpu_us"):
    (entry,) = (each for each in shape["entries"] if each["label"] == label)
    return entry[clock]["p50"]


def agrees(text, number):
    digits = len(text.partition(".")[2].rstrip("%"))
    return abs(float(text.rstrip("%")) - number) <= 0.51 * 10**-digits


@pytest.mark.long
def test_a_row_is_the_fastest_stage_of_its_workload():
    found = rows(decode_tables.one_token())
    assert len(found) > 20
    for gpu, shape, page, words, stage, warm, cold, rate, share, *against in found:
        (record, its) = next(
            (record, its)
            for record, its in recorded()
            if its["shape"] == shape
            and gpu in record["gpu"]["name"]
            and ("cache" in its.get("features", {})) == ("cache" in words)
            and ("batch_invariant" in its.get("features", {})) == ("batch_invariant" in words)
            and "tokens" not in its.get("features", {})
            and str(its.get("features", {}).get("page", 16)) == page
            and ("window" in its.get("features", {})) == ("window" in words)
            and (its["element"] == "bfloat16") == ("bfloat16" in words)
            and agrees(warm, us(its, stage))
        )
        stages = [each for each in its["entries"] if each["kind"] == "stage" and each["default"]]
        assert min(stages, key=lambda each: each["gpu_us"]["p50"])["label"] == stage
        assert all(each["error"]["right"] for each in its["entries"])
        bytes_a_us = its["kv_bytes"] / us(its, stage, "gpu_cold_us")
        assert agrees(cold, us(its, stage, "gpu_cold_us")) and agrees(rate, bytes_a_us / 1e6)
        assert agrees(share, bytes_a_us / 1e3 / record["ceilings"]["read_gbs"] * 100)
        for label, text in zip(decode_tables.PEERS, against, strict=True):
            assert text == "-" or agrees(text, us(its, label) / us(its, stage)), (shape, label)


def test_tokens_stand_beside_one_token():
    found = rows(decode_tables.tokens())
    ones = {shape: float(warm) for shape, tokens, _, warm, *_ in found if tokens == "1"}
    assert len(found) == 4 * len(ones) >= 12
    for shape, _, _, warm, _, share, *_ in found:
        assert float(share.rstrip("%")) == pytest.approx(100 * float(warm) / ones[shape], rel=0.02)


def test_lengths_stand_beside_equal_ones():
    text = decode_tables.lengths()
    labels = [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")][2:]
    assert {"decode/split", "decode/cluster", "FA3", "FlashInfer"} <= {*labels}
    found = [
        (shape, others, label, *re.fullmatch(r"([\d.]+) \((\d+)%\)", cell).groups())
        for shape, others, *cells in rows(text)
        for label, cell in zip(labels, cells, strict=True)
        if cell != "-"
    ]
    assert len({(shape, others, label) for shape, others, label, *_ in found}) == len(found) > 30
    for shape, others, label, warm, share in found:
        wanted = {"batch_invariant"} if others == "batch_invariant" else set()
        alike = [
            (record, its)
            for record, its in recorded()
            if {*its.get("features", {})} - {"page", "lengths"} == wanted
        ]
        record, its = next(pair for pair in alike if pair[1]["shape"] == shape)
        equal = next(one for run, one in alike if run is record and one["shape"] == its["equal_lengths"])
        own, other = (each["kv_bytes"] / us(each, label) / 1e6 for each in (its, equal))
        assert agrees(warm, us(its, label)) and agrees(share, 100 * own / other)
    assert {others for _, others, *_ in found} == {"-", "batch_invariant"}


def test_a_plan_made_before_stands_beside_its_own_run():
    found = rows(decode_tables.planned())
    assert len({row[0] for row in found}) == len(found) >= 6
    for shape, stage, warm, its_warm, cold, its_cold, faster, faster_cold, fa3 in found:
        (its,) = (
            each
            for _, each in recorded()
            if each["shape"] == shape and any(entry["label"] == "FlashInfer" for entry in each["entries"])
        )
        best = min(
            (each for each in its["entries"] if each["kind"] == "stage" and each["default"]),
            key=lambda each: each["gpu_us"]["p50"],
        )
        assert stage == best["label"] and "lengths" not in its["features"]
        assert agrees(warm, us(its, stage)) and agrees(cold, us(its, stage, "gpu_cold_us"))
        peer, its_own = us(its, "FlashInfer"), us(its, "FlashInfer", "gpu_cold_us")
        assert agrees(its_warm, peer) and agrees(its_cold, its_own)
        assert agrees(faster, peer / us(its, stage)) and agrees(fa3, us(its, "FA3") / us(its, stage))
        assert agrees(faster_cold, its_own / us(its, stage, "gpu_cold_us"))


def test_the_sentence_is_the_tables():
    text = decode_tables.sentence()
    pattern = r"at (\S+) reads .* at ([\d.]+)% .* is ([\d.]+) times as fast as FlashAttention-3; at (\S+)"
    large, share, faster, small = re.search(pattern, text).groups()
    taken, much_faster = re.search(r"it takes ([\d.]+) µs and is ([\d.]+) times as fast", text).groups()
    by_row = {(row[1], row[2]): row[1:] for row in rows(decode_tables.one_token()) if row[0] == "H200"}
    assert by_row[large, "16"][7:9] == [f"{share}%", faster]
    assert [by_row[small, "16"][4], by_row[small, "16"][8]] == [taken, much_faster]


def test_a_table_of_one_gpu_does_not_name_it():
    """A row says which GPU it is of where there are several."""
    head, lines = ["GPU", "shape"], [["H100", "a"], ["H200", "a"]]
    assert feature_tables.of_several_gpus(head, lines) == (head, lines)
    assert feature_tables.of_several_gpus(head, lines[:1]) == (["shape"], [["a"]])


def test_without_a_run_there_is_nothing(tmp_path):
    assert all(make(tmp_path) is None for make in (*decode_tables.TABLES.values(), decode_tables.sentence))


def test_a_library_without_a_cold_time_has_a_row(tmp_path):
    """As a launch of more than 4 ms has none."""
    name = "nvidia-h200-decode-flashinfer-causal.json"
    record = json.loads((artifact.recorded_dir() / name).read_text())
    (planned,) = (e for e in record["shapes"][0]["entries"] if e["label"] == "FlashInfer")
    planned["gpu_cold_us"] = None
    (tmp_path / name).write_text(json.dumps(record))
    found = {row[0]: row for row in rows(decode_tables.planned(tmp_path))}
    warm, cold = found[record["shapes"][0]["shape"]], found[record["shapes"][1]["shape"]]
    assert warm[5] == warm[7] == "-" and float(warm[6]) > 0
    assert float(cold[5]) > 0 and float(cold[7]) > 0
