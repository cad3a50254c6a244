from . import Wrong

WRONG = (
    Wrong(
        "scale_forgotten",
        "The scores are plain dot products.",
        (("scale * np.dot", "np.dot"),),
        ("scores",),
        "scores[j] = np.dot(q[row], k[j])",
        cause="scale missing",
    ),
    Wrong(
        "scale_on_the_output",
        "The scale is multiplied in at the end, where it only shrinks the output.",
        (("scale * np.dot", "np.dot"), ("out[row] = o / row_sum", "out[row] = scale * o / row_sum")),
        ("scores",),
        "scores[j] = np.dot(q[row], k[j])",
        cause="value",
    ),
    Wrong(
        "no_maximum",
        "exp of the scores as they are: large ones overflow.",
        (("np.exp(scores[j] - row_max)", "np.exp(scores[j])"),),
        ("weights",),
        "p[j] = np.exp(scores[j])",
        cause="argument",
    ),
    Wrong(
        "maximum_at_least_zero",
        "The largest score is taken to be 0 at least, so weights of very negative scores all vanish.",
        (("scores.max(initial=-np.inf)", "scores.max(initial=0)"),),
        ("largest score",),
        "row_max = scores.max(initial=0)",
        cause="argument",
    ),
    Wrong(
        "largest_size",
        "The maximum of the absolute values.",
        (("scores.max(initial=-np.inf)", "abs(scores).max(initial=-np.inf)"),),
        ("largest score",),
        "row_max = abs(scores).max(initial=-np.inf)",
        cause="function",
    ),
    Wrong(
        "maximum_of_nothing",
        "A row without keys: NumPy has no maximum of an empty array.",
        (("scores.max(initial=-np.inf)", "scores.max()"),),
        ("zero-size|empty",),
        "row_max = scores.max()",
        cause="value",
    ),
    Wrong(
        "not_normalised",
        "The weighted sum is never divided by the sum of the weights.",
        (("o / row_sum", "o"),),
        ("output row",),
        "out[row] = o if visible > 0 else 0",
        cause="not normalised",
    ),
    Wrong(
        "mean_over_keys",
        "Divided by the number of keys instead of the sum of the weights.",
        (("o / row_sum", "o / visible"),),
        ("output row",),
        "out[row] = o / visible if visible > 0 else 0",
        cause="divided by the number of keys",
    ),
    Wrong(
        "mask_ignored",
        "Every key is used, whatever the row may see.",
        (("scores = np.zeros(visible)", "visible = k.shape[0]\n        scores = np.zeros(visible)"),),
        ("causal|mask|visible|key",),
        line="visible = k.shape[0]",
        cause="mask ignored",
    ),
    Wrong(
        "empty_row_divided",
        "A row without keys divides 0 by 0.",
        ((" if visible > 0 else 0", ""),),
        ("no key|NaN|nan|division",),
        "out[row] = o / row_sum",
        cause="value",
    ),
    Wrong(
        "key_of_the_row",
        "The row is compared with the key of its own number every time.",
        (("k[j])", "k[row])"),),
        ("scores|out of bounds",),
        "scores[j] = scale * np.dot(q[row], k[row])",
        cause="index",
    ),
    Wrong(
        "keys_for_values",
        "The weights are given to the keys instead of the values.",
        (("p[j] * v[j]", "p[j] * k[j]"),),
        ("weighted sum",),
        "o += p[j] * k[j]",
        cause="K for V",
    ),
    Wrong(
        "last_key_forgotten",
        "The loop over V stops one key early.",
        (
            (
                "o = np.zeros(q.shape[1])\n        for j in range(visible):",
                "o = np.zeros(q.shape[1])\n        for j in range(visible - 1):",
            ),
        ),
        ("weighted sum",),
        "for j in range(visible - 1):",
        cause="last key's value lost",
    ),
    Wrong(
        "divided_by_the_scale",
        "In a vector of another name, the scores are divided by the scale.",
        (),
        (
            "`s` .which comes nearest to `scores`",
            "64 times what it should be in every element",
        ),
        "s = np.array([np.dot(q[row], k[j]) / scale for j in range(visible)])",
        text="""\
s = np.array([np.dot(q[row], k[j]) / scale for j in range(visible)])
if visible:
    w = np.exp(s - s.max())
    out[row] = w @ v[:visible] / w.sum()
else:
    out[row] = 0
""",
        cause="divided by the scale",
    ),
    Wrong(
        "powers_of_two",
        "The weights are powers of 2; the scores are right under another name.",
        (),
        (
            "`w` .which comes nearest to `p`",
            "`s` is right there",
        ),
        "w = 2.0 ** (s - s.max())",
        text="""\
s = np.array([scale * np.dot(q[row], k[j]) for j in range(visible)])
if visible:
    w = 2.0 ** (s - s.max())
    out[row] = w @ v[:visible] / w.sum()
else:
    out[row] = 0
""",
        cause="powers of 2",
    ),
    Wrong(
        "clipped",
        "The scores are clipped before exp, so that very negative ones are all alike.",
        (),
        (
            "every score below -150",
            r"`out\[row\]`",
        ),
        "w = np.exp(np.clip(s, -80, 80))",
        text="""\
s = np.array([scale * np.dot(q[row], k[j]) for j in range(visible)])
if visible:
    w = np.exp(np.clip(s, -80, 80))
    out[row] = w @ v[:visible] / w.sum()
else:
    out[row] = 0
""",
    ),
    Wrong(
        "one_key_is_none",
        "A row that sees one key is taken for one that sees none.",
        (),
        (
            "the causal mask",
            r"`out\[row\]` .* is 0",
        ),
        "out[row] = 0",
        text="""\
s = np.array([scale * np.dot(q[row], k[j]) for j in range(visible)])
if visible > 1:
    w = np.exp(s - s.max())
    out[row] = w @ v[:visible] / w.sum()
else:
    out[row] = 0
""",
    ),
    Wrong(
        "return_of_one_row",
        "`return` for a row without keys ends all rows.",
        (),
        ("never written",),
        "return",
        text="""\
if visible == 0:
    return
s = np.array([scale * np.dot(q[row], k[j]) for j in range(visible)])
w = np.exp(s - s.max())
out[row] = w @ v[:visible] / w.sum()
""",
        cause="leaves",
    ),
    Wrong(
        "no_zeros",
        "A row without keys is left as it was.",
        (),
        (
            "never written",
            "has an output too: zeros",
        ),
        "if visible > 0:",
        text="""\
if visible > 0:
    s = np.array([scale * np.dot(q[row], k[j]) for j in range(visible)])
    w = np.exp(s - s.max())
    out[row] = w @ v[:visible] / w.sum()
""",
        cause="stored under a condition",
    ),
)
