"""Lesson 21: keys in pages, found through a table, and requests whose lengths no launch knows."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.counters import total
from flashcore_numba.course.figures.pages import RAGGED, SMS, end, in_clusters, in_turn
from flashcore_numba.course.lessons.lesson01 import float64_operations
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

STAGE = "decode/chunks"


def _requests(array: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        rows = [row for launch in launches for row in launch.lines()]
        return sum(row.requests for row in rows if row.op == "load" and row.array == array)

    return value


EXERCISE = Exercise(
    stage=STAGE,
    file="decode_chunks_attend",
    task="""\
The scores of a tile of up to 32 keys, the keys `first`, `first + 1`, ... of request b. The warp has one query
row, and all 32 lanes execute every line; lane `lane` has components 2 * lane and 2 * lane + 1 of every 64.

1. keys: how many keys this tile has. The chunk ends before key `end`, and only its last tile may be short.
2. my_page: lane j looks up the page of the j-th key of the tile, once. A lane that has no key looks up
   nothing: past the pages of a request the table may hold anything, or end.
3. For each key of the tile, all lanes get its page from the lane that has it, and compute its score: the dot
   product with the query row, which is scaled already, summed over the lanes.
4. score: lane j keeps the score of the j-th key. A lane without a key keeps NOTHING.

The lines after these make weights of the scores, and read V by the same keys and my_page.""",
    given={
        "first, end": "the tile's first key, and the key before which the chunk ends: numbers of keys of the "
        "request",
        "b, h_kv": "the request and the K/V head",
        "table": "[B, pages of a request] int32: key j of request b is on page table[b, j // page]",
        "page": "slots of a page: key j is in slot j % page",
        "load2(k_pool, (page number, slot, h_kv, c))": "components c and c + 1 of a key as two float32",
        "q_rmem": "[PAIRS, 2] float32 in registers: this lane's components of the query row, scaled",
        "PAIRS": "pairs of components per lane, D / 64: a constant",
        "cuda.shfl_sync(ALL_LANES, x, j)": "lane j's x, in every lane; all 32 lanes must call it",
        "warp_sum(x)": "the sum of x over the 32 lanes, in every lane; all 32 lanes must call it",
        "NOTHING": "minus infinity, float32: the score of no key",
        "lane, LANES": "this thread's number in its warp, 0 to 31, and 32",
        "float32": "the type of a number",
    },
    wanted=(
        Wanted("keys", "the keys of this tile"),
        Wanted("score", "of lane j: the score of the tile's key j, or minus infinity"),
        Wanted("my_page", "of lane j: the page of the tile's key j"),
    ),
    hints=(
        "Which page has key number `key` of a request, and which slot of it? A tile of 32 keys may begin "
        "inside a page and end inside another one.",
        "The lookup is one load for the whole warp: every lane asks for its own key's entry, first + lane. "
        "In the loop over the keys a shuffle hands it out, so that no load waits for another one.",
        "The loop over keys runs to `keys` in all lanes. Inside, all lanes work on one key, and only lane j "
        "keeps the result.",
        "keys = min(LANES, end - first); my_page = table[b, (first + lane) // page] if lane < keys else 0; "
        "score = NOTHING; for j in range(keys): key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), "
        "(first + j) % page; partial = float32(0); two multiply-adds per pair of components with "
        "load2(k_pool, (key_page, slot, h_kv, 64 * i + 2 * lane)); partial = warp_sum(partial); score = "
        "partial if j == lane else score.",
    ),
    gates=(
        Gate(
            what="load requests to `table`",
            value=_requests("table"),
            before=None,
            right=4,
            bar=4,
            advice="One request per tile is enough: each lane looks up one key, and shuffles do the rest.",
            cause="global loads",
        ),
        Gate(
            what="load requests to `k_pool`",
            value=_requests("k_pool"),
            before=None,
            right=128,
            bar=128,
            advice="Each key is loaded once: one request per pair of components.",
            cause="global loads",
        ),
        Gate(
            what="shuffles, counted once per warp",
            value=total("shuffle"),
            before=None,
            right=1_066,
            bar=1_066,
            advice="One shuffle hands out the page of a key, and one butterfly of five sums its score.",
            cause="shuffles",
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
        key="page",
        text="Pages have 16 slots, and the table of a request begins 7, 2, 9. On which page is its key 40?",
        unit="",
        truth=lambda evidence: 9.0,
        source="computed",
        why="40 // 16 is 2, and entry 2 is page 9. The slot is 40 % 16 = 8.",
    ),
    Question(
        key="waste",
        text="Requests have 1,000 keys on average, and a request's last page is half full on average. How "
        "many percent of the slots are lost with pages of 16?",
        unit="%",
        truth=lambda evidence: 100 * 8 / 1008,
        source="computed",
        why="8 of 1,008. With pages of 256 it would be 128 of 1,128, and one array of 8,192 keys per request "
        "would lose 88 %.",
    ),
    Question(
        key="lookups",
        text="One request of 128 keys and one head, in two chunks of 64: how many requests of a warp read "
        "the table, if a lane looks up one key of each tile of 32?",
        unit="requests",
        truth=lambda evidence: evidence.line(STAGE, "table[b, (first + lane) // page]", "load", "requests"),
        source="counted",
        why="One per tile of 32 keys.",
    ),
    Question(
        key="longest",
        text=f"{len(RAGGED)} requests on {SMS} SMs have {', '.join(f'{keys:,}' for keys in RAGGED)} keys. "
        f"Divided into 8 parts each, the last SM is done after {end(in_clusters(RAGGED)):,} tiles of 16 "
        "keys. After how many, if a part has at most 2,048 keys unless a request would make more than 32 "
        "parts?",
        unit="tiles",
        truth=lambda evidence: float(end(in_turn(RAGGED))),
        source="computed",
        why="The longest request makes 32 parts of 196 tiles. Some SMs have another part beside it.",
    ),
)

LESSON = Lesson(
    number=21,
    file="21_pages",
    title="Pages, and requests of any length",
    idea="A table says where keys are, garbage in unused slots must not be read, and lengths are numbers in "
    "device memory, so one captured launch serves requests that grow.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="Why must a kernel not read the slots after a request's last key, though their weight is 0?",
        right="nan",
        feedback={
            "bytes": "No: a short last tile is a few keys of thousands. Reading them would cost next to "
            "nothing.",
            "nan": "Yes: the slots may hold NaN, and 0 * NaN is NaN. The mask makes the weight 0 and not the "
            "product. What is not read, or arrives as zero, cannot spoil a sum.",
            "bounds": "No: the slots are in the pool, so the address is a good one. Only where the table has "
            "no entry is there no such slot.",
            "order": "No: where a page is in the pool changes no bit of the result. The order of the keys is "
            "the table's.",
        },
    ),
    figures={
        "read": "The slots of the pools that your kernel reads, and those that it must not.",
        "balance": "Requests of very different lengths on the SMs: four ways to divide them, in a model.",
    },
    after=("decode/split", "decode/cluster", "decode/even"),
    picture="pages",
)
