"""Lesson 12: what one mma.sync gives, the next one takes."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

EXERCISE = Exercise(
    stage=12,
    file="warp_rows.cuh",
    variant="large",
    first="RowState sum;",
    last="}",
    task="""\
The exponentials of one tile, by one warp; all 32 lanes execute every line. A lane holds parts of LANE_ROWS
query rows, numbered r = 0 .. LANE_ROWS - 1: rows 8 r + g of the warp's, g = lane / 4. With t = lane % 4 it
has, of each row, the scores with keys 8 n + 2 t and 8 n + 2 t + 1, for n = 0 .. BLOCK_N / 8 - 1.
Declare `RowState sum;` and leave
  - sum[r]: the sum of 2^(scale_log2 * score - m[r]) over this lane's own scores of its row r
  - p_rmem: the same powers of 2 as halves, as the left operand of P V: p_rmem[i][k] holds the lane's part
    of rows 16 i .. 16 i + 15 and keys 16 k .. 16 k + 15, in four registers of two halves each:
    [0] row g, keys 2 t, 2 t + 1      [1] row g + 8, the same keys
    [2] row g, keys 2 t + 8, 2 t + 9  [3] row g + 8, the same keys as [2]
    (keys counted from 16 k, rows from 16 i; the lower key in the lower half)
