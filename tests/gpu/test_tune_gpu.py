"""Configurations are timed on a GPU: right ones have a time, wrong ones and those that fail have none."""

import pytest
from rich.console import Console

from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.records import layout
from flashcore_numba.run.progress import Progress
from flashcore_numba.tune import funnel, record, timing
from flashcore_numba.tune.spaces import SPACES, name_of

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
WORKLOAD = Workload(parse_any("1x8x1024x64"))


@pytest.mark.parametrize("number", SPACES)
def test_the_shipped_configuration_and_another_are_timed(number):
    space = SPACES[number]
    problem = funnel.stand_in(SPACES[number], WORKLOAD)
    shipped = space.shipped(problem, record.SM_COUNT)
    other = next(
        config
        for config, broken in space.points(problem)
        if broken is None and "dropped" not in funnel.compiled(number, WORKLOAD, config)
    )
    (found,) = timing.timing(number, WORKLOAD, [other, shipped], 5)
    assert set(found) == {name_of(other), name_of(shipped)}
    for each in found.values():
        assert each["right"] and 0.001 < each["time"] < 1 and len(each["rounds_us"]) == 5


@pytest.mark.timeout(280)
def test_a_search(tmp_path):
    space = SPACES[16]
    small = space.__class__(
        **{**space.__dict__, "values": {**space.values, "keys": (64, 128), "stages": (1, 2)}}
    )
    path = tmp_path / "record.json"
    quiet = Progress(Console(quiet=True))
    found = funnel.search(small, WORKLOAD, quiet, path, timing.timing, record.Device("the GPU"), elite=1)
    assert record.timed(found) and found["elite"][0]["rounds_us"]
    assert record.load(path)["elite"] == layout.rounded(found["elite"])
