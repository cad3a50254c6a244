"""Where a wrong answer leaves the right path: its values at the region's end beside those of the solution."""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.checks.mutation import imported, sources
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import cuda_probe
from flashcore_numba.course.spec import Exercise, Lesson, Wanted
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator import Probed
from flashcore_numba.stages import Stage

LABEL = "region"
PROBE = "_flashcore_probe"
# Of the largest value: far above the rounding of float32, far below a mistake; then, where that finds
# nothing in an answer which is wrong, just above the rounding.
NOISE = (1e-4, 1e-5)
PLACES = ("b", "h", "row", "first_key", "warp", "lane", "col")  # names that say where a lane is
MAX_TURNS = 10_000
Values = list["Visit"]


@dataclass(frozen=True)
class Divergence:
    """The first difference. `where` and `look` are sentences; `line` is the line of the answer's module that
    last sets the value, None where none does."""

    expression: str
    where: str
    look: str
    line: int | None
    right: tuple[str, ...] = ()  # expressions that were compared before this one


@dataclass(frozen=True)
class Visit:
    """One arrival at the region's end: every value is [..., lanes] or None; `places` name -> one a lane."""

    number: int
    active: np.ndarray
    values: tuple[np.ndarray | None, ...]
    places: dict[str, np.ndarray]


def find(lesson: Lesson, answer: Answer, inputs: Inputs) -> Divergence | None:
    """Run the answer and the solution on the same input and compare what `Exercise.wanted` names, in order.

    None where the exercise names nothing that the answer has, or where nothing differs.
    """
    if answer.first is None or answer.last is None:
        return None
    if answer.is_cuda:
        return _of_cuda(lesson, answer, inputs)
    known = _names(answer)
    solution = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    if lesson.exercise.stage == 0:
        mine, wanted, theirs, ours = _of_python(lesson, answer, solution, inputs)
        if not theirs:
            return Divergence("", "No query row comes to the end of the region.", "", None)
        return _first(lesson, answer, mine, theirs, ours) if wanted else None
    wanted = [w for w in lesson.exercise.wanted if _read(w.expression) <= known]
    if not wanted:
        return None
    # Of an array of the thread's own the lesson names an element; the others have to be right too.
    arrays = dict.fromkeys(_base(w.expression) for w in wanted if "[" in w.expression)
    named = {w.expression for w in wanted}
    wanted += [Wanted(name, "every element of it") for name in arrays if name not in named]
    places = [name for name in PLACES if _is_outside(name, lesson.exercise)]
    theirs = _values(lesson, answer, wanted, places, inputs)
    ours = _values(lesson, solution, wanted, places, inputs)
    if not theirs:
        return Divergence("", "No thread of your kernel comes to the end of the region.", "", None)
    return _first(lesson, answer, wanted, theirs, ours)


def _of_cuda(lesson: Lesson, answer: Answer, inputs: Inputs) -> Divergence | None:
    wanted = cuda_probe.usable(answer, lesson.exercise.wanted)
    if not wanted:
        return None
    solution = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    theirs, ours = (cuda_probe.values(lesson, each, wanted, inputs) for each in (answer, solution))
    if not theirs:
        return Divergence("", "No thread of your kernel comes to the end of the region.", "", None)
    if [len(places["block"]) for _, places, _ in theirs] != [len(places["block"]) for _, places, _ in ours]:
        mine, right = (sum(len(places["block"]) for _, places, _ in each) for each in (theirs, ours))
        if mine != right:
            where = f"Threads come to the end of the region {mine:,} times; in the solution {right:,} times."
            return Divergence("", where, "Which threads leave, or skip it, and how often does it run?", None)
        return None
    return _first(lesson, answer, wanted, *map(_visits_of_cuda, (theirs, ours)))


def _visits_of_cuda(noted: list[tuple[int, dict, list]]) -> Values:
    return [
        Visit(number, np.ones(len(places["block"]), bool), tuple(values), places)
        for number, places, values in noted
    ]


def _first(
    lesson: Lesson, answer: Answer, wanted: Sequence[Wanted], theirs: Values, ours: Values
) -> Divergence | None:
    for noise in NOISE:
        for pair in zip(theirs, ours, strict=False):
            for index in range(len(wanted)):
                found = _compare(pair[0].values[index], pair[1].values[index], pair[1].active, noise)
                if found is not None:
                    return _told(lesson, answer, wanted, index, theirs, ours, pair, found)
    return None


