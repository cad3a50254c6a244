"""Wrong answers to lesson 22: where each scale goes, and what follows a maximum that rises."""

from . import Wrong

IF = "if (!lazy || !exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum)) {"
RAISE = "raise_max(s_rmem, m, rescale, factor, exponent);\n"
FOLLOW = "l[0] *= rescale[0], l[1] *= rescale[1];\n"
AGAIN = "exponentiate<false>(p_rmem, s_rmem, factor, m, exponent, sum);\n"
ADD = "l[0] += sum[0] * without, l[1] += sum[1] * without;"

WRONG = (
    Wrong(
        "scale_of_k_forgotten", "The factor of a row is the scale of its row of Q.",
        (("q_factor[r] * k_scale", "q_factor[r]"),),
        (r"the first argument of `fmaxf`, `q_factor\[r\]`",),
        "factor[r] = fmaxf(q_factor[r], LEAST_FACTOR), rescale[r] = 1.0f;",
        cause="argument",
    ),
    Wrong(
        "tiles_of_the_first_head", "Tiles are counted from 0.",
        (("k_scales[first_tile + tile]", "k_scales[tile]"),),
        (r"the index of `k_scales`, `tile`",),
        "const float k_scale = k_scales[tile], exponent = v_exponents[first_tile + tile];",
        cause="index",
    ),
    Wrong(
        "exponents_of_the_first_head", "Tiles of V are counted from 0.",
        (("v_exponents[first_tile + tile]", "v_exponents[tile]"),),
        (r"the index of `v_exponents`, `tile`",),
        "const float k_scale = k_scales[first_tile + tile], exponent = v_exponents[tile];",
        cause="index",
    ),
    Wrong(
        "scale_of_v_in_l", "l is the sum of the weights, and the weights are in P.",
        (("ptx::ex2(-exponent);", "1.0f;"),),
        (r"the value of `without`, `1\.0f`",),
        "const float without = 1.0f;  // V's scale is in P, and not in l",
        cause="value",
    ),
    Wrong(
        "exponent_twice", "What was multiplied in is divided out: by 2^-exponent.",
        (("ptx::ex2(-exponent)", "ptx::ex2(exponent)"),),
        (r"the first argument of `ex2`, `exponent`",),
        "const float without = ptx::ex2(exponent);  // V's scale is in P, and not in l",
        cause="argument",
    ),
    Wrong(
        "exponent_is_a_scale", "v_exponents are scales of V, as k_scales are of K.",
        (("ptx::ex2(-exponent)", "1.0f / exponent"),),
        (r"the value of `without`, `1\.0f / exponent`",),
        "const float without = 1.0f / exponent;  // V's scale is in P, and not in l",
        cause="value",
    ),
    Wrong(
        "scale_of_v_in_the_factor", "All scales of a tile belong to its factor.",
        (("q_factor[r] * k_scale", "q_factor[r] * k_scale * ptx::ex2(exponent)"),),
        (r"the first argument of `fmaxf`, `q_factor\[r\] \* k_scale \* ptx::ex2\(e",),
        "factor[r] = fmaxf(q_factor[r] * k_scale * ptx::ex2(exponent), LEAST_FACTOR), rescale[r] = 1.0f;",
        cause="argument",
    ),
    Wrong(
        "l_not_rescaled", "l is a sum of weights, and weights are positive.",
        ((FOLLOW, ""),),
        (r"a statement that sets `l`",),
        "raise_max(s_rmem, m, rescale, factor, exponent);",
        cause="assignment left out",
    ),
    Wrong(
        "both_rows_by_the_first", "The rows of a lane rise together.",
        (("l[1] *= rescale[1]", "l[1] *= rescale[0]"),),
        (r"the index of `rescale`, `0`",),
        "l[0] *= rescale[0], l[1] *= rescale[0];",
        cause="index",
    ),
    Wrong(
        "rescale_left_over", "A tile that keeps m has nothing to say about O.",
        ((", rescale[r] = 1.0f;", ";"),),
        (r"the value of `factor\[r\]`, `fmaxf\(q_factor\[r\] \* k_scale, LEAST_FACT",),
        "factor[r] = fmaxf(q_factor[r] * k_scale, LEAST_FACTOR);",
        cause="value",
    ),
    Wrong(
        "try_not_asked", "m rises where it must, in the tiles that may not be lazy.",
        (
            (IF, "if (lazy) exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum);\n"
             "            else {"),
        ),
        (r"`else` is too much",),
        "else {",
        cause="extra condition",
    ),
    Wrong(
        "m_not_raised", "The try has failed, so it is made again.",
        ((RAISE, ""),),
        (r"a call of `raise_max`",),
        "}",
        cause="call left out",
    ),
    Wrong(
        "not_made_again", "P is there already; only m was wrong.",
        ((AGAIN, ""),),
        (r"a call of `exponentiate`",),
        "RowState factor, sum;",
        cause="call left out",
    ),
    Wrong(
        "masked_after_the_maximum", "Masking is for P, so it comes before P is made.",
        ((RAISE, ""), (IF, f"{IF}\n                {RAISE}")),
        (r"`raise_max\(s_rmem, m, rescale, factor, exponent\);` comes too early",),
        "raise_max(s_rmem, m, rescale, factor, exponent);",
        cause="order",
    ),
    Wrong(
        "factor_may_be_0", "A row of zeros has the factor 0.",
        (("fmaxf(q_factor[r] * k_scale, LEAST_FACTOR)", "q_factor[r] * k_scale"),),
        (r"the value of `factor\[r\]`, `q_factor\[r\] \* k_scale`",),
        "factor[r] = q_factor[r] * k_scale, rescale[r] = 1.0f;",
        cause="value",
    ),
    Wrong(
        "scale_of_v_forgotten", "The scale of V can wait for the end.",
        (("exponent = v_exponents[first_tile + tile]", "exponent = 0.0f"),),
        (r"the value of `exponent`, `0\.0f`",),
        "const float k_scale = k_scales[first_tile + tile], exponent = 0.0f;",
        cause="value",
    ),
    Wrong(
        "always_raised", "An online softmax needs the maximum of every tile.",
        ((IF, "if (true) {"),),
        (r"counter is too high", r"the condition, `true`",),
        "if (true) {",
        cause="condition",
    ),
    Wrong(
        "added_before_it_follows", "First the sum, then its new reference.",
        ((FOLLOW, ""), (ADD, ADD + "\n            l[0] *= rescale[0], l[1] *= rescale[1];")),
        (r"`l\[0\] \*= rescale\[0\], l\[1\] \*= rescale\[1\];` comes too late",),
        "l[0] *= rescale[0], l[1] *= rescale[1];",
        cause="order",
    ),
)  # fmt: skip
