"""Lesson 22: attention in 8 bits: scales, a transform against outliers, and sums in two levels."""

from typing import Any

from flashcore_numba.branches.fp8.quantise import TILE
from flashcore_numba.core.element import E4M3
from flashcore_numba.course.counters import of_line, total
from flashcore_numba.course.figures.eight_bits import spacing, stuck_at
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

STAGE, FOUR_TILES = "fp8/wgmma", "1x1x512x64"
WARPS = 32  # of 16 query rows, in FOUR_TILES
READ_AND_WRITTEN = 3 * (2 + 1)  # bytes per element of a head: Q, K and V in float16, and in e4m3

PRODUCTS_OF_A_TILE = (64 + TILE) // 32  # wgmma of a warp in FOUR_TILES: of Q K^T, and of P V


def not_tried(launches: list[Any]) -> float:
    """Tiles, counted once per warp, whose weights no vote has been asked about."""
    tiles = total("wgmma")(launches) / PRODUCTS_OF_A_TILE
    return tiles - of_line("largest < LARGEST", "vote")(launches)


EXERCISE = Exercise(
    stage=STAGE,
    file="fp8_wgmma.cu",
    first="const float k_scale = k_scales[first_tile + tile], exponent = v_exponents[first_tile + tile];",
    last="l[0] += sum[0] * without, l[1] += sum[1] * without;",
    task="""\
The softmax of one tile of 128 keys, by one warp; all 32 lanes execute these lines. A lane has parts of two
query rows, r = 0 and 1. On the line before, S of the tile is whole, in s_rmem: sums of products of bytes.

1. A score of row r, in powers of 2, is factor[r] * S: the factor of the row, times the scale of this tile
   of K. No factor may be less than LEAST_FACTOR: a masked score is minus infinity, and times 0 that is NaN.
2. Leave P in p_rmem, as 2^(score + exponent - m) with the exponent of this tile of V. If `lazy`, try it with
   m as it is. If not, or if the try says that a weight may be beyond 448, m has to rise, and P is made anew.
3. Before m rises, mask the tile. Copy these lines as they are:
     if (tile >= whole_tiles) {
         const int row = warp_row + lane / 4, first_key = tile * BLOCK_N;
         const Interval seen[2] = {mask.interval(row).from(first_key),
                                   mask.interval(row + 8).from(first_key)};
         mask_tile(s_rmem, seen, 1.0f, lane);
     }
4. rescale[r] is what O will be multiplied by before P V of this tile is added: 1 where m stays.
5. l[r] is the lane's part of the sum of the weights so far, all relative to m. It has to follow when m
   rises. The scale of V belongs into P, and not into l.""",
    given={
        "tile, first_tile": "int: the tile's number in its head, and the tiles of all heads before",
        "lazy": "bool: whether m may stay: false in a work tile's first tile, and where keys must be masked",
        "k_scales, v_exponents": "const float*, global, of all tiles of all heads: a number of K is byte * "
        "scale, one of V is byte * 2^exponent",
        "q_factor": "RowState = float[2]: the scales of the lane's rows of Q, times the softmax's "
        "scale, log2(e) and 1 / D",
        "raise_max": "raise_max(s_rmem, m, rescale, factor, exponent): m rises so that the tile's "
        "largest P is 2^5, if m is less than that; rescale is 2^(m before - m)",
        "exponentiate": "exponentiate<LAZY>(p_rmem, s_rmem, factor, m, exponent, sum): P as bytes, and "
        "sum, a RowState: the lane's part of the row sums of this P alone. With true it returns false "
        "if a weight of the warp may be beyond 448. With false it is for a tile that has just set m",
        "ptx": "ptx::ex2(x): 2^x",
        "m, l, rescale, p_rmem, s_rmem": "in registers; S stays as it is when P is made",
        "warp_row, lane, whole_tiles, mask, BLOCK_N, LEAST_FACTOR": "as these lines need them",
    },
    wanted=(
        Wanted("m[0]", "the running max of the lane's first row"),
        Wanted("m[1]", "that of its second row"),
        Wanted("rescale[0]", "what O of the first row is multiplied by"),
        Wanted("rescale[1]", "that of the second row"),
        Wanted("l[0]", "the lane's part of the first row's sum"),
        Wanted("l[1]", "that of the second row"),
    ),
    hints=(
        "Follow the scales. Bytes of Q times bytes of K are off by the scale of a row and the scale of "
        "a tile: both belong to the score. Bytes of V are off by 2^exponent, and O is a sum over tiles "
        "with different exponents: P can carry it, since a power of 2 in P is an addition in its "
        "exponent.",
        "P carries V's exponent, so the sums of P do, too. The row sum is what O is divided by in the "
        "end: there the exponent has to come off again.",
        "Two ways lead to P. The cheap one keeps m, and nothing needs to follow it. The other one "
        "masks, raises m, rescales l, exponentiates. If the cheap one fails, what it left is made again "
        "from the same S.",
        "factor[r] = fmaxf(q_factor[r] * k_scales[first_tile + tile], LEAST_FACTOR), rescale[r] = 1; "
        "then if (!lazy || !exponentiate<true>(p_rmem, s_rmem, factor, m, exponent, sum)) "
        "{ the mask; raise_max(s_rmem, m, rescale, factor, exponent); l[0] *= rescale[0], l[1] *= "
        "rescale[1]; exponentiate<false>(the same); } "
        "and at last l[r] += sum[r] * ptx::ex2(-exponent).",
    ),
    gates=(
        Gate(
            what="tiles of a warp whose weights are made without a try",
            value=not_tried,
            before=None,
            right=32,
            bar=32,
            advice="Where `lazy` is true, try it with m as it is: the maximum of a tile costs a pass over "
            "its scores, and shuffles. (32 are the first tiles, in which there is no m yet.)",
            shape=FOUR_TILES,
        ),
    ),
    advice={
        "value": "Ask of each scale where it goes: Q's and K's into the factor of a score, V's exponent "
        "into P, and out of l again. What must follow when m rises, and what when it stays?",
    },
)

