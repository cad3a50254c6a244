"""The check of an answer in Python: the simulator's reports and Numba's errors, at its own lines."""

import ast
import re
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from flashcore_numba.checks import runner
from flashcore_numba.checks.cases import normal
from flashcore_numba.course.exercise import Answer, answer_in_cell, region
from flashcore_numba.course.judge import divergence, repair_python
from flashcore_numba.course.judge.causes import CAUSES, OUTPUTS, REPORTED, SLIPS, stated
from flashcore_numba.course.judge.grading import LONGEST, MAX_TURNS, Grading, at, dearest
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.spec import Gate
from flashcore_numba.run.compiler import Compiler, why_not
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.problems import KernelProblem, Site, Unsupported

LEAVES = {"return": ast.Return, "break": ast.Break, "continue": ast.Continue}
ADVICE = {
    "race": "Two threads touch one element and no barrier orders them: who may still write when the "
    "other reads, and who may still read when the next write comes?",
    "barrier": "All threads of a block have to come to the same barrier: it may not stand where only "
    "some of them go.",
    "out of bounds": "Compare the index with the array's shape: it starts at 0 and ends one below the size.",
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


FLOAT64 = (
    "In a kernel a plain Python float, such as 0.0, is float64, and so is float32 combined with an "
    "integer; float32(0) is not."
)
ARITHMETIC64 = ("fma64", "add64", "mul64", "div64", "exp64", "sqrt64", "log64")
PAIRS_32 = 32 * 32  # of rows and keys, on the input that is looked at


class PythonGrading(Grading):
    """One answer in Python under check."""

    def _explained(self, found: runner.CaseResult) -> CheckResult:
        is_right = partial(self._passes, name=found.name)
        return self._repaired(self._observed(found), is_right, "this input comes out right")

    def _keeps(self, answer: Answer, gate: Gate) -> bool:
        """Does another version of the answer keep the bar of a gate, and is it still right?"""
        if not self._passes(answer, self.names[0]):
            return False
        return gate.value(self._launched(answer, gate.shape)) <= gate.bar

    def _run_gates(self) -> CheckResult | None:
        failed = super()._run_gates()
        missed = self._missed()
        if failed is None or missed is None or failed.kind != "gate":
            return failed
        is_right = partial(self._keeps, gate=missed[1])
        return self._repaired(failed, is_right, "it stays right and the counter keeps its bar")

    def _repaired(self, result: CheckResult, is_right: Callable[[Answer], bool], right: str) -> CheckResult:
        """The result with the smallest change that makes the answer right, if one is found."""
        changes = repair_python.smallest(self.lesson, self.answer, is_right, self._suspect(result))
        if not changes:
            return result
        line = next((change.line for change in changes if change.kind != "missing"), changes[0].line)
        return self._with(result, changes, line, right, result.cause in OUTPUTS or result.cause in SLIPS)

    def _observed(self, found: runner.CaseResult) -> CheckResult:
        if found.kind == "error":
            return self._raised(found)
        problem: KernelProblem | None = found.problem
        if problem is None and found.kind in ("value", "property", "unwritten"):
            return self._wrong_value(found)
        what = f"On {self._case(found.name)}: {self._message(found)}"
        look = ADVICE.get(found.kind, "")
        if problem is not None:
            look = ADVICE.get(problem.kind, look)
        result = self._failed(what, look=look, kind=found.kind)
        if problem is None:
            return result
        if problem.kind in REPORTED and (problem.array or "{name}" not in CAUSES[REPORTED[problem.kind]]):
            result = stated(result, REPORTED[problem.kind], {"name": problem.array})
        leaving = self._leaving() if found.kind in ("barrier", "warp") else None
        if leaving is not None:
            source = self.answer.source(leaving)
            where = f"Threads leave at {self.answer.place(leaving)}, `{source}`, and then they do not come."
            return replace(at(result, self.answer, leaving), where=where)
        lines = self._reported_lines(found, problem)
        if not lines and found.kind == "value":
            return self._wrong_value(found)
        difference = self._first_difference(found) if found.kind == "value" or not lines else None
        never_set = self._never_set(problem)
        if lines and difference is not None and difference.finite and problem.kind == "not a number":
            # Where a number is wrong before any NaN, that is the mistake.
            result = self._pointed(replace(result, look=difference.look), difference)
            return stated(result, difference.cause, difference.words) if difference.cause else result
        if lines:
            result = self._at_lines(result, lines, problem)
            extra = " ".join(filter(None, (difference.where, difference.look))) if difference else ""
            return replace(result, look=" ".join(filter(None, (extra, result.look, never_set))))
        result = replace(result, look=" ".join(filter(None, (result.look, never_set))))
        if difference is not None and difference.line is not None:
            return self._pointed(replace(result, look=f"{difference.look} {result.look}".strip()), difference)
        place = self._line(problem)
        return result if place is None else at(result, self.answer, place)

    def _reported_lines(self, found: runner.CaseResult, problem: KernelProblem) -> list[int]:
        """The answer's lines where the report's accesses are, or whose calls lead there."""
        own = self._line(problem)
        if own is not None and not self.answer.inside(own):
            own = None
        inputs = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        executor = Simulator(max_turns=MAX_TURNS, ops=found.kind == "value", calls=True)
        try:
            again = inputs or self._any_input()
            self.stage.run(again.problem(again.arrays), executor, self.variant)
        except Exception:  # what it did the first time is known already
            return [] if own is None else [own]
        again = [p for launch in executor.launches for p in launch.problems if p.kind == problem.kind]
        for each in (p for p in again if p.lines[:2] == problem.lines[:2]):  # others are elsewhere
            both = (each.site,) if each.kind == "not a number" else (each.site, each.other)
            lines = {self._own_line(site) for site in both} - {None}
            if lines:
                return sorted(line for line in lines if line is not None)
        return [] if own is None else [own]

    def _own_line(self, site: Site | None) -> int | None:
        """The line of the answer that a site is in, or is called from."""
        while site is not None:
            if self._is_own(site.file) and self.answer.inside(site.line):
                return site.line
            site = site.caller
        return None

    def _at_lines(self, result: CheckResult, lines: list[int], problem: KernelProblem) -> CheckResult:
        """The result with one or two lines named. It points at the report's own, else at the later one."""
        own = self._line(problem)
        result = at(result, self.answer, own if own in lines else lines[-1])
        if len(lines) == 2:
            one, two = (f"{self.answer.place(n)}, `{self.answer.source(n)}`" for n in lines)
            return replace(result, where=f"Between {one}, and {two}.")
        if lines[0] not in problem.lines:
            return replace(result, where=result.where.replace("In ", "Reached from ", 1))
        return result

    def _never_set(self, problem: KernelProblem) -> str:
        """A word on an array that is read before anything is in it."""
        name = problem.array
        if problem.kind != "uninitialised read" or problem.element is None:
            return ""
        if divergence.last_set(self.answer, name) is not None:
            return ""
        solution = answer_in_cell(self.lesson, region(self.lesson.exercise).text)
        if divergence.last_set(solution, name) is None:
            return ""
        return f"Your answer never stores to `{name}`."

    def _leaving(self, *statements: str) -> int | None:
        kinds = tuple(LEAVES[name] for name in statements or LEAVES)
        for node in ast.walk(ast.parse(self.answer.text)):
            leaves = isinstance(node, kinds)
            line = getattr(node, "lineno", 0) if leaves and self.answer.first is not None else 0
            if line and self.answer.inside(line):
                return line
        return None

    def _any_input(self) -> Any:
        """What a property's failure is explained with: every kind of ragged end, and rows without keys."""
        if self.stage.operation is not None:
            return super()._any_input()
        return normal(np.random.default_rng(self.seed), 1, 1, 70, 33, 64, causal=True)

    def _is_own(self, file: str) -> bool:
        """Is this the exercise's file, or the copy of it that has the answer in it?"""
        return PurePath(file).stem == self.lesson.exercise.file

    def _line(self, problem: KernelProblem) -> int | None:
        """The first line of the exercise's file that a report names, one of the region before others."""
        sites = [site for site in (problem.site, problem.other) if site and self._is_own(site.file)]
        lines = [site.line for site in sites]
        if self._is_own(problem.file):
            lines += problem.lines[len(sites) :]
        inside = [line for line in lines if self.answer.inside(line)]
        return next(iter(inside + lines), None)

    def _message(self, found: runner.CaseResult) -> str:
        if (problem := found.problem) is not None:
            more = found.message.removeprefix(str(problem))
            return problem.told(self._place) + more
        if isinstance(found.raised, Unsupported):
            return self._told(found.raised)
        return self._without_folders(found.message)

    def _place(self, file: str, line: int, usual: str) -> str:
        """How messages name a line: a further one of the same file only where it is the answer's."""
        if not self._is_own(file) or (usual.startswith("line ") and not self.answer.inside(line)):
            return usual
        return self.answer.place(line)

    def _told(self, error: Unsupported) -> str:
        place = PurePath(error.file).name
        if error.line is not None:
            place = self._place(error.file, error.line, f"{place}:{error.line}")
        return f"{type(error).__name__}: {place}: {error.message}"

    def _without_folders(self, message: str) -> str:
        """The words of an exception, with files by their names and lines as the answer's author counts."""
        message = re.sub(r"(?<![\w/])[\w/.-]*/(\w+\.py)", r"\1", message)
        file = re.escape(self.lesson.exercise.file)
        return re.sub(rf"\b{file}\.py:(\d+)", lambda match: self.answer.place(int(match[1])), message)

    def _raised(self, found: runner.CaseResult) -> CheckResult:
        error = found.raised
        assert error is not None
        own = error.raised if isinstance(error, Unsupported) and error.raised is not None else error
        what, look = f"It cannot run: {self._words_of(own).removesuffix('.')}.", ""
        if isinstance(error, Unsupported) and error.unknown:
            what = f"A kernel cannot have {error.unknown}."
        elif isinstance(own, MemoryError):
            what = "It needs more memory than a check may use."
            look = "Look at the size of the arrays it makes."
        elif isinstance(own, RecursionError):
            what, look = "A function calls itself without end.", "A kernel has loops for that."
        result = self._failed(what, look=look, kind="error")
        place = self._raising_line(error)
        called = None if place is None or self.answer.inside(place) else self._calling(place)
        if called is not None:
            result = at(result, self.answer, called)
            return replace(result, where=result.where.replace("In ", "Reached from ", 1))
        if place is None or (self.answer.is_cell and not self.answer.inside(place)):
            return result
        return at(result, self.answer, place)

    def _words_of(self, error: Exception) -> str:
        if isinstance(error, Unsupported):
            return self._told(error)
        text = self._without_folders(f"{type(error).__name__}: {error}")
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."

    def _raising_line(self, error: Exception) -> int | None:
        """The line of the exercise's file that raised, or called what raised."""
        if isinstance(error, Unsupported) and error.line is not None and self._is_own(error.file):
            return error.line
        return line_of(error, self.lesson.exercise.file)

    def _calling(self, line: int) -> int | None:
        """The only line of the answer that calls the function which contains a line of the file."""
        tree = ast.parse(self.answer.text)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        names = {f.name for f in functions if f.lineno <= line <= (f.end_lineno or 0)}
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and self.answer.inside(n.lineno)]
        lines = {n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id in names}
        return lines.pop() if len(lines) == 1 and self.answer.first is not None else None

    def _pointed(self, result: CheckResult, found: divergence.Divergence) -> CheckResult:
        """The result with the place where the answer's values leave the solution's."""
        result = replace(result, where=found.where)
        # An element that nobody wrote: the index of the store is in question, not the value.
        line = found.line
        if result.kind == "memory" and "[" in found.expression and found.setters:
            line = found.setters[0][1]
        if line is None:
            return result
        return replace(result, line=self.answer.number(line), line_text=self.answer.source(line))

    def _float64(self) -> str:
        """A word on the answer's lines whose arithmetic, for each pair of row and key, is in float64."""
        if self.lesson.exercise.stage == 0:
            return ""
        executor = Simulator(max_turns=MAX_TURNS, races=False)
        try:
            self.stage.run(self._problem("1x1x32x64"), executor, self.variant)
        except Exception:  # the message is about something else
            return ""
        lanes: dict[int, int] = defaultdict(int)
        for row in (row for launch in executor.launches for row in launch.lines()):
            if row.op in ARITHMETIC64 and self._is_own(row.file) and self.answer.inside(row.line):
                lanes[row.line] += row.lanes
        lines = sorted(line for line, count in lanes.items() if count >= PAIRS_32)
        if not lines:
            return ""
        places = ", ".join(f"{self.answer.place(n)}, `{self.answer.code(n)}`" for n in lines[:3])
        return f"It computes in float64, in {places}. {FLOAT64}"

    # The compiler

    def _compile(self) -> CheckResult | None:
        """Compile where CUDA's compiler is installed: the simulator takes some Python that Numba does not."""
        if self.lesson.exercise.stage == 0 or why_not() is not None:
            return None
        self._step("compiling for compute capability 9.0")
        compiler = Compiler((9, 0))
        try:
            self.stage.run(self._problem("1x1x64x64"), compiler, self.variant)
        except Exception as error:
            return self._not_compiled(error)
        self.cubin = dearest(
            [
                (each.registers, each.spill_bytes, each.shared_bytes, each.warnings)
                for each in compiler.kernels
            ]
        )
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
        reason = why_not()
        if self.lesson.exercise.stage == 0:
            return ()
        compiled = (
            "Compiled for compute capability 9.0." if reason is None else f"Not compiled here: {reason}."
        )
        return tuple(filter(None, (self._float64(), compiled)))


def line_of(error: BaseException, file: str) -> int | None:
    """The innermost line of a module in an exception's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if PurePath(f.filename).stem == file), None)
