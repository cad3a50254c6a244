"""Lesson 00: attention as three loops, and the two numbers that follow from it."""

from flashcore_numba.course.spec import Exercise, Explanation, Lesson, Question, Wanted

HEADS, ROWS, D = 8, 512, 64  # the mission shape, 1x8x512x64
FLOAT16 = 2  # bytes

EXERCISE = Exercise(
    stage=0,
    file="stage00_three_loops",
    task="""\
Compute one output row, out[row], from the first `visible` keys.
1. scores: scores[j] = scale * (q[row] . k[j]), one number per key.
2. p: p[j] = exp(scores[j] - row_max), where row_max is the largest score; row_sum is the sum of p.
3. o: the sum of p[j] * v[j]. Then out[row] = o / row_sum.
When visible is 0 the row sees no key: out[row] must be 0.""",
    given={
        "row": "the query row to compute, 0 to S_q - 1",
        "visible": "how many keys it sees: keys 0 to visible - 1; can be 0",
        "q": "query rows of one head, [S_q, D], float64",
        "k": "keys of the head, [S_k, D], float64",
        "v": "values of the head, [S_k, D], float64",
        "out": "output rows of the head, [S_q, D], float16: write out[row]",
        "scale": "the factor of the scores, 1 / sqrt(D) unless the caller chose another",
        "np": "NumPy",
    },
    wanted=(
        Wanted("scores", "the scores of this row, scale * q[row] . k[j]"),
        Wanted("row_max", "the largest score of this row"),
        Wanted("p", "the weights before normalising, exp(score - row_max)"),
        Wanted("row_sum", "the sum of the weights"),
        Wanted("o", "the weighted sum of the rows of V, before the division"),
        Wanted("out[row]", "the output row"),
    ),
    hints=(
        "An output row is a weighted mean of the rows of V. The weights come from the scores, the scores "
        "from q[row] and the keys: three loops over the same j; each needs only the results of the one "
        "before.",
        "Only the first `visible` keys exist for this row: every loop is `for j in range(visible)`. "
        "exp() of a score above 710 is infinite in float64, so subtract the row's largest score from every "
        "score first; the quotient does not change.",
        "Divide once, by the sum of all weights, after the loop over V. A row without keys has row_sum 0 "
        "and would give 0 / 0: write zeros there. NumPy raises an error for the maximum of no numbers "
        "unless you give it an initial value: scores.max(initial=-np.inf).",
        "scores = np.zeros(visible), filled with scale * np.dot(q[row], k[j]); p = np.zeros(visible), "
        "filled with np.exp(scores[j] - row_max); o = np.zeros(q.shape[1]), to which the third loop adds "
        "p[j] * v[j]. The last line writes o / row_sum, or 0 when visible is 0.",
    ),
)

QUESTIONS = (
    Question(
        key="mflop",
        text="1x8x512x64, no mask: how many million FLOPs do the two products Q K^T and P V take, all heads "
        "together? (A multiply-add is 2.)",
        unit="MFLOP",
        truth=lambda evidence: 4 * HEADS * ROWS * ROWS * D / 1e6,
        source="computed",
        why="Every (row, key) pair costs D multiply-adds in Q K^T and D in P V: 4 D FLOPs per pair.",
    ),
    Question(
        key="kilobytes",
        text="The same problem in float16: how many kB (1000 bytes) must move if each input is read once and "
        "the output is written once?",
        unit="kB",
        truth=lambda evidence: 4 * HEADS * ROWS * D * FLOAT16 / 1e3,
        source="computed",
        why="Four arrays of B x H x S x D values, 2 bytes each. The matrix of scores is not among them.",
    ),
    Question(
        key="microseconds",
        text="How many microseconds does an H200 need at least, with the multiply-adds on its CUDA cores?",
        unit="µs",
        truth=lambda evidence: evidence.limit("fp32"),
        source="computed",
        why="The longest of the times that the units need: each has its work and its peak rate, and they can "
        "overlap.",
    ),
    Question(
        key="times_slower",
        text="Stage 01 is the first GPU kernel of the ladder: one thread per query row, these three loops in "
        "Numba. How many times slower than that limit is it?",
        unit="times",
        truth=lambda evidence: evidence.us("01 scalar") / evidence.limit("fp32"),
        source="measured",
        why="The limit says what the hardware could do. The course is about the kernels in between.",
    ),
)

LESSON = Lesson(
    number=0,
    file="00_three_loops",
    title="Attention is three loops",
    idea="One output row is three loops over the keys. Two numbers follow before any kernel is written: the "
    "FLOPs and the bytes that no version can avoid.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="At 1x8x512x64, with the multiply-adds on CUDA cores, what sets the limit of an H200?",
        right="multiply-adds",
        feedback={
            "multiply-adds": "Yes: of the four limits this one is the longest by more than ten times. On "
            "tensor cores it would shrink to the length of the others.",
            "memory": "No: reading every input once and writing the output once takes less than a tenth of "
            "the time that the multiply-adds take. Memory sets the limit of kernels that move far more than "
            "these bytes, and the next lessons count how many do.",
            "exponentials": "No: there is one exponential per (row, key) pair, against 4 D FLOPs. "
            "Exponentials take as long as the multiply-adds only when tensor cores do the multiply-adds.",
            "launching the kernel": "No: a launch is not among the limits of the hardware's units. An empty "
            "kernel in a CUDA graph takes about half a microsecond; calling one from Python takes longer, "
            "and the column 'caller' of the measurements shows it.",
        },
    ),
    figures={
        "roofline": "Speed (FLOPs per second) against arithmetic intensity (FLOPs per byte): the problem and "
        "stage 01 under the H200's two roofs.",
    },
    after=("01 scalar", "SDPA cuDNN"),
)
