"""Timing on a real GPU: what is replayed is what is checked, and the two clocks make sense."""

import importlib.util
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from matrix import first_of_each
from rich.console import Console

from flashcore_numba import cli
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.find import find
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import oracle
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape, parse_any
from flashcore_numba.core.workload import CONTIGUOUS, Workload, options
from flashcore_numba.measure import peers
from flashcore_numba.measure.compare import compare
from flashcore_numba.measure.entries import Flush, StageEntry
from flashcore_numba.measure.sensors import Sensors
from flashcore_numba.measure.timing import calibrate, measure_cold
from flashcore_numba.records import artifact, environment
from flashcore_numba.report import pictures
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import runs

# What PyTorch, Triton or a peer warns about is theirs, and must not look like a peer that failed.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SHAPE = Shape(2, 4, 256, 64)
PEERS = {*FORWARD.peers()} - {peers.TWO_LAUNCHES}  # which are beside a norm or a gate only


@pytest.fixture
def quiet():
    return Progress(Console(file=io.StringIO()))


@pytest.fixture
def stream():
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def _problem(host, stream, causal=False):
    import cupy

    with stream:
        problem = Problem(*(cupy.asarray(x) for x in host), causal=causal)
    stream.synchronize()
    return problem


@pytest.mark.parametrize("run", first_of_each(runs(LADDER), lambda run: run.stage), ids=lambda run: run.label)
def test_what_a_graph_replays_is_right(run, rng, stream):
    from flashcore_numba.measure.clock import GpuClock

    host = SHAPE.inputs(rng)
    entry = StageEntry(run, _problem(host, stream), stream)
    calibrate(entry, GpuClock(stream))
    entry.poison()
    assert all(np.isnan(outputs["out"]).all() for outputs in entry.outputs())
    entry.replay()
    if entry.call:
        with entry.active():
            entry.call()
    expected, _ = oracle.attention(*host)
    for outputs in entry.outputs():
        assert np.abs(outputs["out"] - expected).max() < 1e-3


@pytest.mark.alone
def test_a_launch_costs_the_same_in_short_and_long_graphs(rng, stream):
    from flashcore_numba.measure.clock import GpuClock

    entry, clock = StageEntry(runs(LADDER)[-1], _problem(SHAPE.inputs(rng), stream), stream), GpuClock(stream)
    seen = []
    for launches in (100, 400):
        entry.capture(launches)
        entry.launches = launches
        clock.replays(entry, 3)
        seen.append(float(np.median(clock.replays(entry, 9))))
    assert seen[0] == pytest.approx(seen[1], rel=0.15)
    # The caller waits for Python and the launch as well as for the kernel.
    assert np.median(clock.calls(entry, 20)) > seen[1]


def test_every_peer_is_timed_right_or_says_why(rng, stream, quiet):
    record = compare(LADDER[:1], [[Workload(SHAPE)], [Workload(SHAPE, True)]], 5, quiet)
    artifact.validate(record)
    for shape in record["shapes"]:
        timed = {entry["label"] for entry in shape["entries"] if entry["kind"] == "peer"}
        assert timed | {*shape["absent"]} == PEERS
        assert all(entry["error"]["right"] for entry in shape["entries"])
        assert all(entry["caller_us"]["n"] >= 5 for entry in shape["entries"])
        assert all(reason for reason in shape["absent"].values())


@pytest.mark.parametrize("shape", [SHAPE, Shape(2, 4, 256, 128, kv_heads=2)], ids=str)
def test_every_peer_of_the_backward_pass_is_timed_right_or_says_why(shape, quiet):
    stage = BACKWARD.ladder()[0]
    record = compare([stage], [[Workload(shape)], [Workload(shape, True)]], 5, quiet)
    artifact.validate(record)
    for each in record["shapes"]:
        timed = {entry["label"] for entry in each["entries"] if entry["kind"] == "peer"}
        assert timed | {*each["absent"]} == {*BACKWARD.peers()}
        wrong = [entry["label"] for entry in each["entries"] if not entry["error"]["right"]]
        assert not wrong
        assert all(reason for reason in each["absent"].values())


