"""Lesson 05: the online softmax, and what floating point asks of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.course.spec import (
    Exercise,
    Explanation,
    Gate,
    Given,
    Lesson,
    Question,
    Slip,
    State,
    Wanted,
)
from flashcore_numba.stages.edited import Edit

LONGER = "1x8x1024x64"


def _total(key: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        return sum(launch.totals().get(key, 0) for launch in launches)

    return value


def _exponentials(launches: list[Any]) -> float:
    """In whatever type."""
    return _total("exp32")(launches) + _total("exp64")(launches)


WEIGHT = "p_smem[warp, lane]"


def _of_warps(value: Callable[..., np.ndarray], lanes: np.ndarray) -> np.ndarray:
    """A reduction over each 32 lanes, in all of them."""
    return np.repeat(value(lanes.reshape(-1, 32), axis=1), 32)


def _sum(
    factor: Callable[[State], np.ndarray], weight: Callable[[State], np.ndarray]
) -> Callable[[State], Any]:
    """l with another factor or another weight."""
    return lambda state: state.start["l"] * factor(state) + weight(state)


def _factor(state: State) -> np.ndarray:
    return np.exp(state.start["m"] - state.end["m"])


def _weight(state: State) -> np.ndarray:
    return np.asarray(state.end[WEIGHT])


SLIPS = (
    Slip("maximum of a lane", "m", lambda state: np.maximum(state.start["m"], state.end["score"])),
    Slip("maximum of the tile", "m", lambda state: _of_warps(np.max, state.end["score"])),
    Slip("weight with the old maximum", WEIGHT, lambda state: np.exp(state.end["score"] - state.start["m"])),
    Slip("weight without a maximum", WEIGHT, lambda state: np.exp(state.end["score"])),
    Slip("score for weight", WEIGHT, lambda state: state.end["score"]),
    Slip("weight divided", WEIGHT, lambda state: _weight(state) / state.end["l"]),
    Slip("sum of the warp", "l", _sum(_factor, lambda state: _of_warps(np.sum, _weight(state)))),
    Slip("factor upside down", "l", _sum(lambda state: 1 / _factor(state), _weight)),
    Slip("not rescaled", "l", _sum(lambda state: np.ones_like(_factor(state)), _weight)),
    Slip("weight rescaled too", "l", lambda state: (state.start["l"] + _weight(state)) * _factor(state)),
)

EXERCISE = Exercise(
    stage=5,
    file="stage05_online_softmax",
    task="""\
One tile of the online softmax, for the query row of this warp. Before: m, l and o_rmem describe the
keys of all earlier tiles; `score` is this lane's key of the new tile, -inf where the row must not see it.
Leave, for all keys up to and including this tile:
  - m: the largest score of the row, the same in all 32 lanes; still -inf while the row has seen no key
  - l: this lane's share of the sum of exp(score - m), over the keys that this lane has had;
    the 32 shares are added up after the last tile, not here
  - o_rmem: scaled to the new m; the new tile is not yet in it, accumulate_pv adds it right after
  - p_smem[warp, lane]: exp(score - m) of this lane's key, readable by all 32 lanes of the warp
