"""What a lesson is, as data: its exercise, its questions, its gates, its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Gate:
    """A structural counter of the learner's kernel that must stay below a bar; never a time.

    `value(launches)` takes the results of `simulate` at the gate's shape. `before` is what the stage below
    has, `right` what the solution has: the message of a failed gate says all three.
    """

    what: str  # "sectors a request of the stores to `scores`"
    value: Callable[[list[Any]], float]
    before: float
    right: float
    bar: float
    advice: str  # what to look at, one sentence, without the solution
    shape: str = "1x1x128x64"


@dataclass(frozen=True)
class Wanted:
    """A value that must hold where the region ends, compared with the solution's when an answer is wrong.

    `expression` is evaluated there in both kernels, `p` or `o_rmem[0]`; `meaning` says what it is.
    """

    expression: str
    meaning: str


@dataclass(frozen=True)
class Exercise:
    """The region of a stage's file that the learner writes.

    stage: number of the stage. file: the module of `flashcore_numba.stages` whose lines between
    `# <exercise>` and `# </exercise>` are removed; or a kernel or header in CUDA C, "stage08_wmma_full.cu",
    whose lines from the one that reads `first` to the next that reads `last` are. task: what to write, in a
    few lines; it becomes the comment in the starter. given: names the region may use, with their meaning.
    wanted: what must be right where the region ends, in order of dependency; empty where the region leaves
    nothing behind. hints: from the idea to almost the code. advice: for a kind of report of the CPU executor,
    or "compile", the sentence that says what to look at, in place of the general one; for "value" one where
    the output is wrong and everything in `wanted` is right.

    In CUDA C an expression of `wanted` is C++ and a number in every thread.
    """

    stage: int
    file: str
    task: str
    given: Mapping[str, str]
    wanted: tuple[Wanted, ...]
    hints: tuple[str, ...]
    gates: tuple[Gate, ...] = ()
    variant: str | None = None
    first: str = ""
    last: str = ""
    advice: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """A number (or one of `choices`) that the reader commits to before anything runs.

    `truth(evidence)` computes it from counts, the recorded or live measurement, or a closed form: see
    `flashcore_numba.course.evidence.Evidence`. `source` says which: counted, measured or computed. `why` is
    shown with the score. Numbers in `text` and `why` are written as in the lessons, with nothing between the
    two comments: "<!--us 03 warp_reduction--><!---->", see `weave`.
    """

    key: str  # a Python name: the keyword of `predict`
    text: str
    unit: str
    truth: Callable[[Any], float | str]
    source: str
    why: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The closing step: which resource limits this kernel. `feedback` has one sentence for each choice that
    names the counter or the measurement that speaks for or against it; its numbers as in a `Question`."""

    text: str
    right: str
    feedback: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """A wrong kernel that the reader must kill with an input of their own. `edits` as in
    `flashcore_numba.checks.mutation.Edit`."""

    name: str
    story: str  # what its author thought
    edits: tuple[Any, ...]
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Lesson:
    """One lesson. `file` is the name without suffix that `lessons/` and `notebooks/` share.

    figures: name -> one sentence; what `watch` can draw, the first one by default. before, after: labels of
    the recorded runs that `measure` sets side by side.
    """

    number: int
    file: str
    title: str
    idea: str
    exercise: Exercise
    questions: tuple[Question, ...]
    explanation: Explanation
    figures: Mapping[str, str]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    given: tuple[Given, ...] = ()
