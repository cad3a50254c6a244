"""Which rows each rank holds, and which keys they see at which step."""

import numpy as np
import pytest

from flashcore_numba.branches.ring.schedule import Step, steps
from flashcore_numba.branches.ring.sequence import Split, even
from flashcore_numba.core.errors import ArgumentError, UnsupportedError


def test_zigzag_gives_a_rank_a_piece_of_each_end() -> None:
    split = even(9, 2)
    assert split.bounds == (0, 2, 4, 6, 9)
    assert [split.pieces(rank) for rank in range(2)] == [(0, 3), (1, 2)]
    assert split.indices(0).tolist() == [0, 1, 6, 7, 8]
    assert (split.half(0), split.rows(0), split.rows(1), split.most_rows) == (2, 5, 4, 5)


@pytest.mark.parametrize("zigzag", [True, False])
def test_what_is_cut_can_be_joined(rng: np.random.Generator, zigzag: bool) -> None:
    split = Split((0, 3, 4, 9, 11, 12, 19), zigzag)
    whole = rng.standard_normal((2, 19, 3))
    parts = [split.cut(whole, rank, axis=1) for rank in range(3)]
    assert sum(part.shape[1] for part in parts) == 19
    assert np.array_equal(split.joined(parts, axis=1), whole)
    assert zigzag or np.array_equal(np.concatenate(parts, axis=1), whole)


def test_the_steps_of_two_ranks() -> None:
    split = even(8, 2)
    every, first, second = slice(0, 4), slice(0, 2), slice(2, 4)
    assert steps(split, 0, True) == (Step(0, every, every, True), Step(1, second, every, False))
    assert steps(split, 1, True) == (Step(1, every, every, True), Step(0, every, first, False))
    assert steps(split, 1, False) == (Step(1, every, every, False), Step(0, every, every, False))


def test_bounds_in_a_list() -> None:
    bounds = [0, 3, 4, 6, 9]
    assert steps(Split(bounds), 1, True) == steps(Split(tuple(bounds)), 1, True)  # type: ignore[arg-type]


def test_the_last_step_is_one_of_all_rows() -> None:
    """So it can write the output; only rank 0 has no such step."""
    split = even(64, 4)
    assert [steps(split, rank, True)[-1].rows.start for rank in range(4)] == [8, 0, 0, 0]


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: even(7, 4), "length is 7: 4 ranks need at least 8 rows"),
        (lambda: even(7, 0), "ranks is 0"),
        (lambda: even(7.5, 2), "length is 7.5: a whole number"),
        (lambda: Split((0, 1.5, 3)), "bounds is 1.5: a whole number"),
        (lambda: Split((0, 3, 4), zigzag="no"), "zigzag is 'no': it must be True or False"),
        (lambda: Split((0, 3)), "bounds has 2 numbers: it must have 2 N"),
        (lambda: Split((0, 3, 3)), r"bounds is \(0, 3, 3\): it must begin with 0 and rise"),
        (lambda: Split((1, 3, 4)), "must begin with 0"),
        (lambda: Split(7), "bounds is 7: 2 N"),
    ],
)
def test_a_bad_split_is_refused(make: object, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        make()


def test_causal_needs_zigzag() -> None:
    with pytest.raises(UnsupportedError, match="needs zigzag=True"):
        steps(even(8, 2, zigzag=False), 0, True)
