"""Lesson 23: a sequence that several GPUs hold, and what orders one rank's copy and another's keys."""

from typing import Any

from flashcore_numba.course.ranks.shares import KERNEL, LONG, needed
from flashcore_numba.course.spec import Explanation, Lesson, Question, RanksExercise

EXERCISE = RanksExercise(
    stage=15,
    file="pulling",
    functions={
        "pieces": ("number", "ranks"),
        "seen": ("number", "owner"),
        "pull": ("rank", "plan", "buffers", "attention"),
    },
    task="""\
Three functions. N ranks hold a sequence of 2 N pieces under a causal mask. Each runs `pull` once per call.

def pieces(number, ranks): the two pieces that a rank holds, the earlier one first.
1. Every piece belongs to one rank, and all ranks have the same work. A piece sees all before it, half of
   itself. Rank `number` has piece `number`, and one more.

def seen(number, owner): which of our two pieces of rows see which pieces of keys of another rank, `owner`?
2. Two tuples of 0 (the earlier) and 1: ((1,), (0, 1)) says that our later one sees both of the owner's.

def pull(rank, plan, buffers, attention): queue what this rank does. Nothing is done yet when it returns.
3. Step 0 has our own keys. While step i computes, the keys of step i + 1 come into a buffer. There are two.
4. Our keys have been queued on MAIN. Who may copy them from when on, and until when must they stay?
5. Two barriers are enough. A later call writes new keys on MAIN, and uses the same two buffers.""",
    given={
        "plan": "the steps of this rank: plan[i].owner is whose keys it needs, plan[i].keys which rows of "
        "the owner's chunk, a slice. There are N, and plan[0] is our own chunk",
        "buffers": "two arrays, each with room for a chunk: its rows come first, so buffer[plan[i].keys] has "
        "the rows of step i",
        "attention.step(i, keys)": "queue step i on MAIN: our rows see `keys`, the rows of its slice. It "
        "merges with the steps before",
        "rank.number, rank.count": "who we are, and N",
        "rank.of(owner)": "the chunk of keys of any rank, our own too, in its own memory",
        "rank.copy(stream, to, source)": "queue a copy by the copy engine; the n-th is for step n",
        "rank.record(stream)": "an event: all that has been queued on the stream so far",
        "rank.wait(stream, event)": "what is queued on the stream from now on begins after the event",
        "rank.barrier(stream, name)": "no rank's stream passes it before those of all ranks are there",
        "MAIN, SIDE": "the two streams of a rank: each does its work in order, neither knows of the other",
    },
    wanted=(),
    hints=(
        "Pair a cheap piece with a dear one: how much do the first and the last see together? For `seen`, "
        "compare each of our pieces with each of the other rank's. For `pull`, write down for each array who "
        "writes it and who reads it.",
        "With N = 4, rank 1 holds 1 and 6, and rank 2 holds 2 and 5. A later rank's pieces are both between "
        "our two; an earlier rank's are on either side of them. In `pull`, copies go on SIDE, kernels on "
        "MAIN. A stream learns what the other has done only by rank.wait(one, rank.record(other)).",
        "Before the first copy: SIDE waits for MAIN, then a barrier. In the loop: queue the copy for step "
        "i + 1, record it, then queue step i, then let MAIN wait for what was recorded. The copy for step "
        "i + 1 goes where step i - 1 reads. At the end: a barrier, for which MAIN waits.",
        "return number, 2 * ranks - 1 - number. return ((1,), (0, 1)) if owner > number else ((0, 1), (0,)). "
        'rank.wait(SIDE, rank.record(MAIN)); rank.barrier(SIDE, "start"); left = []; for i, step in '
        "enumerate(plan): held = rank.of(rank.number) if i == 0 else buffers[i % 2]; where a step follows: "
        "if i > 1: rank.wait(SIDE, left[i - 1]); copy rank.of(plan[i + 1].owner)[plan[i + 1].keys] into "
        "buffers[(i + 1) % 2][plan[i + 1].keys]; arrived = rank.record(SIDE). attention.step(i, "
        "held[step.keys]); left.append(rank.record(MAIN)); where a step follows: rank.wait(MAIN, arrived). "
        'After the loop: rank.barrier(SIDE, "end"); rank.wait(MAIN, rank.record(SIDE)).',
    ),
)


