"""Lesson 06: tiles in registers, and the loop orders that led there."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted
from flashcore_numba.stages.stage06_history import HISTORY


def _total(key: str) -> Callable[[list[Any]], float]:
    def value(launches: list[Any]) -> float:
        return sum(launch.totals()[key] for launch in launches)

    return value


def _slowest(evidence: Any) -> str:
    return max(HISTORY, key=lambda variant: evidence.us(f"06 {variant}"))


EXERCISE = Exercise(
    stage=6,
    file="stage06_fragments",
    task="""\
The scores of one thread: s_rmem[r, j] = Q[row + r] . K[col + COLS * j], not scaled, for its TM = 2 query
rows and its s_rmem.shape[1] keys, every COLS-th of the tile. Q and K are in shared memory, float32, D
components per row. s_rmem still holds the scores of the tile before: nothing of it may remain.

Load 4 components, 16 bytes, at a time, and each of them once: all that can be multiplied with them is
multiplied before the next 4 are loaded.""",
    given={
        "s_rmem": "[TM, keys a thread owns] float32, in registers: written here",
        "q_smem": "[query rows, D + PAD] float32, shared; this thread's rows are row and row + 1",
        "k_smem": "[keys of the tile, D + PAD] float32, shared; this thread's keys are col, col + COLS, ...",
        "row, col": "the thread's first query row and its column, 0 to COLS - 1",
        "D": "the head dimension, 64 or 128",
        "TM, COLS": "2 query rows per thread; 16 threads side by side along the keys",
        "STEP": "8: components per iteration of an outer loop over D, so that the compiler has two loads "
        "of each row under way",
        "load4": "load4(array, (i, c)): the four floats from array[i, c] on, as a tuple, in one 16-byte load",
        "fma4": "fma4(total, a, b): total + a . b for two tuples of four",
    },
    wanted=(
        Wanted("s_rmem[0, 0]", "the score of the thread's first row and first key, before scaling"),
        Wanted("s_rmem[1, 0]", "the score of its second row and first key"),
        Wanted("s_rmem[0, 1]", "the score of its first row and second key, COLS keys further"),
        Wanted("s_rmem[1, 1]", "the score of its second row and second key"),
        Wanted("s_rmem[1, 3]", "the score of its second row and fourth key"),
    ),
    hints=(
        "An outer product: two values of Q and four of K make eight products. So the loop over D is "
        "outside, and the loops over rows and keys inside, where what was loaded is at hand.",
        "First set all of s_rmem to 0. Then walk over c in steps of 4: load q0 and q1, the four components "
        "of the thread's two rows, and after them one key's four components at a time.",
        "The loop over j is inside the loop over c, after the loads of q0 and q1. Each iteration loads k "
        "once, for both rows: key col + COLS * j of the tile.",
        "for c in range(0, D, 4): q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c)); then for j "
        "in range(s_rmem.shape[1]): k = load4(k_smem, (col + COLS * j, c)); s_rmem[0, j] = fma4(s_rmem[0, "
        "j], q0, k), and the same for row 1 with q1.",
    ),
    gates=(
        Gate(
            what="load requests to shared memory",
            value=_total("shared_load_requests"),
            before=53_248,
            right=12_288,
            bar=13_000,
            advice="Each 16 bytes of Q and K should be loaded once per thread: look for a load in "
            "a loop on which its index does not depend.",
        ),
        Gate(
            what="shared-memory wavefronts of all loads",
            value=_total("shared_load_wavefronts"),
            before=90_112,
            right=24_576,
            bar=26_000,
            advice="Count wavefronts per request: two for each of these 16-byte loads. More means that lanes "
            "differ where the layout has them agree in pairs.",
        ),
        Gate(
            what="shared-memory wavefronts lost to bank conflicts of loads",
            value=_total("shared_load_conflicts"),
            before=0,
            right=0,
            bar=0,
            advice="Look at the stride from lane to lane in the row index of K, times the 68 floats of a "
            "padded row.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=_total("barriers"),
            before=1_024,
            right=192,
            bar=192,
            advice="The tiles are whole when the region begins, and nobody writes to them in it: nothing to "
            "wait for.",
        ),
    ),
)

LESSON = Lesson(
    number=6,
    file="06_register_tiles",
    title="Tiles in registers",
    idea="A thread owns a tile of S and of O in registers, so each value loaded is multiplied several times.",
    exercise=EXERCISE,
    questions=(
        Question(
            key="slowest",
            text="Three kernels between stage 05 and stage 06 do the same arithmetic. `q_outer`: rows "
            "outside, tiles inside, the state of one row in registers. `kv_outer_local`: tiles outside, the "
            "state of 8 rows in an indexed array of the thread. `kv_outer_shared`: the same state in shared "
            "memory. Which is the slowest at 1x8x512x64 on the H200?",
            unit="",
            truth=_slowest,
            source="measured",
            why="With the rows outside, every warp of the block waits while each tile is fetched again for "
            "the next row: eight times the loads of K and V and eight times the barriers.",
            choices=tuple(HISTORY),
        ),
        Question(
            key="local_bytes",
            text="`kv_outer_local` keeps m, l and 2 components of O for each of 8 rows in arrays that a "
            "loop indexes. How many bytes of local memory does a thread have?",
            unit="bytes",
            truth=lambda evidence: evidence.local("06 kv_outer_local"),
            source="measured",
            why="8 rows x (m, l and 2 components) x 4 bytes. Registers have no index, so the compiler put "
            "the arrays where an address can be computed: into local memory, which is global memory seen "
            "through L1.",
        ),
        Question(
            key="wavefronts",
            text="Stage 05 needs <!--count 5 shared_load_wavefronts--><!----> wavefronts for its loads from "
            "shared memory (one head, 128 rows, 128 keys, D = 64). A thread "
            "of stage 06 owns 2 rows x 4 keys, then 2 rows x 4 components, and "
            "every 16-byte load of a warp takes 2 wavefronts. How many wavefronts does stage 06 need?",
            unit="wavefronts",
            truth=lambda evidence: evidence.count(6, "shared_load_wavefronts"),
            source="counted",
            why="32 multiply-adds per thread cost 6 loads of 2 wavefronts each, in both products: 12 / 32 "
            "wavefronts per multiply-add of a warp, and there are 2 x 128 x 128 x 64 / 32 of those.",
        ),
        Question(
            key="microseconds",
            text="Stage 05 takes <!--us 05 online_softmax--><!----> µs at 1x8x512x64 on the H200; the CUDA "
            "cores could do all multiply-adds in <!--limit fp32--><!----> µs. How long does stage 06 take?",
            unit="µs",
            truth=lambda evidence: evidence.us("06 register_tiles"),
            source="measured",
            why='The wavefronts fall by a factor of <!--calc count(5, "shared_wavefronts") / count(6, '
            '"shared_wavefronts") | .1f--><!---->. The time falls less: 8 warps per SM hide '
            "less waiting than 32.",
        ),
    ),
    explanation=Explanation(
        text="What limits stage 06 at the mission shape, 1x8x512x64 on the H200?",
        right="operands",
        feedback={
            "operands": 'Yes: the wavefronts alone fill <!--calc 8 * count(6, "shared_wavefronts", '
            '"1x1x512x64") / 128 / 1980 / us("06 register_tiles") | .0%--><!----> of the measured time on an '
            "SM that delivers one per clock, and with one block of 8 warps per SM the waits for them are not "
            "all covered.",
            "arithmetic": "Not yet: the multiply-adds alone would take <!--limit fp32--><!----> µs of <!--us "
            "06 register_tiles--><!---->.",
            "registers": "No: a thread has <!--registers 06 register_tiles--><!----> registers of the 255 "
            "that it may use, and the compiler spilled <!--spilled 06 register_tiles--><!----> bytes.",
            "memory": "No: device memory needs <!--limit memory--><!----> µs, and K and V come from L2.",
            "exponentials": "No: the exponential units need <!--limit exp--><!----> µs for all pairs.",
        },
    ),
    figures={
        "banks": "One 16-byte request of a warp to shared memory: lanes that agree in pairs share a "
        "wavefront.",
        "tiles": "The walk of one block over K and V: 32 query rows stay while tiles of 64 keys pass.",
        "timeline": "The warps of one block from barrier to barrier: three per tile, and P goes where K was.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("05 online_softmax", "06 q_outer", "06 kv_outer_local", "06 kv_outer_shared"),
)
