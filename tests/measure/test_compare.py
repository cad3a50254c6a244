"""The whole of `compare`, on a stand-in for CuPy whose kernels run on the simulator.

It shows what a real GPU's timing would: not the times, but the order of events, the verdicts and the files.
"""

import io
import itertools
import json
import math
import sys
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import toy_operation
from rich.console import Console

from flashcore_numba import cli
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.find import select as select_any
from flashcore_numba.cli import selection
from flashcore_numba.core import gpu
from flashcore_numba.core.element import named
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.core.workload import CONTIGUOUS, Workload
from flashcore_numba.measure import ceilings, compare, timing
from flashcore_numba.measure.peers import PEERS, TWO_LAUNCHES
from flashcore_numba.measure.sensors import Reading
from flashcore_numba.records import artifact
from flashcore_numba.report import pictures
from flashcore_numba.run import executor, registers
from flashcore_numba.run.progress import Progress
from flashcore_numba.run.registers import like, why_not
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find, select
from flashcore_numba.stages.runs import Run, runs

CEILINGS = dict.fromkeys(ceilings.NAMES, 1.5)
TRIED = {*PEERS} - {TWO_LAUNCHES}  # where nothing follows attention


class Array(np.ndarray):
    def get(self):
        return np.array(self)


class Stream:
    ptr, recording = 1, None

    def __init__(self, non_blocking=False):
        assert non_blocking

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def synchronize(self):
        assert self.recording is None, "waiting inside a capture is an error on a GPU"

    def begin_capture(self):
        self.recording = []

    def end_capture(self):
        launches, self.recording = self.recording, None
        return SimpleNamespace(launch=lambda stream: [launch() for launch in launches])


class Event:
    def record(self, stream):
        self.at = time.perf_counter()


class Gpu(executor.Simulator):
    """Runs a launch at once, or in a capture keeps it for the replays."""

    def __init__(self, stream):
        super().__init__(races=False, ops=False)
        self.stream = stream

    def launch(self, *args, **options):
        if self.stream.recording is None:
            super().launch(*args, **options)
        else:
            self.stream.recording.append(lambda: executor.Simulator.launch(self, *args, **options))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    cupy = ModuleType("cupy")
    cupy.asarray, cupy.nan, cupy.float16 = lambda x: np.array(x).view(Array), np.nan, np.float16
    cupy.float32 = np.float32
    cupy.full = lambda *args: np.full(*args).view(Array)
    device = SimpleNamespace(id=0, pci_bus_id="0", mem_info=(1, 2))
    runtime = SimpleNamespace(
        deviceGetAttribute=lambda number, _: {13: 10**6, 16: 8, 36: 10**6, 37: 256, 38: 1, 75: 9, 76: 0}[
            number
        ],
        runtimeGetVersion=lambda: 13000,
    )
    cupy.cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        Device=lambda *_: device,
        runtime=runtime,
        get_elapsed_time=lambda start, stop: (stop.at - start.at) * 1e3,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "flashcore_numba.measure.clock", raising=False)
    monkeypatch.setattr(executor, "Gpu", Gpu)
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(gpu, "name", lambda device: "Stand-in GPU")
    monkeypatch.setattr(timing, "REPLAY_US", 1.0)
    monkeypatch.setattr(timing, "REPLAYS", 2)
    monkeypatch.setattr(ceilings, "measure", lambda clock, on_step: CEILINGS)
    yield
    sys.modules.pop("flashcore_numba.measure.clock", None)


