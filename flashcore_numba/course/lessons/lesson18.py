"""Lesson 18: a warp owns keys, and what the backward pass needs transposed is there."""

import numpy as np

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

STAGE, LONG = "backward/mma_sync", "4x32x4096x64"
TWO_BLOCKS = "1x1x256x64"

EXERCISE = Exercise(
    stage=STAGE,
    file="backward_mma_sync.cu",
    variant="large",
    first="const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2);",
    last="}",
    task="""\
dS of 8 queries, those of score tile n, by one warp; all 32 lanes execute every line. Rows are keys here: a
lane holds parts of LANE_ROWS keys, numbered r = 0 .. LANE_ROWS - 1: keys 8 r + g of the warp's, g = lane / 4.
Columns are queries: with t = lane % 4 it has queries 8 n + 2 t and 8 n + 2 t + 1 of each of its keys.
For each of the lane's keys r leave dS = P * (dP - delta), rounded to two halves of one register, the lower
query in the lower half:
  - in ds_rmem, the left operand of dK += dS^T Q: ds_rmem[r / 2][n / 2], register n % 2 * 2 + r % 2
  - in ds_smem, for dQ, at row 8 r + g and columns 8 n + 2 t, 8 n + 2 t + 1: rows are DS_PITCH elements apart
and P in p_rmem, as dS is in ds_rmem. Put `if (!SOFTCAP)` before that: with a softcap it is there already, and
s_rmem holds P times the softcap's derivative, which dS takes in place of P.
No number changes lanes, and nothing needs a barrier.""",
    given={
        "n": "int: the score tile, a constant once the loop around the region is unrolled",
        "s_rmem": "const, [LANE_ROWS / 2][BLOCK_N / 8][4] float, registers: P transposed. s_rmem[i][n] is "
        "the "
        "lane's part of keys 16 i and queries 8 n onwards: key g: queries 2 t, 2 t + 1; then key g + 8",
        "dp_rmem": "the same of dP",
        "delta_smem": "const float*, shared: D of the tile's BLOCK_N queries",
        "p_rmem, ds_rmem": "[LANE_ROWS / 2][BLOCK_N / 16][4] uint32_t, registers: written here, two halves "
        "each",
        "ds_smem": "element*, shared: the rows of this warp's keys, DS_PITCH elements apart",
        "lane, LANE_ROWS, DS_PITCH, SOFTCAP": "the lane's number, and constants",
        "ptx": "ptx::pack_pair(low, high): two floats as two halves in a uint32_t, `low` in the lower half",
    },
    wanted=(
        Wanted("((const element*)&ds_rmem[0][n / 2][n % 2 * 2])[0]", "dS of key g, query 2 t: lower half"),
        Wanted(
            "((const element*)&ds_rmem[0][n / 2][n % 2 * 2])[1]", "dS of key g, query 2 t + 1: upper half"
        ),
        Wanted("((const element*)&ds_rmem[0][n / 2][n % 2 * 2 + 1])[0]", "dS of key g + 8, query 2 t"),
        Wanted(
            "((const element*)&ds_rmem[LANE_ROWS / 2 - 1][n / 2][n % 2 * 2])[0]",
            "dS of the first key of the last 16, query 2 t",
        ),
        Wanted("((const element*)&p_rmem[0][n / 2][n % 2 * 2])[0]", "P of key g, query 2 t: lower half"),
        Wanted("((const element*)&p_rmem[0][n / 2][n % 2 * 2])[1]", "P of key g, query 2 t + 1: upper half"),
        Wanted("((const element*)&p_rmem[0][n / 2][n % 2 * 2 + 1])[0]", "P of key g + 8, query 2 t"),
        Wanted("ds_smem[lane / 4 * DS_PITCH + 8 * n + lane % 4 * 2]", "the stored dS of key g, query 2 t"),
        Wanted(
            "ds_smem[(lane / 4 + 8) * DS_PITCH + 8 * n + lane % 4 * 2 + 1]",
            "the stored dS of key g + 8, query 2 t + 1",
        ),
    ),
    hints=(
        "What belongs to a query row is a number of a column here. delta has one element per query: which "
        "two "
        "does a lane need for score tile n? They are the same for all its keys, so load them once.",
        "Take the lane's keys r one after the other. P of key r is at s_rmem[r / 2][n], elements r % 2 * 2 "
        "and the next; dP at the same place of dp_rmem.",
        "P * (dP - delta), with the first delta for the first of the two queries and the second for the "
        "second. Pack both into one uint32_t: it goes to ds_rmem[r / 2][n / 2][n % 2 * 2 + r % 2], and as 4 "
        "bytes to shared memory.",
        "const float2 delta = *(const float2*)(delta_smem + 8 * n + lane % 4 * 2); loop over r with #pragma "
        "unroll before it: const float *p = &s_rmem[r / 2][n][r % 2 * 2], *dp = &dp_rmem[r / 2][n][r % 2 * "
        "2]; const uint32_t ds = ptx::pack_pair(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y)); if "
        "(!SOFTCAP) p_rmem[...] = ptx::pack_pair(p[0], p[1]); ds_rmem[...] = ds; *(uint32_t*)(ds_smem + (8 * "
        "r + lane / 4) * DS_PITCH + 8 * n + lane % 4 * 2) = ds;",
    ),
    gates=(
        Gate(
            what="wavefronts of shared memory",
            value=total("shared_wavefronts"),
            before=96_768,
            right=6_152,
            bar=6_152,
            advice="A lane stores two neighbouring queries at once, 4 bytes, and loads two delta at once, 8 "
            "bytes, once per score tile. P does not go through shared memory at all.",
        ),
        Gate(
            what="shuffles",
            value=total("shuffle"),
            before=640,
            right=96,
            bar=96,
            advice="Every number is in the lane that needs it. (The 96 belong to the kernel that computes "
            "delta.)",
        ),
    ),
    advice={
        "out of bounds": "A lane has keys r = 0 to LANE_ROWS - 1: s_rmem[r / 2], and two score tiles make "
        "one "
        "operand, p_rmem[r / 2][n / 2], of four registers. In ds_smem a row is a key of this warp, 8 r + g, "
        "and a column a query of the tile. Which index went too far?",
        "race": "Each element of ds_smem has one lane that stores it: row 8 r + g, columns 8 n + 2 t and the "
        "next. Do two lanes compute the same address?",
    },
)

