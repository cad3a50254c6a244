"""Evidence: the values that questions and lessons quote are those of the simulator and of the record."""

import copy

import pytest

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.evidence import MISSION, Evidence
from flashcore_numba.evidence import extracts, profile
from flashcore_numba.evidence.counts import count
from flashcore_numba.records import artifact, layout
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run, runs

SMALL = "1x1x64x64"


@pytest.fixture
def evidence():
    return Evidence()


def test_counts_are_those_of_a_run(evidence, rng):
    counted = count(Run(find(2), None), parse(SMALL), causal=True, rng=rng)
    assert evidence.count(2, "global_bytes", SMALL, causal=True) == counted.moved()["global_bytes"]
    assert evidence.count("coalesced", "fma32", SMALL, causal=True) == counted.totals()["fma32"]


def test_a_variant_is_counted_as_itself(evidence):
    own = evidence.count(6, "barriers", SMALL)
    assert own == evidence.count(6, "barriers", SMALL, variant="register_tiles")
    assert own != evidence.count(6, "barriers", SMALL, variant="kv_outer_local")


def test_a_line_is_named_by_its_access_or_its_source(evidence):
    # One thread a row: a warp stores 32 neighbouring float32, four sectors, for each of 64 keys and 2 blocks.
    of = ("store", "sectors", SMALL)
    assert evidence.line(2, "scores[b, h, j, row]", *of) == 4 * 64 * 2
    assert evidence.line(2, "scores[b, h, j, row] = score", *of) == 4 * 64 * 2
    assert evidence.line(2, "scores[b, h, j, row]", "store", "sectors/request", SMALL) == 4
    assert evidence.line(2, "scores[b, h, j, row]", "store", "used", SMALL) == 1
    assert evidence.line(5, "k_smem, (key, c)", "load", "wavefronts/request", SMALL) == 4
    assert evidence.line(5, "k_smem, (key, c)", "load", "degree", SMALL) == 1


@pytest.mark.long
def test_every_recorded_time_is_found(evidence):
    first: dict = {}  # of several runs at a shape, the first counts: the ladder's before a labelled one
    for _, record in artifact.recorded():
        for shape in record["shapes"]:
            first.setdefault((shape["shape"], shape["causal"]), shape)
    for (name, causal), shape in first.items():
        for entry in shape["entries"]:
            at = (entry["label"], name, causal)
            assert evidence.us(*at) == entry["gpu_us"]["p50"]
            # Made from a limit and a median of seven digits, while the recorded share has five.
            recorded = pytest.approx(entry["share_of_limit"], rel=1.1 * layout.ROUNDING)
            assert evidence.share(*at) == recorded
    assert evidence.us(5) == evidence.us("05 online_softmax") == evidence.us(5, "mission")
    assert evidence.ratio(1, 5) == evidence.us(1) / evidence.us(5)
    assert evidence.local("06 kv_outer_local") > 0 == evidence.spilled(6)


def test_variants_may_have_a_run_of_their_own(evidence, monkeypatch):
    ladder, own = copy.deepcopy(evidence.recorded()[0]), copy.deepcopy(evidence.recorded()[0])
    (shape,) = own["shapes"] = [artifact.find_shape(own, MISSION)]
    for entry in shape["entries"]:
        entry["gpu_us"]["p50"] *= 2
    first = artifact.find_shape(ladder, MISSION)
    first["entries"] = [entry for entry in first["entries"] if entry["default"]]
    before = evidence.us(6), evidence.us("06 q_outer")
    monkeypatch.setattr("flashcore_numba.course.evidence._records", lambda _: (ladder, own))
    assert (evidence.us(6), evidence.us("06 q_outer")) == (before[0], 2 * before[1])
    assert evidence.recorded()[0] is ladder


def test_a_live_time_takes_the_place_of_the_recorded_one(evidence):
    live = Evidence({"05 online_softmax": 12.5})
    assert live.us(5) == live.us(5, MISSION) == 12.5
    assert live.us(5, "large") == evidence.us(5, "large")
    assert live.us(4) == evidence.us(4)


def test_a_profiled_figure_is_the_recorded_one(evidence):
    extract = extracts.recorded()[0]
    where = extract["shape"], extract["causal"]
    seen = 0
    for run in runs(LADDER):
        found = profile.find(run, extract)
        if not found:
            continue
        for counter, value in found["traffic"].items():
            assert evidence.profiled(run.label, counter, *where) == value
        if len(found["kernels"]) == 1:
            assert evidence.profiled(run.label, "registers", *where) == found["kernels"][0]["registers"]
            for reason, share in found["kernels"][0]["stalls"].items():
                assert evidence.stalled(run.label, reason, *where) == share
            seen += 1
        else:
            with pytest.raises(ArgumentError, match="accepted are global_load_requests"):
                evidence.profiled(run.label, "registers", *where)
    assert seen


def test_closed_forms(evidence):
    assert evidence.flops(SMALL) == 4 * 64 * 64 * 64
    assert evidence.pairs(SMALL, causal=True) == sum(range(1, 65))
    assert evidence.min_bytes("2x3x64x64") == 4 * 2 * 2 * 3 * 64 * 64


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda e: e.profiled(12, "speed"),
            r"speed.* of 12 mma_sync: accepted are global_load",
        ),
        (
            lambda e: e.profiled(12, "barriers", "1x1x17x64"),
            r"12 mma_sync is not profiled at 1x1x17x64",
        ),
        (
            lambda e: e.profiled("12 tiny", "barriers"),
            r"12 tiny is not profiled at 1x8x512x64, .*nothing",
        ),
        (lambda e: e.stalled(1, "fatigue"), r"stall 'fatigue' of 01 scalar: accepted are long_scoreboard"),
        (lambda e: e.stalled("13 two_splits", "wait"), r"stall 'wait' of .*accepted are none, it has"),
        (lambda e: e.count(99, "barriers"), r"stage 99 is not in the ladder: accepted are 01 scalar"),
        (lambda e: e.count(6, "barriers", variant="x"), r"variant 'x' of stage 06.*: accepted are q_outer"),
        (lambda e: e.count(2, "sectors", SMALL), r"count 'sectors' of stage 2: accepted are .*global_bytes"),
        (lambda e: e.line(2, "x", "load", "bits", SMALL), r"field 'bits': accepted are requests"),
        (lambda e: e.line(2, "nowhere", "load", "sectors", SMALL), r"nowhere' of stage 2 is counted nowhere"),
        (lambda e: e.line(1, "scores[b, h, row, j]", "load", "sectors", SMALL), r"could be any of these"),
        (lambda e: e.line(5, "p_smem[", "store", "sectors", SMALL), r"p_smem\[warp, lane\] is shared memory"),
        (lambda e: e.us("05 online"), r"label '05 online' is not in the recorded run: it has 01 scalar"),
        (lambda e: e.us(5, "1x1x99x64"), r"shape 1x1x99x64 is not recorded: there are"),
        (lambda e: e.us(5, "wide"), r"shape 'wide': accepted are BxHxSxD"),
        (lambda e: e.limit("light"), r"limit 'light': accepted are fp32, tensor, exp, memory"),
        (lambda e: e.registers("FA4"), r"FA4: the recorded run has no registers of it"),
        (lambda e: e.caller_us("06 q_outer"), r"06 q_outer has no recorded caller's time"),
    ],
)
def test_what_is_unknown_is_named(evidence, call, says):
    with pytest.raises(ArgumentError, match=says):
        call(evidence)
