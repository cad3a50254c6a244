"""The order and the amount of timing, with a clock that takes no time."""

import itertools

import pytest

from flashcore_numba.bench import timing
from flashcore_numba.bench.timing import calibrate, launches_for, measure, replays_for


class FakeEntry:
    def __init__(self, label, true_us, launches=1):
        self.label, self.true_us, self.launches, self.launch_us = label, true_us, launches, true_us
        self.captured = []

    def capture(self, launches):
        self.captured.append(launches)


class FakeClock:
    """A graph costs `start_us` once and `true_us` a launch; every request is noted."""

    start_us = 6.0

    def __init__(self, caller=True):
        self.turns, self.caller = [], caller

    def replays(self, entry, count):
        self.turns.append((entry.label, count))
        return [entry.true_us + self.start_us / entry.launches] * count

    def calls(self, entry, count):
        return [entry.true_us + 30] * count if self.caller else []


@pytest.mark.parametrize(
    ("launch_us", "launches"), [(4.0, 1000), (10.0, 400), (2200.0, 2), (50_000.0, 1), (0.001, 1000)]
)
def test_a_replay_lasts_about_four_milliseconds(launch_us, launches):
    assert launches_for(launch_us) == launches


def test_long_replays_are_timed_less_often():
    assert [replays_for(us) for us in (100, 4000, 8000, 20_000, 1e6)] == [5, 5, 2, 1, 1]


def test_calibrating_sees_through_the_start_of_a_graph():
    entry = FakeEntry("short", 4.0)
    calibrate(entry, FakeClock())
    # A graph of one launch looks like 10 us; only a longer one shows that 4 us are the truth.
    assert entry.captured == [1, 400, 996] or entry.captured == [1, 400]
    assert entry.launches == entry.captured[-1]
    assert entry.launch_us == pytest.approx(4.0, abs=0.05)
    assert 1000 < entry.launches * entry.launch_us < 20_000


def test_calibrating_a_long_kernel_captures_once():
    entry = FakeEntry("long", 9000.0)
    calibrate(entry, FakeClock())
    assert entry.captured == [1]


def test_entries_take_turns():
    entries, clock = [FakeEntry(name, 10.0, 400) for name in "ABC"], FakeClock()
    seen = []
    got = measure(entries, 6, clock, lambda turn, turns, entry: seen.append((turn, turns, entry.label)))
    assert [label for label, _ in clock.turns] == list("ABC" * 6)
    assert seen == [(k + 1, 18, label) for k, label in enumerate("ABC" * 6)]
    for samples in got:
        assert samples.rounds == 6
        assert len(samples.gpu_us) == 6 * timing.REPLAYS
        assert len(samples.caller_us) == 6 * timing.CALLS


def test_no_callers_side_gives_no_caller_samples():
    (got,) = measure([FakeEntry("A", 10.0)], 5, FakeClock(caller=False))
    assert got.caller_us == []


def test_a_slow_entry_leaves_after_five_rounds_and_the_others_go_on():
    slow, fast, clock = FakeEntry("slow", 2e6), FakeEntry("fast", 10.0, 400), FakeClock()
    got = measure([slow, fast], 20, clock)
    assert got[0].rounds == timing.FEWEST_ROUNDS
    assert got[1].rounds == 20
    assert [label for label, _ in clock.turns[:10]] == ["slow", "fast"] * 5


def test_a_default_comparison_is_a_matter_of_seconds():
    # The ladder's goals on an H200 (us) and the peers': what the GPU itself needs must stay far below 90 s.
    entries = [FakeEntry(str(us), us) for us in (2200, 900, 400, 250, 150, 300, 200, 150, 60, *[10] * 6)]
    clock = FakeClock()
    for entry in entries:
        calibrate(entry, clock)
    got = measure(entries, 20, clock)
    seconds = sum(
        (sum(s.gpu_us) * e.launches + sum(s.caller_us)) / 1e6 for e, s in zip(entries, got, strict=True)
    )
    assert seconds < 20
    assert all(len(samples.gpu_us) >= 20 for samples in got)
    assert len(list(itertools.chain(*(samples.caller_us for samples in got)))) >= 20 * len(entries)
