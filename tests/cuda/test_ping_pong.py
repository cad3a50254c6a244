"""What stage 15 says of itself: every way to overlap gives the same answer, in any order; what fits."""

import numpy as np
import pytest

from cuda_reference.compile import compile
from flashcore_numba.checks import Edit, Mutant
from flashcore_numba.checks.mutation import loaded
from flashcore_numba.core import oracle
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.cpu_launch import Counter
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator import SimulationError
from flashcore_numba.stages.stage15_ping_pong import REGISTERS, block_bytes, launch, run
from flashcore_numba.stages.tuning.stage15_tiles import SHORT, SHORTS, TILES, TIMES, WITH_Q, Tile, choose

ROOM = 227 * 1024  # bytes of shared memory that a block may have at compute capability 9.0
ROOM_OF_AN_SM, RESERVED = 228 * 1024, 1024  # bytes; what the system takes for each block
REGISTERS_OF_AN_SM = 65536


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def compared(launcher, problem, *args, atol=2e-3, **options):
    """The launches, once output and log-sum-exp have been compared with float64."""
    p = problem
    out, lse = np.full(p.q.shape, np.nan, np.float16), np.full(p.q.shape[:3], np.nan, np.float32)
    executor = Simulator(**options)
    launcher(p, out, executor, lse, *args)
    executor.check()
    expected, expected_lse = oracle.attention(p.q, p.k, p.v, p.causal, p.scale, features=p.features)
    np.testing.assert_allclose(out, expected, atol=atol)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-5, atol=2e-5)
    return executor.launches


class Recorder(Simulator):
    """Runs nothing: `kernels` and `sizes` of what would be launched."""

    def __init__(self, sm_count=132):
        super().__init__(sm_count=sm_count)
        self.kernels, self.sizes, self.grids = [], [], []

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        self.kernels.append(kernel)
        self.sizes.append(shared_bytes)
        self.grids.append(grid)


OTHERS = [
    Tile(3, 64, 2, turns=False, polynomials=5),
    Tile(2, 96, 3, overlap=False),
    Tile(1, 128, 2, lazy=False),
    Tile(2, 48, 2, turns=False, lazy=False),
    Tile(3, 48, 2, queries=2),
    Tile(1, 64, 2, lazy=False, blocks=3, queries=4),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "tile",
    OTHERS,
    ids=lambda tile: "-".join(map(str, map(int, tile))),
)
def test_any_configuration_in_any_order(tile, rng):
    """On one multiprocessor: a block does all the work, and warpgroups skip tiles that others see."""
    q, k, v = (normal(rng, 1, 2, rows, 64) for rows in (230, 300, 300))
    for order in ("reverse", f"random:{rng.integers(2**31)}"):
        compared(run, Problem(q, k, v, causal=True), tile, True, order=order, sm_count=1, ops=False)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_grouped_heads_of_several_pieces(head_dim, rng):
    q, k, v = (normal(rng, 1, heads, rows, head_dim) for heads, rows in ((4, 200), (2, 330), (2, 330)))
    compared(launch, Problem(q, k, v, causal=True), order="random:11", sm_count=3, ops=False)


WINDOWS = [
    (64, None, (0, 0), 300, 300),
    (64, Tile(2, 48, 2, lazy=False, queries=4, two_q=True), (64, 300), 317, 315),
    (64, Tile(4, 64, 3, overlap=False, two_q=True), (200, 0), 600, 650),
    (64, Tile(1, 64, 2, turns=False, two_q=True), (5, 70), 300, 90),
    (128, None, (200, 0), 500, 480),
    (128, None, (-1, 70), 100, 500),
    (128, Tile(3, 64, 2), (100, 5), 330, 600),
    (128, TILES[128]._replace(turns=False, two_q=True), (63, 0), 500, 300),
]


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "tile", "window", "rows", "keys"), WINDOWS, ids=str)
def test_windows_in_any_order(head_dim, tile, window, rows, keys, rng):
    """Warpgroups as many tiles apart as the rings have slots, idle ones, and rows that see no key."""
    q, k, v = (normal(rng, 1, 2, n, head_dim) for n in (rows, keys, keys))
    p = Problem(q, k, v, causal=window[1] == 0, features=Features(window))
    launcher, args = (launch, ()) if tile is None else (run, (tile, p.causal))
    for order in ("reverse", f"random:{rng.integers(2**31)}"):
        compared(launcher, p, *args, order=order, sm_count=1, ops=False)


