"""Wrong versions of the backward pass: what learners really write, as edits of the real stages.

`checks.deletions` has those that leave out a barrier, a wait or a fence of a kernel in CUDA C.
"""

from typing import Any

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

VALUE, PROPERTY, MEMORY, RACE, COPY = ("value",), ("property",), ("memory",), ("race",), ("copy",)
WRONG = (*VALUE, *PROPERTY)
ROWS = "backward_rows.cu"
KEYS, SPLIT_KERNEL, SPLIT_TILES = "gradient_keys.cuh", "backward_mma_sync_split.cu", "gradient_tiles.cuh"
DELTA, BY_ROWS = "backward_recompute_delta", "backward_recompute_rows"
TILES_Q, TILES_KV = "backward_recompute_tiles_q", "backward_recompute_tiles_kv"


def _mutant(
    stage: str,
    name: str,
    mistake: str,
    *edits: tuple[str, ...],
    expected: tuple[str, ...] = VALUE,
    **options: Any,
) -> Mutant:
    """Edits are (old, new), in the stage's own file, or (old, new, file) tuples."""
    own = None if stage == "recompute" else f"backward_{stage}.cu"
    made = tuple(Edit(old, new, file[0] if file else own) for old, new, *file in edits)
    return Mutant(f"backward/{stage}", name, mistake, made, expected, **options)


