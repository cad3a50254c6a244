"""The check of one answer, whatever its language: cases, properties, counters."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.checks import runner
from flashcore_numba.checks.cases import normal, serves
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.mistakes import recognise
from flashcore_numba.checks.trial import Answer as Outputs
from flashcore_numba.checks.trial import Failed, Inputs, Trial, family, place
from flashcore_numba.core.element import ACCEPTED, FLOAT16
from flashcore_numba.core.operation import Case
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.exercise import Answer, region
from flashcore_numba.course.judge import divergence, repair
from flashcore_numba.course.judge.answer_stage import loaded
from flashcore_numba.course.judge.causes import stated
from flashcore_numba.course.judge.layers import CHECKS, COMPILE, CUBIN, GATES, Layers
from flashcore_numba.course.judge.layers import FIRST as FIRST_CASE
from flashcore_numba.course.judge.verdict import CheckResult, GateResult, Item
from flashcore_numba.course.spec import Gate, Lesson
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage

FIRST = "small 1x2x64x64, seed 0"  # whole tiles, no mask: a mistake shows in its simplest form
# Inputs of the whole check that find nothing here which their neighbours do not find too; and other element
# types, of which no lesson speaks.
LEFT_OUT = (
    r"seed (0|12345)$|^(mission|large|multi_batch) |^small .*42$|^ragged (31|33)$|^one row, 127|about 100$"
    r"|^keys permuted|^a constant added|hull of V|^a factor moves"
    rf"|, ({'|'.join(each.name for each in ACCEPTED if each is not FLOAT16)})$"
)
# A thread of stages 01 and 02 walks alone over every key, and its simulation takes three times as long.
LEFT_OUT_OF_SLOW = (
    LEFT_OUT + r"|^ragged 127$|fall from|constant rows|identical keys|dominates|negative scale$"
)
SLOW = (1, 2)
# A gradient reads each row of a case, and of a lesson's kernel a warp has one: what its neighbours find too.
LEFT_OUT_OF_GRADIENTS = (
    LEFT_OUT
    + r"|^every (schedule|size of GPU)|^the same bits|^(causal )?(ragged 127|260 rows|300 rows|140 rows)"
    r"|fall from|constant rows|identical keys|dominates|^127 rows|linear in dO|<Q, dQ>|^no gradient reaches"
)
LATE = r"^every size of GPU"  # after the counters, which say more of a mistake that both find
# The most rows, keys and heads of sizes that are drawn: a run takes about as long as one that is counted.
DRAWN_CUDA, DRAWN_PYTHON, DRAWN_SLOW = (1024, 4096, 12), (256, 512, 12), (256, 96, 8)
OF_ONE_HEAD = 4  # of the simple inputs that tell what an answer gets right
RAGGED = "1x1x70x64"
MAX_TURNS = 10_000
LONGEST = 2_000  # characters of a message
Step = Callable[[int, int, str], None]


def at(result: CheckResult, answer: Answer, line: int) -> CheckResult:
    """The result with a line of the answer named, when it is one of the answer's."""
    return replace(pointing(result, answer, line), where=f"In {answer.place(line)}: `{answer.source(line)}`.")


def pointing(result: CheckResult, answer: Answer, line: int) -> CheckResult:
    """The result with another line, when it is one of the answer's, and the words that it has."""
    number = answer.number(line) if answer.inside(line) or not answer.is_cell else None
    return replace(result, line=number, line_text=answer.source(line))


def dearest(found: Sequence[tuple[int | None, int | None, int | None, tuple[str, ...]]]) -> dict[str, Any]:
    """`CheckResult.cubin` of some kernels: registers, spilled bytes, shared bytes and warnings of each."""
    registers, spilled, shared = (max(each[n] or 0 for each in found) for n in range(3))
    warnings = [warning for each in found for warning in each[3]]
    return {
        "registers": registers, "spill_bytes": spilled, "shared_bytes": shared, "warnings": warnings
    }  # fmt: skip


