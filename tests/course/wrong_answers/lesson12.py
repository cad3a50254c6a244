"""Wrong answers to lesson 12: exponentials from results to operands."""

from . import Wrong

LAST = "            p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);\n        }\n"

# A right answer of its own build.
OWN_BUILD = """\
RowState sum;
#pragma unroll
for (int r = 0; r < LANE_ROWS; r++) sum[r] = 0.0f;
#pragma unroll
for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float* s = &s_rmem[r / 2][n][r % 2 * 2];
        const float p0 = ptx::ex2(s[0] * scale_log2 - m[r]);
        const float p1 = ptx::ex2(s[1] * scale_log2 - m[r]);
        sum[r] += p0 + p1;
        p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);
    }
"""
OWN_ROWS, OWN_TILES = "for (int r = 0; r < LANE_ROWS; r++)", "for (int n = 0; n < BLOCK_N / 8; n++)"

WRONG = (
    Wrong(
        "rows_and_keys_swapped", "Register 1 gets the later keys, register 2 the later row.",
        (("n % 2 * 2 + r % 2", "r % 2 * 2 + n % 2"),),
        (r"row g \+ 8, key 2 t: register 1",
         r"It holds what `\(\(const element\*\)p_rmem\[0\]\[0\]\)\[4\]` should be"),
        "p_rmem[r / 2][n / 2][r % 2 * 2 + n % 2] = ptx::pack_pair(p0, p1);",
        cause="index",
    ),
    Wrong(
        "halves_swapped", "The later key goes to the lower half.",
        (("pack_pair(p0, p1)", "pack_pair(p1, p0)"),),
        (r"register 0, lower half",
         r"It holds what `\(\(const element\*\)p_rmem\[0\]\[0\]\)\[1\]` should be"),
        "p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p1, p0);",
        cause="arguments",
    ),
    Wrong(
        "operands_interleaved", "Score tile n goes to operand n modulo their number, not to n / 2.",
        (("[n / 2]", "[n % (BLOCK_N / 16)]"),),
        (
            r"uninitialised read",
            r"`p_rmem` is read by thread 0",
            r"stage12_mma_sync.cu:\d+, `P p_rmem;`",
        ),
        line="p_rmem[r / 2][n % (BLOCK_N / 16)][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);",
        cause="index",
    ),
    Wrong(
        "reference_scaled", "m is in units of log2 already, and is scaled once more.",
        (("s[0] * scale_log2 - m[r]", "(s[0] - m[r]) * scale_log2"),
         ("s[1] * scale_log2 - m[r]", "(s[1] - m[r]) * scale_log2")),
        (r"`sum\[0\]`",),
        line="const float p0 = ptx::ex2((s[0] - m[r]) * scale_log2), p1 = ptx::ex2((s[1] - m[r]) * "
        "scale_log2);",
        cause="value",
    ),
    Wrong(
        "half_of_the_sum", "Only the first of two weights is added.",
        (("            sum[r] += p1;\n", ""),),
        (r"`sum\[0\]`",),
        "sum[r] += p0;",
        cause="assignment left out",
    ),
    Wrong(
        "first_row_tile_only", "The row tile is forgotten where P is written.",
        (("p_rmem[r / 2][n / 2]", "p_rmem[0][n / 2]"),),
        (
            r"uninitialised read",
            r"`p_rmem` is read by thread 0",
            r"declared in stage12_mma_sync.cu:\d+, `P p_rmem;`",
        ),
        line="p_rmem[0][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);",
        cause="index",
    ),
    Wrong(
        "sum_over_the_quad", "The sum is finished in every tile, and once more after the last.",
        ((LAST, LAST + "    for (int r = 0; r < LANE_ROWS; r++) sum[r] = quad_sum(sum[r]) / 4;\n"),),
        (r"shuffles", r"64"),
        line="for (int r = 0; r < LANE_ROWS; r++) sum[r] = quad_sum(sum[r]) / 4;",
        cause="extra loop",
    ),
    Wrong(
        "barrier", "All warps wait for each other before P is used.",
        ((LAST, LAST + "    __syncthreads();\n"),),
        (r"barrier after exit", r"32 of the block's 128 threads"),
        "__syncthreads();",
        cause="extra barrier",
    ),
    Wrong(
        "base_e", "An exponential is an exponential, so expf.",
        (("ptx::ex2(s[0] * scale_log2 - m[r]), p1 = ptx::ex2(s[1]",
          "expf(s[0] * scale_log2 - m[r]), p1 = expf(s[1]"),),
        ("expf",),
        "const float p0 = expf(s[0] * scale_log2 - m[r]), p1 = expf(s[1] * scale_log2 - "
            "m[r]);", cause="value",
    ),
    Wrong(
        "scaled_twice", "The scale is applied here, although the scores have it.",
        (("s[0] * scale_log2 - m[r]", "s[0] * scale_log2 * scale_log2 - m[r]"),
         ("s[1] * scale_log2 - m[r]", "s[1] * scale_log2 * scale_log2 - m[r]")),
        ("in 2 places: line 10",),
        "const float p0 = ptx::ex2(s[0] * scale_log2 * scale_log2 - m[r]), p1 = "
            "ptx::ex2(s[1] * scale_log2 * scale_log2 - m[r]);", cause="argument",
    ),
    Wrong(
        "sum_never_set", "A declared sum is taken to be 0.",
        (("#pragma unroll\n    for (int r = 0; r < LANE_ROWS; r++) sum[r] = 0.0f;\n", ""),),
        ("uninitialised read", "`sum`",),
        "RowState sum;", cause="loop left out",
    ),
    Wrong(
        "e_not_two",
        "Uses expf, base e, although m and the scale are in units of log2.",
        (),
        (),
        "const float a = expf(x * scale_log2 - m[r]), b = expf(y * scale_log2 - m[r]);",
        text="""\
RowState sum;
#pragma unroll
for (int r = 0; r < LANE_ROWS; r++) {
    sum[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float x = s_rmem[r / 2][n][r % 2 * 2], y = s_rmem[r / 2][n][r % 2 * 2 + 1];
        const float a = expf(x * scale_log2 - m[r]), b = expf(y * scale_log2 - m[r]);
        sum[r] += a + b;
        p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(a, b);
    }
}
""",
        cause="function",
    ),
    Wrong(
        "halves_exchanged",
        "Packs the higher key into the lower half.",
        (),
        (),
        "p_rmem[i][k][2 * j + h] = ptx::pack_pair(w[1], w[0]);",
        text="""\
RowState sum;
#pragma unroll
for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < BLOCK_N / 16; k++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float w[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    w[e] = ptx::ex2(s_rmem[i][2 * k + j][2 * h + e] * scale_log2 - m[2 * i + h]);
                    total += w[e];
                }
                p_rmem[i][k][2 * j + h] = ptx::pack_pair(w[1], w[0]);
            }
        sum[2 * i + h] = total;
    }
""",
        cause="arguments",
    ),
    Wrong(
        "registers_in_wrong_order",
        "Numbers the four registers row first (row half times 2 plus key half); the operand "
            "wants the row half to vary fastest, so registers 1 and 2 are exchanged.",
        (("n % 2 * 2 + r % 2", "r % 2 * 2 + n % 2"),),
        (),
        "p_rmem[r / 2][n / 2][r % 2 * 2 + n % 2] = ptx::pack_pair(p0, p1);",
        text=OWN_BUILD,
        cause="index",
    ),
    Wrong(
        "scales_the_difference",
        "Scales the difference, (s - m) * scale, although m is in units of log2 and scaled already.",
        (
            ("s[0] * scale_log2 - m[r]", "(s[0] - m[r]) * scale_log2"),
            ("s[1] * scale_log2 - m[r]", "(s[1] - m[r]) * scale_log2"),
            (OWN_TILES, OWN_ROWS),
            (OWN_ROWS + "\n", OWN_TILES + "\n"),
        ),
        (),
        "const float p0 = ptx::ex2((s[0] - m[r]) * scale_log2);",
        text=OWN_BUILD,
        cause="argument",
    ),
    Wrong(
        "skips_masked_pairs",
        "Skips pairs whose scores are both masked, believing a weight of 0 need not be "
            "written; the product then reads registers that nobody wrote in this tile.",
        (
            ("const float p0",
             "if (s[0] == -INFINITY && s[1] == -INFINITY) continue;  // weight 0\n        const float p0"),
        ),
        (),
        "if (s[0] == -INFINITY && s[1] == -INFINITY) continue;  // weight 0",
        text=OWN_BUILD,
        cause="extra condition",
    ),
    Wrong(
        "sum_of_the_quad",
        "Adds the sum over the quad, so every lane of the four counts the whole row and l "
            "becomes four times too large.",
        (),
        (),
        "sum[r] = quad_sum(sum[r]);",
        text="""\
RowState sum;
#pragma unroll
for (int r = 0; r < LANE_ROWS; r++) {
    sum[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const float* s = &s_rmem[r / 2][n][r % 2 * 2];
        const float p0 = ptx::ex2(s[0] * scale_log2 - m[r]), p1 = ptx::ex2(s[1] * scale_log2 - m[r]);
        sum[r] += p0;
        sum[r] += p1;
        p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1);
    }
    sum[r] = quad_sum(sum[r]);
}
""",
        cause="extra assignment",
    ),
)  # fmt: skip

