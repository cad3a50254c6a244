"""The mutants of the stages in CUDA C that are more than a barrier left out: see `deletions` for those."""

from typing import Any

from flashcore_numba.checks.mutation import Edit, Mutant

VALUE, MEMORY, RACE, COPY, COUNTER = ("value",), ("memory",), ("race",), ("copy",), ("counter",)
FILES = {
    7: "stage07_wmma_qk.cu",
    8: "stage08_wmma_full.cu",
    9: "stage09_async_copy.cu",
    10: "stage10_pipeline.cu",
    12: "stage12_mma_sync.cu",
    13: "stage13_split_kv.cu",
    15: "stage15_ping_pong.cu",
}
MASK, QUAD, TILE, WARP_ROWS = "mask.cuh", "quad.cuh", "tile.cuh", "warp_rows.cuh"


def _mutant(
    stage: int,
    name: str,
    mistake: str,
    *edits: tuple[str, ...],
    expected: tuple[str, ...] = VALUE,
    **options: Any,
) -> Mutant:
    """Edits are (old, new), in the stage's own kernel, or (old, new, file) tuples."""
    made = tuple(Edit(old, new, *(file or [FILES[stage]])) for old, new, *file in edits)
    return Mutant(stage, name, mistake, made, expected, **options)


CUDA_MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        7, "sum_not_rescaled", "A new maximum rescales O, but not the sum l.",
        ("l = l * rescale + (p[0]", "l = l + (p[0]"),
    ),
    _mutant(
        7, "output_not_rescaled", "A new maximum rescales l, but not O.",
        ("for (int c = 0; c < 8; c++) o[c] *= rescale;", "for (int c = 0; c < 8; c++) o[c] *= 1.0f;"),
    ),
    _mutant(
        7, "ragged_tile_not_masked", "Keys behind the last one count with a score of zero.",
        ("row_keys.from(first_key), params.scale_log2", "{0, KEYS}, params.scale_log2"),
    ),
    _mutant(
        7, "tail_not_zeroed", "Rows behind the last key are loaded all the same: 0 * NaN is NaN.",
        ("if (row < inside) bits", "if (row < ROWS) bits", TILE),
        expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _mutant(
        7, "half_of_the_row_added", "The butterfly that adds a row's sum stops at half of its lanes.",
        ("lanes < LANES_A_ROW; lanes *= 2) x +=", "lanes < LANES_A_ROW / 2; lanes *= 2) x +=", TILE),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        8, "no_key_is_nan", "A row that has seen no key yet subtracts -inf from -inf.",
        ("m_new > -INFINITY ? m_new : 0.0f", "m_new", TILE), expected=(*VALUE, "property"),
    ),
    _mutant(
        8, "wrong_kv_head", "Query head h reads K/V head h % H_kv instead of h // group.",
        ("params.k.at(b, h / params.group, 0)", "params.k.at(b, h % (params.H / params.group), 0)"),
    ),
    _mutant(
        8, "lse_in_log2", "The LSE is left in units of log2.",
        ("= tile::log_sum_exp(m, l);", "= tile::log_sum_exp(m, l) * 1.44269504f;"),
    ),
    _mutant(
        9, "wait_one_group_short", "The wait lets the tile that is read next be under way.",
        ("ptx::cp_async_wait<1>();  // this thread's copies of tile t", "ptx::cp_async_wait<2>();  //"),
        expected=COPY, on_gpu=False,
    ),
    _mutant(
        9, "one_buffer", "Both tiles go to the first buffer, so a copy overwrites what is being read.",
        ("buffer = t % BUFFERS * KEYS * KV_LD", "buffer = t % 1 * KEYS * KV_LD"),
        expected=(*COPY, *RACE, *VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        9, "score_rows_too_narrow", "The padding of the score rows is left out where they are read.",
        ("load_scores(p, s_smem + row * S_LD,", "load_scores(p, s_smem + row * KEYS,"),
        expected=(*VALUE, *MEMORY, *RACE), on_gpu=False,
    ),
    _mutant(
        10, "ring_one_slot_short", "The ring has one slot less than there are tiles in flight.",
        ("buffer = t % STAGES * KEYS * LD", "buffer = t % (STAGES - 1) * KEYS * LD"),
        expected=(*COPY, *RACE, *VALUE, *MEMORY), on_gpu=False, variant="3",
    ),
    _mutant(
        10, "no_empty_group", "No group is committed beyond the last tile, so the wait counts too few.",
        ("            load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - first_key);\n"
         "        }\n        ptx::cp_async_commit();",
         "            load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - first_key);\n"
         "            ptx::cp_async_commit();\n        }"),
        expected=COPY, on_gpu=False, variant="2",
    ),
    _mutant(
        12, "mask_top_left", "The causal mask is aligned at the first key, not at the last.",
        ("min(S_k, row + 1 + S_k - S_q)", "min(S_k, row + 1)", MASK),
    ),
    _mutant(
        12, "quad_half_added", "Two of the four lanes of a row add their sums.",
        ("return x + __shfl_xor_sync(ALL_LANES, x, 2);", "return x;", QUAD),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        12, "transposed_not", "V is loaded as K is, without the transposition.",
        ("ptx::ldmatrix_x4_trans(v_rmem", "ptx::ldmatrix_x4(v_rmem", WARP_ROWS),
    ),
    _mutant(
        12, "reference_not_followed", "m rises, but O stays as large as before.",
        ("[d][r % 2 * 2 + i] *= rescale;", "[d][r % 2 * 2 + i] *= 1.0f;", WARP_ROWS),
    ),
    _mutant(
        12, "far_reference", "scale * s - m is rounded once, however much m was rounded.",
        ("!__any_sync(ALL_LANES, far)", "true", WARP_ROWS),
    ),
    _mutant(
        13, "parts_of_another_row", "A split writes its sums where those of the next row belong.",
        ("part_lse[part] = lse_log2;", "part_lse[part + 1] = lse_log2;"),
        expected=(*MEMORY, *RACE, *VALUE), on_gpu=False,
    ),
    _mutant(
        13, "output_overflows", "O / l becomes halves as it is, also where it passes the greatest half.",
        ("pack_output<8>(pairs, o);",
         "for (int i = 0; i < 4; i++) pairs[i] = ptx::pack_pair(o[2 * i], o[2 * i + 1]);"),
        expected=("property",),
    ),
    _mutant(
        13, "infinities_clamped", "What is greater than the greatest half becomes that, infinities too.",
        ("pack_output<8>(pairs, o);",
         "for (int i = 0; i < 4; i++)\n"
         "        pairs[i] = ptx::pack_pair(fminf(fmaxf(o[2 * i], -65504.0f), 65504.0f),\n"
         "                                   fminf(fmaxf(o[2 * i + 1], -65504.0f), 65504.0f));"),
        expected=("property",),
    ),
    _mutant(
        15, "counter_not_reset", "The counter of pieces of work is left where the launch took it.",
        ("atomicInc(next_work, works - 1)", "atomicAdd(next_work, 1)"), expected=COUNTER, on_gpu=False,
    ),
    _mutant(
        15, "counter_reset_late", "The counter goes back to 0 one draw late, which no block makes.",
        ("atomicInc(next_work, works - 1)", "atomicInc(next_work, works)"), expected=COUNTER, on_gpu=False,
    ),
    _mutant(
        15, "counter_of_all_blocks", "Every block begins with a draw, though it has its first piece.",
        ("index = blockIdx.x, next;;",
         "index = next_work ? (int)atomicInc(next_work, works - 1) : blockIdx.x, next;;"),
        expected=(*COUNTER, *RACE, *VALUE, "unwritten"), on_gpu=False,
    ),
)  # fmt: skip
