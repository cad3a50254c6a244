"""Wrong versions of the kernels: what is easily got wrong when attention is computed in 8 bits."""

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

QUANTISE, ATTEND = "fp8_quantise.cu", "fp8_wgmma.cu"
WRONG = ("value", "property")
ORDER = ("race", "copy", "value", "property", "hang", "memory", "barrier")
PLACE = (*WRONG, "memory", "guard", "race", "unwritten", "copy", "hang")


def _mutant(
    name: str, mistake: str, file: str, *edits: tuple[str, str], expected: tuple[str, ...] = WRONG
) -> Mutant:
    made = tuple(Edit(old, new, file) for old, new in edits)
    return Mutant("fp8/wgmma", name, mistake, made, expected)


SCALES = (
    _mutant(
        "scale_of_q_forgotten", "The scale of a row of Q is left out of its scores.", ATTEND,
        ("q_scales[sizes.rows_before(b, h) + row] * (scale.log2 / D)", "(scale.log2 / D)"),
    ),
    _mutant(
        "scale_of_k_forgotten", "The scale of the tile of K is left out of its scores.", ATTEND,
        ("q_factor[r] * k_scale", "q_factor[r]"),
    ),
    _mutant(
        "hadamard_not_divided", "H^T H is taken for the identity: scores are D times too large.", ATTEND,
        ("(scale.log2 / D)", "scale.log2"),
    ),
    _mutant(
        "exponent_left_in_l", "The scale of V stays in the row sums.", ATTEND,
        ("const float without = ptx::ex2(-exponent);", "const float without = 1.0f;"),
    ),
    _mutant(
        "exponent_not_in_p", "P does not carry the scale of V.", ATTEND,
        ("const float shift = m[r] - exponent;", "const float shift = m[r];"),
    ),
    _mutant(
        "scales_of_query_heads", "Scales of K and V are looked up by the query head.", ATTEND,
        ("(b * (H / group) + h / group) * ((S_k", "(b * H + h) * ((S_k"), expected=PLACE,
    ),
    _mutant(
        "scale_of_the_next_row", "A lane's second row takes the scale of the row after its first.", ATTEND,
        ("const int row = warp_row + lane / 4 + 8 * r;  //", "const int row = warp_row + lane / 4 + r;  //"),
    ),
)  # fmt: skip
SOFTMAX = (
    _mutant(
        "overflow_check_left_out", "Weights beyond 448 are taken as 448, and m stays.", ATTEND,
        ("return !LAZY || __all_sync(ALL_LANES, largest < LARGEST);", "return true;"),
    ),
    _mutant(
        "not_done_again", "What the overflow check says of a tile is not asked for.", ATTEND,
        ("if (!lazy || !exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum)) {",
         "if (!lazy || (exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum), false)) {"),
    ),
    _mutant(
        "o_not_rescaled", "O keeps the size of an older maximum.", ATTEND,
        ("o_rmem[i] * rescale[i / 2 % 2] + t_rmem[i]", "o_rmem[i] + t_rmem[i]"),
    ),
    _mutant(
        "l_not_rescaled", "l keeps the size of an older maximum.", ATTEND,
        ("                l[0] *= rescale[0], l[1] *= rescale[1];\n", ""),
    ),
    _mutant(
        "rescaled_again", "A tile that keeps m shrinks O by what the tile before did.", ATTEND,
        (", rescale[r] = 1.0f;", ";"),
    ),
    _mutant(
        "not_divided", "O is not divided by the row sum.", ATTEND,
        ("normalise(o_rmem, m, l, sizes,", "const RowState whole = {0.25f, 0.25f};\n"
         "        normalise(o_rmem, m, whole, sizes,"),
    ),
    _mutant(
        "largest_too_large", "The largest weight is 2^12: far beyond the largest e4m3.", ATTEND,
        ("OFFSET = 5.0f", "OFFSET = 12.0f"),
    ),
    _mutant(
        "weights_of_fixed_size", "The largest weight is 2^-5: small ones lose their bits among subnormals.",
        ATTEND, ("OFFSET = 5.0f", "OFFSET = -5.0f"),
    ),
    _mutant(
        "one_level_of_sums", "O is summed in the accumulators of e4m3 products, which keep 13 bits.", ATTEND,
        ("ptx::wgmma_e4m3_rs<D>(t_rmem, p_rmem[k], v_tile + 2 * k, k > 0);",
         "ptx::wgmma_e4m3_rs<D>(t_rmem, p_rmem[k], v_tile + 2 * k, 1);"),
        ("issue_pv(t_rmem, p_rmem, v_smem + ring.slot * KV_TILE);",
         "for (int i = 0; i < D / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];\n"
         "            issue_pv(o_rmem, p_rmem, v_smem + ring.slot * KV_TILE);"),
        ("ptx::wgmma_pin(t_rmem);\n#pragma unroll\n            for",
         "ptx::wgmma_pin(o_rmem);\n            if (false) for"),
    ),
    _mutant(
        "sums_of_the_tile_kept", "P V of a tile begins at S, whose registers it takes.", ATTEND,
        ("ptx::wgmma_e4m3_rs<D>(t_rmem, p_rmem[k], v_tile + 2 * k, k > 0);",
         "ptx::wgmma_e4m3_rs<D>(t_rmem, p_rmem[k], v_tile + 2 * k, 1);"),
        expected=(*WRONG, "memory"),
    ),
)  # fmt: skip
TILES = (
    _mutant(
        "causal_tile_skipped", "The tile that rows see only in part is left out.", ATTEND,
        ("mask.interval(min(end_row, S_q) - 1).tiles(BLOCK_N).end",
         "mask.interval(min(end_row, S_q) - 1).end / BLOCK_N"),
    ),
    _mutant(
        "tail_not_masked", "A tile that rows see only in part is taken to be whole.", ATTEND,
        ("mask.interval(group_row).end / BLOCK_N;",
         "(mask.interval(group_row).end + BLOCK_N - 1) / BLOCK_N;"),
        ("if (tile >= whole_tiles) {", "if (tile > whole_tiles) {"),
    ),
    _mutant(
        "mask_of_the_first_row", "Both rows of a lane are masked like the first.", ATTEND,
        ("mask.interval(row + 8).from(first_key)", "mask.interval(row).from(first_key)"),
    ),
    _mutant(
        "wrong_group", "Query heads take K and V in turn, not in groups.", ATTEND,
        ("const int h_kv = h / group,", "const int h_kv = h % (H / group),"),
    ),
    _mutant(
        "v_released_early", "The slot of V is handed back while P V may still read it.", ATTEND,
        ("ptx::wgmma_wait<0>();  // P V is whole, V has been read\n            release(v_read);",
         "release(v_read);\n            ptx::wgmma_wait<0>();  // P V is whole, V has been read"),
        expected=ORDER,
    ),
    _mutant(
        "q_released_early", "Q is handed back when its first tile is issued.", ATTEND,
        ("        for (bool lazy = false;;", "        release(q_empty);\n        for (bool lazy = false;;"),
        ("        end_turn();\n        release(q_empty);\n        ptx::wgmma_wait<0>();",
         "        end_turn();\n        ptx::wgmma_wait<0>();"),
        expected=(*ORDER, "simulator"),
    ),
    _mutant(
        "turn_not_handed_on", "A warpgroup that skips a tile keeps its turn.", ATTEND,
        ("begin_turn();\n            end_turn();\n            fetched", "begin_turn();\n            fetched"),
        expected=(*ORDER, "simulator"),
    ),
)  # fmt: skip
QUANTISED = (
    _mutant(
        "hadamard_on_q_alone", "The rows of K are quantised as they came.", QUANTISE,
        ("        transform(v, part);\n", "        if (EACH_ROW) transform(v, part);\n"),
    ),
    _mutant(
        "no_signs_for_k", "Q changes its signs, and K does not.", QUANTISE,
        ("        transform(v, part);\n", "        for (int i = 0; i < COLUMNS && !EACH_ROW; i++)\n"
         "            v[i] = 0x9e3779b9u * (2 * part + 1) >> (16 + i) & 1 ? -v[i] : v[i];\n"
         "        transform(v, part);\n"),
    ),
    _mutant(
        "half_a_transform", "The last exchange between lanes is left out: H is not orthogonal.", QUANTISE,
        ("for (int bit = 1; bit < LANES; bit *= 2)", "for (int bit = 1; 2 * bit < LANES; bit *= 2)"),
    ),
    _mutant(
        "rows_in_place", "The keys of V stay in their order, and P is packed as it is.", QUANTISE,
        ("at_smem(first + 2 * t + key, column)", "at_smem(first + 4 * t + key, column)"),
        ("a = at(0), b = at(1), c = at(8), d = at(9)", "a = at(0), b = at(1), c = at(2), d = at(3)"),
    ),
    _mutant(
        "largest_of_a_warp", "Each warp scales by its own largest number.", QUANTISE,
        ("    for (float each : of_warp) x = fmaxf(x, each);\n", ""),
    ),
    _mutant(
        "negative_numbers_forgotten", "The largest number of a row is sought among the positive ones.",
        QUANTISE, ("most = fmaxf(most, fabsf(v[i]));", "most = fmaxf(most, v[i]);"),
    ),
    _mutant(
        "negative_values_forgotten", "The largest number of V is sought among the positive ones.",
        QUANTISE, ("largest = fmaxf(largest, fabsf(each));", "largest = fmaxf(largest, each);"),
    ),
    _mutant(
        "sign_forgotten", "The sign of the softmax's scale is in no byte.", QUANTISE,
        ("const float up = sign * (LARGEST / most);", "const float up = LARGEST / most;"),
    ),
    _mutant(
        "half_of_the_range", "The exponent of V is one less: its largest numbers become 448.", QUANTISE,
        ("- 127 - 8, -100", "- 127 - 9, -100"),
    ),
    _mutant(
        "zeros_like_numbers", "A tile of zeros has the exponent of numbers up to 448, and P follows it.",
        QUANTISE, ("largest == 0 ? -64", "largest == 0 ? 0"),
    ),
    _mutant(
        "exponent_without_an_end", "V far below 2^-100 gets an exponent that 2^-exponent is no float of.",
        QUANTISE, ("- 127 - 8, -100)", "- 127 - 8, -140)"),
    ),
    _mutant(
        "exponent_the_other_way", "V is multiplied by 2^exponent.", QUANTISE,
        ("__int_as_float((127 - exponent) << 23)", "__int_as_float((127 + exponent) << 23)"),
    ),
    _mutant(
        "past_the_last_value", "Keys past the end of V are read.", QUANTISE,
        ("if (first_key + key < S) eight", "eight"), expected=PLACE,
    ),
    _mutant(
        "past_the_last_row", "Rows past the end of Q and K are written.", QUANTISE,
        ("        if (row >= S) continue;\n", ""), expected=PLACE,
    ),
    _mutant(
        "rows_are_contiguous", "The strides of Q and K are not asked for.", QUANTISE,
        ("of_lane + row * strides.row + 8 * i", "of_lane + row * D + 8 * i"), expected=PLACE,
    ),
)  # fmt: skip
NO_TRANSFORM = Mutant(
    "fp8/wgmma",
    "no_transform",
    "Outliers stay where they are: nothing spreads them over their rows.",
    (
        Edit("        transform(v, part);\n", "", QUANTISE),
        Edit("(scale.log2 / D)", "scale.log2", ATTEND),
    ),
    WRONG,
)
MUTANTS = (*SCALES, *SOFTMAX, *TILES, *QUANTISED, NO_TRANSFORM)
