from . import Wrong

WRONG = (
    Wrong(
        "scale_forgotten",
        "The scores are plain dot products.",
        (("scale * np.dot", "np.dot"),),
        ("scores",),
        "scores[j] = np.dot(q[row], k[j])",
    ),
    Wrong(
        "scale_on_the_output",
        "The scale is multiplied in at the end, where it only shrinks the output.",
        (("scale * np.dot", "np.dot"), ("out[row] = o / row_sum", "out[row] = scale * o / row_sum")),
        ("scores",),
        "scores[j] = np.dot(q[row], k[j])",
    ),
    Wrong(
        "no_maximum",
        "exp of the scores as they are: large ones overflow.",
        (("np.exp(scores[j] - row_max)", "np.exp(scores[j])"),),
        ("weights",),
        "p[j] = np.exp(scores[j])",
    ),
    Wrong(
        "maximum_at_least_zero",
        "The largest score is taken to be 0 at least, so weights of very negative scores all vanish.",
        (("scores.max(initial=-np.inf)", "scores.max(initial=0)"),),
        ("largest score",),
        "row_max = scores.max(initial=0)",
    ),
    Wrong(
        "largest_size",
        "The maximum of the absolute values.",
        (("scores.max(initial=-np.inf)", "abs(scores).max(initial=-np.inf)"),),
        ("largest score",),
        "row_max = abs(scores).max(initial=-np.inf)",
    ),
    Wrong(
        "maximum_of_nothing",
        "A row without keys: NumPy has no maximum of an empty array.",
        (("scores.max(initial=-np.inf)", "scores.max()"),),
        ("zero-size|empty",),
        "row_max = scores.max()",
    ),
    Wrong(
        "not_normalised",
        "The weighted sum is never divided by the sum of the weights.",
        (("o / row_sum", "o"),),
        ("output row",),
        "out[row] = o if visible > 0 else 0",
    ),
    Wrong(
        "mean_over_keys",
        "Divided by the number of keys instead of the sum of the weights.",
        (("o / row_sum", "o / visible"),),
        ("output row",),
        "out[row] = o / visible if visible > 0 else 0",
    ),
    Wrong(
        "mask_ignored",
        "Every key is used, whatever the row may see.",
        (("scores = np.zeros(visible)", "visible = k.shape[0]\n        scores = np.zeros(visible)"),),
        ("causal|mask|visible|key",),
    ),
    Wrong(
        "empty_row_divided",
        "A row without keys divides 0 by 0.",
        ((" if visible > 0 else 0", ""),),
        ("no key|NaN|nan|division",),
        "out[row] = o / row_sum",
    ),
    Wrong(
        "key_of_the_row",
        "The row is compared with the key of its own number every time.",
        (("k[j])", "k[row])"),),
        ("scores|out of bounds",),
        "scores[j] = scale * np.dot(q[row], k[row])",
    ),
    Wrong(
        "keys_for_values",
        "The weights are given to the keys instead of the values.",
        (("p[j] * v[j]", "p[j] * k[j]"),),
        ("weighted sum",),
        "o += p[j] * k[j]",
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
        "o += p[j] * v[j]",
    ),
)
