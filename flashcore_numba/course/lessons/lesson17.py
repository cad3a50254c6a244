"""Lesson 17: the backward pass makes P again from the LSE, and who adds up which gradient."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.counters import total
from flashcore_numba.course.lessons.lesson01 import float64_operations
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

STAGE = "backward/recompute"
ROWS, ATOMICS = f"{STAGE} rows", f"{STAGE} atomics"


def _requests(arrays: tuple[str, ...], op: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        rows = [row for launch in launches for row in launch.lines()]
        return sum(row.requests for row in rows if row.op == op and row.array in arrays)

    return value


EXERCISE = Exercise(
    stage=STAGE,
    file="backward_recompute_rows",
    variant="rows",
    task="""\
One key of the loop of dQ. The warp has one query row, and all 32 lanes execute every line; lane `lane` has
components 2 * lane and 2 * lane + 1 of every 64.

1. Load this lane's components of the key into k_rmem, and those of its value.
2. s = q . k and dp = dout . v, summed over all lanes, the same in every lane.
3. p, the weight of this key, from s and the LSE of the row alone: no maximum, no sum over keys.
4. ds, the gradient of the score, from p, dp and D of the row.
5. Add this key's part of dQ / scale to dq_rmem. The lines after the loop multiply by the scale, once.""",
    given={
        "q_rmem": "[PAIRS, 2] float32 in registers: this lane's components of the query row, not scaled",
        "do_rmem": "[PAIRS, 2] float32 in registers: the same of the row of dO",
        "k_rmem": "[PAIRS, 2] float32 in registers: for the components of the key",
        "dq_rmem": "[PAIRS, 2] float32 in registers: dQ / scale over the keys before this one",
        "load2(k_head, (key, c))": "components c and c + 1 of the key as two float32: 4 bytes per lane",
        "load2(v_head, (key, c))": "the same of its value",
        "key": "the key; the row sees it",
        "row_lse": "LSE of the row, float32: the logarithm of the sum of exp(scale * q . k) over its keys",
        "row_delta": "D of the row, float32: the sum over all components of dO * O",
        "scale": "the factor of the scores, float32",
        "PAIRS": "pairs of components per lane, D / 64: a constant",
        "lane": "this thread's number in its warp, 0 to 31",
        "warp_sum(x)": "the sum of x over the 32 lanes, in every lane; all 32 lanes must call it",
        "math, float32": "math.exp and the type of a number",
    },
    wanted=(
        Wanted("s", "the query row times the key, summed over all lanes, not scaled"),
        Wanted("dp", "the row of dO times the value, summed over all lanes"),
        Wanted("p", "the weight of the key, exp(scale * s - row_lse)"),
        Wanted("ds", "the gradient of the score, p * (dp - row_delta)"),
        Wanted("dq_rmem[0, 0]", "this lane's first component of dQ / scale over the keys so far"),
        Wanted("dq_rmem[0, 1]", "its second component"),
    ),
    hints=(
        "Both dot products have the same form: every lane multiplies its own components, and a butterfly "
        "adds the 32 parts. P needs the first one, the gradient of P needs the second one, and after that "
        "nothing needs a sum over lanes.",
        "The forward pass wrote out = sum of exp(score - LSE) * v, with the sum of the weights already in "
        "the LSE. So one exponential gives a weight that is already divided by the sum.",
        "dp says how much the loss changes with this weight alone. All weights of a row sum to 1, so what "
        "counts is how far dp is from its mean over the row's weights, and that mean is row_delta. ds is p "
        "times that distance.",
        "s, dp = float32(0), float32(0); for i in range(PAIRS): k_rmem[i, 0], k_rmem[i, 1] = load2(k_head, "
        "(key, 64 * i + 2 * lane)), x, y = load2(v_head, ...), two multiply-adds each into s and dp. Then s, "
        "dp = warp_sum(s), warp_sum(dp); p = math.exp(s * scale - row_lse); ds = p * (dp - row_delta); at "
        "last dq_rmem[i, e] += ds * k_rmem[i, e].",
    ),
    gates=(
        Gate(
            what="shuffles of both passes and of D, counted once per warp",
            value=total("shuffle"),
            before=None,
            right=328_320,
            bar=335_000,
            advice="Two dot products per pair are two butterflies of five shuffles. What they have left in "
            "every lane needs no other one.",
            cause="shuffles",
        ),
        Gate(
            what="load requests to `k` and `v`",
            value=_requests(("k", "v"), "load"),
            before=None,
            right=33_024,
            bar=34_000,
            advice="Of a key and of its value a warp loads each component once: k_rmem keeps what is needed "
            "again for dQ.",
            cause="global loads",
        ),
        Gate(
            what="exponentials, counted for each lane",
            value=total("exp32"),
            before=None,
            right=1_048_576,
            bar=1_060_000,
            advice="One weight per pair is one exponential in each lane.",
            cause="exponentials",
        ),
        Gate(
            what="float64 operations",
            value=float64_operations,
            before=None,
            right=0,
            bar=100,
            advice="A plain Python float such as 0.0 is a float64 in a kernel, and so is every sum that it "
            "starts: write float32(0).",
            cause="float64",
        ),
    ),
)

