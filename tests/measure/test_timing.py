"""The order and the amount of timing, with a clock that takes no time."""

import numpy as np
import pytest

from flashcore_numba.measure import timing
from flashcore_numba.measure.sensors import Reading
from flashcore_numba.measure.timing import calibrate, launches_for, measure, replays_for


class FakeEntry:
    def __init__(self, label, true_us, launches=1):
        self.label, self.true_us, self.launches, self.launch_us = label, true_us, launches, true_us
        self.captured = []

    def capture(self, launches):
        self.captured.append(launches)


class FakeClock:
    """A graph costs `start_us` once and `true_us` a launch; every request is noted."""

    start_us = 6.0
    reading = None

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
    assert [replays_for(us) for us in (100, 4000, 8000, 20_000, 1e6)] == [3, 3, 2, 1, 1]


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


def test_entries_take_turns_forward_and_backward():
    entries, clock = [FakeEntry(name, 10.0, 400) for name in "ABC"], FakeClock()
    seen = []
    got = measure(entries, 6, clock, lambda turn, turns, entry: seen.append((turn, turns, entry.label)))
    assert [label for label, _ in clock.turns] == list("ABCCBA" * 3)
    assert seen == [(k + 1, 18, label) for k, label in enumerate("ABCCBA" * 3)]
    for samples in got:
        assert samples.rounds == 6
        assert [len(times) for times in samples.gpu_us] == [timing.REPLAYS] * 6
        assert [len(times) for times in samples.caller_us] == [timing.CALLS] * 6


def test_readings_go_with_the_entry_whose_turn_it_was():
    clock = FakeClock()
    clock.replays = lambda entry, count: [setattr(clock, "reading", Reading(entry.true_us))] and [1.0] * count
    fast, slow = measure([FakeEntry("fast", 1.0), FakeEntry("slow", 2.0)], 5, clock)
    assert [{reading.sm_mhz for reading in got.readings} for got in (fast, slow)] == [{1.0}, {2.0}]


def test_a_cold_launch_is_a_pair_less_the_flush(rng):
    """Whatever the flush takes in a turn, and however it drifts, it is not in the time."""

    class Drifting(FakeClock):
        def replays(self, entry, count):
            if entry.label == "flush":
                return [self.flush_us] * count
            self.flush_us = rng.uniform(30, 60)
            return [entry.true_us + self.flush_us] * count

    entries = [FakeEntry(name, us) for name, us in (("A", 5.0), ("B", 80.0))]
    short, long = timing.measure_cold(entries, FakeEntry("flush", 40.0), Drifting())
    assert [len(times) for times in short] == [timing.REPLAYS] * timing.COLD_ROUNDS
    assert short == [[pytest.approx(5.0)] * timing.REPLAYS] * timing.COLD_ROUNDS
    assert long == [[pytest.approx(80.0)] * timing.REPLAYS] * timing.COLD_ROUNDS


def test_no_callers_side_gives_no_caller_samples():
    (got,) = measure([FakeEntry("A", 10.0)], 5, FakeClock(caller=False))
    assert got.caller_us == []


def test_a_slow_entry_leaves_after_five_rounds_and_the_others_go_on():
    slow, fast, clock = FakeEntry("slow", 2e6), FakeEntry("fast", 10.0, 400), FakeClock()
    got = measure([slow, fast], 20, clock)
    assert got[0].rounds == timing.FEWEST_ROUNDS
    assert got[1].rounds == 20
    assert [label for label, _ in clock.turns[:10]] == [*["slow", "fast", "fast", "slow"] * 2, "slow", "fast"]


def test_a_default_comparison_is_a_matter_of_seconds():
    # About what the ladder, its variants and the peers take on an H200 (us).
    slow = (1900, 330, 230, 160, 140, 110, 83, 73, 59, 29, 22)
    entries = [FakeEntry(str(us), us) for us in (*slow, *[10] * 27)]
    clock = FakeClock()
    for entry in entries:
        calibrate(entry, clock)
    got = measure(entries, 20, clock)
    seconds = sum(
        (np.sum(s.gpu_us) * e.launches + np.sum(s.caller_us)) / 1e6 for e, s in zip(entries, got, strict=True)
    )
    assert seconds < 20
    assert all(samples.rounds == 20 for samples in got)
