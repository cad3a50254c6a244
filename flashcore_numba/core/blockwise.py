"""Attention on the host in float32, for inputs that are timed: `oracle.attention` would take minutes.

A block is some query rows of one head and the tiles of keys that they see. Blocks run in threads, because
NumPy holds no lock while it multiplies matrices or takes exponentials. Each product is so small that the
library behind NumPy does not divide it among threads of its own, which would wait for each other.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from flashcore_numba.core.features import OFF, Features, Sequence
from flashcore_numba.core.oracle import gated, merged_with_prior, normed

ROWS = 64  # of a block
PRODUCTS = 2**18  # multiply-adds up to which OpenBLAS uses one thread


class _Block(NamedTuple):
    """Query rows from `first` to before `end` of one head of a sequence."""

    sequence: Sequence
    head: int
    first: int
    end: int


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    scale: float | None = None,
    features: Features = OFF,
) -> tuple[np.ndarray, np.ndarray]:
    """out float32 [B, H, S_q, D_v] and LSE float32 [B, H, S_q], rounded as float32 arithmetic does.

    Arguments, and rows without keys, as `oracle.attention`.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    lse = np.full(q.shape[:3], -np.inf, np.float32)
    sinks = np.full(heads, -np.inf) if features.sinks is None else features.sinks
    sequences = features.sequences(q, k, causal)
    size = max(1, PRODUCTS // (ROWS * max(q.shape[3], v.shape[3])))
    k_tiles, v_tiles = (
        [[_tiles(x[of.batch, h, of.keys], size) for h in range(kv_heads)] for of in sequences] for x in (k, v)
    )

    def run(block: _Block) -> None:
        of, h = block.sequence, block.head
        rows, kv_head = np.arange(block.first, block.end), h // (heads // kv_heads)
        begin, end = (edge[:, None] for edge in of.mask.interval(rows))
        first, last = begin[0, 0] // size, -(-end[-1, 0] // size)  # neither edge falls from row to row
        tiles = slice(first, max(first, last))
        place = of.batch, h, slice(of.rows.start + block.first, of.rows.start + block.end)
        k_block, v_block = k_tiles[of.number][kv_head][tiles], v_tiles[of.number][kv_head][tiles]
        scores = q[place].astype(np.float32) @ k_block.swapaxes(1, 2)  # [tiles, rows, size]
        keys = (first * size + np.arange(len(scores) * size)).reshape(-1, 1, size)
        scores *= np.float32(scale)
        if features.softcap:
            scores /= np.float32(features.softcap)
            np.tanh(scores, out=scores)
            scores *= np.float32(features.softcap)
        if slope := np.float32(features.slopes(of.number, heads)[h]):
            scores -= slope * np.abs(rows[:, None] + of.mask.shift - keys).astype(np.float32)
        if begin[-1] > first * size or end[0] < last * size:
            scores[(keys < begin) | (end <= keys)] = -np.inf
        sink = np.float32(sinks[h])
        row_max = scores.max(axis=2).max(axis=0, initial=sink)
        reference = np.where(np.isneginf(row_max), np.float32(0), row_max)
        scores -= reference[:, None]
        np.exp(scores, out=scores)
        row_sum = scores.sum(axis=2).sum(axis=0) + np.exp(sink - reference)
        some = row_sum > 0
        row_sum[~some] = 1
        out[place] = (scores @ v_block).sum(axis=0) / row_sum[:, None]
        lse[place] = np.where(some, row_max + np.log(row_sum), -np.inf)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(run, _blocks(sequences, heads)):
            pass  # raises what a block raised
    out, lse = merged_with_prior(out, lse, features)
    out = gated(normed(out, features), features)
    return out.astype(np.float32, copy=False), lse.astype(np.float32, copy=False)


def _tiles(x: np.ndarray, size: int) -> np.ndarray:
    """[keys, D] as float32 [tiles, size, D], with zeros at the end."""
    count = -(-len(x) // size)
    found = np.zeros((count * size, x.shape[1]), np.float32)
    found[: len(x)] = x
    return found.reshape(count, size, x.shape[1])


def _blocks(sequences: list[Sequence], heads: int) -> Iterator[_Block]:
    for of in sequences:
        for head in range(heads):
            for first in range(0, of.mask.seq_q, ROWS):
                yield _Block(of, head, first, min(first + ROWS, of.mask.seq_q))
