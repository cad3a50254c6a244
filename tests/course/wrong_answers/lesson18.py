"""Wrong answers to lesson 18: dS of transposed tiles, into operands and into shared memory."""

from . import Wrong

DELTA = "const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2);\n"
DS = "const uint32_t ds = ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));"
PACK_P = "if (!SOFTCAP) p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p[0], p[1]);"
KEEP = "ds_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ds;"
STORE = "*(uint32_t*)(ds_smem + (8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2) = ds;"

WRONG = (
    Wrong(
        "delta_of_the_key", "D belongs to a row, and a lane's rows are g and g + 8.",
        (("delta_smem + 8 * n + lane % 4 * 2", "delta_smem + lane / 4 * 2"),),
        (r"the value of `delta`", r"dS of key g, query 2 t"),
        "const float2 delta = *(const float2*)(delta_smem + lane / 4 * 2);",
        cause="value",
    ),
    Wrong(
        "delta_left_out", "dS is P times dP.",
        ((DS, "const uint32_t ds = ptx::pack_pair(p[0] * dp[0], p[1] * dp[1]);"),),
        (r"dS of key g, query 2 t", r"in 2 places"),
        "const uint32_t ds = ptx::pack_pair(p[0] * dp[0], p[1] * dp[1]);",
        cause="argument",
    ),
    Wrong(
        "parentheses", "P dP - D reads as it is written.",
        (("p[0] * (dp[0] - delta.x)", "p[0] * dp[0] - delta.x"),
         ("p[1] * (dp[1] - delta.y)", "p[1] * dp[1] - delta.y")),
        (r"the first argument of `pack_pair`, `p\[0\] \* dp\[0\] - delta.x`",),
        "const uint32_t ds = ptx::pack_pair(p[0] * dp[0] - delta.x, p[1] * dp[1] - delta.y);",
        cause="argument",
    ),
    Wrong(
        "one_delta_for_both", "Both numbers of a register belong to one query.",
        (("dp[1] - delta.y", "dp[1] - delta.x"),),
        (r"the second argument of `pack_pair`", r"query 2 t \+ 1"),
        "const uint32_t ds = ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.x));",
        cause="argument",
    ),
    Wrong(
        "halves_swapped", "The later query goes to the lower half.",
        ((DS, "const uint32_t ds = ptx::pack_pair(p[1] * (dp[1] - delta.y), p[0] * (dp[0] - delta.x));"),),
        (r"the arguments of `pack_pair`", r"It holds what .*\[1\]` should be"),
        "const uint32_t ds = ptx::pack_pair(p[1] * (dp[1] - delta.y), p[0] * (dp[0] - delta.x));",
        cause="arguments",
    ),
    Wrong(
        "keys_and_queries_swapped", "Register 1 gets the later queries, register 2 the later key.",
        ((KEEP, "ds_rmem[r / 2][n / 2][r % 2 * 2 + n % 2] = ds;"),),
        (r"the index of `ds_rmem`, `r % 2 \* 2 \+ n % 2`", r"dS of key g \+ 8"),
        "ds_rmem[r / 2][n / 2][r % 2 * 2 + n % 2] = ds;",
        cause="index",
    ),
    Wrong(
        "ds_for_p", "What is packed once serves both products.",
        ((PACK_P, "if (!SOFTCAP) p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ds;"),),
        (r"P of key g", r"It holds what `\(\(const element\*\)&ds_rmem"),
        "if (!SOFTCAP) p_rmem[r / 2][n / 2][n % 2 * 2 + r % 2] = ds;",
        cause="value",
    ),
    Wrong(
        "p_not_packed", "P was packed when it was made.",
        ((PACK_P + "\n", ""),),
        (r"uninitialised read", r"a statement that sets `p_rmem`"),
        DS,
        cause="assignment left out",
    ),
    Wrong(
        "stored_by_queries", "dQ takes dS with rows of queries, so they are stored as rows.",
        ((STORE, "*(uint32_t*)(ds_smem + (8 * n + lane / 4) * DS_PITCH + 8 * r + lane % 4 * 2) = ds;"),),
        (r"what is set, .*8 \* n \+ lane / 4", r"the stored dS of key g \+ 8"),
        "*(uint32_t*)(ds_smem + (8 * n + lane / 4) * DS_PITCH + 8 * r + lane % 4 * 2) = ds;",
        cause="target",
    ),
    Wrong(
        "pitch_of_the_tile", "Rows are BLOCK_N queries long, so they are BLOCK_N apart.",
        (("* DS_PITCH", "* BLOCK_N"),),
        (r"uninitialised read", r"its rows are 40 halves apart"),
        "*(uint32_t*)(ds_smem + (8 * r + lane / 4) * BLOCK_N + 8 * n + lane % 4 * 2) = ds;",
        cause="target",
    ),
    Wrong(
        "quad_for_lane", "A store has 4 bytes, so lane t has column 4 t.",
        (("8 * n + lane % 4 * 2) = ds", "8 * n + lane % 4 * 4) = ds"),),
        (r"race", r"written by thread 2 .* and written by thread 0"),
        "*(uint32_t*)(ds_smem + (8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 4) = ds;",
        cause="target",
    ),
    Wrong(
        "one_half_stored", "An element of shared memory is a half, so a half is stored.",
        ((STORE, "ds_smem[(8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2] = ((const "
        "element*)&ds)[0];"),),
        (r"uninitialised read", r"`ds_smem` at row 0, column 1"),
        'ds_smem[(8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2] = ((const element*)&ds)[0];',
    ),
    Wrong(
        "two_stores", "Two halves are two stores.",
        ((STORE,
          "element* row = ds_smem + (8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2;\n"
          "            row[0] = ((const element*)&ds)[0];\n"
          "            row[1] = ((const element*)&ds)[1];"),),
        (r"wavefronts", r"`row\[0\] = .*: 256"),
        'element* row = ds_smem + (8 * r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2;',
    ),
    Wrong(
        "operand_of_the_tile", "A score tile is an operand.",
        ((KEEP, "ds_rmem[r / 2][n][n % 2 * 2 + r % 2] = ds;"),),
        (r"out of bounds", r"the index of `ds_rmem`, `n`"),
        "ds_rmem[r / 2][n][n % 2 * 2 + r % 2] = ds;",
        cause="index",
    ),
    Wrong(
        "delta_per_key", "delta is loaded where it is used.",
        ((DELTA, ""), ("            const float *p =",
          "            const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2);\n"
          "            const float *p =")),
        (r"wavefronts", r"comes too late"),
        "const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2);",
        cause="order",
    ),
)  # fmt: skip
