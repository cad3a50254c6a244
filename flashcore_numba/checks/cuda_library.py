"""The mutants of the stages in CUDA C that are more than a barrier left out: see `deletions` for those."""

from typing import Any

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

VALUE, MEMORY, RACE, COPY, COUNTER = ("value",), ("memory",), ("race",), ("copy",), ("counter",)
FILES = {
    7: "stage07_wmma_qk.cu",
    8: "stage08_wmma_full.cu",
    9: "stage09_async_copy.cu",
    10: "stage10_pipeline.cu",
    12: "stage12_mma_sync.cu",
    13: "stage13_split_kv.cu",
    14: "stage14_tma_wgmma.cu",
    15: "stage15_ping_pong.cu",
    16: "stage16_cluster_split.cu",
}
V_LOAD = "load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - first_key);"
MASK, OUTPUT, QUAD, TILE, WARP_ROWS = "mask.cuh", "output.cuh", "quad.cuh", "tile.cuh", "warp_rows.cuh"
PARAMS, RAGGED, WARPGROUP_ROWS = "params.cuh", "ragged.cuh", "warpgroup_rows.cuh"
EPILOGUE = "head_epilogue.cuh"


def _mutant(
    stage: int,
    name: str,
    mistake: str,
    *edits: tuple[str, ...],
    expected: tuple[str, ...] = VALUE,
    **options: Any,
) -> Mutant:
    """Edits are (old, new), in the stage's own kernel, or (old, new, file) tuples."""
    made = tuple(Edit(old, new, file[0] if file else FILES[stage]) for old, new, *file in edits)
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
        7, "ragged_tile_not_masked", "Keys past the last one count with a score of zero.",
        ("row_keys.from(first_key), params.scale_log2", "{0, KEYS}, params.scale_log2"),
    ),
    _mutant(
        7, "tail_not_zeroed", "Rows past the last key are loaded all the same: 0 * NaN is NaN.",
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
        (f"            {V_LOAD}\n"
         "        }\n        ptx::cp_async_commit();",
         f"            {V_LOAD}\n"
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
        12, "sign_where_masked", "Only a tile that the mask cuts takes the sign of the scale.",
        ("first_sees.end || scale.sign != 1.0f", "first_sees.end"),
    ),
    _mutant(
        12, "tail_not_zeroed", "Rows past the last one are loaded all the same: 0 * NaN is NaN.",
        ("const bool valid = row + thread / T::LANES < inside;", "const bool valid = true;", WARP_ROWS),
        expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _mutant(
        12, "window_one_key_short", "A row does not see the key at the left end of its window.",
        ("inside(diagonal(row) - left)", "inside(diagonal(row) - left + 1)", MASK),
    ),
    _mutant(
        12, "window_one_key_far", "A row also sees the key behind the right end of its window.",
        ("inside(diagonal(row) + right + 1)", "inside(diagonal(row) + right + 2)", MASK),
    ),
    _mutant(
        12, "window_forgets_causal", "Where there is a window, the causal mask hides nothing.",
        ("right(sizes.causal ? 0 : sizes.features.right)", "right(sizes.features.right)", MASK),
    ),
    _mutant(
        12, "window_begins_a_tile_late", "The tile in which a window begins is skipped.",
        ("return {begin / keys,", "return {(begin + keys - 1) / keys,", MASK),
    ),
    _mutant(
        12, "softcap_unscaled", "The softcap takes the products of q and k before they are scaled.",
        ("ptx::tanh(s * scale_by_cap)", "ptx::tanh(s * scale_by_cap / (scale_log2 * LN2))", QUAD),
    ),
    _mutant(
        12, "alibi_of_another_head", "The slopes are taken from the last head on.",
        ("features.slopes_batch + h]", "features.slopes_batch + sizes.H - 1 - h]", QUAD),
    ),
    _mutant(
        12, "alibi_of_the_first_sequence", "Every sequence takes the slopes of the first.",
        ("features.slopes[sequence.index * features.slopes_batch + h]", "features.slopes[h]", QUAD),
    ),
    _mutant(
        12, "alibi_in_natural_units", "The slope stays in natural units, the scores are in those of log2.",
        ("* features.slopes_batch + h] / LN2;", "* features.slopes_batch + h];", QUAD),
    ),
    _mutant(
        12, "alibi_without_abs", "Keys behind the diagonal gain by their distance.",
        ("fabsf(from_diagonal)", "from_diagonal", QUAD),
    ),
    _mutant(
        12, "sink_in_natural_units", "The sink stays in natural units, the scores are in those of log2.",
        ("sizes.features.sinks[h] / LN2", "sizes.features.sinks[h]", QUAD),
    ),
    _mutant(
        12, "sink_of_kv_head", "A query head takes the sink that has the number of its K/V head.",
        ("sizes.features.sinks[h]", "sizes.features.sinks[h / sizes.group]", QUAD),
    ),
    _mutant(
        12, "sink_does_not_rescale", "A sink above the maximum rescales l, but not O.",
        ("    m = m_new;\n    return rescale;", "    m = m_new;\n    return 1.0f;", QUAD),
    ),
    _mutant(
        12, "prior_in_natural_units", "The LSE of before stays natural, m is in units of log2.",
        ("score = lse / LN2,", "score = lse,", QUAD), expected=(*VALUE, "property"),
    ),
    _mutant(
        12, "prior_weights_swapped", "What was computed before and what is new take each other's weight.",
        ("o[0] * (rescale * prior.rescale) + before.x * prior.weight;",
         "o[0] * prior.weight + before.x * (rescale * prior.rescale);", WARP_ROWS),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        12, "prior_of_kv_head", "A query head merges with the rows that have the number of its K/V head.",
        ("prior_out_strides.at(sequence.batch, h, at)",
         "prior_out_strides.at(sequence.batch, h / sizes.group, at)", QUAD),
    ),
    _mutant(
        12, "prior_lse_of_another_row", "Both rows of a lane take the LSE of before of the first.",
        ("prior_lse_strides.at(sequence.batch, h, at);",
         "prior_lse_strides.at(sequence.batch, h, at / 16 * 16 + at % 8);", QUAD),
    ),
    _mutant(
        12, "prior_infinity", "A row that has seen no key, before nor now, takes -inf from -inf.",
        ("const float score = lse / LN2, m_new = fmaxf(m, score);",
         "m = l > 0 ? m : -INFINITY;\n"
         "        const float score = lse / LN2, m_new = fmaxf(m, score);", QUAD),
    ),
    _mutant(
        12, "prior_in_every_tile", "What was computed before is added with each tile, not once.",
        ("accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);",
         "accumulate_pv(o_rmem, p_rmem, v_smem + slot, lane);\n"
         "        if (PRIOR)\n"
         "            for (int r = 0; r < LANE_ROWS; r++)\n"
         "                merge_prior(o_rmem, r, m[r], l[r], 1.0f, params, sequence, h,\n"
         "                            warp_row + 8 * r + lane / 4, lane);"),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        12, "prior_in_half", "What was computed before is rounded to halves.",
        ("before.x * prior.weight;", "__half2float(__float2half(before.x)) * prior.weight;", WARP_ROWS),
    ),
    _mutant(
        12, "float_output_in_half", "A float32 output holds what a half can.",
        ("make_float2(o[0] * inv_l,", "make_float2(__half2float(__float2half(o[0] * inv_l)),"),
    ),
    _mutant(
        12, "lse_without_prior", "The LSE is that of the keys of this call alone.",
        ("        float rescale = join_sink(m[r], total, params, h);\n",
         "        float rescale = join_sink(m[r], total, params, h);\n"
         "        const float own_m = m[r], own_l = total;\n"),
        ("= log_sum_exp(m[r], total);", "= log_sum_exp(own_m, own_l);"),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        12, "prior_read_where_no_key_was", "O of before is read also where its LSE says it is nothing.",
        ("if (prior.weight > 0) before =", "before =", WARP_ROWS), expected=(*VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        12, "seqused_ignored", "All keys of a sequence count.",
        ("if (USED) found.S_k = max(0, min(found.S_k, features.seqused_k[index]));", "", PARAMS),
    ),
    _mutant(
        12, "seqused_of_the_batch", "The sequences of one packed batch take the count of the first.",
        ("seqused_k[index]", "seqused_k[found.batch]", PARAMS),
    ),
    _mutant(
        12, "sequence_has_a_key_too_many", "A packed sequence reaches to the first key of the next.",
        ("keys[1] - keys[0]}", "keys[1] - keys[0] + 1}", PARAMS),
        expected=(*VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        12, "keys_of_the_next_sequence", "The rows of a sequence see keys from where the next one begins.",
        ("rows[0], keys[0], rows[1]", "rows[0], keys[1], rows[1]", PARAMS),
        expected=(*VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        12, "row_tile_one_early", "The row tile past the last one of a sequence is still taken as its own.",
        ("number < end);", "number <= end);", RAGGED),
        expected=(*MEMORY, *RACE, *VALUE, "unwritten", "guard"), on_gpu=False,
    ),
    _mutant(
        12, "lse_of_another_sequence", "The LSE of every packed sequence goes to the rows of the first.",
        (" * S_q + sequence.first_row;", " * S_q;", PARAMS),
        expected=(*RACE, "unwritten", *VALUE), on_gpu=False,
    ),
    _mutant(
        12, "weights_in_half", "P is packed as halves, whatever the element type is.",
        ("p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);",
         "const half2 halves = __floats2half2_rn(p0, p1);\n"
         "            p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = *(const uint32_t*)&halves;", WARP_ROWS),
    ),
    _mutant(
        12, "output_through_half", "O becomes a half on its way to the element type.",
        ("    return CLAMP ?",
         "    low = __half2float(__float2half(low)), high = __half2float(__float2half(high));\n"
         "    return CLAMP ?", OUTPUT),
    ),
    _mutant(
        13, "greatest_of_halves", "O / l is clamped to the greatest half, in every type.",
        ("fminf(fmaxf(o, -Element::largest()), Element::largest())",
         "fminf(fmaxf(o, -65504.0f), 65504.0f)", OUTPUT), expected=(*VALUE, "property"),
    ),
    _mutant(
        13, "parts_of_another_row", "A split writes its sums where those of the next row belong.",
        ("part_lse[part] = lse_log2;", "part_lse[part + 1] = lse_log2;"),
        expected=(*MEMORY, *RACE, *VALUE), on_gpu=False,
    ),
    _mutant(
        13, "parts_of_another_sequence", "The parts of every packed sequence go to the rows of the first.",
        ("params.rows_before(sequence, h) + first_row;", "params.rows_before(b, h) + first_row;"),
        expected=(*RACE, "unwritten", *MEMORY, *VALUE), on_gpu=False, variant="two_splits",
    ),
    _mutant(
        13, "tail_of_the_array", "Rows are zeroed from the array's end on, not from the sequence's.",
        ("inside = sequence.S_k - step * STEP", "inside = params.S_k - step * STEP"),
        expected=(*VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        13, "sink_in_every_split", "Each split counts the sink, and then so does the merge.",
        ("if (SINKS && splits == 1)", "if (SINKS)"), variant="two_splits",
    ),
    _mutant(
        13, "softcap_after_the_mask", "The mask comes before the softcap, which makes a score of -inf.",
        ("if (ADJUSTED)\n", "if (ADJUSTED && !masked)\n"),
        ("mask_tile(s_rmem, seen, scale.sign, lane);",
         "mask_tile(s_rmem, seen, scale.sign, lane);\n"
         "adjust_tile(s_rmem, adjustment, mask.diagonal(warp_row + lane / 4) - first_key, lane);"),
    ),
    _mutant(
        13, "alibi_from_the_first_key", "The diagonal begins at the first key instead of ending at the last.",
        ("mask.diagonal(warp_row + lane / 4) - first_key", "warp_row + lane / 4 - first_key"),
    ),
    _mutant(
        13, "window_not_masked", "A tile in which a window begins needs no mask.",
        ("(last_sees.begin > 0 && first_key < last_sees.begin) ||", "false ||"),
    ),
    _mutant(
        13, "window_skips_a_tile", "A warp skips the tile in which its window begins.",
        ("first_key + BLOCK_N <= first_sees.begin", "first_key < first_sees.begin"),
    ),
    _mutant(
        13, "output_overflows", "O / l becomes halves as it is, also where it passes the greatest half.",
        ("pack_output<8>(pairs, o);",
         "for (int i = 0; i < 4; i++) pairs[i] = ptx::pack_pair(o[2 * i], o[2 * i + 1]);"),
        expected=("property", *VALUE),
    ),
    _mutant(
        13, "infinities_clamped", "What is greater than the greatest half becomes that, infinities too.",
        ("pack_output<8>(pairs, o);",
         "for (int i = 0; i < 4; i++)\n"
         "        pairs[i] = ptx::pack_pair(fminf(fmaxf(o[2 * i], -65504.0f), 65504.0f),\n"
         "                                   fminf(fmaxf(o[2 * i + 1], -65504.0f), 65504.0f));"),
        expected=("property", *VALUE),
    ),
    _mutant(
        14, "sign_where_masked", "Only a tile that the mask cuts takes the sign of the scale.",
        ("mask.interval(warp_row).end || scale.sign != 1.0f", "mask.interval(warp_row).end"),
    ),
    _mutant(
        15, "sign_where_masked", "Only a tile that the mask cuts takes the sign of the scale.",
        ("scale.sign == 1.0f ? mask.interval(group_row)", "true ? mask.interval(group_row)"),
    ),
    _mutant(
        15, "element_not_told", "The kernel is compiled for float16, whatever the element type is.",
        ("        **defines(p),\n", "        **defines(p),\n        \"ELEMENT\": \"float16\",\n",
         "stage15_ping_pong"), expected=(*VALUE, "property"),
    ),
    _mutant(
        15, "prior_of_the_first_rows", "Every warp merges with what was computed for the first one's rows.",
        ("sizes, sequence, h, warp_row + row, lane);", "sizes, sequence, h, row, lane);", WARPGROUP_ROWS),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        15, "prior_of_the_next_columns", "A lane adds what was computed before for its neighbour.",
        ("(const float2*)(prior.out + 8 * d);", "(const float2*)(prior.out + (8 * d ^ 8));", WARPGROUP_ROWS),
        expected=(*VALUE, "property"),
    ),
    _mutant(
        15, "float_rows_past_the_end", "A float32 output has no TMA that leaves out rows past the end.",
        ("if (own >= at.size) continue;", "", WARPGROUP_ROWS),
        expected=(*MEMORY, *RACE, *VALUE, "guard", "unwritten"), on_gpu=False,
    ),
    _mutant(
        15, "gate_of_kv_head", "A query head has the gate that has the number of its K/V head.",
        ("strides.at(sequence.batch, h, sequence.first_row", "strides.at(sequence.batch, h / 2,\n"
         "                                     sequence.first_row", EPILOGUE),
    ),
    _mutant(
        15, "gate_of_the_first_rows", "Every warp takes the gate of the first one's rows.",
        ("sequence.first_row + warp_row);", "sequence.first_row);", EPILOGUE),
    ),
    _mutant(
        15, "gate_not_traded", "A lane keeps the columns of the gate that it has loaded.",
        ("{odd ? other : fours[i].x, odd ? fours[i].y : other};", "{fours[i].x, fours[i].y};", EPILOGUE),
    ),
    _mutant(
        15, "gate_without_sigmoid", "O is multiplied by the gate itself.",
        ("own[0] *= sigmoid(two.x), own[1] *= sigmoid(two.y);", "own[0] *= two.x, own[1] *= two.y;",
         EPILOGUE),
    ),
    _mutant(
        15, "sigmoid_mirrored", "The sigmoid has the other sign: an open gate is closed.",
        ("ptx::ex2(-LOG2_E * x)", "ptx::ex2(LOG2_E * x)", EPILOGUE),
    ),
    _mutant(
        15, "sigmoid_base_2", "The sigmoid takes powers of 2, not of e.",
        ("ptx::ex2(-LOG2_E * x)", "ptx::ex2(-x)", EPILOGUE),
    ),
    _mutant(
        15, "gate_past_the_end", "The gate is read also for rows past the end.",
        ("if (warp_row + row < sequence.S_q)\n            fours", "fours", EPILOGUE),
        expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "gate_of_the_first_sequence", "Packed sequences all take the gate of the first rows.",
        ("sequence.first_row + warp_row);", "warp_row);", EPILOGUE),
    ),
    _mutant(
        15, "gate_before_the_norm", "O is gated, and what comes out is normed.",
        ("    if (HEAD_NORM) {\n        RowState squares;\n        sum_squares<D_V / 2>(squares, o_rmem);\n"
         "        norm_columns<D_V / 2, D_V>(o_rmem, squares, sizes.features, h, 0, lane);\n    }\n",
         "", WARPGROUP_ROWS),
        ("if (GATE) gate_output(o_rmem, gate_rmem, sizes.features, sequence, h, warp_row, lane);\n",
         "if (GATE) gate_output(o_rmem, gate_rmem, sizes.features, sequence, h, warp_row, lane);\n"
         "        if (HEAD_NORM) {\n            RowState squares;\n"
         "            sum_squares<D_V / 2>(squares, o_rmem);\n"
         "            norm_columns<D_V / 2, D_V>(o_rmem, squares, sizes.features, h, 0, lane);\n        }"),
    ),
    _mutant(
        15, "norm_before_the_division", "The squares are those of O before it is divided by l.",
        ("    for (int i = 0; i < D_V / 2; i++) o_rmem[i] *= inv_l[i / 2 % 2];\n    if (HEAD_NORM) {\n"
         "        RowState squares;\n        sum_squares<D_V / 2>(squares, o_rmem);\n",
         "    for (int i = 0; i < (HEAD_NORM ? 0 : D_V / 2); i++) o_rmem[i] *= inv_l[i / 2 % 2];\n"
         "    if (HEAD_NORM) {\n        RowState squares;\n"
         "        sum_squares<D_V / 2>(squares, o_rmem);\n", WARPGROUP_ROWS),
    ),
    _mutant(
        15, "norm_without_eps", "Nothing is added to the mean square.",
        ("rsqrtf(squares[r] / COLUMNS + features.norm_eps)", "rsqrtf(squares[r] / COLUMNS + 1e-30f)",
         EPILOGUE),
    ),
    _mutant(
        15, "norm_of_the_sum", "The root is that of the sum of squares, not of their mean.",
        ("rsqrtf(squares[r] / COLUMNS + ", "rsqrtf(squares[r] + ", EPILOGUE),
    ),
    _mutant(
        15, "norm_of_one_lane", "A lane norms its rows by the columns that it has itself.",
        ("        squares[r] = quad_sum(squares[r]);\n", "", EPILOGUE),
    ),
    _mutant(
        15, "norm_of_one_row", "Both rows of a lane are normed by the first one's squares.",
        ("rsqrtf(squares[r] / COLUMNS", "rsqrtf(squares[0] / COLUMNS", EPILOGUE),
    ),
    _mutant(
        15, "weight_of_the_neighbour", "A lane takes the weights of its neighbour's columns.",
        ("weight + 2 * i + lane % 4 * 2)", "weight + 2 * i + (lane ^ 1) % 4 * 2)", EPILOGUE),
    ),
    _mutant(
        15, "weight_of_the_first_head", "All heads take the weights of the first.",
        ("features.norm_weight + h * features.norm_weight_head", "features.norm_weight", EPILOGUE),
    ),
    _mutant(
        15, "weight_left_out", "A row is normed and not weighted.",
        ("factor[r] * two.x;", "factor[r];", EPILOGUE), ("factor[r] * two.y;", "factor[r];", EPILOGUE),
    ),
    _mutant(
        15, "counter_not_reset", "The counter of work tiles is left where the launch took it.",
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
    _mutant(
        15, "packed_counter_not_reset", "No block takes back the counter of packed sequences' work tiles.",
        ("cursor.before - 1) atomicExch(next_work, 0u);", "cursor.before - 1) {}"),
        expected=COUNTER, on_gpu=False,
    ),
    _mutant(
        15, "keys_not_awaited", "The thread that loads takes keys that are still on their way.",
        ("if (KEYS_FROM) arrivals.wait(sizes, h, (tile - 1) * BLOCK_N);", ""),
        expected=("property",), on_gpu=False,
    ),
    _mutant(
        15, "keys_awaited_once", "It looks once whether the keys of a tile have come, and goes on.",
        ("        do from = ptx::load_acquire_system(word);\n"
         "        while (from > key);\n",
         "        from = ptx::load_acquire_system(word);\n", WARPGROUP_ROWS),
        expected=("property",), on_gpu=False,
    ),
    _mutant(
        15, "keys_of_the_tile_after", "It waits until the keys after the tile have come.",
        ("arrivals.wait(sizes, h, (tile - 1) * BLOCK_N)", "arrivals.wait(sizes, h, tile * BLOCK_N)"),
        expected=("property",), on_gpu=False,
    ),
    _mutant(
        15, "keys_of_another_head", "What one head's keys said is taken for the next head's.",
        ("if (word == of_head && from <= key) return;", "if (word && from <= key) return;", WARPGROUP_ROWS),
        expected=("property",), on_gpu=False,
    ),
    _mutant(
        15, "number_of_the_query_head", "The number of a K/V head is looked for at the query head's place.",
        ("h / sizes.group * given.keys_from_step", "h * given.keys_from_step", WARPGROUP_ROWS),
        expected=("memory",), on_gpu=False,
    ),
    _mutant(
        15, "one_row_past_the_end", "The bound of a sequence's keys is one row late: 0 * NaN is NaN.",
        ("BOUND - at.size + row, at.begin + at.size, BOUND",
         "BOUND - at.size + row - 1, at.begin + at.size + 1, BOUND", WARPGROUP_ROWS),
        expected=(*VALUE, *MEMORY),
    ),
    _mutant(
        15, "rows_of_the_next_sequence", "The last rows' store goes on into the next sequence.",
        ("BOUND - at.size + row,\n                                  at.begin + at.size, BOUND",
         "row,\n                                  at.begin + BOUND, BOUND", WARPGROUP_ROWS),
        expected=(*RACE, *VALUE, *MEMORY, "guard"), on_gpu=False,
    ),
    _mutant(
        15, "window_not_masked", "A tile in which a window begins needs no mask.",
        ("own.begin) {\n            if (WINDOW && tile < whole_begin) whole_tiles = 0;", "own.begin) {"),
    ),
    _mutant(
        15, "window_ends_unmasked", "Under a window, a tile in which the first row's keys end needs no mask.",
        ("mask.interval(group_row).end / BLOCK_N",
         "mask.interval(group_row + (WINDOW ? ROWS - 1 : 0)).end / BLOCK_N"),
    ),
    _mutant(
        15, "window_skips_the_last_tile", "A warpgroup skips the last tile that its own rows see.",
        ("for (; tile >= own.end; tile--) skip();",
         "for (; tile >= own.end - (WINDOW && own.end - own.begin > 1); tile--) skip();"),
        expected=("hang", *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "window_skips_the_first_tile", "A warpgroup skips the first tile that its own rows see.",
        ("while (tile-- > own.begin) {",
         "while (tile-- > own.begin + (WINDOW && own.end - own.begin > 1)) {"),
        expected=("hang", *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "window_keeps_a_ring", "Tiles before a warpgroup's window: it releases their K, not their V.",
        ("for (; tile >= first_tile; tile--) skip();",
         "for (; tile >= first_tile; tile--) {\n"
         "                if (turns-- > 0) begin_turn(), end_turn();\n"
         "                fetched(k_full, k_ring);\n"
         "                __syncwarp();\n"
         "                release(k_empty + k_ring.slot);\n"
         "                k_ring.next(), v_ring.next();\n"
         "            }"),
        expected=("hang", *RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "window_misses_turns", "A warpgroup that has done its tiles leaves turns to nobody.",
        ("turns = turns_left();", ""), expected=("hang", "barrier"), on_gpu=False,
    ),
    _mutant(
        15, "window_counts_its_own_turns", "Warpgroups hand on a turn for each tile of their own, no more.",
        ("return turns - (own.end - own.begin);", "return 0;"), expected=("hang", "barrier"), on_gpu=False,
    ),
    _mutant(
        15, "idle_without_turns", "Warpgroups before the first row, or after the last, hand on no turns.",
        ("int turns = WINDOW && idle ? turns_left() : 0;", "int turns = 0;"),
        expected=("hang", "barrier"), on_gpu=False,
    ),
    _mutant(
        15, "window_takes_turns_twice", "Tiles that come before a warpgroup's own take a turn each, too.",
        ("if (!WINDOW || turns-- > 0)", "if (!WINDOW || !idle || turns-- > 0)"),
        expected=("hang", "barrier"), on_gpu=False,
    ),
    _mutant(
        15, "q_given_away_early", "The next Q may come as soon as this one is read, where O is still to be.",
        ("if (n > 0) release(q_empty + (q_slot ^ 1));", ""),
        ("if (!Q_KEPT && !TWO_Q) release(", "if (!Q_KEPT || TWO_Q) release("),
        expected=(*RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "one_q_for_all", "Every work tile reads the first of the two places that Q has.",
        ("element* q_smem = first_q + q_slot * CONSUMERS * Q_TILE;", "element* q_smem = first_q;"),
        expected=("hang", *RACE, *COPY, *VALUE), on_gpu=False,
    ),
    _mutant(
        15, "output_beside_the_sink", "The sink joins m and l, and O stays as large as before.",
        ("inverse_sum(total) * rescale;", "inverse_sum(total);", WARPGROUP_ROWS),
    ),
    _mutant(
        16, "sink_in_one_block", "Only one block of a cluster counts the sink.",
        ("= join_sink(m[r], l[r], sizes, h);", "= rank ? 1.0f : join_sink(m[r], l[r], sizes, h);"),
        variant="two_blocks",
    ),
    _mutant(
        16, "norm_of_one_part", "Each warp norms its columns by themselves.",
        ("        if (WARPGROUPS > 1) {\n            // The two warps have read",
         "        if (false) {\n            // The two warps have read"),
        ("        if (CLUSTER > 1) {\n            const float mine[4]", "        if (false) {\n"
         "            const float mine[4]"), variant="two_blocks",
    ),
    _mutant(
        16, "squares_of_one_block", "A block norms its columns without those of the other.",
        ("            const float4 other = norm_smem[box * 8 + lane / 4];\n"
         "            squares[0] += other.x, squares[1] += other.y;\n", ""), variant="two_blocks",
    ),
    _mutant(
        16, "squares_of_the_next_warp", "A warp adds the squares of another warp's rows.",
        ("near_smem[other_box * 8 + lane / 4] = make_float4(squares",
         "near_smem[(other_box ^ 1) * 8 + lane / 4] = make_float4(squares"),
        variant="one_block", expected=(*VALUE, *RACE), on_gpu=False,
    ),
    _mutant(
        16, "weight_of_the_first_columns", "Each warp takes the weights of the head's first columns.",
        ("norm_columns<OWN, D>(o_rmem, squares, sizes.features, h, first_column(), lane);",
         "norm_columns<OWN, D>(o_rmem, squares, sizes.features, h, 0, lane);"),
    ),
    _mutant(
        16, "gate_of_the_first_columns", "Each warp takes the gate of the head's first columns.",
        ("sequence, h, warp_row, first_column(), lane);", "sequence, h, warp_row, 0, lane);"),
    ),
    _mutant(
        16, "window_not_masked", "A tile in which a window begins needs no mask.",
        ("if (left_edge || ", "if ("),
    ),
    _mutant(
        16, "row_tile_of_a_block", "The blocks of a cluster look for a row tile each.",
        ("int(blockIdx.x / CLUSTER)}", "int(blockIdx.x)}"),
        expected=(*VALUE, *RACE, "unwritten", "hang"), variant="two_blocks", on_gpu=False,
    ),
    _mutant(
        16, "rows_of_the_next_sequence", "Rows of O end with the array, not with the sequence.",
        ("if (row < sequence.S_q)\n                *reinterpret",
         "if (row < sizes.S_q)\n                *reinterpret"),
        expected=(*RACE, *VALUE), on_gpu=False,
    ),
    _mutant(
        16, "all_keys_loaded", "Keys that do not count are loaded all the same: 0 * NaN is NaN.",
        ("+ sequence.first_key, sequence.S_k}", "+ sequence.first_key, sizes.S_k}"),
        expected=(*VALUE, *MEMORY), on_gpu=False,
    ),
    _mutant(
        16, "lse_of_the_first_sequence", "Every sequence writes its LSE where the first one's begins.",
        ("sizes.rows_before(sequence, h)", "sizes.rows_before(b, h)"),
        expected=(*RACE, *VALUE, "unwritten"), on_gpu=False,
    ),
)  # fmt: skip
