"""The same launches for the simulator, the greenlet oracle and a GPU."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import kernels as K

__all__ = ["Case", "attention", "cases", "expected"]


@dataclass
class Case:
    """One launch; `args[result]` is what it computes."""

    kernel: Any
    grid: Any
    block: Any
    args: list
    result: int
    shared_bytes: int = 0
    wide: bool = False  # has 128-bit accesses, which the greenlet oracle does not know

    def copy_args(self) -> list:
        return [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in self.args]


def attention(q, k, v, scale):
    """softmax(q k^T scale) v in float64."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) * scale
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v


def gather_patterns(rng) -> dict[str, np.ndarray]:
    """Which element each of 32 lanes reads from shared memory."""
    lane = np.arange(32)
    return {
        "same": 0 * lane,
        "line": lane,
        "stride2": 2 * lane,
        "stride32": 32 * lane,
        "quarter": 16 * lane,
        "halves": np.where(lane < 16, 32 * lane, 32 * (lane - 16) + 1),
        "pairs": 32 * (lane // 2),
        "even_odd": np.where(lane % 2, 32 * lane + 1, 32 * lane),
        "random": rng.integers(0, 2048, 32),
    }


def cases(seed: int = 0) -> dict[str, Case]:
    """All cases by name, with inputs drawn from the seed."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    def empty(*shape, dtype=np.float32):
        return np.full(shape, np.nan, dtype)

    n = 4096
    long, out = normal(32 * n), {}
    out["copy_coalesced"] = Case(K.copy_coalesced, 16, 256, [normal(n), empty(n)], 1)
    for stride in (2, 8, 32):
        out[f"copy_stride{stride}"] = Case(K.copy_strided, 16, 256, [long, empty(n), stride], 1)
    out["copy_misaligned"] = Case(K.copy_misaligned, 16, 256, [normal(n + 1), empty(n)], 1)
    out["broadcast_add"] = Case(K.broadcast_add, 16, 256, [normal(n), normal(1), empty(n)], 2)
    for dtype in ("float16", "float32", "float64", "complex64", "complex128"):
        x = normal(n).astype(dtype)
        out[f"double_{dtype}"] = Case(K.double_it, 16, 256, [x, np.full_like(x, np.nan)], 1)
    out["double_twice"] = Case(K.double_twice, 16, 256, [normal(n), empty(n)], 1)
    out["double_four"] = Case(K.double_four, 4, 256, [normal(n), empty(n)], 1)
    out["double_wide"] = Case(K.double_wide, 4, 256, [normal(n), empty(n)], 1, wide=True)
    halves = normal(n).astype(np.float16)
    out["double_halves"] = Case(K.double_halves, 2, 256, [halves, np.full_like(halves, np.nan)], 1, wide=True)

    square = normal(128, 128)
    for kernel in (K.transpose_naive, K.transpose_padded):
        out[kernel.py_func.__name__] = Case(kernel, (4, 4), (32, 8), [square, empty(128, 128)], 1)
    out["shared_broadcast"] = Case(K.shared_broadcast, 1, 256, [normal(256), empty(256)], 1)
    for name, pattern in gather_patterns(rng).items():
        index = pattern.astype(np.int64)
        wide_index = index % 1024 * 4
        doubles = normal(2048).astype(np.float64)
        out[f"gather32_{name}"] = Case(K.shared_gather32, 1, 32, [normal(2048), index, empty(32)], 2)
        out[f"gather64_{name}"] = Case(
            K.shared_gather64, 1, 32, [doubles, index, empty(32, dtype=np.float64)], 2
        )
        out[f"gather128_{name}"] = Case(
            K.shared_gather128, 1, 32, [normal(4096), wide_index, empty(128)], 2, wide=True
        )

    a, b = normal(64, 64), normal(64, 64)
    tiled, padded = K.make_matmul_tiled(0), K.make_matmul_tiled(1)
    for name, kernel in (("naive", K.matmul_naive), ("tiled", tiled), ("padded", padded)):
        out[f"matmul_{name}"] = Case(kernel, (4, 4), (16, 16), [a, b, empty(64, 64)], 2)
    args = [a, b, empty(64, 64)]
    out["matmul_dynamic"] = Case(K.matmul_dynamic, (4, 4), (16, 16), args, 2, shared_bytes=2048)

    out["row_sum_shuffle"] = Case(K.row_sum_shuffle, 16, (32, 4), [normal(64, 128), empty(64)], 1)
    values = rng.integers(0, 16, 512)
    out["histogram"] = Case(K.histogram, 1, 64, [values, empty(16)], 1)

    for seq, head_dim in ((64, 32), (128, 64)):
        q, k, v = normal(seq, head_dim), normal(seq, head_dim), normal(seq, head_dim)
        scale = np.float32(1 / math.sqrt(head_dim))
        shape = f"{seq}x{head_dim}"
        args = [q, k, v, empty(seq, head_dim), empty(seq, seq), scale]
        out[f"attention_naive_{shape}"] = Case(K.attention_naive, seq // 32, 32, args, 3)
        args = [q, k, v, empty(seq, head_dim), scale]
        out[f"attention_tiled_{shape}"] = Case(K.make_attention_tiled(head_dim), seq // 32, (32, 32), args, 3)
    unpadded, args = K.make_attention_tiled(64, pad=0), out["attention_tiled_128x64"].copy_args()
    out["attention_unpadded_128x64"] = Case(unpadded, 4, (32, 32), args, 3)
    return out


def expected(name, args):
    """What the case computes, by NumPy."""
    if name.startswith("copy_stride"):
        return args[0][:: args[2]][: len(args[1])]
    if name.startswith("copy_misaligned"):
        return args[0][1:]
    if name.startswith(("copy", "shared_broadcast")):
        return args[0][np.arange(256) // 32] if name == "shared_broadcast" else args[0]
    if name == "broadcast_add":
        return args[0] + args[1]
    if name.startswith("double"):
        return args[0] + args[0]
    if name.startswith("transpose"):
        return args[0].T
    if name.startswith("gather128"):
        return args[0][args[1][:, None] + np.arange(4)].ravel()
    if name.startswith("gather"):
        return args[0][args[1]]
    if name.startswith("matmul"):
        return args[0].astype(np.float64) @ args[1]
    if name.startswith("row_sum"):
        return args[0].sum(1, dtype=np.float64)
    if name == "histogram":
        return np.bincount(args[0], minlength=16)
    return attention(*args[:3], args[-1])