QUESTIONS = (
    Question(
        key="without_padding",
        text="A warp stores dS: lane 4 g + t stores 4 bytes at row g, columns 2 t and 2 t + 1. If rows of 32 "
        "halves simply follow each other, 64 bytes apart, how many wavefronts does the store take?",
        unit="wavefronts",
        truth=lambda evidence: float(_wavefronts(32)),
        source="computed",
        why="Rows g and g + 2 are 128 bytes apart, so they meet in the same banks: four rows each, four "
        "wavefronts. With rows 80 bytes apart no two lanes meet.",
    ),
    Question(
        key="adds",
        text="One head of 256 query rows and 256 keys, D = 64, variant `large`. How many requests add to dQ, "
        "counted once per warp?",
        unit="requests",
        truth=lambda evidence: evidence.count(STAGE, "global_atomic_requests", TWO_BLOCKS, "large"),
        source="counted",
        why="dQ has 256 x 64 floats, 128 requests. Each of the two blocks adds its part to all of them. With "
        "N blocks of keys every element of dQ is added to N times.",
    ),
    Question(
        key="barriers",
        text="One head of 128 rows and 128 keys: one block of four warps, tiles of 32 queries, two barriers "
        "per tile and one before the end. How often does a warp reach a barrier, summed over the warps?",
        unit="barriers",
        truth=lambda evidence: evidence.count(STAGE, "barriers", variant="large"),
        source="counted",
        why="4 warps x (4 tiles x 2 + 1).",
    ),
    Question(
        key="microseconds",
        text="At 4x32x4096x64 the products would take <!--calc flops('4x32x4096x64', operation='backward') / "
        "recorded('4x32x4096x64', operation='backward')[0]['ceilings']['mma_sync_tflops'] / 1e6 | ,.0f-->"
        "<!----> µs at the measured rate of mma.sync, and FlashAttention-2 takes <!--calc us('SDPA flash', "
        "'4x32x4096x64', "
        "operation='backward') | ,.0f--><!---->. How many does this stage take?",
        unit="µs",
        truth=lambda evidence: evidence.us("backward/mma_sync", LONG),
        source="measured",
        why="Products, shared memory and exponentials hardly overlap: all warps of a block meet twice per "
        "tile.",
    ),
)