While no key has been seen every one of these weights is 0, never NaN.""",
    given={
        "score": "the scaled score of row `row` and key first_key + lane, float32; -inf where masked",
        "m": "the running max of the row, float32, equal in all lanes; -inf before the first key",
        "l": "this lane's share of the running sum, float32",
        "o_rmem": "[PARTS] float32, registers: component lane + 32 * part of the unnormalised output row",
        "PARTS": "output components a lane owns: D / 32",
        "p_smem": "[ROWS, KEYS] float32, shared: a row of weights for each warp",
        "lane, warp": "the lane, and the warp of the block; only warp `warp` touches p_smem[warp]",
        "warp_max": "warp_max(value): the largest value of the 32 lanes, in every lane; all 32 must call it",
        "cuda, math, float32": "cuda.syncwarp, math.exp, -math.inf, and the type of a number",
    },
    wanted=(
        Wanted("m", "the running max after this tile, the same in all lanes"),
        Wanted("p_smem[warp, lane]", "the weight exp(score - m) of this lane's key"),
        Wanted("l", "this lane's share of the running sum, for the new m"),
        Wanted("o_rmem[0]", "the first output component of this lane, scaled to the new m"),
    ),
    slips=SLIPS,
    probed=("score",),
    hints=(
        "Everything gathered so far carries the factor exp(-m) of the old m. When m grows to m', what must "
        "all of it be multiplied by so that it carries exp(-m') instead? The same number serves l and every "
        "component of O.",
        "The order: find the new maximum; from old and new the rescale factor; the new weight; then l, m, "
        "p_smem, o_rmem. Keep the old m until the factor is computed.",
        "-inf - -inf is NaN. It happens only while the new maximum is still -inf: subtract 0 instead of "
        "it there, and exp(-inf) gives the 0 that is wanted. Other lanes read p_smem next: "
        "what lets a lane of the same warp see them, without stopping the other 15 warps?",
        "m_new = max(m, warp_max(score)); m_ref = m_new where it is above -inf, else 0; rescale = "
        "math.exp(m - m_ref); p = math.exp(score - m_ref); l = l * rescale + p; then m, p_smem[warp, lane], "
        "cuda.syncwarp(), and o_rmem[part] *= rescale for every part.",
    ),
    gates=(
        Gate(
            what="barriers, counted once per warp",
            value=_total("barriers"),
            before=2_048,
            right=1_024,
            bar=1_100,
            advice="A row of P is written and read by one warp: look for what makes all 16 warps wait where "
            "one would do.",
        ),
        Gate(
            what="warp shuffles",
            value=_total("shuffle"),
            before=1_280,
            right=3_200,
            bar=3_300,
            advice="Only the maximum must be known to all lanes in every tile: look for a reduction whose "
            "result nobody needs before the last tile.",
        ),
        Gate(
            what="exponentials, counted once per lane",
            value=_exponentials,
            before=16_384,
            right=32_768,
            bar=33_000,
            advice="A lane needs two per tile, the factor and the weight: look for one inside a loop.",
        ),
    ),
)


QUESTIONS = (
    Question(
        key="global_bytes",
        text="One head, 128 rows, 128 keys, D = 64. Stage 04 touches sectors worth <!--count 4 "
        "global_bytes--><!----> bytes of global memory, the score matrix among them, written once and read "
        "once in float32. Stage 05 keeps everything else and writes one float32 more per row, the LSE, in a "
        "request of its own. How many bytes of sectors does it touch?",
        unit="bytes",
        truth=lambda evidence: evidence.count(5, "global_bytes"),
        source="counted",
        why="128 x 128 scores of 4 bytes are 65,536 bytes, and they went out and came back: 131,072 less. "
        "Each of the 128 LSE stores touches a sector of 32 bytes: 4,096 more.",
    ),
    Question(
        key="exponentials",
        text="Stage 04 computes one exponential for each (row, key) pair: <!--calc pairs()--><!----> here. "
        "Stage 05 also needs the factor exp(m - new m), once per row and tile, and all 32 lanes of a warp "
        "compute it rather than wait for one. How many exponentials is that in all, counted once per lane?",
        unit="exponentials",
        truth=lambda evidence: evidence.count(5, "exp32"),
        source="counted",
        why="A tile has 32 keys and a warp 32 lanes, so every lane computes one weight and one factor: twice "
        "as many exponentials. A lane that waited would not have been faster.",
    ),
    Question(
        key="microseconds",
        text="The second walk over the keys, the score matrix and half of the barriers are gone; the loads "
        "from shared memory stay. How many microseconds of GPU time does stage 05 take at 1x8x512x64 on the "
        "H200?",
        unit="µs",
        truth=lambda evidence: evidence.us("05 online_softmax"),
        source="measured",
        why="The shared-memory wavefronts are the same to the last one. What was saved had been hidden, for "
        "the greater part: other warps worked meanwhile.",
    ),
    Question(
        key="gain",
        text="At 1x8x1024x64 the score matrix is four times as large. How many times as fast as stage 04 is "
        "stage 05 there?",
        unit="times",
        truth=lambda evidence: evidence.ratio("04 shared_tiles", "05 online_softmax", LONGER),
        source="measured",
        why="Less than at 1x8x512x64, not more: twice as many blocks hide the waiting of stage 04, and the "
        "wavefronts that are left are equal.",
    ),
)

GIVEN = (
    Given(
        name="max_from_tiny",
        story='"The running max has to start somewhere below every score. I took 1e-30: it is as good as '
        'nothing, and no infinity can turn into NaN later."',
        edits=(Edit("m = float32(-math.inf)\n        l", "m = float32(1e-30)\n        l"),),
        hints=(
            "Which scores are smaller than 1e-30? For them the maximum is never found.",
            "exp(s - 1e-30) is exp(s). From which s on is that 0 in float32, and what is 0 / 0?",
            "Make every score less than -104: all of q = 5 and all of k = -5 gives -5 * 5 * 64 / 8 = -200.",
        ),
    ),
    Given(
        name="half_weights",
        story='"My scores never leave -6 to 6, so I need no maximum, and the weights fit into float16: half '
        'of the memory for P."',
        edits=(
            Edit(
                "from numba import cuda, float32\n",
                "from numba import cuda, float32\nfrom numba.cuda.types import float16\n",
            ),
            Edit("m_new = max(m, warp_max(score))", "m_new = float32(0)"),
            Edit("p_smem[warp, lane] = p", "p_smem[warp, lane] = float32(float16(p))"),
        ),
        hints=(
            "The largest float16 is 65504. What is its logarithm?",
            "One score above 11.09 is enough: its weight in P is infinite, and so is its row of the output.",
            "Make one key four times the query row: the score is then half the sum of the row's squares, "
            "about 32 for normal numbers.",
        ),
    ),
    Given(
        name="mask_after_max",
        story='"Masking the weight is enough: a key that must not be seen gets the weight 0. Its score may '
        'take part in the maximum, since any m gives the same quotient."',
        edits=(
            Edit(
                "            score = score if first_key + lane < visible else float32(-math.inf)\n",
                "",
            ),
            Edit(
                "p = math.exp(score - m_ref)",
                "p = math.exp(score - m_ref) if first_key + lane < visible else float32(0)",
            ),
        ),
        hints=(
            "Any m gives the same quotient on paper. Which m are too large for float32?",
            "Without hidden keys there is nothing to find: use causal=True.",
            "Give a late key a score 104 above those of the early keys. The rows that must not see it have "
            "weights of exp(-104) and less: all 0.",
        ),
    ),
    Given(
        name="blind_rows",
        story='"Every row sees at least one key, so l is never 0 and m is never -inf after the first tile: '
        'the two special cases cost time and do nothing."',
        edits=(
            Edit("m_ref = m_new if m_new > float32(-math.inf) else float32(0)", "m_ref = m_new"),
            Edit("inv_l = float32(1) / l if visible > 0 else float32(0)", "inv_l = float32(1) / l"),
        ),
        hints=(
            "Which arguments make a row that sees no key at all? No values of q, k or v can.",
            "The causal mask is aligned at the last row and the last key.",
            "causal=True with more query rows than keys: the first S_q - S_k rows see nothing.",
        ),
    ),
)

LESSON = Lesson(
    number=5,
    file="05_online_softmax",
    title="One pass, no score matrix",
    idea="A running maximum and a running sum replace the stored scores: the first fused kernel.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 05 on the H200?",
        right="shared",
        feedback={
            "memory": "No: the score matrix is gone, and even stage 04 hardly touched device memory for it "
            "at the mission shape, because it stayed in the L2 cache. Reading the inputs and writing the "
            "output once would take <!--limit memory--><!----> µs.",
            "exponentials": "No: there are twice as many as in stage 04, and the exponential units would "
            'need <!--calc 2 * limit("exp") | .1f--><!----> µs for them.',
            "barriers": "Not mainly: their number was halved, and the time is "
            '<!--calc us("05 online_softmax") / us("04 shared_tiles") | .0%--><!----> of stage 04\'s. Where '
            "more blocks share an SM, as at 1x8x1024x64, it is <!--calc "
            'us("05 online_softmax", "1x8x1024x64") / us("04 shared_tiles", "1x8x1024x64") | .0%--><!---->.',
            "shared": "Yes: stage 04 and stage 05 need the same number of shared-memory wavefronts, an SM "
            'delivers one per clock, and these alone fill <!--calc 8 * count(5, "shared_wavefronts", '
            '"1x1x512x64") / 132 / 1980 / us("05 online_softmax") | .0%--><!----> of the measured time. That '
            "is why deleting the score matrix gained so little.",
            "arithmetic": "No: the multiply-adds alone would take <!--limit fp32--><!----> µs of <!--us "
            "05 online_softmax--><!---->. They wait for operands.",
        },
    ),
    figures={
        "softmax": "The state of a few query rows from tile to tile: the scores, m, l, the rescale factor, "
        "and what each tile weighs in the end.",
        "tiles": "The walk of one block over K and V, now read together and once.",
        "timeline": "The warps of one block from barrier to barrier.",
        "banks": "One request of a warp to shared memory, lane by lane and bank by bank.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("04 shared_tiles",),
    given=GIVEN,
)
