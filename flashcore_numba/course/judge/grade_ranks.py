"""The check of what several ranks do: a fair split, the right keys, and an order for every two accesses."""

from typing import Any

from flashcore_numba.branches.ring.machine import Hazard, Stuck, orders
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.answer_stage import ring
from flashcore_numba.course.judge.followed import Followed, follow
from flashcore_numba.course.judge.grade_functions import FunctionsGrading
from flashcore_numba.course.judge.grading import Step
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.ranks import model, together
from flashcore_numba.course.ranks.shares import work
from flashcore_numba.course.spec import Lesson

SPLIT = (1, 2, 3, 4, 5, 8)  # ranks that pieces are shared out to
RUN = (2, 3, 4)  # ranks that run; four steps are the fewest in which a buffer comes back within a call
MODEL = 4
BARRIERS = 2
ORDER, VALUE, GATE, HANG = "order", "value", "gate", "hang"
HAZARDS = {kind: kind for kind in ("start barrier", "end barrier", "arrival", "reuse")}
LOOK = {
    "start barrier": "What must a stream have waited for, and all ranks have met for, before it reads what "
    "others write?",
    "end barrier": "The next call writes its keys on the main stream as soon as that is free.",
    "arrival": "Which event says that the copy has ended, and which stream has to wait for it?",
    "reuse": "Step i - 1 read the buffer that the copy for step i + 1 writes to.",
    "no order": "Streams know of each other by events, and ranks by barriers.",
}


