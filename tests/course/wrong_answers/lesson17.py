"""Wrong answers to lesson 17."""

from . import Wrong

WEIGHT = "p = math.exp(s * scale - row_lse)"
SCORE = "ds = p * (dp - row_delta)"
SUMS = "s, dp = warp_sum(s), warp_sum(dp)"
LOAD = "k_rmem[i, 0], k_rmem[i, 1] = load2(k_head, (key, 64 * i + 2 * lane))\n"
VALUE = "x, y = load2(v_head, (key, 64 * i + 2 * lane))"
START = "            s, dp = float32(0), float32(0)\n            for i in range(PAIRS):\n"
FIRST, SECOND = "dq_rmem[i, 0] += ds * k_rmem[i, 0]", "dq_rmem[i, 1] += ds * k_rmem[i, 1]"

WRONG = (
    Wrong(
        "no_delta",
        "The gradient of a score is p * dp: the other weights of the row are taken to stay as they are.",
        ((SCORE, "ds = p * dp"),),
        ("`ds`", "`s`, `dp` and `p` are right there"),
        "ds = p * dp",
        cause="value",
    ),
    Wrong(
        "own_weight_only",
        "The diagonal of softmax's Jacobian, p * (1 - p), without the rest.",
        ((SCORE, "ds = p * (float32(1) - p) * dp"),),
        ("`ds`", "`s`, `dp` and `p` are right there"),
        "ds = p * (float32(1) - p) * dp",
        cause="value",
    ),
    Wrong(
        "parentheses",
        "D is subtracted from p * dp, without the weight.",
        ((SCORE, "ds = p * dp - row_delta"),),
        ("`ds`", "`s`, `dp` and `p` are right there"),
        "ds = p * dp - row_delta",
        cause="operator",
    ),
    Wrong(
        "sign_of_delta",
        "D is added.",
        ((SCORE, "ds = p * (dp + row_delta)"),),
        ("`ds`",),
        "ds = p * (dp + row_delta)",
        cause="operator",
    ),
    Wrong(
        "score_not_scaled",
        "The weight is made from the dot product: the scale is missing.",
        ((WEIGHT, "p = math.exp(s - row_lse)"),),
        ("`p`", "`s` and `dp` are right there"),
        "p = math.exp(s - row_lse)",
        cause="argument",
    ),
    Wrong(
        "scaled_twice",
        "dq_rmem gets the scale here, and once more after the loop.",
        ((SCORE, "ds = p * (dp - row_delta) * scale"),),
        ("`ds`", "0.125 times what it should be"),
        "ds = p * (dp - row_delta) * scale",
        cause="value",
    ),
    Wrong(
        "base_2",
        "The LSE is a natural logarithm, the exponential one of base 2.",
        ((WEIGHT, "p = math.exp2(s * scale - row_lse)"),),
        ("`p`",),
        "p = math.exp2(s * scale - row_lse)",
        cause="function",
    ),
    Wrong(
        "delta_for_lse",
        "LSE and D of the row have changed places.",
        ((WEIGHT, "p = math.exp(s * scale - row_delta)"), (SCORE, "ds = p * (dp - row_lse)")),
        ("`p`",),
        "p = math.exp(s * scale - row_delta)",
        cause="several places",
    ),
    Wrong(
        "not_normalised",
        "The weight is exp(score), as if a division by the sum came later.",
        ((WEIGHT, "p = math.exp(s * scale)"),),
        ("`p`",),
        "p = math.exp(s * scale)",
        cause="operator",
    ),
    Wrong(
        "weight_for_gradient",
        "The weights, not their gradients, multiply the keys.",
        ((FIRST, "dq_rmem[i, 0] += p * k_rmem[i, 0]"), (SECOND, "dq_rmem[i, 1] += p * k_rmem[i, 1]")),
        (r"`dq_rmem\[0, 0\]`", "`ds` are right there"),
        "dq_rmem[i, 0] += p * k_rmem[i, 0]",
        cause="value",
    ),
    Wrong(
        "value_for_key",
        "dS multiplies the value, which is still in registers.",
        ((FIRST, "dq_rmem[i, 0] += ds * x"), (SECOND, "dq_rmem[i, 1] += ds * y")),
        (r"`dq_rmem\[0, 0\]`", "`ds` are right there"),
        "dq_rmem[i, 0] += ds * x",
        cause="value",
    ),
    Wrong(
        "gradient_by_the_key",
        "dP is taken with the key in place of the value.",
        (
            ("dp += do_rmem[i, 0] * x", "dp += do_rmem[i, 0] * k_rmem[i, 0]"),
            ("dp += do_rmem[i, 1] * y", "dp += do_rmem[i, 1] * k_rmem[i, 1]"),
        ),
        ("`dp`", "`s` is right there"),
        "dp += do_rmem[i, 0] * k_rmem[i, 0]",
        cause="value",
    ),
    Wrong(
        "last_key_only",
        "dq_rmem is set, not added to: the last key overwrites all others.",
        ((FIRST, "dq_rmem[i, 0] = ds * k_rmem[i, 0]"), (SECOND, "dq_rmem[i, 1] = ds * k_rmem[i, 1]")),
        (r"`dq_rmem\[0, 0\]`", "Before that"),
        "dq_rmem[i, 0] = ds * k_rmem[i, 0]",
        cause="statement",
    ),
    Wrong(
        "dp_of_a_lane",
        "Only S is summed over the lanes: each lane goes on with its own part of dP.",
        ((SUMS, "s = warp_sum(s)"),),
        ("`dp`", "`s` is right there"),
        "s = warp_sum(s)",
        cause="statement",
    ),
    Wrong(
        "sum_in_lane_0",
        "Lane 0 alone asks for the sums.",
        ((SUMS, "if lane == 0:\n                s, dp = warp_sum(s), warp_sum(dp)"),),
        ("All 32 lanes of a warp have to take part",),
        "if lane == 0:",
        cause="several places",
    ),
    Wrong(
        "cleared_for_each_pair",
        "The sums start anew with each pair of components: with D = 128 half of them are lost.",
        ((START, "            for i in range(PAIRS):\n                s, dp = float32(0), float32(0)\n"),),
        ("D=128", "`s`"),
        "s, dp = float32(0), float32(0)",
        cause="several places",
    ),
    Wrong(
        "neighbouring_components",
        "Lane i loads component i of the value, not 2 i.",
        ((VALUE, "x, y = load2(v_head, (key, 64 * i + lane))"),),
        ("misaligned",),
        "x, y = load2(v_head, (key, 64 * i + lane))",
        cause="argument",
    ),
    Wrong(
        "key_loaded_again",
        "The key is loaded a second time for dQ: right, and half as many loads again.",
        ((FIRST, f"{LOAD}                {FIRST}"),),
        ("counter is too high", "load requests to `k` and `v`"),
        LOAD.strip(),
        cause="extra assignment",
    ),
    Wrong(
        "gradient_summed_again",
        "A third butterfly sums what every lane has already, and a division takes it back.",
        ((SCORE, "ds = warp_sum(p * (dp - row_delta)) / float32(32)"),),
        ("counter is too high", "shuffles of both passes"),
        "ds = warp_sum(p * (dp - row_delta)) / float32(32)",
        cause="operator",
    ),
    Wrong(
        "sums_in_float64",
        "0.0 is a float64, and so are both dot products.",
        (("s, dp = float32(0), float32(0)", "s, dp = 0.0, 0.0"),),
        ("counter is too high", "float64"),
        "s, dp = 0.0, 0.0",
        cause="value",
    ),
)
