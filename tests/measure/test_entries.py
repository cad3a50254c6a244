from dataclasses import replace
from types import MappingProxyType

import numpy as np

from flashcore_numba.measure.entries import Captured, KeepScratch
from flashcore_numba.measure.peers import PeerEntry
from flashcore_numba.stages import LADDER, Stage
from flashcore_numba.stages.runs import runs


def _stage(number, name, variants=(), language="Numba"):
    sentences = MappingProxyType({variant: variant for variant in variants})
    return Stage(number, name, name, name, launch=lambda *a, **k: None, variants=sentences, language=language)


def test_every_variant_is_a_run_and_the_default_comes_last():
    found = runs([_stage(1, "plain"), _stage(6, "tiles", ("tiles", "outer", "local"))])
    assert [(run.label, run.variant, run.is_default) for run in found] == [
        ("01 plain", None, True),
        ("06 outer", "outer", False),
        ("06 local", "local", False),
        ("06 tiles", "tiles", True),
    ]


def test_labels_of_the_ladder_are_unique_and_each_stage_has_one_default():
    found = runs(LADDER)
    assert len({run.label for run in found}) == len(found)
    assert [run.stage.number for run in found if run.is_default] == [stage.number for stage in LADDER]


def test_the_unit_follows_the_language():
    assert [run.unit for run in runs([_stage(1, "a"), _stage(8, "b", language="CUDA C")])] == [
        "fp32",
        "tensor",
    ]


def test_scratch_is_the_same_in_every_launch_and_never_shared_within_one():
    class Executor:
        made, sm_count = 0, 132

        def empty(self, shape, dtype):
            self.made += 1
            return np.empty(shape, dtype)

    executor = Executor()
    keep = KeepScratch(executor)
    rounds = []
    for _ in range(3):
        keep.start()
        rounds.append([keep.empty((4, 4), np.float32), keep.empty((4, 4), np.float32)])
    assert executor.made == 2
    assert rounds[0][0] is not rounds[0][1]
    for later in rounds[1:]:
        assert [a is b for a, b in zip(later, rounds[0], strict=True)] == [True, True]


def test_every_stage_of_the_ladder_has_one_default_run():
    """It is what `attention` runs, and the stage's own line in every table."""
    for stage in LADDER:
        assert [run.label for run in runs([stage]) if run.is_default] == [stage.label]


def test_a_variant_with_a_number_is_named_with_its_stage():
    stage = replace(_stage(10, "ring", ("1", "2")), default="2")
    assert [run.label for run in runs([stage])] == ["10 ring 1", "10 ring"]


class _Stream:
    """Captures what is queued on it as text."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def begin_capture(self):
        self.queued = []

    def end_capture(self):
        return "".join(self.queued)


class _Letter(Captured):
    def _launch(self):
        self.stream.queued.append(self.label)


def test_a_cold_entry_has_a_flush_before_each_launch_in_a_graph_of_its_own():
    stream = _Stream()
    entry = _Letter("k", stream)
    entry.capture(2)
    pair = entry.cold(_Letter("f", stream))
    pair.capture(3)
    assert (entry.graph, pair.graph) == ("kk", "fkfkfk")


def test_a_cold_peer_returns_what_the_peer_returns():
    stream = _Stream()
    stream.begin_capture()
    peer = PeerEntry.__new__(PeerEntry)
    peer.function = lambda: stream.queued.append("k") or "output"
    pair = peer.cold(_Letter("f", stream))
    assert (pair.function(), "".join(stream.queued)) == ("output", "fk")
    assert (peer.function(), "".join(stream.queued)) == ("output", "fkk")