@pytest.mark.parametrize(
    ("head_dim", "tile"),
    [(64, TILES[64]._replace(stages=5, two_q=True)), (128, Tile(3, 64, 4, two_q=True))],
)
def test_a_window_gets_the_slots_that_fit(head_dim, tile):
    """Warpgroups are 3 tiles of 64 keys apart, or 2: there are two slots more than that."""
    q = np.lib.stride_tricks.as_strided(np.zeros(8, np.float16), (1, 32, 16384, head_dim), (0, 0, 0, 2))
    for window in ((127, 0), (1023, 0)):
        p = Problem(q, q, q, causal=True, features=Features(window))
        assert choose(p, None, 132) == (tile, True)
        assert block_bytes(p, tile) <= ROOM
        assert not choose(p, "in_sequence", 132)[0].two_q


DRAW = "atomicInc(next_work, works - 1)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("atomicAdd(next_work, 1)", "next_work is 8 after the launch"),
        ("atomicInc(next_work, works)", "next_work is 8 after the launch"),
        ("atomicInc(next_work, works - 2)", "next_work is [1-9]|race between blocks"),
        ("(*next_work)++", "race between blocks"),
    ],
)
def test_a_counter_that_does_not_count_back_to_0_is_reported(wrong, says, rng):
    """Four heads of two pieces on three multiprocessors: every piece is a draw, so 8 draws."""
    q, k, v = (normal(rng, 1, 4, rows, 64) for rows in (300, 330, 330))
    mutant = Mutant(15, "counter", "", (Edit(DRAW, wrong, "stage15_ping_pong.cu"),))
    with loaded(mutant) as stage:
        executor = Simulator(sm_count=3, ops=False)
        stage.launch(Problem(q, k, v, causal=True), np.empty(q.shape, np.float16), executor)
        with pytest.raises(SimulationError, match=says):
            executor.check()


@pytest.mark.long
def test_launches_share_a_counter_one_after_the_other(rng):
    """Each finds the 0 that the one before left, whatever the number of pieces was."""

    class OneCounter(Simulator):
        kept = Counter.zero()

        def counter(self):
            return self.kept

    for heads, rows, sm_count in ((4, 300, 3), (2, 700, 1), (3, 260, 5)):
        q = normal(rng, 1, heads, rows, 64)
        out, executor = np.full(q.shape, np.nan, np.float16), OneCounter(sm_count=sm_count, ops=False)
        launch(Problem(q, q, q, causal=True), out, executor)
        executor.check()
        np.testing.assert_allclose(out, oracle.attention(q, q, q, True)[0], atol=2e-3)
        assert OneCounter.kept[0] == 0


