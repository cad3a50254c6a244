"""The check of an answer in CUDA C: the compiler's errors and the CPU executor's reports, at its own "
"lines."""

import os
import re
from collections import defaultdict
from copy import copy
from dataclasses import replace
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np

from cuda_reference import Source, load
from cuda_reference.cpu import CompileError, Problem, SourceError
from flashcore_numba.checks import runner
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Inputs, family
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import memory_map
from flashcore_numba.course.exercise import region
from flashcore_numba.course.judge import cuda_probe
from flashcore_numba.course.judge.compile_errors import first_complaint
from flashcore_numba.course.judge.grade import LEFT_OUT, Grading, at, launch_on, stage_of
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.launches import recorded
from flashcore_numba.course.spec import Gate
from flashcore_numba.run.executor import Simulator

# What its neighbours find too, on a kernel of which one region is in question.
LEFT_OUT_HERE = (
    LEFT_OUT + r"|^every size of GPU|fall from|constant rows|identical keys|rise towards"
    r"|causal 20 rows, 1100|one key dominates|about 1000$|a scale of|127 keys$|ragged 127$|^medium"
    r"|below -100000"
)
GROUPED = r"|^causal grouped"  # of a region that divides heads into groups
UNGROUPED = r"|^grouped|^causal grouped"
NEVER_LAZY = r"|rises? and fall"  # of a region that never keeps a reference which falls behind
SECOND_LOOK = 2.0  # seconds of a launch that shows again what it did
MOST_ROWS = 4  # lines of the region that a missed gate names
ORDERS = ("lockstep", "reverse", "random:1")
ENDLESS = "Look at what ends the loop, and whether each turn brings it nearer."
ADVICE = {
    "race": "Nothing orders the two: between a write and what another thread reads there stands a "
    "`__syncthreads()` "
    "(a `__syncwarp()` where both are lanes of one warp), and another one before the memory is written "
    "again.",
    "race between blocks": "Blocks do not wait for each other: each may write only what is its own.",
    "missing wait": "An asynchronous copy or product was issued, and nobody has waited for it: which "
    "group or which "
    "phase is it, and who must have waited before this line?",
    "missing fence": "The copy engine and the tensor core see what ordinary instructions wrote only "
    "behind a fence: "
    "`ptx::fence_proxy_async()` after the stores, `ptx::wgmma_fence()` before the products.",
    "divergent barrier": "All threads of the block have to come to the same `__syncthreads()`: it may "
    "not stand where "
    "only some of them go.",
    "barrier after exit": "All threads of the block have to come to a `__syncthreads()`: none may return "
    "before.",
    "deadlock": "Somebody waits for an arrival that never comes: count who arrives, how often, and for "
    "which phase.",
    "warp mask": "All 32 lanes of the warp execute this together: it may not stand where only some of "
    "them go.",
    "out of bounds": "Compare the address with the array: the first row and column of this warp's part, "
    "the distance "
    "of rows, and the last index of the loop.",
    "uninitialised read": "Follow the memory back: which line should have written it, before this one, "
    "for which threads?",
    "misaligned": "A wide access starts at a multiple of its own size: 16 bytes are 8 halves or 4 floats.",
    "division by zero": "Which divisor can be 0 here?",
    "bad instruction": "All lanes give the instruction the same matrix, and its operands keep its rules.",
    "finished block": "No block of a cluster may return while another still reads its shared memory.",
    "endless loop": ENDLESS,
    "time limit": ENDLESS,
    "stack overflow": "How many bytes do the arrays of one thread have? What all use is shared memory.",
}
# What a report's text says more exactly than its kind.
ADVICE_ON_TEXT = {
    "lacks": "Keep the ledger of this mbarrier: the arrivals that it was initialised for, and the bytes that "
    "were announced to it against those that its copies bring. Which of them is off?",
    "fence_mbarrier_init": "The copy engine sees an mbarrier initialised only behind a "
    "`ptx::fence_mbarrier_init()`, by the thread that initialised it.",
    "more arrivals": "Count who arrives at this mbarrier: each phase takes as many arrivals as it was "
    "initialised "
    "for. Does one thread come here, or all?",
    "accumulator": "The products of wgmma are ready when `ptx::wgmma_wait` says so: which of its groups "
    "may still "
    "be unfinished here?",
}
SIMPLY = {
    "race": "Two threads touch the same memory, one of them writes, and nothing orders them",
    "race between blocks": "Two blocks touch the same global memory, and one of them writes",
    "missing wait": "Something is used while an asynchronous instruction still works on it",
    "missing fence": "A fence is missing between ordinary and asynchronous accesses",
    "divergent barrier": "The threads of a block wait at different barriers",
    "barrier after exit": "Threads left before a barrier that the others wait at",
    "deadlock": "Threads wait for what never comes",
    "warp mask": "Not all lanes of a warp take part",
    "out of bounds": "An address lies outside the array",
    "uninitialised read": "Something is read that nobody wrote",
    "misaligned": "An address is no multiple of what the access needs",
    "division by zero": "An integer is divided by 0",
    "bad instruction": "An instruction's operands break its rules",
    "finished block": "Shared memory of a block that has ended is touched",
    "endless loop": "The kernel does not end",
    "time limit": "The kernel did not end in a time in which it ends many times over",
    "stack overflow": "A thread's local variables are too large",
}


