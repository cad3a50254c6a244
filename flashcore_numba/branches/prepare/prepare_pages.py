"""Norm, rotation and the write into pages in one launch. The kernel: `prepare_pages.cu`."""

from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.prepare.operation import PREPARE
from flashcore_numba.branches.prepare.outputs import WRITTEN
from flashcore_numba.branches.prepare.problem import PrepareProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.scaled import scale_arguments
from flashcore_numba.stages.parts.cuda_arguments import strides
from flashcore_numba.stages.stage import Stage

WARPS = 4  # of a block, as in the kernel
ROWS = {"one_row": 1, "two_rows": 2}  # of a lane
_SLOTS = {4: "int", 8: "int64_t"}  # the type of a slot by its bytes
WARPS_FOR_TWO = 16  # per SM: from here on it was faster on an H200


def lanes(problem: PrepareProblem) -> int:
    """Of one row."""
    return problem.head_dim // 16


def tiles(problem: PrepareProblem, rows: int) -> int:
    """Warps of one token where a lane has so many rows: those of Q, of K and of V."""
    tile = rows * 32 // lanes(problem)
    return -(-problem.heads // tile) + 2 * -(-problem.kv_heads // tile)


def choose(problem: PrepareProblem, sm_count: int) -> str:
    """The variant for a problem of this size: for few tokens the one with more warps."""
    warps = problem.tokens * tiles(problem, ROWS["two_rows"])
    return "two_rows" if warps >= WARPS_FOR_TWO * sm_count else "one_row"


def launch(
    problem: PrepareProblem,
    out: Array,
    k_pool: Array,
    v_pool: Array,
    executor: Executor,
    variant: str | None = None,
) -> None:
    """Queue the one kernel: out [1, H, tokens, D], which may be q; k_pool, v_pool [pages, page, H_kv, D]."""
    p = problem
    rows = ROWS[variant if variant in ROWS else choose(p, executor.sm_count)]
    macros: dict[str, Any] = {"HEAD_DIM": p.head_dim, "ROWS": rows, "SLOT": _SLOTS[p.slot_mapping.itemsize]}
    macros |= {"INTERLEAVED": p.interleaved} | ({"E4M3": True} if p.e4m3 else {})
    arrays = (p.q, p.k, p.v, out, k_pool, v_pool)
    table_rows = (np.int64(0 if x is None else x.strides[0] // x.itemsize) for x in (p.cos, p.sin))
    sizes = (p.tokens, p.heads, p.kv_heads, p.pages * p.page, p.page)
    flags = (p.rotated // 16 or lanes(p), p.norm_eps is not None)
    executor.launch(
        source("prepare_pages", ELEMENT=p.element.name, **macros),
        -(-p.tokens * tiles(p, rows) // WARPS),
        32 * WARPS,
        *(*arrays, p.slot_mapping, p.positions, p.cos, p.sin, *table_rows, p.q_weight, p.k_weight),
        *(step for x in arrays for step in strides(x)),
        *(np.int32(each) for each in (*sizes, *flags)),
        np.float32(p.norm_eps or 0),
        *(scale_arguments(p.k_scale, p.v_scale) if p.e4m3 else ()),
    )


STAGE = Stage(
    number=None,
    name="pages",
    title="One launch between projections and attention",
    idea="A lane has the two chunks that RoPE pairs, so a row is read once, turned in registers and written.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    head_dims=(64, 128, 256),
    elements=ACCEPTED,
    outputs=WRITTEN,
    operation=PREPARE,
    variants={
        "one_row": "a lane has one row: the most warps, for few tokens",
        "two_rows": "a lane has two rows in flight, and their tables once",
        "pages": "two rows where they fill the GPU, else one",
    },
)
