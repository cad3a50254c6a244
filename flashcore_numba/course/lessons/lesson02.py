"""Lesson 02: which lane touches which byte, and how many bytes per load brings."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

LONGER = "1x8x1024x64"


def _rows(launches: list[Any], arrays: tuple[str, ...], op: str) -> list[Any]:
    rows = [row for launch in launches for row in launch.lines()]
    return [row for row in rows if row.op == op and row.array in arrays]


def _sectors_a_request(array: str, op: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        rows = _rows(launches, (array,), op)
        return sum(row.sectors for row in rows) / max(1, sum(row.requests for row in rows))

    return value


def _not_stored(launches: list[Any]) -> float:
    """Scores of 128 rows and 128 keys that no store brings to `scores`."""
    return max(0, 128 * 128 - sum(row.lanes for row in _rows(launches, ("scores",), "store")))


def _load_requests(launches: list[Any]) -> float:
    return sum(row.requests for row in _rows(launches, ("k", "v"), "load"))


EXERCISE = Exercise(
    stage=2,
    file="stage02_coalesced",
    task="""\
Write both passes over the keys for the query row of this thread. First pass: the score of each of the
`visible` keys goes to the transposed matrix, scores[b, h, j, row], and enters the maximum.
Second pass: each score is read back and becomes a weight, exp(score - row_max), which counts for the sum and
multiplies row j of V. The query row is in registers, already scaled. Read K and V only with `dot` and
`accumulate_pv`, which load 16 bytes at a time.

