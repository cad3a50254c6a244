"""The check of one answer, whatever its language: cases, properties, counters."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.checks import runner
from flashcore_numba.checks.bounds import judge, reference
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Failed, Inputs, Trial
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import divergence
from flashcore_numba.course.judge.verdict import CheckResult, GateResult, Item
from flashcore_numba.course.spec import Gate, Lesson
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage

FIRST = "small 1x2x64x64, seed 0"  # whole tiles, no mask: a mistake shows in its simplest form
# Inputs of the whole check that find nothing here which their neighbours do not find too.
LEFT_OUT = (
    r"seed (0|12345)$|^(mission|large|multi_batch) |^small .*42$|^ragged (31|33)$|^one row, 127|about 100$"
    r"|^keys permuted|^a constant added|hull of V|^a factor moves"
)
# A thread of stages 01 and 02 walks alone over every key, and its simulation takes three times as long.
LEFT_OUT_OF_SLOW = LEFT_OUT + r"|^ragged 127$|fall from|constant rows|identical keys|dominates"
SLOW = (1, 2)
OF_ONE_HEAD = 4  # of the simple inputs that tell what an answer gets right
MAX_TURNS = 10_000
LONGEST = 2_000  # characters of a message
Step = Callable[[int, int, str], None]


def at(result: CheckResult, answer: Answer, line: int) -> CheckResult:
    """The result with a line of the answer named, when it is one of the answer's."""
    where = f"In {answer.place(line)}: `{answer.source(line)}`."
    number = answer.number(line) if answer.inside(line) or not answer.is_cell else None
    return replace(result, where=where, line=number, line_text=answer.source(line))


