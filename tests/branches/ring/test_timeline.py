"""Stamps of a ring's work: on which stream, in which order, at no cost to the work; and their record."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from timelines import GPU, START, made_up, of_machine

from cuda_reference.extras import MissingPackageError
from flashcore_numba import cli
from flashcore_numba.branches.ring import gpus, timeline
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.programs import Layer
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.checks import bounds
from flashcore_numba.cli import ring
from flashcore_numba.core import gpu
from flashcore_numba.records import artifact, ring_timeline
from flashcore_numba.records.artifact import ArtifactError
from flashcore_numba.report.pictures import style


def names(pieces: list[dict[str, Any]], stream: str) -> list[tuple[str, str, int | None]]:
    return [(each["kind"], each["what"], each["step"]) for each in pieces if each["stream"] == stream]


@pytest.mark.parametrize("way", ["pull", "gather", "gated", "ring", "ulysses"])
def test_results_are_those_without_stamps_and_times_follow(way: str) -> None:
    """Pieces of a stream begin where those before them end, and no copy begins before the barrier's end."""
    x, split, written, every = of_machine(way)
    ref = bounds.reference(x.q, x.k, x.v, x.causal)
    assert bounds.judge(split.joined([each[0] for each in written]), ref).passed
    for pieces in every:
        for stream in ("main", "side", "also"):
            own = [each for each in pieces if each["stream"] == stream]
            times = [each[side] for each in own for side in ("begin_us", "end_us")]
            assert times == sorted(times)
            assert [each["begin_us"] for each in own[1:]] == [each["end_us"] for each in own[:-1]]
    entered, left = (
        [each[side] for pieces in every for each in pieces if each["kind"] == "barrier"]
        for side in ("begin_us", "end_us")
    )
    assert max(entered[::2], default=0) < min(left[::2], default=1)  # of the first barrier


def test_the_pieces_of_a_pull() -> None:
    *_, (first, second) = of_machine("pull")
    assert names(first, "main") == [
        ("kernel", "filling", 0), ("kernel", "attention", 0), ("wait", "copy", 1), ("kernel", "attention", 1),
        ("kernel", "rounding", 2), ("wait", "end", None),
    ]  # fmt: skip
    assert names(first, "side") == [
        ("wait", "filling", 0), ("barrier", "start", None), ("copy", "copy", 1), ("barrier", "end", None),
    ]  # fmt: skip
    assert ("kernel", "rounding", 2) not in names(second, "main") and not names(first, "also")


def test_the_pieces_of_a_pull_backward() -> None:
    *_, (first, _) = of_machine("pull", backward=True)
    assert ("barrier", "parts", None) in names(first, "side")
    assert ("kernel", "the backward pass", 1) in names(first, "main")
    assert ("kernel", "adding gradients", 1) in names(first, "main")


def by_hand() -> dict[str, Any]:
    """Two ranks, of which the first computes from 0 to 40 and from 50 to 90 and copies from 30 to 50."""

    def piece(stream: str, kind: str, begin: float, end: float) -> dict[str, Any]:
        return {"stream": stream, "kind": kind, "what": kind, "step": 0, "begin_us": begin, "end_us": end}

    main = [piece("main", kind, *us) for kind, us in (("kernel", (0, 40.0)), ("wait", (40.0, 50.0)))]
    first = [*main, piece("main", "kernel", 50.0, 90.0), piece("side", "copy", 30.0, 50.0)]
    second = [piece("main", "barrier", 0.0, 20.0), piece("main", "exchange", 20.0, 100.0)]
    made = made_up() | {"stamped_us": [120.0, 100.0, 90.0], "shown": 1}
    return made | {"ranks": [{"us": 90.0, "pieces": first}, {"us": 100.0, "pieces": second}]}


def test_totals() -> None:
    one, other = ring_timeline.totals(by_hand())
    assert one == (100.0, 80.0, 10.0, 20.0, 10.0) and one.exposed_us == 10.0
    assert other == (100.0, 0, 20.0, 80.0, 0)


def test_the_call_of_the_median_is_shown_and_the_record_is_read_again(tmp_path: Path) -> None:
    record = made_up("gather", 3)
    assert record["shown"] == 1 and record["stamped_us"][0] == 2 * record["stamped_us"][1]
    assert ring_timeline.file_name(record) == "ring-timeline-imaginary-gpu-gather-gpus-3-causal.json"
    path = tmp_path / ring_timeline.file_name(record)
    ring_timeline.save(record, path)
    assert ring_timeline.recorded(tmp_path) == [(path, record)] and not artifact.recorded_whole(tmp_path)
    backward = by_hand() | {"backward": True, "causal": False}
    assert ring_timeline.file_name(backward) == "ring-timeline-imaginary-gpu-pull-backward-gpus-2.json"
    assert ring_timeline.median([4.0, 1.0, 3.0, 2.0]) == 2.0


