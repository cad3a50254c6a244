"""Philox4x32 in NumPy, and the bits that `cuda_reference/include/dropout.cuh` takes of it.

Salmon, Moraes, Dror and Shaw 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.3.
"""

import numpy as np

ROUNDS = 10
MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)  # of words 0 and 2 of the counter
WEYL = (0x9E3779B9, 0xBB67AE85)  # what a round adds to the words of the key
GROUP_ROWS, GROUP_KEYS, LANES = 16, 32, 8  # a group has every eighth row of 16 and every eighth key of 32
LOW = np.uint64(0xFFFFFFFF)


def philox(counter: np.ndarray, key: tuple[int, int], rounds: int = ROUNDS) -> np.ndarray:
    """What is drawn for counters uint32 [..., 4] under the key's two words: uint32 [..., 4]."""
    words = [counter[..., i].astype(np.uint64) for i in range(4)]
    low, high = (np.uint64(word) for word in key)
    for _ in range(rounds):
        a, b = MULTIPLIERS[0] * words[0], MULTIPLIERS[1] * words[2]
        words = [
            (b >> np.uint64(32)) ^ words[1] ^ low,
            b & LOW,
            (a >> np.uint64(32)) ^ words[3] ^ high,
            a & LOW,
        ]
        low, high = (low + np.uint64(WEYL[0])) & LOW, (high + np.uint64(WEYL[1])) & LOW
    return np.stack([word.astype(np.uint32) for word in words], axis=-1)


def uniforms(seed: int, offset: int, batch: int, head: int, rows: range, keys: range) -> np.ndarray:
    """The 16 bits that decide on each element of one head: uint16 [rows, keys], for ranges of step 1."""
    first_row, first_key = rows.start // GROUP_ROWS, keys.start // GROUP_KEYS
    row_blocks = -(-rows.stop // GROUP_ROWS) - first_row
    key_blocks = -(-keys.stop // GROUP_KEYS) - first_key
    counter = np.empty((row_blocks * LANES, key_blocks * LANES, 4), np.uint32)
    counter[..., 0] = offset // 4
    counter[..., 1] = first_row * LANES + np.arange(row_blocks * LANES)[:, None]
    counter[..., 2] = first_key * LANES + np.arange(key_blocks * LANES)
    counter[..., 3] = batch << 16 | head
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1).astype(np.uint16)
    # [row block, row % 8, key block, key % 8, word: key / 8 % 4, half: row / 8 % 2]
    halves = halves.reshape(row_blocks, LANES, key_blocks, LANES, 4, 2).transpose(0, 5, 1, 2, 4, 3)
    whole = halves.reshape(row_blocks * GROUP_ROWS, key_blocks * GROUP_KEYS)
    row, key = first_row * GROUP_ROWS, first_key * GROUP_KEYS
    return whole[rows.start - row : rows.stop - row, keys.start - key : keys.stop - key]