def _read(expression: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}


def _names(answer: Answer) -> set[str]:
    """What the functions around the region take or name."""
    return {
        node.arg if isinstance(node, ast.arg) else node.id
        for function in ast.walk(ast.parse(answer.text))
        if isinstance(function, ast.FunctionDef)
        and function.lineno < (answer.first or 0) <= (function.end_lineno or 0) + 1
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.arg)
    }


def _is_outside(name: str, task: Exercise) -> bool:
    """Is this name set in the exercise's function before the region?"""
    text, found = exercise.source_text(task.file), exercise.region(task)
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or not (
            function.lineno < found.first_line <= (function.end_lineno or 0)
        ):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.arg) and node.arg == name:
                return True
            is_set = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
            if is_set and getattr(node, "lineno", 0) < found.first_line:
                return True
    return False


# Reading the values


def _values(
    lesson: Lesson, answer: Answer, wanted: Sequence[Wanted], places: list[str], inputs: Inputs
) -> Values:
    expressions = [w.expression for w in wanted]
    call = f'{PROBE}("{LABEL}", {", ".join([*expressions, *places])})'
    text = _at_the_end(lesson, answer, [call])
    text += f"\n\nfrom flashcore_numba.simulator import probe as {PROBE}\n"
    texts, main = sources(lesson.exercise.stage)
    texts[lesson.exercise.file] = text
    with imported(texts, main) as stage:
        executor = Simulator(max_turns=MAX_TURNS, races=False, ops=False)
        _launch(stage, lesson.exercise.variant, inputs, executor)
    count = len(expressions)
    return [
        Visit(
            probed.visit,
            probed.active,
            probed.values[:count],
            {n: v for n, v in zip(places, probed.values[count:], strict=True) if v is not None}
            | {"block": probed.block, "thread": probed.thread},
        )
        for launch in executor.launches
        for probed in launch.probes
        if isinstance(probed, Probed) and probed.label == LABEL
    ]


def _of_python(lesson: Lesson, answer: Answer, solution: Answer, inputs: Inputs):
    """Lesson 00 runs in Python, where an answer may name its steps as it likes: what it holds is found by
    value.

    Returns the steps under the answer's own names, the same as the lesson names them, and the values of
    both.
    """
    theirs, ours = (_rows_of_python(lesson, a, inputs) for a in (answer, solution))
    own = [name for name in _stored_in_order(answer) if all(name in row for row in theirs)]
    mine: list[Wanted] = []
    wanted: list[Wanted] = []
    for w in lesson.exercise.wanted:
        name, meaning = w.expression, w.meaning
        if "[" not in name and name not in own:
            name, what = _name_by_value(name, own, [m.expression for m in mine], theirs, ours)
            meaning = f"{what} `{w.expression}`, {w.meaning}"
        if name:
            mine.append(Wanted(name, meaning))
            wanted.append(w)
    names = [m.expression for m in mine]
    return mine, wanted, _visits(theirs, names), _visits(ours, [w.expression for w in wanted])


def _name_by_value(wanted: str, own: list[str], taken: list[str], theirs, ours) -> tuple[str, str]:
    """The answer's variable that holds a step in every row, or a vector that comes near it; "" if none."""
    pairs = list(zip(theirs, ours, strict=False))
    free = [name for name in own if name not in taken]
    free = [name for name in free if all(a[name].shape == b[wanted].shape for a, b in pairs)]
    for name in free:
        if pairs and all(np.allclose(a[name], b[wanted], rtol=1e-4, atol=1e-9) for a, b in pairs):
            return name, "your name for"
    several = [(a, b) for a, b in pairs if b[wanted].size > 2]
    for name in free:
        if several and all(_follows(a[name], b[wanted]) for a, b in several):
            return name, "which comes nearest to"
    return "", ""


