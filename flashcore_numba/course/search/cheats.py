"""Kernels that an evaluator is judged by: ten that cheat, and some that are right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.course.search.bench import Candidate, of_edits, of_lines, region_lines
from flashcore_numba.course.search.lineage import padded

STORE = "        if row < seq_q:\n            for part in range(PARTS):\n                out["
LOAD_K, LOAD_V = "load_tile(k[b, h], first_key", "load_tile(v[b, h], first_key"
EVERY, FULL = (f"range(0, {end}, KEYS):\n            " for end in ("seq_k", "seq_k - KEYS + 1"))
SCORE = "            if first_key + lane < visible:\n                scores["
SECOND = (
    "            cuda.syncthreads()  # every warp has read the tile before the next one overwrites it\n",
    "",
)
ROUND = "            big = score * float32(65537)\n            score = big - (big - score)\n"
SUM = "        row_sum = warp_sum(row_sum)\n"
P = "            p_smem[warp, lane] = p\n"


@dataclass(frozen=True)
class Cheat:
    """A kernel that is not right and looks as if it were.

    how: how it cheats, a sentence. needs: what an evaluation must do to see it. edits: what it changes
    of stage 04's file; none of a table, which is made from an evaluation.
    """

    name: str
    how: str
    needs: str
    edits: tuple[tuple[str, str], ...] = ()


CHEATS = (
    Cheat(
        "answer left in memory",
        "It stores nothing. What the run before left in the output's memory is the answer.",
        "Fill the output with NaN before the launch.",
        ((STORE, STORE.replace("row < seq_q", "row < 0")),),
    ),
    Cheat(
        "one head",
        "It reads K of head 0, whatever the head: right for the one shape that has one head.",
        "Draw an input with more than one head.",
        ((LOAD_K, LOAD_K.replace("h]", "0]")),),
    ),
    Cheat(
        "last rows skipped",
        "A last block that is not full stores nothing.",
        "Draw an input whose rows are no multiple of 16.",
        ((STORE, STORE.replace("row < seq_q", "first_row + ROWS <= seq_q")),),
    ),
    Cheat(
        "last keys skipped",
        "A last tile of keys that is not full is left out, of both passes.",
        "Draw an input whose keys are no multiple of 32.",
        tuple((f"{EVERY}{load}", f"{FULL}{load}") for load in (LOAD_K, LOAD_V)),
    ),
    Cheat(
        "mask ignored",
        "Every row sees every key.",
        "Draw an input with the causal mask, and more than one row.",
        (("interval(row, seq_q, seq_k, causal)[1]", "seq_k"),),
    ),
    Cheat(
        "lower precision",
        "Scores keep 8 bits, as in bfloat16, where 11 were asked for.",
        "Compare with `allowed`, which follows from the arithmetic, and not with a tolerance that is round.",
        ((SCORE, f"{ROUND}{SCORE}"),),
    ),
    Cheat(
        "table of one evaluation",
        "It computes nothing. It has the outputs of one evaluation in a table, and gives them again.",
        "Draw every input from the `rng` that you are given: its seed is a secret.",
    ),
    Cheat(
        "unwritten shared memory",
        "P's tile is not written where there is no key. What an earlier kernel left there is multiplied by "
        "V's padding, which is zero: right, unless it is a NaN.",
        "Read what the launch reports, on an input with a row that sees fewer than 32 keys.",
        ((P, f"            if first_key + lane < visible:\n    {P}"),),
    ),
    Cheat(
        "race",
        "A barrier is gone. The numbers are right while all warps happen to run in step.",
        "Read what the launch reports: the numbers do not show it.",
        (SECOND,),
    ),
    Cheat(
        "endless loop",
        "It waits until a row's sum is positive. The sum of a row that sees no key never is.",
        "Draw an input with the causal mask and more rows than keys, whose first rows see no key.",
        ((SUM, f"{SUM}        while row_sum <= 0 and row < seq_q:\n    {SUM}"),),
    ),
)  # fmt: skip
"""In the order of the lesson."""


def candidate(cheat: Cheat) -> Candidate:
    """The kernel of a cheat that is one."""
    return of_edits(*cheat.edits)


def table(outputs: list[np.ndarray]) -> Candidate:
    """A candidate that gives these outputs, one per launch."""
    return Candidate(
        of_lines(region_lines()).text, tuple(outputs) or (np.zeros((1, 1, 1, 1), FLOAT16.dtype),)
    )


BACKWARDS = (
    "for c in range(0, q_smem.shape[1] - PAD, 4):",
    "for c in range(q_smem.shape[1] - PAD - 4, -1, -4):",
)
RIGHT: dict[str, Callable[[], Candidate]] = {
    "stage 04 itself": lambda: of_lines(region_lines()),
    "sums in another order": lambda: of_edits(BACKWARDS),
    "a barrier too many": lambda: of_lines(padded()),
}
"""Kernels that must live: name -> the candidate."""
