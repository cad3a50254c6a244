"""The ways with FlashCore's kernels on the simulator and the CPU executor, against float64."""

from typing import Any

import numpy as np
import pytest
from matrix import few

from flashcore_numba.attention import attention
from flashcore_numba.branches.backward import bounds as gradient_bounds
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.ring import numerics
from flashcore_numba.branches.ring.checking import decoded, drawn, forward, gradients
from flashcore_numba.branches.ring.machine import Order
from flashcore_numba.branches.ring.numerics import Float32, Stages
from flashcore_numba.branches.ring.programs import BACKWARD
from flashcore_numba.branches.ring.sequence import Split, even
from flashcore_numba.checks import bounds
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import gpu
from flashcore_numba.core.element import BFLOAT16, FLOAT16, Element
from flashcore_numba.core.errors import UnsupportedError

LATE = Order("transfers late")


def judged(x: Inputs, out: np.ndarray, lse: np.ndarray) -> None:
    ref = bounds.reference(x.q, x.k, x.v, x.causal)
    for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref)):
        assert verdict.passed, (verdict.where, verdict.error, verdict.bound, verdict.reason)


@pytest.mark.parametrize(
    "stage, dim, rows, element",
    few(
        [
            (5, 64, 8, FLOAT16),
            *((stage, dim, rows, element)
              for stage, rows in ((12, 32), (13, 32), (14, 64), (15, 64), (16, 32))
              for dim, element in ((64, FLOAT16), (128, BFLOAT16))),
        ],
        (5, 64, 8, FLOAT16),
        (15, 64, 64, FLOAT16),
    ),
)  # fmt: skip
@pytest.mark.parametrize("causal", [True, False])
def test_a_stage_over_a_ring(
    rng: np.random.Generator, stage: int, dim: int, rows: int, element: Element, causal: bool
) -> None:
    """Two ranks; grouped heads, and pieces of different lengths."""
    split = Split((0, rows // 2 - 3, rows, 3 * rows // 2 + 2, 2 * rows))
    x = drawn(rng, (1, 2, 1, split.length, dim), causal, dtype=element.dtype.type)
    (found,) = forward("pull", split, [x], LATE, Stages(stage))
    assert found.out.dtype == element.dtype
    judged(x, *found)


@pytest.mark.parametrize("stage, merges", [(5, False), (13, False), (12, True), (15, True), (None, True)])
def test_which_stages_merge_as_they_write(stage: int | None, merges: bool) -> None:
    assert Stages(stage).merges == merges


def test_stage_15_merges_in_float32(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is rounded to float16, and nothing is merged behind the kernel."""
    monkeypatch.setattr(numerics, "put", None)
    x = drawn(rng, (1, 1, 1, 64, 64), True, dtype=np.float16)
    (found,) = forward("pull", even(64, 2), [x], LATE, Stages(15))
    judged(x, *found)


@pytest.mark.parametrize(
    "way, ranks", few([("ring", 3), ("ring", 4), ("gather", 3), ("ulysses", 2)], ("ring", 3))
)
def test_other_ways_and_more_ranks(rng: np.random.Generator, way: str, ranks: int) -> None:
    x = drawn(rng, (1, 2, 2, 8 * ranks + 1, 64), True, dtype=np.float16)
    (found,) = forward(way, even(8 * ranks + 1, ranks, way != "ulysses"), [x], LATE, Stages(5))
    judged(x, *found)


@pytest.mark.long
@pytest.mark.parametrize(
    "dim, element, causal",
    [(dim, element, causal) for dim, element in ((64, FLOAT16), (128, BFLOAT16)) for causal in (True, False)],
)
def test_one_launch_over_keys_that_come(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dim: int, element: Element, causal: bool
) -> None:
    """Every launch of the kernel is told which keys are there; a launch has no less than 64 keys."""
    told: list[Any] = []
    monkeypatch.setattr(
        numerics, "attention", lambda *a, **how: told.append(how.get("keys_from")) or attention(*a, **how)
    )
    split = Split((0, 61, 128, 194, 256))
    x = drawn(rng, (1, 2, 1, split.length, dim), causal, dtype=element.dtype.type)
    (found,) = forward("gated", split, [x], LATE, Stages(15))
    judged(x, *found)
    assert len(told) == (4 if causal else 2) and all(each is not None for each in told)


def test_a_stage_that_does_not_wait_is_refused(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = drawn(rng, (1, 1, 1, 16, 64), True, dtype=np.float16)
    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(gpu, "compute_capability", lambda: (8, 0))
    with pytest.raises(UnsupportedError, match=r"this GPU has 8\.0; way='gather' runs on it"):
        forward("gated", even(16, 2), [x], LATE, Stages())
    with pytest.raises(UnsupportedError, match="way='gated' needs a stage that waits for keys"):
        forward("gated", even(16, 2), [x], LATE, Stages(5))


def test_ulysses_is_one_rank_bit_for_bit(rng: np.random.Generator) -> None:
    """It runs the same kernel on the same rows: only who does it differs."""
    x = drawn(rng, (1, 4, 2, 20, 64), True, dtype=np.float16)
    one, two = (forward("ulysses", even(20, n, zigzag=False), [x], LATE, Stages(5))[0] for n in (1, 2))
    assert np.array_equal(one.out, two.out) and np.array_equal(one.lse, two.lse)


@pytest.mark.parametrize("heads, ends", [((2, 1), (9, 14)), ((2, 2), (3, 12)), ((1, 1), (6, 6))])
def test_two_pieces_of_tensors_in_one_call(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, heads: tuple[int, int], ends: tuple[int, int]
) -> None:
    """Of heads between others, as `gather` gives them; the answer is that of two calls."""
    torch = pytest.importorskip("torch")
    calls: list[dict] = []
    monkeypatch.setattr(numerics, "attention", lambda *a, **how: calls.append(how) or attention(*a, **how))
    wide = [
        rng.standard_normal((1, h + 2, s, 64)).astype(np.float16)
        for h, s in zip((*heads, heads[1]), (6, 14, 14), strict=True)
    ]
    q, k, v = (x[:, 1:-1] for x in wide)
    out, lse = (
        torch.full(wide[0].shape, torch.nan, dtype=torch.half),
        torch.full(wide[0].shape[:3], torch.nan),
    )
    reads = tuple(torch.from_numpy(x)[:, 1:-1] for x in wide)
    writes = out[:, 1:-1], lse[:, 1:-1]
    numerics.attend_pieces(reads, writes, numerics=Stages(5), half=3, ends=ends, scale=None)
    assert len(calls) == 1 and out[:, [0, -1]].isnan().all() and lse[:, [0, -1]].isnan().all()
    for rows, end in ((slice(0, 3), ends[0]), (slice(3, 6), ends[1])):
        x = Inputs(q[:, :, rows], k[:, :, :end], v[:, :, :end], True)
        judged(x, *(each[:, :, rows].numpy() for each in writes))


@pytest.mark.long
@pytest.mark.parametrize("way", [*BACKWARD])
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernels_gradients(rng: np.random.Generator, causal: bool, way: str) -> None:
    split = even(18, 2, way != "ulysses")
    x = backward_inputs(drawn(rng, (1, 4, 2, split.length, 64), causal, dtype=np.float16), rng)
    (found,) = gradients(way, split, [x], LATE, Stages(backward_stage="backward/recompute"))
    ref = gradient_bounds.reference(x)
    for output, value in zip(GRADIENTS, found, strict=True):
        verdict = gradient_bounds.judge(output, value, ref, None)
        assert verdict.passed, (output.name, verdict.where, verdict.error, verdict.bound)


@pytest.mark.long
def test_gradients_of_ulysses_are_those_of_one_rank(rng: np.random.Generator) -> None:
    x = backward_inputs(drawn(rng, (1, 4, 2, 10, 64), True, dtype=np.float16), rng)
    numerics = Stages(backward_stage="backward/recompute")
    one, two = (gradients("ulysses", even(10, n, zigzag=False), [x], LATE, numerics)[0] for n in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_decoding_with_a_kernel(rng: np.random.Generator) -> None:
    x = drawn(rng, (1, 4, 2, 2, 64), True, keys=21, dtype=np.float16)
    (ranks,) = decoded((9, 0, 12), [x], LATE, Stages(5))
    for found in ranks:
        judged(x, *found)


def test_float16_in_float32_arithmetic(rng: np.random.Generator) -> None:
    """What `RingAttention` does on a CPU: tensors of 16 bits, sums of 32."""
    for element in (FLOAT16, BFLOAT16):
        x = drawn(rng, (1, 2, 1, 19, 64), True, dtype=element.dtype.type)
        (found,) = forward("ring", even(19, 3), [x], LATE, Float32())
        judged(x, *found)