QUESTIONS = (
    Question(
        key="steps",
        text="The scale of a row makes its largest number 448. How far is 448 from the next smaller "
        "number of e4m3?",
        unit="",
        truth=lambda evidence: float(spacing(E4M3.largest)),
        source="computed",
        why="448 is 1.75 * 2^8, and 3 bits of mantissa are steps of 1/8: 2^8 / 8. In float16 the step "
        "would be 0.25.",
    ),
    Question(
        key="stuck",
        text="An accumulator keeps the bits of its addends down to 2^-13 of the highest bit of the "
        "largest, and the sum so far is one of the addends. All others are 1. At which sum does it stop "
        "growing?",
        unit="",
        truth=lambda evidence: stuck_at(),
        source="computed",
        why="From 2^14 on the lowest bit that is kept is worth 2. A 1 is cut off, however many come.",
    ),
    Question(
        key="tries",
        text="512 keys are four tiles. In how many of them does a warp make its weights before anything is "
        "known of the tile's maximum?",
        unit="tiles",
        truth=lambda evidence: evidence.requests(STAGE, "largest < LARGEST", "vote", FOUR_TILES) / WARPS,
        source="counted",
        why="In the first tile m must be set. In each other one it is tried with m as it is, and a vote asks "
        "whether a weight may be beyond 448. In N(0, 1) inputs that is rare.",
    ),
    Question(
        key="length",
        text="One head, N rows and N keys. Quantising reads Q, K and V in float16 and writes bytes, "
        "<!--calc 3 * (2 + 1)--><!----> bytes per row and column of D. In return 4 N^2 D FLOP take half "
        "of their time. The tensor cores do <!--calc "
        "recorded('4x32x4096x64')[0]['ceilings']['tensor_tflops'] | .0f--><!----> TFLOP/s in float16, "
        "memory moves <!--calc recorded()[0]['ceilings']['dram_gbs'] / 1e3 | .1f--><!----> TB/s "
        "(measured, H200). If these two were all, at which N are they equal?",
        unit="keys",
        truth=lambda evidence: _equal_at(evidence),
        source="computed",
        why="9 N D bytes, and half of 4 N^2 D FLOP: N = 4.5 times the FLOP that fit into the time of a byte. "
        "Exponentials do not become cheaper, so in truth more keys are needed.",
    ),
)


def _equal_at(evidence: Any) -> float:
    """Keys at which the bytes of quantising take as long as e4m3 saves in products."""
    flops = evidence.recorded("4x32x4096x64")[0]["ceilings"]["tensor_tflops"] * 1e12
    bytes_per_second = evidence.recorded()[0]["ceilings"]["dram_gbs"] * 1e9
    return READ_AND_WRITTEN / bytes_per_second / (2 / flops)


GIVEN = (
    Given(
        name="never_beyond_448",
        story='"A weight is at most 2^5 when m is set, and 448 is 14 times as much. I tried a hundred random '
        'inputs, long ones too, and all came out right. So the vote of the warp went: it always says yes."',
        edits=(
            Edit("return !LAZY || __all_sync(ALL_LANES, largest < LARGEST);", "return true;", "fp8_wgmma.cu"),
        ),
        hints=(
            "Which tile sets m, and how much larger may a score of another tile be?",
            f"The walk begins with the last tile. Keys 0 to {TILE - 1} are the tile that comes second.",
            "Let the first keys be query rows times 3, and the others small random numbers: the score of a "
            "row with its own key is then about 3 sqrt(D).",
        ),
    ),
)

LESSON = Lesson(
    number=22,
    file="22_fp8",
    title="Three bits of mantissa",
    idea="Tensor cores multiply bytes twice as fast; scales, a transform against outliers and sums in "
    "two levels keep what 3 bits of mantissa cost small.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="Both products in e4m3, D = 128. Which unit of an SM has the most work in a tile of 64 "
        "rows and 128 keys?",
        right="both",
        feedback={
            "tensor": "It has 2 * 2 * 64 * 128 * 128 FLOP, at 8,192 per clock <!--calc 4 * 64 * 128 * "
            "128 / 8192--><!----> clocks. Is there a unit that has as much?",
            "exponentials": "They are 64 * 128, at 16 per clock <!--calc 64 * 128 / 16--><!----> "
            "clocks. Is there a unit that has as much?",
            "both": "Yes: <!--calc 4 * 64 * 128 * 128 / 8192--><!----> clocks each. It is the balance "
            "that lesson 15 has at D = 64 in float16: products twice as fast make no exponential "
            "faster, so one after the other the two would take <!--calc 100 * (512 + 512) / (1024 + "
            "512) | .0f--><!----> % of what float16 takes, and not half.",
            "memory": "No: K and V of the tile are <!--calc 2 * 128 * 128--><!----> bytes, which three "
            "warpgroups share, and which come from the L2 cache while others use them.",
        },
    ),
    figures={
        "outliers": "What an outlier does to the other numbers of its row, before and after the transform.",
        "levels": "The sum of many products, in one level and in two.",
        "barriers": "Barriers by source line.",
    },
    given=GIVEN,
    picture="rounding",
)
