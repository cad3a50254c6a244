"""The check of one answer, in the process that runs it: cases, properties, counters, and where it errs."""

import ast
import re
import secrets
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from flashcore_numba.checks import runner
from flashcore_numba.checks.bounds import judge, reference
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.mutation import MutationError, imported, sources
from flashcore_numba.checks.trial import Failed, Inputs, Trial
from flashcore_numba.core.problem import ArgumentError, Problem
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.exercise import Answer, answer_in_cell, region
from flashcore_numba.course.judge import cuda_copies, divergence
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.judge.verdict import CheckResult, GateResult, Item
from flashcore_numba.course.spec import Gate, Lesson
from flashcore_numba.run.executor import Simulator, why_not_simulated
from flashcore_numba.simulator.problems import Site
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import find

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
FLOAT64 = (
    "0.0, -math.inf and any other plain Python float are float64 in a kernel, and so is what is computed "
    "with them; float32(0) and float32(-math.inf) are not."
)

ADVICE = {
    "race": "Two threads touch one element and no barrier orders them: who may still write when the "
    "other reads, and who may still read when the next write comes?",
    "barrier": "All threads of a block have to come to the same barrier: it may not stand where only "
    "some of them go.",
    "out of bounds": "Compare the index with the array's shape, at the last rows and keys above all.",
    "uninitialised read": "Follow the element back: which line should have written it, for which lanes?",
    "misaligned": "A wide access takes neighbours that start at a multiple of their number.",
    "not a number": "0 / 0, inf - inf and 0 * inf are not numbers: which of these can be 0 or infinite here?",
    "warp": "All 32 lanes of a warp have to take part: it may not stand where only some of them go.",
    "race between blocks": "Blocks do not wait for each other: each may write only what is its own. Which "
    "elements belong to the rows of this block?",
    "hang": "Look at what ends the loop, and whether each turn brings it nearer.",
    "unwritten": "Follow one of these elements back: what should have been written, by which thread?",
    "guard": "An index runs past the end of a row, or an input is written to.",
}


@contextmanager
def loaded(lesson: Lesson, answer: Answer) -> Iterator[Stage]:
    """The lesson's stage with the answer in it, while the context is open. Raises MutationError."""
    if answer.is_cuda:
        yield cuda_copies.stage_with(lesson, answer.text)
        return
    texts, main = sources(lesson.exercise.stage)
    texts[lesson.exercise.file] = answer.text
    with imported(texts, main) as stage:
        yield stage


def stage_of(lesson: Lesson) -> Stage:
    """The stage whose region the lesson's exercise is."""
    if lesson.exercise.stage == 0:
        from flashcore_numba.stages.stage00_three_loops import STAGE

        return STAGE
    return find(lesson.exercise.stage)


def check(
    lesson: Lesson, answer: Answer, seed: int | None = None, step: Step = lambda *_: None
) -> CheckResult:
    """Judge an answer in this process, which it may harm: `process.run` does it in another one.

    seed: of the random inputs, fresh when None. step(done, total, label) is called before each part. Raises
    ArgumentError for a whole file of something else, and for CUDA C where no C++ compiler is installed.
    """
    start = time.perf_counter()
    finding = screen(lesson, answer)
    if finding is not None:
        look = lesson.exercise.task.strip() if finding.status == "empty" else finding.look
        result = CheckResult(lesson.number, finding.status, finding.what, look=look)
        if finding.line is not None and finding.status != "empty":
            result = at(result, answer, finding.line)
        return replace(result, seconds=time.perf_counter() - start)
    if answer.is_cuda and (reason := why_not_simulated("CUDA C")) is not None:
        raise ArgumentError(f"lesson {lesson.number} is in CUDA C: {reason}")
    seed = secrets.randbits(31) if seed is None else seed
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), loaded(lesson, answer) as stage:
            warnings.simplefilter("ignore")  # an infinity or a NaN is judged where it comes out
            result = _grading(answer)(lesson, answer, stage, seed, step).result()
    except MutationError as error:
        result = _not_loaded(lesson, answer, error.__cause__ or error)
    return replace(result, seed=seed, seconds=time.perf_counter() - start)


def _grading(answer: Answer) -> "type[Grading]":
    if not answer.is_cuda:
        return Grading
    from flashcore_numba.course.judge.grade_cuda import CudaGrading

    return CudaGrading


def at(result: CheckResult, answer: Answer, line: int) -> CheckResult:
    """The result with a line of the answer named, when it is one of the answer's."""
    where = f"In {answer.place(line)}: `{answer.source(line)}`."
    number = answer.number(line) if answer.inside(line) or not answer.is_cell else None
    return replace(result, where=where, line=number, line_text=answer.source(line))


