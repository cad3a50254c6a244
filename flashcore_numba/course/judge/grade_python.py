"""The check of an answer in Python: the simulator's reports and Numba's errors, at its own lines."""

import ast
import re
import traceback
from dataclasses import replace
from pathlib import PurePath

import numpy as np

from flashcore_numba.checks import runner
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.exercise import answer_in_cell, region
from flashcore_numba.course.judge import divergence
from flashcore_numba.course.judge.answer_stage import launch_on
from flashcore_numba.course.judge.grading import MAX_TURNS, Grading, at, problem_of
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.run.compiler import Compiler, why_not
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.problems import Site

LEAVES = {"return": ast.Return, "break": ast.Break, "continue": ast.Continue}
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


FLOAT64 = (
    "0.0, -math.inf and any other plain Python float are float64 in a kernel, and so is what is computed "
    "with them; float32(0) and float32(-math.inf) are not."
)


class PythonGrading(Grading):
    """One answer in Python under check."""

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

    def _leaving(self, *statements: str) -> int | None:
        kinds = tuple(LEAVES[name] for name in statements or LEAVES)
        for node in ast.walk(ast.parse(self.answer.text)):
            leaves = isinstance(node, kinds)
            line = getattr(node, "lineno", 0) if leaves and self.answer.first is not None else 0
            if line and self.answer.inside(line):
                return line
        return None

    def _any_input(self) -> Inputs:
        """What a property's failure is explained with: every kind of ragged end, and rows without keys."""
        return normal(np.random.default_rng(self.seed), 1, 1, 70, 33, 64, causal=True)

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
            return line_of(error, self.lesson.exercise.file)
        return None

    def _calling(self, line: int) -> int | None:
        """The only line of the answer that calls the function which a line of the file stands in."""
        tree = ast.parse(self.answer.text)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        names = {f.name for f in functions if f.lineno <= line <= (f.end_lineno or 0)}
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and self.answer.inside(n.lineno)]
        lines = {n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id in names}
        return lines.pop() if len(lines) == 1 and self.answer.first is not None else None

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

    # The compiler

    def _compile(self) -> CheckResult | None:
        """Compile where CUDA's compiler is installed: the simulator takes some Python that Numba does not."""
        if self.lesson.exercise.stage == 0 or why_not() is not None:
            return None
        self._step("compiling for compute capability 9.0")
        problem, out, lse = problem_of(parse("1x1x64x64").inputs(np.random.default_rng(0)), self.stage)
        try:
            self.stage.launch(problem, out, Compiler((9, 0)), lse=lse, variant=self.variant)
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
