"""Where a wrong answer leaves the right path: its values at the region's end beside those of the solution."""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flashcore_numba.checks.trial import Inputs
from flashcore_numba.course import cuda_text, exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import cuda_probe, trace
from flashcore_numba.course.judge.trace import Visit
from flashcore_numba.course.spec import Exercise, Lesson, State, Wanted

# Of the largest value: far above the rounding of float32, far below a mistake; then, where that finds
# nothing in an answer which is wrong, just above the rounding.
NOISE = (1e-4, 1e-5)
SLIP = 1e-5
MANY = 64  # lanes that a slip must explain: fewer may hold its value by chance
PLACES = ("b", "h", "row", "key", "first_key", "warp", "lane", "col")  # names that say where a lane is
Values = list[Visit]
Rows = list[dict[str, np.ndarray]]  # what the names of an answer in Python hold, by query row


@dataclass(frozen=True)
class Divergence:
    """The first difference. `where` and `look` are sentences; `line` is the line of the answer's module that
    last sets the value, None where none does. cause: a key of `causes.CAUSES` that the source or the values
    prove, "" where none is known; words: what its sentence leaves open. setters: the lines that ran and made
    the value, the last one first, with the name that each set; none in CUDA C. finite: whether the wrong
    value is a number.
    """

    expression: str
    where: str
    look: str
    line: int | None
    right: tuple[str, ...] = ()  # expressions that were compared before this one
    cause: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    setters: tuple[tuple[str, int], ...] = ()
    finite: bool = False


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
    names = [w.expression for w in wanted]
    theirs = trace.of_kernel(lesson, answer, names, (), places, inputs)
    ours = trace.of_kernel(lesson, solution, names, lesson.exercise.probed, places, inputs)
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
    right = {visit.key: visit for visit in ours}
    pairs = [(visit, right[visit.key]) for visit in theirs if visit.key in right]
    for noise in NOISE:
        for pair in pairs:
            for index in range(len(wanted)):
                found = _compare(pair[0].values[index], pair[1].values[index], pair[1].active, noise)
                if found is not None:
                    told = _told(lesson, answer, wanted, index, ours, pair, found)
                    slip = _slip(lesson.exercise, wanted[index].expression, index, pair[1].number, pairs)
                    return replace(told, cause=slip, words={}) if slip else told
    return None


def _slip(
    task: Exercise, expression: str, index: int, number: int, every: Sequence[tuple[Visit, Visit]]
) -> str:
    """The cause of the one slip whose value the wrong variable has, in every lane of one visit. Where this is
    what it had before, as if nothing had set it, in every lane of the next visit, too.
    """
    causes = set()
    pairs = [each for each in every if each[1].number == number]
    kept = all(_is(r.state.start.get(expression), m, index, r) for m, r in pairs if r.state)
    after = [_on_its_own(*each) for each in every if kept and each[1].number == number + 1]
    for slip in task.slips:
        if slip.of != expression:
            continue
        with np.errstate(all="ignore"):
            some = [*pairs, *after]
            same = [_is(slip.value(right.state), mine, index, right) for mine, right in some if right.state]
        wrong = [_compare(m.values[index], r.values[index], r.active, NOISE[0]) for m, r in pairs]
        lanes = sum(int(found.lanes.sum()) for found in wrong if found is not None)
        if same and all(same) and lanes >= MANY:
            causes.add(slip.cause)
    return causes.pop() if len(causes) == 1 else ""


def _on_its_own(mine: Visit, right: Visit) -> tuple[Visit, Visit]:
    """The pair with what the answer began this visit with, as the right beginning."""
    if right.state is None or mine.state is None:
        return mine, right
    return mine, replace(right, state=replace(right.state, start=mine.state.start))


def _is(value: np.ndarray | None, mine: Visit, index: int, right: Visit) -> bool:
    got = mine.values[index]
    if got is None or value is None or np.shape(value) != got.shape:
        return False
    return _compare(got, np.asarray(value, np.float64), right.active, SLIP) is None


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


