"""Lesson 01: one thread computes one query row; what a warp's request is, and the sectors it touches."""

from typing import Any

from flashcore_numba.course.evidence import MISSION
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted


def _us_a_key(evidence: Any, shape: str, keys: int) -> float:
    return evidence.entry("01 scalar", shape)["gpu_us"]["p50"] / keys


def float64_operations(launches: list[Any]) -> int:
    """Additions, multiplications and the like that the threads do in float64."""
    return sum(
        count
        for launch in launches
        for name, count in launch.totals().items()
        if name in ("add64", "sub64", "mul64", "fma64", "div64", "exp64")
    )


EXERCISE = Exercise(
    stage=1,
    file="stage01_scalar",
    task="""\
Two loops over the first `visible` keys, for this thread's query row.
1. scores[b, h, row, j] = scale * (q[b, h, row] . k[b, h, j]), summed in float32 component by component;
   meanwhile keep the largest score in row_max.
2. Replace each stored score by p = exp(score - row_max), and sum the p in row_sum.
The lines below the region read scores and row_sum. A row without keys must leave row_sum = 0.""",
    given={
        "row": "this thread's query row",
        "b": "its batch",
        "h": "its head",
        "visible": "how many keys the row sees: keys 0 to visible - 1; can be 0",
        "D": "the head dimension, 64 or 128: a constant of the compiled kernel",
        "q": "query rows, [B, H, S_q, D], float16",
        "k": "keys, [B, H, S_k, D], float16",
        "scores": "scratch memory, [B, H, S_q, S_k], float32, not yet written",
        "scale": "the factor of the scores, float32",
        "float32": "numba.float32: converts a value, float32(0) makes a float32 zero",
        "math": "Python's math: math.exp and math.inf work in a kernel",
    },
    wanted=(
        Wanted("row_max", "the largest score of the row"),
        Wanted("scores[b, h, row, 0]", "the weight of key 0, exp(score - row_max), as stored"),
        Wanted("row_sum", "the sum of the weights of the row"),
    ),
    hints=(
        "It is lesson 00 without the third loop, and without np.dot: the dot product is a loop over D "
        "components. No other thread works on this row, so no thread has to wait for another.",
        "row_max starts at float32(-math.inf), below every score; a start at 0 is wrong for a row whose "
        "scores are all negative. The first loop must be finished before the second begins: exp needs the "
        "maximum of all keys.",
        "float32(q[b, h, row, c]) * float32(k[b, h, j, c]) multiplies in float32; without the conversion the "
        "product is rounded to float16. A plain 0.0 is a float64, and a maximum kept in float64 is not the "
        "score that float32 memory gives back. Multiply by scale once per key, after the sum over c.",
        "First loop: score = float32(0); add D products; score *= scale; store it; row_max = max(row_max, "
        "score). Second loop: p = math.exp(scores[b, h, row, j] - row_max); store p in the same place; add "
        "it to row_sum, which started at float32(0).",
    ),
    gates=(
        Gate(
            what="float64 operations",
            value=float64_operations,
            before=2 * 128 * 128 * 64,  # the multiply-adds of lesson 00, all in float64
            right=0,
            bar=100,
            advice="0.0, -math.inf and any other plain Python float are float64 in a kernel, and so is every "
            "sum they start: write float32(0), float32(-math.inf).",
        ),
    ),
)

QUESTIONS = (
    Question(
        key="k_sectors",
        text="A warp loads k[b, h, j, c]: j and c are the same in all 32 lanes. How many 32-byte sectors "
        "does this request touch?",
        unit="sectors",
        truth=lambda evidence: evidence.line(1, "k[b, h, j, c]", "load", "sectors/request"),
        source="counted",
        why="All lanes want the same 2 bytes: one address, one sector, which serves every lane.",
    ),
    Question(
        key="q_sectors",
        text="The same warp loads q[b, h, row, c]: each lane has a row of its own, rows are 128 bytes apart. "
        "How many sectors?",
        unit="sectors",
        truth=lambda evidence: evidence.line(1, "q[b, h, row, c]", "load", "sectors/request"),
        source="counted",
        why="128 bytes are four sectors, so no two lanes meet in one: each lane touches a sector of its own "
        "and uses 2 of its 32 bytes.",
    ),
    Question(
        key="megabytes",
        text="At 1x1x128x64 the inputs and the output are 65,536 bytes. How many million bytes do the "
        "sectors of all the kernel's requests add up to?",
        unit="MB",
        truth=lambda evidence: evidence.count(1, "global_bytes") / 1e6,
        source="counted",
        why="Nearly all of it is Q: 32 sectors, 1024 bytes, for every component, and again for every key.",
    ),
    Question(
        key="crowd",
        text="1x2x64x64 has 4 warps, each with 64 keys, on 4 SMs of the H200. 1x8x512x64 has 128 warps, each "
        "with 512 keys, on 128 SMs. How many times as long does a warp take for one key at 1x8x512x64?",
        unit="times",
        truth=lambda evidence: _us_a_key(evidence, MISSION, 512) / _us_a_key(evidence, "1x2x64x64", 64),
        source="measured",
        why="32 times the warps request 32 times the sectors in the same time, and none of them is slower: "
        "what they share is not full.",
    ),
)

LESSON = Lesson(
    number=1,
    file="01_scalar",
    title="One thread, one query row",
    idea="One thread per query row, with the three loops as they are. Count what 32 threads that execute "
    "together ask of the memory, and find out by experiment where the time goes.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits this kernel at 1x8x512x64?",
        right="latency",
        feedback={
            "latency": "Yes: four warps on the whole GPU (1x2x64x64) need as long per key as one warp on "
            "nearly every SM, so nothing that they share is full. Each warp is alone on its SM and waits.",
            "arithmetic": "No: the multiply-adds alone would need <!--limit fp32--><!----> of the <!--us 01 "
            "scalar--><!----> µs. The units that multiply are idle while the warp waits for its loads.",
            "memory bandwidth": "No: if the L2 cache or device memory were full, 4 blocks would need less "
            "time per key than 128 blocks, and they do not. There are far too many sectors, but they make "
            "each request slow; they do not fill the memory.",
            "exponentials": "No: there is one exponential per pair of a key and a row, against 2 D "
            "multiply-adds and 3 D loads, and a unit of its own computes it.",
        },
    ),
    figures={
        "sectors": "Which sectors the 32 lanes of one request touch, and how much of each they use.",
        "tiles": "Which rows of Q, K and V one warp walks over, and how often it loads them.",
        "roofline": "The same FLOPs with far more bytes: the kernel is far to the left of its problem.",
    },
    before=(),
    after=("SDPA cuDNN",),
)