class RanksGrading(FunctionsGrading):
    """An answer of lesson 23: its functions are called, `pull` on several ranks in several orders."""

    kind = VALUE

    def __init__(self, lesson: Lesson, answer: Answer, seed: int, step: Step) -> None:
        super().__init__(lesson, answer, seed, step)
        self.total = 4 + len(RUN)

    def run(self) -> CheckResult:
        self.functions = ring(self.answer)
        self._pieces()
        self._seen()
        for ranks in RUN:
            self._in_every_order(ranks)
        self._barriers()
        self._hidden()
        most = max(RUN)
        what = (
            f"Every two accesses are ordered, on {', '.join(map(str, RUN[:-1]))} and {most} ranks, and every "
            "row has seen its keys."
        )
        note = f"Attention of {most} ranks, float32: the largest error is {1 / self.margin:.0%} of the bound."
        return CheckResult(self.lesson.key, "passed", what, notes=(note,))

    def _called(self, name: str, *arguments: Any) -> Followed:
        found = follow(getattr(self.functions, name), *arguments)
        if found.error is not None:
            self.raised(found.error, name)
        return found

    # The split

    def _pieces(self) -> None:
        self.begin("`pieces`: each piece once, the same work for all")
        for ranks in SPLIT:
            held = []
            for number in range(ranks):
                found = self._called("pieces", number, ranks)
                held.append(found.value)
                if not _numbers(found.value, 2 * ranks) or len(found.value) != 2:
                    what = (
                        f"`pieces({number}, {ranks})` gives {found.value!r}; two of 0 to {2 * ranks - 1} are "
                    )
                    self.fail("no pieces", f"{what}wanted.", found.last)
            every = sorted(piece for some in held for piece in some)
            if every != list(range(2 * ranks)):
                lost = [piece for piece in range(2 * ranks) if piece not in every]
                what = f"Of {ranks} ranks nobody holds {_listed('piece', lost)}, and others are held twice."
                self.fail("pieces not shared out", what, found.last)
            does = work(held)
            if len(set(does)) > 1:
                most, least = does.index(max(does)), does.index(min(does))
                what = (
                    f"Of {ranks} ranks, rank {most} with pieces {held[most]} computes {max(does):g} pairs of "
                    f"pieces, and rank {least} with {held[least]} computes {min(does):g}."
                )
                look = "A piece sees all pieces before it, and half of itself."
                self.fail("work unequal", what, found.last, look, kind=GATE)
            for number, some in enumerate(held):
                if some[0] != number:
                    what = f"`pieces({number}, {ranks})` gives {some!r}; piece {number} is to be the first."
                    self.fail("other pieces", what, found.last)
        self.end()

    def _seen(self) -> None:
        self.begin("`seen`: all keys before a row, and none after it")
        for ranks in (2, 3, 4):
            for number, owner in ((a, b) for a in range(ranks) for b in range(ranks) if a != b):
                found = self._called("seen", number, owner)
                parts = found.value
                if not isinstance(parts, tuple | list) or len(parts) != 2:
                    parts = ((), ())
                if not all(_numbers(part, 2) for part in parts):
                    what = f"`seen({number}, {owner})` gives {found.value!r}; ((1,), (0, 1)) is one of the "
                    self.fail("no parts", f"{what}values that it can have.", found.last)
                rows, keys = parts
                own, theirs = (together.OWN.pieces(each, ranks) for each in (number, owner))
                for row in range(2):
                    for key in range(2):
                        shown, right = row in rows and key in keys, own[row] > theirs[key]
                        if shown != right:
                            what = (
                                f"Of {ranks} ranks, rank {number} has piece {own[row]} and rank {owner} has "
                                f"piece {theirs[key]}: rows of the one {'must' if right else 'must not'} see "
                                f"keys of the other, and by `seen({number}, {owner})` they "
                                f"{'do' if shown else 'do not'}."
                            )
                            cause = "keys lost" if right else "keys of the future"
                            self.fail(cause, what, found.last, "Which piece comes first in the sequence?")
        self.end()

    # The program

    def _in_every_order(self, ranks: int) -> None:
        self.begin(f"`pull`: {ranks} ranks, in {len(orders(ranks, self.rng(0)))} orders")
        self.margin = float("inf")
        for order in orders(ranks, self.rng(1)):
            done = together.Done()
            try:
                together.run(self.functions.pull, ranks, order, self.rng(2), done=done)
            except Hazard as hazard:
                self._steps(done, ranks)
                self._hazard(hazard, done)
            except Stuck as stuck:
                self._steps(done, ranks)
                self._stuck(stuck, done)
            except Exception as error:  # of the answer
                self.raised(error, "pull")
            self._steps(done, ranks)
            self._keys(done, ranks)
            self.margin = min(self.margin, done.margin)
            if done.margin < 1:
                self.fail("other keys", "The output is off by more than float32 loses.", None)
        self.end()

    def _steps(self, done: together.Done, ranks: int) -> None:
        for number, asked in enumerate(done.asked[0]):
            found = [each for each in asked if each.what == "attention"]
            count = [sum(each.step == i for each in found) for i in range(ranks)]
            if count != [1] * ranks:
                step = next(i for i, times in enumerate(count) if times != 1)
                what = f"Of {ranks} ranks, rank {number} computes step {step} {count[step]} times."
                line = found[-1].line if found else None
                self.fail("step missing", what, line, "The plan has as many steps as there are ranks.")

    def _keys(self, done: together.Done, ranks: int) -> None:
        for (call, number, i), used in sorted(done.used.items(), key=lambda item: item[0][::-1]):
            owner = together.plan_of(ranks, number)[i].owner
            if used == (owner, call):
                continue
            whose = "memory without keys" if used is None else f"keys of rank {used[0]}"
            if used is not None and used[1] != call:
                whose += " of the call before"
            what = f"Of {ranks} ranks, rank {number} sees {whose} at step {i}; those of rank {owner} are due."
            asked = done.asked[call][number]
            at = _line(asked, "attention", i)
            in_own = any(each.about for each in asked if each.what == "attention" and each.step == i)
            copied = _line(asked, "copy", i)
            self.fail("other keys", what, at if in_own or copied is None else copied)

    def _hazard(self, hazard: Hazard, done: together.Done) -> None:
        cause = HAZARDS.get(hazard.kind, "no order")
        other = next((rank for rank in hazard.ranks if rank != hazard.owner), hazard.owner)
        asked, step = done.asked[0][other], max(hazard.steps)
        if cause == "end barrier":
            line = asked[-1].line
        elif cause == "arrival":
            line = _line(asked, "attention", step)
        else:
            line = _line(asked, "copy", step)
        message = str(hazard)
        self.fail(cause, f"{message[0].upper()}{message[1:]}.", line, LOOK[cause], kind=ORDER)

    def _stuck(self, stuck: Stuck, done: together.Done) -> None:
        message = str(stuck)
        every = [[each for each in some if each.what == "barrier"] for some in done.asked[0]]
        names = [[each.about for each in some] for some in every]
        alone = [each for some in every for each in some if any(each.about not in other for other in names)]
        line = next((each.line for each in alone or every[0]), None)
        look = "Every rank has to come to each barrier, and an event to be recorded before it is waited for."
        self.fail("stuck", f"{message[0].upper()}{message[1:]}.", line, look, kind=HANG)

    # What it costs

    def _model_run(self) -> together.Done:
        order = orders(MODEL, self.rng(1))[0]
        return together.run(self.functions.pull, MODEL, order, self.rng(2))

    def _barriers(self) -> None:
        self.begin("two barriers in a call")
        barriers = [each for each in self._model_run().asked[0][0] if each.what == "barrier"]
        if len(barriers) > BARRIERS:
            what = (
                f"Of {MODEL} ranks each comes to {len(barriers)} barriers in a call; {BARRIERS} are enough."
            )
            look = "What has been written before the first one stays as it is until the last one."
            self.fail("too many barriers", what, barriers[BARRIERS - 1].line, look, kind=GATE)
        self.end()

    def _hidden(self) -> None:
        self.begin("copies run while a step computes")
        found = model.timeline(self.functions.pull, MODEL)
        took, right = model.end(found), MODEL * model.STEP
        if took > right:
            copies = ((some, each) for some in found for each in some if each.what == "copy")
            late = next((each.step for some, each in copies if _idle_before(some, each.step) > 0), 1)
            what = (
                f"In a model in which attention of a step takes {model.STEP:g} units of time and the copy of "
                f"a piece {model.PIECE:g}, {MODEL} ranks are done after {took:g}; {right:g} would do."
            )
            line = _line(self._model_run().asked[0][0], "copy", late)
            look = "Where is the copy for the next step queued, and what does it wait for?"
            self.fail("copies not hidden", what, line, look, kind=GATE)
        self.end()


def _idle_before(some: list[model.Span], step: int) -> float:
    """How long a rank's main stream has nothing to do before a step."""
    kernels = {each.step: each for each in some if each.what == "attention"}
    return kernels[step].start - kernels[step - 1].stop if {step, step - 1} <= set(kernels) else 0.0


def _numbers(value: Any, stop: int) -> bool:
    """Is it some numbers from 0 up to `stop`, no two of them equal?"""
    if not isinstance(value, tuple | list) or not value or len(set(map(str, value))) < len(value):
        return False
    return all(isinstance(each, int) and 0 <= each < stop for each in value)


def _listed(word: str, numbers: list[int]) -> str:
    return f"{word} {numbers[0]}" if len(numbers) == 1 else f"{word}s {', '.join(map(str, numbers))}"


def _line(asked: list[together.Asked], what: str, step: int) -> int | None:
    return next((each.line for each in asked if each.what == what and each.step == step), None)
