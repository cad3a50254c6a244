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
from matrix import few
from rich.console import Console

from flashcore_numba import cli
from flashcore_numba.cli import selection
from flashcore_numba.core import gpu
from flashcore_numba.core.shapes import Shape
from flashcore_numba.measure import ceilings, compare, timing
from flashcore_numba.measure.peers import LABELS
from flashcore_numba.measure.sensors import Reading
from flashcore_numba.records import artifact
from flashcore_numba.report import pictures
from flashcore_numba.run import executor
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import Run, runs

CEILINGS = dict.fromkeys(ceilings.NAMES, 1.5)


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
    assert set(shape["absent"]) == set(LABELS)


def test_an_operation_of_ones_own_is_compared():
    """With its own answer, work and outputs; it has no caller's side and no peers."""
    progress = Progress(Console(file=io.StringIO()))
    for kernel, right in ((toy_operation.row_softmax, True), (toy_operation.last_row_left_out, False)):
        stage = replace(toy_operation.STAGE, launch=toy_operation.launcher(kernel))
        record = compare.compare([stage], [(Shape(1, 1, 33, 64), False)], 5, progress)
        (shape,) = record["shapes"]
        (entry,) = shape["entries"]
        assert (entry["label"], entry["stage"], entry["unit"]) == (stage.label, None, "fp32")
        assert entry["error"]["right"] is right
        assert entry["caller_us"] is None and shape["absent"] == {} and shape["scale"] is None
        assert len(entry["gpu_us"]["rounds_us"]) == 5
        assert entry["speed_up"] == {"stage_01": None, "best_peer": None}


SPOIL = [
    lambda out: out.fill(0),
    lambda out: out[:, -1].fill(np.nan),
    lambda out: np.multiply(out, np.float16(1.01), out=out),
]


@pytest.mark.parametrize(
    "spoil",
    few(SPOIL, SPOIL[-1]),
)
def test_a_wrong_output_exits_1(spoil, capsys, monkeypatch):
    real = LADDER[0].launch

    def wrong(problem, out, executor, lse=None, variant=None):
        real(problem, out, executor)
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: spoil(out))

    monkeypatch.setattr(selection, "select", lambda *names: [replace(LADDER[0], launch=wrong)])
    assert cli.main(["compare", "1", "--shape", "1x2x9x64", "--rounds", "5"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_an_output_that_the_graph_does_not_write_is_wrong(capsys, monkeypatch):
    """The first launch is right, the replays write nothing: poison between the two shows it."""

    def once(problem, out, executor, lse=None, variant=None):
        stream = executor.executor.stream if hasattr(executor, "executor") else None
        if stream is not None and stream.recording is not None:
            stream.recording.append(lambda: None)
        else:
            LADDER[0].launch(problem, out, executor)

    monkeypatch.setattr(selection, "select", lambda *names: [replace(LADDER[0], launch=once)])
    assert cli.main(["compare", "1", "--shape", "1x1x9x64", "--rounds", "5"]) == 1
    assert "WRONG NaN" in capsys.readouterr().out


@pytest.mark.long
def test_variants_are_timed_at_the_first_shape_only(monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    shapes = [(Shape(1, 1, 9, 64), False), (Shape(1, 1, 7, 64), False)]
    first, second = compare.compare(LADDER[5:6], shapes, 1, quiet())["shapes"]
    assert {entry["variant"] for entry in first["entries"]} == set(LADDER[5].variants)
    assert [entry["label"] for entry in second["entries"]] == [LADDER[5].label]


def test_kernels_can_be_timed_alone(monkeypatch):
    monkeypatch.setattr(compare, "registers", lambda *args: None)
    chosen = [
        (Shape(1, 1, 9, 64), True, [Run(LADDER[5], "q_outer")]),
        (Shape(1, 1, 7, 64), False, runs(LADDER[:2])),
    ]
    record = compare.timed(chosen, 1, quiet(), "try", alone=True)
    assert (record["label"], record["ceilings"]) == ("try", None)
    found = [[entry["label"] for entry in shape["entries"]] for shape in record["shapes"]]
    assert found == [["06 q_outer"], ["01 scalar", "02 coalesced"]]
    assert [shape["absent"] for shape in record["shapes"]] == [{}, {}], "no peer is tried"


def test_what_held_the_clocks_back_is_told(monkeypatch):
    readings = itertools.cycle([Reading(1000.0, 60.0, 700.0, ("the power limit",)), Reading(1000.0)])
    sensors = SimpleNamespace(why_not=None, read=lambda: next(readings))
    monkeypatch.setattr(compare, "Sensors", lambda bus: sensors)
    monkeypatch.setattr(timing, "ENTRY_SECONDS", math.inf)  # however slow the machine, all six rounds
    record = compare.compare(LADDER[:1], [(Shape(1, 1, 9, 64), False)], 6, quiet())
    (entry,) = record["shapes"][0]["entries"]
    assert entry["throttled"] == ["the power limit in 3 of 6 readings"]
    assert entry["clocks"]["power_w"] == {"min": 700.0, "p50": 700.0, "max": 700.0}
    assert record["clocks"]["sm_mhz"] == {"min": 1000.0, "p50": 1000.0, "max": 1000.0}


def quiet():
    return Progress(Console(file=io.StringIO()))