def _rate(evidence: Any) -> float:
    """TFLOP/s of the recorded kernel."""
    return evidence.flops(LONG) / evidence.us(KERNEL, LONG) / 1e6


QUESTIONS = (
    Question(
        key="last",
        text="Four ranks hold a sequence in order, a quarter each, under a causal mask. How many times as "
        "much work does the last rank have as the first?",
        unit="times",
        truth=lambda evidence: evidence.across("last"),
        source="computed",
        why="The first quarter sees half of itself. The last sees three quarters, and half of itself: 3.5 "
        "over 0.5.",
    ),
    Question(
        key="wrong",
        text="The barrier at the start is left out. Four ranks run in "
        '<!--calc across("orders")--><!----> orders of their work. In how many of them is an output wrong?',
        unit="orders",
        truth=lambda evidence: evidence.across("start_wrong"),
        source="counted",
        why="Where copies end late, or a drawn order is kind, the owner has written its keys in time. The "
        'clocks name the missing barrier in all <!--calc across("start_named")--><!---->.',
    ),
    Question(
        key="ranks",
        text="32 query heads on 8 K/V heads, no mask. A ring moves K and V, Ulysses moves heads of Q, K, V "
        "and of the output. On how many ranks would both move as much?",
        unit="ranks",
        truth=lambda evidence: 32 / 8 + 1.0,
        source="computed",
        why="Per row that a rank holds, the ring moves N - 1 times 2 x 8 heads, and Ulysses (N - 1) / N "
        "times 2 x 32 + 2 x 8. They are equal at N = H / H_kv + 1. With more ranks Ulysses moves less, as "
        "long as N divides the K/V heads.",
    ),
    Question(
        key="gbs",
        text="A rank computes at <!--calc flops('1x16x16384x128') / us('15 ping_pong', '1x16x16384x128') / "
        "1e6 | .0f--><!----> TFLOP/s and holds 8192 rows, 4 query heads per K/V head, no mask. How many GB/s "
        "must its copies reach to hide behind attention?",
        unit="GB/s",
        truth=lambda evidence: needed(8192, 4, _rate(evidence), False),
        source="computed",
        why="A step has 4 H S S D operations and 4 H_kv S D bytes: S H / H_kv operations per byte, here "
        "32,768. Heads and D cancel.",
    ),
)

LESSON = Lesson(
    number=23,
    file="23_several_gpus",
    title="A sequence that several GPUs hold",
    idea="Each rank keeps its rows and gets the others' keys one chunk at a time; parts merge by their LSE, "
    "zigzag makes the work equal, and events and barriers order what two ranks do to one memory.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="Copies of keys hide behind attention on 4 ranks with 8,192 rows each. What can end that?",
        right="rows",
        feedback={
            "ranks": "No: with more ranks of as many rows there are more steps, and each has the same work "
            "and the same copy.",
            "dimension": "No: D is in the operations of a step and in the bytes of a chunk. It cancels, and "
            "so does the number of heads.",
            "rows": "Yes: a step's work grows with the square of the rows of a rank, its copy with the rows. "
            "A quarter of the rows needs four times the bandwidth: <!--calc flops('1x16x16384x128') / "
            "us('15 ping_pong', '1x16x16384x128') / 1e3 / 4 / 2048 | .0f--><!----> GB/s with groups of 4.",
            "barriers": "No: a call has <!--calc across('barriers')--><!---->, whatever the number of ranks. "
            "They cost a fixed time, which counts only where the whole call is short.",
        },
    ),
    figures={
        "side_by_side": "Your `pull` in a model: what each rank's two streams do, and whose keys it has.",
        "shares": "Who computes which part of the mask, by your `pieces`.",
        "moved": "Bytes that a rank receives in a call, by the number of ranks.",
        "needed": "The bandwidth at which copies hide, by rows per rank.",
    },
    before=("12 mma_sync",),
    picture="in_order",
)
