"""What the phases of stage 11 say of themselves: their barriers, and who touches shared memory how often."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages.stage11_warp_specialized import KEYS, ROWS, STAGE, THREADS

WARPS = THREADS // 32


def launched(rng, phase, tiles, head_dim=64):
    S_k = tiles * KEYS[head_dim]
    q, k, v = (rng.standard_normal((1, 1, rows, head_dim)).astype(np.float16) for rows in (ROWS, S_k, S_k))
    executor = Simulator()
    STAGE.launch(Problem(q, k, v), np.empty_like(q), executor, None, phase)
    executor.check()
    return executor.launches[0]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("phase", few(STAGE.variants, STAGE.default_variant))
def test_barriers_of_a_block(rng, phase, head_dim):
    """Four a tile and one at the end; else one a tile, two steps more, one before and one after them."""
    for tiles in (1, 5):
        expected = 4 * tiles + 1 if phase == "0" else tiles + 2 + 2
        assert launched(rng, phase, tiles, head_dim).totals()["barriers"] == WARPS * expected


def shared_requests(launch, op):
    return sum(row.requests for row in launch.lines() if row.space == "shared" and row.op == op)


@pytest.mark.long
def test_what_each_phase_saves(rng):
    """Wider loads store less often; cp.async stores without a store; Q in registers is loaded once."""
    tiles = 4
    launches = {phase: launched(rng, phase, tiles) for phase in STAGE.variants}
    stores = {phase: shared_requests(launch, "store") for phase, launch in launches.items()}
    loads = {phase: shared_requests(launch, "load") for phase, launch in launches.items()}
    assert stores["0"] == stores["1"] == stores["2"] > stores["3"]
    assert loads["0"] == loads["1"] == loads["2"] == loads["3"] == loads["4"] > loads["5"]
