"""Lesson 04: tiles in shared memory."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted
from flashcore_numba.simulator.count import BANKS, WARP, WORD

WIDE = 16  # bytes of a wide load
STRIDE = 64 + 12  # floats from row to row in the question about padding
WARPS_COUNTED = 8 * 16  # at 1x1x128x64: 8 blocks of 16 warps


def _total(key: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        return sum(launch.totals()[key] for launch in launches)

    return value


def _padded_by_twelve(evidence: Any) -> float:
    """Wavefronts of one wide load of 32 rows: 8 lanes a pass, each as long as its busiest bank."""
    words, lanes = WIDE // WORD, BANKS * WORD // WIDE
    passes = [range(first, first + lanes) for first in range(0, WARP, lanes)]
    banks = [[(STRIDE * lane + word) % BANKS for lane in group for word in range(words)] for group in passes]
    return sum(max(map(some.count, some)) for some in banks)


EXERCISE = Exercise(
    stage=4,
    file="stage04_shared_tiles",
    task="""\
The first pass of stage 04: each warp computes the scores of one query row, each lane those of one key per
tile. Q's tile is being written to q_smem; no barrier has followed yet.

Walk over all seq_k keys, KEYS at a time. For each tile: all THREADS threads of the block bring it from
k[b, h] into kv_smem; lane `lane` computes the scaled score of key first_key + lane, both operands from
shared memory; where the row sees that key, the score goes to scores[b, h, row, key] and counts for the
maximum.

