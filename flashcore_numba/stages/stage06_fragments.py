"""The arithmetic of stage 06: a thread's tiles of S and O, multiplied from shared memory into registers.

A thread owns 2 rows and every 16th key of S, then the same 2 rows and 4 neighbours of every 64 components of
O. Which lane owns what decides the cost of a 16-byte load. Lanes 2 c and 2 c + 1 share column c, and even and
odd lanes have different rows: so lanes that differ in bit 0 read the same K or V, and lanes that differ in
bit 1 the same Q or P. The H200 then serves half a warp in one wavefront; without such pairs it needs one for
each quarter.
"""

from numba import cuda

from flashcore_numba.stages.parts.common import ALL_LANES, fma4
from flashcore_numba.wide import load4

COLS = 16  # threads side by side along the keys, then along the components
TM = 2  # rows a thread owns
STEP = 8  # two 16-byte loads per iteration: the second is under way while the first multiplies


@cuda.jit(device=True)
def multiply_qk(s_rmem, q_smem, row, k_smem, col, D):
    """s_rmem[r, j] = Q[row + r] . K[col + 16 j]."""
    # <exercise>
    for r in range(TM):
        for j in range(s_rmem.shape[1]):
            s_rmem[r, j] = 0
    for first in range(0, D, STEP):
        for c in range(first, first + STEP, 4):
            q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
            for j in range(s_rmem.shape[1]):
                k = load4(k_smem, (col + COLS * j, c))
                s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)
    # </exercise>


@cuda.jit(device=True)
def accumulate_pv(o_rmem, p_smem, row, v_smem, col, keys):
    """o_rmem[r] += P[row + r] V; `o_rmem[r, 4 i + e]` is component 64 i + 4 col + e."""
    for first in range(0, keys, STEP):
        for j in range(first, first + STEP, 4):
            for i in range(0, o_rmem.shape[1], 4):
                c = COLS * i + 4 * col
                v0, v1 = load4(v_smem, (j, c)), load4(v_smem, (j + 1, c))
                v2, v3 = load4(v_smem, (j + 2, c)), load4(v_smem, (j + 3, c))
                for r in range(TM):
                    p = load4(p_smem, (row + r, j))
                    o_rmem[r, i] = fma4(o_rmem[r, i], p, (v0[0], v1[0], v2[0], v3[0]))
                    o_rmem[r, i + 1] = fma4(o_rmem[r, i + 1], p, (v0[1], v1[1], v2[1], v3[1]))
                    o_rmem[r, i + 2] = fma4(o_rmem[r, i + 2], p, (v0[2], v1[2], v2[2], v3[2]))
                    o_rmem[r, i + 3] = fma4(o_rmem[r, i + 3], p, (v0[3], v1[3], v2[3], v3[3]))


@cuda.jit(device=True)
def row_max(value):
    """The maximum over the 16 columns, which differ in bits 1 to 4 of the lane."""
    for bit in range(1, 5):
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 1 << bit))
    return value


@cuda.jit(device=True)
def row_sum(value):
    """The sum over the 16 columns."""
    for bit in range(1, 5):
        value += cuda.shfl_xor_sync(ALL_LANES, value, 1 << bit)
    return value
