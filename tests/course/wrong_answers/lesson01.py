from . import Wrong

FIRST = "row_max = float32(-math.inf)\n        for j in range(visible):\n            score = float32(0)\n"

WRONG = (
    Wrong(
        "score_never_reset",
        "The sum goes on from one key to the next.",
        (
            (
                FIRST,
                "row_max = float32(-math.inf)\n        score = float32(0)\n        for j in range(visible):\n",
            ),
        ),
        ("largest score",),
        "row_max = max(row_max, score)",
    ),
    Wrong(
        "scale_each_component",
        "The scale is multiplied in after every component instead of once.",
        (("            score *= scale", "                score *= scale"),),
        ("largest score",),
        "row_max = max(row_max, score)",
    ),
    Wrong(
        "scale_forgotten",
        "The scores are plain dot products.",
        (("            score *= scale\n", ""),),
        ("largest score",),
        "row_max = max(row_max, score)",
    ),
    Wrong(
        "maximum_before_scale",
        "The maximum of the scores before they are scaled.",
        (
            ("            score *= scale\n", ""),
            ("scores[b, h, row, j] = score", "scores[b, h, row, j] = score * scale"),
        ),
        ("largest score",),
        "row_max = max(row_max, score)",
    ),
    Wrong(
        "maximum_from_zero",
        "The running maximum starts at 0: wrong for a row of negative scores.",
        (("row_max = float32(-math.inf)", "row_max = float32(0)"),),
        ("largest score",),
        "row_max = max(row_max, score)",
    ),
    Wrong(
        "weights_not_stored",
        "The second loop sums the weights and leaves the scores in memory.",
        (("            scores[b, h, row, j] = p\n", ""),),
        ("weight",),
        "scores[b, h, row, j] = score",
    ),
    Wrong(
        "one_loop",
        "Scores and weights in one loop, with the maximum of the keys so far.",
        (
            (
                "            row_max = max(row_max, score)\n\n        row_sum = float32(0)\n        for j in range(visible):\n",
                "            row_max = max(row_max, score)\n",
            ),
            ("row_max = float32(-math.inf)", "row_max = float32(-math.inf)\n        row_sum = float32(0)"),
        ),
        ("weight",),
        "scores[b, h, row, j] = p",
    ),
    Wrong(
        "no_maximum",
        "exp of the scores as they are.",
        (("math.exp(scores[b, h, row, j] - row_max)", "math.exp(scores[b, h, row, j])"),),
        ("weight",),
        "scores[b, h, row, j] = p",
    ),
    Wrong(
        "mask_ignored",
        "The loops run over all keys.",
        ((FIRST, FIRST.replace("range(visible)", "range(k.shape[2])")),),
        ("causal|mask|visible|key",),
    ),
    Wrong(
        "head_zero",
        "Every head compares its rows with the keys of head 0.",
        (("k[b, h, j, c]", "k[b, 0, j, c]"),),
        ("head|largest score",),
    ),
    Wrong(
        "scores_turned",
        "The scores are stored [keys, rows] in memory made for [rows, keys].",
        (("scores[b, h, row, j] = score", "scores[b, h, j, row] = score"),),
        ("scores",),
    ),
    Wrong(
        "sum_of_half_precision",
        "The products are made in float16.",
        (("float32(q[b, h, row, c]) * float32(k[b, h, j, c])", "q[b, h, row, c] * k[b, h, j, c]"),),
        ("largest score|float16|precis",),
    ),
    Wrong(
        "sum_of_double_precision",
        "0.0 is a float64 to Numba, and so is everything added to it.",
        (("score = float32(0)", "score = 0.0"),),
        ("float64",),
    ),
    Wrong(
        "last_key_forgotten",
        "The sum of the weights stops one key early.",
        (
            (
                "row_sum = float32(0)\n        for j in range(visible):",
                "row_sum = float32(0)\n        for j in range(visible - 1):",
            ),
        ),
        ("sum of the weights",),
        "row_sum += p",
    ),
)
