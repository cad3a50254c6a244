"""Backward by recomputation: P is made again from Q, K and the LSE, so the forward pass stores no matrix.

With D = rowsum(dO * O) - dLSE, a kernel of its own:

    P = exp(scale Q K^T - LSE),  dP = dO V^T,  dS = P * (dP - D)
    dQ = scale dS K,  dK = scale dS^T Q,  dV = P^T dO

dQ is a sum over keys, dK and dV are sums over query rows. One kernel owns rows and computes dQ, another owns
keys and computes dK and dV, so nobody adds to what another adds to: the results are the same in every run.
(Dao et al. 2022, FlashAttention, appendix B.4.)
"""

from typing import Any

import numpy as np

from flashcore_numba.branches.backward import backward_recompute_rows as by_rows
from flashcore_numba.branches.backward import backward_recompute_tiles_kv as tiles_kv
from flashcore_numba.branches.backward import backward_recompute_tiles_q as tiles_q
from flashcore_numba.branches.backward.backward_recompute_delta import (
    LANES,
    WARPS,
    delta_kernel,
    scaled_kernel,
)
from flashcore_numba.branches.backward.backward_recompute_tiles_q import OWN
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.stage import Stage


def launch(
    problem: BackwardProblem,
    dq: Array,
    dk: Array,
    dv: Array,
    executor: Executor,
    variant: str | None = None,
) -> None:
    p, D, scale = problem, problem.head_dim, np.float32(problem.scale)
    per_row, adds = (p.batch, p.heads, p.seq_q), variant == "atomics"
    delta = executor.empty(per_row, np.float32)
    dq_sum = executor.empty((*per_row, D), np.float32) if adds else dq  # which is not used
    dlse = p.lse if p.dlse is None else p.dlse
    given, mask = (p.q, p.k, p.v, p.dout, p.lse, delta), (scale, p.mask.left, p.mask.right)

    def rows(each: int) -> tuple[int, int, int]:
        return -(-p.seq_q // each), p.heads, p.batch

    def keys(each: int) -> tuple[int, int, int]:
        return -(-p.seq_k // each), p.kv_heads, p.batch

    def run(kernel: Any, grid: tuple[int, int, int], *args: Any) -> None:
        executor.launch(kernel, grid, (LANES, WARPS), *args)

    run(delta_kernel(D, p.dlse is not None, adds), rows(WARPS), p.out, p.dout, dlse, delta, dq_sum)
    if variant in (None, "tiles"):
        run(tiles_q.grad_q_kernel(D), rows(OWN), *given, dq, *mask)
        run(tiles_kv.grad_kv_kernel(D), keys(OWN), *given, dk, dv, *mask)
        return
    if not adds:
        run(by_rows.grad_q_kernel(D), rows(WARPS), *given, dq, *mask)
    run(by_rows.grad_kv_kernel(D, adds), keys(WARPS), *given, dk, dv, dq_sum, *mask)
    if adds:
        run(scaled_kernel(D), rows(WARPS), dq_sum, dq, scale)


STAGE = Stage(
    number=None,
    name="recompute",
    title="Weights computed again",
    idea="P is computed again from the LSE; a pass by rows gives dQ and a pass by keys dK and dV.",
    launch=launch,
    grouped_queries=True,
    features=("window",),
    outputs=GRADIENTS,
    variants={
        "rows": "a warp owns a query row, then a key; seven products, and nobody adds to what others own",
        "atomics": "a warp owns a key and adds to dQ atomically: five products, rounded anew in every run",
        "tiles": "a block owns 16 rows, then 16 keys; tiles in shared memory, fragments in registers",
    },
    default="tiles",
    operation=BACKWARD,
)
