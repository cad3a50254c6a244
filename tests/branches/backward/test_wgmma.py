"""The backward pass on wgmma: right in every case, order and configuration, and each barrier needed."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from flashcore_numba.branches.backward.backward_wgmma import REGISTERS, STAGE, run
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.wgmma_tiles import TILES, Tile, in_turn
from flashcore_numba.checks.deletions import HARMLESS, ORDERING, OTHER
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.problems import SimulationError

from . import running
from .running import poisoned

ROOM = 227 * 1024  # bytes of shared memory that a block may have at compute capability 9.0
SMALL = Tile(64, 2)
TEXT = source("backward_wgmma").text()


class Played(Simulator):
    """Runs the kernel from another file, and keeps what it was launched with; or runs nothing."""

    def __init__(self, path=None, runs=True, **options):
        super().__init__(**options)
        self.path, self.runs, self.kernels, self.args, self.sizes = path, runs, {}, {}, {}

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        self.kernels[kernel.entry], self.args[kernel.entry] = kernel, args
        self.sizes[kernel.entry] = shared_bytes
        if self.path and kernel.file == "backward_wgmma":
            kernel = replace(kernel, path=self.path)
        if self.runs:
            super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)


def wrong(x, executor, tile=None):
    """The gradients of `x` that are not right, with what the judge says."""
    return running.wrong(x, partial(run, executor=executor, tile=tile or TILES[x.forward.q.shape[3]]))


def drawn(*args, heads=1, **options):
    return running.drawn(*args, heads=heads, **options)


def packed(rng, head_dim=64, window=(-1, -1)):
    """Sequences without rows, keys or both; key blocks that no row sees, rows that see no key."""
    rows, keys = (130, 0, 40, 0, 200), (0, 140, 300, 0, 20)
    bounds = (np.array([0, *lengths]).cumsum().astype(np.int32) for lengths in (rows, keys))
    features = Features(window, 0.0, None, None, None, *bounds)
    return drawn(rng, sum(rows), sum(keys), head_dim, heads=2, kv_heads=1, features=features)


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
@pytest.mark.parametrize("head_dim", STAGE.head_dims)
def test_every_case(head_dim, variant, rng):
    """Of all but the plainest, some cases."""
    stage = replace(STAGE, head_dims=(head_dim,))
    every = names(stage)
    plain = head_dim == 64 and variant == STAGE.name
    chosen = every if plain else rng.choice(every, 30, replace=False)
    report = check_stage(stage, variant=variant, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen) and len(every) > 90


def test_the_cases_that_tell_most():
    telling = (
        "causal 140 rows, 300 keys, bfloat16", "causal, 8 query heads on 1",
        "ragged: empty sequences on both sides", "ragged and seqused_k: NaN behind, causal",
    )  # fmt: skip
    report = check_stage(STAGE, names=telling)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(telling)


TRIED = [
    (64, Tile(128, 2, ping_pong=False)),
    (64, Tile(64, 3, ping_pong=False, dv_early=True)),
    (128, Tile(64, 3, ping_pong=False)),
    (128, Tile(64, 3, dv_early=True)),
]


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "tile"), TRIED)
def test_any_configuration_in_any_order(head_dim, tile, rng):
    """Rings are filled again, heads share keys, key blocks see different numbers of tiles."""
    x = drawn(rng, 600, 300, head_dim, heads=2, kv_heads=1, causal=True)
    for order in ("reverse", f"random:{rng.integers(1000)}"):
        executor = Played(order=order, ops=False)
        assert not wrong(x, executor, tile)
        executor.check()
    assert executor.sizes["backward_wgmma"] <= ROOM


@pytest.mark.parametrize("head_dim", few([64, 128], 128))
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 129), (129, 1), (257, 40)])
def test_lengths_that_fill_no_tile(rows, keys, head_dim, rng):
    executor = Played(ops=False)
    assert not wrong(drawn(rng, rows, keys, head_dim), executor)
    executor.check()


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_windows_of_packed_sequences(head_dim, deterministic, rng):
    executor = Played(order=f"random:{rng.integers(1000)}", ops=False)
    tile = TILES[head_dim]._replace(deterministic=deterministic)
    assert not wrong(packed(rng, head_dim, (30, 5)), executor, tile)
    executor.check()


def test_lse_of_ten_thousand(rng):
    """P is the softmax of scores whose differences float32 still knows; keys that are not there stay out."""
    x = drawn(rng, 70, 100)
    x = backward_inputs(x.forward.but(q=(100 * x.forward.q).astype(np.float16), scale=10.0), rng)
    assert np.abs(x.lse).max() > 1e4
    assert not wrong(x, Played(ops=False))


@pytest.mark.long
def test_gradients_of_any_strides(rng):
    """[B, S, H, D] in memory, as frameworks have it."""
    x = drawn(rng, 150, 200, heads=2, batch=2)
    problem = x.problem({name: turned(array) for name, array in x.arrays.items()})
    found, right = {name: turned(array) for name, array in poisoned(problem).items()}, BACKWARD.reference(x)
    STAGE.launch(problem, executor=Played(ops=False), **found)
    for each in GRADIENTS:
        assert BACKWARD.judge(each, found[each.name], right, None).passed


def turned(array):
    if array.ndim < 4:
        return array
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def added(x, tile, executor):
    """The sums of dQ in float32, [B, H, padded rows, D], of 64 by 8 pieces in the order of registers."""
    problem = x.problem(x.arrays)
    run(problem, executor=executor, tile=tile, **poisoned(problem))
    executor.check()
    return np.array(executor.args["finish"][0])


@pytest.mark.long
@pytest.mark.parametrize("order", ["lockstep", "reverse", "random:5"])
def test_blocks_add_in_turn(order, rng):
    """Bit for bit the sum, by falling keys, of what each block of keys adds when it is alone."""
    rows, blocks = 330, 4
    x = drawn(rng, rows, 128 * blocks)
    found = added(x, SMALL._replace(deterministic=True), Played(order=order, ops=False))
    alone = []
    for block in range(blocks):
        keys = slice(128 * block, 128 * block + 128)
        some = x.forward.but(k=x.forward.k[:, :, keys], v=x.forward.v[:, :, keys])
        alone.append(added(x.but(forward=some), SMALL, Played(ops=False)))
    expected = np.zeros(alone[0].shape, np.float32)
    for one in alone[::-1]:
        expected += one
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("masked", ["nothing", "causal", "window"])
def test_every_order_gives_the_same_bits(masked, rng):
    features = Features(window=(40, 9)) if masked == "window" else None
    x = drawn(rng, 200, 300, heads=2, kv_heads=1, causal=masked == "causal", features=features)
    results = set()
    for order in ("lockstep", "reverse", f"random:{rng.integers(1000)}"):
        found, executor = poisoned(x.problem(x.arrays)), Played(order=order, ops=False)
        STAGE.launch(x.problem(x.arrays), executor=executor, variant="deterministic", **found)
        executor.check()
        results.add(b"".join(array.tobytes() for array in found.values()))
    assert len(results) == 1


@pytest.mark.long
def test_turns_begin_at_0(rng):
    """Blocks begin in order on the CPU executor, so none would wait there for what the memory held."""
    found = []

    class Watching(Played):
        def launch(self, kernel, grid, block, *args, shared_bytes=0):
            if kernel.entry == "backward_wgmma":
                found.append(np.array(args[-1]))
            super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)

    assert not wrong(drawn(rng, 330, 200, heads=2), Watching(), SMALL._replace(deterministic=True))
    assert found[0].shape == (2 * 384 // 64,)
    assert not found[0].any()


@pytest.mark.long
@pytest.mark.parametrize("order", ["lockstep", "reverse", "random:5"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_heads_go_side_by_side(deterministic, order, rng):
    """Three of five, then the other two."""
    x, executor = drawn(rng, 70, 400, heads=5), Played(order=order, ops=False)
    tile = TILES[64]._replace(deterministic=deterministic, heads_together=3)
    assert not wrong(x, executor, tile)
    executor.check()


def test_as_many_heads_as_have_two_blocks_for_an_sm(rng):
    found = []
    for keys, heads, sm_count in ((512, 16, 16), (512, 4, 16), (2000, 16, 16), (2000, 16, 7), (1, 2, 16)):
        x = drawn(rng, 1, keys, heads=heads)
        found.append(in_turn(x.problem(x.arrays), SMALL, sm_count).heads_together)
    assert found == [8, 4, 2, 1, 2]


def kernel_of(x, tile):
    executor = Played(runs=False)
    problem = x.problem(x.arrays)
    run(problem, executor=executor, tile=tile, **poisoned(problem))
    return executor.kernels["backward_wgmma"], executor.sizes["backward_wgmma"]


USED = np.full(1, 20, np.int32)
FEATURES = {
    "plain": {},
    "window": {"features": Features(window=(9, 3))},
    "seqused_k": {"features": Features(seqused_k=USED)},
    "bfloat16": {"element": BFLOAT16},
}


@pytest.mark.parametrize("deterministic", few([False, True], False))
@pytest.mark.parametrize("feature", few([*FEATURES, "packed", "packed and window"], "plain"))
@pytest.mark.parametrize("head_dim", [64, 128])
def test_wgmma_stays_asynchronous(head_dim, feature, deterministic, rng):
    """The assembler serialises nothing and says nothing, nothing spills, and setmaxnreg can return."""
    if feature in FEATURES:
        x = drawn(rng, 20, 20, head_dim, **FEATURES[feature])
    else:
        x = packed(rng, head_dim, (9, 3) if "window" in feature else (-1, -1))
    kernel, size = kernel_of(x, TILES[head_dim]._replace(deterministic=deterministic))
    found = compiled(kernel, (9, 0))
    assert not found.warnings
    # With the turns, bounds of windows and sequences do not fit the 24 registers of warpgroup 0.
    bounded = "window" in feature or "packed" in feature
    assert found.spill_bytes <= (160 if deterministic and bounded else 0)
    consumers, producers = REGISTERS
    assert 2 * consumers + producers <= 3 * found.registers
    assert size <= ROOM


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "tile"), TRIED)
def test_what_a_sweep_can_try_stays_asynchronous(head_dim, tile, rng):
    found = compiled(kernel_of(drawn(rng, 20, 20, head_dim), tile)[0], (9, 0))
    assert (found.spill_bytes, found.stack_bytes, found.warnings) == (0, 0, ())


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
def test_additions_move_whole_sectors_and_no_bank_is_met_twice(head_dim, rng):
    executor = Played()
    assert not wrong(drawn(rng, 140, 128, head_dim), executor)
    launch = executor.launches[1]
    assert not [(row.text, row.conflicts) for row in launch.lines() if row.conflicts]
    totals, sums = launch.totals(), -(-140 // TILES[head_dim].rows) * TILES[head_dim].rows * head_dim * 4
    assert totals["global_atomic_bytes_requested"] == totals["global_atomic_bytes_moved"] == sums
    assert totals["global_atomic_requests"] == sums // 512


CODE = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), TEXT)
ORDERS = [call for call in ORDERING.finditer(CODE) if not OTHER.search(call["name"])]
# What nothing here can report, by what follows it in the source, and why it stays.
UNSEEN = {
    "if (!DV_EARLY) issue_pv": "Turns order products in time, for speed: no memory depends on them.",
    "ptx::wgmma_pin(dv_rmem);\n        ptx::wgmma_pin(p_rmem);\n    };": "dK's covers dV, too.",
    "if (lane == 0) ptx::mbarrier_arrive(added)": "A warp's lanes add together on the CPU executor.",
    "atomicExch(turn": "An addition is done at once on the CPU executor; on a GPU it is under way.",
    "#pragma unroll\n        for (int k = 0; k < KEYS": "Those before suffice, but the assembler adds one.",
}


TURN = "if (DETERMINISTIC) ptx::mbarrier_wait(may_add, number % 2);  // it is the block's turn"


def reason(call):
    return next((why for text, why in UNSEEN.items() if CODE[call.end() :].lstrip().startswith(text)), None)


def line_of(call):
    number = TEXT.count("\n", 0, call.start())
    return TEXT.splitlines()[number].strip()


def test_every_exception_is_one():
    """The other waits and barriers are mutants, which the cases kill: see test_mutants."""
    found = [call for call in ORDERS if reason(call) is not None]
    assert len(found) == len(UNSEEN) < len(ORDERS)
    harmless = [call for call in ORDERS if ("backward_wgmma.cu", line_of(call)) in HARMLESS]
    assert set(found) < set(harmless) and [line_of(call) for call in harmless if call not in found] == [TURN]


@pytest.mark.long
def test_a_block_that_adds_before_its_turn_is_reported(rng, tmp_path):
    path = tmp_path / "backward_wgmma.cu"
    path.write_text(TEXT.replace(TURN, ""))
    tile = TILES[64]._replace(deterministic=True)
    with pytest.raises(SimulationError, match="deadlock"):
        added(drawn(rng, 330, 512), tile, Played(path, order="reverse", ops=False))
