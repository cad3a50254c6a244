"""write_kv_pages(): arrays as models have them, in place, refusals; what has no slot is left alone."""

import numpy as np
import pytest

import flashcore_numba
from flashcore_numba import ArgumentError, UnsupportedError, write_kv_pages
from flashcore_numba.branches.prepare import oracle
from flashcore_numba.branches.prepare.inputs import drawn
from flashcore_numba.branches.prepare.outputs import WRITTEN

POISON = 0x7E5A
NAMES = ("slot_mapping", "positions", "cos", "sin", "norm_eps", "q_weight", "k_weight", "interleaved")


def of(x):
    """q, k and v as views of one packed array [tokens, (H + 2 H_kv) * D], and the options."""
    rows = [each[0].swapaxes(0, 1) for each in (x.q, x.k, x.v)]
    tokens, _, d = rows[0].shape
    packed = np.concatenate([each.reshape(tokens, -1) for each in rows], axis=1)
    ends = np.cumsum([each.shape[1] * d for each in rows])[:-1]
    views = [part.reshape(tokens, -1, d) for part in np.split(packed, ends, axis=1)]
    assert all(view.base is not None and view.strides[0] == packed.strides[0] for view in views)
    return packed, views, {name: getattr(x, name) for name in NAMES}


def pools(x, by_heads=False):
    """[pages, page, H_kv, D] of poison, K and V in one array; by_heads: [pages, H_kv, page, D] in memory."""
    _, kv_heads, _, d = x.k.shape
    shape = (x.pages, 2, kv_heads, x.page, d) if by_heads else (x.pages, 2, x.page, kv_heads, d)
    both = np.full(shape, POISON, np.uint16).view(np.float16)
    found = both[:, 0], both[:, 1]
    return both, [each.swapaxes(1, 2) if by_heads else each for each in found]


def right(x, *found):
    ref = oracle.reference(x)
    return all(
        oracle.judge(output, value, ref, None).passed for output, value in zip(WRITTEN, found, strict=True)
    )


def untouched(x, pool):
    """Whether all slots but those of the tokens hold the poison, bit for bit."""
    bits = np.ascontiguousarray(pool).reshape(x.pages * x.page, -1).view(np.uint16)
    return (np.delete(bits, x.slot_mapping[x.slot_mapping >= 0], axis=0) == POISON).all()


@pytest.mark.parametrize("by_heads", [False, True])
def test_packed_projections_go_into_pages_of_one_array(by_heads, rng):
    x = drawn(rng, 21, 4, 2, 64, padding=3, page=4, pages=20)
    packed, (q, k, v), options = of(x)
    before = packed.copy()
    _, (k_pool, v_pool) = pools(x, by_heads)
    out = write_kv_pages(q, k, v, k_pool, v_pool, **options)
    assert out.shape == q.shape and isinstance(out, np.ndarray)
    assert right(x, out.swapaxes(0, 1)[None], k_pool, v_pool)
    assert untouched(x, k_pool) and untouched(x, v_pool)
    assert np.array_equal(packed.view(np.uint16), before.view(np.uint16))


def test_in_place(rng):
    x = drawn(rng, 12, 4, 2, 64, padding=2)
    packed, (q, k, v), options = of(x)
    before = packed.copy()
    _, (k_pool, v_pool) = pools(x)
    assert write_kv_pages(q, k, v, k_pool, v_pool, **options, out=q) is q
    assert right(x, q.swapaxes(0, 1)[None], k_pool, v_pool)
    padding = x.slot_mapping < 0
    assert np.array_equal(packed[padding].view(np.uint16), before[padding].view(np.uint16))
    assert np.array_equal(packed[:, 256:].view(np.uint16), before[:, 256:].view(np.uint16))
    with pytest.raises(ArgumentError, match="out overlaps q"):
        write_kv_pages(q, k, v, k_pool, v_pool, **options, out=q[:])
    with pytest.raises(ArgumentError, match="out overlaps k"):
        write_kv_pages(q, k, v, k_pool, v_pool, **options, out=packed.reshape(12, 8, 64)[:, 4:])


def test_rows_that_are_not_aligned_are_copied(rng):
    x = drawn(rng, 5, 2, 2, 64)
    _, (q, k, v), options = of(x)
    _, (k_pool, v_pool) = pools(x)
    wide = np.zeros((5, 2, 67), np.float16)
    wide[:, :, 1:65] = q
    out = write_kv_pages(wide[:, :, 1:65], k, v, k_pool, v_pool, **options)
    assert right(x, out.swapaxes(0, 1)[None], k_pool, v_pool)


def test_only_the_cache_is_written(rng):
    """Neither norm nor RoPE: every row keeps its bits."""
    x = drawn(rng, 6, 2, 1, 128, rotated=0, norm_eps=None)
    _, (q, k, v), _ = of(x)
    _, (k_pool, v_pool) = pools(x)
    out = write_kv_pages(q, k, v, k_pool, v_pool, x.slot_mapping.astype(np.int32))
    assert np.array_equal(out, q)
    for pool, rows in ((k_pool, k), (v_pool, v)):
        assert np.array_equal(pool.reshape(-1, 1, 128)[x.slot_mapping], rows)