Leave row_max: the largest visible score of the row, float32, the same in all 32 lanes; -inf where the row
sees no key. After the region the V pass overwrites kv_smem at once. Give each barrier a comment that names
the hazard it closes.""",
    given={
        "k": "[B, H, S_k, D] float16 in global memory; k[b, h] are the keys of this head",
        "scores": "[B, H, S_q, S_k] float32 in global memory, not yet written",
        "q_smem": "[ROWS, D + PAD] float32, shared: the block's 16 query rows; this warp's is q_smem[warp]",
        "kv_smem": "[KEYS, D + PAD] float32, shared: room for one tile",
        "load_tile": "load_tile(source, first, tile, thread, threads): all threads together; zeros past "
        "the end",
        "dot": "dot(q_smem, row, k_smem, key): the dot product of two rows of shared tiles, 16 bytes per "
        "load",
        "warp_max": "warp_max(value): the largest value of the 32 lanes, in every lane; all 32 must call it",
        "lane, warp, thread": "the lane, the warp of the block, and their number in the block",
        "row": "the query row of this warp; past the last row it is seq_q or more",
        "visible": "how many keys the row sees: the first `visible`; 0 for a warp past the last row",
        "seq_k, b, h, scale": "the number of keys, batch, head, and the factor of the scores",
        "KEYS, THREADS": "32 keys per tile, 512 threads per block",
        "cuda, math, float32": "barriers, -math.inf, and the type of a number",
    },
    wanted=(
        Wanted("scores[b, h, row, lane]", "the score stored for the row and key `lane`"),
        Wanted("row_max", "the largest visible score of the row, the same in all lanes"),
    ),
    hints=(
        "A tile is written by all 16 warps and read by all 16. Ask twice for every tile: who may still be "
        "writing when I read, and who may still be reading when the next tile is written?",
        "One iteration of the loop over first_key in range(0, seq_k, KEYS): load_tile, barrier, dot, mask, "
        "store, barrier. Both barriers are in the loop and outside every condition: all 512 threads must "
        "come to each.",
        "Mask with `first_key + lane < visible`. A masked lane still comes to the barrier, and it must "
        "change neither scores nor its maximum. A lane has seen every 32nd key only: the maximum of the row "
        "needs one step more, after the loop.",
        "row_max starts at float32(-math.inf). In the loop: load_tile(k[b, h], first_key, kv_smem, thread, "
        "THREADS); cuda.syncthreads(); score = dot(q_smem, warp, kv_smem, lane) * scale; under the mask the "
        "store and row_max = max(row_max, score); cuda.syncthreads(). After it: row_max = warp_max(row_max).",
    ),
    gates=(
        Gate(
            what="32-byte sectors loaded from global memory",
            value=_total("global_load_sectors"),
            before=133_632,
            right=10_752,
            bar=12_000,
            advice="Each block needs each row of K once for this pass: look at how often a tile is loaded, "
            "and whether an operand of the dot product still comes from global memory.",
        ),
        Gate(
            what="shared-memory wavefronts of loads lost to bank conflicts",
            value=_total("shared_load_conflicts"),
            before=0,
            right=0,
            bar=0,
            advice="Rows are padded for loads of 16 bytes: look at how many bytes a lane reads at a time, "
            "and in which banks the 32 lanes meet.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=_total("barriers"),
            before=0,
            right=2_048,
            bar=2_200,
            advice="Two hazards per tile, so two barriers per tile: look for one that closes neither.",
        ),
        Gate(
            what="float32 multiply-adds",
            value=_total("fma32"),
            before=2_097_152,
            right=2_097_152,
            bar=2_200_000,
            advice="Each product is needed once: look for lanes that all compute the same score.",
        ),
    ),
)

LESSON = Lesson(
    number=4,
    file="04_shared_tiles",
    title="Tiles in shared memory",
    idea="A block copies K and V to shared memory one tile at a time, and 16 query rows share each tile.",
    exercise=EXERCISE,
    questions=(
        Question(
            key="sectors",
            text="One head, 128 query rows, 128 keys, D = 64, float16. A block owns 16 query rows and reads "
            "every key and value once. How many 32-byte sectors do all blocks together load from Q, K and V?",
            unit="sectors",
            truth=lambda evidence: evidence.line(4, "load8(source, (first + row, c))", "load", "sectors"),
            source="counted",
            why="A row is 128 bytes, 4 sectors. Q is read once: 512. K and V are read by 128 / 16 = 8 "
            "blocks: 8 x 512 each.",
        ),
        Question(
            key="padded",
            text="A tile row has 64 floats and 12 of padding. 32 lanes each load 16 bytes, lane i from row "
            "i, all from the same column. How many wavefronts does this one request take?",
            unit="wavefronts",
            truth=_padded_by_twelve,
            source="computed",
            why="76 i mod 32 = 12 i mod 32 is 0, 12, 24, 4, 16, 28, 8, 20 for eight lanes: every multiple "
            "of 4 once, in another order. So they fill the 32 banks, and four passes are enough. Padding by "
            "an odd multiple of 4 does this, by an even one does not; more padding is neither better nor "
            "worse in itself.",
        ),
        Question(
            key="barriers",
            text="128 keys in tiles of 32, first K, then V in a second pass over the tiles. How many "
            "barriers does one warp reach in all?",
            unit="barriers",
            truth=lambda evidence: evidence.count(4, "barriers") / WARPS_COUNTED,
            source="counted",
            why="4 tiles in each of 2 passes, and 2 barriers per tile: one before it is read, one before it "
            "is overwritten.",
        ),
        Question(
            key="microseconds",
            text="Stage 03 takes <!--us 03 warp_reduction--><!----> µs of GPU time at 1x8x512x64 on the "
            "H200. How long does stage 04 take?",
            unit="µs",
            truth=lambda evidence: evidence.us("04 shared_tiles"),
            source="measured",
            why="Sixteen times less traffic for K and V does not make a kernel sixteen times faster: the "
            "loads now come from shared memory, and that has a rate of its own.",
        ),
    ),
    explanation=Explanation(
        text="What limits stage 04 at the mission shape, 1x8x512x64 on the H200?",
        right="shared",
        feedback={
            "memory": "No: device memory would need <!--limit memory--><!----> µs for this problem. The "
            'sectors loaded fell by a factor of <!--calc count(3, "global_load_sectors") / count(4, '
            '"global_load_sectors") | .1f--><!---->, the time by one of <!--ratio 03 warp_reduction / '
            "04 shared_tiles--><!---->.",
            "scores": "No: the score matrix is written and read once, 4 sectors per request, and its "
            "<!--calc 8 * 512 * 512 * 4 / 1e6 | .1f--><!----> MB stay in the L2 cache: the whole launch "
            "reads 1.2 MB from device memory (Nsight Compute, measured once, H200).",
            "barriers": "Not mainly. At 1x8x1024x64 an SM holds three blocks and not two, so more warps "
            "work while others wait at a barrier, and a pair of row and key still takes <!--calc "
            'us("04 shared_tiles", "1x8x1024x64") / 4 / us("04 shared_tiles") | .0%--><!----> of the time '
            "that it takes here.",
            "shared": "Yes: the multiply-adds wait for operands. An SM delivers one wavefront per clock, "
            'and the counted wavefronts alone fill <!--calc 8 * count(4, "shared_wavefronts", "1x1x512x64") '
            '/ 132 / 1980 / us("04 shared_tiles") | .0%--><!----> of the measured time.',
            "arithmetic": "No: the multiply-adds alone would take <!--limit fp32--><!----> µs of <!--us "
            "04 shared_tiles--><!---->.",
        },
    ),
    figures={
        "banks": "One request of a warp to shared memory: which of the 32 banks each lane meets, and in "
        "which wavefront it is served.",
        "timeline": "The warps of one block from barrier to barrier: no warp reads a tile that another "
        "still writes.",
        "tiles": "The walk of one block over K, then over V, and what is in shared memory at each step.",
        "sectors": "The global request that fills a tile, lane by lane and sector by sector.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("03 warp_reduction",),
)