def all_right_or_absent(operation, x, problem, arrays, stream, rng):
    """Every peer of the operation is right, captured and called plainly, or says why it is not there."""
    found, absent = peers.prepare(operation, problem, arrays, stream)
    assert {entry.label for entry in found} | {*absent} == {*operation.peers()}
    right = truth(operation, x, rng)
    for entry in found:
        entry.capture(1)
        entry.poison()
        with entry.active():
            entry.replay()
            entry.call()
        judged = right.judge(entry.outputs(), peer=True)
        assert judged["right"], (entry.label, judged["reason"])


@pytest.mark.parametrize("features", ["window=40,0", "softcap=20", "seqused_k"])
def test_a_peer_of_the_backward_pass_has_a_feature_or_says_why(features, stream):
    """Without a stage, because which of them serves a feature is another question."""
    import cupy

    rng = np.random.default_rng()
    workload = Workload(Shape(2, 4, 256, 64), causal=True, **options(features))
    x = BACKWARD.draw(workload.arrays, True, rng, features=workload.features(rng))
    with stream:
        arrays = {name: cupy.asarray(each) for name, each in x.arrays.items()}
        problem = x.problem(arrays)
    all_right_or_absent(BACKWARD, x, problem, arrays, stream, rng)


@pytest.mark.parametrize("shape", ["2x8/2x300x64", "3x8/1x9-700x128", "1x16/2x256x256"])
def test_every_peer_of_decoding_is_timed_right_or_says_why(shape, quiet):
    """With pages and without, with one token and some: bottom-right, whatever a library's flag means."""
    group = [
        Workload(parse_any(shape), True, tokens=tokens, page=page)
        for tokens in (1, 3)
        for page in (16, CONTIGUOUS)
    ]
    record = compare(DECODE.ladder()[1:], [group], 5, quiet)
    artifact.validate(record)
    assert record["ceilings"]["read_gbs"] > record["ceilings"]["dram_gbs"] / 2
    for each in record["shapes"]:
        timed = {entry["label"] for entry in each["entries"] if entry["kind"] == "peer"}
        assert timed | {*each["absent"]} >= {*DECODE.peers()}
        wrong = [entry["label"] for entry in each["entries"] if not entry["error"]["right"]]
        assert not wrong, (each["shape"], each["features"])
        if importlib.util.find_spec("torch") and "equal_lengths" not in each:
            compiled = {"FlexAttention"} if parse_any(each["shape"]).head_dim <= 128 else set()
            assert {"SDPA flash"} | compiled <= timed, each["absent"]


@pytest.mark.parametrize("features", ["window=40,0", "softcap=20", "sinks", "seqused_k", "window=99,0 sinks"])
@pytest.mark.parametrize("page", [16, 64, CONTIGUOUS])
def test_a_peer_of_decoding_has_a_feature_or_says_why(features, page, stream):
    import cupy

    rng = np.random.default_rng()
    workload = Workload(Shape(3, 8, 400, 64, kv_heads=2), True, **options(features), tokens=2, page=page)
    x = DECODE.draw(workload.arrays, True, rng, features=workload.features(rng), **workload.chosen)
    with stream:
        arrays = {name: cupy.asarray(each) for name, each in x.arrays.items()}
        problem = x.problem(arrays)
    stream.synchronize()  # lengths and table are read before anything is launched
    all_right_or_absent(DECODE, x, problem, arrays, stream, rng)


@pytest.mark.parametrize(
    "features",
    ["none", "window=40,0", "softcap=20", "sinks", "alibi_slopes", "seqused_k", "softcap=20 sinks"],
)
def test_every_peer_has_a_feature_or_says_why(features, quiet):
    ragged = Workload(Shape(4, 4, 256, 64, kv_heads=2, shortest=64), causal=True, **options(features))
    record = compare([find(12)], [[ragged]], 5, quiet)
    for shape in record["shapes"]:
        timed = {entry["label"] for entry in shape["entries"] if entry["kind"] == "peer"}
        assert timed | {*shape["absent"]} == PEERS
        wrong = [entry["label"] for entry in shape["entries"] if not entry["error"]["right"]]
        assert not wrong, shape["features"]


def test_pytorch_peers_are_there_where_pytorch_is(rng, stream):
    problem = _problem(Shape(1, 8, 512, 64).inputs(rng), stream)
    arrays = {name: getattr(problem, name) for name in "qkv"}
    found, absent = peers.prepare(FORWARD, problem, arrays, stream)
    expected = {"SDPA flash", "SDPA efficient", "SDPA math"} if importlib.util.find_spec("torch") else set()
    assert expected <= {entry.label for entry in found}, absent