@pytest.mark.long
def test_from_launches_to_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "LONGEST_COLD_US", 1e9)
    monkeypatch.setattr(timing, "COLD_ROUNDS", 1)
    arguments = ["compare", "1", "3", "--shape", "1x2x9x64", "--causal", "--rounds", "5", "--label", "tiny"]
    assert cli.main([*arguments, "--save", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    file = tmp_path / "stand-in-gpu-tiny-causal.json"
    assert artifact.load(file) == record
    assert (record["label"], record["ceilings"]) == ("tiny", CEILINGS)
    assert pictures.ladder_beside((file, record), artifact.recorded()).stale(tmp_path) == []
    (shape,) = record["shapes"]
    assert (shape["shape"], shape["causal"]) == ("1x2x9x64", True)
    assert [entry["label"] for entry in shape["entries"]] == ["01 scalar", "03 warp_reduction"]
    for entry in shape["entries"]:
        assert entry["rounds"] == 5
        assert entry["error"]["right"]
        assert entry["error"]["heads_checked"] == 2
        assert entry["caller_us"]["n"] == 5
        assert len(entry["gpu_us"]["rounds_us"]) == 5
        assert entry["gpu_cold_us"]["n"] == timing.REPLAYS
        assert entry["throttled"] is None, "there are no sensors"
    assert set(shape["absent"]) == TRIED


@pytest.mark.parametrize("wrong", ["neither", "the warm replays", "the cold ones"])
def test_outputs_of_warm_and_of_cold_replays_are_judged(wrong, monkeypatch):
    """Neither hides what the other has written, or has not."""

    def warm(entries, *rest):
        times = timing.measure(entries, *rest)
        if wrong == "the warm replays":
            entries[0].replayed["out"].fill(0)
        return times

    def cold(entries, *rest):
        if wrong == "the cold ones":
            return [[[1.0]] * 5 for _ in entries]
        return timing.measure_cold(entries, *rest)

    monkeypatch.setattr(compare, "registers", lambda *args: None)
    monkeypatch.setattr(compare, "LONGEST_COLD_US", 1e9)
    monkeypatch.setattr(compare, "measure", warm)
    monkeypatch.setattr(compare, "measure_cold", cold)
    workloads = [[Workload(Shape(1, 1, 9, 64))]]
    found = compare.compare([find(1)], workloads, 5, quiet(), only_peers=[])
    (entry,) = found["shapes"][0]["entries"]
    assert entry["error"]["right"] is (wrong == "neither")


@pytest.mark.long
def test_two_element_types_are_interleaved(tmp_path, capsys, monkeypatch):
    order = []

    def noted(entries, *rest):
        order.extend((entry.label, entry.problem.element.name) for entry in entries)
        return timing.measure(entries, *rest)

    monkeypatch.setattr(compare, "measure", noted)
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    both = ["--element", "bfloat16", "--element", "float16"]
    arguments = ["compare", "5", "12", "--shape", "1x2x9x64", "--rounds", "5", *both, "--save", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert "1x2x9x64, bfloat16" in capsys.readouterr().out
    file = tmp_path / "stand-in-gpu.json"
    first, second = artifact.load(file)["shapes"]
    assert (first["element"], second["element"]) == ("float16", "bfloat16")
    labels = [[entry["label"] for entry in shape["entries"] if entry["default"]] for shape in (first, second)]
    assert labels == [["05 online_softmax", "12 mma_sync"], ["12 mma_sync"]]
    assert "does not serve bfloat16, only float16" in second["absent"]["05 online_softmax"]
    assert all(entry["error"]["right"] for shape in (first, second) for entry in shape["entries"])
    assert order.index(("12 mma_sync", "bfloat16")) > order.index(("05 online_softmax", "float16"))
    for name in ("float16", "bfloat16"):
        assert not artifact.recorded(tmp_path, named(name)), "it compares types, and has a table of its own"
    assert artifact.find_shape(artifact.load(file), "1x2x9x64") == first
    with pytest.raises(SystemExit):
        cli.main([*arguments[:2], "--element", "float64"])
    assert cli.main([*arguments[:2], *both[:2]]) == 2
    assert "--element bfloat16: none of these stages serves it" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    "words, tried",
    [
        (["--peer", "FA4", "--peer", "SDPA cuDNN"], {"FA4", "SDPA cuDNN"}),
        (["--peer", "none"], set()),
        ([], TRIED),
    ],
)
def test_only_the_peers_that_are_named_are_tried(words, tried, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    arguments = ["compare", "1", "--shape", "1x1x9x64", "--rounds", "5", "--save", str(tmp_path)]
    assert cli.main([*arguments, *words]) == 0
    (shape,) = artifact.load(tmp_path / "stand-in-gpu.json")["shapes"]
    assert set(shape["absent"]) == tried


def test_a_peer_that_is_not_there_is_refused(capsys):
    assert cli.main(["compare", "1", "--peer", "FA5"]) == 2
    assert (
        "peer 'FA5' is not one of forward's: accepted are SDPA flash, SDPA cuDNN" in capsys.readouterr().err
    )


@pytest.mark.long
def test_an_operation_of_ones_own_is_compared():
    """With its own answer, work and outputs; it has no caller's side and no peers."""
    progress = Progress(Console(file=io.StringIO()))
    for kernel, right in ((toy_operation.row_softmax, True), (toy_operation.last_row_left_out, False)):
        stage = replace(toy_operation.STAGE, launch=toy_operation.launcher(kernel))
        record = compare.compare([stage], [[Workload(Shape(1, 1, 33, 64))]], 5, progress)
        (shape,) = record["shapes"]
        (entry,) = shape["entries"]
        assert (entry["label"], entry["stage"], entry["unit"]) == (stage.label, None, "fp32")
        assert entry["error"]["right"] is right
        assert entry["caller_us"] is None and shape["absent"] == {} and shape["scale"] is None
        assert len(entry["gpu_us"]["rounds_us"]) == 5
        assert entry["speed_up"] == {"stage_01": None, "best_peer": None}


GRADIENTS = [("2", []), ("2/1", ["--features", "window=8,0"])]


@pytest.mark.long
@pytest.mark.parametrize("heads, words", GRADIENTS)
def test_the_backward_pass_is_compared(heads, words, tmp_path, capsys, monkeypatch):
    """With its three gradients, its caller's side and its own peers, into an artifact that says so."""
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    monkeypatch.setattr(timing, "CALLS", 1)
    monkeypatch.setattr(timing, "REPLAYS", 1)
    arguments = ["compare", "backward/recompute", "--shape", f"1x{heads}x20x64", "--rounds", "5"]
    assert cli.main([*arguments, "--causal", *words, "--save", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()  # and no picture, which is of the forward pass
    assert file.name == "stand-in-gpu-backward-causal.json"
    record = artifact.load(file)
    (shape,) = record["shapes"]
    assert record["operation"] == "backward" and set(shape["absent"]) == set(BACKWARD.peers())
    assert shape["flops"] == 10 * 64 * 2 * _pairs(20, shape.get("features", {}))
    labels = [run.label for run in runs(select_any("backward/recompute"))]
    assert [entry["label"] for entry in shape["entries"]] == labels
    for entry in shape["entries"]:
        assert entry["error"]["right"] and entry["stage"] is None
        assert entry["error"]["heads_checked"] == entry["error"]["heads"] == int(heads[-1])
        assert (entry["caller_us"] is not None) == entry["default"]
    shown = capsys.readouterr().out
    assert f"backward, 1x{heads}x20x64, causal" in shown and "TFLOP/s: backward/recompute" in shown
    assert " x peer " in shown and " x 01 " not in shown
    assert artifact.recorded(tmp_path) == [], "tables and pictures are of the forward pass"


DECODING = [
    ("1x2/1x30x64", ["--tokens", "2", "--page", "7"]),
    ("3x4/2x9-30x64", ["--page", "contiguous", "--page", "16", "--features", "window=8,0 sinks"]),
    ("2x2/1x20x64", ["--tokens", "1", "--tokens", "3", "--features", "seqused_k"]),
]


@pytest.mark.long
@pytest.mark.parametrize("shape, words", DECODING)
def test_decoding_is_compared(shape, words, tmp_path, capsys, monkeypatch):
    """With its tokens, pages and lengths, cold and warm, into an artifact and tables that name them."""
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    monkeypatch.setattr(compare, "LONGEST_COLD_US", 1e9)
    for name in ("CALLS", "REPLAYS", "COLD_ROUNDS"):
        monkeypatch.setattr(timing, name, 1)
    arguments = ["compare", "decode/chunks", "--shape", shape, "--rounds", "5", "--causal", *words]
    assert cli.main([*arguments, "--save", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    assert file.name == "stand-in-gpu-decode-causal.json"
    shown, record = " ".join(capsys.readouterr().out.split()), artifact.load(file)
    given = {name: [b for a, b in itertools.pairwise(words) if a == name] for name in ("--tokens", "--page")}
    tokens, pages = given["--tokens"] or ["1"], given["--page"] or ["16"]
    expected = [*itertools.product(tokens, pages)]
    features = [each["features"] for each in record["shapes"]]
    found = [(str(of.get("tokens", 1)), str(of["page"])) for of in features]
    assert all(("tokens" in of) == bool(given["--tokens"]) for of in features)
    assert found == [each for each in expected for _ in range(2 if "-" in shape else 1)]
    for each in record["shapes"]:
        of = each["features"]
        batch, (_, kv_heads) = int(shape[0]), map(int, shape.split("x")[1].split("/"))
        lengths = of.get("lengths") or of.get("seqused_k") or [int(each["shape"].split("x")[2])] * batch
        seen = [min(n, of["window"][0] + of.get("tokens", 1)) if "window" in of else n for n in lengths]
        assert each["kv_bytes"] == sum(seen) * kv_heads * 2 * 64 * 2
        (entry,) = each["entries"]
        assert entry["error"]["right"] and entry["error"]["heads_checked"] == entry["error"]["heads"]
        assert entry["gpu_cold_us"] and entry["caller_us"] and set(each["absent"]) == set(DECODE.peers())
        words_of_it = " ".join(f"{name}={of[name]}" for name in ("tokens", "page") if name in of)
        assert f"decode, {each['shape']}, causal, {words_of_it}" in shown
    assert shown.count(" bytes of K and V ") == len(record["shapes"])
    ragged = [each for each in record["shapes"] if "equal_lengths" in each]
    assert shown.count("TB/s of K and V (of the rate at ") == len(ragged) == ("-" in shape) * len(expected)
    assert "TFLOP/s" not in shown
    assert artifact.recorded(tmp_path, operation="decode") == [], "none is plain"


@pytest.mark.long
def test_a_plain_workload_of_decoding_says_no_more_than_its_shape(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    record = compare.compare(select_any("decode/chunks"), [[Workload(Shape(1, 1, 20, 64))]], 5, quiet())
    (shape,) = record["shapes"]
    assert "features" not in shape and shape["kv_bytes"] == 20 * 2 * 64 * 2


@pytest.mark.long
def test_a_wrong_request_of_decoding_is_found(monkeypatch):
    (stage,) = select_any("decode/chunks")

    def wrong(problem, executor, variant=None, **outputs):
        stage.launch(problem, executor=executor, variant=variant, **outputs)
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: outputs["out"][1, 1].fill(0))

    monkeypatch.setattr(compare, "registers", lambda *args: None)
    for shape in (Shape(2, 2, 20, 64), Shape(2, 2, 20, 64, shortest=9)):
        spoilt = replace(stage, launch=wrong)
        record = compare.compare([spoilt], [[Workload(shape, page=CONTIGUOUS, tokens=2)]], 5, quiet())
        assert not any(each["entries"][0]["error"]["right"] for each in record["shapes"])


@pytest.mark.long
def test_a_wrong_gradient_is_named(capsys, monkeypatch):
    (stage,) = select_any("backward/recompute")

    def wrong(problem, executor, variant=None, **outputs):
        stage.launch(problem, executor=executor, variant=variant, **outputs)
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: outputs["dk"].fill(0))

    monkeypatch.setattr(compare, "registers", lambda *args: None)
    spoilt = replace(stage, launch=wrong, variants={"tiles": ""}, default="tiles")
    record = compare.compare([spoilt], [[Workload(Shape(1, 1, 20, 64))]], 5, quiet())
    (entry,) = record["shapes"][0]["entries"]
    assert not entry["error"]["right"] and entry["error"]["reason"].startswith("dK: ")


def test_stages_of_two_operations_are_refused(capsys):
    mixed = [find(5), *select_any("backward")]
    with pytest.raises(ArgumentError, match="of one operation are accepted, not of 2"):
        compare.compare(mixed, [[Workload(Shape(1, 1, 9, 64))]], 5, quiet())
    for arguments, says in (
        (["5", "backward"], "not of 2 (forward: 05 online_softmax; backward: backward/recompute"),
        (["--operation", "backward", "5"], "--operation backward: 05 online_softmax computes another one"),
        (["--operation", "forward", "backward"], "--operation forward: backward/recompute"),
        (["--operation", "sideward"], "--operation 'sideward': accepted are forward, backward"),
    ):
        assert cli.main(["compare", *arguments]) == 2
        assert says in capsys.readouterr().err


SPOIL = [
    lambda out: out.fill(0),
    lambda out: out[:, -1].fill(np.nan),
    lambda out: np.multiply(out, np.float16(1.01), out=out),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "spoil",
    SPOIL,
)
def test_a_wrong_output_exits_1(spoil, capsys, monkeypatch):
    real = LADDER[0].launch

    def wrong(problem, out, executor, lse=None, variant=None):
        real(problem, out, executor)
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: spoil(out))

    monkeypatch.setattr(selection, "select", lambda *names, also=(): [replace(LADDER[0], launch=wrong)])
    assert cli.main(["compare", "1", "--shape", "1x2x9x64", "--rounds", "5"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.long
def test_an_output_that_the_graph_does_not_write_is_wrong(capsys, monkeypatch):
    """The first launch is right, the replays write nothing: poison between the two shows it."""

    def once(problem, out, executor, lse=None, variant=None):
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: None)
        else:
            LADDER[0].launch(problem, out, executor)

    monkeypatch.setattr(selection, "select", lambda *names, also=(): [replace(LADDER[0], launch=once)])
    assert cli.main(["compare", "1", "--shape", "1x1x9x64", "--rounds", "5"]) == 1
    assert "WRONG NaN" in capsys.readouterr().out


@pytest.mark.long
def test_variants_are_timed_at_the_first_shape_only(monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    shapes = [[Workload(Shape(1, 1, 9, 64))], [Workload(Shape(1, 1, 7, 64))]]
    first, second = compare.compare(LADDER[5:6], shapes, 1, quiet())["shapes"]
    assert {entry["variant"] for entry in first["entries"]} == set(LADDER[5].variants)
    assert [entry["label"] for entry in second["entries"]] == [LADDER[5].label]


@pytest.mark.long
def test_what_is_timed_is_kept_before_the_next_shape(tmp_path, monkeypatch):
    """Whatever ends the run: a GPU is lent for minutes."""
    group, seen = compare._compare_group, []

    def ended(*args):
        if seen:
            raise SystemExit(143)
        seen.append(group(*args))
        return seen[0]

    monkeypatch.setattr(compare, "_compare_group", ended)
    arguments = ["compare", "1", "--shape", "1x1x9x64", "--shape", "1x1x7x64", "--rounds", "5"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--save", str(tmp_path)])
    record = artifact.load(tmp_path / "stand-in-gpu.json")
    assert [shape["shape"] for shape in record["shapes"]] == ["1x1x9x64"]
    assert [entry["label"] for entry in record["shapes"][0]["entries"]] == ["01 scalar"]


@pytest.mark.long
def test_kernels_can_be_timed_alone(monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    chosen = [
        ([Workload(Shape(1, 1, 9, 64), True)], [Run(LADDER[5], "q_outer")]),
        ([Workload(Shape(1, 1, 7, 64))], runs(LADDER[:2])),
    ]
    record = compare.timed(chosen, 1, quiet(), "try", alone=True)
    assert (record["label"], record["ceilings"]) == ("try", None)
    found = [[entry["label"] for entry in shape["entries"]] for shape in record["shapes"]]
    assert found == [["06 q_outer"], ["01 scalar", "02 coalesced"]]
    assert [shape["absent"] for shape in record["shapes"]] == [{}, {}], "no peer is tried"


@pytest.mark.long
def test_what_held_the_clocks_back_is_told(monkeypatch):
    readings = itertools.cycle([Reading(1000.0, 60.0, 700.0, ("the power limit",)), Reading(1000.0)])
    sensors = SimpleNamespace(why_not=None, read=lambda: next(readings))
    monkeypatch.setattr(compare, "Sensors", lambda bus: sensors)
    monkeypatch.setattr(timing, "ENTRY_SECONDS", math.inf)  # however slow the machine, all six rounds
    record = compare.compare(LADDER[:1], [[Workload(Shape(1, 1, 9, 64))]], 6, quiet())
    (entry,) = record["shapes"][0]["entries"]
    assert entry["throttled"] == ["the power limit in 3 of 6 readings"]
    assert entry["clocks"]["power_w"] == {"min": 700.0, "p50": 700.0, "max": 700.0}
    assert record["clocks"]["sm_mhz"] == {"min": 1000.0, "p50": 1000.0, "max": 1000.0}


def quiet():
    return Progress(Console(file=io.StringIO()))


def test_a_variant_that_does_not_fit_is_absent(monkeypatch):
    """The stage serves the problem, and a named variant of it asks for more than the GPU has."""

    def entry(run, problem, stream):
        if run.variant == "4":
            raise UnsupportedError("pipeline needs 115200 bytes")
        return run.variant

    monkeypatch.setattr(compare, "StageEntry", entry)
    progress = Progress(Console(file=io.StringIO()))
    found = compare._stage_entries(runs(select("pipeline")), registers.stand_in(1, 1, 64, 64), None, progress)
    assert found == (["1", "3", "2"], {"10 pipeline 4": "pipeline needs 115200 bytes"})


@pytest.mark.long
def test_features_and_ragged_batches_are_measured(tmp_path, capsys, monkeypatch):
    """Each judged against float64, the ragged batch beside as many tokens in equal lengths."""
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    arguments = ["compare", "5", "1", "--shape", "3x4/2x5-20x64", "--causal", "--rounds", "5"]
    arguments += ["--features", "window=8,0 sinks", "--features", "none"]
    assert cli.main([*arguments, "--save", str(tmp_path), "--json", str(tmp_path / "all.json")]) == 0
    (file,) = tmp_path.glob("stand-in-gpu*.json")
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"] * 2, "no picture of what is not plain"
    windowed, windowed_equal, ragged, equal = artifact.load(file)["shapes"]
    for one, other in ((windowed, windowed_equal), (ragged, equal)):
        lengths = one["features"]["lengths"]
        assert one["shape"] == "3x4/2x5-20x64" and one["equal_lengths"] == other["shape"]
        assert other["shape"] == f"3x4/2x{sum(lengths) // 3}x64" and sum(lengths) % 3 == 0
        assert one["flops"] == sum(4 * 64 * 4 * _pairs(n, one["features"]) for n in lengths)
        assert other["flops"] == 3 * 4 * 64 * 4 * _pairs(sum(lengths) // 3, one["features"])
    assert ragged["features"]["lengths"] == windowed["features"]["lengths"]
    assert windowed["features"]["window"] == [8, 0] and windowed["features"]["sinks"] is True
    assert (windowed_equal["features"], equal["features"]) == ({"window": [8, 0], "sinks": True}, {})
    for shape in (windowed, windowed_equal, ragged, equal):
        (entry,) = shape["entries"]
        assert entry["label"] == "05 online_softmax" and entry["error"]["right"]
        assert entry["error"]["heads_checked"] == entry["error"]["heads"] == 12
        assert entry["caller_us"]["n"] == 5
        assert "stage 01 scalar does not serve" in shape["absent"]["01 scalar"]
    assert artifact.recorded(tmp_path) == []
    shown = capsys.readouterr().out
    assert f"TFLOP/s (of the rate at {equal['shape']}): 05 online_softmax 0 (" in shown
    assert "3x4/2x5-20x64, causal, window=8,0 sinks: Stand-in GPU" in shown


def _pairs(length, features):
    """What a causal row sees of a sequence, summed."""
    left = features.get("window", (length,))[0]
    return sum(min(row, left) + 1 for row in range(length))


@pytest.mark.long
@pytest.mark.parametrize("spoilt", ["first", "last"])
def test_a_wrong_row_of_a_packed_sequence_is_found(spoilt, tmp_path, capsys, monkeypatch):
    stage = LADDER[4]

    def wrong(problem, executor, variant=None, **outputs):
        stage.launch(problem, executor=executor, variant=variant, **outputs)
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if problem.features.ragged:
            arrays = (problem.q, problem.k, problem.v, outputs["out"])
            assert all(x[0].swapaxes(0, 1).flags.c_contiguous for x in arrays), "token by token"
        if problem.features.ragged and stream is not None and stream.recording is not None:
            row = int(problem.features.cu_seqlens_q[1]) - (spoilt == "last")
            stream.recording.append(lambda: outputs["out"][0, 1, row].fill(0))

    monkeypatch.setattr(compare, "registers", lambda *args: None)
    monkeypatch.setattr(selection, "select", lambda *names, also=(): [replace(stage, launch=wrong)])
    assert cli.main(["compare", "5", "--shape", "2x2x5-9x64", "--rounds", "5", "--save", str(tmp_path)]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(why_not(find(12)) is not None, reason=f"no CUDA compiler: {why_not(find(12))}")
def test_the_kernels_whose_registers_are_recorded_have_the_features(rng):
    (run,) = [run for run in runs([find(12)]) if run.is_default]
    ragged, equal = Workload(Shape(2, 2, 90, 64, shortest=5), drawn=("sinks",)).drawn_with(1)
    names = []
    for each in (ragged, equal, Workload(Shape(2, 2, 50, 64))):
        problem = Problem(*each.arrays.inputs(rng), features=each.features(rng))
        (kernel,) = registers.registers(run, like(run.stage, problem), (9, 0))
        names.append([word for word in ("RAGGED=1", "SINKS=1") if word in kernel["kernel"]])
    assert names == [["RAGGED=1", "SINKS=1"], ["SINKS=1"], []]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--features", "widow=3"], "features 'widow=3': accepted are none, or window=LEFT,RIGHT"),
        (["--features", "window=3"], "accepted are none, or window=LEFT,RIGHT"),
        (["--features", "softcap=0"], "accepted are none, or window=LEFT,RIGHT"),
        (["--shape", "1x4/3x9x64"], "H must be a multiple of H_kv"),
        (["--shape", "1x4x9-8x64"], "the shorter length comes first"),
        (["--shape", "1x4x9x64/31"], "the head dimension (the last number) must be one of 32, 64"),
        (["--shape", "1x4x9/8x64"], "accepted are BxHxSxD, for example 1x8x512x64, with H/H_kv"),
        (["--features", "sinks"], "--features 'sinks': none of these stages serves it"),
        (["--features", "head_norm gate"], "--features 'head_norm gate': none of these stages serves it"),
        (["--tokens", "0"], "tokens '0': a whole number from 1 to 999999 is accepted"),
        (["--tokens", "2.5"], "tokens '2.5': a whole number from 1"),
        (["--page", "all"], "page 'all': accepted are contiguous and a number of keys from 1 to 999999"),
        (["--page", "-16"], "page '-16': accepted are contiguous and a number"),
        (["--page", "contiguous"], "--page contiguous: forward has none"),
        (["--shape", "2x2x5-9x64"], "--shape 2x2x5-9x64, a ragged batch: none of these stages serves it"),
        (["--shape", "1x2x9x32"], "--shape 1x2x9x32: none of these stages serves head dimension 32"),
        (["--shape", "1x4/2x9x64"], "1x4/2x9x64: there is nothing to time (01 scalar: stage 01 scalar does"),
    ],
)  # fmt: skip
def test_what_no_stage_measures_is_refused(arguments, says, capsys):
    try:
        assert cli.main(["compare", "1", *arguments]) == 2
    except SystemExit as stopped:
        assert stopped.code == 2
    assert says in capsys.readouterr().err