# Answers of readers of which the judge shows a wrong value, but not the line that makes it wrong: it finds
# no single change that makes them right.
NOTICED_ONLY = (
    Wrong(
        "m_of_first_row_tile",
        "Takes m[row] with row 0 or 1 in every row tile instead of m[2 i + row]: rows 16 to "
            "31 of the warp use the reference of rows 0 to 15.",
        (),
        (),
        "",
        text="""\
RowState sum;
#pragma unroll
for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float reference = m[row];
        float x = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++) {
            const float p0 = ptx::ex2(s_rmem[i][n][2 * row] * scale_log2 - reference);
            const float p1 = ptx::ex2(s_rmem[i][n][2 * row + 1] * scale_log2 - reference);
            x += p0 + p1;
            p_rmem[i][n / 2][n % 2 * 2 + row] = ptx::pack_pair(p0, p1);
        }
        sum[2 * i + row] = x;
    }
""",
    ),
    Wrong(
        "partner_tile_far_away",
        "Pairs score tile k with tile k + BLOCK_N / 16 instead of pairing the neighbours 2 k and 2 k + 1.",
        (),
        (),
        "",
        text="""\
RowState sum;
#pragma unroll
for (int r = 0; r < LANE_ROWS; r++) sum[r] = 0.0f;
#pragma unroll
for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
    for (int k = 0; k < BLOCK_N / 16; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float* s = &s_rmem[i][k + half * (BLOCK_N / 16)][row * 2];
                const float p0 = ptx::ex2(s[0] * scale_log2 - m[2 * i + row]);
                const float p1 = ptx::ex2(s[1] * scale_log2 - m[2 * i + row]);
                sum[2 * i + row] += p0 + p1;
                p_rmem[i][k][half * 2 + row] = ptx::pack_pair(p0, p1);
            }
""",
    ),
)  # fmt: skip
