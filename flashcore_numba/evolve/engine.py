"""The search: openevolve keeps islands and cells and makes prompts, and the course's judge says what lives.

openevolve would run proposals and evaluations in processes of its own. Here they run in the thread that
searches, one after the other, and only the judge has a child: so Ctrl-C leaves no process behind, nothing is
lost on the way to a worker, and a seed repeats a search.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openevolve import process_parallel
from openevolve.config import (
    Config,
    DatabaseConfig,
    EvaluatorConfig,
    LLMConfig,
    LLMModelConfig,
    PromptConfig,
)
from openevolve.population import PopulationSnapshot, ProgramState
from openevolve.utils.code_utils import extract_diffs

from cuda_reference.files import write
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.spec import Lesson, called
from flashcore_numba.evolve import ideas, lineage, region, source
from flashcore_numba.evolve.evaluate import Evaluation, evaluate
from flashcore_numba.evolve.lineage import Candidate, Record
from flashcore_numba.evolve.population import Population, program
from flashcore_numba.evolve.proposers import Asked, NothingLeftError, Proposer, Reply, UnreachableError
from flashcore_numba.records import layout
from flashcore_numba.run.progress import Progress

MACHINE_CODE = {"registers": 256.0, "shared_bytes": 256.0 * 1024}
"""Axes of the grid of cells that the compiler gives, and their upper ends; the others are what the lesson
counts. All are known without a GPU.
"""
CELLS = 32  # of an axis
MIGRATION = 8  # valid candidates of an island between two exchanges of the best
TOLD = 3  # rejected children of a parent that the next prompt tells of

Judge = Callable[..., Evaluation]
Clock = Callable[[str, str], dict[str, Any]]
"""(region, its parent's) -> `fitness` and what it is made of, with `right`: see `clock`."""


class RefusedError(RuntimeError):
    """A reply that is not evaluated. `layer` is what the record says, the message a sentence."""

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(message)
        self.layer = layer


def evolve(
    lesson: Lesson,
    proposer: Proposer,
    iterations: int,
    progress: Progress,
    *,
    islands: int = 2,
    elite: int = 3,
    seed: int = 0,
    start: str | None = None,
    folder: Path | None = None,
    judge: Judge = evaluate,
    clock: Clock | None = None,
) -> Record:
    """The record of a search, written to `folder` as it grows, and gone on with where that has one.

    iterations: proposals in all, those of a record that is gone on with included. start: the lines of the
    region to begin with, the stage's own by default. judge: `evaluate`, or what stands for it. clock: how
    valid candidates are timed on a GPU; None, and fitness is what the judge's counters make it. Raises
    ArgumentError for a start that is not valid, and for a folder with another search; UnreachableError, which
    has the record so far, where nothing answers at the address of the proposer's endpoint.
    """
    lines = region.own(lesson) if start is None else region.ended(start)
    record = lineage.new(lesson.key, proposer.name, seed, islands, lines)
    if folder is not None:
        record = lineage.resumed(folder, record)
    search = _Search(lesson, proposer, record, elite, folder, judge, clock, progress)
    search.begin()
    stopped = None
    try:
        search.run(iterations)
    except UnreachableError as error:
        stopped = error
    if folder is not None and (best := lineage.elite(record.candidates, 1)):
        write(folder / f"best{region.suffix(lesson)}", source.whole(lesson, best[0].region)[1])
    if stopped is not None:
        stopped.record = record
        raise stopped
    return record


@dataclass
class _Now:
    """The proposal that is worked on: where it comes from, and what has become of it so far."""

    number: int
    parent: int
    island: int
    region: str
    began: float
    reply: Reply | None = None
    refused: RefusedError | None = None
    found: Evaluation | None = None
    child: str = ""
    times: dict[str, Any] | None = None


class _Search(futures.Executor):
    """What openevolve takes for its pool of workers, its evaluator, its model and its trace."""

    def __init__(
        self,
        lesson: Lesson,
        proposer: Proposer,
        record: Record,
        elite: int,
        folder: Path | None,
        judge: Judge,
        clock: Clock | None,
        progress: Progress,
    ) -> None:
        self.lesson, self.proposer, self.record, self.folder = lesson, proposer, record, folder
        self.judge, self.clock, self.progress, self.elite = judge, clock, progress, elite
        self.jobs: queue.SimpleQueue[tuple[Future, Any, tuple] | None] = queue.SimpleQueue()
        self.now: _Now | None = None
        self.by_name: dict[str, _Now] = {}  # by openevolve's name, until it is admitted or not
        self.numbers: dict[str, int] = {}  # of candidates, by openevolve's names
        self.judged: dict[str, int] = {}  # regions, and the candidates that they are
        self.failure: BaseException | None = None
        for name in ("openevolve", "openai", "httpx", "httpx2"):  # it logs what the record says
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self.config = self._config()
        self.population: Any = None  # a Population, made when the start is known

    def _config(self) -> Config:
        def client(_: Any) -> "_Search":
            return self

        says = [
            ideas.system_message(self.lesson, ideas.of_island(island))
            for island in range(self.record.islands)
        ]
        axes = [*MACHINE_CODE, *(gate.what for gate in self.lesson.exercise.gates)]
        return Config(
            language=ideas.language(self.lesson),
            file_suffix=region.suffix(self.lesson),
            max_code_length=exercise.LARGEST_ANSWER,
            random_seed=self.record.seed,
            llm=LLMConfig(models=[LLMModelConfig(name=self.proposer.name, init_client=client)]),
            prompt=PromptConfig(
                template_dir=str(ideas.PROMPTS),
                island_system_messages=says,
                num_diverse_programs=0,
                use_template_stochasticity=False,
                suggest_simplification_after_chars=None,
            ),
            database=DatabaseConfig(
                num_islands=self.record.islands,
                archive_size=self.elite * self.record.islands,
                feature_dimensions=axes,
                feature_bins=dict.fromkeys(axes, CELLS),
                migration_interval=MIGRATION,
                max_snapshot_artifacts=None,
                log_prompts=False,
                random_seed=self.record.seed,
            ),
            evaluator=EvaluatorConfig(parallel_evaluations=1, cascade_evaluation=False, max_retries=0),
        )

    def begin(self) -> None:
        """Judge the start, or take the candidates of a record in again."""
        if not self.record.candidates:
            self._start()
        candidates, seed = self.record.candidates, self.record.seed
        self.population = Population(
            self.config.database,
            self.admit,
            _ranges(candidates[0], self.lesson),
            self.elite,
            seed,
            len(candidates),
        )
        for each in self.record.candidates:
            if each.region:
                self.judged.setdefault(each.region, each.number)
            if each.valid:
                self._take_in(each)
        last = len(self.record.candidates)
        for name, number in self.numbers.items():
            self.population.store_artifacts(name, self.told_of(number, last))

    def _start(self) -> None:
        self.progress.step(f"judging the start of {called(self.lesson.key)}")
        began, lines = time.monotonic(), self.record.start
        now = _Now(0, 0, 0, lines, began, Reply("", "start"), child=lines)
        now.found = self._evaluated(lines)
        now.times = self._timed(now)
        if not now.found.valid:
            raise ArgumentError(f"the start of the search is not valid: {now.found.message}")
        self._note(now, parent=None)

    def _take_in(self, each: Candidate) -> None:
        """A valid candidate into the population; the start into every island."""
        places = [each.island] if each.number else range(self.record.islands)
        parent = None if each.parent is None else str(each.parent)
        for island in places:
            name = str(each.number) if island == each.island else f"{each.number}@{island}"
            self.numbers[name] = each.number
            found = program(name, each.region, _metrics(each, self.lesson), parent, self.config.language)
            self.population.add(found, iteration=each.number, target_island=island)

    def run(self, iterations: int) -> None:
        """Go on until the record has so many proposals. openevolve's loop has a thread of its own."""
        first = len(self.record.candidates)
        left = iterations - (first - 1)
        if left <= 0:
            return
        controller = process_parallel.ProcessParallelController(
            self.config, "", self.population, self, self.config.file_suffix
        )
        process_parallel._worker_init(controller._serialize_config(self.config), "")
        process_parallel._worker_evaluator = self
        controller.executor = self

        def loop() -> None:
            try:
                asyncio.run(controller.run_evolution(first, left))
            except BaseException as error:
                self.failure = self.failure or error
            finally:
                self.jobs.put(None)

        thread = threading.Thread(target=loop, name="openevolve")
        thread.start()
        try:
            while (job := self.jobs.get()) is not None:
                self._do(*job)
                if self.failure is not None:
                    controller.request_shutdown()
        finally:
            controller.request_shutdown()
            thread.join()
            process_parallel._worker_evaluator = None
            process_parallel._run_worker_async(self.proposer.close())
            process_parallel._close_worker_event_loop()
        if self.failure is not None:
            raise self.failure
        if len(self.record.candidates) != iterations + 1:
            raise RuntimeError(
                f"the search has ended after {len(self.record.candidates) - 1} of {iterations} proposals"
            )

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future:
        """Called by openevolve's loop, in its thread."""
        future: Future = Future()
        self.jobs.put((future, function, arguments))
        return future

    def _do(self, future: Future, function: Any, arguments: tuple) -> None:
        """One proposal, from the prompt to the verdict."""
        if not future.set_running_or_notify_cancel() or self.failure is not None:
            return
        number, snapshot, parent, _ = arguments
        code = snapshot["programs"][parent]["code"]
        island = snapshot["sampling_island"]
        now = self.now = _Now(number, self.numbers[parent], island, code, time.monotonic())
        result = function(*arguments)
        if self.failure is None:
            if now.found is None and now.refused is None:
                now.refused = RefusedError("reply", f"{result.error}.")
            self._note(now, now.parent)
        future.set_result(result)

    async def generate_with_context(
        self, system_message: str, messages: list[dict[str, str]], **_: Any
    ) -> str:
        """The reply of the proposer, where all of it is about the region."""
        now = self.now
        assert now is not None
        idea = ideas.of_island(now.island)
        user = messages[-1]["content"]
        asked = Asked(now.number, idea, now.region, self.judged, system_message, user)
        try:
            now.reply = await self.proposer.propose(asked)
            if (size := len(now.reply.text)) > exercise.LARGEST_ANSWER:
                now.reply = now.reply._replace(text=now.reply.text[: exercise.LARGEST_ANSWER])
                most = f"at most {exercise.LARGEST_ANSWER} are accepted"
                raise RefusedError("reply", f"It has {size} characters; {most}.")
            if (wrong := region.outside(extract_diffs(now.reply.text), now.region)) is not None:
                raise RefusedError("region", wrong)
        except RefusedError as refused:
            now.refused = refused
            raise
        except NothingLeftError as error:
            now.refused = RefusedError("proposer", f"No proposal: {error}.")
            raise
        except ValueError as error:
            now.refused = RefusedError("reply", f"{error}.")
            raise
        except UnreachableError as error:
            self.failure = error
            raise
        except Exception as error:
            now.refused = RefusedError("proposer", str(error))
            raise
        return now.reply.text

    async def evaluate_program(self, code: str, name: str) -> dict[str, float]:
        """Raw values of the axes, and the fitness."""
        now = self.now
        assert now is not None
        child = region.ended(code)
        if child in self.judged:
            now.refused = RefusedError("repeated", f"It is candidate {self.judged[child]} again.")
            raise now.refused
        self.judged[child], now.child = now.number, child
        try:
            now.found = self._evaluated(child)
            now.times = self._timed(now)
        except Exception as error:  # of the machine, not of the candidate
            self.failure = error
            raise
        self.by_name[name] = now
        return _metrics(_candidate(self.lesson, now), self.lesson)

    def get_pending_artifacts(self, name: str) -> None:
        """What is told of a candidate comes from the record: see `told_of`."""

    def _evaluated(self, lines: str) -> Evaluation:
        """By the judge, which has a process of its own and a time limit."""
        with TemporaryDirectory(prefix="flashcore-evolve-") as place:
            name, text = source.whole(self.lesson, lines)
            path = Path(place) / name
            path.write_text(text)
            return self.judge(path, self.lesson.key)

    def _timed(self, now: _Now) -> dict[str, Any] | None:
        assert now.found is not None
        if self.clock is None or not now.found.valid:
            return None
        times = self.clock(now.child, now.region)
        if times.get("right"):
            now.found = replace(now.found, fitness=times["fitness"], basis=times["basis"])
        else:
            says = f"It is right on the CPU and not on the GPU: {times['failed']}"
            now.found = replace(now.found, valid=False, layer="device", message=says, fitness=0.0)
        return times

    def admit(self, _: PopulationSnapshot, child: ProgramState, island: int) -> bool:
        """Only valid candidates become parents: the children of others would inherit their fault."""
        if child.id in self.numbers:  # of the record
            return True
        if child.metadata.get("migrant"):
            assert child.parent_id is not None
            self.numbers[child.id] = self.numbers[child.parent_id]
            return True
        now = self.by_name.pop(child.id)
        assert now.found is not None
        self.numbers[child.id] = now.number
        if not now.found.valid:
            assert child.parent_id is not None
            self._tell(child.parent_id, now.parent, now.number)
        return now.found.valid

    def log_failure(self, iteration: int, error: str, parent_id: str | None = None, **_: Any) -> None:
        """A proposal from which no candidate was made."""
        if parent_id is not None:
            self._tell(parent_id, self.numbers[parent_id], iteration)

    def log_trace(self, **_: Any) -> None:
        """An admitted candidate, which is in the record."""

    def _tell(self, name: str, number: int, last: int) -> None:
        self.population.store_artifacts(name, self.told_of(number, last))

    def told_of(self, number: int, last: int) -> dict[str, str]:
        """What the next prompt says of a parent: its counters, and its rejected children with the reasons.

        last: the proposal after which it is asked; the next may have been judged already.
        """
        of = {each.number: each for each in self.record.candidates if each.number <= last}
        counters = "\n".join(f"{name}: {value:g}" for name, value in of[number].counters.items())
        told = {"The region, valid": counters or "nothing is counted"}
        rejected = [each for each in of.values() if each.parent == number and not each.valid]
        for each in rejected[-TOLD:]:
            lines = each.region.splitlines()
            where = (
                f"Line {each.line} of it: `{lines[each.line - 1].strip()}`"
                if each.line and each.line <= len(lines)
                else ""
            )
            title = f"Candidate {each.number}, rejected ({each.layer})"
            told[title] = "\n".join(part for part in (each.says, each.message, where, each.advice) if part)
        return told

    def _note(self, now: _Now, parent: int | None) -> None:
        """One more candidate in the record, and on disk before the next is judged."""
        made = replace(_candidate(self.lesson, now), parent=parent)
        made = Candidate(**layout.rounded(asdict(made)))  # as a search that goes on reads it
        self.record.candidates.append(made)
        lineage.save(self.folder, self.record)
        if parent is not None:
            fate = f"valid, fitness {made.fitness:.3f}" if made.valid else f"rejected: {made.layer}"
            done = len(self.record.candidates) - 1
            self.progress.step(f"candidate {done}: {made.operator}, {fate}")


def _candidate(lesson: Lesson, now: _Now) -> Candidate:
    reply = now.reply or Reply("", "none")
    made = Candidate(
        number=now.number,
        parent=now.parent,
        island=now.island,
        idea=ideas.of_island(now.island),
        operator=_written(reply.operator),
        says=_written(reply.says),
        region=now.child,
        valid=False,
        reply=_written(reply.text),
        seconds=round(time.monotonic() - now.began, 2),
        times=now.times,
    )
    if now.refused is not None:
        return replace(made, layer=now.refused.layer, message=_written(str(now.refused)))
    found = now.found
    assert found is not None
    first = exercise.region(lesson.exercise).first_line
    count = len(now.child.splitlines())
    inside = found.line is not None and first <= found.line < first + count
    return replace(
        made,
        valid=found.valid,
        layer=found.layer or "",
        message=found.message,
        line=found.line - first + 1 if found.line is not None and inside else None,
        advice=found.advice,
        counters=dict(found.counters),
        cubin=found.cubin,
        fitness=found.fitness,
        basis=found.basis,
        seed=found.seed,
    )


def _written(text: str) -> str:
    """The text as a file can hold it: `?` for half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def _metrics(each: Candidate, lesson: Lesson) -> dict[str, float]:
    """What openevolve keeps of a candidate: raw values of the axes, 0 where nobody has counted."""
    cubin = each.cubin or {}
    compiled = {name: float(cubin.get(name) or 0) for name in MACHINE_CODE}
    counted = {gate.what: each.counters.get(gate.what, 0.0) for gate in lesson.exercise.gates}
    return {"combined_score": each.fitness} | compiled | counted


def _ranges(start: Candidate, lesson: Lesson) -> dict[str, float]:
    """The upper ends of the axes: of what is counted, twice what the start has."""
    found = _metrics(start, lesson)
    return MACHINE_CODE | {gate.what: 2 * found[gate.what] or 1.0 for gate in lesson.exercise.gates}
