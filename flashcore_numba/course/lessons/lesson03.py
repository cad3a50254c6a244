"""Lesson 03: a warp per row, sums by shuffles, and more warps to hide latency."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

SHORTER = "4x8x256x64"


def _total(key: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        return sum(launch.totals()[key] for launch in launches)

    return value


def _requests(arrays: tuple[str, ...], op: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        rows = [row for launch in launches for row in launch.lines()]
        return sum(row.requests for row in rows if row.op == op and row.array in arrays)

    return value


EXERCISE = Exercise(
    stage=3,
    file="stage03_warp_reduction",
    task="""\
The first pass: the scores of one query row, by a whole warp. Lane `lane` owns components 2 * lane and
2 * lane + 1 of every 64. For each visible key all lanes load their share of its row, multiply, and add up
the 32 partial sums by shuffles, so that every lane holds the score. Take the keys 32 at a time and let lane i
keep the score of key first_key + i, so that the warp stores 32 neighbouring scores in one request. A lane
whose key is not visible stores nothing and does not touch the maximum.

Leave: scores[b, h, row, j], the score of every visible key; row_max, the largest of them, float32, the same
in all 32 lanes, and -inf where no key is seen.""",
    given={
        "q_rmem": "[PAIRS, 2] float32 in registers: this lane's components of scale * the query row; "
        "q_rmem[i, 0] is component 64 * i + 2 * lane, q_rmem[i, 1] the next one",
        "k_head": "K of this head, [S_k, D] float16 in global memory",
        "load2(k_head, (j, c))": "components c and c + 1 of key j as two float32: 4 bytes per lane",
        "scores": "scratch in global memory, [B, H, S_q, S_k] float32, not yet written",
        "PAIRS, LANES": "D / 64 pairs of components per lane, 32 lanes per warp: both constants",
        "lane": "this thread's number in its warp, 0 to 31; the 32 lanes share one query row",
        "b, h, row": "batch, head and query row of this warp",
        "visible": "how many keys the row sees, the same in all lanes; can be 0, and no multiple of 32",
        "ALL_LANES": "the mask that names all 32 lanes",
        "cuda.shfl_xor_sync(ALL_LANES, x, offset)": "the x of lane `lane ^ offset`; all 32 lanes must call "
        "it",
        "warp_max(x)": "the largest x of the 32 lanes, in every lane; all 32 lanes must call it",
        "math, float32": "math.inf and the type of a number",
    },
    wanted=(
        Wanted("scores[b, h, row, 0]", "the score of key 0: the sum over all 32 lanes"),
        Wanted("scores[b, h, row, visible - 1]", "the score of the last visible key"),
        Wanted("row_max", "the largest score of the row, the same in every lane"),
    ),
    hints=(
        "After its own products a lane holds its components' part of the dot product. The score is the sum "
        "of 32 such parts, one per lane. No memory is needed for that: lanes can read each other's "
        "registers.",
        "A butterfly: every lane adds the value of the lane whose number differs in one bit, then in the "
        "next. Five bits, five shuffles, with offsets 16, 8, 4, 2, 1. After each step twice as many lanes' "
        "parts are in every sum.",
        "Every shuffle needs all 32 lanes, so no shuffle may be under a condition that differs between "
        "lanes. The loop over j in range(min(LANES, visible - first_key)) is the same for all. Only the "
        "store and the maximum after it are under the condition first_key + lane < visible. A lane has then "
        "seen every 32nd key: warp_max makes one maximum of 32.",
        "For each key: partial = float32(0); for i in range(PAIRS): x, y = load2(k_head, (first_key + j, 64 "
        "* i + 2 * lane)) and two multiply-adds with q_rmem; for step in range(5): partial += "
        "cuda.shfl_xor_sync(ALL_LANES, partial, 16 >> step); mine = partial if j == lane else mine. After "
        "the 32 keys the guarded store and row_max = max(row_max, mine); at the very end row_max = "
        "warp_max(row_max).",
    ),
    gates=(
        Gate(
            what="shuffles, counted once per warp",
            value=_total("shuffle"),
            before=0,
            right=99_584,
            bar=105_000,
            advice="A sum over 32 lanes takes five shuffles per key, whatever the head dimension: look for a "
            "shuffle inside the loop over the components, or for a reduction that could wait until all keys "
            "are done.",
        ),
        Gate(
            what="load requests to `k` and `v`",
            value=_requests(("k", "v"), "load"),
            before=8_192,
            right=32_768,
            bar=36_000,
            advice="One request of the warp brings a whole row of 64 components: each lane loads its own two "
            "and no others.",
        ),
        Gate(
            what="store requests to `scores`",
            value=_requests(("scores",), "store"),
            before=512,
            right=512,
            bar=600,
            advice="Let each lane keep the score of one key and store 32 of them together, instead of one "
            "store per key.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=_total("barriers"),
            before=0,
            right=0,
            bar=0,
            advice="Lanes of one warp exchange registers by shuffles: nothing goes through shared memory, "
            "so no barrier is needed.",
        ),
    ),
)

LESSON = Lesson(
    number=3,
    file="03_warp_reduction",
    title="One warp per query row",
    idea="A warp computes one query row; shuffles add up what its 32 lanes hold.",
    exercise=EXERCISE,
    questions=(
        Question(
            key="shuffles",
            text="One head, 128 query rows and keys. A score takes one butterfly over 32 lanes; in the "
            "second pass each weight is sent to all lanes by one shuffle; row_max and row_sum take one "
            "butterfly each per row. How many shuffles do all warps execute together?",
            unit="shuffles",
            truth=lambda evidence: evidence.count(3, "shuffle"),
            source="counted",
            why="A butterfly over 32 lanes is 5 shuffles: 6 for each of the 128 x 128 pairs, and 10 for each "
            "of the 128 rows.",
        ),
        Question(
            key="traffic",
            text="At that shape, how many times as many bytes do the sectors of all requests add up to in "
            "stage 03 as in stage 02?",
            unit="times",
            truth=lambda evidence: evidence.count(3, "global_bytes") / evidence.count(2, "global_bytes"),
            source="counted",
            why="A warp now serves one query row instead of 32, so each row of K and V is loaded 32 times "
            "as often, in 4 whole sectors instead of 8 half ones: 16 times the sectors. The scores move as "
            "before.",
        ),
        Question(
            key="microseconds",
            text="GPU time of stage 03 at 1x8x512x64 on the H200?",
            unit="µs",
            truth=lambda evidence: evidence.us("03 warp_reduction"),
            source="measured",
            why="There are 31 warps per SM instead of one: while one waits, another issues. The higher "
            "number of instructions per pair takes most of that gain away again.",
        ),
        Question(
            key="ratio",
            text="And at 4x8x256x64: the time of stage 03 divided by the time of stage 02?",
            unit="times",
            truth=lambda evidence: (
                evidence.entry("03 warp_reduction", SHORTER)["gpu_us"]["p50"]
                / evidence.entry("02 coalesced", SHORTER)["gpu_us"]["p50"]
            ),
            source="measured",
            why="The pairs are as many as at 1x8x512x64, on twice the rows. Stage 02 has two warps per SM "
            "instead of one and takes half as long. Stage 03 already filled its SMs: it takes <!--calc "
            "us(3, '4x8x256x64') / us(3) | .2f--><!----> times as long.",
        ),
    ),
    explanation=Explanation(
        text="At 4x8x256x64 stage 03 is slower than stage 02. What holds it back there?",
        right="instructions",
        feedback={
            "latency": "Not alone: a third of the issue slots do stay empty while warps wait. But with "
            "every wait hidden it would be half as fast again, and stage 02, whose pairs cost a sixth of "
            "the instructions, passes that with a few warps per SM.",
            "bandwidth": "Not of device memory: K and V of a head stay in the caches, and loading them is 4 "
            "sectors per request, as before. At 4x8x256x64 the profiler saw less than one megabyte read "
            "from device memory.",
            "arithmetic": "No: the multiply-adds are the same as in stage 02, and their limit is a few "
            "percent of the time. Everything around them has multiplied.",
            "instructions": "Yes: per pair a whole warp executes two loads, six shuffles, their additions "
            "and the address arithmetic, where in stage 02 one instruction served 32 rows. The profiler "
            "counted about six times as many instructions for the same multiply-adds.",
        },
    ),
    figures={
        "sectors": "One request of a warp: 32 lanes, 128 neighbouring bytes, 4 whole sectors.",
        "timeline": "The warps of one block side by side: there is no barrier, and no warp waits for "
        "another.",
        "tiles": "Which rows of K and V one warp walks over: the same as every other warp of its head.",
        "roofline": "The same FLOPs as stage 02, more bytes, and a higher rate: traffic is not the limit.",
    },
    before=("02 coalesced",),
    after=(),
)
