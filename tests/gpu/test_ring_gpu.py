"""Attention over a sequence that the GPUs of this machine hold together; on one GPU, a ring of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashcore_numba.branches.ring.call import CAPTURED
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD
from flashcore_numba.cli.ring import WITHOUT_MULTICAST
from flashcore_numba.core import gpu
from flashcore_numba.records import ring_timeline

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
MOST = 8
SECONDS = 280


def started(ranks, *command, **environment):
    """What torchrun printed, with a process per GPU."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, *command],
        env=WITHOUT_MULTICAST | os.environ | {"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_every_way_on_every_gpu(rng):
    ranks = min(MOST, gpu.device_count())
    ways = {*FORWARD} if gpu.compute_capability() == (9, 0) else {*FORWARD} - {"gated"}
    calls = 3 * len(ways) + len(ways & {*CAPTURED}) + 2 * len(BACKWARD) + 1  # of a head dimension and a mask
    script, seed = Path(__file__).with_name("ring_on_gpus.py"), str(rng.integers(2**31))
    told = started(ranks, str(script), SEED=seed, WAYS=" ".join(sorted(ways)))
    found = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert len(found) == ranks
    for each in found:
        wrong = {name: margins for name, margins in each.items() if min(margins) < 1}
        assert len(each) == 4 * calls and not wrong, wrong


@pytest.mark.parametrize("backward", [False, True])
def test_a_time_line(tmp_path, backward):
    """Every rank's pieces begin after the barrier and end with the call; results are right under stamps."""
    if gpu.device_count() < 2:
        pytest.skip("a time line has at least two ranks")
    file = tmp_path / "timeline.json"
    options = ["--causal", "--rounds", "5", "--way", "pull", "--shape", "1x8/2x4096x128"]
    module = "flashcore_numba.branches.ring.timeline"
    started(2, "-m", module, str(file), *options, *(["--backward"] if backward else []))
    record = ring_timeline.load(file)
    assert record["right"] and record["ahead"]
    for rank, total in zip(record["ranks"], ring_timeline.totals(record), strict=True):
        assert max(each["end_us"] for each in rank["pieces"]) <= 1.01 * rank["us"]
        assert total.computed_us > 0 and total.moved_us > 0


def test_the_example_forward_and_backward():
    """The example compares its output and gradients with float64, and fails where they are wrong."""
    ranks = min(MOST, gpu.device_count())
    told = started(ranks, str(ROOT / "examples" / "ring_attention.py"))
    assert f"rank {ranks - 1} of {ranks}" in told and "dv: off by at most" in told
