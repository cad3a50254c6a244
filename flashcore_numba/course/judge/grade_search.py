"""The check of a search: is the operator one, do right kernels live, and do ten cheats die?"""

import ast
import difflib

import numpy as np

from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.answer_stage import functions
from flashcore_numba.course.judge.followed import Followed, follow
from flashcore_numba.course.judge.grade_functions import FunctionsGrading
from flashcore_numba.course.judge.grading import LONGEST, Step
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.search import bench, hunt
from flashcore_numba.course.search.cheats import CHEATS, RIGHT, Cheat, candidate, table
from flashcore_numba.course.spec import Lesson

CHILDREN = 32  # of an operator, that are looked at
FEWEST_DIFFERENT, FEWEST_IMPORTED = 8, 6  # of these
JUDGED_CHILDREN, MOST_CHILDREN = 6, 20  # by the answer too; until one lives and one dies
TRIES = 20  # of an operator that is random in its own way
MOST_LAUNCHES = 12  # of one candidate
KIND = "search"
ROUNDING = (
    "Float32 sums round, and float16 results too: nothing equals float64, and no one tolerance fits every "
    "input."
)


class SearchGrading(FunctionsGrading):
    """An answer of lesson 24: its two functions are run on candidates."""

    kind = KIND

    def __init__(self, lesson: Lesson, answer: Answer, seed: int, step: Step) -> None:
        super().__init__(lesson, answer, seed, step)
        self.total = 2 + len(RIGHT) + len(CHEATS)
        self.launches = 0

    def run(self) -> CheckResult:
        found = functions(self.answer)
        self.mutate, self.evaluate = found.mutate, found.evaluate
        self._operator()
        for name, make in RIGHT.items():
            self._lives(name, make())
        for cheat in CHEATS:
            self._dies(cheat)
        self._children()
        dead, alive = len(CHEATS), len(RIGHT)
        what = (
            f"All {dead} cheats die and {alive} right kernels live; of the children some live and some die."
        )
        note = f"An evaluation of stage 04 takes {self.launches} launches."
        return CheckResult(self.lesson.key, "passed", what, notes=(note,))

    # The operator

    def _mutated(self, lines: list[str], *numbers: int, values: bool = False) -> Followed:
        found = follow(self.mutate, lines, self.rng(*numbers), values=values)
        if found.error is not None:
            self.raised(found.error, "mutate")
        return found

    def _operator(self) -> None:
        self.begin("`mutate`: seeded, different, applicable")
        start, children = bench.region_lines(), list[tuple[str, ...]]()
        for n in range(CHILDREN):
            given = list(start)
            found = self._mutated(given, n)
            child = found.value
            if given != start:
                self._changed(start, n)
            if not isinstance(child, list) or not all(isinstance(line, str) for line in child):
                what = f"`mutate` gives {type(child).__name__}; a list of lines is wanted."
                self.fail("no lines", what, found.last)
            if child == start:
                what = f"Child {n + 1} of {CHILDREN} has the lines of its parent, every one in its place."
                self.fail(
                    "no edit", what, found.last, "An edit that may change nothing wastes an evaluation."
                )
            self._repeated(start, child, n)
            children.append(tuple(child))
        different = len(set(children))
        if different < FEWEST_DIFFERENT:
            what = f"Of {CHILDREN} children {different} differ; {FEWEST_DIFFERENT} are wanted."
            look = "Let `rng` choose the line, and what is done with it."
            self.fail("few edits", what, found.last, look)
        whole = [child for child in dict.fromkeys(children) if _parses(list(child))]
        if (count := sum(child in whole for child in children)) < FEWEST_IMPORTED:
            what = f"Of {CHILDREN} children {count} are Python; {FEWEST_IMPORTED} are wanted."
            look = "Keep the indentation of a line, and do not part a `for` from what is under it."
            self.fail("does not apply", what, found.last, look)
        self.children, self.returned = whole[:MOST_CHILDREN], found.last
        self.end()

    def _changed(self, start: list[str], n: int) -> None:
        """Raise the result on an operator that edits the list of its caller."""
        found = self._mutated(list(start), n, values=True)
        name = self.mutate.__code__.co_varnames[0]
        lines = (found.lines[i - 1] for i, s in enumerate(found.states) if i and s.get(name, start) != start)
        what = "After the call the parent's own list has changed, and its next child has two edits."
        self.fail("parent changed", what, next(lines, found.last), "Edit a copy: `list(lines)`.")

    def _repeated(self, start: list[str], child: list[str], n: int) -> None:
        """Raise the result where the same seed gives another child."""
        if self._mutated(list(start), n).value == child:
            return
        one = two = self._mutated(list(start), n, values=True)
        for _ in range(TRIES):
            if two.value != one.value:
                break
            two = self._mutated(list(start), n, values=True)
        pairs = zip(one.states, two.states, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b and i), None)
        line = one.last if first is None or first > len(one.lines) else one.lines[first - 1]
        what = "Called twice with generators of one seed, `mutate` gives two different children."
        self.fail("seed not used", what, line, "Ask `rng` for every random number.")

    # The evaluator

    def _evaluated(self, of: bench.Candidate, *numbers: int) -> tuple[Followed, bench.Log]:
        """An evaluation of a candidate, of which nothing but its verdict is wanted."""
        with bench.watched() as log:
            found = follow(self.evaluate, of, self.rng(*numbers))
        if found.error is not None:
            self.raised(found.error, "evaluate")
        if not isinstance(found.value, str):
            what = f'`evaluate` gives {found.value!r}; a sentence is wanted, or "".'[:LONGEST]
            self.fail("no sentence", what, found.last, 'A candidate that may live gets "".')
        return found, log

    def _lives(self, name: str, right: bench.Candidate, number: int = 0) -> None:
        self.begin(f"{name} lives")
        found, log = self._evaluated(right, 1, number)
        if not log.launches:
            what = f"`evaluate` launches no candidate: of {name} it says {found.value!r} unseen."
            self.fail("never launched", what, found.last)
        if found.value:
            what = f"Refused is {name}, though it is right: {_shortened(found.value)!r}. {_record(log)}"
            self.fail("right kernel refused", what, found.last, ROUNDING)
        if len(log.launches) > MOST_LAUNCHES:
            what = f"An evaluation takes {len(log.launches)} launches; {MOST_LAUNCHES} are allowed."
            look = "A search evaluates thousands of candidates: let one input show several things."
            self.fail("too many launches", what, log.launches[-1].line, look)
        self.launches = self.launches or len(log.launches)
        self.end()

    def _dies(self, cheat: Cheat) -> None:
        self.begin(f"{cheat.name} dies")
        number = CHEATS.index(cheat)
        if cheat.edits:
            if cheat is CHEATS[0]:  # its parent was evaluated just before, on the same inputs
                self._evaluated(RIGHT["stage 04 itself"](), 2, number)
            found, log = self._evaluated(candidate(cheat), 2, number)
        else:
            _, before = self._evaluated(RIGHT["stage 04 itself"](), 2, number)
            found, log = self._evaluated(table([each.after for each in before.launches]), 3, number)
        if not found.value:
            self._cheated(cheat, found, log)
        self.end()

    def _cheated(self, cheat: Cheat, found: Followed, log: bench.Log) -> None:
        """Raise the result on a cheat that lives, with what the evaluation did and did not."""
        what = f'The cheat "{cheat.name}" lives. {cheat.how}'
        if not cheat.edits and log.drawn and not any(each.shows for each in log.launches):
            self.fail("inputs known", what, log.drawn[-1][1], cheat.needs)
        self._survived(what, cheat.needs, found, log)

    def _survived(self, what: str, needs: str, found: Followed, log: bench.Log) -> None:
        for each in log.launches:
            if each.reports:
                told = f"{what} The launch on {each.inputs.label} reported: {_shortened(each.reports[0])}"
                self.fail(
                    "report not read", told, each.line, "What `launch` returns is empty for a right kernel."
                )
        for each in log.launches:
            if each.wrong:
                self._accepted(what, each, found)
        for each in log.launches:
            if bench.within(each.before, each.inputs):
                taken = log.taken[-1][1] if log.taken else each.line
                self.fail("answer in memory", what, taken, needs)
        seen = "; ".join(dict.fromkeys(each.inputs.label for each in log.launches)) or "nothing"
        line = log.drawn[-1][1] if log.drawn else found.last
        self.fail("no input shows it", f"{what} You launched it on: {seen}.", line, needs)

    def _accepted(self, what: str, each: bench.Launch, found: Followed) -> None:
        """Raise the result on an output that is wrong and was let through."""
        numbers = np.isfinite(each.after)
        error = np.abs(each.after - bench.exact(each.inputs))
        line = self._test_after(each, found)
        on = f"On {each.inputs.label}"
        if not numbers.all() and (error <= bench.allowed(each.inputs))[numbers].all():
            told = f"{what} {on} {int((~numbers).sum())} of {numbers.size} elements of the output are NaN."
            look = "Ask whether every error is <= what is allowed: of a NaN that is false."
            self.fail("NaN accepted", told, line, look)
        share = (error / bench.allowed(each.inputs))[numbers].max(initial=0)
        told = f"{what} {on} an element is off by {share:.3g} times what `allowed` gives."
        self.fail("wrong output accepted", told, line, "Compare every element with `allowed(x)`.")

    def _test_after(self, each: bench.Launch, found: Followed) -> int | None:
        """The condition that was asked after a launch, else the line that was executed last."""
        tests = {
            n.lineno for n in ast.walk(ast.parse(self.answer.text)) if isinstance(n, ast.If | ast.Assert)
        }
        asked = [line for line in found.lines if line in tests and line > each.line]
        return asked[-1] if asked else found.last

    # Both

    def _children(self) -> None:
        self.begin("children of `mutate`: the right ones live, the others die")
        lived = died = 0
        start = bench.region_lines()
        for n, lines in enumerate(self.children):
            child = bench.of_lines(list(lines))
            if n >= JUDGED_CHILDREN and lived and died:
                break
            truth = hunt.evaluate(child, self.rng(4, n))
            lived, died = lived + (not truth), died + bool(truth)
            if n >= JUDGED_CHILDREN:
                continue
            found, log = self._evaluated(child, 5, n)
            edit = _edit(start, list(lines))
            if found.value and not truth:
                what = f"Refused is a right child of your `mutate` ({edit}): {_shortened(found.value)!r}."
                self.fail("right kernel refused", f"{what} {_record(log)}", found.last, ROUNDING)
            if truth and not found.value:
                what = f"A child of your `mutate` that is wrong lives ({edit}): {_shortened(truth)}"
                self._survived(what, "Compare your inputs with those of the cheats.", found, log)
        for count, cause in ((lived, "nothing lives"), (died, "nothing dies")):
            if not count:
                look = "One kind of edit should change nothing that matters: which line can be there twice?"
                look = (
                    look
                    if cause == "nothing lives"
                    else "Which line is needed? Let one kind of edit take lines out."
                )
                what = f"Of {len(self.children)} children that are Python {lived} live and {died} die."
                self.fail(cause, what, self.returned, look)
        self.end()


def _parses(lines: list[str]) -> bool:
    try:
        ast.parse(bench.of_lines(lines).text)
    except (SyntaxError, ValueError):
        return False
    return True


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]} ..."


def _record(log: bench.Log) -> str:
    """What the launches of a right kernel gave."""
    errors = [
        np.abs(each.after - bench.exact(each.inputs)) / bench.allowed(each.inputs) for each in log.launches
    ]
    worst = max((float(np.nanmax(error)) for error in errors), default=0.0)
    return f"Its launches reported nothing, and no element was off by more than {worst:.0%} of `allowed`."


def _edit(start: list[str], child: list[str]) -> str:
    """What an operator did: the lines that are gone, and those that came."""
    lines = [line for line in difflib.ndiff(start, child) if line[:2] in ("- ", "+ ")]
    words = {"- ": "without", "+ ": "with"}
    shown = "; ".join(f"{words[line[:2]]} `{line[2:].split('#')[0].strip()}`" for line in lines[:4])
    return shown + ("; ..." if len(lines) > 4 else "")
