from . import Wrong

FIRST = "row_max = float32(-math.inf)\n        for j in range(visible):\n            score = float32(0)\n"
SECOND = "row_sum = float32(0)\n        for j in range(visible):"

WRONG = (
    Wrong(
        "score_never_reset",
        "The sum goes on from one key to the next.",
        (
            (
                FIRST,
                "row_max = float32(-math.inf)\n        score = float32(0)\n        "
                "for j in range(visible):\n",
            ),
        ),
        ("largest score",),
        "for j in range(visible):",
        cause="assignment left out",
    ),
    Wrong(
        "scale_each_component",
        "The scale is multiplied in after every component instead of once.",
        (("            score *= scale", "                score *= scale"),),
        ("largest score",),
        "score *= scale",
        cause="several places",
    ),
    Wrong(
        "scale_forgotten",
        "The scores are plain dot products.",
        (("            score *= scale\n", ""),),
        ("largest score",),
        "score += float32(q[b, h, row, c]) * float32(k[b, h, j, c])",
        cause="scale missing",
    ),
    Wrong(
        "maximum_before_scale",
        "The maximum of the scores before they are scaled.",
        (
            ("            score *= scale\n", ""),
            ("scores[b, h, row, j] = score", "scores[b, h, row, j] = score * scale"),
        ),
        ("largest score",),
        "scores[b, h, row, j] = score * scale",
        cause="several places",
    ),
    Wrong(
        "maximum_from_zero",
        "The running maximum starts at 0: wrong for a row of negative scores.",
        (("row_max = float32(-math.inf)", "row_max = float32(0)"),),
        ("largest score",),
        "row_max = float32(0)",
        cause="argument",
    ),
    Wrong(
        "weights_not_stored",
        "The second loop sums the weights and leaves the scores in memory.",
        (("            scores[b, h, row, j] = p\n", ""),),
        ("weight",),
        "p = math.exp(scores[b, h, row, j] - row_max)",
        cause="assignment left out",
    ),
    Wrong(
        "one_loop",
        "Scores and weights in one loop, with the maximum of the keys so far.",
        (
            (
                "            row_max = max(row_max, score)\n\n        row_sum = float32(0)\n"
                "        for j in range(visible):\n",
                "            row_max = max(row_max, score)\n",
            ),
            ("row_max = float32(-math.inf)", "row_max = float32(-math.inf)\n        row_sum = float32(0)"),
        ),
        ("weight",),
        "row_max = float32(-math.inf)",
        cause="loop left out",
    ),
    Wrong(
        "no_maximum",
        "exp of the scores as they are.",
        (("math.exp(scores[b, h, row, j] - row_max)", "math.exp(scores[b, h, row, j])"),),
        ("weight",),
        line="p = math.exp(scores[b, h, row, j])",
        cause="argument",
    ),
    Wrong(
        "mask_ignored",
        "The sum of the weights runs over all keys.",
        (
            (FIRST, FIRST.replace("range(visible)", "range(k.shape[2])")),
            (SECOND, SECOND.replace("range(visible)", "range(k.shape[2])")),
        ),
        ("Wrong: the causal mask",),
        "for j in range(k.shape[2]):",
        cause="loop bound",
    ),
    Wrong(
        "maximum_of_unseen_keys",
        "The maximum is taken over all keys, the sum over those that the row sees.",
        ((FIRST, FIRST.replace("range(visible)", "range(k.shape[2])")),),
        ("largest score",),
        "for j in range(k.shape[2]):",
        cause="loop bound",
    ),
    Wrong(
        "head_zero",
        "Every head compares its rows with the keys of head 0.",
        (("k[b, h, j, c]", "k[b, 0, j, c]"),),
        ("head|largest score",),
        line="score += float32(q[b, h, row, c]) * float32(k[b, 0, j, c])",
        cause="K of head 0",
    ),
    Wrong(
        "scores_turned",
        "The scores are stored [keys, rows] in memory made for [rows, keys].",
        (("scores[b, h, row, j] = score", "scores[b, h, j, row] = score"),),
        ("race", "scores"),
        "scores[b, h, j, row] = score",
        cause="index",
    ),
    Wrong(
        "products_in_float16",
        "The products are made in float16, where they overflow.",
        (("float32(q[b, h, row, c]) * float32(k[b, h, j, c])", "q[b, h, row, c] * k[b, h, j, c]"),),
        ("not a number", "inf", "of your answer"),
        line="score += q[b, h, row, c] * k[b, h, j, c]",
        cause="value",
    ),
    Wrong(
        "maximum_in_float64",
        "A plain 0.0 makes the score and its maximum float64; what is stored of it is rounded to float32.",
        (("score = float32(0)", "score = 0.0"),),
        ("whole float16 range", "as stored|sum of the weights"),
        line="score = 0.0",
        cause="value",
    ),
    Wrong(
        "sum_in_float64",
        "0.0 is a float64 to Numba, and so is everything added to it.",
        (("row_sum = float32(0)", "row_sum = 0.0"),),
        ("float64",),
        line="row_sum = 0.0",
        cause="value",
    ),
    Wrong(
        "last_key_forgotten",
        "The sum of the weights stops one key early.",
        ((SECOND, SECOND.replace("range(visible)", "range(visible - 1)")),),
        ("sum of the weights",),
        "for j in range(visible - 1):",
        cause="loop bound",
    ),
    Wrong(
        "maximum_from_minus_1000",
        "The maximum starts at -1000, below every score that its author has seen.",
        (),
        ("every score below -100000",),
        "biggest = float32(-1000.0)",
        text="""\
biggest = float32(-1000.0)
for key in range(visible):
    acc = float32(0)
    for d in range(D):
        acc = acc + float32(q[b, h, row, d]) * float32(k[b, h, key, d])
    acc = acc * scale
    scores[b, h, row, key] = acc
    biggest = max(biggest, acc)
row_sum = float32(0)
for key in range(visible):
    w = math.exp(scores[b, h, row, key] - biggest)
    row_sum += w
    scores[b, h, row, key] = w
""",
        cause="argument",
    ),
    Wrong(
        "log_weights",
        "The exponents are stored where the weights should be.",
        (),
        ("the weight of key 0",),
        "scores[b, h, row, key] = scores[b, h, row, key] - biggest",
        text="""\
biggest = float32(-math.inf)
for key in range(visible):
    acc = float32(0)
    for d in range(D):
        acc = acc + float32(q[b, h, row, d]) * float32(k[b, h, key, d])
    acc = acc * scale
    scores[b, h, row, key] = acc
    biggest = max(biggest, acc)
row_sum = float32(0)
for key in range(visible):
    scores[b, h, row, key] = scores[b, h, row, key] - biggest
    row_sum += math.exp(scores[b, h, row, key])
""",
        cause="several places",
    ),
    Wrong(
        "return_without_keys",
        "A row without keys leaves before the lines that write its zeros.",
        (),
        ("never written",),
        "if visible == 0:",
        text="""\
if visible == 0:
    return
biggest = float32(-math.inf)
for key in range(visible):
    acc = float32(0)
    for d in range(D):
        acc = acc + float32(q[b, h, row, d]) * float32(k[b, h, key, d])
    acc = acc * scale
    scores[b, h, row, key] = acc
    biggest = max(biggest, acc)
row_sum = float32(0)
for key in range(visible):
    w = math.exp(scores[b, h, row, key] - biggest)
    row_sum += w
    scores[b, h, row, key] = w
""",
        cause="extra condition",
    ),
    Wrong(
        "maximum_is_the_first",
        "The first score stands for the largest; a row without keys has none.",
        (),
        (
            "uninitialised read",
            "scores element 0 was never written",
        ),
        "row_max = scores[b, h, row, 0]",
        text="""\
row_max = float32(-math.inf)
for j in range(visible):
    s = float32(0)
    for c in range(D):
        s += float32(q[b, h, row, c]) * float32(k[b, h, j, c])
    scores[b, h, row, j] = s * scale
row_max = scores[b, h, row, 0]
row_sum = float32(0)
for j in range(visible):
    scores[b, h, row, j] = math.exp(scores[b, h, row, j] - row_max)
    row_sum += scores[b, h, row, j]
""",
        cause="several places",
    ),
)