def _follows(got: np.ndarray, expected: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        return bool(abs(np.corrcoef(got.ravel(), expected.ravel())[0, 1]) > 0.9)


def _rows_of_python(lesson: Lesson, answer: Answer, inputs: Inputs) -> list[dict[str, np.ndarray]]:
    """What the names of the answer hold where the region ends, row by row."""
    text = _at_the_end(
        lesson, answer, [f'{PROBE}.append({PROBE}_numbers(locals() | {{"out[row]": out[row]}}))']
    )
    text += f"\n\nfrom flashcore_numba.course.judge.divergence import numbers as {PROBE}_numbers\n"
    text += f"\nSTAGE.launch.kept = {PROBE} = []\n"
    texts, main = sources(lesson.exercise.stage)
    texts[lesson.exercise.file] = text
    with imported(texts, main) as stage:
        _launch(stage, None, inputs, None)
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


def _visits(rows: list[dict[str, np.ndarray]], names: list[str]) -> Values:
    return [
        Visit(
            number,
            np.ones(1, bool),
            tuple(row.get(name) for name in names),
            {"row": row["row"].reshape(-1), "block": np.zeros(1), "thread": np.full(1, number)},
        )
        for number, row in enumerate(rows)
    ]


def _stored_in_order(answer: Answer) -> list[str]:
    """The names that the region sets, in the order of its lines."""
    nodes = [
        node
        for node in ast.walk(ast.parse(answer.text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and answer.inside(node.lineno)
    ]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in nodes))


def _at_the_end(lesson: Lesson, answer: Answer, lines: list[str]) -> str:
    """The module's text with lines added where the region ends."""
    assert answer.last is not None
    every = answer.text.splitlines()
    indent = " " * exercise.region(lesson.exercise).indent
    every[answer.last : answer.last] = [indent + line for line in lines]
    return "\n".join(every)


def _launch(stage: Stage, variant: str | None, x: Inputs, executor: Any) -> None:
    stage.run(x.problem(x.arrays), executor, variant)


# Comparing


@dataclass(frozen=True)
class _Found:
    """Which lanes differ; `got` and `expected` [..., lanes], None where there is no value."""

    lanes: np.ndarray
    got: np.ndarray | None
    expected: np.ndarray


def _compare(got, expected, active, noise: float) -> _Found | None:
    if expected is None:
        return None
    if got is None or got.shape != expected.shape:
        return _Found(active.copy(), got, expected)
    with np.errstate(all="ignore"):
        numbers = expected[..., active]
        finite = np.abs(numbers[np.isfinite(numbers)])
        allowed = noise * max(float(finite.max(initial=0)), 1e-6)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | (np.abs(got - expected) <= allowed)
    bad = ~same
    while bad.ndim > 1:
        bad = bad.any(axis=0)
    bad &= active
    return _Found(bad, got, expected) if bad.any() else None


# Telling


def _told(lesson, answer, wanted, index, theirs, ours, pair, found: _Found) -> Divergence:
    what = wanted[index]
    lane = int(np.flatnonzero(found.lanes)[0])
    visit = pair[1]
    several = max(v.number for v in ours) > 0
    place = _place(lesson, visit, lane, several)
    number, component = _pick(found, lane)
    shown = "has no value" if found.got is None else f"is {_number(found.got, component, lane)}"
    if found.got is not None and found.got.shape != found.expected.shape:
        shown = f"has {found.got.shape[0]} elements, not {found.expected.shape[0]}"
        text = f"`{what.expression}` ({what.meaning}) {shown}"
    else:
        if found.got is not None and shown == f"is {number}":
            shown = f"is {_number(found.got, component, lane, 8)}"
            number, _ = _pick(found, lane, 8)
        at = f" at element [{', '.join(map(str, component))}]" if component else ""
        text = f"`{what.expression}` ({what.meaning}){at} {shown}, expected {number}"
    where = f"Where the region ends, {place}: {text}."
    agree = [w.expression for w in wanted[:index] if visit.values[wanted.index(w)] is not None]
    if agree:
        where += f" {_listed(agree)} {'is' if len(agree) == 1 else 'are'} right there."
    if visit.number > 0 and several and answer.is_cuda:
        where += " Before that everything was right there."
    elif visit.number > 0 and several and lesson.number:
        where += " Up to the tile before, everything was right there."
    look = _relation(wanted, index, pair, found, _before(ours, visit))
    value = math.nan
    if found.got is not None and found.got.shape == found.expected.shape:
        value = float(np.atleast_1d(found.got[..., lane])[component or 0])
    line = last_set(answer, what.expression, value)
    if lesson.exercise.stage == 0:
        look = look.replace("in every lane", "in every element")
    if line is None and not ("[" in what.expression and _is_used(answer, _base(what.expression))):
        look = f"Your answer never changes `{_base(what.expression)}`. {look}".strip()
    return Divergence(what.expression, where, look, line, tuple(agree))


def _is_used(answer: Answer, array: str) -> bool:
    """Does the region name an array at all? A call or a slice may change it."""
    if answer.is_cuda:
        return array in cuda_probe.words("\n".join(answer.lines))
    return any(
        isinstance(node, ast.Name) and node.id == array and answer.inside(node.lineno)
        for node in ast.walk(ast.parse(answer.text))
    )


def _pick(found: _Found, lane: int, digits: int = 5) -> tuple[str, tuple[int, ...]]:
    """The expected number at the first component that differs, and that component."""
    expected = found.expected[..., lane]
    if expected.ndim == 0:
        return _shown(float(expected), digits), ()
    if found.got is None or found.got.shape != found.expected.shape:
        return "", ()
    with np.errstate(all="ignore"):
        error = np.nan_to_num(np.abs(found.got[..., lane] - expected), nan=np.inf)
    component = tuple(int(i) for i in np.unravel_index(error.argmax(), error.shape))
    if expected.size == 1:
        return _shown(float(expected[component]), digits), ()
    return _shown(float(expected[component]), digits), component


def _number(values: np.ndarray, component: tuple[int, ...], lane: int, digits: int = 5) -> str:
    value = values[..., lane]
    return _shown(float(value[component] if component else value.reshape(-1)[0]), digits)


def _shown(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}"


def _place(lesson: Lesson, visit: Visit, lane: int, several: bool) -> str:
    at = {name: int(np.broadcast_to(v, len(visit.active))[lane]) for name, v in visit.places.items()}
    if lesson.exercise.stage == 0:
        return f"for query row {at['row']}"
    if set(visit.places) == {"block", "thread"}:  # in CUDA C nothing else is known of a thread
        thread = f"thread {at['thread']} (warp {at['thread'] // 32}, lane {at['thread'] % 32})"
        turn = f", the {_ordinal(visit.number + 1)} time it comes there" if several else ""
        return f"{thread} of block {at['block']}{turn}"
    parts = []
    if several:
        keys = f" (keys from {at['first_key']})" if "first_key" in at else ""
        parts.append(f"in K/V tile {visit.number}{keys}")
    if at.get("b") or at.get("h"):
        parts.append(f"batch {at.get('b', 0)}, head {at.get('h', 0)}")
    if "row" in at:
        parts.append(f"query row {at['row']}")
    if "lane" in at:
        parts.append(f"lane {at['lane']}")
    elif "col" in at:
        parts.append(f"thread {at['thread']} (column {at['col']})")
    return ", ".join(parts)


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _before(ours: Values, visit: Visit) -> Visit | None:
    """The visit of the same lanes one turn earlier."""
    earlier = [v for v in ours if v.number == visit.number - 1 and _same_lanes(v, visit)]
    return earlier[-1] if earlier else None


def _same_lanes(one: Visit, other: Visit) -> bool:
    return all(np.array_equal(one.places[name], other.places[name]) for name in ("block", "thread"))


def _relation(wanted, index, pair, found: _Found, before: Visit | None) -> str:
    """What the wrong value has to do with the right one, in a sentence, or nothing."""
    if found.got is None or found.got.shape != found.expected.shape:
        return ""
    active = pair[1].active
    got, expected = found.got[..., active].ravel(), found.expected[..., active].ravel()
    lanes = found.got[..., found.lanes]
    if np.isnan(lanes[..., 0]).any():
        return "It is NaN: 0 / 0, inf - inf, 0 * inf, or memory that was never written."
    if np.isnan(lanes).any():
        return "In other lanes it is NaN: 0 / 0, inf - inf, 0 * inf, or memory that was never written."
    if np.isposinf(lanes).any():
        return "It is infinite: an exponential whose exponent is far above 0, or a division by 0."
    if before is not None and _alike(found.got[..., active], before.values[index], active):
        return "It still has the value that it had before this tile."
    if not got.any():
        return "It is 0 in every lane."
    spread = _spread(found, active)
    if spread:
        return spread
    sentence = _factor(got, expected)
    if sentence:
        return sentence
    for other, what in enumerate(wanted):
        if other != index and _alike(found.got[..., active], pair[1].values[other], active):
            return f"It holds what `{what.expression}` should be."
    if before is not None and index < len(before.values):
        for other, what in enumerate(wanted):
            if _alike(found.got[..., active], before.values[other], active):
                return f"It holds what `{what.expression}` was one tile earlier."
    count, total = int(found.lanes.sum()), int(active.sum())
    some = f"{count} of {total} threads that come there have a wrong value." if count < total else ""
    return " ".join(filter(None, (_anothers(wanted, pair[1], found), some)))


def _anothers(wanted, visit: Visit, found: _Found) -> str:
    """Does the first wrong thread hold what another thread of its block should hold?"""
    lane = int(np.flatnonzero(found.lanes)[0])
    blocks, threads = visit.places["block"], visit.places["thread"]
    mates = np.flatnonzero((blocks == blocks[lane]) & visit.active)
    value = found.got[lane] if found.got is not None and found.got.ndim == 1 else math.nan
    if not math.isfinite(value) or abs(value) < 1e-3:
        return ""
    for what, values in zip(wanted, visit.values, strict=True):
        if values is None or values.ndim != 1:
            continue
        same = mates[np.isclose(values[mates], value, rtol=1e-5)]
        if len(same) == 1 and same[0] != lane:
            mine, theirs = threads[lane], threads[same[0]]
            return f"Thread {mine} holds what `{what.expression}` of thread {theirs} should be."
    return ""


def _alike(got: np.ndarray, other: np.ndarray | None, active: np.ndarray) -> bool:
    if other is None or other[..., active].shape != got.shape:
        return False
    return np.allclose(got, other[..., active], rtol=1e-4, atol=1e-6, equal_nan=True)


def _spread(found: _Found, active: np.ndarray) -> str:
    """Do the lanes of a warp agree where they should differ, or differ where they should agree?"""
    got, expected = found.got, found.expected
    if got is None or got.ndim != 1 or len(got) % 32:
        return ""
    whole = active.reshape(-1, 32).all(1)
    mine, right = got.reshape(-1, 32)[whole], expected.reshape(-1, 32)[whole]
    if not len(mine):
        return ""
    with np.errstate(all="ignore"):
        mine_same = bool((np.isclose(mine, mine[:, :1], rtol=1e-5) | (mine == mine[:, :1])).all())
        right_same = bool((np.isclose(right, right[:, :1], rtol=1e-5) | (right == right[:, :1])).all())
    if right_same and not mine_same:
        return "All 32 lanes of a warp should hold the same value; yours hold different ones."
    if mine_same and not right_same:
        return "Each lane should hold a value of its own; yours hold one value in the whole warp."
    return ""


def _factor(got: np.ndarray, expected: np.ndarray) -> str:
    finite = np.isfinite(got) & np.isfinite(expected)
    got, expected = got[finite], expected[finite]
    large = np.abs(expected) > 1e-3 * np.abs(expected).max(initial=0)
    if large.sum() < 2:
        return ""
    ratio = got[large] / expected[large]
    factor = float(np.median(ratio))
    if factor != 0 and np.allclose(ratio, factor, rtol=1e-3) and abs(factor - 1) > 1e-3:
        if math.isclose(factor, -1, rel_tol=1e-3):
            return "It has the wrong sign."
        names = {
            8.0: "sqrt(D)",
            1 / 8: "1 / sqrt(D)",
            1 / 64: "the scale twice",
            math.log2(math.e): "log2(e)",
        }
        known = next(
            (f", {name}" for value, name in names.items() if math.isclose(factor, value, rel_tol=1e-3)), ""
        )
        return f"It is {factor:.4g} times what it should be in every lane{known}."
    difference = got - expected
    off = abs(difference[0]) > 1e-6
    if off and np.allclose(difference, difference[0], rtol=1e-3, atol=1e-6):
        return f"It is off by the same {difference[0]:.4g} in every lane."
    return ""


def _base(expression: str) -> str:
    match = re.search(r"[A-Za-z_]\w*", expression)
    return match[0] if match else expression


def last_set(answer: Answer, expression: str, value: float = math.nan) -> int | None:
    """The last line of the region that gives the value of an expression something new. A line that sets a
    constant is not meant where `value`, what the expression was found to be, is another number."""
    if answer.is_cuda:
        return cuda_probe.last_set(answer, expression)
    name = _base(expression)
    lines: dict[int, float | None] = {}
    for statement in ast.walk(ast.parse(answer.text)):
        if not isinstance(statement, ast.stmt) or answer.first is None:
            continue
        if name in _handed_over(statement) and answer.inside(statement.lineno):
            lines[statement.lineno] = None
        for node in _own_nodes(statement):
            target = node
            if isinstance(node, ast.Subscript | ast.Name) and isinstance(node.ctx, ast.Store):
                while isinstance(target, ast.Subscript):
                    target = target.value
                if isinstance(target, ast.Name) and target.id == name and answer.inside(node.lineno):
                    lines[node.lineno] = _constant(statement)
    meant = [line for line, constant in lines.items() if constant is None or constant == value]
    return max(meant or lines, default=None)


def _handed_over(statement: ast.stmt) -> set[str]:
    """The names that a call which stands alone takes: it may write to those that are arrays."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return set()
    return {argument.id for argument in statement.value.args if isinstance(argument, ast.Name)}


def _own_nodes(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement without those of the statements in it."""
    found: list[ast.AST] = [statement]
    for node in found:
        found += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return found


def _constant(statement: ast.stmt) -> float | None:
    """The number that `x = 0` or `x = float32(0)` sets."""
    node = statement.value if isinstance(statement, ast.Assign) else None
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "float32"
        and node.args
    ):
        node = node.args[0]
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value) if is_number else None  # type: ignore[union-attr, arg-type]


