"""What a lesson is, as data: its exercise, its questions, its gates, its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashcore_numba.stages.edited import Edit
from flashcore_numba.stages.files import Place

Key = int | str
"""The number of a lesson, or the name of a warm-up."""


def called(key: Key) -> str:
    """`Lesson 7`, or `Warm-up`: how headings name a lesson."""
    return f"Lesson {key}" if isinstance(key, int) else key.capitalize()


@dataclass(frozen=True)
class Gate:
    """A structural counter of the learner's kernel that must stay below a bar; never a time.

    `value(launches)` takes the results of `simulate` at the gate's shape. `before` is what the stage below
    has, None where there is none, and `right` what the solution has: the message of a failed gate says them
    all. `cause` is the key of `judge.causes.CAUSES` that a failed gate states. A matrix of a warm-up has the
    rows of all heads of `shape` below each other.
    """

    what: str  # "sectors per request of the stores to `scores`"
    value: Callable[[list[Any]], float]
    before: float | None
    right: float
    bar: float
    advice: str  # what to look at, one sentence, without the solution
    shape: str = "1x1x128x64"
    cause: str = ""


@dataclass(frozen=True)
class Wanted:
    """A value that must hold where the region ends, compared with the solution's when an answer is wrong.

    `expression` is evaluated there in both kernels, `p` or `o_rmem[0]`; `meaning` says what it is.
    """

    expression: str
    meaning: str


@dataclass(frozen=True)
class State:
    """What is right at one visit of the region, an array [..., lanes] for each expression.

    end, start: where the region ends and begins, by expression. places: b, h, row and what else says where a
    lane is. inputs: q, k, v, causal and scale of the run.
    """

    end: Mapping[str, Any]
    start: Mapping[str, Any]
    places: Mapping[str, Any]
    inputs: Any


@dataclass(frozen=True)
class Slip:
    """A well-known mistake, as the value that it gives to a variable.

    cause: a key of `judge.causes.CAUSES`. of: the expression of `wanted` that it makes wrong first.
    value(state) -> array [..., lanes]: what the expression is then, at the first visit where it is wrong.
    """

    cause: str
    of: str
    value: Callable[[State], Any]


@dataclass(frozen=True)
class Exercise:
    """The region of a stage's file that the learner writes.

    stage: number of the stage, or what the names of its files begin with. file: the module of
    `flashcore_numba.stages` whose lines between `# <exercise>` and `# </exercise>` are removed; or a kernel
    or header in CUDA C, "stage08_wmma_full.cu", whose lines from the one that reads `first` to the next that
    reads `last` are. task: what to write, in a few lines; it becomes the comment in the starter. given: names
    the region may use, with their meaning. wanted: what must be right where the region ends, in order of
    dependency; empty where the region leaves nothing behind. hints: from the idea to almost the code. advice:
    for a kind of report of the CPU executor, or "compile", the sentence that says what to look at, in place
    of the general one; for "value" one where the output is wrong and everything in `wanted` is right. slips:
    mistakes that are recognised by the first wrong value; probed: what their formulas read beyond `wanted`,
    expressions of the solution, those with "start:" in front where the region begins. under_way: registers
    that products of wgmma still write where the region begins.

    In CUDA C an expression of `wanted` is C++ and a number in every thread.
    """

    stage: Place
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
    slips: tuple[Slip, ...] = ()
    under_way: tuple[str, ...] = ()
    probed: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What the region is a part of, in sentences."""
        return "kernel"

    @property
    def model(self) -> str:
        """What is there without an answer, in sentences."""
        return "the stage"


@dataclass(frozen=True)
class FunctionsExercise(Exercise):
    """Some functions in place of lines of a kernel, judged by calling them.

    functions: name -> what it is called with.
    """

    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return "the lesson's own"


@dataclass(frozen=True)
class SearchExercise(FunctionsExercise):
    """`mutate`, which proposes kernels, and `evaluate`, which refuses them: they are run on candidates.

    stage: what the search begins from. file: the module of `course.search` that has the functions.
    """

    @property
    def subject(self) -> str:
        return "search"


@dataclass(frozen=True)
class RanksExercise(FunctionsExercise):
    """What each of several ranks does: its functions are run on ranks in one process.

    stage: the kernel of a step, whose recorded times the lesson shows. file: the module of `course.ranks`
    that has the functions.
    """

    @property
    def subject(self) -> str:
        return "program"


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
    names the counter or the measurement that speaks for or against it; its numbers as in a `Question`.
    """

    text: str
    right: str
    feedback: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """A wrong kernel that the reader must kill with an input of their own."""

    name: str
    story: str  # what its author thought
    edits: tuple[Edit, ...]
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Lesson:
    """One lesson, or the warm-up of one. `file` is the name without suffix that `lessons/` and `notebooks/`
    share.

    name: what a warm-up is called, on the command line too; "" for a lesson, which is called by its number.
    figures: name -> one sentence; what `watch` can draw, the first one by default. picture: the figure to see
    before the code. before, after: labels of
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
    name: str = ""
    picture: str = "ownership"

    @property
    def key(self) -> Key:
        """What it is known by, and no other lesson: its number, or the name of a warm-up."""
        return self.name or self.number

    @property
    def label(self) -> str:
        """`07 Half on the tensor core`, or `07 warm-up: A tile transposed`: its row in a table."""
        return f"{self.number:02d} {f'{self.name}: ' if self.name else ''}{self.title}"

    @property
    def variable(self) -> str:
        """`course`, or `warm_up`: what the notebook calls its session."""
        return self.name.replace("-", "_") or "course"

    @property
    def called(self) -> str:
        """`Lesson 7`, or `Warm-up`: how headings name it."""
        return called(self.key)
