"""The check of an answer in CUDA C: the compiler's errors and the CPU executor's reports, at its own
lines.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np

from cuda_reference import Source, load
from cuda_reference.cpu import CompileError, KernelProblem, SourceError
from cuda_reference.cpu.facts import Block, Line, Memory, Piece
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.checks import runner
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Inputs, family
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import cuda_text, memory_map
from flashcore_numba.course.exercise import Answer, region
from flashcore_numba.course.judge import repair_cuda
from flashcore_numba.course.judge.causes import REPORTS, stated
from flashcore_numba.course.judge.compile_errors import first_complaint
from flashcore_numba.course.judge.grading import LEFT_OUT, Grading, at, dearest
from flashcore_numba.course.judge.pins import unpinned
from flashcore_numba.course.judge.verdict import CheckResult, GateResult
from flashcore_numba.course.launches import recorded
from flashcore_numba.course.spec import Gate
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import edited

# What its neighbours find too, on a kernel of which one region is in question.
LEFT_OUT_HERE = (
    LEFT_OUT + r"|fall from|constant rows|identical keys|rise towards"
    r"|causal 20 rows, 1100|one key dominates|about 1000$|a scale of|127 keys$|ragged 127$|^medium"
    r"|below -100000"
)
GROUPED = r"|^causal grouped"  # of a region that divides heads into groups
UNGROUPED = r"|^grouped|^causal grouped"
NEVER_LAZY = r"|rises? and fall"  # of a kernel that never keeps a reference which falls behind
LONG_RINGS = r"|^1100 rows"  # query heads that share keys also bring a ring round, and sooner
IN_8_BITS = (
    r"|^(outliers|a negative scale|extreme.*), D=64$|^scores rise slowly|^transposed|10\^8$|^all of V -7"
    r"|^2048 keys"
)
OF_A_NORM = (
    r"|^causal 70 rows, 600|^64 rows, 512|^no (residual|bias)|^neither|scale( of 0)?$"
    r"|^rows in another order|^any schedule|^(16|5) heads|, D=128$"
)
NEVER_GOES_ON = r"|^every size of GPU"  # of a region whose rings end with their work tile
PANELS, PANEL = (14, 15, 16), 64  # stages whose tiles TMA puts into panels of so many columns
SECOND_LOOK = 15.0  # seconds of a launch that shows again what it did
MOST_ROWS = 4  # lines of the region that a missed gate names
ORDERS = ("lockstep", "reverse", "random:1")
ENDLESS = "Look at what ends the loop, and whether each turn brings it nearer."
ADVICE = {
    "race": "Nothing orders the two: between a write and what another thread reads there stands a "
    "`__syncthreads()` (a `__syncwarp()` where both are lanes of one warp), and another one before the "
    "memory is written again.",
    "race between blocks": "Blocks do not wait for each other: each may write only what is its own.",
    "missing wait": "An asynchronous copy or product was issued, and nobody has waited for it: which group "
    "or which phase is it, and who must have waited before this line?",
    "missing fence": "The copy engine and the tensor core see what ordinary instructions wrote only behind "
    "a fence: `ptx::fence_proxy_async()` after the stores, `ptx::wgmma_fence()` before the products.",
    "divergent barrier": "All threads of the block have to come to the same `__syncthreads()`: it may not "
    "stand where only some of them go.",
    "barrier after exit": "All threads of the block have to come to a `__syncthreads()`: none may return "
    "before.",
    "deadlock": "Somebody waits for an arrival that never comes: count who arrives, how often, and for "
    "which phase.",
    "warp mask": "All 32 lanes of the warp execute this together: it may not stand where only some of "
    "them go.",
    "out of bounds": "Compare the address with the array: the first row and column of this warp's part, the "
    "distance of rows, and the last index of the loop.",
    "uninitialised read": "Follow the memory back: which line should have written it, before this one, "
    "for which threads?",
    "misaligned": "A wide access starts at a multiple of its own size: 16 bytes are 8 halves or 4 floats.",
    "division by zero": "Which divisor can be 0 here?",
    "undefined value": "A shift takes 0 to 31 bits of an `int`, and `(int)x` an x below 2^31: a GPU and this "
    "machine make different numbers of anything else.",
    "bad instruction": "The report says which rule of the instruction is broken: what breaks it?",
    "counter left over": "Which number does the counter have after its last arrival, and what sets it to 0?",
    "finished block": "No block of a cluster may return while another still reads its shared memory.",
    "endless loop": ENDLESS,
    "time limit": ENDLESS,
    "stack overflow": "How many bytes do the arrays of one thread have? What all use is shared memory.",
}
# Where a report is about something more exact than its kind: see `cuda_reference.cpu.report.ABOUT`.
ADVICE_ABOUT = {
    "ledger": "Keep the ledger of this mbarrier: the arrivals that it was initialised for, and the bytes "
    "that were announced to it against those that its copies bring. Which of them is off?",
    "initialisation": "The copy engine sees an mbarrier initialised only behind a "
    "`ptx::fence_mbarrier_init()`, by the thread that initialised it.",
    "arrivals": "Count who arrives at this mbarrier: each phase takes as many arrivals as it was "
    "initialised for. Does one thread come here, or all?",
    "barrier arrivals": "Count who arrives at this barrier, and how often: a thread that has arrived once "
    "has done its part of the round.",
    "accumulators": "The products of wgmma are ready when `ptx::wgmma_wait` says so: which of its groups "
    "may still be unfinished here?",
    "kernels before": "The launch begins under the end of the kernel before it: who has called "
    "`ptx::grid_dependency_wait()`, and which barrier has told it to the thread of this line?",
    "exit": "Every copy and product is waited for before its thread returns: is it one too many, or which "
    "wait lets it be unfinished?",
}
# Of a copy, barriers may follow its instruction. What counts is a barrier after its wait.
READ_OF_COPY = re.compile(r"(?<= and )written by( [^,]+(?:, [^,]+)?, with no [^,]+ between)")
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
    "uninitialised read": "Something is read before anything was written there",
    "misaligned": "An address is no multiple of what the access needs",
    "division by zero": "An integer is divided by 0",
    "undefined value": "C++ does not say which number this is",
    "bad instruction": "An instruction is used against its rules",
    "finished block": "Shared memory of a block that has ended is touched",
    "counter left over": "The next launch finds a counter at another number than 0",
    "endless loop": "The kernel does not end",
    "time limit": "The launch was stopped; on an idle machine a right one takes a tenth of a second",
    "stack overflow": "A thread's local variables are too large",
}
ALONE = (
    "arrivals",
    "barrier arrivals",
    "kernels before",
    "exit",
)  # what an exercise says of their kind is not about them
SIMPLY_ABOUT = {
    "arrivals": "An mbarrier counts too many arrivals",
    "barrier arrivals": "A barrier counts too many arrivals",
    "kernels before": "missing wait. The kernel before may still use this memory",
    "exit": "missing wait. A thread returns before what it has started is done",
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
        self.setter = ""  # the sentence on the line that sets a wrong value last

    def left_out(self) -> str:
        if self.stage.operation is BACKWARD:
            return super().left_out() + LONG_RINGS
        words = cuda_text.words(region(self.lesson.exercise).text)
        left_out = LEFT_OUT_HERE + (GROUPED if "group" in words else UNGROUPED)
        sources = recorded(edited.original(self.lesson.exercise.stage), self.variant, "1x1x64x64").sources
        left_out += "" if any(dict(source.defines).get("LAZY_MAX") for source in sources) else NEVER_LAZY
        left_out += IN_8_BITS if self.stage.operation is FP8 else ""
        left_out += OF_A_NORM if self.stage.operation is EPILOGUE else ""
        return left_out if "v_ring" in words else left_out + NEVER_GOES_ON

    def result(self) -> CheckResult:
        result = super().result()
        return self._pinned(result) if result.passed else result

    def _pinned(self, result: CheckResult) -> CheckResult:
        """That of an answer which passes, unless registers are not pinned after a wait."""
        found = unpinned(self.answer, self.lesson.exercise.under_way)
        if found is None:
            return result
        line, name = found
        what = "The values are right, and the CPU executor cannot see what is missing."
        look = f"`ptx::wgmma_pin({name})` must be between the wait and what uses `{name}` next."
        failed = at(self._failed(what, look=look, kind="copy"), self.answer, line)
        words = {"name": name, "place": self.answer.place(line), "source": self.answer.source(line)}
        failed = replace(failed, where="", items=result.items, gates=result.gates, margin=result.margin)
        return stated(failed, "not pinned", words)

    # The compiler

    def _load(self) -> CheckResult | None:
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
        result = stated(self._failed(found.what, look=look, kind="error"), "does not compile")
        if found.line is not None:
            result = at(result, self.answer, found.line if found.inside else self._nearest(found.line))
        return replace(result, notes=(f"The compiler says: {found.said}",))

    def _nearest(self, line: int) -> int:
        """The line of the region next to one outside it, where an unfinished statement shows."""
        first, last = self.answer.first, self.answer.last
        if first is None or last is None or line < first:
            return line
        lines = self.answer.text.splitlines()
        full = [n for n in range(first, last + 1) if cuda_text.code_of(lines[n - 1]).strip()]
        return full[-1] if full and line <= last + 3 else line

    # Reports

    def _explained(self, found: runner.CaseResult) -> CheckResult:
        if found.kind == "error":
            return self._raised(found)
        result = self._observed(found)
        return self._repaired(result, partial(self._passes, name=found.name), "this input comes out right")

    def _repaired(self, result: CheckResult, is_right: Callable[[Answer], bool], right: str) -> CheckResult:
        """The result with the smallest change that makes the answer right, if one is found; then nothing is
        guessed.
        """
        changes = repair_cuda.smallest(self.lesson, self.answer, is_right, self._suspect(result))
        if not changes:
            return replace(result, where=" ".join(filter(None, (result.where, self.setter))))
        guess = self.lesson.exercise.advice.get("value")
        result = replace(result, look=result.look.replace(guess, "").strip() if guess else result.look)
        keeps = bool(result.cause) and result.cause not in REPORTS
        return self._with(result, changes, changes[0].line, right, keeps)

    def _observed(self, found: runner.CaseResult) -> CheckResult:
        if problems := self._problems(found):
            return self._told(found, problems)
        if found.kind in ("value", "property", "unwritten", "guard"):
            return self._wrong_value(found)
        return self._failed(f"On {self._case(found.name)}: {self._own_lines(found.message)}", kind=found.kind)

    def _problems(self, found: runner.CaseResult) -> list[KernelProblem]:
        """What the executor reports on the input that failed, in the first order of warps that shows
        anything.
        """
        inputs = runner.inputs(self.stage, found.name, self.seed) if found.name in self.names else None
        inputs = inputs or self._any_input()
        if "q" in inputs.arrays:
            self.head_dim = inputs.arrays["q"].shape[-1]
        for order in ORDERS:
            executor = Simulator(order=order, ops=False, time_limit=SECOND_LOOK)
            try:
                self.stage.run(inputs.problem(inputs.arrays), executor, self.variant)
            except Exception:  # what it did the first time is known already
                return []
            if problems := [problem for launch in executor.launches for problem in launch.problems]:
                return problems
        return []

    def _told(self, found: runner.CaseResult, problems: list[KernelProblem]) -> CheckResult:
        problem = next((p for p in problems if self._own(p)), problems[0])
        # A counter left over is found after the launch, and has neither.
        about, variable = getattr(problem, "about", ""), getattr(problem, "variable", "")
        if variable:
            # What the region reads tells more than what it declares and others read.
            same = [p for p in problems if (p.kind, p.variable) == (problem.kind, problem.variable)]
            problem = next((p for p in same if self._line_in(p.site) is not None), problem)
        text = "".join(map(self._worded, problem.pieces))
        if problem.kind == "race" and problem.other is not None and "cp_async" in problem.other.text:
            text = READ_OF_COPY.sub(r"filled by the cp.async of\1 the wait for it and this read", text)
        simply = SIMPLY_ABOUT.get(about) or f"{problem.kind}. {SIMPLY.get(problem.kind, '')}"
        if problem.kind == "missing wait" and text.count("written by") == 2:
            simply = "Two asynchronous copies or stores write the same memory, and nothing orders them"
        what = f"On {self._case(found.name)}: {simply}: {text}."
        advice = self.lesson.exercise.advice
        special = advice.get(about) or ("" if about in ALONE else advice.get(problem.kind))
        look = special or ADVICE_ABOUT.get(about) or ADVICE.get(problem.kind, "")
        result = self._failed(re.sub(r"\.\.$", ".", what), look=look, kind=_family(problem.kind))
        result = stated(result, f"reported: {problem.kind}")
        own = self._own(problem)
        sites = [site for site in (problem.site, problem.other) if site is not None]
        outside = [site for site in sites if self._line_in(site) is None]
        if not own:
            result = replace(result, where=self._outside(sites, problem.kind))
            return self._with_leaving(result)
        # Of a variable the declaration: a value is missing from there on.
        result = at(result, self.answer, own[-1 if variable else 0])
        if len(own) == 2 and own[0] != own[1]:
            one, two = (f"{self.answer.place(n)}, `{self.answer.source(n)}`" for n in own)
            result = replace(result, where=f"Between {one}, and {two}.")
        elif outside:
            result = replace(result, where=f"{result.where[:-1]}, against {self._place_of(outside[0])}.")
        return self._with_leaving(result)

    def _own(self, problem: KernelProblem) -> list[int]:
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
        name = cuda_text.function_around(text, site.line)
        calls = cuda_text.lines_calling(self.answer.text, name) if name else []
        return calls[0] if len(calls) == 1 and self.answer.inside(calls[0]) else None

    def _outside(self, sites: list, kind: str) -> str:
        places = [self._place_of(site) for site in sites]
        if len(places) == 2 and kind == "uninitialised read":
            return f"In {places[0]}. It is declared in {places[1]}, and the region should assign to it."
        if len(places) == 2:
            both = "Both are outside the region, whose lines lead to them."
            return f"Between {places[0]}, and {places[1]}. {both}"
        return f"In {places[0]}. It stands outside the region, whose lines lead to it."

    def _place_of(self, site: Any) -> str:
        """How a message names a line that is not of the region: the call in the kernel, if it is in a
        header.
        """
        text = re.sub(r"\s*//.*", "", site.text)
        place = f"{PurePath(site.file).name}:{site.line}"
        if PurePath(site.file).name == self.lesson.exercise.file:
            place = f"{self.answer.file}:{site.line}"
        called = site.caller
        by = f" (called in line {called.line})" if called is not None and called.file != site.file else ""
        return f"{place}{by}, `{text}`"

    def _with_leaving(self, result: CheckResult) -> CheckResult:
        """A word on a statement of the region with which threads leave, where barriers are missed."""
        line = self._leaving() if result.kind in ("barrier", "warp") else None
        if line is None or line == result.line:
            return result
        source = self.answer.source(line)
        return replace(
            result, where=f"{result.where} Threads leave at {self.answer.place(line)}, `{source}`."
        )

    def _worded(self, piece: Piece) -> str:
        """A piece of a report: memory by name, row and column, lines as the answer's author counts them."""
        if isinstance(piece, Memory):
            return self._named(piece)
        if isinstance(piece, Block):
            return f"(block {piece.x}, {piece.y}, {piece.z})"
        if isinstance(piece, Line) and self.answer.is_cell and self.answer.inside(piece.number):
            return self.answer.place(piece.number)
        return str(piece)

    def _named(self, memory: Memory) -> str:
        if memory.space == "nowhere":
            return "through a pointer that points at no array of the launch"
        static, dynamic = self._parts()
        if memory.space == "static":
            part = next((part for part in static if part.name == memory.array), None)
            return str(memory) if part is None else _element(part, memory.byte)
        part = memory_map.part_at(dynamic, memory.byte) if memory.space == "shared" else None
        if part is not None and self.head_dim > PANEL and self.lesson.exercise.stage in PANELS:
            part = replace(part, row=0)  # a tile is there in panels, whose rows are shorter than its own
        return str(memory) if part is None else _element(part, memory.byte - part.first)

    def _parts(self) -> tuple[list[memory_map.Part], list[memory_map.Part]]:
        """Static and dynamic parts of shared memory, of the stage's own text."""
        launches = recorded(
            edited.original(self.lesson.exercise.stage), self.variant, f"1x1x64x{self.head_dim}"
        ).launches
        launch = next((each for each in launches if each.kernel.path.name == self._kernel), launches[0])
        source, size = launch.kernel, launch.shared_bytes
        return memory_map.static_parts(source), memory_map.dynamic_parts(source, shared_bytes=size)

    @property
    def _kernel(self) -> str:
        return self.lesson.exercise.file

    def _message(self, found: runner.CaseResult) -> str:
        return self._own_lines(found.message)

    def _own_lines(self, message: str) -> str:
        """A message with lines counted as the author of the answer counts, and no folder."""
        message = re.sub(r"(?<![\w/])[\w/.-]*/(\w+\.cuh?)", r"\1", message)
        file = re.escape(self.lesson.exercise.file)
        return re.sub(rf"\b{file}:(\d+)", lambda m: self.answer.place(int(m[1])), message)

    def _raised(self, found: runner.CaseResult) -> CheckResult:
        if isinstance(found.raised, CompileError):
            return self._not_compiled_here(str(found.raised))
        what = f"On {self._case(found.name)} it cannot run: {self._own_lines(found.message)}."
        return self._failed(what, kind="error")

    # Counters

    def _launches(self, gate: Gate) -> tuple[list, CheckResult | None]:
        self.counted[gate.shape], wrong = super()._launches(gate)
        return self.counted[gate.shape], wrong

    def _run_gates(self) -> CheckResult | None:
        """The gates; of one that is missed also the share of the region's own lines in it. What the executor
        reports at a gate's shape comes first.
        """
        failed = super()._run_gates()
        reported = {
            shape: [problem for launch in launches for problem in launch.problems]
            for shape, launches in self.counted.items()
        }
        counters = zip(self.gates, self.lesson.exercise.gates, strict=False)
        self.gates = [
            gate for gate, spec in counters if not reported[spec.shape]
        ]  # such a launch may have stopped
        for shape, problems in reported.items():
            if problems:
                self.head_dim = parse(shape).head_dim
                result = self._told(runner.CaseResult(shape, False, 0.0), problems)
                is_right = partial(self._clean, shape=shape)
                return self._repaired(result, is_right, "nothing is reported at this shape")
        first = self._missed()
        if failed is None or first is None or failed.kind != "gate":
            return failed
        missed, gate = first
        result = self._shared_out(failed, missed, gate)
        return self._repaired(result, partial(self._keeps, gate=gate), "the counter keeps its bar")

    def _clean(self, answer: Answer, shape: str) -> bool:
        """Does the executor report nothing of another version of the answer at a shape?"""
        return not any(launch.problems for launch in self._launched(answer, shape))

    def _keeps(self, answer: Answer, gate: Gate) -> bool:
        """Does another version of the answer keep the bar of a gate?"""
        launches = self._launched(answer, gate.shape)
        return not any(launch.problems for launch in launches) and gate.value(launches) <= gate.bar

    def _shared_out(self, failed: CheckResult, missed: GateResult, gate: Gate) -> CheckResult:
        """The result on a missed gate with the lines of the region that make the counter high."""
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
        result = replace(failed, where=f"Counted in the region, {only}: {_listed(said)}.")
        if 2 * shares[most[0]] < missed.value:
            return result
        return replace(at(result, self.answer, most[0]), where=result.where)

    # What differs from Python in the rest

    def _leaving(self, *statements: str) -> int | None:
        return cuda_text.leaving(self.answer, *statements)

    def _float64(self) -> str:
        return ""

    def _wrong_value(self, found: runner.CaseResult) -> CheckResult:
        result = super()._wrong_value(found)
        # Where a value is named that goes wrong first, a guess from the output adds nothing.
        guess = found.cause if found.cause.endswith((".", "?")) else f"{found.cause}."
        look = result.look.removesuffix(guess).rstrip() if found.cause and result.line else result.look
        return replace(result, look=look)

    def _pointed(self, result: CheckResult, found: Any) -> CheckResult:
        if found.line is None:
            return replace(result, where=found.where)
        source = self.answer.source(found.line)
        place = self.answer.place(found.line)
        self.setter = f"The last line that sets it, or hands it to a function, is {place}: `{source}`."
        number = self.answer.number(found.line)
        return replace(result, where=found.where, line=number, line_text=source)

    def _simple_inputs(self, rng: np.random.Generator) -> dict[str, Inputs]:
        return {
            "64 rows, 64 keys": normal(rng, 1, 1, 64, 64, 64),
            "256 keys": normal(rng, 1, 1, 64, 256, 64),
            "70 keys": normal(rng, 1, 1, 64, 70, 64),
            "33 rows": normal(rng, 1, 1, 33, 64, 64),
            "the causal mask": normal(rng, 1, 1, 64, 64, 64, causal=True),
            "several heads and batches": normal(rng, 2, 2, 32, 64, 64),
            "D = 128": normal(rng, 1, 1, 32, 64, 128),
        }

    # The device compiler

    def _compile(self) -> CheckResult | None:
        """Compile for a GPU where NVIDIA's compiler is installed: it is stricter than the host's."""
        from cuda_reference import compile as device

        if (reason := device.why_not()) is not None:
            self.notes = (f"Not compiled for a GPU here: {reason}.",)
            return None
        self._step("compiling for compute capability 9.0")
        found = []
        for launch in recorded(self.stage, self.variant, "1x1x64x64").launches:
            try:
                compiled = device.compile(launch.kernel, (9, 0))
            except device.CompileError as error:
                return self._not_compiled_there(str(error))
            shared = compiled.shared_bytes + launch.shared_bytes
            found.append((compiled.registers, compiled.spill_bytes, shared, compiled.warnings))
        self.cubin = dearest(found)
        registers, spilled = self.cubin["registers"], self.cubin["spill_bytes"]
        spills = f", {spilled} bytes spilled" if spilled else ""
        self.notes = (f"Compiled for sm_90a: {registers} registers per thread{spills}.",)
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
        if not self.counted:
            return ()
        gate = self.lesson.exercise.gates[0]
        shape = gate.shape
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
        return (f"Lost to bank conflicts at {self._at(gate)}, in {_listed(said)}.",) if said else ()


def _listed(said: list[str]) -> str:
    """The first of some lines, and how many there are beyond."""
    more = len(said) - MOST_ROWS
    return "; ".join([*said[:MOST_ROWS], *([f"and {more} more"] if more > 0 else [])])


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
