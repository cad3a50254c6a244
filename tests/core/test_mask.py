"""What a query row sees: against a brute-force mask, in Numba, and derived nowhere else."""

import re
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba.core.mask import Mask
from flashcore_numba.stages.parts.mask import before_window, diagonal, interval, window_end

PACKAGE = Path(__file__).resolve().parents[2] / "flashcore_numba"


def brute_force(seq_q: int, seq_k: int, left: int, right: int) -> np.ndarray:
    """bool [S_q, S_k], pair by pair, from the words of FlashAttention's window: `left` keys before the
    diagonal that ends in the corner at the bottom right, `right` after it."""
    seen = np.zeros((seq_q, seq_k), bool)
    for row in range(seq_q):
        for key in range(seq_k):
            distance = (seq_k - 1 - key) - (seq_q - 1 - row)  # keys from `key` up to the diagonal
            seen[row, key] = (left < 0 or distance <= left) and (right < 0 or -distance <= right)
    return seen


def masks(rng: np.random.Generator) -> list[Mask]:
    bounds = [(-1, -1), (-1, 0), (0, 0), (3, 0), (-1, 2), (2, -1), (0, 4)]
    found = [
        Mask(q, k, *both) for both in bounds for q, k in ((1, 1), (9, 4), (4, 9), (6, 6), (1, 7), (7, 1))
    ]
    return found + [
        Mask(*rng.integers(1, 20, 2).tolist(), *rng.integers(-1, 20, 2).tolist()) for _ in range(200)
    ]


def test_interval_is_the_mask(rng):
    blind = 0
    for mask in masks(rng):
        seen = brute_force(mask.seq_q, mask.seq_k, mask.left, mask.right)
        np.testing.assert_array_equal(mask.matrix(), seen)
        assert mask.pairs == seen.sum()
        begins, ends = mask.interval(np.arange(mask.seq_q))
        for row in range(mask.seq_q):
            begin, end = mask.interval(row)
            assert 0 <= begin <= end <= mask.seq_k and end - begin == seen[row].sum()
            assert (begin, end) == (begins[row], ends[row]) and type(begin) is type(end) is int
            assert seen[row, begin:end].all()
            blind += begin == end
        for key in range(mask.seq_k):
            begin, end = mask.rows(key)
            assert end - begin == seen[:, key].sum() and seen[begin:end, key].all()
    assert blind > 50, "rows without keys were not tried"


def test_tiles_hold_every_key_that_some_row_sees(rng):
    for mask in masks(rng):
        seen = brute_force(mask.seq_q, mask.seq_k, mask.left, mask.right)
        first = int(rng.integers(mask.seq_q))
        last = int(rng.integers(first, mask.seq_q))
        keys = int(rng.integers(1, 6))
        begin, end = mask.tiles(first, last, keys)
        (wanted,) = np.nonzero(seen[first : last + 1].any(axis=0))
        if wanted.size:
            assert (begin, end) == (wanted[0] // keys, wanted[-1] // keys + 1)


def test_rows_past_the_last_one_see_what_it_sees():
    for row in (5, 6, 100):
        assert Mask(5, 7, right=0).interval(row) == (0, 7)


def test_pairs_of_a_long_problem_take_no_time():
    n = 1 << 30
    assert Mask(n, n, right=0).pairs == n * (n + 1) // 2
    assert Mask(n, n, left=0, right=0).pairs == n


@pytest.mark.parametrize("causal", [False, True])
def test_numba_has_the_same_interval(rng, causal):
    for seq_q, seq_k in [(1, 1), (9, 4), (4, 9), *rng.integers(1, 50, (50, 2)).tolist()]:
        mask = Mask(seq_q, seq_k, right=0 if causal else -1)
        for row in range(seq_q + 3):
            assert interval.py_func(row, seq_q, seq_k, causal) == mask.interval(row)


def test_numba_has_the_same_window(rng, monkeypatch):
    monkeypatch.setitem(window_end.py_func.__globals__, "diagonal", diagonal.py_func)
    for mask in masks(rng):
        shape = mask.seq_q, mask.seq_k
        for row in range(mask.seq_q):
            place = diagonal.py_func(row, *shape)
            begin = sum(before_window.py_func(place - key, mask.left) for key in range(mask.seq_k))
            assert (begin, window_end.py_func(row, *shape, mask.right)) == mask.interval(row)


DERIVED = re.compile(
    r"(?:S_k|seq_k|shape\[2\])\)?\s*-\s*\(?(?:\w+\.)*(?:S_q|seq_q)\b"
    r"|(?:seq_q|S_q)\s*-\s*(?:\w+\.)*(?:S_k|seq_k)\b|np\.tril?\(|seq \* \(\w+\.seq \+ 1\)"
)
HOMES = {"core/mask.py", "stages/parts/mask.py"}


def test_nobody_else_derives_it():
    """A source scan for the alignment of the mask: prose and the text of exercises do not count."""
    assert all(DERIVED.search((PACKAGE / home).read_text()) for home in HOMES), "the scan sees nothing"
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name in HOMES:
            continue
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"|""".*?"""', '""', path.read_text(), flags=re.DOTALL)
        lines = text.splitlines()
        found += [f"{name}: {line.strip()}" for line in lines if DERIVED.search(line.partition("#")[0])]
    assert not found, "what a row sees is `core.mask.Mask`'s to say:\n" + "\n".join(found)