@pytest.mark.parametrize("head_dim", [64, 128])
def test_weights_that_outgrow_the_reference(head_dim, rng):
    """From the last tile to the first, as the kernel goes: some warps do their scores again, others not."""
    q, v = np.abs(normal(rng, 1, 1, 190, head_dim)), normal(rng, 1, 1, 600, head_dim)
    q[..., :50, :] *= np.float16(0.01)
    k = (np.linspace(20, 0, 600)[:, None] * np.abs(rng.standard_normal((600, head_dim)))).astype(np.float16)
    (launch_of_it,) = compared(launch, Problem(q, k[None, None], v), atol=4e-3)
    again = [row.requests for row in launch_of_it.lines() if "ldmatrix_x4(q_rmem" in row.text]
    most = (600 // TILES[head_dim].keys) * 4 * TILES[head_dim].consumers * 2 * head_dim // 16
    assert again and 0 < sum(again) < most


def test_no_access_meets_a_bank_twice(rng):
    q, k, v = (normal(rng, 1, 1, rows, 128) for rows in (128, 200, 200))
    for each in compared(launch, Problem(q, k, v)):
        assert not [(row.text, row.conflicts) for row in each.lines() if row.conflicts]


def recorded(head_dim, tile, causal=False, sm_count=132, features=OFF):
    q = np.lib.stride_tricks.as_strided(
        np.zeros(8, np.float16), (2, 16, 1024, head_dim), (0, 0, 0, 2), writeable=False
    )
    recorder = Recorder(sm_count)
    p = Problem(q, q, q, causal=causal, features=features)
    run(p, np.empty(q.shape, np.float16), recorder, None, tile, causal)
    return recorder


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_block_fits(head_dim):
    assert max(size for tile in TIMES[head_dim] for size in recorded(head_dim, tile).sizes) <= ROOM
    for tile in SHORTS.values():
        assert max(recorded(64, tile).sizes) <= ROOM_OF_AN_SM // tile.blocks - RESERVED


@pytest.mark.long
@pytest.mark.parametrize(("consumers", "blocks"), REGISTERS)
def test_no_warpgroup_waits_for_registers(consumers, blocks):
    """setmaxnreg hands out what the block got when it started, and not one register more."""
    tile = TILES[64]._replace(consumers=consumers, blocks=blocks)
    found = compile(recorded(64, tile).kernels[-1], (9, 0))
    theirs, producers = REGISTERS[consumers, blocks]
    assert consumers * theirs + producers <= (consumers + 1) * found.registers
    assert 128 * (consumers + 1) * found.registers * blocks <= REGISTERS_OF_AN_SM


def test_as_many_blocks_as_run_at_once():
    for causal in (False, True):
        recorder = recorded(64, Tile(2, 64, 4), causal)
        assert recorder.grids[-1] == 132 < 2 * 16 * 1024 // 128
        assert len(recorder.kernels) == 1
    assert recorded(64, SHORT).grids[-1] == 3 * 132


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_wgmma_stays_asynchronous(head_dim):
    """The assembler serialises nothing, and nothing spills, also where the stage is used otherwise."""
    changes = ({"overlap": False}, {"lazy": False}, {"polynomials": 3})
    short = SHORTS.values() if head_dim == 64 else ()
    for tile in (*TIMES[head_dim], *short, *(TILES[head_dim]._replace(**change) for change in changes)):
        kernel = recorded(head_dim, tile).kernels[-1]
        found = compile(kernel, (9, 0))
        assert (found.spill_bytes, found.warnings) == (0, ())


@pytest.mark.long
@pytest.mark.parametrize("head_dim", TILES)
def test_a_window_spills_nothing(head_dim):
    for tile in TIMES[head_dim]:
        kernel = recorded(head_dim, tile._replace(two_q=True), True, features=Features((1023, 0))).kernels[-1]
        found = compile(kernel, (9, 0))
        assert (found.spill_bytes, found.warnings) == (0, ())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "consumers"),
    [
        ((1, 8, 512, 64), 4),  # too few rows for any configuration: the ladder's
        ((1, 8, 2048, 64), 2),  # 64 pieces of 256 rows, 128 of 128
        ((4, 32, 4096, 64), 4),
        ((1, 8, 2048, 128), 2),
        ((4, 16, 4096, 128), 3),
    ],
)
def test_pieces_are_as_large_as_leaves_no_sm_idle(shape, consumers, causal):
    batch, heads, seq, head_dim = shape
    q = np.lib.stride_tricks.as_strided(np.zeros(head_dim, np.float16), shape, (0, 0, 0, 2))
    p = Problem(q, q, q, causal=causal)
    tile, longest_first = choose(p, None, 132)
    assert tile.consumers == consumers
    assert longest_first == (causal and batch * heads * -(-seq // (64 * consumers)) > 132)
    assert choose(p, "in_sequence", 132)[0].consumers == TILES[head_dim].consumers


@pytest.mark.parametrize(
    ("shape", "causal", "tile"),
    [
        ((4, 32, 4096, 64), False, WITH_Q[1]),  # whole tiles of 256 rows
        ((4, 32, 4096, 64), True, WITH_Q[1]),
        ((16, 32, 4120, 64), False, WITH_Q[0]),
        ((16, 32, 4120, 64), True, WITH_Q[1]),
        ((1, 32, 16384, 64), False, WITH_Q[0]),
        ((2, 16, 1024, 64), False, TILES[64]),
        ((64, 16, 128, 64), False, SHORT),
        ((64, 16, 77, 64), False, SHORTS[80]),  # one tile of keys
        ((128, 16, 64, 64), False, SHORT),
        ((64, 16, 128, 64), True, Tile(2, 128, 3)),
        ((8, 16, 128, 64), False, Tile(2, 128, 3)),
    ],
)
def test_columns_of_q_in_registers_where_they_have_been_measured(shape, causal, tile):
    q = np.lib.stride_tricks.as_strided(np.zeros(shape[3], np.float16), shape, (0, 0, 0, 2))
    assert choose(Problem(q, q, q, causal=causal), None, 132)[0] == tile
    with_features = choose(Problem(q, q, q, causal=causal, features=Features(softcap=30.0)), None, 132)[0]
    assert not with_features.queries


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_configuration_of_the_table_is_right(head_dim, rng):
    q, k, v = (normal(rng, 1, 1, rows, head_dim) for rows in (150, 430, 430))
    short = {*SHORTS.values()} if head_dim == 64 else set()
    for tile in (*TIMES[head_dim], *short):
        causal = bool(rng.integers(2))
        compared(run, Problem(q, k, v, causal=causal), tile, causal, order=f"random:{rng.integers(2**31)}")
