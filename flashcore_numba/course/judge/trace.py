"""What the region of an answer in Python did, visit by visit: its values at its end, and what set them."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.checks.trial import Inputs
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.spec import Lesson, State
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator import Probed
from flashcore_numba.stages import Stage, edited

START, SET, END = "begins", "sets ", "ends"
PROBE = "_flashcore_probe"
DEEPEST = 1  # loops of the region around a statement whose values are kept
MAX_TURNS = 10_000
Numbers = np.ndarray | None  # [..., lanes], or nothing that has a value


@dataclass(frozen=True)
class Event:
    """A statement of the region ran: in which lanes, and what its targets were after it."""

    line: int
    active: np.ndarray
    values: Mapping[str, Numbers]


@dataclass(frozen=True)
class Visit:
    """One arrival at the region's end: every value is [..., lanes] or None; `places` name -> one per lane.

    trail: what ran since the region's beginning, for answers in Python. state: what formulas of slips read.
    """

    number: int
    active: np.ndarray
    values: tuple[Numbers, ...]
    places: dict[str, np.ndarray]
    trail: tuple[Event, ...] = ()
    state: State | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """What two runs of the same lanes have in common."""
        return self.number, int(self.places["block"][0]), int(self.places["thread"][0])


def statements(answer: Answer) -> Iterator[tuple[ast.stmt, int]]:
    """The statements of the region that may set something, and how many loops of the region are around."""

    def walk(node: ast.AST, depth: int) -> Iterator[tuple[ast.stmt, int]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.excepthandler):
                continue
            inside = isinstance(child, ast.stmt) and answer.inside(child.lineno)
            if inside and isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                yield child, depth
            yield from walk(child, depth + (inside and isinstance(child, ast.For | ast.While)))

    yield from walk(ast.parse(answer.text), 0)


def targets(statement: ast.stmt) -> dict[str, str]:
    """What a statement sets or may set: expression -> the name that it is of."""
    if isinstance(statement, ast.Expr):
        return {name: name for name in handed_over(statement)}
    nodes = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    found = {}
    for node in nodes:
        for part in node.elts if isinstance(node, ast.Tuple) else [node]:
            if name := name_of(part):
                found[ast.unparse(part)] = name
    return found


def name_of(target: ast.expr) -> str:
    """The variable that a target is of: `o` of `o[i][j]`; "" where it is of none."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def handed_over(statement: ast.stmt) -> set[str]:
    """The names that a call which stands alone takes: it may write to those that are arrays."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return set()
    return {argument.id for argument in statement.value.args if isinstance(argument, ast.Name)}


def kept(answer: Answer) -> dict[int, ast.stmt]:
    """The statements that a trail can have, by their first lines: alone on them, and not in inner loops."""
    every = [n for n in ast.walk(ast.parse(answer.text)) if isinstance(n, ast.stmt)]
    found = {}
    for statement, depth in statements(answer):
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        begin_here = sum(first <= other.lineno <= last for other in every)
        if depth <= DEEPEST and begin_here == 1 and targets(statement):
            found[first] = statement
    return found


def _noting(
    lesson: Lesson, answer: Answer, begins: str, note: str, ends: str, more: str
) -> AbstractContextManager[Stage]:
    """The stage with the answer in it, while the context is open, and with lines that take notes: one before
    the region, one after it, `more` at the module's end, and after each kept statement `note`, in which
    `{line}` and `{targets}` are the statement's.
    """
    assert answer.first is not None and answer.last is not None
    lines, indent = answer.text.splitlines(), " " * exercise.region(lesson.exercise).indent
    added = [(answer.first - 1, indent + begins)]
    for line, statement in kept(answer).items():
        text = note.format(line=line, targets=", ".join(targets(statement)))
        added.append((statement.end_lineno or line, " " * statement.col_offset + text))
    added.append((answer.last, indent + ends))
    for after, text in reversed(added):
        lines.insert(after, text)
    return edited.loaded(lesson.exercise.stage, {lesson.exercise.file: "\n".join([*lines, more, ""])})


def of_kernel(
    lesson: Lesson, answer: Answer, expressions: Sequence[str], more: Sequence[str], places: Sequence[str],
    inputs: Inputs,
) -> list[Visit]:  # fmt: skip
    """Run a kernel for Numba. expressions: what a visit's values are. more: what its state has beyond."""
    noted = [*expressions, *more]
    arguments = ", ".join([*noted, *places])
    with _noting(
        lesson,
        answer,
        begins=f'{PROBE}("{START}", {arguments})',
        note=f'{PROBE}("{SET}{{line}}", {{targets}})',
        ends=f'{PROBE}("{END}", {arguments})',
        more=f"from flashcore_numba.simulator import probe as {PROBE}",
    ) as stage:
        executor = Simulator(max_turns=MAX_TURNS, races=False, ops=False)
        stage.run(inputs.problem(inputs.arrays), executor, lesson.exercise.variant)
    named = {line: list(targets(statement)) for line, statement in kept(answer).items()}
    visits: list[Visit] = []
    begun: dict[tuple[int, int], tuple[Probed, list[Event]]] = {}
    for probed in (p for launch in executor.launches for p in launch.probes if isinstance(p, Probed)):
        lanes = int(probed.block[0]), int(probed.thread[0])
        if probed.label == START:
            begun[lanes] = probed, []
        elif probed.label.startswith(SET) and lanes in begun:
            line = int(probed.label.removeprefix(SET))
            begun[lanes][1].append(
                Event(line, probed.active, dict(zip(named[line], probed.values, strict=True)))
            )
        elif probed.label == END and lanes in begun:
            start, trail = begun[lanes]
            found = dict(zip(places, probed.values[len(noted) :], strict=True))
            at = {name: values for name, values in found.items() if values is not None}
            at |= {"block": probed.block, "thread": probed.thread}
            end, first = (dict(zip(noted, each.values, strict=False)) for each in (probed, start))
            state = State(end, first, at, inputs)
            values = probed.values[: len(expressions)]
            visits.append(Visit(probed.visit, probed.active, values, at, tuple(trail), state))
    return visits


def of_rows(lesson: Lesson, answer: Answer, inputs: Inputs) -> list[tuple[dict[str, np.ndarray], list[int]]]:
    """Run plain Python: what the names hold where the region ends, row by row, and the lines that ran."""
    with _noting(
        lesson,
        answer,
        begins=f"{PROBE}_lines.clear()",
        note=f"{PROBE}_lines.append({{line}})",
        ends=f'{PROBE}.append(({PROBE}_numbers(locals() | {{"out[row]": out[row]}}), list({PROBE}_lines)))',
        more=f"from flashcore_numba.course.judge.trace import numbers as {PROBE}_numbers\n"
        f"STAGE.launch.kept = {PROBE} = []\n{PROBE}_lines = []",
    ) as stage:
        stage.run(inputs.problem(inputs.arrays), Simulator())
        return stage.launch.kept  # type: ignore[attr-defined]


def numbers(names: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Those of some variables that are numbers or vectors of numbers, copied, as [elements, 1]: one lane."""
    found = {}
    for name, value in names.items():
        if isinstance(value, int | float | list | tuple | np.ndarray | np.generic):
            try:
                found[name] = copy(np.asarray(value, np.float64)).reshape(-1, 1)
            except (TypeError, ValueError):
                continue
    return found