QUESTIONS = (
    Question(
        key="shuffles",
        text="One head, 128 query rows and keys, variant rows: a dot product takes one butterfly over 32 "
        "lanes, and D of a row takes one. How many shuffles do all warps execute?",
        unit="shuffles",
        truth=lambda evidence: evidence.count(STAGE, "shuffle", variant="rows"),
        source="counted",
        why="Two dot products, S and dP, in each of two passes are 20 shuffles per pair; D adds 5 per row.",
    ),
    Question(
        key="microseconds",
        text="GPU time of variant rows at 1x8x512x64 on the H200? Stage 03, the forward pass in the same "
        "manner, takes <!--us 03 warp_reduction--><!----> µs.",
        unit="µs",
        truth=lambda evidence: evidence.us(ROWS),
        source="measured",
        why="Per pair it multiplies 7 times where stage 03 multiplies twice, and shuffles 20 times instead "
        "of 6. It has <!--calc count('backward/recompute', 'global_requests', variant='rows') / pairs() | "
        ".0f--><!----> requests where stage 03 has 2.",
    ),
    Question(
        key="atomics",
        text="Variant atomics computes five products instead of seven, with half of the shuffles. Its time "
        "divided by that of variant rows?",
        unit="times",
        truth=lambda evidence: evidence.ratio(ATOMICS, ROWS),
        source="measured",
        why="What it saves, the additions cost, and more: <!--calc count('backward/recompute', "
        "'global_atomic_requests', variant='atomics') / pairs() | .0f--><!----> atomic requests per pair, "
        "each to 8 half-used sectors of the L2 cache.",
    ),
    Question(
        key="tiles",
        text="Variant tiles keeps the seven products and the two passes, and takes its operands from tiles "
        "in shared memory, into fragments in registers as in lesson 06. How many times as fast as variant "
        "rows is it?",
        unit="times",
        truth=lambda evidence: evidence.ratio(ROWS, STAGE),
        source="measured",
        why="A thread has whole dot products, so there are no butterflies in the loop, and every value that "
        "is loaded is multiplied several times.",
    ),
)

LESSON = Lesson(
    number=17,
    file="17_p_recomputed",
    title="P recomputed",
    idea="The backward pass makes P again from one number per row, and a second number stands in for the "
    "softmax's Jacobian.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits variant rows on the H200?",
        right="instructions",
        feedback={
            "memory": "No: device memory needs <!--calc limit('memory', operation='backward') | "
            ".2f--><!----> µs for the inputs and outputs. All sectors that the requests touch, at the "
            "measured rate of the L1 caches, are <!--calc 128 * count('backward/recompute', 'global_bytes', "
            "variant='rows') / recorded(operation='backward')[0]['ceilings']['l1_gbs'] / 1e3 | .0f--><!----> "
            "of the <!--us backward/recompute rows--><!----> µs.",
            "exponentials": "No: every lane computes the weight of its pair, in both passes, 64 times what "
            "is needed. Even so the exponential units would need <!--calc 64 * limit('exp', "
            "operation='backward') | .0f--><!----> µs.",
            "arithmetic": "No: five products at the rate of the CUDA cores are <!--calc limit('fp32', "
            "operation='backward') | .0f--><!----> µs, seven are <!--calc 1.4 * limit('fp32', "
            "operation='backward') | .0f--><!---->.",
            "instructions": "Yes, by the counts: per pair the simulator counts <!--calc "
            "count('backward/recompute', 'fma32', variant='rows') / 32 / pairs() | .0f--><!----> "
            "multiply-adds of a warp, <!--calc count('backward/recompute', 'shuffle', variant='rows') / "
            "pairs() | .0f--><!----> shuffles, <!--calc count('backward/recompute', 'add32', "
            "variant='rows') / 32 / pairs() | .0f--><!----> additions and <!--calc "
            "count('backward/recompute', 'global_requests', variant='rows') / pairs() | .0f--><!----> "
            "requests, and it counts neither addresses nor conversions. In lesson 03 the profiler found four "
            "times the instructions that are counted. If it is so here, they need <!--calc 4 * ((count("
            "'backward/recompute', 'fma32', variant='rows') + count('backward/recompute', 'add32', "
            "variant='rows')) / 32 + count('backward/recompute', 'shuffle', variant='rows') + "
            "count('backward/recompute', 'global_requests', variant='rows')) * 128 / (132 * 4 * 1980) | "
            ".0f--><!----> of the <!--us backward/recompute rows--><!----> µs at one per scheduler and "
            "clock.",
        },
    ),
    before=(ROWS, ATOMICS),
    picture="gradients",
    figures={
        "traffic": "What the requests of each variant touch in global memory, by array.",
        "orders": "The elements of dQ that are other bits when the warps run in another order.",
    },
)
