"""Wrong answers to lesson 25: moments of parts that do not add up."""

from . import Wrong

READ = "if (i + lane % 4 < SHARES) parts[i / 4] = moments_smem[moments_at(i + lane % 4, lane / 4)];"
MEANS = "if (CENTRED) mean[0] += parts[i / 4].x, mean[1] += parts[i / 4].z;"
MEAN = "if (CENTRED) mean[0] = quad_sum(mean[0]) / SHARES, mean[1] = quad_sum(mean[1]) / SHARES;"
OFF = "const float off[2] = {part.x - mean[0], part.z - mean[1]};"
SKIP = "if (i + lane % 4 >= SHARES) continue;"
ADD = "squares[0] += part.y + 2 * OWN * off[0] * off[0], squares[1] += part.w + 2 * OWN * off[1] * off[1];"
FACTOR = "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES) + eps);"

WRONG = (
    Wrong(
        "m2_adds_up", "M2 is a sum of squares, and sums of parts add up.",
        ((ADD, "squares[0] += part.y, squares[1] += part.w;"),),
        (r"the value of `squares\[0\]`, `part\.y`",),
        "squares[0] += part.y, squares[1] += part.w;",
        cause="value",
    ),
    Wrong(
        "means_count_once", "A share is one number, so its distance counts once.",
        (("2 * OWN * off[0] * off[0]", "off[0] * off[0]"), ("2 * OWN * off[1] * off[1]", "off[1] * off[1]")),
        (r"the value of `squares\[0\]`, `part\.y \+ off\[0\] \* off\[0\]`",),
        "squares[0] += part.y + off[0] * off[0], squares[1] += part.w + off[1] * off[1];",
        cause="value",
    ),
    Wrong(
        "own_columns_of_a_lane", "A share has OWN columns.",
        (("2 * OWN * off[0]", "OWN * off[0]"), ("2 * OWN * off[1]", "OWN * off[1]")),
        (r"the value of `squares\[0\]`, `part\.y \+ OWN \* off\[0\] \* off\[0\]`",),
        "squares[0] += part.y + OWN * off[0] * off[0], squares[1] += part.w + OWN * off[1] * "
        "off[1];",
        cause="value",
    ),
    Wrong(
        "mean_of_a_lane", "The lanes of a quad have the same rows, and so the same sums.",
        ((MEAN, "if (CENTRED) mean[0] = mean[0] / SHARES, mean[1] = mean[1] / SHARES;"),),
        (r"the value of `mean\[0\]`, `mean\[0\] / SHARES`",),
        "if (CENTRED) mean[0] = mean[0] / SHARES, mean[1] = mean[1] / SHARES;",
        cause="value",
    ),
    Wrong(
        "sum_for_mean", "The means of the shares are summed, and that is the mean.",
        ((MEAN, "if (CENTRED) mean[0] = quad_sum(mean[0]), mean[1] = quad_sum(mean[1]);"),),
        (r"the value of `mean\[0\]`, `quad_sum\(mean\[0\]\)`",),
        "if (CENTRED) mean[0] = quad_sum(mean[0]), mean[1] = quad_sum(mean[1]);",
        cause="value",
    ),
    Wrong(
        "mean_over_a_quads_shares", "A lane has a quarter of the shares, so it divides by a quarter.",
        (("quad_sum(mean[0]) / SHARES", "quad_sum(mean[0]) / (SHARES / 4)"),
         ("quad_sum(mean[1]) / SHARES", "quad_sum(mean[1]) / (SHARES / 4)")),
        (r"the value of `mean\[0\]`, `quad_sum\(mean\[0\]\) / \(SHARES / 4\)`",),
        "if (CENTRED) mean[0] = quad_sum(mean[0]) / (SHARES / 4), mean[1] = quad_sum(mean[1]) "
        "/ (SHARES / 4);",
        cause="value",
    ),
    Wrong(
        "rows_swapped", "A message is two means, then two M2.",
        (("mean[0] += parts[i / 4].x, mean[1] += parts[i / 4].z", "mean[0] += parts[i / 4].x, mean[1] += "
          "parts[i / 4].y"),),
        (r"the value of `mean\[1\]`, `parts\[i / 4\]\.y`",),
        "if (CENTRED) mean[0] += parts[i / 4].x, mean[1] += parts[i / 4].y;",
        cause="value",
    ),
    Wrong(
        "m2_of_the_other_row", "M2 of both rows is taken from the first one's place.",
        (("squares[1] += part.w", "squares[1] += part.y"),),
        (r"the value of `squares\[1\]`, `part\.y \+ 2 \* OWN \* off\[1\] \* off\[1\]`",),
        "squares[0] += part.y + 2 * OWN * off[0] * off[0], squares[1] += part.y + 2 * OWN * "
        "off[1] * off[1];",
        cause="value",
    ),
    Wrong(
        "absent_shares_count", "What was set to 0 adds nothing.",
        ((SKIP + "\n", ""),),
        (r"places",),
        "squares[0] += part.y + 2 * OWN * off[0] * off[0], squares[1] += part.w + 2 * OWN * "
        "off[1] * off[1];",
        cause="several places",
    ),
    Wrong(
        "absent_shares_read", "SHARES is a multiple of 4, as heads are.",
        ((READ, "parts[i / 4] = moments_smem[moments_at(i + lane % 4, lane / 4)];"),),
        (r"`parts\[i / 4\] = moments_smem\[moments_at\(i \+ lane % 4, lane / 4\)\];` runs without a c",),
        "parts[i / 4] = moments_smem[moments_at(i + lane % 4, lane / 4)];",
        cause="condition left out",
    ),
    Wrong(
        "share_of_the_lane", "Share i is at place i.",
        ((READ, READ.replace("moments_at(i + lane % 4, lane / 4)", "8 * (i + lane % 4) + lane / 4")),),
        (r"the index of `moments_smem`, `8 \* \(i \+ lane % 4\) \+ lane / 4`",),
        "if (i + lane % 4 < SHARES) parts[i / 4] = moments_smem[8 * (i + lane % 4) + lane / 4];",
        cause="index",
    ),
    Wrong(
        "eps_forgotten", "eps is for rows of zeros, and there are none.",
        ((" + eps);", ");"),),
        (r"the first argument of `rsqrtf`, `quad_sum\(squares\[r\]\) / \(2 \* OWN \* SHARES\)`",),
        "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES));",
        cause="argument",
    ),
    Wrong(
        "eps_beside_the_root", "eps keeps the divisor from 0, so it is added to the divisor.",
        ((FACTOR, "for (int r = 0; r < 2; r++)\n        factor[r] = 1.0f / (sqrtf(quad_sum(squares[r]) / "
          "(2 * OWN * SHARES)) + eps);"),),
        (r"the value of `factor\[r\]`, `1\.0f / \(sqrtf\(quad_sum\(squares\[r\]\) / \(2 \* OWN \* SHA",),
        "factor[r] = 1.0f / (sqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES)) + eps);",
        cause="value",
    ),
    Wrong(
        "variance_of_a_sample", "A variance is divided by N - 1.",
        (("(2 * OWN * SHARES) + eps", "(2 * OWN * SHARES - 1) + eps"),),
        (r"the first argument of `rsqrtf`, `quad_sum\(squares\[r\]\) / \(2 \* OWN \* SHARES \- 1\) \+",),
        "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN * "
        "SHARES - 1) + eps);",
        cause="argument",
    ),
    Wrong(
        "columns_of_the_head", "The mean square is over the columns of a share.",
        (("(2 * OWN * SHARES) + eps", "(2 * OWN) + eps"),),
        (r"the first argument of `rsqrtf`, `quad_sum\(squares\[r\]\) / \(2 \* OWN\) \+ eps`",),
        "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN) + eps);",
        cause="argument",
    ),
    Wrong(
        "squares_of_a_lane", "What a lane has added up is the sum.",
        (("quad_sum(squares[r])", "squares[r]"),),
        (r"the first argument of `rsqrtf`, `squares\[r\] / \(2 \* OWN \* SHARES\) \+ eps`",),
        "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(squares[r] / (2 * OWN * SHARES) + eps);",
        cause="argument",
    ),
    Wrong(
        "both_by_the_first_row", "The rows of a lane are normed alike.",
        (("quad_sum(squares[r])", "quad_sum(squares[0])"),),
        (r"the index of `squares`, `0`",),
        "for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[0]) / (2 * OWN * "
        "SHARES) + eps);",
        cause="index",
    ),
    Wrong(
        "summed_in_the_loop", "Each share is brought to the whole quad at once.",
        ((MEANS, "if (CENTRED) mean[0] += quad_sum(parts[i / 4].x), mean[1] += quad_sum(parts[i / 4].z);"),
         (MEAN, "if (CENTRED) mean[0] /= SHARES, mean[1] /= SHARES;")),
        (r"counter is too high", r"shuffles in sums and maxima of a quad"),
        "if (CENTRED) mean[0] += quad_sum(parts[i / 4].x), mean[1] += quad_sum(parts[i / 4].z);",
        cause="value",
    ),
    Wrong(
        "off_from_zero", "How far a share is off is its mean.",
        ((OFF, "const float off[2] = {part.x, part.z};"),),
        (r"a value in braces, `part\.x`",),
        "const float off[2] = {part.x, part.z};",
        cause="value",
    ),
    Wrong(
        "left_before_the_sum", "A lane without a share has nothing to do here.",
        ((MEANS, "if (i + lane % 4 >= SHARES) continue;\n        if (CENTRED) "
          "mean[0] += quad_sum(parts[i / 4].x), mean[1] += quad_sum(parts[i / 4].z);"),
         (MEAN, "if (CENTRED) mean[0] /= SHARES, mean[1] /= SHARES;")),
        (r"`if \(i \+ lane % 4 >= SHARES\)` is too much",),
        "if (i + lane % 4 >= SHARES) continue;",
        cause="extra condition",
    ),
)  # fmt: skip