Leave: row_max, the largest score (-inf where no key is seen); row_sum, the sum of the weights (0 where no
key is seen); o_rmem, a new float32 array of D components, the sum of the weights times the rows of V, not
yet divided.""",
    given={
        "q_rmem": "scale * the query row: D float32 in registers",
        "k_head, v_head": "K and V of this head, [S_k, D] float16 in global memory",
        "dot(q_rmem, k_head, j)": "the dot product with key j, 16 bytes per load",
        "accumulate_pv(o_rmem, p, v_head, j)": "o_rmem += p * V[j], 16 bytes per load",
        "scores": "scratch in global memory, [B, H, S_k, S_q] float32, not yet written",
        "b, h, row": "batch, head and query row of this thread",
        "visible": "how many keys the row sees: keys 0 to visible - 1; can be 0",
        "D": "the head dimension, a constant: cuda.local.array(D, float32) makes an array of that size",
        "cuda, math, float32": "local arrays, math.exp and math.inf, and the type of a number",
    },
    wanted=(
        Wanted("scores[b, h, 0, row]", "the score of key 0, where the transposed matrix keeps it"),
        Wanted("row_max", "the largest score of the row"),
        Wanted("row_sum", "the sum of exp(score - row_max) over the visible keys"),
        Wanted("o_rmem[0]", "component 0 of the weighted sum of the rows of V"),
        Wanted("o_rmem[D - 1]", "the last component of the weighted sum of the rows of V"),
    ),
    hints=(
        "One warp's request covers 32 threads with 32 neighbouring values of `row` and one value of `j`. Its "
        "32 addresses are neighbours only if `row` is the index that steps through neighbouring elements.",
        "In a C-ordered array the last index steps by one element. So the row comes last: "
        "scores[b, h, j, row], in the store and in the load alike. The query row needs no scaling any more.",
        "Two loops over range(visible). The first calls dot, stores, and takes the maximum, which starts at "
        "-inf. The second reads, takes math.exp of the difference, adds to the sum, and calls "
        "accumulate_pv. The accumulators start at 0: a local array holds garbage until it is written.",
        "First loop: score = dot(q_rmem, k_head, j); scores[b, h, j, row] = score; row_max = max(row_max, "
        "score). Then o_rmem = cuda.local.array(D, float32) and D zeros. Second loop: p = "
        "math.exp(scores[b, h, j, row] - row_max); row_sum += p; accumulate_pv(o_rmem, p, v_head, j).",
    ),
    gates=(
        Gate(
            what="scores that never reach `scores`",
            value=_not_stored,
            before=0,
            right=0,
            bar=0,
            advice="An array of the thread's own has a fixed length, and a sequence may be longer: every "
            "score goes to memory and is read back.",
        ),
        Gate(
            what="sectors per request of the stores to `scores`",
            value=_sectors_a_request("scores", "store"),
            before=32,
            right=4,
            bar=5,
            advice="Neighbouring lanes differ in `row`: look at which index of `scores` steps by one "
            "element.",
        ),
        Gate(
            what="sectors per request of the loads from `scores`",
            value=_sectors_a_request("scores", "load"),
            before=32,
            right=4,
            bar=5,
            advice="The load must read what the store wrote, with neighbouring lanes on neighbouring floats.",
        ),
        Gate(
            what="load requests to `k` and `v`",
            value=_load_requests,
            before=65_536,
            right=8_192,
            bar=9_000,
            advice="A row of 64 float16 is 128 bytes, 8 loads of 16 bytes: look for a loop that loads one "
            "component at a time, or for a row that is loaded twice.",
        ),
    ),
)

LESSON = Lesson(
    number=2,
    file="02_coalesced",
    title="Neighbouring lanes, neighbouring bytes",
    idea="Scores are stored so that neighbouring lanes write neighbouring bytes; loads are 128 bits wide.",
    exercise=EXERCISE,
    questions=(
        Question(
            key="requests",
            text="One head, 128 query rows and keys, D = 64. How many requests to global memory do the warps "
            "of stage 02 make in all? (Stage 01: <!--count 1 global_requests--><!---->.)",
            unit="requests",
            truth=lambda evidence: evidence.count(2, "global_requests"),
            source="counted",
            why="4 warps and 128 keys: 8 wide loads of K, 8 of V, a store and a load of a score. With 8 "
            "loads of Q and 8 stores of the output per warp that makes <!--count 2 "
            "global_requests--><!---->.",
        ),
        Question(
            key="kilobytes",
            text="And how many thousand bytes do the sectors of all these requests add up to? (Stage 01: "
            "<!--calc count(1, 'global_bytes') / 1000 | ,.0f--><!---->.)",
            unit="kB",
            truth=lambda evidence: evidence.count(2, "global_bytes") / 1000,
            source="counted",
            why="4096 sectors each for K and V, 2048 each for the store and the load of the scores, 1024 "
            "each for Q and the output, in sectors of 32 bytes.",
        ),
        Question(
            key="microseconds",
            text="GPU time of stage 02 at 1x8x512x64 on the H200?",
            unit="µs",
            truth=lambda evidence: evidence.us("02 coalesced"),
            source="measured",
            why="The bytes fell by a factor of <!--calc count(1, 'global_bytes') / count(2, 'global_bytes') "
            "| .0f--><!---->, the time by <!--ratio 01 scalar / 02 coalesced--><!---->: bytes did not set "
            "the time of stage 01.",
        ),
        Question(
            key="longer",
            text="1x8x1024x64 has four times the (query row, key) pairs of 1x8x512x64. How many times as "
            "long does stage 02 take there?",
            unit="times",
            truth=lambda evidence: (
                evidence.entry("02 coalesced", LONGER)["gpu_us"]["p50"]
                / evidence.entry("02 coalesced")["gpu_us"]["p50"]
            ),
            source="measured",
            why="Each warp walks over twice as many keys. That there are twice as many warps costs little: "
            "an SM that had one warp now has two.",
        ),
    ),
    explanation=Explanation(
        text="What limits stage 02 at 1x8x512x64 on the H200?",
        right="latency",
        feedback={
            "sectors": "No: every request to the score matrix now touches the fewest sectors possible, and "
            "the few requests that still touch 32, of Q and the output, come once per row and not once per "
            "key.",
            "bandwidth": "No: memory would need <!--limit memory--><!----> µs for the bytes that must move. "
            "And twice the warps, each with half the keys, finish in half the time: a full memory could not "
            "do that.",
            "arithmetic": "No: the multiply-adds alone would need <!--limit fp32--><!----> of the "
            "<!--us 02 coalesced--><!----> µs.",
            "latency": "Yes: a key costs a warp the same <!--calc us(2) / 512 | .2f--><!----> µs whether 4 "
            "warps run on the whole GPU or 128. Each SM has one warp, and while it waits, the SM is "
            "idle.",
        },
    ),
    figures={
        "sectors": "One request of a warp: which lane touches which sector, and how much of each is used.",
        "tiles": "Which rows of Q, K and V one warp walks over, and in which order.",
        "roofline": "The same FLOPs with far fewer bytes than stage 01: the kernel moves to the right, and "
        "a little up.",
    },
    before=("01 scalar",),
    after=(),
)