class Grading(ABC):
    """One answer under check. What depends on its language is left to a class for each."""

    def __init__(
        self, lesson: Lesson, answer: Answer, stage: Stage, seed: int, step: Step, layers: Layers
    ) -> None:
        # No lesson speaks of other features, and none of more than the first two head dimensions.
        stage = replace(stage, features=(), head_dims=stage.head_dims[:2])
        self.lesson, self.answer, self.stage, self.seed, self.step = lesson, answer, stage, seed, step
        self.variant = lesson.exercise.variant
        self.trial = Trial(stage, self.variant)
        names = [name for name in runner.names(stage) if not re.search(self.left_out(), name)]
        names = [FIRST, *names] if FIRST in runner.names(stage) else names
        self.names = sorted(names, key=lambda name: bool(re.search(LATE, name)))
        self.items: list[Item] = []
        self.gates: list[GateResult] = []
        self.layers = layers
        self.cubin: dict[str, Any] | None = None
        self.total = len(self.names) + len(lesson.exercise.gates) + 1

    def left_out(self) -> str:
        if self.stage.operation is BACKWARD:
            return LEFT_OUT_OF_GRADIENTS
        return LEFT_OUT_OF_SLOW if self.lesson.exercise.stage in SLOW else LEFT_OUT

    def result(self) -> CheckResult:
        failure = self._run_layers()
        margins = [item.margin for item in self.items if item.margin is not None and np.isfinite(item.margin)]
        done: dict[str, Any] = {"items": tuple(self.items), "gates": tuple(self.gates)}
        done |= {"margin": min(margins, default=None), "cubin": self.cubin}
        if failure is not None:
            return replace(failure, notes=(*failure.notes, *filter(None, [self._float64()])), **done)
        inputs = f"Right on all {len(self.items)} checks"
        gates = f", and {len(self.gates)} of {len(self.gates)} gates are met" if self.gates else ""
        what = f"{inputs}{gates}."
        return CheckResult(self.lesson.key, "passed", what, notes=self._notes(), **done)

    def _run_layers(self) -> CheckResult | None:
        late = [name for name in self.names if re.search(LATE, name)]
        others = self.names[: len(self.names) - len(late)]
        for layer, run in (
            (COMPILE, self._load),
            (FIRST_CASE, partial(self._run_cases, others[:1])),
            (CHECKS, partial(self._run_cases, others[1:])),
            (GATES, self._run_gates),
            (CHECKS, partial(self._run_cases, late)),
            (CHECKS, self._run_drawn),
            (CUBIN, self._compile),
        ):
            if self.layers.asked(layer):
                self.layers.enter(layer)
                if (failure := run()) is not None:
                    return failure
        return None

    def _load(self) -> CheckResult | None:
        """What the host's compiler refuses; None where it takes the answer."""
        return None

    def _step(self, label: str) -> None:
        self.step(len(self.items) + len(self.gates), self.total, label)

    def _failed(self, what: str, where: str = "", look: str = "", **more: Any) -> CheckResult:
        return CheckResult(self.lesson.key, "failed", what, where, look, **more)

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
    def _float64(self) -> str:
        """A word on the answer's lines that compute in float64."""

    @abstractmethod
    def _compile(self) -> CheckResult | None:
        """The result of an answer that no GPU's compiler takes; None where it does, or none is installed."""

    @abstractmethod
    def _notes(self) -> tuple[str, ...]:
        """What is worth saying of an answer that passed."""

    def _any_input(self) -> Any:
        """What a property's failure is explained with: a causal mask, and a last block that is not full."""
        return operation(self.stage).draw(parse(RAGGED), True, np.random.default_rng(self.seed))

    # Cases and properties

    def _run_cases(self, names: Sequence[str]) -> CheckResult | None:
        for name in names:
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

    def _run_drawn(self) -> CheckResult | None:
        """One input whose sizes are not known before: those of the cases are the same in every check."""
        if self.stage.operation is not None:
            return None
        x = self._drawn_sizes(np.random.default_rng([self.seed, len(self.names)]))
        self._step("sizes drawn for this check")
        found = runner.check_item(self.trial, Case("sizes drawn for this check", lambda _: x), self.seed)
        if found.passed:
            return None
        what = f"Right on all inputs so far, and not on sizes that were drawn for this check, {x.label}."
        return self._failed(f"{what} {self._message(found)}", kind=found.kind)

    def _drawn_sizes(self, rng: np.random.Generator) -> Inputs:
        """More keys, heads or rows than in the cases: one of the three, as a run must not take long."""
        slow = self.lesson.exercise.stage in SLOW
        most_rows, most_keys, most_heads = (
            DRAWN_CUDA if self.answer.is_cuda else DRAWN_SLOW if slow else DRAWN_PYTHON
        )
        batch, heads, rows, keys = 1, 1, int(rng.integers(1, most_rows // 16 + 1)), int(rng.integers(1, 97))
        which = rng.integers(3)
        if which == 0:
            batch, heads = int(rng.integers(1, 4)), int(rng.integers(1, most_heads + 1))
        elif which == 1:
            rows = int(rng.integers(1, most_rows + 1))
        else:
            keys = int(2 ** rng.uniform(6, np.log2(most_keys)))
        causal = bool(rng.integers(2)) and serves(self.stage, causal=True)
        head_dim = int(rng.choice(self.stage.head_dims))
        return normal(rng, batch, heads, rows, keys, head_dim, causal=causal)

    def _returned(self, result: CheckResult, line: int) -> CheckResult:
        """The result on a `return` that keeps the lines after the region from running."""
        if self.lesson.exercise.stage == 0:
            look = "Put the lines that a row does not need under an `if`."
        else:
            look = "What comes after the region writes the output, also that of a row without keys."
        words = {"place": self.answer.place(line), "source": self.answer.code(line)}
        return stated(replace(at(result, self.answer, line), where="", look=look), "leaves", words)

    def _under_condition(self, result: CheckResult) -> CheckResult:
        """The result on an `out[row]` that is stored only where an `if` without `else` lets it."""
        line = divergence.condition_of(self.answer, "out")
        if line is None:
            return result
        words = {"name": "out", "place": self.answer.place(line), "source": self.answer.code(line)}
        return stated(replace(at(result, self.answer, line), where=""), "stored under a condition", words)

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
            return stated(self._failed(what, kind=found.kind), "never stored", {"name": "out"})
        what = what.replace("?.", "?")
        runs = self._runs(found) if self.stage.operation is None else []
        right, wrong = self._which_are_right(runs) if self.stage.operation is None else ({}, {})
        if right and wrong:
            what += f" Right: {'; '.join(right)}. Wrong: {'; '.join(wrong)}."
        where = self._first_difference(found)
        known = recognise(runs) if self.stage.operation is None else ""
        look = where.look if where else ""
        if found.kind == "unwritten":
            may_return = re.search(r"\breturn\b", region(self.lesson.exercise).text)
            if not may_return and (leaving := self._leaving("return")) is not None:
                return self._returned(self._failed(what, kind=found.kind), leaving)
            if in_python:  # the first difference is about elements that were written
                look = ""
            if self.stage.operation is None:
                look = f"{look} A query row that sees no key has an output too: zeros.".strip()
            if in_python:
                return self._under_condition(self._failed(what, look=look, kind=found.kind))
        if where is None:
            look = " ".join(filter(None, (self.lesson.exercise.advice.get("value"), look)))
            result = self._failed(what, look=look, kind=found.kind)
        else:
            result = self._pointed(self._failed(what, look=look, kind=found.kind), where)
        if known:
            return stated(result, known)
        return stated(result, where.cause, where.words) if where and where.cause else result

    def _runs(self, found: runner.CaseResult) -> list[tuple[Inputs, np.ndarray]]:
        """The input that failed, and the answer's output; what `_which_are_right` runs is added to it."""
        inputs = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        answer = None if inputs is None else self._output(inputs)
        return [] if inputs is None or answer is None else [(inputs, np.asarray(answer.out))]

    def _output(self, inputs: Inputs) -> Outputs | None:
        """What the answer gives; None where it does not come to an end, or something is reported."""
        try:
            return self.trial(inputs)
        except Exception:  # of the answer, and known already
            return None

    def _is_right(self, inputs: Inputs, answer: Outputs) -> bool:
        """Are all outputs of the stage right?"""
        of = operation(self.stage)
        ref = of.reference(inputs)
        return all(
            of.judge(output, getattr(answer, output.name), ref, None).passed for output in self.stage.outputs
        )

    def _which_are_right(
        self, runs: list[tuple[Inputs, np.ndarray]]
    ) -> tuple[dict[str, Inputs], dict[str, Inputs]]:
        """Simple inputs whose outputs are all right, and those where one is wrong; what `out` is there goes
        to `runs`.
        """
        inputs = self._simple_inputs(np.random.default_rng(self.seed))
        right: dict[str, Inputs] = {}
        wrong: dict[str, Inputs] = {}
        for name, x in inputs.items():
            if len(wrong) == OF_ONE_HEAD and not right:  # then more heads or components tell nothing
                break
            answer = self._output(x)
            (right if answer is not None and self._is_right(x, answer) else wrong)[name] = x
            if answer is not None:
                runs.append((x, np.asarray(answer.out)))
        return right, wrong

    def _simple_inputs(self, rng: np.random.Generator) -> dict[str, Inputs]:
        """Simple inputs by what is special about each."""
        keys = 32 if self.lesson.exercise.stage in SLOW else 64
        return {
            "whole tiles, no mask": normal(rng, 1, 1, 64, keys, 64),
            f"{keys + 6} keys, so the last tile is not full": normal(rng, 1, 1, 64, keys + 6, 64),
            "33 rows, so the last block is not full": normal(rng, 1, 1, 33, keys, 64),
            "the causal mask": normal(rng, 1, 1, keys, keys, 64, causal=True),
            "several heads and batches": normal(rng, 2, 2, 32, keys, 64),
            "D = 128": normal(rng, 1, 1, 32, keys, 128),
        }

    def _first_difference(self, found: runner.CaseResult) -> divergence.Divergence | None:
        """On the input that failed; of a property, which has several, on another one, and it says so."""
        named = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        inputs = named or self._any_input()
        try:
            first = divergence.find(self.lesson, self.answer, inputs)
        except Exception:  # it explains a failure that is certain; without it the message is shorter
            return None
        if first is None or named is not None:
            return first
        return replace(first, where=f"On another input, {inputs.label}: {first.where}")

    # Experiments

    def _passes(self, answer: Answer, name: str) -> bool:
        """Is another version of the answer right on one input?"""
        with loaded(self.lesson, answer) as stage:
            return runner.check_stage(stage, self.variant, seed=self.seed, names=[name]).passed

    def _launched(self, answer: Answer, shape: str) -> list:
        """The launches of another version of the answer at a shape."""
        with loaded(self.lesson, answer) as stage:
            return self._counted(stage, shape)

    def _suspect(self, result: CheckResult) -> int | None:
        """The line of the module that a result points at."""
        if result.line is None or not self.answer.is_cell:
            return result.line
        return result.line + (self.answer.first or 1) - 1

    def _with(
        self, result: CheckResult, changes: Sequence[repair.Change], line: int, right: str, keeps: bool
    ) -> CheckResult:
        """The result with changes that make the answer right.

        line: where they are. right: what they lead to. keeps: whether the cause that it has says more.
        """
        sentence = repair.told(self.answer, changes, right)
        reported = result.line is not None and result.kind not in ("value", "property", "unwritten")
        if not (reported and changes[0].kind == "missing"):  # then what needs it says more than its neighbour
            result = pointing(result, self.answer, line)
        if keeps:
            return replace(result, where="\n".join(filter(None, (sentence, result.where))))
        return stated(result, repair.cause_of(changes), {"sentence": sentence})

    # Counters

    def _run_gates(self) -> CheckResult | None:
        launches: dict[str, list] = {}
        wrong: list[CheckResult] = []
        for gate in self.lesson.exercise.gates:
            self._step(f"counting {gate.what}")
            if gate.shape not in launches:
                launches[gate.shape], found = self._launches(gate)
                wrong += [] if found is None else [found]
                if not launches[gate.shape]:
                    return self._failed("No kernel is launched.", look="Leave `launch` as it is.")
            value = float(gate.value(launches[gate.shape]))
            passed = value <= gate.bar
            text = "" if passed else self._gate_text(gate, value)
            self.gates.append(
                GateResult(gate.what, value, gate.before, gate.right, gate.bar, passed, self._at(gate), text)
            )
        if wrong:
            return wrong[0]
        if (first := self._missed()) is None:
            return None
        missed, gate = first
        result = self._failed(missed.message, look=gate.advice, kind="gate")
        return stated(result, gate.cause) if gate.cause else result

    def _missed(self) -> tuple[GateResult, Gate] | None:
        """What the first gate that is missed counted, and the gate."""
        pairs = zip(self.gates, self.lesson.exercise.gates, strict=False)
        return next(((found, gate) for found, gate in pairs if not found.passed), None)

    def _launches(self, gate: Gate) -> tuple[list, CheckResult | None]:
        """What is counted at a gate's shape, and what is wrong there: a counter of less work is no merit."""
        inputs = self._drawn(gate.shape)
        executor = Simulator(max_turns=MAX_TURNS)
        found = self.stage.run(inputs.problem(inputs.arrays), executor, self.variant)
        return executor.launches, self._wrong_at(inputs, found, executor.launches)

    def _wrong_at(self, inputs: Any, found: Mapping[str, Any], launches: list) -> CheckResult | None:
        """The failure of a run whose counters are read, by what is reported or by its outputs."""
        where = f"On {inputs.label}, where counters are read"
        if problems := [problem for launch in launches for problem in launch.problems]:
            return self._failed(f"{where}: {problems[0]}", kind=family(problems[0].kind))
        of = operation(self.stage)
        right = of.reference(inputs)
        for output in self.stage.outputs:
            verdict = of.judge(output, np.asarray(found[output.name]), right, None)
            if not verdict.passed:
                at = f"{output.symbol}{place(output.axes, verdict.where)}"
                off = f"off by {verdict.error:.3g}, and {verdict.bound:.3g} is allowed"
                return self._failed(f"{where}: {at} is {off}; {verdict.reason}.", kind="value")
        return None

    def _counted(self, stage: Stage, shape: str) -> list:
        executor = Simulator(max_turns=MAX_TURNS)
        stage.run(self._problem(shape), executor, self.variant)
        return executor.launches

    def _drawn(self, shape: str) -> Any:
        """Random inputs of the stage's operation for a shape, BxHxSxD."""
        return operation(self.stage).draw(parse(shape), False, np.random.default_rng(self.seed))

    def _problem(self, shape: str) -> Any:
        inputs = self._drawn(shape)
        return inputs.problem(inputs.arrays)

    def _at(self, gate: Gate) -> str:
        """How messages name the shape at which a gate counts."""
        return gate.shape if self.stage.operation is None else self._drawn(gate.shape).label

    def _gate_text(self, gate: Gate, value: float) -> str:
        is_, right, bar = map(_amount, (value, gate.right, gate.bar))
        before = "" if gate.before is None else f"the stage before had {_amount(gate.before)}, "
        return (
            f"The answers are right, but a counter is too high: {gate.what} at {self._at(gate)} is {is_}; "
            f"{before}the solution has {right}, the bar is {bar}."
        )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