class Grading(ABC):
    """One answer under check. What depends on its language is left to a class for each."""

    def __init__(self, lesson: Lesson, answer: Answer, stage: Stage, seed: int, step: Step) -> None:
        self.lesson, self.answer, self.stage, self.seed, self.step = lesson, answer, stage, seed, step
        self.variant = lesson.exercise.variant
        self.trial = Trial(stage, self.variant)
        names = [name for name in runner.names(stage) if not re.search(self.left_out(), name)]
        self.names = [FIRST, *names]
        self.items: list[Item] = []
        self.gates: list[GateResult] = []
        self.total = len(self.names) + len(lesson.exercise.gates) + 1

    def left_out(self) -> str:
        return LEFT_OUT_OF_SLOW if self.lesson.exercise.stage in SLOW else LEFT_OUT

    def result(self) -> CheckResult:
        failure = self._run_cases() or self._run_gates() or self._compile()
        margins = [item.margin for item in self.items if item.margin is not None and np.isfinite(item.margin)]
        done: dict[str, Any] = {"items": tuple(self.items), "gates": tuple(self.gates)}
        done["margin"] = min(margins, default=None)
        if failure is not None:
            return replace(failure, **done)
        inputs = f"Right on all {len(self.items)} checks"
        gates = f", and {len(self.gates)} of {len(self.gates)} gates are met" if self.gates else ""
        what = f"{inputs}{gates}."
        return CheckResult(self.lesson.number, "passed", what, notes=self._notes(), **done)

    def _step(self, label: str) -> None:
        self.step(len(self.items) + len(self.gates), self.total, label)

    def _failed(self, what: str, where: str = "", look: str = "", **more: Any) -> CheckResult:
        return CheckResult(self.lesson.number, "failed", what, where, look, **more)

    # What depends on the language

    @abstractmethod
    def _explained(self, found: runner.CaseResult) -> CheckResult:
        """The three parts of the message on one failure."""

    @abstractmethod
    def _message(self, found: runner.CaseResult) -> str:
        """The message of a failure with lines counted as the author of the answer counts, and no folder."""

    @abstractmethod
    def _pointed(self, result: CheckResult, found: divergence.Divergence) -> CheckResult:
        """The result with the place where the answer's values leave the solution's."""

    @abstractmethod
    def _leaving(self, *statements: str) -> int | None:
        """The first line of the answer where threads leave: by these statements, by default any of return,
        break and continue.
        """

    @abstractmethod
    def _any_input(self) -> Inputs:
        """What a property's failure is explained with."""

    @abstractmethod
    def _float64(self) -> str:
        """A word on the answer's lines that compute in float64."""

    @abstractmethod
    def _compile(self) -> CheckResult | None:
        """The result of an answer that no GPU's compiler takes; None where it does, or none is installed."""

    @abstractmethod
    def _notes(self) -> tuple[str, ...]:
        """What is worth saying of an answer that passed."""

    # Cases and properties

    def _run_cases(self) -> CheckResult | None:
        for name in self.names:
            self._step(name)
            report = runner.check_stage(self.stage, self.variant, seed=self.seed, names=[name])
            for found in report.results:
                if len(found.message) > LONGEST:  # an answer's own exception says what it likes
                    found = replace(found, message=found.message[:LONGEST] + " ...")
                margin = found.margin if found.margin is not None and np.isfinite(found.margin) else None
                text = self._message(found)
                self.items.append(Item(found.name, found.passed, found.kind, text, found.seconds, margin))
                if not found.passed:
                    return self._explained(found)
        return None

    def _returned(self, result: CheckResult, line: int) -> CheckResult:
        """The result on a `return` that keeps what stands behind the region from running."""
        place, source = self.answer.place(line), self.answer.source(line)
        if self.lesson.exercise.stage == 0:
            where = f"In {place}, `{source}` ends the function: the rows that are left are never computed."
            look = "Let the lines that a row does not need stand under an `if`."
        else:
            where = (
                f"Threads leave at {place}, `{source}`: what stands after the region does not run for them."
            )
            look = "It writes the output, also that of a row without keys."
        return replace(at(result, self.answer, line), where=where, look=look)

    def _case(self, name: str) -> str:
        return f'the input "{re.sub(r", seed 0$", "", name)}"'

    def _wrong_value(self, found: runner.CaseResult) -> CheckResult:
        message, cause = self._message(found), found.cause
        in_python = self.lesson.exercise.stage == 0  # where no thread has a row of its own
        if found.kind == "unwritten" and in_python:
            assert isinstance(found.raised, Failed)
            message = found.raised.what
        message = message.removesuffix(cause).rstrip(". ")
        what = f"On {self._case(found.name)}: {message}."
        if found.kind == "unwritten" and in_python and divergence.last_set(self.answer, "out") is None:
            return self._failed(what, "Your answer never stores to `out[row]`.", kind=found.kind)
        what = what.replace("?.", "?")
        right, wrong = self._which_are_right()
        if right and wrong:
            what += f" Right: {'; '.join(right)}. Wrong: {'; '.join(wrong)}."
        where = self._first_difference(found, next(iter(wrong.values()), None))
        if cause.startswith("Wrong in every row"):
            cause = ""
        elif cause and not cause.endswith((".", "?")):
            cause += "."
        look = " ".join(filter(None, (where.look if where else "", cause)))
        look = " ".join(filter(None, (look, self._float64())))
        if found.kind == "unwritten":
            if (leaving := self._leaving("return")) is not None:
                return self._returned(self._failed(what, kind=found.kind), leaving)
            look = f"{look} A query row that sees no key has an output too: zeros.".strip()
        if where is None:
            look = " ".join(filter(None, (self.lesson.exercise.advice.get("value"), look)))
            return self._failed(what, look=look, kind=found.kind)
        return self._pointed(self._failed(what, look=look, kind=found.kind), where)

    def _which_are_right(self) -> tuple[dict[str, Inputs], dict[str, Inputs]]:
        """Simple inputs that the answer gets right, and those that it gets wrong."""
        rng = np.random.default_rng(self.seed)
        keys = 32 if self.lesson.exercise.stage in SLOW else 64
        inputs = {
            "whole tiles, no mask": normal(rng, 1, 1, 64, keys, 64),
            f"{keys + 6} keys, so the last tile is not full": normal(rng, 1, 1, 64, keys + 6, 64),
            "33 rows, so the last block is not full": normal(rng, 1, 1, 33, keys, 64),
            "the causal mask": normal(rng, 1, 1, keys, keys, 64, causal=True),
            "several heads and batches": normal(rng, 2, 2, 32, keys, 64),
            "D = 128": normal(rng, 1, 1, 32, keys, 128),
        }
        right: dict[str, Inputs] = {}
        wrong: dict[str, Inputs] = {}
        for name, x in inputs.items():
            if len(wrong) == OF_ONE_HEAD and not right:  # then more heads or components tell nothing
                break
            try:
                passed = judge(self.trial(x).out, reference(x.q, x.k, x.v, x.causal, x.scale)).passed
            except (Failed, Exception):
                passed = False
            (right if passed else wrong)[name] = x
        return right, wrong

    def _first_difference(
        self, found: runner.CaseResult, simple: Inputs | None
    ) -> divergence.Divergence | None:
        inputs = simple or runner.inputs(self.stage, found.name, self.seed) or self._any_input()
        try:
            return divergence.find(self.lesson, self.answer, inputs)
        except Exception:  # it explains a failure that is certain; without it the message is shorter
            return None

    # Counters

    def _run_gates(self) -> CheckResult | None:
        launches: dict[str, list] = {}
        for gate in self.lesson.exercise.gates:
            self._step(f"counting {gate.what}")
            if gate.shape not in launches:
                launches[gate.shape] = self._launches(gate)
                if not launches[gate.shape]:
                    return self._failed("No kernel is launched.", look="Leave `launch` as it is.")
            value = float(gate.value(launches[gate.shape]))
            passed = value <= gate.bar
            text = "" if passed else self._gate_text(gate, value)
            self.gates.append(
                GateResult(gate.what, value, gate.before, gate.right, gate.bar, passed, gate.shape, text)
            )
        missed = [gate for gate in self.gates if not gate.passed]
        if not missed:
            return None
        advice = next(g.advice for g in self.lesson.exercise.gates if g.what == missed[0].what)
        look = " ".join(filter(None, (advice, self._float64())))
        return self._failed(missed[0].message, look=look, kind="gate")

    def _launches(self, gate: Gate) -> list:
        problem = Problem(*parse(gate.shape).inputs(np.random.default_rng(self.seed)))
        executor = Simulator(max_turns=MAX_TURNS)
        self.stage.run(problem, executor, self.variant)
        return executor.launches

    @staticmethod
    def _gate_text(gate: Gate, value: float) -> str:
        is_, before, right, bar = map(_amount, (value, gate.before, gate.right, gate.bar))
        return (
            f"The answers are right, but a counter is too high: {gate.what} at {gate.shape} is {is_}; "
            f"the stage before had {before}, the solution has {right}, the bar is {bar}."
        )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
