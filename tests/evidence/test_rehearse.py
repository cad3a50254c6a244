"""A comparison without a GPU shows the recorded time of every stage that has one."""

import io

import pytest
from rich.console import Console

from flashcore_numba.branches.find import select
from flashcore_numba.core.shapes import parse, parse_any
from flashcore_numba.evidence import rehearse
from flashcore_numba.records import artifact
from flashcore_numba.report.tables import rates_lines
from flashcore_numba.run.progress import Progress


@pytest.fixture
def rehearsed(monkeypatch):
    """What is found of stages at a shape, without the checks and the counts."""
    monkeypatch.setattr(rehearse, "simulated", lambda stages: ([], []))

    def run(stage, shape, causal):
        chosen = [(parse_any(shape), causal)]
        quiet = Progress(Console(file=io.StringIO()))
        return rehearse.rehearse(select(stage), chosen, parse("1x1x64x64"), quiet)

    return run


@pytest.mark.parametrize(
    ("stage", "shape", "causal", "label"),
    [
        ("15", "1x32/8x8192x128", True, "15 ping_pong"),
        ("12", "4x16x4096x192/128", False, "12 mma_sync"),
        ("15", "16x32/8x128-8192x128", True, "15 ping_pong"),
        ("15", "1x32x16384x128", True, "15 ping_pong"),
        ("decode/split", "8x64/8x8192x128", True, "decode/split"),
        ("fp8", "2x64/8x8192x128", False, "fp8/wgmma"),
        ("7", "4x32x4096x64", False, "07 wmma_qk"),  # newer runs of that shape lack it
        ("14", "64x16x128x64", False, "14 tma_wgmma"),
    ],
)
def test_a_recorded_time_is_shown(rehearsed, stage, shape, causal, label) -> None:
    found = rehearsed(stage, shape, causal)
    assert not found.not_recorded
    ((_, timed),) = found.recorded
    assert timed["shape"] == shape
    assert label in {entry["label"] for entry in timed["entries"]}


def test_the_rate_of_a_ragged_batch_is_beside_that_of_equal_lengths(rehearsed) -> None:
    ((record, timed),) = rehearsed("15", "16x32/8x128-8192x128", True).recorded
    (line,) = rates_lines(record, timed)
    assert line.startswith("TFLOP/s (of the rate at 16x32/8x4483x128): 15 ping_pong ")


def test_of_equals_the_first_is_shown_and_another_cache_is_no_equal(rehearsed, fake, recorded) -> None:
    for date in ("2001-01-01T00:00:00Z", "2002-01-01T00:00:00Z"):
        record = fake(date=date, label=f"of-{date[:4]}")
        record["shapes"] *= 2
        record["shapes"][1] = record["shapes"][0] | {"shape": "2x4/2x512x64", "features": {"page": 32}}
        artifact.save(record, recorded / artifact.file_name(record))
    ((record, _),) = rehearsed("5", "mission", False).recorded
    assert record["date"].startswith("2002")
    (sentence,) = rehearsed("5", "2x4/2x512x64", False).not_recorded
    assert "No times are recorded for 2x4/2x512x64. " in sentence
