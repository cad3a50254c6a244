"""Lesson 11: roles for warps, one barrier per step, and what the barriers had not been guilty of."""

from typing import Any

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

EXERCISE = Exercise(
    stage=11,
    file="stage11_warp_specialized.cu",
    first="if (loads) load_for(step + AHEAD);",
    last="__syncthreads();  // so are all parts, S and P; and what this step has read may be overwritten",
    task="""\
One step of the pipeline, for all 16 warps. In step i the multiplying warps compute S of tile i and add
P V of tile i - 2 to O; the softmax warps turn S of tile i - 1 into P; the load warps ask for K and V of a
later step. There are tiles + 2 steps: in the first and the last ones some of these tiles do not exist, and
then that part of the step is left out. (load_for looks after itself.)
In one step nobody may read what another warp writes in the same step. At its end everything that the step
has produced must be visible to all warps, and everything that it has read may be overwritten.""",
    given={
        "step": "int: 0, 1, ..., tiles + 1",
        "tiles": "int: how many tiles the block sees; can be 0",
        "loads, multiplies, exponentiates": "bool: the roles of this warp",
        "load_for": "load_for(i): asks for K of tile i and V of tile i - 2, as one group of copies, into "
        "slot i % SLOTS; before the first step 0 to AHEAD - 1 have been asked for",
        "multiply_qk_of": "multiply_qk_of(tile, slot): S of a tile, with K in that slot",
        "accumulate_pv_of": "accumulate_pv_of(tile, slot): O += P V of a tile, with V in that slot",
        "softmax_of": "softmax_of(tile): S of a tile becomes P, and m, l and the factor for O",
        "AHEAD, SLOTS": "2 and 3: how many steps ahead is loaded, and how many slots K and V have each",
        "ptx": "ptx::cp_async_wait<N>(): waits until at most N of this thread's newest groups are unfinished",
    },
    wanted=(
        Wanted("m[0]", "the running max of a softmax lane's first row"),
        Wanted("l[0]", "its share of the running sum"),
    ),
    hints=(
        "S and P exist twice, so that step i can write S of tile i while the softmax warps read S of tile "
        "i - 1. Write down for each role which tile it works on in step i, and for which i that tile exists.",
        "K of tile i and V of tile i - 2 were loaded together: which slot are both in, in step i?",
        "The groups are one per step. At the end of step i the newest is that of step i + AHEAD, and the "
        "next step needs that of step i + 1. How many may stay unfinished?",
        "load_for(step + AHEAD); then `multiplies && step >= 2`: accumulate_pv_of(step - 2, step % SLOTS); "
        "`multiplies && step < tiles`: multiply_qk_of(step, step % SLOTS); `exponentiates && step >= 1 && "
        "step <= tiles`: softmax_of(step - 1); cp_async_wait<AHEAD - 1>; one __syncthreads.",
    ),
    gates=(
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=324,
            right=384,
            bar=390,
            advice="One barrier per step: the roles work on different tiles, so that nothing inside a step "
            "has to be ordered.",
        ),
        Gate(
            what="groups of copies waited for at once, counted once per thread",
            value=total("wait_at_once"),
            before=1_152,
            right=512,
            bar=520,
            advice="The group that a step has asked for is needed two steps later: look at how many groups "
            "your wait lets stay unfinished.",
        ),
    ),
    advice={
        "race": "Two roles meet in one step: one writes what another reads. Which tile does each of them "
        "work on in this step, and in which buffer or slot? A copy is followed by its wait and then by a "
        "barrier.",
        "uninitialised read": "A role works on a tile that does not exist or is not there yet, or looks for "
        "it in the wrong slot: look at the conditions for the first and the last steps, then at the slots.",
        "missing wait": "A tile is used before its copies have arrived, or its slot is filled while they are "
        "still under way. What was asked for in step i is needed in step i + AHEAD: how many groups may be "
        "unfinished at the end of a step?",
    },
)


def _barriers(evidence: Any, phase: str) -> float:
    """What one warp of a block passes at 256 keys."""
    shape = "1x1x256x64"
    blocks = evidence.grid(11, shape, phase)
    return evidence.barriers(11, shape=shape, variant=phase) / blocks / evidence.warps(11, shape, phase)


PHASES = ("0", "1", "2", "3", "4", "5")