def _of_python(
    lesson: Lesson, answer: Answer, solution: Answer, inputs: Inputs
) -> tuple[list[Wanted], list[Wanted], Values, Values]:
    """Lesson 00 runs in Python, where an answer may name its steps as it likes: what it holds is found by
    value.

    Returns the steps under the answer's own names, the same as the lesson names them, and the values of
    both.
    """
    noted = [trace.of_rows(lesson, a, inputs) for a in (answer, solution)]
    theirs, ours = ([held for held, _ in rows] for rows in noted)
    ran = [[lines for _, lines in rows] for rows in noted]
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
    expected = _visits(solution, ours, ran[1], [w.expression for w in wanted], inputs)
    return mine, wanted, _visits(answer, theirs, ran[0], names, inputs), expected


def _name_by_value(
    wanted: str, own: list[str], taken: list[str], theirs: Rows, ours: Rows
) -> tuple[str, str]:
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


def _visits(answer: Answer, rows: Rows, ran: list[list[int]], names: list[str], inputs: Inputs) -> Values:
    all_lanes, kept = np.ones(1, bool), trace.kept(answer)
    visits = []
    for number, (row, lines) in enumerate(zip(rows, ran, strict=True)):
        trail = [trace.Event(n, all_lanes, dict.fromkeys(trace.targets(kept[n]))) for n in lines]
        places = {"row": row["row"].reshape(-1), "block": np.zeros(1), "thread": np.full(1, number)}
        values = tuple(row.get(name) for name in names)
        state = State(row, {}, places, inputs)
        visits.append(Visit(number, all_lanes, values, places, tuple(trail), state))
    return visits


def _stored_in_order(answer: Answer) -> list[str]:
    """The names that the region sets, in the order of its lines."""
    nodes = [
        node
        for node in ast.walk(ast.parse(answer.text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and answer.inside(node.lineno)
    ]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in nodes))


# Comparing


@dataclass(frozen=True)
class _Found:
    """Which lanes differ; `got` and `expected` [..., lanes], None where there is no value."""

    lanes: np.ndarray
    got: np.ndarray | None
    expected: np.ndarray


def _compare(
    got: np.ndarray | None, expected: np.ndarray | None, active: np.ndarray, noise: float
) -> _Found | None:
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


def _told(
    lesson: Lesson,
    answer: Answer,
    wanted: Sequence[Wanted],
    index: int,
    ours: Values,
    pair: tuple[Visit, Visit],
    found: _Found,
) -> Divergence:
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
    if visit.number > 0 and several and lesson.number:
        compared = [w for w, value in zip(wanted, visit.values, strict=True) if value is not None]
        names = _listed([w.expression for w in compared])
        before = "Before that" if answer.is_cuda or "key" in visit.places else "In the tiles before"
        where += f" {before}, {names or 'it'} {'were' if ' and ' in names else 'was'} right."
    look = _relation(lesson, wanted, index, pair, found, _before(ours, visit))
    value = math.nan
    if found.got is not None and found.got.shape == found.expected.shape:
        value = float(np.atleast_1d(found.got[..., lane])[component or 0])
    line = last_set(answer, what.expression, value)
    used = "[" in what.expression and _is_used(answer, _base(what.expression))
    if line is None and not used and not answer.is_cuda:  # there a function of the file may change it
        words = {"name": _base(what.expression)}
        return Divergence(what.expression, where, look, None, tuple(agree), "never set", words)
    setters = () if answer.is_cuda else _setters(answer, pair[0], _base(what.expression), lane)
    if setters == ():
        return Divergence(what.expression, where, look, line, tuple(agree))
    if setters is None:
        where += f" No line that sets `{_base(what.expression)}` runs there."
        return Divergence(what.expression, where, look, None, tuple(agree))
    (_, last), *copies = setters
    subject = f"`{_base(what.expression)}`" if "[" in what.expression else "It"
    where += f" {subject} is set last in {answer.place(last)}: `{answer.code(last)}`."
    for name, earlier in copies:
        where += f" `{name}` is set in {answer.place(earlier)}: `{answer.code(earlier)}`."
    line = setters[-1][1]
    read = _operands(answer, pair, wanted, setters[-1], lane)
    for name, earlier, shown in read:
        where += f" It reads `{name}`{shown}, from {answer.place(earlier)}: `{answer.code(earlier)}`."
    if len(read) == 1:  # all else that the line reads is right
        line = read[0][1]
    return Divergence(
        what.expression, where, look, line, tuple(agree), setters=setters, finite=math.isfinite(value)
    )