def test_the_schema_is_one() -> None:
    text = (artifact.recorded_dir() / ring_timeline.SCHEMA_FILE).read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_a_damaged_record_is_refused() -> None:
    right = by_hand()
    ring_timeline.validate(right)
    for change, told in (
        (lambda each: each.update(way="push"), r"\.way is 'push'"),
        (lambda each: each["ranks"].append(each["ranks"][0]), r"ranks has 3 items; expected 2"),
        (lambda each: each.update(shown=0), r"shown is 0; expected the call of 100.0 us"),
        (lambda each: each["ranks"][0]["pieces"][1].update(begin_us=39.0), r"pieces\[1\] begins at 39.0 us"),
        (lambda each: each["ranks"][0]["pieces"][3].update(end_us=29.0), r"pieces\[3\] ends at 29.0 us"),
        (lambda each: each.update(stamped_us=[float("inf")]), "expected a finite number"),
    ):
        wrong = copy.deepcopy(right)
        change(wrong)
        with pytest.raises(ArtifactError, match=told):
            ring_timeline.validate(wrong)


class Start:
    """A start whose clock counts, and whose calls end at once; the given calls were queued late."""

    def __init__(self, late: tuple[int, ...] = ()) -> None:
        self.ticks, self.late, self.calls = 0.0, late, 0

    def clock(self) -> float:
        self.ticks += 1
        return self.ticks

    def timed(self, call: Any) -> tuple[Any, float, bool]:
        begin, self.calls = self.ticks, self.calls + 1
        call()
        return START, self.ticks - begin, self.calls not in self.late


class Host:
    """A rank of one, whose work is done when it is queued."""

    number, count = 0, 1

    def empty(self, name: str, shape: Any, dtype: Any = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or torch.float32)

    shared = empty

    def kept(self, make: Any, *how: Any) -> Any:
        return make(self, *how)

    def launch(self, stream, what, function, reads, writes, step, late=(), word=None) -> None:
        function(tuple(reads), tuple(writes))

    def barrier(self, stream: str, name: str) -> None: ...

    def record(self, stream: str) -> None: ...

    def wait(self, stream: str, event: Any) -> None: ...


class OnTensors(Float32):
    def attend(self, reads: Any, writes: Any, **how: Any) -> None:
        super().attend(tuple(each.numpy() for each in reads), tuple(each.numpy() for each in writes), **how)

    def backward(self, reads: Any, writes: Any, **how: Any) -> None:
        super().backward(tuple(each.numpy() for each in reads), tuple(each.numpy() for each in writes), **how)


@pytest.mark.parametrize("backward", [False, True])
def test_calls_with_stamps_and_without_take_turns(backward: bool) -> None:
    rank, split = Host(), even(8, 1)
    whole = [torch.randn(1, 2, 8, 16) for _ in range(4 if backward else 3)]
    call, written = timeline.program("pull", backward, rank, Layer(split, True, OnTensors()), split, whole)
    start = Start()
    found = timeline.taken(rank, call, start, 5)
    assert start.calls == 2 * (timeline.WARM + 5)
    assert found.plain_us == [0.0] * 5 and len(found.stamped) == 5 and found.ahead
    work = "the backward pass" if backward else "attention"
    for each in found.stamped:
        assert each["us"] == len(each["pieces"]) + 3 and ("kernel", work, 0) in names(each["pieces"], "main")
    assert all(torch.isfinite(each).all() for each in written) and len(written) == (3 if backward else 1)
    for late in (1, 2 * timeline.WARM + 1, 2 * timeline.WARM + 2):
        ahead = timeline.taken(rank, call, Start((late,)), 1).ahead
        assert ahead == (late <= 2 * timeline.WARM)  # warm calls may be late