def _recompute(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    return _mutant("recompute", name, mistake, *edits, **options)


RECOMPUTE = (
    _recompute(
        "delta_omitted", "dS = P * dP: what every row of dP has in common is not taken off.",
        ("p * (dp_rmem[r, j] - delta_rmem[r])", "p * dp_rmem[r, j]", TILES_Q), expected=WRONG,
    ),
    _recompute(
        "delta_of_out", "D is the sum of O * O, not of dO * O.",
        ("total += o0 * do0", "total += o0 * o0", DELTA), ("total += o1 * do1", "total += o1 * o1", DELTA),
    ),
    _recompute(
        "delta_in_half",
        "D is kept in float16: where a row sees few keys, dS is a small difference of dP and D.",
        ("from numba import cuda, float32\n",
         "from numba import cuda, float32\nfrom numba.types import float16\n", DELTA),
        ("total - dlse[b, h, row] if with_dlse else total",
         "float32(float16(total - dlse[b, h, row] if with_dlse else total))", DELTA),
    ),
    _recompute(
        "dlse_added", "The gradient of the LSE is added to D, where dS = P * (dP - D + dLSE) takes it off.",
        ("total - dlse[b, h, row]", "total + dlse[b, h, row]", DELTA),
    ),
    _recompute(
        "not_normalised", "P = exp(S): the LSE is forgotten, so nothing divides by the sum of the row.",
        ("s_rmem[r, j] * scale - lse_rmem[j]", "s_rmem[r, j] * scale", TILES_KV),
    ),
    _recompute(
        "parentheses", "dS = P * dP - D: the parentheses are missing.",
        ("p * (dp_rmem[r, j] - delta_rmem[r])", "p * dp_rmem[r, j] - delta_rmem[r]", TILES_Q),
    ),
    _recompute(
        "scale_forgotten_in_p", "S is not scaled before the exponential.",
        ("s_rmem[r, j] * scale - lse_rmem[j]", "s_rmem[r, j] - lse_rmem[j]", TILES_KV),
    ),
    _recompute(
        "scale_forgotten_in_dq", "dQ = dS K, without the scale: S is a function of scale * Q.",
        ("dq_rmem, scale)", "dq_rmem, float32(1))", TILES_Q),
    ),
    _recompute(
        "scale_twice_in_dk", "Q is scaled when it is loaded for dK, and dK when it is stored.",
        ("dk_rmem, scale)", "dk_rmem, scale * scale)", TILES_KV),
    ),
    _recompute(
        "scale_on_dv", "dV is scaled as dK is: but O is linear in V, without a scale.",
        ("dv_rmem, float32(1))", "dv_rmem, scale)", TILES_KV),
    ),
    _recompute(
        "dv_not_masked", "dV takes P before the mask, dK and dQ after it.",
        ("p = math.exp(s_rmem[r, j] * scale - lse_rmem[j]) if seen else float32(0)",
         "p = math.exp(s_rmem[r, j] * scale - lse_rmem[j])", TILES_KV),
        ("s_rmem[r, j] = p * (dp_rmem[r, j] - delta_rmem[j])",
         "s_rmem[r, j] = p * (dp_rmem[r, j] - delta_rmem[j]) if seen else float32(0)", TILES_KV),
    ),
    _recompute(
        "diagonal_hidden", "`<` for `<=` in the mask of the keys: no key sees its own row.",
        ("seen = begin <= row < end", "seen = begin < row < end", TILES_KV),
    ),
    _recompute(
        "mask_top_left", "The mask of the keys is aligned at the first row, not at the last.",
        ("begin, end = band(key, seq_k, seq_q, right, left)",
         "begin, end = band(key, seq_q, seq_q, right, left)",
         TILES_KV), expected=WRONG,
    ),
    _recompute(
        "window_not_turned", "Rows and keys change places, but not the two ends of the window.",
        ("begin, end = band(key, seq_k, seq_q, right, left)",
         "begin, end = band(key, seq_k, seq_q, left, right)",
         TILES_KV), expected=WRONG,
    ),
    _recompute(
        "masked_score", "The mask makes S -inf, as in the forward pass: times a negative scale it is inf.",
        ("p = math.exp(s_rmem[r, j] * scale - lse_rmem[r]) if seen else float32(0)",
         "p = math.exp((s_rmem[r, j] if seen else -math.inf) * scale - lse_rmem[r])", TILES_Q),
         expected=WRONG,
    ),
    _recompute(
        "keys_past_the_end",
        "Keys after the last are multiplied too: zeros of K times exp(-LSE), which may be inf.",
        ("seen = begin[r] <= key < end[r]", "seen = begin[r] <= key and (key < end[r] or key >= seq_k)",
         TILES_Q),
    ),
    _recompute(
        "first_tile_too_late",
        "The first row that sees a key is rounded up to a tile, so a part of it is left out.",
        ("[0] // ROWS * ROWS", "[0] + (ROWS - 1)) // ROWS * ROWS", TILES_KV),
        ("start = band", "start = (band", TILES_KV),
        expected=WRONG,
    ),
    _recompute(
        "first_tile_of_the_last_key", "The walk over rows begins where the block's last key is seen.",
        ("start = band(first_key,", "start = band(min(first_key + OWN, seq_k) - 1,", TILES_KV),
        expected=WRONG,
    ),
    _recompute(
        "last_tile_of_the_first_row",
        "The walk over keys ends where the block's first row sees none any more.",
        ("stop = band(min(first_row + OWN, seq_q) - 1,", "stop = band(first_row,", TILES_Q), expected=WRONG,
    ),
    _recompute(
        "one_head_of_the_group", "Of the query heads that share a K/V head only the first passes by.",
        ("h_kv * group + group", "h_kv * group + 1", TILES_KV),
    ),
    _recompute(
        "last_head_wins",
        "A query head that shares a K/V head begins at 0 again: the last one is what remains.",
        ("            for first_row in range(start, stop, ROWS):\n",
         "            for r in range(TM):\n                for i in range(MINE):\n"
         "                    dk_rmem[r, i], dv_rmem[r, i] = float32(0), float32(0)\n"
         "            for first_row in range(start, stop, ROWS):\n", TILES_KV),
    ),
    _recompute(
        "wrong_kv_head", "Query head h reads K/V head h % H_kv, not h // group.",
        ("h // (q.shape[1] // k.shape[1])", "h % k.shape[1]", TILES_Q),
    ),
    _recompute(
        "no_barrier_after_load", "The tiles are multiplied without a barrier after the load.",
        ("cuda.syncthreads()  # the tiles are whole", "#  the tiles are whole", TILES_KV),
        expected=RACE, on_gpu=False,
    ),
    _recompute(
        "no_barrier_before_load", "The next tiles are loaded while other warps still read these.",
        ("cuda.syncthreads()  # every warp has read Q", "# every warp has read Q", TILES_KV),
        expected=RACE, on_gpu=False,
    ),
    _recompute(
        "p_overwritten", "dS^T takes the place of P^T while other lanes still read it for dV.",
        ("cuda.syncwarp()  # its lanes have read P^T", "# its lanes have read P^T", TILES_KV),
        expected=RACE, on_gpu=False,
    ),
    _recompute(
        "ds_read_too_early", "dQ multiplies dS before the lanes of the warp have written all of it.",
        ("cuda.syncwarp()  # the warp's rows of dS", "# the warp's rows of dS", TILES_Q),
        expected=RACE, on_gpu=False,
    ),
    _recompute(
        "sums_in_half", "dK and dV are added up in float16: every addition is rounded to 11 bits.",
        ("from numba import cuda, float32\n",
         "from numba import cuda, float32\nfrom numba.types import float16\n", TILES_KV),
        ("cuda.local.array((TM, MINE), float32), cuda.local.array((TM, MINE), float32)",
         "cuda.local.array((TM, MINE), float16), cuda.local.array((TM, MINE), float16)", TILES_KV),
    ),
    _recompute(
        "last_tile_left_out", "The walk over keys ends one tile early.",
        ("for first_key in range(start, stop, KEYS):", "for first_key in range(start, stop - KEYS, KEYS):",
         TILES_Q),
        expected=WRONG,
    ),
    _recompute(
        "atomics_not_zeroed", "The sums of dQ begin with what the memory happened to hold.",
        ("p.dlse is not None, adds)", "p.dlse is not None, False)"), expected=(*VALUE, *MEMORY),
        variant="atomics",
    ),
    _recompute(
        "atomics_stored",
        "The warp of a key stores its share of dQ, where it should add it: the last one wins.",
        ("cuda.atomic.add(dq_sum, (b, h, row, 64 * i + 2 * lane + e), ds * k_rmem[i, e])",
         "dq_sum[b, h, row, 64 * i + 2 * lane + e] = ds * k_rmem[i, e]", BY_ROWS),
        expected=(*RACE, *VALUE), variant="atomics",
    ),
    _recompute(
        "atomics_read_and_written", "The share of dQ is added by `+=`, which reads and writes in two steps.",
        ("cuda.atomic.add(dq_sum, (b, h, row, 64 * i + 2 * lane + e), ds * k_rmem[i, e])",
         "dq_sum[b, h, row, 64 * i + 2 * lane + e] += ds * k_rmem[i, e]", BY_ROWS),
        expected=RACE, variant="atomics", on_gpu=False,
    ),
    _recompute(
        "rows_scale_forgotten_in_dk", "dK = dS^T Q, without the scale.",
        ("dk_rmem[i, e] * scale", "dk_rmem[i, e]", BY_ROWS), variant="rows",
    ),
    _recompute(
        "rows_delta_of_another_row", "D is read with the number of the key, not of the row.",
        ("dp - delta[b, h, row]", "dp - delta[b, h, min(key, q.shape[2] - 1)]", BY_ROWS), variant="rows",
    ),
)  # fmt: skip


def _mma_sync(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    return _mutant("mma_sync", name, mistake, *edits, **options)


# What is around the main kernel belongs to every stage that `prepare` and `finish` serve: the first is asked.
AROUND = (
    _mma_sync(
        "lse_not_in_log2", "The LSE is a natural logarithm, and ex2 takes it for one of base 2.",
        ("sees ? row_lse * LOG2_E", "sees ? row_lse", ROWS),
    ),
    _mma_sync(
        "empty_rows_as_they_are", "A row that sees no key keeps its LSE of -inf: P = 2^(S + inf).",
        ("const bool sees = row_lse > -INFINITY;", "const bool sees = true;", ROWS),
    ),
    _mma_sync(
        "padding_left_out", "Only rows that are there get an LSE and a D; the tiles reach into the padding.",
        ("if (lane == 0) {", "if (lane == 0 && inside) {", ROWS), expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _mma_sync(
        "delta_of_half_a_row", "The butterfly begins at two lanes: D is the sum over every other chunk.",
        ("for (int lanes = 1; lanes < LANES;", "for (int lanes = 2; lanes < LANES;", ROWS),
    ),
    _mma_sync(
        "delta_in_half",
        "D is rounded to the type of O: where a row sees few keys, dS is a small difference of dP and D.",
        ("sees ? sum -", "sees ? (float)(element)sum -", ROWS),
    ),
    _mma_sync(
        "dlse_left_out", "The gradient of the LSE does not reach dS.",
        ("sum - (dlse ? dlse[at] : 0.0f)", "sum", ROWS),
    ),
    _mma_sync(
        "strides_of_out", "The rows of dO are looked for where O has its own.",
        ("dout_strides.at(b, h, at)", "out_strides.at(b, h, at)", ROWS), expected=(*VALUE, *MEMORY),
        on_gpu=False,
    ),
    _mma_sync(
        "half_of_the_sums_zeroed", "Half of the sums of dQ begin with what the memory happened to hold.",
        ("i < SUM_ROWS * D;", "i < SUM_ROWS * D / 2;", ROWS), expected=(*MEMORY, *VALUE),
    ),
    _mma_sync(
        "sums_by_rows", "The sums are read as rows of dQ: but they lie as accumulators do.",
        ("load_sums(x[0], x[1], dq_sum + sums_before<D>(padded + pair / 8 * 16, j, 0), pair % 8);",
         "for (int n = 0; n < 8; n++) {\n"
         "            x[0][n] = dq_sum[(padded + row) * D + 8 * j + n];\n"
         "            x[1][n] = dq_sum[(padded + row + 8) * D + 8 * j + n];\n        }", ROWS),
    ),
    _mma_sync(
        "rows_8_apart_exchanged", "Rows g and g + 8 of a quad change places.",
        ("load_sums(x[0], x[1],", "load_sums(x[1], x[0],", ROWS),
    ),
    _mma_sync(
        "dq_not_scaled", "dQ = dS K, without the scale.",
        ("x[r][2 * k] * scale, x[r][2 * k + 1] * scale", "x[r][2 * k], x[r][2 * k + 1]", ROWS),
    ),
    _mma_sync(
        "dq_past_the_end", "The second row of a thread is written whether it is there or not.",
        ("if (first_row + row + 8 * r >= sequence.S_q) break;", ";", ROWS),
        expected=("guard", *MEMORY, *RACE), on_gpu=False,
    ),
)  # fmt: skip


def _by_keys(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    return _mma_sync(name, mistake, *edits, variant="large", **options)


def _split(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    """Edits of the split kernel, or of the file that they name."""
    own = (edit if len(edit) == 3 else (*edit, SPLIT_KERNEL) for edit in edits)
    return _mma_sync(f"split_{name}", mistake, *own, variant="split", **options)


MMA_SYNC = (
    *AROUND,
    _by_keys(
        "delta_omitted", "dS = P * dP: what every row of dP has in common is not taken off.",
        ("p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y)", "p[0] * dp[0], p[1] * dp[1]"),
    ),
    _by_keys(
        "parentheses", "dS = P * dP - D: the parentheses are missing.",
        ("p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y)",
         "p[0] * dp[0] - delta.x, p[1] * dp[1] - delta.y"),
    ),
    _by_keys(
        "one_lse_for_two_columns",
        "A lane takes the LSE of its first column for both: as if they were one row.",
        ("ptx::ex2(s[1] * scale_log2 - lse2.y)", "ptx::ex2(s[1] * scale_log2 - lse2.x)", KEYS),
    ),
    _by_keys(
        "dk_not_scaled",
        "dK = dS^T Q, without the scale.", ("dk_rmem, dk_scale, k_own", "dk_rmem, 1.0f, k_own"),
    ),
    _by_keys(
        "scale_in_log2_in_dk", "dK is scaled by what the scores are scaled by, log2(e) included.",
        ("dk_rmem, dk_scale, k_own", "dk_rmem, scale.sign * scale.log2, k_own"),
    ),
    _by_keys(
        "dv_scaled", "dV is scaled as dK is: but O is linear in V, without a scale.",
        ("dv_rmem, sizes.features.keep_scale, v_own", "dv_rmem, dk_scale, v_own"),
    ),
    _by_keys(
        "dv_of_q", "dV = P^T Q: the wrong tile.",
        ("accumulate_pv(dv_rmem, p_rmem, do_tile, lane)", "accumulate_pv(dv_rmem, p_rmem, q_tile, lane)"),
    ),
    _by_keys(
        "p_of_ds", "dV = dS^T dO: the wrong operand.",
        ("accumulate_pv(dv_rmem, p_rmem, do_tile, lane)", "accumulate_pv(dv_rmem, ds_rmem, do_tile, lane)"),
    ),
    _by_keys(
        "mask_before_the_sign", "The mask makes S -inf before a negative scale, which makes it inf.",
        ("const Scale scale(sizes.softmax_scale_log2());",
         "const struct { float log2, sign; } scale = {sizes.softmax_scale_log2(), 1.0f};"), expected=WRONG,
    ),
    _by_keys(
        "sign_forgotten",
        "A tile that needs no mask for its keys is not masked: but it has the scale's sign too.",
        (" || scale.sign != 1.0f;", ";"),
    ),
    _by_keys(
        "keys_past_the_end",
        "Keys after the last are not masked: K is 0 there, and P = 2^-LSE, which may be inf.",
        ("warp_key + WARP_ROWS > sequence.S_k || ", ""),
        ("return key < sequence.S_k ? mask.rows(key) : Interval{0, 0}", "return mask.rows(key)", KEYS),
    ),
    _by_keys(
        "mask_of_the_first_key", "Whether a tile needs the mask is asked for the warp's first key alone.",
        ("first_row < warp_last_seen.begin", "first_row < warp_first_seen.begin"), expected=WRONG,
    ),
    _by_keys(
        "top_left", "The mask is aligned at the first row and key, not at the last.",
        ("mask(sizes, sequence),", "mask(sizes, sequence.S_q, sequence.S_q),", KEYS),
        expected=WRONG,
    ),
    _by_keys(
        "diagonal_hidden", "`<` for `<=` in the causal mask: no row sees its own key.",
        ("max(0, min(S_q, row - right))", "max(0, min(S_q, row + 1 - right))", "mask.cuh"), expected=WRONG,
    ),
    _by_keys(
        "first_tile_too_late",
        "The first row that sees a key is rounded up to a tile, so a part of it is left out.",
        ("Interval{first_seen.begin, ", "Interval{first_seen.begin + BLOCK_N - 1, "), expected=WRONG,
    ),
    _by_keys(
        "first_tile_of_the_last_key", "The walk over rows begins where the block's last key is seen.",
        ("Interval{first_seen.begin, ", "Interval{keys.rows_of(keys.last()).begin, "), expected=WRONG,
    ),
    _by_keys(
        "last_tile_of_the_first_key", "The walk over rows ends where the block's first key is seen no more.",
        ("keys.rows_of(keys.last()).end}", "first_seen.end}"), expected=WRONG,
    ),
    _by_keys(
        "last_tile_left_out", "The last tile of rows never comes, unless it is full.",
        ("keys.rows_of(keys.last()).end}",
         "keys.rows_of(keys.last()).end / BLOCK_N * BLOCK_N}"),
        expected=WRONG,
    ),
    _by_keys(
        "one_head_of_the_group", "Of the query heads that share a K/V head only the first passes by.",
        ("end_head = (kv_head + 1) * sizes.group", "end_head = kv_head * sizes.group + 1"),
    ),
    _by_keys(
        "dq_of_one_head", "All query heads of a group add to the dQ of the first.",
        ("(long long)h * padded_rows(sizes) + first_row + query",
         "(long long)kv_head * sizes.group * padded_rows(sizes) + first_row + query"),
    ),
    _by_keys(
        "next_head_keeps_the_tile", "The next head of a group begins with the tile where this one ended.",
        ("next_tile = last_tile ? tiles.begin : tile + 1", "next_tile = last_tile ? tile : tile + 1"),
    ),
    _by_keys(
        "dq_stored", "A block stores its share of dQ, where it should add it: the last one wins.",
        ("ptx::add_quad(lane_sums + j * SUMS_STEP, dq_rmem[j])",
         "for (int i = 0; i < 4; i++) lane_sums[j * SUMS_STEP + ptx::FLOAT_STRIDE * i] = dq_rmem[j][i]"),
        expected=(*RACE, *VALUE),
    ),
    _by_keys(
        "dq_read_and_written", "The share of dQ is added by `+=`, which reads and writes in two steps.",
        ("ptx::add_quad(lane_sums + j * SUMS_STEP, dq_rmem[j])",
         "for (int i = 0; i < 4; i++) lane_sums[j * SUMS_STEP + ptx::FLOAT_STRIDE * i] += dq_rmem[j][i]"),
        expected=RACE, on_gpu=False,
    ),
    _by_keys(
        "ds_not_transposed", "ldmatrix reads dS^T as if it were dS: dQ is wrong, dK right.",
        ("ptx::ldmatrix_x4_trans(ds_rmem, ds_row", "ptx::ldmatrix_x4(ds_rmem, ds_row"),
    ),
    _by_keys(
        "ds_rows_too_narrow", "The padding of the rows of dS is left out where they are written.",
        ("(8 * r + lane / 4) * DS_PITCH", "(8 * r + lane / 4) * BLOCK_N"),
        expected=(*VALUE, *MEMORY, *RACE), on_gpu=False,
    ),
    _by_keys(
        "sums_of_other_columns", "Warps for the second half of dQ's columns add to the first half.",
        ("sums_before<D>(padded, column / 8, lane)", "sums_before<D>(padded, 0, lane)"),
    ),
    _by_keys(
        "columns_of_the_first_half",
        "Warps for the second half of dQ's columns multiply the first half of K's.",
        ("column / 16 + d)", "d)"),
    ),
    _by_keys(
        "one_slot", "The next tile is loaded over the one that is being multiplied.",
        ("load_tile(next_h, next_tile, slot ^ 1)", "load_tile(next_h, next_tile, slot)"),
        expected=(*COPY, *RACE), on_gpu=False,
    ),
    _by_keys(
        "delta_of_the_next_tile", "D is read from the other slot.",
        ("rows_smem + (2 * slot + 1) * BLOCK_N,", "rows_smem + (2 * (slot ^ 1) + 1) * BLOCK_N,"),
        expected=(*COPY, *MEMORY, *RACE, *VALUE), on_gpu=False,
    ),
    _by_keys(
        "wait_one_group_short", "The wait lets the tile that is read next be under way.",
        ("ptx::cp_async_wait<0>();  // this thread's part",
         "ptx::cp_async_wait<1>();  // this thread's part"),
        expected=COPY, on_gpu=False,
    ),
    _by_keys(
        "sums_in_half", "dK is rounded to the type of K after every tile.",
        ("accumulate_pv(dk_rmem, ds_rmem, q_tile, lane);",
         "accumulate_pv(dk_rmem, ds_rmem, q_tile, lane);\n"
         "        for (int i = 0; i < ROW_TILES * (D / 8) * 4; i++) {\n"
         "            float& x = dk_rmem[i / (D / 2)][i / 4 % (D / 8)][i % 4];\n"
         "            const uint32_t pair = ptx::pack_pair(x, x);\n"
         "            x = Element::floats(*(const element2*)&pair).x;\n        }"),
    ),
    _by_keys(
        "dk_past_the_end", "Rows of dK and dV after the last key are written.",
        ("if (row < inside)\n", "if (true)\n", KEYS), expected=("guard", *MEMORY, *RACE), on_gpu=False,
    ),
)  # fmt: skip

SPLIT = (
    _split(
        "delta_omitted", "dS = P * dP: what every row of dP has in common is not taken off.",
        ("p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y)", "p[0] * dp[0], p[1] * dp[1]", SPLIT_TILES),
    ),
    _split(
        "softcap_not_derived", "dS of a softcap is P (dP - D), without the derivative of tanh.",
        ("SOFTCAP ? p[i] * (1.0f - fminf(tanh * tanh, 1.0f)) : p[i]", "p[i]", KEYS),
    ),
    _split(
        "lse_for_delta", "D is read where the LSE is.",
        ("lse2_smem + BLOCK_ROWS, row, lane", "lse2_smem, row, lane"),
    ),
    _split("dk_not_scaled", "dK = dS^T Q, without the scale.", ("has_dk ? dk_scale : 1.0f", "1.0f")),
    _split(
        "dv_scaled", "dV is scaled as dK is: but O is linear in V, without a scale.",
        ("has_dk ? dk_scale : 1.0f", "dk_scale"),
    ),
    _split(
        "dv_of_q", "dV = P^T Q: the wrong tile.",
        ("(has_dk ? q_smem : do_smem) + slot", "q_smem + slot"),
    ),
    _split(
        "strides_of_dk", "The rows of dV are stored where dK has its own.",
        ("has_dk ? dk_strides : dv_strides", "dk_strides"),
        expected=("guard", "unwritten", *MEMORY, *RACE), on_gpu=False,
    ),
    _split(
        "p_of_ds", "dV = dS^T dO: the wrong operand.",
        ("(has_dk ? ds_smem : p_smem) + own_weights", "ds_smem + own_weights"),
    ),
    _split(
        "sign_forgotten",
        "A tile that needs no mask for its keys is not masked: but it has the scale's sign too.",
        (" && scale.sign == 1.0f;", ";"),
    ),
    _split(
        "keys_past_the_end",
        "Keys after the last are not masked: K is 0 there, and P = 2^-LSE, which may be inf.",
        ("any = warp_key + WARP_ROWS <= sequence.S_k && ", "any = "),
        ("if (warp_key + 8 * r + lane / 4 >= sequence.S_k) seen[r].begin = BLOCK_N;", ""),
    ),
    _split(
        "mask_of_the_first_key", "Whether a tile needs the mask is asked for the warp's first key alone.",
        ("whole{warp_last_seen.begin", "whole{warp_first_seen.begin"), expected=WRONG,
    ),
    _split(
        "last_row_hidden", "`<` for `<=` at the end of the window: the last row that sees a key does not.",
        ("distance + left + 1", "distance + left", "mask.cuh"), expected=WRONG,
    ),
    _split(
        "ds_not_transposed", "ldmatrix reads dS^T as if it were dS: dQ is wrong, dK right.",
        ("multiply<Weights, true, Rows, true", "multiply<Weights, false, Rows, true"),
        expected=(*VALUE, *MEMORY, *COPY, *RACE),
    ),
    _split(
        "dq_rows_of_the_first_half", "All warps multiply the first 32 rows of dS.",
        ("dq_row = warp % (BLOCK_ROWS / DQ_ROWS) * DQ_ROWS", "dq_row = 0"),
    ),
    _split(
        "columns_of_the_first_half", "Warps for the second half of dV have the first columns: D = 128 only.",
        ("            own_column, lane);", "            0, lane);"),
    ),
    _split(
        "dq_stored", "A block stores its share of dQ, where it should add it: the last one wins.",
        ("ptx::add_quad(sums + j * SUMS_STEP, dq_rmem[r][j])",
         "for (int i = 0; i < 4; i++) sums[j * SUMS_STEP + ptx::FLOAT_STRIDE * i] = dq_rmem[r][j][i]"),
        expected=(*RACE, *VALUE),
    ),
    _split(
        "one_head_of_the_group", "Of the query heads that share a K/V head only the first passes by.",
        ("end_head = (kv_head + 1) * sizes.group", "end_head = kv_head * sizes.group + 1"),
    ),
    _split(
        "head_of_the_next_tile", "dQ comes one tile late, and is added to the head that has come by then.",
        ("spread(h_before,", "spread(h < end_head ? h : h_before,"),
    ),
    _split(
        "last_tile_left_out", "The walk ends with the last tile, whose dV, dK and dQ come one tile late.",
        ("while (h < end_head || (LATE && tile_before >= 0))", "while (h < end_head)"),
    ),
    _split(
        "buffer_of_the_next_tile", "P and dS are read where those of the next tile are written.",
        ("slot_before, buffer ^ 1)", "slot_before, buffer)"), expected=(*RACE, *MEMORY, *VALUE),
        on_gpu=False,
    ),
    _split(
        "two_slots", "The next tile is loaded over the one whose dV, dK and dQ are late.",
        ("SLOTS = LATE ? 3 : 2", "SLOTS = 2"), expected=(*COPY, *RACE, *VALUE), on_gpu=False,
    ),
    _split(
        "wait_one_group_short", "The wait lets the tile that is read next be under way.",
        ("ptx::cp_async_wait<0>();  // this thread's part",
         "ptx::cp_async_wait<1>();  // this thread's part"),
        expected=COPY, on_gpu=False,
    ),
)  # fmt: skip


def _wgmma(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    return _mutant("wgmma", name, mistake, *edits, **options)


READ = "        if (lane == 0) ptx::mbarrier_arrive(empty + slot);\n"
DV_ISSUED = "        if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);\n"
PACK_P = "        pack(p_rmem, s_rmem);\n"
DV_FIRST = "        if (DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);\n"
PACK_DV = "        pack_rows<false>(dv_smem, dv_rmem, lane);\n"
FENCE, ARRIVAL = (
    "ptx::fence_proxy_async();  // wgmma reads",
    "if (lane == 0) ptx::mbarrier_arrive(ds_full + step % 2);",
)
LATE_DQ, LAST_DQ = "        if (step > 0) add_dq(step - 1);", "    add_dq(steps - 1);\n"
NEXT_HEAD = "padded, step == 0);\n            if (++tile == tiles.end) tile = tiles.begin, h++;"
DETERMINISTIC = "deterministic"

WGMMA = (
    _wgmma(
        "parentheses", "dS = P * dP - D: the parentheses are missing.",
        ("s_rmem[j] * (dp_rmem[j] - (j % 2 ? of_row.y : of_row.x))",
         "s_rmem[j] * dp_rmem[j] - (j % 2 ? of_row.y : of_row.x)"),
    ),
    _wgmma(
        "scale_in_log2_in_dk", "dK is scaled by what the scores are scaled by, log2(e) included.",
        ("dk_rmem[i] *= sizes.scale_log2 * LN2;", "dk_rmem[i] *= sizes.scale_log2;"),
    ),
    _wgmma(
        "dv_scaled", "dV is scaled as dK is: but O is linear in V, without a scale.",
        (PACK_DV, "        for (float& x : dv_rmem) x *= sizes.scale_log2 * LN2;\n" + PACK_DV),
    ),
    _wgmma(
        "dout_is_out", "The map of dO is made of O.",
        ("query_map(p.forward, p.dout,", "query_map(p.forward, p.out,", "backward_wgmma"),
    ),
    _wgmma(
        "sign_forgotten",
        "A tile that needs no mask for its keys is not masked: but it has the scale's sign too.",
        (" && scale.sign == 1.0f;", ";"),
    ),
    _wgmma(
        "keys_past_the_end",
        "Keys after the last are not masked: K is 0 there, and P = 2^-LSE, which may be inf.",
        ("whole = group_key + ROWS <= mask.S_k && ", "whole = "),
    ),
    _wgmma(
        "mask_of_the_first_key",
        "Whether a tile needs the mask is asked for the warpgroup's first key alone.",
        ("mask.rows(group_key + ROWS - 1).begin", "mask.rows(group_key).begin"), expected=WRONG,
    ),
    _wgmma(
        "first_tile_of_the_last_key", "The walk over rows begins where the block's last key is seen.",
        ("Interval rows{rows_of(begin).begin,", "Interval rows{rows_of(end - 1).begin,"), expected=WRONG,
    ),
    _wgmma(
        "one_head_is_loaded",
        "The producer stays with the first query head of a group.",
        (NEXT_HEAD, NEXT_HEAD.replace(", h++", "")),
    ),
    _wgmma(
        "dq_of_one_head", "The tiles of the next head add to the sums of the one before.",
        ("dq_lane += ((long long)padded_rows(sizes) - count * M) * D;", "dq_lane -= count * M * D;"),
    ),
    _wgmma(
        "last_dq_left_out", "dQ is added one tile late, and that of the last tile never.",
        (LAST_DQ, ""),
    ),
    _wgmma(
        "dq_one_tile_early", "The late dQ is added to the sums of the tile that is multiplied now.",
        (LATE_DQ, "        if (step > 0) dq_lane += M * D, add_dq(step - 1), dq_lane -= M * D;"),
    ),
    _wgmma(
        "dq_of_nothing", "There is a dQ to add under the first tile too: what the registers happen to hold.",
        (LATE_DQ, "        add_dq(step - 1);"), expected=(*VALUE, *MEMORY, *COPY),
        on_gpu=False,
    ),
    _wgmma(
        "ds_not_transposed", "stmatrix stores dS^T as registers have it: dQ is wrong, dK right.",
        ("ptx::stmatrix_x4_trans(ds_tile", "ptx::stmatrix_x4(ds_tile"),
    ),
    _wgmma(
        "ds_not_swizzled", "The chunks of dS are not permuted as wgmma reads them.",
        ("(chunk ^ ds_row % 8) * 8", "chunk * 8"),
    ),
    _wgmma(
        "arrival_before_the_fence", "Lane 0 says that dS is there, and then comes the fence.",
        (FENCE, "// wgmma reads"), (ARRIVAL, ARRIVAL + "\n        ptx::fence_proxy_async();"),
        expected=COPY, on_gpu=False,
    ),
    _wgmma(
        "ds_in_one_buffer",
        "The next dS takes the place of the one that the other warpgroup still multiplies.",
        ("ds_tile = ds_smem + step % 2 * (2 * DS_PANEL)", "ds_tile = ds_smem"),
        expected=(*RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _wgmma(
        "parity_of_ds", "The phase of dS turns with every tile: but each mbarrier serves every other tile.",
        ("ds_full + step % 2, step / 2 % 2)", "ds_full + step % 2, step % 2)"),
        expected=("hang", *RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _wgmma(
        "dv_before_its_p", "dV is issued before P is packed: with that of the tile before, D = 128 only.",
        (PACK_P, ""), (DV_FIRST, DV_FIRST + PACK_P), expected=COPY, on_gpu=False,
    ),
    _wgmma(
        "dk_in_the_last_slot", "dK is packed where the other warpgroup still multiplies the last Q or dO.",
        ("free_slot = Slot(steps).number", "free_slot = Slot(steps - 1).number"),
        expected=(*RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _wgmma(
        "dk_in_the_place_of_dv", "dK is packed where TMA may not yet have read dV.",
        ("(consumer == 0 ? q_smem : do_smem) + free_slot * Q_TILE + own_rows;", "dv_smem;"),
        expected=(*RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _wgmma(
        "released_too_early", "Q and dO are given back behind S and dP: but dV and dK read them too.",
        (READ, ""), (DV_ISSUED, READ + DV_ISSUED), expected=(*RACE, *COPY), on_gpu=False,
    ),
    _wgmma(
        "wait_one_group_short", "Q and dO are given back while dK may still read them.",
        ("ptx::wgmma_wait<1>();  // dV and dK", "ptx::wgmma_wait<2>();  // dV and dK"),
        expected=(*RACE, *COPY), on_gpu=False,
    ),
    _wgmma(
        "producer_waits_for_the_next_phase",
        "The producer waits for slots that nobody has filled: the first phase is over for it.",
        ("empty + slot, ring.parity ^ 1)", "empty + slot, ring.parity)"), expected=("hang",),
        on_gpu=False,
    ),
    _wgmma(
        "bytes_of_one_array", "The mbarrier expects Q and not the LSE, so the phase ends too early or never.",
        ("ptx::mbarrier_arrive_expect(q_full + slot, TILE_BYTES",
         "ptx::mbarrier_arrive_expect(q_full + slot, TILE_BYTES - M * 4"),
        expected=("hang", *COPY, "simulator"), on_gpu=False,
    ),
    _wgmma(
        "first_q_twice", "The loader asks for the first Q too: but it is under way since before the barrier.",
        ("if (step > 0) load_q(", "load_q("), expected=("hang", *RACE, *COPY, "simulator"), on_gpu=False,
    ),
    _wgmma(
        "first_q_of_the_first_row", "The first Q is that of row 0: but a mask may let the walk begin later.",
        ("row = tiles.begin * M, h = kv_head", "row = 0, h = kv_head"),
    ),
    _wgmma(
        "first_half_of_k_twice", "Both warpgroups multiply the first half of K's columns: D = 128 only.",
        ("(BY_ROWS ? 0 : consumer * DQ_STEP)", "0"),
    ),
    _wgmma(
        "first_panel_twice", "The second 64 columns of K and Q are the first: D = 128 only.",
        ("q_tile + k / 4 * (ROWS * 8) + k % 4 * 2,\n", "q_tile + k % 4 * 2,\n", "warpgroup_rows.cuh"),
    ),
    _wgmma(
        "turn_of_the_wrong_block", "A block waits for its own number, which only it can write.",
        ("ptx::load_acquire(turn) != at.tile + 2", "ptx::load_acquire(turn) != at.tile + 1"),
        expected=("hang",), variant=DETERMINISTIC, on_gpu=False,
    ),
    _wgmma(
        "last_turn_not_ended", "The turn of the last tile is not passed on: the next block never gets one.",
        ("atomicExch(turn, at.tile + 1u);", "if (step + 1 < steps) atomicExch(turn, at.tile + 1u);"),
        expected=("hang",), variant=DETERMINISTIC, on_gpu=False,
    ),
)  # fmt: skip


def _one_launch(name: str, mistake: str, *edits: tuple[str, ...], **options: Any) -> Mutant:
    return _mutant("one_launch", name, mistake, *edits, **options)


MASKED = (
    "        const int first = pair_at(warpgroup, iteration).first;\n"
    "        if (first < seen(warp_own + WARP_ROWS - 1).begin || first + BLOCK_N > seen(warp_own).end) {\n"
    "            const int own = warp_own + lane / 4;\n"
    "            mask_tile(s_rmem, {seen(own).from(first), seen(own + 8).from(first)}, 1.0f, lane);\n"
    "        }\n"
)
SCALED = "            if (KEYS && i % 4 == 0) of_columns(lse2_smem(iteration), i, lse2_rmem);\n"
LOOP = "#pragma unroll\n        for (int i = 0; i < BLOCK_N / 2; i++) {\n"

ONE_LAUNCH = (
    _one_launch(
        "lse_not_in_log2", "The LSE is a natural logarithm, and ex2 takes it for one of base 2.",
        ("return {lse * LOG2E,", "return {lse,"),
    ),
    _one_launch(
        "lse_past_the_end", "The LSE of rows after the last is read.",
        ("inside ? arrays.lse[at] : -INFINITY", "arrays.lse[at]"), expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _one_launch(
        "half_a_row", "The two lanes of a row do not meet: D is the sum over half of the columns.",
        ("    sum += __shfl_xor_sync(ALL_LANES, sum, 1);\n", ""),
    ),
    _one_launch("dlse_left_out", "The gradient of the LSE does not reach dS.", ("sum - dlse}", "sum}")),
    _one_launch(
        "parentheses", "dS = P * dP - D: the parentheses are missing.",
        ("s_rmem[i] * (dp_rmem[i] - delta_rmem[KEYS ? i % 2 : i / 2 % 2])",
         "s_rmem[i] * dp_rmem[i] - delta_rmem[KEYS ? i % 2 : i / 2 % 2]"),
    ),
    _one_launch(
        "masked_before_the_scale", "The mask makes S -inf before a negative scale, which makes it inf.",
        (MASKED, ""), (LOOP + SCALED, MASKED + LOOP + SCALED), expected=WRONG,
    ),
    _one_launch(
        "mask_of_the_first_row",
        "Whether a tile needs the mask is asked for the warp's first row or key alone.",
        ("first < seen(warp_own + WARP_ROWS - 1).begin", "first < seen(warp_own).begin"), expected=WRONG,
    ),
    _one_launch(
        "tiles_of_the_first_row", "The walk ends where the block's first row or key sees nothing any more.",
        ("seen(cluster_last).end}", "seen(cluster_first).end}"), expected=WRONG,
    ),
    _one_launch(
        "rows_for_keys", "The last key of a block is looked for among the query rows.",
        ("min(cluster_first + CLUSTER * ROWS, KEYS ? sizes.S_k : sizes.S_q)",
         "min(cluster_first + CLUSTER * ROWS, sizes.S_q)"),
        expected=(*WRONG, *MEMORY),
    ),
    _one_launch(
        "one_head_of_the_group", "Of the query heads that share a K/V head only the first passes by.",
        ("KEYS ? count * sizes.group : count", "count"),
    ),
    _one_launch(
        "member_forgotten", "All query blocks of a group have its first head.",
        ("kv_head * sizes.group + member;\n    // The query rows",
         "kv_head * sizes.group;\n    // The query rows"),
        expected=(*VALUE, "unwritten", *RACE),
    ),
    _one_launch(
        "begun_again", "Every tile begins dQ or dK anew: the last one is what remains.",
        ("issue_pv(first_rmem, ds_rmem, slot_smem, iteration > 0)",
         "issue_pv(first_rmem, ds_rmem, slot_smem, false)"),
    ),
    _one_launch(
        "dv_of_q", "dV = P^T Q: the wrong tile.",
        ("if (KEYS && ROOM) issue_pv(second_rmem, p_rmem, slot_smem + TILE,",
         "if (KEYS && ROOM) issue_pv(second_rmem, p_rmem, slot_smem,"),
    ),
    _one_launch(
        "other_half_left_out", "What the other warpgroup has summed up is not added.",
        ("const float4 x = sums_smem(warpgroup ^ 1)[i * 32];", "const float4 x = make_float4(0, 0, 0, 0);"),
    ),
    _one_launch(
        "own_half_twice", "A warpgroup adds what it has given away, where it should add what it was given.",
        ("const float4 x = sums_smem(warpgroup ^ 1)[i * 32];",
         "const float4 x = sums_smem(warpgroup)[i * 32];"),
        expected=(*VALUE, *MEMORY),
    ),
    _one_launch(
        "scale_on_dv", "dV is scaled as dK is: but O is linear in V, without a scale.",
        ("KEYS && warpgroup == 0 ? 1.0f : ", ""),
    ),
    _one_launch(
        "scale_in_log2", "dQ and dK are scaled by what the scores are scaled by, log2(e) included.",
        (": sizes.scale_log2 * LN2;", ": sizes.scale_log2;"),
    ),
    _one_launch(
        "last_tile_left_out", "A warpgroup that has one tile alone does not multiply it.",
        ("if (iterations > 0) use_s(iterations - 1);", "if (iterations > 1) use_s(iterations - 1);"),
        expected=(*VALUE, *MEMORY),
    ),
    _one_launch(
        "parity_of_the_slot", "The phase turns with every tile: but a slot serves one tile of STAGES.",
        ("slots_full + slot * 2 + 1, iteration / STAGES % 2);  // dO or V",
         "slots_full + slot * 2 + 1, iteration % 2);  // dO or V"),
        expected=("hang", *COPY, *RACE), on_gpu=False,
    ),
    _one_launch(
        "values_in_one_place",
        "LSE and D of the next tile take the place of those that other warps still read.",
        ("(warpgroup * 2 + iteration % 2) * 2 * VALUES", "warpgroup * 4 * VALUES"),
        expected=RACE, on_gpu=False,
    ),
    _one_launch(
        "refilled_too_late", "A slot is filled with the tile that it has had.",
        ("load(warpgroup, iteration + STAGES)", "load(warpgroup, iteration)"),
        expected=(*VALUE, *RACE, *COPY, "hang"), on_gpu=False,
    ),
    _one_launch(
        "first_panel_twice", "Both lanes of a row take its first 64 columns: D = 128 only.",
        ("panel = D == 128 ? half : 0", "panel = 0"),
    ),
)  # fmt: skip


def _resident(name: str, mistake: str, *edits: tuple[str, str], **options: Any) -> Mutant:
    made = tuple((*edit, "backward_resident.cu") for edit in edits)
    return _mutant("one_launch", f"resident_{name}", mistake, *made, variant="resident", **options)


RESIDENT = (
    _resident(
        "lse_not_in_log2", "The LSE is a natural logarithm, and ex2 takes it for one of base 2.",
        ("INFINITY : lse_rmem[i] * LOG2E", "INFINITY : lse_rmem[i]"),
    ),
    _resident(
        "half_a_row", "Of the eight lanes of a row only four meet: D is the sum over half of the columns.",
        ("lanes < CHUNKS; lanes", "lanes < CHUNKS / 2; lanes"),
    ),
    _resident(
        "dlse_added", "The gradient of the LSE is added to D.", ("delta[j] -= arrays", "delta[j] += arrays"),
    ),
    _resident(
        "rows_in_the_wrong_order", "A lane takes D of four rows from the lanes of other rows.",
        ("mine, j * CHUNKS + i)", "mine, (j ^ 1) * CHUNKS + i)"),
    ),
    _resident(
        "out_of_this_round", "O is loaded again for this round, and dO comes from the next one.",
        ("load_out(KEYS ? iteration + 1 : 1);", "load_out(KEYS ? iteration : 1);"),
    ),
    _resident(
        "delta_kept", "A block sends D to the other one and not to itself.",
        ("KEYS ? to < CLUSTER : to == rank", "KEYS ? to == (rank ^ 1) : to == rank"),
        expected=("hang",), on_gpu=False,
    ),
    _resident(
        "parentheses", "dS = P * dP - D: the parentheses are missing.",
        ("s_rmem[i] * (dp_rmem[i] - delta[KEYS ? i % 2 : i / 2 % 2])",
         "s_rmem[i] * dp_rmem[i] - delta[KEYS ? i % 2 : i / 2 % 2]"),
    ),
    _resident(
        "mask_of_the_first_row",
        "Whether a tile needs the mask is asked for the warp's first row or key alone.",
        ("all_see{seen(warp_own + WARP_ROWS - 1).begin", "all_see{seen(warp_own).begin"), expected=WRONG,
    ),
    _resident(
        "tiles_of_the_first_row", "The walk ends where the block's first row or key sees nothing any more.",
        ("seen(cluster_last).end}", "seen(cluster_first).end}"), expected=WRONG,
    ),
    _resident(
        "one_head_of_the_group", "Of the query heads that share a K/V head only the first passes by.",
        ("KEYS ? count * sizes.group : count", "count"),
    ),
    _resident(
        "begun_again", "Every tile begins dQ or dK anew: the last one is what remains.",
        ("issue_pv(first_rmem, ds_rmem, slot_smem, iteration > 0)",
         "issue_pv(first_rmem, ds_rmem, slot_smem, false)"),
    ),
    _resident(
        "dv_of_q", "dV = P^T Q: the wrong tile.",
        ("issue_pv(second_rmem, p_rmem, slot_smem + TILE, iteration > 0)",
         "issue_pv(second_rmem, p_rmem, slot_smem, iteration > 0)"),
    ),
    _resident(
        "last_tile_left_out", "The last tile of a warpgroup gets P and no more.",
        ("        step(iterations - 1, false);\n", ""), expected=(*VALUE, *MEMORY),
    ),
    _resident(
        "first_round_fetched_twice",
        "The tiles that a block has fetched for itself are fetched for both again.",
        ("if (pair >= WARPGROUPS && ptx::elect_one())", "if (ptx::elect_one())"),
        expected=("hang", *COPY, *RACE, "simulator"), on_gpu=False,
    ),
    _resident(
        "other_half_left_out", "What the other warpgroup has summed up is not added.",
        ("const float4 x = *sums_smem(warpgroup ^ 1, i);", "const float4 x = make_float4(0, 0, 0, 0);"),
    ),
    _resident(
        "sums_over_dout",
        "Sums are stored where dO was, which the other warpgroup may still read for D.",
        ("slots_smem + (w + i / (D / 16) * WARPGROUPS) * SLOT",
         "slots_smem + w * SLOT + i / (D / 16) * TILE"),
        expected=RACE, on_gpu=False,
    ),
    _resident(
        "scale_on_dv", "dV is scaled as dK is: but O is linear in V, without a scale.",
        ("KEYS && warpgroup == 0 ? 1.0f : ", ""),
    ),
    _resident(
        "strides_of_dk", "The rows of dV are stored where dK has its own.",
        ("{dv, STRIDES_GIVEN(dv)}", "{dv, STRIDES_GIVEN(dk)}"),
        expected=("guard", "unwritten", *MEMORY, *RACE), on_gpu=False,
    ),
    _resident(
        "stored_past_the_end", "Rows past the last one are stored too.",
        ("if (warp_own + row < (KEYS ? sizes.S_k : sizes.S_q))",
         "if (warp_own + row < 8 + (KEYS ? sizes.S_k : sizes.S_q))"),
        expected=(*MEMORY, *VALUE, *RACE), on_gpu=False,
    ),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (*RECOMPUTE, *MMA_SYNC, *SPLIT, *WGMMA, *ONE_LAUNCH, *RESIDENT)