def _setters(answer: Answer, visit: Visit, name: str, lane: int) -> tuple[tuple[str, int], ...] | None:
    """The line that set a name last in a lane, then that of the variable which it copies, and so on; None
    where none ran. Empty where a line sets it whose runs were not noted.
    """
    noted = trace.kept(answer)
    found: list[tuple[str, int]] = []
    end = len(visit.trail)
    while True:
        if any(
            name in trace.targets(s).values() and s.lineno not in noted for s, _ in trace.statements(answer)
        ):
            return tuple(found)
        runs = [
            n
            for n, event in enumerate(visit.trail[:end])
            if event.active[lane] and name in trace.targets(noted[event.line]).values()
        ]
        if not runs:
            return tuple(found) or None
        end, line = runs[-1], visit.trail[runs[-1]].line
        found.append((name, line))
        value = getattr(noted[line], "value", None)
        if not isinstance(noted[line], ast.Assign) or not isinstance(value, ast.Name):
            return tuple(found)
        name = value.id


def _operands(
    answer: Answer,
    pair: tuple[Visit, Visit],
    wanted: Sequence[Wanted],
    setter: tuple[str, int],
    lane: int,
) -> list[tuple[str, int, str]]:
    """The answer's own variables that a line reads and that hold nothing which the solution has there: the
    name, the line that set it, and its value in words.
    """
    name, line = setter
    noted, (mine, right) = trace.kept(answer), pair
    end = max((n for n, e in enumerate(mine.trail) if e.line == line and e.active[lane]), default=0)
    reads = [n.id for n in ast.walk(noted[line]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    known = [v for event in right.trail for v in event.values.values()] + list(right.values)
    if right.state is not None:
        known += [*right.state.end.values(), *right.state.start.values()]
    found = []
    for read in dict.fromkeys(reads):
        runs = [e for e in mine.trail[:end] if e.active[lane] and read in e.values]
        if read == name or not runs:
            continue
        values = runs[-1].values[read]
        if values is None and mine.state is not None:
            values = mine.state.end.get(read)
        if values is None or any(_alike(values[..., mine.active], v, mine.active) for v in known):
            continue
        one = float(np.asarray(values)[..., lane].reshape(-1)[0]) if values.ndim == 1 else math.nan
        shown = f", {_shown(one, 5)} there" if values.ndim == 1 else ""
        found.append((read, runs[-1].line, shown))
    return found[:2]


def _is_used(answer: Answer, array: str) -> bool:
    """Does the region name an array at all? A call or a slice may change it."""
    if answer.is_cuda:
        return array in cuda_text.words("\n".join(answer.lines))
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
        parts.append(f"at key {at['key']}" if "key" in at else f"in K/V tile {visit.number}{keys}")
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


def _relation(
    lesson: Lesson,
    wanted: Sequence[Wanted],
    index: int,
    pair: tuple[Visit, Visit],
    found: _Found,
    before: Visit | None,
) -> str:
    """What the wrong value has to do with the right one, in a sentence, or nothing."""
    if found.got is None or found.got.shape != found.expected.shape:
        return ""
    active = pair[1].active
    got, expected = found.got[..., active].ravel(), found.expected[..., active].ravel()
    wrong = found.got[..., found.lanes]
    every = "every element" if lesson.exercise.stage == 0 else "every lane"
    start = pair[1].state.start.get(wanted[index].expression) if pair[1].state else None
    if start is not None and _alike(found.got[..., active], start, active):
        return "It still has the value that it has where the region begins."
    if np.isnan(wrong).any():
        return "0 / 0, inf - inf and 0 * inf are NaN." if lesson.exercise.stage == 0 else ""
    if np.isposinf(wrong).any() and np.isfinite(found.expected[..., found.lanes]).all():
        return "An exponential or a product that overflows is infinite, and so is a division by 0."
    if not got.any():
        return f"It is 0 in {every}."
    if sentence := _factor(got, expected, every):
        return sentence
    several = len(np.unique(got)) > 1
    for other, what in enumerate(wanted):
        if several and other != index and _alike(found.got[..., active], pair[1].values[other], active):
            return f"It holds what `{what.expression}` should be."
    for other, what in enumerate(wanted):
        if several and before and _alike(found.got[..., active], before.values[other], active):
            return f"It holds what `{what.expression}` was one tile earlier."
    count, total = int(found.lanes.sum()), int(active.sum())
    some = f"{count:,} of the {total:,} threads that come there have a wrong value." if count < total else ""
    return " ".join(filter(None, (_anothers(pair[1], index, found), some)))


def _anothers(visit: Visit, index: int, found: _Found) -> str:
    """Does each wrong thread hold what another thread of its block should hold?"""
    got, expected = found.got, visit.values[index]
    if got is None or expected is None or got.ndim != 1:
        return ""
    blocks, threads = visit.places["block"], visit.places["thread"]
    example = ""
    for lane in np.flatnonzero(found.lanes):
        mates = np.flatnonzero((blocks == blocks[lane]) & visit.active)
        if not math.isfinite(got[lane]) or abs(got[lane]) < 1e-3:
            return ""
        same = mates[np.isclose(expected[mates], got[lane], rtol=1e-6)]
        if len(same) != 1 or same[0] == lane:
            return ""
        example = example or f"thread {int(threads[lane])} that of thread {int(threads[same[0]])}"
    return f"Each wrong thread holds the value of another thread of its block: {example}."


def _alike(got: np.ndarray, other: np.ndarray | None, active: np.ndarray) -> bool:
    if other is None or other[..., active].shape != got.shape:
        return False
    return np.allclose(got, other[..., active], rtol=1e-4, atol=1e-6, equal_nan=True)


def _factor(got: np.ndarray, expected: np.ndarray, every: str) -> str:
    """Is it the right value times a number, or plus one?"""
    finite = np.isfinite(got) & np.isfinite(expected)
    if not finite.all() or len(got) < 2:
        return ""
    size = np.abs(expected).max(initial=0)
    large = np.abs(expected) > 1e-3 * size
    if large.sum() > 1:
        factor = float(np.median(got[large] / expected[large]))
        same = np.abs(got - factor * expected) <= 1e-3 * np.maximum(np.abs(factor * expected), 1e-3 * size)
        if factor != 0 and abs(factor - 1) > 1e-3 and same.all():
            if math.isclose(factor, -1, rel_tol=1e-3):
                return f"It has the wrong sign in {every}."
            known = ", log2(e) times," if math.isclose(factor, math.log2(math.e), rel_tol=1e-4) else " times"
            return f"It is {factor:.4g}{known} what it should be in {every}."
    difference = got - expected
    if abs(difference[0]) > 1e-6 and np.allclose(difference, difference[0], rtol=1e-3, atol=1e-6):
        return f"It is off by the same {difference[0]:.4g} in {every}."
    return ""


def _base(expression: str) -> str:
    match = re.search(r"[A-Za-z_]\w*", expression)
    return match[0] if match else expression


def last_set(answer: Answer, expression: str, value: float = math.nan) -> int | None:
    """The last line of the region that gives the value of an expression something new. A line that sets a
    constant is not meant where `value`, what the expression was found to be, is another number.
    """
    if answer.is_cuda:
        return cuda_text.last_set(answer, expression)
    name = _base(expression)
    lines: dict[int, float | None] = {}
    for statement in ast.walk(ast.parse(answer.text)):
        if not isinstance(statement, ast.stmt) or answer.first is None:
            continue
        if name in trace.handed_over(statement) and answer.inside(statement.lineno):
            lines[statement.lineno] = None
        for node in _own_nodes(statement):
            if (
                isinstance(node, ast.Subscript | ast.Name)
                and isinstance(node.ctx, ast.Store)
                and trace.name_of(node) == name
                and answer.inside(node.lineno)
            ):
                lines[node.lineno] = _constant(statement)
    meant = [line for line, constant in lines.items() if constant is None or constant == value]
    return max(meant or lines, default=None)


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
    return float(node.value) if is_number else None  # type: ignore[union-attr]


def condition_of(answer: Answer, name: str) -> int | None:
    """The line of the `if` without `else` that every store to an array is under, if there is one."""
    stores = [
        n.lineno
        for n in ast.walk(ast.parse(answer.text))
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and answer.inside(n.lineno)
        if _base(ast.unparse(n)) == name
    ]
    for node in ast.walk(ast.parse(answer.text)):
        lines = range(node.lineno, (node.end_lineno or 0) + 1) if isinstance(node, ast.If) else range(0)
        if stores and answer.inside(lines.start) and all(n in lines for n in stores) and lines:
            return None if node.orelse else lines[0]  # type: ignore[attr-defined]
    return None
