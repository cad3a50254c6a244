"""Wrong answers to lesson 12: exponentials from results to operands."""

from . import Wrong

LAST = "            p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);\n        }\n"

WRONG = (
    Wrong(
        "rows_and_keys_swapped", "Register 1 gets the later keys, register 2 the later row.",
        (("n % 2 * 2 + r % 2", "r % 2 * 2 + n % 2"),),
        (r"row g \+ 8, key 2 t: register 1",
         r"It holds what `\(\(const element\*\)p_rmem\[0\]\[0\]\)\[4\]` should be"),
        "p_rmem[r / 2][n / 2][r % 2 * 2 + n % 2] = ptx::pack_pair(p0, p1);",
    ),
    Wrong(
        "halves_swapped", "The later key goes to the lower half.",
        (("pack_pair(p0, p1)", "pack_pair(p1, p0)"),),
        (r"register 0, lower half", r"It holds what `\(\(const element\*\)p_rmem\[0\]\[0\]\)\[1\]` should be"),
        "p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p1, p0);",
    ),
    Wrong(
        "operands_interleaved", "Score tile n goes to operand n modulo their number, not to n / 2.",
        (("[n / 2]", "[n % (BLOCK_N / 16)]"),),
        (
            r"uninitialised read",
            r"`p_rmem` is read by thread 0",
            r"stage12_mma_sync.cu:\d+, `Weights p_rmem;`",
        ),
    ),
    Wrong(
        "reference_scaled", "m is in units of log2 already, and is scaled once more.",
        (("s[0] * scale_log2 - m[r]", "(s[0] - m[r]) * scale_log2"),
         ("s[1] * scale_log2 - m[r]", "(s[1] - m[r]) * scale_log2")),
        (r"`sum\[0\]`",),
    ),
    Wrong(
        "half_of_the_sum", "Only the first of two weights is added.",
        (("            sum[r] += p1;\n", ""),),
        (r"`sum\[0\]`",),
        "sum[r] += p0;",
    ),
    Wrong(
        "first_row_tile_only", "The row tile is forgotten where P is written.",
        (("p_rmem[r / 2][n / 2]", "p_rmem[0][n / 2]"),),
        (
            r"uninitialised read",
            r"`p_rmem` is read by thread 0",
            r"declared in stage12_mma_sync.cu:\d+, `Weights p_rmem;`",
        ),
    ),
    Wrong(
        "sum_over_the_quad", "The sum is finished in every tile, and once more behind the last.",
        ((LAST, LAST + "    for (int r = 0; r < LANE_ROWS; r++) sum[r] = quad_sum(sum[r]) / 4;\n"),),
        (r"shuffles", r"64"),
    ),
    Wrong(
        "barrier", "All warps wait for each other before P is used.",
        ((LAST, LAST + "    __syncthreads();\n"),),
        (r"barrier after exit", r"32 of the block's 128 threads"),
        "__syncthreads();",
    ),
)  # fmt: skip