def copied_from(answer: Answer, line: int) -> tuple[str, int] | None:
    """Where a line of the region only passes on a variable, `m = m_new`: that variable, and the last line of
    the region up to there that sets it."""
    for node in ast.walk(ast.parse(answer.text)):
        if isinstance(node, ast.Assign) and node.lineno == line and isinstance(node.value, ast.Name):
            name = node.value.id
            lines = [
                n.lineno
                for n in ast.walk(ast.parse(answer.text))
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name
            ]
            before = [n for n in lines if answer.inside(n) and n < line]
            return (name, max(before)) if before else None
    return None


def operands(answer: Answer, line: int, right: Sequence[str]) -> list[tuple[str, int]]:
    """The answer's own variables that a line reads, and the earlier line that sets each; not those whose
    value is in an expression of `right`."""
    statements = [n for n in ast.walk(ast.parse(answer.text)) if isinstance(n, ast.stmt)]
    statements = [n for n in statements if answer.inside(n.lineno)]
    mine = [
        n for n in statements if n.lineno == line and isinstance(n, ast.Assign | ast.AugAssign | ast.Expr)
    ]
    if not mine:
        return []
    targets, known = _targets(mine[-1]), set(map(_base, right))
    for n in statements:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name) and _targets(n) & known:
            known.add(n.value.id)
    names = [n.id for n in _own_nodes(mine[-1]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    found = []
    for name in dict.fromkeys(names):
        lines = [n.lineno for n in statements if isinstance(n, ast.Assign) and name in _targets(n)]
        before = [n for n in lines if n < line]
        if before and name not in targets | known:
            found.append((name, max(before)))
    return found


def _targets(statement: ast.stmt) -> set[str]:
    """The names that an assignment changes, those of arrays too."""
    nodes = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    found = set()
    for node in nodes:
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        for part in parts:
            while isinstance(part, ast.Subscript):
                part = part.value
            if isinstance(part, ast.Name):
                found.add(part.id)
    return found


def float64_constants(answer: Answer) -> list[tuple[int, str]]:
    """Lines of the region with a plain Python float that no `float32(...)` converts, and that float."""
    found = []

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float32":
            return
        is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
        is_float |= isinstance(node, ast.Attribute) and ast.unparse(node) in ("math.inf", "math.e", "math.pi")
        if is_float and answer.first is not None and answer.inside(node.lineno):  # type: ignore[attr-defined]
            found.append((node.lineno, ast.unparse(node)))  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            look(child)

    look(ast.parse(answer.text))
    return found