def _family(kind: str) -> str:
    """That of a report; a launch of an exercise that took its time limit is taken for one that hangs."""
    return "hang" if kind == "time limit" else family(kind)


class CudaGrading(Grading):
    """One answer in CUDA C under check."""

    notes: tuple[str, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counted: dict[str, list] = {}  # launches by shape
        self.head_dim = 64  # of the input that a report is about

    def left_out(self) -> str:
        words = cuda_probe.words(region(self.lesson.exercise).text)
        left_out = LEFT_OUT_HERE + (GROUPED if "group" in words else UNGROUPED)
        return left_out if "LAZY_MAX" in words else left_out + NEVER_LAZY

    def result(self) -> CheckResult:
        return self._compiled_here() or super().result()

    # The compiler

    def _compiled_here(self) -> CheckResult | None:
        """Compile for the CPU executor, and tell the first error."""
        os.environ["LC_ALL"] = "C"  # in this process, which judges one answer: the compiler speaks English
        self._step("compiling")
        for source in self._sources():
            try:
                load(source, "cpu")
            except CompileError as error:
                return self._not_compiled_here(str(error))
            except SourceError as error:
                return self._failed(f"The file breaks a rule: {self._own_lines(str(error))}", kind="error")
        return None

    def _sources(self, shape: str = "1x1x64x64") -> list[Source]:
        """What the stage launches at a shape, with the macros it is compiled with."""
        return recorded(self.stage, self.variant, shape).sources

    def _not_compiled_here(self, text: str) -> CheckResult:
        found = first_complaint(self.answer, text, self.lesson.exercise.file)
        if found is None:
            return self._failed(f"It does not compile: {text[:400]}", kind="error")
        look = " ".join(filter(None, (found.look, self.lesson.exercise.advice.get("compile", ""))))
        result = self._failed(f"It does not compile. {found.what}", look=look, kind="error")
        if found.line is not None:
            result = at(result, self.answer, found.line if found.inside else self._nearest(found.line))
        return replace(result, notes=(f"The compiler says: {found.said}",))

    def _nearest(self, line: int) -> int:
        """The line of the region next to one outside it, where an unfinished statement shows."""
        first, last = self.answer.first, self.answer.last
        if first is None or last is None or line < first:
            return line
        lines = self.answer.text.splitlines()
        full = [n for n in range(first, last + 1) if cuda_probe.code_of(lines[n - 1]).strip()]
        return full[-1] if full and line <= last + 3 else line

    # Reports

    def _explained(self, found: runner.CaseResult) -> CheckResult:
        if found.kind == "error":
            return self._raised(found)
        if problems := self._problems(found):
            return self._told(found, problems)
        if found.kind in ("value", "property", "unwritten", "guard"):
            return self._wrong_value(found)
        return self._failed(f"On {self._case(found.name)}: {self._own_lines(found.message)}", kind=found.kind)

    def _problems(self, found: runner.CaseResult) -> list[Problem]:
        """What the executor reports on the input that failed, in the first order of warps that shows "
        "anything."""
        inputs = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        inputs = inputs or self._any_input()
        self.head_dim = inputs.q.shape[-1]
        for order in ORDERS:
            executor = Simulator(order=order, ops=False, time_limit=SECOND_LOOK)
            try:
                launch_on(self.stage, self.variant, inputs, executor)
            except Exception:  # what it did the first time is known already
                return []
            if problems := [problem for launch in executor.launches for problem in launch.problems]:
                return problems
        return []

    def _told(self, found: runner.CaseResult, problems: list[Problem]) -> CheckResult:
        problem = next((p for p in problems if self._own(p)), problems[0])
        text = self._own_numbers(self._names_of_memory(problem.text))
        simply = SIMPLY.get(problem.kind, problem.kind)
        what = f"On {self._case(found.name)}: {problem.kind}. {simply}: {text}."
        general = next((said for part, said in ADVICE_ON_TEXT.items() if part in problem.text), None)
        look = self.lesson.exercise.advice.get(problem.kind, general or ADVICE.get(problem.kind, ""))
        result = self._failed(re.sub(r"\.\.$", ".", what), look=look, kind=_family(problem.kind))
        own = self._own(problem)
        sites = [site for site in (problem.site, problem.other) if site is not None]
        outside = [site for site in sites if self._line_in(site) is None]
        if not own:
            result = replace(result, where=self._outside(sites, problem.kind))
            return self._with_leaving(result)
        result = at(result, self.answer, own[0])
        if len(own) == 2 and own[0] != own[1]:
            one, two = (f"{self.answer.place(n)}, `{self.answer.source(n)}`" for n in own)
            result = replace(result, where=f"Between {one}, and {two}.")
        elif outside:
            result = replace(result, where=f"{result.where[:-1]}, against {self._place_of(outside[0])}.")
        return self._with_leaving(result)

    def _own(self, problem: Problem) -> list[int]:
        """The lines of the region in a problem, its own first."""
        sites = (problem.site, problem.other)
        lines = [self._line_in(site) for site in sites if site is not None]
        return list(dict.fromkeys(line for line in lines if line is not None))

    def _line_in(self, site: Any) -> int | None:
        """The line of the region that a site is in, or is called from."""
        while site is not None:
            if PurePath(site.file).name == self.lesson.exercise.file and self.answer.inside(site.line):
                return site.line
            if site.caller is None:
                return self._only_caller(site)
            site = site.caller
        return None

    def _only_caller(self, site: Any) -> int | None:
        """The region's line that calls the function a site is in, if nothing else in the kernel calls it."""
        text = self.answer.text
        if PurePath(site.file).name != self.lesson.exercise.file:
            text = Path(site.file).read_text()
        name = cuda_probe.function_around(text, site.line)
        calls = cuda_probe.lines_calling(self.answer.text, name) if name else []
        return calls[0] if len(calls) == 1 and self.answer.inside(calls[0]) else None

    def _outside(self, sites: list, kind: str) -> str:
        places = [self._place_of(site) for site in sites]
        if len(places) == 2 and kind == "uninitialised read":
            return f"In {places[0]}. It is declared in {places[1]}, and the region should assign to it."
        if len(places) == 2:
            return (
                f"Between {places[0]}, and {places[1]}. Both are outside the region: what should order them "
                "is missing in it."
            )
        return f"In {places[0]}. It stands outside the region, whose lines lead to it."

    def _place_of(self, site: Any) -> str:
        """How a message names a line that is not of the region: the call in the kernel, if it is in a "
        "header."""
        text = re.sub(r"\s*//.*", "", site.text)
        place = f"{PurePath(site.file).name}:{site.line}"
        if PurePath(site.file).name == self.lesson.exercise.file:
            place = f"{self.answer.file}:{site.line}"
        called = site.caller
        by = f" (called in line {called.line})" if called is not None and called.file != site.file else ""
        return f"{place}{by}, `{text}`"

    def _with_leaving(self, result: CheckResult) -> CheckResult:
        """A word on a statement of the region with which threads leave, where barriers are missed."""
        line = cuda_probe.leaving(self.answer) if result.kind in ("barrier", "warp") else None
        if line is None or line == result.line:
            return result
        source = self.answer.source(line)
        return replace(
            result, where=f"{result.where} Threads leave at {self.answer.place(line)}, `{source}`."
        )

    def _names_of_memory(self, text: str) -> str:
        """A report's text with the parts of shared memory by name, row and column."""
        static, dynamic = self._parts()

        def of_static(match: re.Match) -> str:
            part = next((part for part in static if part.name == match[1]), None)
            return match[0] if part is None else _element(part, int(match[2]))

        def of_dynamic(match: re.Match) -> str:
            part = memory_map.part_at(dynamic, int(match[1]))
            return match[0] if part is None else _element(part, int(match[1]) - part.first)

        nowhere = r"(read|written) address (?:\(nil\)|0x[0-9a-f]+), near no array of the launch"
        text = re.sub(nowhere, r"\1 through a pointer that points at no array of the launch", text)
        text = re.sub(r"`(\w+)` \(shared memory, byte (\d+) of it\)", of_static, text)
        text = re.sub(r"\bshared memory at byte (\d+)", of_dynamic, text)
        return re.sub(r"\s*\[block (\d+),(\d+),(\d+)\]", r" (block \1, \2, \3)", text)

    def _own_numbers(self, text: str) -> str:
        """A report's text with the lines of a cell as its author counts them."""
        if not self.answer.is_cell:
            return text
        own = self.answer.inside
        return re.sub(
            r"\bline (\d+)", lambda m: self.answer.place(int(m[1])) if own(int(m[1])) else m[0], text
        )

    def _parts(self) -> tuple[list[memory_map.Part], list[memory_map.Part]]:
        """Static and dynamic parts of shared memory, of the stage's own text."""
        launches = recorded(stage_of(self.lesson), self.variant, f"1x1x64x{self.head_dim}").launches
        launch = next((each for each in launches if each.kernel.path.name == self._kernel), launches[0])
        source, size = launch.kernel, launch.shared_bytes
        return memory_map.static_parts(source), memory_map.dynamic_parts(source, shared_bytes=size)

    @property
    def _kernel(self) -> str:
        return self.lesson.exercise.file

    def _own_lines(self, message: str) -> str:
        message = re.sub(r"(?<![\w/])[\w/.-]*/(\w+\.cuh?)", r"\1", message)
        file = re.escape(self.lesson.exercise.file)
        return re.sub(rf"\b{file}:(\d+)", lambda m: self.answer.place(int(m[1])), message)

    def _raised(self, found: runner.CaseResult) -> CheckResult:
        if "CompileError" in found.message:
            return self._not_compiled_here(found.message)
        what = f"On {self._case(found.name)} it cannot run: {self._own_lines(found.message)}."
        return self._failed(what, kind="error")

    # Counters

    def _launches(self, gate: Gate) -> list:
        self.counted[gate.shape] = super()._launches(gate)
        return self.counted[gate.shape]

    def _run_gates(self) -> CheckResult | None:
        """The gates; of one that is missed also the share of the region's own lines in it. What the executor
        reports at a gate's shape comes first."""
        failed = super()._run_gates()
        for shape, launches in self.counted.items():
            if problems := [problem for launch in launches for problem in launch.problems]:
                self.head_dim = parse(shape).head_dim
                return self._told(runner.CaseResult(shape, False, 0.0), problems)
        if failed is None:
            return None
        missed = next(gate for gate in self.gates if not gate.passed)
        gate = next(each for each in self.lesson.exercise.gates if each.what == missed.what)
        shares: dict[int, float] = defaultdict(float)
        for launch in self.counted[gate.shape]:
            for row in launch.lines():
                line = self._line_in(SimpleNamespace(file=row.file, line=row.line, caller=None))
                if line is not None:
                    shares[line] += _share(gate, launch, row)
        most = sorted((line for line in shares if shares[line] > 0), key=lambda line: -shares[line])
        said = [f"{self.answer.place(n)}, `{self.answer.source(n)}`: {shares[n]:,.6g}" for n in most]
        if not said:
            return failed
        only = "all of it" if sum(shares.values()) >= missed.value else f"of {missed.value:,.6g}"
        return replace(failed, where=f"Counted in the region, {only}: {'; '.join(said[:MOST_ROWS])}.")

    # What differs from Python in the rest

    def _any_input(self) -> Inputs:
        return normal(np.random.default_rng(self.seed), 1, 1, 70, 70, 64, causal=True)

    def _leaving(self, *kinds: type) -> int | None:
        return cuda_probe.leaving(self.answer, *(["return"] if kinds else []))

    def _float64(self) -> str:
        return ""

    def _wrong_value(self, found: runner.CaseResult) -> CheckResult:
        result = super()._wrong_value(found)
        # Where a value is named that goes wrong first, a guess from the output adds nothing.
        return (
            replace(result, look=re.sub(r" ?\b(?:Likely: |Wrong ).*", "", result.look))
            if result.line
            else result
        )

    def _pointed(self, result: CheckResult, found: Any) -> CheckResult:
        if found.line is None:
            return replace(result, where=found.where)
        source = self.answer.source(found.line)
        where = f"{found.where} It is set last in {self.answer.place(found.line)}: `{source}`."
        return replace(result, where=where, line=self.answer.number(found.line), line_text=source)

    # The device compiler

    def _compile(self) -> CheckResult | None:
        """Compile for a GPU where NVIDIA's compiler is installed: it is stricter than the host's."""
        from cuda_reference import compile as device

        if (reason := device.why_not()) is not None:
            self.notes = (f"Not compiled for a GPU here: {reason}.",)
            return None
        self._step("compiling for compute capability 9.0")
        registers, spilled = 0, 0
        for source in self._sources():
            try:
                compiled = device.compile(source, (9, 0))
            except device.CompileError as error:
                return self._not_compiled_there(str(error))
            registers, spilled = (
                max(registers, compiled.registers),
                max(spilled, compiled.spill_bytes),
            )
        spills = f", {spilled} bytes spilled" if spilled else ""
        self.notes = (f"Compiled for sm_90a: {registers} registers a thread{spills}.",)
        return None

    def _not_compiled_there(self, text: str) -> CheckResult:
        rows = re.findall(r"\((\d+)\): error[^:]*: (.*)", text)
        what = "The CPU executor runs it, but NVIDIA's compiler does not take it"
        lines = [(int(n), said) for n, said in rows if self.answer.inside(int(n))]
        if not lines:
            return self._failed(f"{what}: {(rows[0][1] if rows else text[:300]).strip()}.", kind="error")
        return at(self._failed(f"{what}: {lines[0][1].strip()}.", kind="error"), self.answer, lines[0][0])

    def _notes(self) -> tuple[str, ...]:
        return (*self._conflicts(), *self.notes)

    def _conflicts(self) -> tuple[str, ...]:
        """A word on bank conflicts in the region's lines, which are no mistake and cost time."""
        shape = next(iter(self.counted), None)
        if shape is None:
            return ()
        waves: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for launch in self.counted[shape]:
            for row in launch.lines():
                line = self._line_in(SimpleNamespace(file=row.file, line=row.line, caller=None))
                if line is not None and row.conflicts:
                    waves[line][0] += row.conflicts
                    waves[line][1] += row.wavefronts
        said = [
            f"{self.answer.place(line)}, `{self.answer.source(line)}`: {lost:,} of {all_:,} wavefronts"
            for line, (lost, all_) in sorted(waves.items())
        ]
        return (f"Lost to bank conflicts at {shape}, in {'; '.join(said[:MOST_ROWS])}.",) if said else ()


def _share(gate: Gate, launch: Any, row: Any) -> float:
    """What one row alone adds to a gate's counter."""
    alone = copy(launch)
    alone.result = copy(launch.result)
    alone.result.__dict__["_lines"] = [row]
    return float(gate.value([alone]))


def _element(part: memory_map.Part, byte: int) -> str:
    """How a message names an element of a part: by row and column where the rows' distance is known."""
    element = byte // memory_map.SIZES[part.type]
    if not part.row or part.bytes == part.row * memory_map.SIZES[part.type]:
        return f"`{part.name}[{element}]`"
    row, column = divmod(element, part.row)
    elements = "halves" if part.type in ("element", "half") else f"{part.type}s"
    return f"`{part.name}` at row {row}, column {column} (its rows are {part.row} {elements} apart)"
