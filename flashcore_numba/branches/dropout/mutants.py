"""Wrong versions of the kernels with dropout: what is easily got wrong where a mask is made twice."""

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

MASK, ATTEND, BACK = "dropout.cuh", "stage12_mma_sync.cu", "backward_mma_sync.cu"
OUTPUT = "output.cuh"
WRONG = ("value", "property")


def _mutant(
    stage: str, name: str, mistake: str, file: str, *edits: tuple[str, str], variant: str | None = None
) -> Mutant:
    made = tuple(Edit(old, new, file) for old, new in edits)
    return Mutant(f"{stage}/mma_sync", name, mistake, made, WRONG, variant)


def _of_mask(stage: str) -> tuple[Mutant, ...]:
    """What either kernel may get wrong of the mask itself."""
    return (
        _mutant(
            stage, "offset_ignored", "Every call with a seed has the same mask.", MASK,
            ("words[i][0] = features.draw", "words[i][0] = 0"),
        ),
        _mutant(
            stage, "half_a_seed", "The upper 32 bits of the seed are ignored.", MASK,
            ("(uint32_t)(features.seed >> 32)", "0"),
        ),
        _mutant(
            stage, "head_and_batch_swapped", "Head and batch change places in the address.", MASK,
            ("(uint32_t)b << 16 | h", "(uint32_t)h << 16 | b"),
        ),
        _mutant(
            stage, "batch_ignored", "All batches have the same mask.", MASK, ("(uint32_t)b << 16 | h", "h"),
        ),
        _mutant(
            stage, "four_bits_of_the_batch", "Batches 16 apart have the same mask.", MASK,
            ("(uint32_t)b << 16 | h", "(uint32_t)(b & 15) << 16 | h"),
        ),
        _mutant(
            stage, "five_bits_of_the_head", "Heads 32 apart have the same mask.", MASK,
            ("(uint32_t)b << 16 | h", "(uint32_t)b << 16 | (h & 31)"),
        ),
        _mutant(
            stage, "nine_rounds", "Philox has one round fewer.", MASK, ("round < 10", "round < 9"),
        ),
        _mutant(
            stage, "multipliers_swapped", "Each of the two products has the other's constant.", MASK,
            ("0xd2511f53 * counter[0]", "0xcd9e8d57 * counter[0]"),
            ("0xcd9e8d57 * counter[2]", "0xd2511f53 * counter[2]"),
        ),
        _mutant(
            stage, "key_not_raised", "All rounds have the same key.", MASK,
            ("        key_low += 0x9e3779b9, key_high += 0xbb67ae85;\n", ""),
        ),
        _mutant(
            stage, "mask_transposed", "Row and key change places in the counter.", MASK,
            ("words[i][1] =", "words[i][-2] ="), ("words[i][2] =", "words[i][1] ="),
            ("words[i][-2] =", "words[i][2] ="),
        ),
        _mutant(
            stage, "rows_repeat", "Every 16 rows have the same mask.", MASK,
            ("words[i][1] = row / 16 * 8 + row % 8", "words[i][1] = row % 8"),
        ),
        _mutant(
            stage, "keys_repeat", "Groups of 32 keys share half of their draws.", MASK,
            ("words[i][2] = key / 32 * 8 + key % 8", "words[i][2] = key / 32 * 4 + key % 8"),
        ),
        _mutant(
            stage, "halves_swapped", "The upper half of a word is for the first row.", MASK,
            ("upper ? word : word << 16", "upper ? word << 16 : word"),
        ),
        _mutant(
            stage, "kept_is_dropped", "What should be kept is dropped.", MASK,
            (">= features.drop_below", "< features.drop_below"),
        ),
        _mutant(
            stage, "threshold_dropped", "An element whose bits equal the threshold is dropped.", MASK,
            (">= features.drop_below", "> features.drop_below"),
        ),
    )  # fmt: skip