def _best(evidence: Any) -> str:
    """The phase that gains the most over the one before."""
    times = [evidence.us("11 warp_specialized" + (f" {p}" if p != "5" else "")) for p in PHASES]
    return max(PHASES[1:], key=lambda p: times[int(p) - 1] / times[int(p)])


QUESTIONS = (
    Question(
        key="before",
        text="A block at 1x8x256x64 walks over 4 tiles of 64 keys. In phase 0 each tile has four barriers, "
        "and one more comes before the output is written. How many does a warp pass?",
        unit="barriers",
        truth=lambda evidence: _barriers(evidence, "0"),
        source="counted",
        why="4 x 4 + 1.",
    ),
    Question(
        key="after",
        text="In phase 1 each step has one barrier; a tile is multiplied in step i, exponentiated in step i "
        "+ 1 and multiplied with V in step i + 2. One barrier comes before the first step, one before the "
        "output. How many does a warp pass now, at the same 256 keys?",
        unit="barriers",
        truth=lambda evidence: _barriers(evidence, "1"),
        source="counted",
        why="4 tiles take 6 steps, since the last one entered has two more to go; with the two around them "
        "8.",
    ),
    Question(
        key="phase1",
        text="The plan expected phase 1 to be three times as fast as phase 0. Phase 0 takes "
        "<!--us 11 warp_specialized 0--><!----> µs on the H200. How many times as fast is phase 1?",
        unit="times",
        truth=lambda evidence: evidence.ratio("11 warp_specialized 0", "11 warp_specialized 1"),
        source="measured",
        why="It is slower: 21 barriers of 33 went (8 tiles), and the loads stayed, with more instructions "
        "each.",
    ),
    Question(
        key="best",
        text="Which phase gains the most over the one before it? 1: one barrier per step. 2: only four warps "
        "load. 3: they load 16 bytes at a time instead of 2. 4: by cp.async, two steps ahead. 5: Q stays in "
        "registers.",
        unit="",
        truth=_best,
        source="measured",
        why="Phase 3: an eighth of the requests for the same bytes.",
        choices=PHASES[1:],
    ),
)

LESSON = Lesson(
    number=11,
    file="11_warp_specialized",
    title="Warps with roles, and a ledger of barriers",
    idea="Multiplying, softmax and loading get warps of their own, on three tiles at once: one barrier per "
    "step.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What set the time of phases 0 to 2?",
        right="loads",
        feedback={
            "barriers": "No: phase 1 has 12 where phase 0 has 33, and takes <!--us 11 warp_specialized "
            "1--><!----> µs instead of <!--us 11 warp_specialized 0--><!---->. That warps wait at barriers "
            "says only that somebody else is late.",
            "loads": 'Yes: <!--calc profiled("11 warp_specialized 2", "global_load_requests") | '
            ",.0f--><!----> "
            "requests of 64 bytes each, with an address, a test and a store for every 2 bytes of a thread. "
            "Phase 3 moves the same sectors with <!--calc "
            'profiled("11 warp_specialized 3", "global_load_requests") | ,.0f--><!----> and takes '
            '<!--calc us("11 warp_specialized 3") / us("11 warp_specialized 2") | .0%--><!----> of the time.',
            "tensor": "No: the products would take <!--limit tensor--><!----> µs, and phases 0 to 3 make the "
            "same ones.",
            "exponentials": "No: <!--limit exp--><!----> µs if all SMs compute them, in every phase the "
            "same.",
            "memory": 'No: <!--calc profiled("11 warp_specialized 2", "dram_read_bytes") / 1e6 | '
            ".1f--><!----> "
            "MB from device memory; the rest comes from the L2 cache, whose throughput is at <!--calc "
            'profiled("11 warp_specialized 2", "l2_pct") | .0f--><!----> % of its peak.',
        },
    ),
    figures={
        "steps": "Which role works on which tile in which step, and the barriers between, for phase 0 and 5.",
        "barriers": "The barriers by source line, beside those of stage 10.",
        "memory": "The memory map to scale: what exists twice, and what three times.",
        "wavefronts": "Wavefronts by source line, those lost to bank conflicts hatched.",
    },
    before=("10 pipeline",),
    after=tuple(f"11 warp_specialized {phase}" for phase in PHASES[:-1]),
)
