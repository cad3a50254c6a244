"""Wrong answers to lesson 02."""

from . import Wrong

STORE = "scores[b, h, j, row] = score"
WEIGHT = "math.exp(scores[b, h, j, row] - row_max)"
ARRAY = "o_rmem = cuda.local.array(D, float32)"
CLEARED = "        for c in range(D):\n            o_rmem[c] = 0\n"
FIRST = "row_max = float32(-math.inf)\n        for j in range(visible):"
SECOND = "row_sum = float32(0)\n        for j in range(visible):"

WRONG = (
    Wrong(
        "row_major",
        "The row stays the first index in both passes: the matrix has another shape.",
        ((STORE, "scores[b, h, row, j] = score"), (WEIGHT, "math.exp(scores[b, h, row, j] - row_max)")),
        ("out of bounds", "scores", "Compare the index with the array's shape"),
        "scores[b, h, row, j] = score",
        cause="index",
    ),
    Wrong(
        "load_not_transposed",
        "Only the store was turned round: a thread reads the scores of others.",
        ((WEIGHT, "math.exp(scores[b, h, row, j] - row_max)"),),
        ("race", "line 4 of your answer", "line 12 of your answer", "no barrier between"),
        line="p = math.exp(scores[b, h, row, j] - row_max)",
        cause="index",
    ),
    Wrong(
        "maximum_from_zero",
        "The maximum starts at 0: a row of negative scores loses all its weights.",
        (("float32(-math.inf)", "float32(0)"),),
        ("every score below -150", "`row_max` .* is 0, expected -"),
        "row_max = float32(0)",
        cause="argument",
    ),
    Wrong(
        "accumulator_not_cleared",
        "A local array is taken for one of zeros.",
        ((CLEARED, ""),),
        ("uninitialised read", "local array", r"o_rmem\[c \+ e\]"),
        "accumulate_pv(o_rmem, p, v_head, j)",
        cause="loop left out",
    ),
    Wrong(
        "no_maximum",
        "The weights are exp(score), which leaves the range of float32.",
        ((WEIGHT, "math.exp(scores[b, h, j, row])"),),
        ("every score below -150", "`row_sum`", "`row_max` are right there"),
        "p = math.exp(scores[b, h, j, row])",
        cause="argument",
    ),
    Wrong(
        "scaled_twice",
        "The query row was scaled when it was loaded, and the score is scaled again.",
        (("dot(q_rmem, k_head, j)", "dot(q_rmem, k_head, j) * scale"),),
        ("score of key 0", r"0\.125 times what it should be", "`score` is set in"),
        "score = dot(q_rmem, k_head, j) * scale",
        cause="value",
    ),
    Wrong(
        "sum_forgotten",
        "The weights are never added up.",
        (("            row_sum += p\n", ""),),
        ("`row_sum` .* is 0, expected", "`row_max` are right there"),
        "p = math.exp(scores[b, h, j, row] - row_max)",
        cause="assignment left out",
    ),
    Wrong(
        "mask_ignored",
        "Both loops walk over all keys.",
        (
            (FIRST, FIRST.replace("visible", "k.shape[2]")),
            (SECOND, SECOND.replace("visible", "k.shape[2]")),
        ),
        ("causal", "Wrong: the causal mask"),
        "for j in range(k.shape[2]):",
        cause="mask ignored",
    ),
    Wrong(
        "one_pass",
        "The weights are made while the maximum still grows.",
        (
            (
                FIRST,
                f"{ARRAY}\n{CLEARED}        row_sum = float32(0)\n        {FIRST}",
            ),
            (f"\n        {ARRAY}\n{CLEARED}        {SECOND}\n", ""),
        ),
        ("`row_sum`", "`row_max` are right there"),
        "row_max = float32(-math.inf)",
        cause="several places",
    ),
    Wrong(
        "score_made_again",
        "The second pass makes the score anew instead of reading it: K is fetched twice.",
        ((WEIGHT, "math.exp(dot(q_rmem, k_head, j) - row_max)"),),
        ("counter is too high", "load requests to `k` and `v`", "12,288", "a row that is fetched twice"),
        line="p = math.exp(dot(q_rmem, k_head, j) - row_max)",
        cause="argument",
    ),
    Wrong(
        "exponent_for_weight",
        "`accumulate_pv` gets the exponent.",
        (),
        (r"`o_rmem\[0\]`",),
        "p = scores[b, h, j, row] - row_max",
        text="""\
row_max = float32(-math.inf)
for j in range(visible):
    score = dot(q_rmem, k_head, j)
    scores[b, h, j, row] = score
    row_max = max(row_max, score)
o_rmem = cuda.local.array(D, float32)
for c in range(D):
    o_rmem[c] = 0
row_sum = float32(0)
for j in range(visible):
    p = scores[b, h, j, row] - row_max
    row_sum += math.exp(p)
    accumulate_pv(o_rmem, p, v_head, j)
""",
        cause="value",
    ),
    Wrong(
        "whole_k",
        "`dot` gets all of K instead of this head's.",
        (),
        (
            "k has 4 dimensions",
            "Reached from line 3 of your answer",
        ),
        "score = dot(q_rmem, k, j)",
        text="""\
row_max = float32(-math.inf)
for j in range(visible):
    score = dot(q_rmem, k, j)
    scores[b, h, j, row] = score
    row_max = max(row_max, score)
o_rmem = cuda.local.array(D, float32)
for c in range(D):
    o_rmem[c] = 0
row_sum = float32(0)
for j in range(visible):
    p = math.exp(scores[b, h, j, row] - row_max)
    row_sum += p
    accumulate_pv(o_rmem, p, v, j)
""",
        cause="argument",
    ),
    Wrong(
        "row_of_the_block",
        "The row's place in its block instead of its number.",
        (),
        ("race between blocks",),
        "scores[b, h, j, i] = score",
        text="""\
i = cuda.threadIdx.x
row_max = float32(-math.inf)
for j in range(visible):
    score = dot(q_rmem, k_head, j)
    scores[b, h, j, i] = score
    row_max = max(row_max, score)
o_rmem = cuda.local.array(D, float32)
for c in range(D):
    o_rmem[c] = 0
row_sum = float32(0)
for j in range(visible):
    p = math.exp(scores[b, h, j, i] - row_max)
    row_sum += p
    accumulate_pv(o_rmem, p, v_head, j)
""",
        cause="index",
    ),
)