No number needs to change lanes. m, l and s_rmem stay as they are: the lines after these compare `sum` with
MAX_SUM and add it to l.""",
    given={
        "s_rmem": "[ROW_TILES][BLOCK_N / 8][4] float, registers: s_rmem[i][n] is the lane's part of rows 16 "
        "i and keys 8 n onwards: row g: keys 2 t, 2 t + 1; then row g + 8: the same keys",
        "m": "RowState, float[LANE_ROWS]: the reference of the lane's rows, in units of log2; never infinite",
        "scale_log2": "float: scale times log2(e); masked scores are -INFINITY already",
        "p_rmem": "[ROW_TILES][BLOCK_N / 16][4] uint32_t, registers: written here, two halves each",
        "LANE_ROWS, ROW_TILES, BLOCK_N": "constants: rows a lane has a part of, LANE_ROWS / 2 = ROW_TILES, "
        "and the keys of a tile",
        "RowState": "float[LANE_ROWS], as a type: `RowState sum;` declares one",
        "ptx": "ptx::ex2(x): 2^x, 0 for -INFINITY; ptx::pack_pair(low, high): two floats as two halves in a "
        "uint32_t, `low` in the lower half",
    },
    wanted=(
        Wanted("sum[0]", "the lane's sum of powers for its row 0, over all keys of the tile"),
        Wanted("sum[LANE_ROWS - 1]", "the lane's sum of powers for its last row"),
        Wanted("((const element*)p_rmem[0][0])[0]", "row g, key 2 t of the tile: register 0, lower half"),
        Wanted("((const element*)p_rmem[0][0])[1]", "row g, key 2 t + 1: register 0, upper half"),
        Wanted("((const element*)p_rmem[0][0])[2]", "row g + 8, key 2 t: register 1, lower half"),
        Wanted("((const element*)p_rmem[0][0])[4]", "row g, key 2 t + 8: register 2, lower half"),
        Wanted("((const element*)p_rmem[0][1])[0]", "row g, key 16 + 2 t: the second operand's first number"),
        Wanted("((const element*)p_rmem[ROW_TILES - 1][0])[0]", "row 16 + g, key 2 t: second row tile"),
    ),
    hints=(
        "Take the lane's rows r one after the other. Where in s_rmem are the two scores of row r in score "
        "tile n? Row tile r / 2, and in the four numbers the first two for even r, the last two for odd r.",
        "A register of p_rmem holds two neighbouring keys of one row: exactly the two scores that are side "
        "by side in s_rmem. So each pair becomes one register. Two score tiles of 8 keys make one operand of "
        "16: tile n goes to operand n / 2.",
        "Which of the four registers? Odd r (row g + 8) adds 1. Odd n (keys + 8) adds 2.",
        "Loops over n and r, both with #pragma unroll before them: const float* s = &s_rmem[r / 2][n][r % 2 "
        "* 2]; p0 = ptx::ex2(s[0] * scale_log2 - m[r]), p1 the same with s[1]; add both to sum[r]; p_rmem[r "
        "/ 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_pair(p0, p1).",
    ),
    gates=(
        Gate(
            what="warp shuffles",
            value=total("shuffle"),
            before=288,
            right=64,
            bar=66,
            advice="Rows are added up over their four lanes once, after the last tile: look for a shuffle "
            "that runs in every tile, or for one that moves P from lane to lane.",
        ),
        Gate(
            what="wavefronts of shared memory",
            value=total("shared_wavefronts"),
            before=9_408,
            right=1_792,
            bar=1_800,
            advice="Neither S nor P needs shared memory: look for an array that got in between.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=384,
            right=8,
            bar=8,
            advice="A warp's rows belong to nobody else: look for what makes it wait for the other warps.",
        ),
    ),
    advice={
        "out of bounds": "A lane has LANE_ROWS sums, r = 0 to LANE_ROWS - 1. Of row r it has two scores in "
        "each s_rmem[r / 2][n], n = 0 to BLOCK_N / 8 - 1, and two of these score tiles make one operand: "
        "p_rmem[r / 2][k], k = 0 to BLOCK_N / 16 - 1, of four registers. Which index went too far?",
    },
)

QUESTIONS = (
    Question(
        key="without_swizzle",
        text="Some models have a head dimension of 80: rows of a K tile are 80 halves long, 160 bytes. "
        "ldmatrix reads a matrix of 8 x 8 halves as 8 rows of 16 bytes, one row of the tile each. If the "
        "rows simply follow each other, how many wavefronts does one such matrix take?",
        unit="wavefronts",
        truth=lambda evidence: float(max(_turns([row * 160 for row in range(8)]))),
        source="computed",
        why="160 bytes are 40 banks of 4 bytes, so each row begins 8 banks after the one before: rows 0 to 3 "
        "in banks 0, 8, 16 and 24, rows 4 to 7 in the same four. Two rows meet in each bank.",
    ),
    Question(
        key="wavefronts",
        text="One head, 128 rows, 128 keys: stage 11 needs <!--count 11 shared_wavefronts--><!----> "
        "wavefronts of shared memory for everything, among them S out and in, P out and in, and the "
        "conflicts. Stage 12 in its variant `large` lets a block own all 128 rows, and each fragment of K "
        "or V that a warp reads serves 32 rows. How many wavefronts does it need for everything?",
        unit="wavefronts",
        truth=lambda evidence: evidence.count(12, "shared_wavefronts", variant="large"),
        source="counted",
        why="A tile of 64 keys and 64 components is 8 KB, 64 wavefronts to read. Four warps read each of the "
        "2 tiles of K and of V: 4 x 4 x 64 = 1,024. Q, K and V arrive once, 384; Q is read once, 128; O "
        "passes through once in each direction, 256.",
    ),
    Question(
        key="barriers",
        text="Stage 11 reaches its barriers <!--count 11 barriers--><!----> times at that size, counted "
        "once per warp. Stage 12, `large`: one block of 4 warps, 2 tiles of keys, and warps that share "
        "nothing but K and V. How many times does it reach one?",
        unit="barriers",
        truth=lambda evidence: evidence.count(12, "barriers", variant="large"),
        source="counted",
        why="One per tile: it says that the tile has arrived, and that all have left the slot that is filled "
        "next. Two tiles, four warps: 8.",
    ),
    Question(
        key="microseconds",
        text="Stage 11 takes <!--us 11 warp_specialized--><!----> µs at 1x8x512x64 on the H200. How many "
        "does stage 12 take?",
        unit="µs",
        truth=lambda evidence: evidence.us("12 mma_sync"),
        source="measured",
        why="The round trips and the barriers are gone. But 128 blocks of 2 warps are 2 warps for the 4 "
        "schedulers of an SM: half of the tensor cores have no work. That is the next lesson.",
    ),
)


def _turns(addresses: list[int]) -> list[int]:
    """How many of these 16-byte rows want each of the 32 banks, 4 bytes wide."""
    return [sum(bank in {(a // 4 + i) % 32 for i in range(4)} for a in addresses) for bank in range(32)]


GIVEN = (
    Given(
        name="no_vote",
        story='"After the first tile m is close to the maximum of the row. The other tiles have a few larger '
        'scores, but a weight of 2 or 100 harms nobody: I left out the vote and the careful second try."',
        edits=(Edit("    if (!__all_sync(ALL_LANES, close)) return false;\n", "", "warp_rows.cuh"),),
        hints=(
            "Weights are rounded to float16 before the product with V. What is the largest float16?",
            "A weight beyond 65504 needs a score 11.1 above the reference, which is the maximum of the "
            "first 64 keys.",
            "The mask sends a tile down the careful path, so use no mask and a multiple of 64 keys: 128 "
            "keys, the last one 20 times as long as the others and in the direction of a query row.",
        ),
    ),
)

LESSON = Lesson(
    number=12,
    file="12_mma_sync",
    title="P never leaves its registers",
    idea="A warp keeps its rows in registers from Q to O: what one mma.sync gives, the next one takes.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 12 at 1x8x512x64 on the H200?",
        right="latency",
        feedback={
            "shared": "No longer: <!--calc (profiled(12, 'shared_load_wavefronts') + profiled(12, "
            "'shared_store_wavefronts')) / 1e3 | .0f--><!----> thousand wavefronts, none of them a "
            "conflict, are <!--calc (profiled(12, 'shared_load_wavefronts') + profiled(12, "
            "'shared_store_wavefronts')) / 128 / 1980 | .1f--><!----> µs at one per clock on each of 128 "
            "SMs.",
            "barriers": "No: a warp reaches <!--calc profiled(12, 'barriers') / 256 | .0f--><!----> in its "
            "whole life, one per tile. In stage 11 all warps together reached <!--calc profiled(11, "
            "'barriers') / 1e3 | .0f--><!----> thousand, here <!--calc profiled(12, 'barriers') / 1e3 | "
            ".0f--><!----> thousand.",
            "tensor": "No: the products alone would take <!--limit tensor--><!----> µs if all tensor cores "
            "were kept busy. Their pipe started an instruction in <!--calc profiled(12, 'tensor_pct') | "
            ".0f--><!----> % of the cycles (Nsight Compute).",
            "exponentials": "No: they would take <!--limit exp--><!----> µs if all units were kept busy, and "
            "these were for <!--calc profiled(12, 'xu_pct') | .0f--><!----> % (Nsight Compute).",
            "memory": "No: reading the inputs and writing the output once would take <!--limit "
            "memory--><!----> µs, and the L2 cache, which serves K and V to every block, was busy for "
            "<!--calc profiled(12, 'l2_pct') | .0f--><!----> % (Nsight Compute).",
            "latency": "Yes: an SM has two warps, and each waits for its own last instruction: the issue "
            "slots are used in <!--calc profiled(12, 'issue_pct') | .0f--><!----> % of the cycles, and no "
            "unit is busy. The most frequent reason to wait is the fixed time between two instructions of "
            "which the second needs the first (Nsight Compute). Two of the four schedulers have no warp at "
            "all.",
        },
    ),
    figures={
        "fragments": "Which lane holds which element of S and of P, as the probe found it.",
        "swizzle": "The 8 rows that one phase of ldmatrix reads, over the 32 banks, without the swizzle and "
        "with it.",
        "wavefronts": "Wavefronts of shared memory by source line, conflicts hatched.",
        "barriers": "Barriers by source line, stage 11 and stage 12.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("11 warp_specialized",),
    given=GIVEN,
)