def _wavefronts(pitch: int) -> int:
    """Of a warp's 4-byte stores at rows so many halves apart: the most that meet in one bank."""
    lanes = np.arange(32)
    return int(np.bincount((lanes // 4 * pitch // 2 + lanes % 4) % 32).max())


GIVEN = (
    Given(
        name="zeros_are_harmless",
        story='"Keys past the end of K arrive as zeros. dQ = dS K multiplies them by zero, and their rows of '
        'dK and dV are not stored. Whatever P is there, it counts for nothing: I mask them no more."',
        edits=(
            Edit(
                "return key < sequence.S_k ? mask.rows(key) : Interval{0, 0};",
                "return mask.rows(min(key, sequence.S_k - 1));",
                "gradient_keys.cuh",
            ),
        ),
        hints=(
            "What is P of a key whose scores are 0? It is 2 to the power of -lse2. When is that large, and "
            "what is infinity times 0?",
            "A half ends at 65504, so dS of such a key overflows when the LSE of a row is below -11 or so. "
            "An "
            "LSE is low when all scores of the row are.",
            "Fewer than 128 keys, and let every query row point away from all of them: q = 4, k = -1 in "
            "every "
            "component.",
        ),
    ),
)

LESSON = Lesson(
    number=18,
    file="18_backward_mma_sync",
    title="A warp owns keys",
    idea="Rows of a warp are keys: P and dS come transposed, as dV and dK take them, and only dS moves.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits this stage at 4x32x4096x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: at the rate that mma.sync was measured at, the products take <!--calc "
            "flops('4x32x4096x64', operation='backward') / recorded('4x32x4096x64', operation='backward')[0]"
            "['ceilings']['mma_sync_tflops'] / 1e6 | ,.0f--><!----> µs, and the kernel takes <!--us "
            "backward/mma_sync @4x32x4096x64--><!---->.",
            "shared": "It is the busiest unit, and not full: operands of 36,864 bytes for five products of a "
            "tile are <!--calc flops('4x32x4096x64', operation='backward') / (5 * 131072 / 36864) / recorded("
            "'4x32x4096x64', operation='backward')[0]['ceilings']['l1_gbs'] / 1e3 | ,.0f--><!----> µs at the "
            "measured rate, of <!--us backward/mma_sync @4x32x4096x64--><!---->.",
            "exponentials": "No: they would take <!--calc limit('exp', '4x32x4096x64', operation='backward') "
            "| .0f--><!----> µs, as in the forward "
            "pass, and the backward pass has 2.5 times as many products for them.",
            "memory": "No: reading the inputs and writing the gradients once takes <!--calc limit('memory', "
            "'4x32x4096x64', operation='backward') | .0f--><!----> µs.",
            "atomics": "No: the float32 sums of dQ are added to by 32 blocks of keys, <!--calc 128 * 32 * "
            "4096 * 64 * 4 / 1e9 | .1f--><!----> GB in all. At the measured rate of the L2 cache that is "
            "<!--calc 128 * 32 * 4096 * 64 * 4 / recorded('4x32x4096x64', operation='backward')[0]["
            "'ceilings']['l2_gbs'] / 1e3 | .0f--><!----> µs, spread over the whole run.",
            "latency": "Yes: no unit is full. A warp multiplies, exponentiates, multiplies, stores and meets "
            "the others, twice per tile, and an SM has room for two blocks of four warps. Lesson 19 takes "
            "the meetings away.",
        },
    ),
    figures={
        "transposed": "One lane of a warp that owns keys, and the banks that a store of dS meets.",
        "owners": "Who owns what when a warp owns query rows, and when it owns keys.",
        "wavefronts": "Wavefronts of shared memory by source line.",
        "barriers": "Barriers by source line, those of lesson 17's stage first.",
    },
    before=("backward/recompute",),
    given=GIVEN,
    picture="owners",
)