def test_a_stage_that_leaves_rows_out_is_reported_wrong(quiet):
    def first_batch_only(problem, out, executor, lse=None, variant=None):
        part = Problem(problem.q[:1], problem.k[:1], problem.v[:1])
        LADDER[0].launch(part, out[:1], executor)

    record = compare([replace(LADDER[0], launch=first_batch_only)], [[Workload(SHAPE)]], 5, quiet)
    wrong = record["shapes"][0]["entries"][0]
    assert wrong["label"] == LADDER[0].label
    assert wrong["error"]["right"] is False
    assert "NaN" in wrong["error"]["reason"]


def test_the_command_saves_artifact_and_picture(tmp_path, capsys):
    name = LADDER[-1].name
    arguments = ["compare", name, "--shape", "1x4x128x64", "--rounds", "5", "--save", str(tmp_path), "--json"]
    assert cli.main(arguments) == 0
    record = json.loads(capsys.readouterr().out)
    (file,) = tmp_path.glob("*.json")
    assert artifact.load(file) == record
    assert pictures.ladder_beside((file, record), artifact.recorded()).stale(tmp_path) == []
    stages = [entry for entry in record["shapes"][0]["entries"] if entry["kind"] == "stage"]
    assert {entry["stage"] for entry in stages} == {LADDER[-1].number}
    assert all(kernel["registers"] for entry in stages for kernel in entry["resources"])
    assert all(entry["gpu_us"]["n"] >= 5 for entry in stages)


def test_sensors_read_this_gpu_or_say_why():
    import cupy

    sensors = Sensors(cupy.cuda.Device().pci_bus_id)
    reading = sensors.read()
    if sensors.why_not:
        assert reading is None
    else:
        assert 100 < reading.sm_mhz < 4000


@pytest.mark.alone
def test_a_cold_l2_costs_what_memory_takes(rng, stream):
    """The flush is not in the time: it takes longer than the kernel. The way to device memory is."""
    from flashcore_numba.measure.clock import GpuClock

    run = next(run for run in reversed(runs(LADDER)) if run.is_default)
    entry, clock = (
        StageEntry(run, _problem(Shape(1, 8, 512, 64).inputs(rng), stream), stream),
        GpuClock(stream),
    )
    flush = Flush(stream, environment.gpu()["l2_bytes"])
    pair = entry.cold(flush)
    for timed in (entry, flush, pair):
        calibrate(timed, clock)
    warm = np.median(clock.replays(entry, 9))
    (rounds,) = measure_cold([pair], flush, clock)
    cold = np.median(rounds)
    assert flush.launch_us > 1.5 * entry.launch_us
    assert warm < cold < warm + 0.5 * flush.launch_us


@pytest.mark.alone
def test_keys_of_decoding_come_from_the_l2_or_from_memory(quiet):
    """33 MB stay in the L2 of an H100 or H200 from launch to launch, and are not there after a flush."""
    group = [Workload(parse_any("1x64/8x8192x128"))]
    record = compare([find("decode/cluster")], [group], 5, quiet, only_peers=())
    (entry,) = (each for each in record["shapes"][0]["entries"] if each["default"])
    assert entry["gpu_cold_us"]["p50"] > entry["gpu_us"]["p50"]


@pytest.mark.alone
def test_variants_ceilings_and_sensors_are_in_the_artifact(quiet):
    stage = next(stage for stage in LADDER if len(stage.variants) > 1)
    record = compare([stage], [[Workload(SHAPE)], [Workload(Shape(1, 4, 128, 64))]], 5, quiet, label="try")
    first, second = ([e for e in s["entries"] if e["kind"] == "stage"] for s in record["shapes"])
    assert {entry["variant"] for entry in first} == set(stage.variants)
    assert [entry["default"] for entry in second] == [True]
    assert record["ceilings"] is None or record["ceilings"]["fp32_tflops"] > 1
    for entry in first + second:
        times = entry["gpu_us"]
        assert len(times["rounds_us"]) == 5
        assert times["ci"]["low"] <= times["p50"] <= times["ci"]["high"]
        assert (entry["gpu_cold_us"] is None) == (not entry["default"])
        assert (entry["throttled"] is None) == (record["clocks_why_not"] is not None)