def _not_loaded(lesson: Lesson, answer: Answer, error: BaseException) -> CheckResult:
    line = error.lineno if isinstance(error, SyntaxError) else _line_of(error, lesson.exercise.file)
    what = f"The file cannot be imported: {type(error).__name__}: {error}"
    result = CheckResult(lesson.number, "failed", what, kind="error")
    return result if line is None else at(result, answer, line)


def _line_of(error: BaseException, file: str) -> int | None:
    """The innermost line of a module in an exception's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if PurePath(f.filename).stem == file), None)


class Grading:
    """One answer under check."""

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

    # Cases and properties

    def _run_cases(self) -> CheckResult | None:
        for name in self.names:
            self._step(name)
            report = runner.check_stage(self.stage, self.variant, seed=self.seed, names=[name])
            for found in report.results:
                if len(found.message) > LONGEST:  # an answer's own exception says what it likes
                    found = replace(found, message=found.message[:LONGEST] + " ...")
                margin = found.margin if found.margin is not None and np.isfinite(found.margin) else None
                text = self._own_lines(found.message)
                self.items.append(Item(found.name, found.passed, found.kind, text, found.seconds, margin))
                if not found.passed:
                    return self._explained(found)
        return None

    def _explained(self, found: runner.CaseResult) -> CheckResult:
        """The three parts of the message on one failure."""
        if found.kind == "error":
            return self._raised(found)
        if found.kind in ("value", "property", "unwritten") and not self._reported(found.message):
            return self._wrong_value(found)
        what, report = (
            f"On {self._case(found.name)}: {self._own_lines(found.message)}",
            found.message.partition(":")[0],
        )
        result = self._failed(what, look=ADVICE.get(report, ADVICE.get(found.kind, "")), kind=found.kind)
        leaving = self._leaving() if found.kind in ("barrier", "warp") else None
        if leaving is not None:
            source = self.answer.source(leaving)
            where = f"Threads leave at {self.answer.place(leaving)}, `{source}`, and then they do not come."
            return replace(at(result, self.answer, leaving), where=where)
        lines = self._reported_lines(found)
        if not lines and found.kind == "value":
            return self._wrong_value(found)
        difference = self._first_difference(found, None) if found.kind == "value" or not lines else None
        if lines:
            result = self._at_lines(result, lines, found.message)
            extra = " ".join(filter(None, (difference.where, difference.look))) if difference else ""
            return replace(result, look=" ".join(filter(None, (extra, result.look, self._never_set(found)))))
        result = replace(result, look=" ".join(filter(None, (result.look, self._never_set(found)))))
        if difference is not None and difference.line is not None:
            return self._pointed(replace(result, look=f"{difference.look} {result.look}".strip()), difference)
        place = self._line(found.message)
        return result if place is None else at(result, self.answer, place)

    def _reported_lines(self, found: runner.CaseResult) -> list[int]:
        """The answer's lines where the report's accesses are, or whose calls lead there."""
        own = self._line(found.message)
        if own is not None and not self.answer.inside(own):
            own = None
        inputs = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        executor = Simulator(max_turns=MAX_TURNS, ops=found.kind == "value", calls=True)
        try:
            launch_on(self.stage, self.variant, inputs or self._any_input(), executor)
        except Exception:  # what it did the first time is known already
            return [] if own is None else [own]
        kind = found.message.partition(":")[0]
        for problem in (p for launch in executor.launches for p in launch.problems if p.kind == kind):
            both = (problem.site,) if kind == "not a number" else (problem.site, problem.other)
            lines = {self._own_line(site) for site in both} - {None}
            if lines:
                return sorted(line for line in lines if line is not None)
        return [] if own is None else [own]

    def _own_line(self, site: Site | None) -> int | None:
        """The line of the answer that a site is in, or is called from."""
        while site is not None:
            if PurePath(site.file).stem == self.lesson.exercise.file and self.answer.inside(site.line):
                return site.line
            site = site.caller
        return None

    def _at_lines(self, result: CheckResult, lines: list[int], message: str) -> CheckResult:
        """The result with one or two lines named. It points at the report's own, else at the later one."""
        own = self._line(message)
        result = at(result, self.answer, own if own in lines else lines[-1])
        if len(lines) == 2:
            one, two = (f"{self.answer.place(n)}, `{self.answer.source(n)}`" for n in lines)
            return replace(result, where=f"Between {one}, and {two}.")
        if lines[0] not in [int(n) for n in re.findall(r"(?:\.py:|\bline )(\d+)", message)]:
            return replace(result, where=result.where.replace("In ", "Reached from ", 1))
        return result

    def _never_set(self, found: runner.CaseResult) -> str:
        """A word on an array that is read before anything is in it."""
        match = re.search(r"`: (\w+) element \d+ was never written", found.message)
        if match is None:
            return ""
        name = match[1]
        if divergence.last_set(self.answer, name) is not None:
            return ""
        solution = answer_in_cell(self.lesson, region(self.lesson.exercise).text)
        if divergence.last_set(solution, name) is None:
            return ""
        return f"Your answer never stores to `{name}`."

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

    def _leaving(self, *kinds: type) -> int | None:
        """The first line of the answer where threads leave a loop or the kernel."""
        for node in ast.walk(ast.parse(self.answer.text)):
            leaves = isinstance(node, kinds or (ast.Continue, ast.Break, ast.Return))
            line = getattr(node, "lineno", 0) if leaves and self.answer.first is not None else 0
            if line and self.answer.inside(line):
                return line
        return None

    def _any_input(self) -> Inputs:
        """What a property's failure is explained with: every kind of ragged end, and rows without keys."""
        return normal(np.random.default_rng(self.seed), 1, 1, 70, 33, 64, causal=True)

    def _case(self, name: str) -> str:
        return f'the input "{re.sub(r", seed 0$", "", name)}"'

    def _reported(self, message: str) -> bool:
        """Is this a report of the simulator, which names a line?"""
        return re.match(r"[a-z -]+: \w+\.py:\d+ `", message) is not None

    def _line(self, message: str) -> int | None:
        """The first line of the exercise's file that a message names, one of the region before others."""
        file = re.escape(self.lesson.exercise.file)
        lines = [int(n) for n in re.findall(rf"\b{file}\.py:(\d+)", message)]
        if lines:
            lines += [int(n) for n in re.findall(r"\bline (\d+)", message)]
        inside = [line for line in lines if self.answer.inside(line)]
        return next(iter(inside + lines), None)

    def _own_lines(self, message: str) -> str:
        """The message with lines counted as the author of the answer counts, and no folder."""
        message = re.sub(r"(?<![\w/])[\w/.-]*/(\w+\.py)", r"\1", message)
        file = self.lesson.exercise.file
        about_it = f"{file}.py:" in message

        def named(match: re.Match) -> str:
            return self.answer.place(int(match[1]))

        def bare(match: re.Match) -> str:
            line = int(match[1])
            return self.answer.place(line) if self.answer.inside(line) else match[0]

        message = re.sub(r"(?<=branch at )line (\d+)\b", bare, message)
        if about_it:
            message = re.sub(r"(?<!of )\bline (\d+)\b(?! of )", bare, message)
        return re.sub(rf"\b{re.escape(file)}\.py:(\d+)", named, message)

    def _raised(self, found: runner.CaseResult) -> CheckResult:
        message = self._own_lines(re.sub(r"\.? \(\w+\.py:\d+\)$", "", found.message))
        place = self._line(found.message)
        message = re.sub(
            r"^Unsupported: .*? cannot run this line \((.*?)\): .*$", r"\1", message, flags=re.DOTALL
        )
        what, look = f"It cannot run: {message}.", ""
        if "before its first assignment" in message:
            what = "A variable is used before it has a value."
            look = "Every way through the code has to set it first, also for the lanes that skip an `if`."
        elif "does not know" in message:
            unknown = re.search(r"does not know (.*)$", message, re.DOTALL)
            what = f"A kernel cannot have {unknown[1]}" if unknown else what
            what = f"{what}."
        elif "MemoryError" in message:
            what, look = (
                "It needs more memory than a check may use.",
                "Look at the size of the arrays it makes.",
            )
        elif "RecursionError" in message:
            what, look = "A function calls itself without end.", "A kernel has loops for that."
        result = self._failed(what, look=look, kind="error")
        place = self._raising_line(found) if place is None else place
        called = None if place is None or self.answer.inside(place) else self._calling(place)
        if called is not None:
            result = at(result, self.answer, called)
            return replace(result, where=result.where.replace("In ", "Reached from ", 1))
        if place is None or (self.answer.is_cell and not self.answer.inside(place)):
            return result
        return at(result, self.answer, place)

    def _raising_line(self, found: runner.CaseResult) -> int | None:
        """The line of the exercise's file that raised, or called what raised."""
        inputs = runner.inputs(self.stage, found.name, self.seed) or self._any_input()
        try:
            launch_on(
                self.stage, self.variant, inputs, Simulator(max_turns=MAX_TURNS, races=False, ops=False)
            )
        except Exception as error:
            return _line_of(error, self.lesson.exercise.file)
        return None

    def _calling(self, line: int) -> int | None:
        """The only line of the answer that calls the function which a line of the file stands in."""
        tree = ast.parse(self.answer.text)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        names = {f.name for f in functions if f.lineno <= line <= (f.end_lineno or 0)}
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and self.answer.inside(n.lineno)]
        lines = {n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id in names}
        return lines.pop() if len(lines) == 1 and self.answer.first is not None else None

    def _wrong_value(self, found: runner.CaseResult) -> CheckResult:
        text = self._own_lines(found.message)
        message, _, cause = text.partition(". Likely: ")
        if not cause:
            message, _, cause = text.partition(". Wrong ")
            cause = f"Wrong {cause}" if cause else ""
        else:
            cause = f"Likely: {cause}"
        what = f"On {self._case(found.name)}: {message.rstrip('.')}."
        if found.kind == "unwritten" and self.lesson.exercise.stage == 0:
            what = what.partition(". Has every")[0] + "."
            if divergence.last_set(self.answer, "out") is None:
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
            if (leaving := self._leaving(ast.Return)) is not None:
                return self._returned(self._failed(what, kind=found.kind), leaving)
            look = f"{look} A query row that sees no key has an output too: zeros.".strip()
        if where is None:
            look = " ".join(filter(None, (self.lesson.exercise.advice.get("value"), look)))
            return self._failed(what, look=look, kind=found.kind)
        return self._pointed(self._failed(what, look=look, kind=found.kind), where)

    def _pointed(self, result: CheckResult, found: divergence.Divergence) -> CheckResult:
        """The result with the place where the answer's values leave the solution's."""
        if found.line is None:
            return replace(result, where=found.where)
        line, source = found.line, self.answer.source(found.line)
        where = f"{found.where} It is set last in {self.answer.place(line)}: `{source}`."
        # An element that nobody wrote: the index of the store is in question, not the value.
        follow = result.kind != "memory" or "[" not in found.expression
        while follow and (copied := divergence.copied_from(self.answer, line)) is not None:
            name, line = copied
            source = self.answer.source(line)
            where += f" `{name}` is set in {self.answer.place(line)}: `{source}`."
        for name, earlier in divergence.operands(self.answer, line, found.right)[:2]:
            where += (
                f" It reads `{name}`, from {self.answer.place(earlier)}: `{self.answer.source(earlier)}`."
            )
        return replace(result, where=where, line=self.answer.number(line), line_text=source)

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

    def _float64(self) -> str:
        """A word on the answer's lines that compute in float64."""
        if self.lesson.exercise.stage == 0:
            return ""
        lines = {line for line, _ in divergence.float64_constants(self.answer)}
        executor = Simulator(max_turns=MAX_TURNS, races=False)
        try:
            launch_on(self.stage, self.variant, normal(np.random.default_rng(0), 1, 1, 32, 32, 64), executor)
        except Exception:  # the message is about something else
            return ""
        rows = [row for launch in executor.launches for row in launch.lines()]
        counted = {
            row.line: row.text
            for row in rows
            if re.fullmatch(r"[a-z]+64", row.op)
            and PurePath(row.file).stem == self.lesson.exercise.file
            and self.answer.inside(row.line)
        }
        lines |= set(counted)
        if not lines:
            return ""
        places = ", ".join(f"{self.answer.place(n)}, `{self.answer.source(n)}`" for n in sorted(lines)[:3])
        return f"It computes in float64, in {places}: {FLOAT64}"

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

    # The compiler

    def _compile(self) -> CheckResult | None:
        """Compile where CUDA's compiler is installed: the simulator takes some Python that Numba does not."""
        from flashcore_numba.run.compiler import Compiler, why_not

        if self.lesson.exercise.stage == 0 or why_not() is not None:
            return None
        self._step("compiling for compute capability 9.0")
        problem = Problem(*parse("1x1x64x64").inputs(np.random.default_rng(0)))
        try:
            self.stage.run(problem, Compiler((9, 0)), self.variant)
        except Exception as error:
            return self._not_compiled(error)
        return None

    def _not_compiled(self, error: Exception) -> CheckResult:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        lines = [
            int(n) for n in re.findall(rf'{re.escape(self.lesson.exercise.file)}\.py", line (\d+)', text)
        ]
        lines += [int(n) for n in re.findall(rf"{re.escape(self.lesson.exercise.file)}\.py \((\d+)\)", text)]
        inside = [line for line in lines if self.answer.inside(line)]
        reason = next((part.strip() for part in text.splitlines()[1:] if part.strip()), text.splitlines()[0])
        what = f"The simulator runs it, but Numba's compiler does not take it: {reason}"
        look = "Every variable of a kernel has one type, and only what Numba knows compiles."
        result = self._failed(what, look=look, kind="error")
        return at(result, self.answer, inside[-1]) if inside else result

    def _notes(self) -> tuple[str, ...]:
        from flashcore_numba.run.compiler import why_not

        reason = why_not()
        if self.lesson.exercise.stage == 0:
            return ()
        compiled = (
            "Compiled for compute capability 9.0." if reason is None else f"Not compiled here: {reason}."
        )
        return tuple(filter(None, (self._float64(), compiled)))


def _amount(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def launch_on(stage: Stage, variant: str | None, x: Inputs, executor: Any) -> None:
    stage.run(x.problem(x.arrays), executor, variant)