FORWARD = (
    *_of_mask("dropout"),
    _mutant(
        "dropout", "not_scaled", "What is kept is not multiplied by 1 / (1 - p).", ATTEND,
        (" * params.features.keep_scale;", ";"),
    ),
    _mutant(
        "dropout", "scale_in_lse", "The LSE is that of what is kept and scaled.", ATTEND,
        ("log_sum_exp(m[r], total)", "log_sum_exp(m[r], total * params.features.keep_scale)"),
    ),
    _mutant(
        "dropout", "dropped_weights_not_summed", "The softmax's sum is of what is kept.", ATTEND,
        ("            drop_tile(p_rmem,", "        {\n            for (int r = 0; r < LANE_ROWS; r++)\n"
         "                for (int n = 0; n < BLOCK_N / 8; n++) {\n"
         "                    const float2 p = Element::floats(*(element2*)&p_rmem[r / 2][n / 2]"
         "[n % 2 * 2 + r % 2]);\n                    l[r] -= p.x + p.y;\n                }\n"
         "            drop_tile(p_rmem,"),
        ("warp_row + lane / 4, first_key, lane);\n", "warp_row + lane / 4, first_key, lane);\n"
         "            for (int r = 0; r < LANE_ROWS; r++)\n"
         "                for (int n = 0; n < BLOCK_N / 8; n++) {\n"
         "                    const float2 p = Element::floats(*(element2*)&p_rmem[r / 2][n / 2]"
         "[n % 2 * 2 + r % 2]);\n                    l[r] += p.x + p.y;\n                }\n        }\n"),
    ),
    _mutant(
        "dropout", "kv_head", "Query heads that share a K/V head share their mask.", ATTEND,
        ("Dropout(params.features, b, h)", "Dropout(params.features, b, h / params.group)"),
    ),
    _mutant(
        "dropout", "row_of_the_warp", "Rows are counted from the warp's first one.", ATTEND,
        ("warp_row + lane / 4, first_key, lane", "lane / 4, first_key, lane"),
    ),
    _mutant(
        "dropout", "key_of_the_tile", "Keys are counted from the tile's first one.", ATTEND,
        ("warp_row + lane / 4, first_key, lane", "warp_row + lane / 4, 0, lane"),
    ),
    _mutant(
        "dropout", "key_of_the_block", "Each 32 keys of a tile have the mask of the first.", MASK,
        ("first_key + 32 * block +", "first_key +"),
    ),
    _mutant(
        "dropout", "overflow_clamped", "What the factor takes beyond the type is its largest number.", OUTPUT,
        ("    if (DROPOUT || HEAD_NORM) return false;  // a gate is at most 1\n", ""),
    ),
    _mutant(
        "dropout", "second_row_tile", "A warp's second 16 rows have the mask of its first.", MASK,
        ("row + 16 * r, first_key", "row, first_key"), variant="large",
    ),
)  # fmt: skip
BACKWARD = (
    *_of_mask("dropout_backward"),
    _mutant(
        "dropout_backward", "dv_not_scaled", "dV lacks the factor 1 / (1 - p).", BACK,
        ("dv_rmem, sizes.features.keep_scale,", "dv_rmem, 1.0f,"),
    ),
    _mutant(
        "dropout_backward", "dp_not_scaled", "dP lacks the factor 1 / (1 - p).", BACK,
        ("dp[0] * keep_scale", "dp[0]"), ("dp[1] * keep_scale", "dp[1]"),
    ),
    _mutant(
        "dropout_backward", "dv_of_all", "dV takes P as it was before dropout.", BACK,
        ("x ? p[0] : 0.0f, y ? p[1] : 0.0f", "p[0], p[1]"),
    ),
    _mutant(
        "dropout_backward", "dp_of_all", "dP is not dropped.", BACK,
        ("x ? dp[0] * keep_scale - delta.x : -delta.x", "dp[0] * keep_scale - delta.x"),
        ("y ? dp[1] * keep_scale - delta.y : -delta.y", "dp[1] * keep_scale - delta.y"),
    ),
    _mutant(
        "dropout_backward", "ds_dropped", "dS is 0 where P was dropped: but P still was in the sum.", BACK,
        (": -delta.x)", ": 0.0f)"), (": -delta.y)", ": 0.0f)"),
    ),
    _mutant(
        "dropout_backward", "kv_head", "Query heads that share a K/V head share their mask.", BACK,
        ("Dropout(sizes.features, sequence.batch, h)", "Dropout(sizes.features, sequence.batch, kv_head)"),
    ),
    _mutant(
        "dropout_backward", "row_of_the_tile", "Rows are counted from the tile's first one.", BACK,
        ("row + 8 * n + lane % 4 * 2, key", "8 * n + lane % 4 * 2, key"),
    ),
    _mutant(
        "dropout_backward", "key_of_the_warp", "Keys are counted from the warp's first one.", BACK,
        ("warp_key + lane / 4, first_row,", "lane / 4, first_row,"),
    ),
    _mutant(
        "dropout_backward", "upper_keys", "Keys 16 to 31 of 32 have the mask of the 16 before.", BACK,
        ("if (ROW_TILES == 1 && key & 16) words[i][0] = words[i][2], words[i][1] = words[i][3];\n", ""),
    ),
    _mutant(
        "dropout_backward", "second_rows", "Rows 8 to 15 of 16 have the mask of the 8 before.", BACK,
        ("dropout.kept(words[i][r], upper)", "dropout.kept(words[i][r], false)"),
    ),
    _mutant(
        "dropout_backward", "second_keys", "All of a lane's keys have the mask of the first.", BACK,
        ("dropout.kept(words[i][r], upper)", "dropout.kept(words[i][0], upper)"),
    ),
)  # fmt: skip
