"""Lesson 24: a machine proposes kernels, and an evaluator refuses those that only look right."""

from flashcore_numba.course.spec import Explanation, Lesson, Question, SearchExercise

EXERCISE = SearchExercise(
    stage=4,
    file="hunt",
    functions={"mutate": ("lines", "rng"), "evaluate": ("candidate", "rng")},
    task="""\
Two functions. Their region of stage 04 is what a search changes: the loop over the tiles of K.

def mutate(lines, rng): another version of these lines, as a new list.
1. `rng` alone decides which edit is made: the same seed gives the same child.
2. `lines` stays as it is, and the child differs from it.
3. Many children are Python. Some are right, some are not.

def evaluate(candidate, rng): "" for a candidate that may live, else a sentence that says why it is refused.
1. Draw inputs from `rng` that show what a kernel may get away with: which shapes, which mask?
2. Give each launch an output in which no answer can be, and read what the launch reports.
3. Compare every element with the exact one. At most 12 launches per candidate.

Ten cheats must die. Right kernels must live: they round, so they do not equal float64.""",
    given={
        "draw(rng, heads, rows, keys, causal=False)": "random inputs x: x.q is [1, heads, rows, 64] float16, "
        "x.k and x.v are [1, heads, keys, 64]; up to 4 heads, 128 rows and 128 keys. A causal mask is "
        "aligned at the last row and the last key",
        "empty(x)": "memory for an output, [1, heads, rows, 64] float16, as an allocator gives it",
        "launch(candidate, x, out)": "run a candidate, which writes to `out`; returns the simulator's "
        "reports, an empty tuple where there are none",
        "exact(x)": "the exact output in float64",
        "allowed(x)": "how far each element may be from it",
        "x.label": "the shape of x in words",
        "np": "NumPy",
    },
    wanted=(),
    hints=(
        "For `mutate`, three kinds of edit are enough: a line twice, a line less, two neighbours exchanged. "
        "For `evaluate`, go through what a kernel must handle, and ask of each whether one of your inputs "
        "has it: heads, rows that do not fill a block of 16, keys that do not fill a tile of 32, the mask, "
        "rows that see no key.",
        "`int(rng.integers(n))` chooses one of n. `child = list(lines)` is a copy. An output of NaN, "
        "`np.full_like(x.q, np.nan)`, cannot hold an answer.",
        "A comparison with NaN is false. `(error <= allowed(x)).all()` refuses it; `(error > "
        "allowed(x)).any()` does not. The causal mask with more rows than keys leaves the first rows without "
        "a key.",
        "for heads, rows, keys, causal in (1, 16, 32, False), (1, 16, 38, False), (2, 41, 38, True): "
        "x = draw(rng, heads, rows, keys, causal); out = an output of NaN; reports = launch(candidate, x, "
        "out); if reports: return reports[0]; if not (np.abs(out - exact(x)) <= allowed(x)).all(): return "
        'f"off on {x.label}". After the loop: return "".',
    ),
)

QUESTIONS = (
    Question(
        key="race",
        text="The second barrier of the loop is taken out, and the kernel runs on 10 inputs, all warps in "
        "step. In how many of the runs is an output wrong?",
        unit="runs",
        truth=lambda evidence: float(evidence.searched("race_wrong")),
        source="counted",
        why="In step no warp is late, so nobody overwrites what another still reads. All 10 runs report the "
        "race.",
    ),
    Question(
        key="cheats",
        text="An evaluator draws one fresh input of one head, 16 rows and 32 keys, fills the output with NaN "
        "and compares all elements. It reads no report. How many of the ten cheats live?",
        unit="cheats",
        truth=lambda evidence: float(evidence.searched("cheats_alive")),
        source="counted",
        why="Five need another shape or the mask, one needs a report, and one needs both. NaN in the output, "
        "a fresh input and a derived bound stop the other three.",
    ),
    Question(
        key="barriers",
        text="A search begins with a kernel that has one barrier too many: its 16 warps come to a barrier "
        '<!--calc searched("start")--><!----> times in all. The fewest win. If that evaluator decides '
        "which children live, how many barriers does the best child come to?",
        unit="barriers",
        truth=lambda evidence: float(evidence.searched("numbers")),
        source="counted",
        why="All barriers of the region go, the two that close a hazard and the one that does not: "
        '<!--calc searched("everything")--><!----> would be right.',
    ),
    Question(
        key="wrong",
        text='By their numbers on one shape <!--calc searched("accepted")--><!----> of <!--calc '
        'searched("children")--><!----> children live, each a line twice, a line less, or two neighbours '
        "exchanged. How many of these are wrong?",
        unit="children",
        truth=lambda evidence: float(evidence.searched("accepted_wrong")),
        source="counted",
        why="A child without a barrier that closes a hazard has right numbers as long as no warp is late. It "
        "has fewer barriers too, so it becomes a parent, and all its children are wrong.",
    ),
)

LESSON = Lesson(
    number=24,
    file="24_search",
    title="Let a machine search, and catch it cheating",
    idea="A search finds what its evaluator lets through, so the evaluator is the work: inputs, memory and "
    "reports that leave a cheat no place, and bounds that leave a right kernel alone.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="A search over the lines of one kernel has been running for a week. What limits what it finds?",
        right="evaluator",
        feedback={
            "seed": "No: another seed gives other children of the same kind. Those that are wrong and live "
            "are as many.",
            "children": 'Not first: of <!--calc searched("accepted")--><!----> children that lived by their '
            'numbers <!--calc searched("accepted_wrong")--><!----> were wrong. More children are more of '
            "those.",
            "evaluator": "Yes: whatever it lets through and prefers is what is found. With numbers alone the "
            'same search ended at <!--calc searched("numbers")--><!----> barriers, and <!--calc '
            'searched("everything")--><!----> is the least that is right.',
            "time": 'No: all <!--calc searched("children")--><!----> children of this search took <!--calc '
            'searched("launches")--><!----> launches on the simulator, and no GPU.',
        },
    ),
    figures={
        "kills": "Which launch of your evaluator shows which cheat, by a report or by a number.",
        "lineages": "Your operator in two searches: by numbers alone, and with your evaluator.",
    },
    after=("05 online_softmax", "12 mma_sync"),
    picture="funnel",
)
