"""Wrong versions of the kernel: what is easily got wrong when heads share a norm."""

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

KERNEL, HEADER = "epilogue_norm.cu", "row_norm.cuh"
WRONG = ("value", "property")
ORDER = ("race", "copy", "value", "property", "hang", "memory", "barrier")
PLACE = (*WRONG, "memory", "guard", "race", "unwritten", "copy", "hang")


def _mutant(
    name: str, mistake: str, file: str, *edits: tuple[str, str], expected: tuple[str, ...] = WRONG,
    variant: str | None = None,
) -> Mutant:  # fmt: skip
    made = tuple(Edit(old, new, file) for old, new in edits)
    return Mutant("epilogue/norm", name, mistake, made, expected, variant)


NORM = (
    _mutant(
        "means_of_parts_not_merged", "M2 of all columns is taken for the sum of the parts' M2.", HEADER,
        ("part.y + 2 * OWN * off[0] * off[0]", "part.y"), ("part.w + 2 * OWN * off[1] * off[1]", "part.w"),
    ),
    _mutant(
        "merged_as_single_numbers", "A part's mean counts once, not once for each of its columns.", HEADER,
        ("part.y + 2 * OWN * off[0]", "part.y + off[0]"), ("part.w + 2 * OWN * off[1]", "part.w + off[1]"),
    ),
    _mutant(
        "squares_less_the_mean", "M2 is the sum of x^2 less that of mean^2, which cancels.", HEADER,
        ("squares += (x[i] - mean) * (x[i] - mean) + (x[i + 1] - mean) * (x[i + 1] - mean);",
         "squares += x[i] * x[i] + x[i + 1] * x[i + 1];"),
        ("quad_sum(squares);", "fmaxf(quad_sum(squares) - 2 * OWN * mean * mean, 0.0f);"),
    ),
    _mutant(
        "norm_of_the_own_head", "Each head is normed by itself.", HEADER,
        ("template <int OWN, int SHARES, bool CENTRED>\n__device__ __forceinline__ void normalise_rows("
         "float* x, const float4* moments_smem, float eps, int lane) {",
         "template <int OWN, int ALL, bool CENTRED>\n__device__ __forceinline__ void normalise_rows("
         "float* x, const float4* moments_smem, float eps, int lane) {\n"
         "    constexpr int SHARES = ALL / HEADS;\n"
         "    moments_smem += ptx::cluster_rank() / CLUSTER * SHARES * 8;"),
    ),
    _mutant(
        "rows_swapped", "A lane's first row takes the mean of its second.", HEADER,
        ("mean[0] += parts[i / 4].x, mean[1] += parts[i / 4].z",
         "mean[1] += parts[i / 4].x, mean[0] += parts[i / 4].z"),
    ),
    _mutant(
        "eps_forgotten", "The root is taken of the variance alone.", HEADER,
        ("OWN * SHARES) + eps)", "OWN * SHARES))"),
    ),
    _mutant(
        "eps_outside", "eps is added to the root, not to the variance.", HEADER,
        ("rsqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES) + eps)",
         "1.0f / (sqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES)) + eps)"),
    ),
    _mutant(
        "variance_of_a_sample", "M2 is divided by N - 1.", HEADER,
        ("(2 * OWN * SHARES) + eps", "(2 * OWN * SHARES - 1) + eps"),
    ),
    _mutant(
        "rms_is_centred", "RMSNorm subtracts the mean.", KERNEL,
        ("moments_of<OWN, !RMS>", "moments_of<OWN, true>"),
        ("normalise_rows<OWN, SHARES, !RMS>", "normalise_rows<OWN, SHARES, true>"),
    ),
    _mutant(
        "layer_is_not_centred", "LayerNorm divides by the root mean square.", KERNEL,
        ("moments_of<OWN, !RMS>", "moments_of<OWN, false>"),
        ("normalise_rows<OWN, SHARES, !RMS>", "normalise_rows<OWN, SHARES, false>"),
    ),
    _mutant(
        "a_lane_for_its_quad", "A lane's own columns are taken for those of its quad.", HEADER,
        ("moments[2 * r + 1] = quad_sum(squares);", "moments[2 * r + 1] = 4 * squares;"),
    ),
    _mutant(
        "before_the_residual", "The moments are those of attention without the residual.", KERNEL,
        ("    add_columns<OWN>(o_rmem, residual_rmem);  // O is x now\n", ""),
        ("    if (sum)\n", "    add_columns<OWN>(o_rmem, residual_rmem);\n    if (sum)\n"),
    ),
    _mutant(
        "residual_normed_twice", "The residual is added to what is normed, too.", KERNEL,
        ("    scale_columns<OWN>(o_rmem, weight_rmem, bias_rmem);\n",
         "    add_columns<OWN>(o_rmem, residual_rmem);\n"
         "    scale_columns<OWN>(o_rmem, weight_rmem, bias_rmem);\n"),
    ),
    _mutant(
        "sum_after_the_norm", "The sum that is asked for is stored after the norm.", KERNEL,
        ("    if (sum)\n", "    if (false)\n"),
        ("    store_columns<OWN>(out + ",
         "    if (sum)\n        store_columns<OWN>(sum + b * sum_batch + warp_row * sum_row + column, "
         "sum_row, o_rmem, inside, lane);\n    store_columns<OWN>(out + "),
    ),
    _mutant(
        "bias_scaled", "The bias is multiplied by the weight.", HEADER,
        ("x[i] = x[i] * weight.x + bias.x", "x[i] = (x[i] + bias.x) * weight.x"),
    ),
)  # fmt: skip
MESSAGES = (
    _mutant(
        "own_head_first", "A block hears of the first two blocks twice, and not of the last two.", KERNEL,
        ("const int share = cluster_rank * WARPGROUPS + warpgroup;",
         "const int share = cluster_rank * WARPGROUPS;"),
        expected=(*ORDER, "unwritten"),
    ),
    _mutant(
        "too_few_bytes_awaited", "A block waits for the moments of its own head's blocks alone.", KERNEL,
        ("moments_full + i, SHARES * 128)", "moments_full + i, PARTS * 128)"), expected=(*ORDER, "simulator"),
    ),
    _mutant(
        "not_to_itself", "A block sends its moments to the others, and not to itself.", KERNEL,
        ("for (int to = lane % 4; to < BLOCKS; to += 4)\n",
         "for (int to = lane % 4; to < BLOCKS; to += 4)\n        if (to != cluster_rank)\n"),
        expected=ORDER,
    ),
    _mutant(
        "not_waited_for", "The moments are read before the messages have come.", KERNEL,
        ("ptx::mbarrier_wait_cluster(moments_full + warp, 0);", ""), expected=(*ORDER, "copy"),
    ),
    _mutant(
        "sent_too_early", "Messages go to blocks that may not have started.", KERNEL,
        ("    ptx::cluster_wait();  // the other", "    // the other"), expected=(*ORDER, "simulator"),
    ),
    _mutant(
        "rows_of_another_warp", "All warps tell their moments at the place of the first 16 rows.", KERNEL,
        ("moments_smem + warp * SHARES * 8", "moments_smem"), expected=ORDER,
    ),
)  # fmt: skip
ROWS = (
    _mutant(
        "columns_of_the_head", "Weights are taken as if every head had the same.", KERNEL,
        ("weight + column, lane", "weight + column % D, lane"),
    ),
    _mutant(
        "rows_are_packed", "The strides of the residual are not asked for.", KERNEL,
        ("b * residual_batch + warp_row * residual_row + column,\n                          residual_row,",
         "(b * sizes.S_q + warp_row) * HEADS * D + column,\n                          HEADS * D,"),
        expected=PLACE,
    ),
    _mutant(
        "strides_of_out", "The rows of the sum are stored where out has its own.", KERNEL,
        ("sum + b * sum_batch + warp_row * sum_row + column, sum_row,",
         "sum + b * out_batch + warp_row * out_row + column, out_row,"),
        expected=PLACE,
    ),
    _mutant(
        "past_the_last_row", "Rows past the end are stored.", HEADER,
        ("            if (row < inside)\n                *(uint2*)", "                *(uint2*)"),
        expected=PLACE,
    ),
    _mutant(
        "residual_past_the_end", "Rows past the end of the residual are read.", HEADER,
        ("        if (row < inside)\n            pairs[i]", "            pairs[i]"), expected=PLACE,
    ),
    _mutant(
        "other_block_forgotten", "The other block's part of O is not added.", KERNEL,
        ("o_rmem[i] += other_factor[0] * x.x, o_rmem[i + 1] += other_factor[0] * x.y;", ""),
        variant="two_blocks",
    ),
    _mutant(
        "halves_swapped", "The second warpgroup of a block writes where the first does.", KERNEL,
        ("2 * (warpgroup * LEFT + rank * OWN)", "2 * ((1 - warpgroup) * LEFT + rank * OWN)"), expected=PLACE,
    ),
    _mutant(
        "not_divided", "O is not divided by the row sum.", KERNEL,
        ("factor[r] *= inverse_sum(l[r]), other_factor[r] *= inverse_sum(l[r]);", ";"),
    ),
    _mutant(
        "wrong_group", "Query heads take K and V in turn, not in groups.", KERNEL,
        ("h / sizes.group;", "h % (HEADS / sizes.group);"), expected=PLACE,
    ),
)  # fmt: skip
MUTANTS = (*NORM, *MESSAGES, *ROWS)