@pytest.mark.parametrize("backward", [False, True])
def test_a_process_writes_the_calls_of_all_ranks(
    backward: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`main` of rank 0, on stand-ins for GPUs; results of a stamped call are judged, not older ones."""
    judged: list[Any] = []

    def error_of(entry: Any, causal: bool, seed: int) -> dict[str, Any]:
        value = entry.value()
        parts = value if backward else [value]
        assert causal and seed == 7 and all(torch.isnan(each).all() for each in parts)
        entry.call()
        assert not any(torch.isnan(each).any() for each in parts)
        judged.append(entry.whole)
        return {"right": True}

    def all_gather_object(every: list[Any], own: Any) -> None:
        every[:] = [own, own]

    shapes = [(1, h, 8, 32) for h in (4, 2, 2, 4)]
    of_module = {
        "join": lambda: (0, 2, 7), "leave": lambda: None, "error_of": error_of, "Start": Start,
        "drawn": lambda shape, seed, back: [torch.randn(each) for each in (shapes if back else shapes[:3])],
        "Stages": OnTensors, "topology": lambda count: {"gpus": count, "peer_access": True},
    }  # fmt: skip
    for name, value in of_module.items():
        monkeypatch.setattr(timeline, name, value)
    monkeypatch.setattr(gpus, "GpuRank", Host)
    monkeypatch.setattr(timeline.environment, "gpu", lambda: GPU)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    file = tmp_path / "timeline.json"
    options = ["--shape", "1x4/2x8x32", "--way", "pull", "--causal", "--rounds", "3"]
    timeline.main([str(file), *options, *(["--backward"] if backward else [])])
    record = ring_timeline.load(file)
    assert record["way"] == "pull" and record["backward"] == backward and record["ahead"]
    assert len(record["stamped_us"]) == len(record["plain_us"]) == 3 and len(judged) == 1
    assert record["ranks"][0] == record["ranks"][1] and len(record["ranks"][0]["pieces"]) > 4


def run_as_if(
    monkeypatch: pytest.MonkeyPatch, record: dict[str, Any], why_not: str | None = None
) -> list[list[str]]:
    """`flashcore ring` where two GPUs are, and the processes write this record."""
    started: list[list[str]] = []

    def ended(words: list[str], limit: float) -> str | None:
        started.append(words)
        ring_timeline.save(record, Path(words[words.index(ring.TIMELINE) + 1]))
        return why_not

    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(gpu, "device_count", lambda: 2)
    monkeypatch.setattr(ring, "ended", ended)
    return started


@pytest.mark.long
def test_the_command_writes_the_record_and_draws_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (command,) = [run_as_if(monkeypatch, by_hand())]
    save = ["--save", str(tmp_path)]
    assert cli.main(["ring", "--timeline", "--shape", "1x8/2x1024x64", *save]) == 0
    words = command[0]
    assert words[words.index("--way") + 1] == "pull" and "--causal" in words
    assert words[words.index("--rounds") + 1] == "9"
    told = " ".join(capsys.readouterr().out.split())
    assert "│ 0 │ 90.0 │ 80% │ 10% │ 20.0 │ 50% │ 10.0 │" in told
    assert "100 us with stamps, 8.00 us without" in told
    file = tmp_path / "ring-timeline-imaginary-gpu-pull-gpus-2-causal.json"
    drawn = [tmp_path / f"ring-timeline{theme.suffix}.svg" for theme in style.THEMES]
    assert sorted(tmp_path.iterdir()) == sorted([file, *drawn])
    assert cli.main(["pictures", str(file), "--save", str(tmp_path / "again")]) == 0
    assert [(tmp_path / "again" / each.name).read_bytes() for each in drawn] == [
        each.read_bytes() for each in drawn
    ]
    capsys.readouterr()
    assert cli.main(["ring", "--timeline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"][0]["hidden_us"] == 10.0


def test_where_nothing_can_be_drawn_the_record_is_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def draw(*_: Any) -> None:
        raise MissingPackageError("the package matplotlib is not installed")

    run_as_if(monkeypatch, by_hand() | {"ahead": False})
    monkeypatch.setattr(style.Picture, "draw", draw)
    assert cli.main(["ring", "--timeline", "--save", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "not drawn: the package matplotlib is not installed; flashcore pictures" in told
    assert "the host was still queueing" in told
    assert [each.suffix for each in tmp_path.iterdir()] == [".json"]


def test_wrong_results_a_hang_and_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_as_if(monkeypatch, by_hand() | {"right": False})
    assert cli.main(["ring", "--timeline"]) == 1
    assert "WRONG" in capsys.readouterr().out
    for more in (["--way", "pull", "--way", "ring"], ["--shape", "1x8x64x64", "--shape", "1x8x32x64"]):
        assert cli.main(["ring", "--timeline", *more]) == 2
        assert "--timeline: one --way and one --shape are accepted" in capsys.readouterr().err
    run_as_if(monkeypatch, by_hand(), "torchrun did not end within 600 s")
    assert cli.main(["ring", "--timeline"]) == 1
    assert "did not end within 600 s" in capsys.readouterr().err


def test_events_are_recorded_after_a_barrier_and_a_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `Start` does with CUDA, on stand-ins: in which order, and what it gives."""
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def query(self) -> bool:
            return False

        def elapsed_time(self, other: Any) -> float:
            return 0.25

    cuda = SimpleNamespace(
        Event=Event, synchronize=lambda: done.append("synchronize"), _sleep=lambda clocks: done.append("hold")
    )
    start = timeline.Start.__new__(timeline.Start)
    start._torch = SimpleNamespace(cuda=cuda)
    start._dist = SimpleNamespace(barrier=lambda: done.append("hosts"))
    start._handle = SimpleNamespace(barrier=lambda channel: done.append("barrier"))
    first, us, ahead = start.timed(lambda: done.append("call"))
    assert isinstance(first, Event) and us == 250 and ahead
    assert done == [
        "synchronize", "hosts", "synchronize", "hold", "barrier", "event", "call", "event", "synchronize",
    ]  # fmt: skip