def test_a_cache_that_grows(rng):
    """Token by token into pages that come in any order, then a request leaves and another takes its pages."""
    page, d, pages = 4, 64, 6
    k_pool, v_pool = (np.full((pages, page, 1, d), np.nan, np.float16) for _ in range(2))
    keys = rng.standard_normal((3, 11, 1, d)).astype(np.float16)
    free = list(rng.permutation(pages))
    for request in range(3):
        table = [free.pop() for _ in range(3)]
        for first in (0, 7, 8, 9, 10):
            tokens = np.arange(first, 7 if first == 0 else first + 1)
            slots = np.array([table[t // page] * page + t % page for t in tokens])
            rows = keys[request, tokens]
            write_kv_pages(rows, rows, -rows, k_pool, v_pool, slots)
        seen = k_pool[table].reshape(-1, 1, d)[:11], v_pool[table].reshape(-1, 1, d)[:11]
        assert np.array_equal(seen[0], keys[request]) and np.array_equal(seen[1], -keys[request])
        free = [*table, *free] if request else free


def one_after(pool, slots):
    """The slots, of which one is the first that the pool does not have."""
    return np.where(np.arange(len(slots)) == 0, pool.shape[0] * pool.shape[1], slots)


BAD = {
    "k has 5 tokens": lambda a: a | {"k": a["k"][:5], "v": a["v"][:5]},
    "k_pool has shape": lambda a: a | {"k_pool": a["k_pool"][0]},
    "k_pool has dtype float32: accepted are float16, as q has, and float8_e4m3fn": (
        lambda a: a | {"k_pool": a["k_pool"].astype(np.float32)}
    ),
    "k_pool has 0 keys of a page": lambda a: a | {"k_pool": a["k_pool"][:, :0], "v_pool": a["v_pool"][:, :0]},
    "k_scale is None": lambda a: a | {"k_scale": None},
    r"slot_mapping has strides .* \(tokens\) must be contiguous": (
        lambda a: a | {"slot_mapping": np.repeat(a["slot_mapping"], 2)[::2]}
    ),
    r"cos has strides .* the row stride is negative": lambda a: a | {"cos": a["cos"][::-1]},
    r"v_pool has shape \((\d+), (\d+, 1, 64)\): it must be \((?!\1,)\d+, \2\)": (
        lambda a: a | {"v_pool": a["v_pool"][1:]}
    ),
    "k_pool overlaps v_pool": lambda a: a | {"v_pool": a["k_pool"]},
    "slot_mapping has dtype float64": lambda a: a | {"slot_mapping": a["slot_mapping"] * 1.0},
    "slot_mapping has shape": lambda a: a | {"slot_mapping": a["slot_mapping"][:-1]},
    "holds .* are accepted": lambda a: a | {"slot_mapping": one_after(a["k_pool"], a["slot_mapping"])},
    "holds a slot twice": lambda a: a | {"slot_mapping": a["slot_mapping"] * 0},
    "positions holds": lambda a: a | {"positions": np.maximum(a["positions"], len(a["cos"]))},
    "positions has dtype int64": lambda a: a | {"positions": a["positions"].astype(np.int64)},
    "cos without the others": lambda a: a | {"positions": None, "sin": None},
    "cos has shape": lambda a: a | {"cos": a["cos"][:, :12]},
    "sin has shape": lambda a: a | {"sin": a["sin"][:, :16]},
    "cos has strides": lambda a: a | {"cos": np.zeros((300, 33), np.float32)[:, :32]},
    "cos has dtype float16": lambda a: a | {"cos": a["cos"].astype(np.float16)},
    "q_weight without norm_eps": lambda a: a | {"norm_eps": None},
    "q_weight has shape": lambda a: a | {"q_weight": a["q_weight"][:8]},
    "norm_eps is -1": lambda a: a | {"norm_eps": -1},
    "norm_eps is 1e-50": lambda a: a | {"norm_eps": 1e-50},
    "interleaved is 1": lambda a: a | {"interleaved": 1},
    "slot_mapping is of type": lambda a: a | {"slot_mapping": None},
    "norm_eps is 'a'": lambda a: a | {"norm_eps": "a"},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_a_bad_argument_is_named_and_nothing_is_written(message, rng):
    x = drawn(rng, 9, 2, 1, 64)
    _, (q, k, v), options = of(x)
    both, (k_pool, v_pool) = pools(x)
    given = {"q": q, "k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool} | options
    with pytest.raises(ArgumentError, match=message):
        write_kv_pages(**BAD[message](given))
    assert (both.view(np.uint16) == POISON).all()


def test_what_the_kernel_does_not_serve_is_named(rng):
    rows = rng.standard_normal((4, 2, 96)).astype(np.float16)
    pool = np.zeros((2, 4, 2, 96), np.float16)
    with pytest.raises(UnsupportedError, match="head dimension 96"):
        write_kv_pages(rows, rows, rows, pool, pool.copy(), np.arange(4))
    with pytest.raises(UnsupportedError, match=r"another head dimension \(128 and 64\)"):
        wide = rng.standard_normal((4, 2, 128)).astype(np.float16)
        write_kv_pages(wide, wide, wide[..., :64], pool, pool.copy(), np.arange(4))
    assert "write_kv_pages" in flashcore_numba.__all__
