"""Replies to random mutations of right answers: draw, judge, read, count.

`python -m course.sample_mutations draw FILE --lessons 0 1 --count 250 --seed 7`, in `tests/`, judges that
many mutants of the solutions which FILE does not have. It adds a draw and an entry for each to FILE, and
writes what was said to a file beside it. Somebody reads that text, and writes into the entries under `false`
each sentence that is not true, and under `misleading` each that leads away from the change. `again FILE`
judges those with a false sentence once more; what is still false then is written under `still_false`.
`count FILE` counts them.
"""

import argparse
import ast
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashcore_numba.checks.edits import random_edits
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import CheckResult, no_result
from flashcore_numba.course.lessons import EVERY, LESSONS
from flashcore_numba.course.spec import Lesson
from flashcore_numba.records import environment, layout
from flashcore_numba.stages import edited
from flashcore_numba.stages.files import is_cuda

KINDS = {
    "operator": "another operator",
    "constant": "another number",
    "comparison": "another comparison",
    "name": "another variable",
    "index": "another index, or two in the other order",
    "arguments": "two arguments in the other order",
    "function": "another function, or another kind of barrier",
    "condition": "a condition turned round",
    "type": "another type",
    "move": "a statement elsewhere",
    "delete": "a statement left out",
    "double": "a statement twice",
}
"""The kinds of mutations of a solution in Python. Those in CUDA C are `checks.edits.CLASSES`."""
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "%", ast.RShift: "<<"}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
FUNCTIONS = {"max": "min", "min": "max", "exp": "exp2", "syncthreads": "syncwarp", "syncwarp": "syncthreads",
             "warp_max": "warp_sum", "shfl_xor_sync": "shfl_down_sync", "zeros": "ones"}  # fmt: skip
TRIES = 1000  # draws for a mutation that is not known yet


@dataclass(frozen=True)
class Mutation:
    """A right answer with one change: at `line` of the answer, `before` became `after`."""

    lesson: int
    kind: str
    line: int
    before: str
    after: str
    text: str

    @property
    def known_by(self) -> tuple[int, str, int, str, str]:
        """What an entry keeps of it."""
        return self.lesson, self.kind, self.line, self.before, self.after


@dataclass(frozen=True)
class Reply:
    """What was said of a mutation. place: whether the reply points at the changed line. false: sentences of
    it that are not true, as somebody who read it found; misleading: those that are true, or are advice, and
    lead away from the change; still_false: those that are not true in what the judge says now.
    """

    lesson: int
    kind: str
    line: int
    before: str
    after: str
    status: str
    cause: str
    place: str
    false: tuple[str, ...] = ()
    misleading: tuple[str, ...] = ()
    still_false: tuple[str, ...] = ()


def mutations(lesson: Lesson, rng: random.Random) -> Iterator[Mutation]:
    """Mutations of the lesson's solution, none twice."""
    seen = set()
    for _ in range(TRIES):
        found = _in_cuda(lesson, rng) if is_cuda(lesson.exercise.file) else _in_python(lesson, rng)
        if found is not None and found.text not in seen:
            seen.add(found.text)
            yield found


def _in_cuda(lesson: Lesson, rng: random.Random) -> Mutation | None:
    """An edit of `checks.edits` that lies inside the region."""
    found = exercise.region(lesson.exercise)
    lines = range(found.first_line, found.last_line + 1)
    edits = random_edits(edited.original(lesson.exercise.stage), np.random.default_rng(rng.getrandbits(32)))
    for edit in edits:
        if edit.file != lesson.exercise.file or edit.line not in lines:
            continue
        whole = edited.applied(exercise.source_text(edit.file), [edit.edit], edit.file).splitlines()
        head, tail = found.first_line - 1, len(exercise.source_text(edit.file).splitlines()) - found.last_line
        text = "\n".join(whole[head : len(whole) - tail])
        own = exercise.source_text(edit.file).splitlines()
        if whole[:head] == own[:head] and whole[len(whole) - tail :] == own[len(own) - tail :]:
            return Mutation(lesson.number, edit.kind, edit.line - head, edit.before, edit.after, text + "\n")
    return None


class _Source:
    """A region in Python: its statements, and text by their places."""

    def __init__(self, lesson: Lesson) -> None:
        self.found = exercise.region(lesson.exercise)
        self.lines = self.found.text.splitlines()
        margin = " " * self.found.indent
        self.lines = [line.removeprefix(margin) for line in self.lines]
        self.tree = ast.parse("\n".join(self.lines))
        self.nodes = [node for node in ast.walk(self.tree) if hasattr(node, "lineno")]
        self.names = sorted({n.id for n in self.nodes if isinstance(n, ast.Name)} - {"cuda", "math", "np"})

    def segment(self, node: ast.AST) -> str:
        return ast.get_source_segment("\n".join(self.lines), node) or ""

    def with_part(self, node: ast.AST, new: str) -> str:
        lines = [line + "\n" for line in self.lines]
        first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
        head = lines[first].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
        tail = lines[last].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
        return "".join([*lines[:first], head + new + tail, *lines[last + 1 :]])


def _in_python(lesson: Lesson, rng: random.Random) -> Mutation | None:
    source = _Source(lesson)
    kind = rng.choice(list(KINDS))
    statement_kinds: dict[str, Callable[[_Source, random.Random], tuple[int, str, str, str] | None]] = {
        "move": _moved,
        "delete": _deleted,
        "double": _doubled,
    }
    if kind in statement_kinds:
        change = statement_kinds[kind](source, rng)
    else:
        nodes = [node for node in source.nodes if _other(kind, node, source, rng) is not None]
        if not nodes:
            return None
        node = rng.choice(nodes)
        new = _other(kind, node, source, rng)
        assert new is not None
        before = source.segment(node)
        change = (node.lineno, before, new, source.with_part(node, new))  # type: ignore[attr-defined]
    if change is None:
        return None
    line, before, after, text = change
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    if ast.dump(tree) == ast.dump(source.tree):
        return None
    return Mutation(lesson.number, kind, line, before, after, text)


def _other(kind: str, node: ast.AST, source: _Source, rng: random.Random) -> str | None:
    """What a node becomes, None where this kind has nothing for it."""
    part = source.segment
    if kind == "operator" and isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return f"({part(node.left)} {OPERATORS[type(node.op)]} {part(node.right)})"
    if kind == "operator" and isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        return f"{part(node.target)} {OPERATORS[type(node.op)]}= {part(node.value)}"
    if kind == "constant" and isinstance(node, ast.Constant) and type(node.value) is int:
        return str(node.value + rng.choice([1, -1, 2])) if node.value else rng.choice(["1", "2"])
    if kind == "comparison" and isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return f"{part(node.left)} {COMPARISONS[type(node.ops[0])]} {part(node.comparators[0])}"
    if kind == "name" and isinstance(node, ast.Name) and node.id in source.names:
        return rng.choice([name for name in source.names if name != node.id])
    if kind == "index" and isinstance(node, ast.Subscript):
        return _other_index(node, part, rng)
    if kind == "arguments" and isinstance(node, ast.Call) and len(node.args) > 1:
        first = rng.randrange(len(node.args) - 1)
        args = [part(argument) for argument in node.args]
        args[first], args[first + 1] = args[first + 1], args[first]
        return f"{part(node.func)}({', '.join(args)})"
    if kind == "function" and isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        other = name.removesuffix(last) + FUNCTIONS.get(last, "")
        return f"{other}({', '.join(map(part, node.args))})" if last in FUNCTIONS else None
    if kind == "condition" and isinstance(node, ast.IfExp):
        return f"{part(node.orelse)} if {part(node.test)} else {part(node.body)}"
    if kind == "type" and isinstance(node, ast.Call) and ast.unparse(node.func) == "float32":
        return part(node.args[0]) if rng.random() < 0.5 else "0.0"
    return None


def _other_index(node: ast.Subscript, part: Callable[[ast.AST], str], rng: random.Random) -> str:
    if isinstance(node.slice, ast.Tuple) and rng.random() < 0.5:
        parts = [part(element) for element in node.slice.elts]
        first = rng.randrange(len(parts) - 1)
        parts[first], parts[first + 1] = parts[first + 1], parts[first]
        return f"{part(node.value)}[{', '.join(parts)}]"
    text = part(node.slice)
    return f"{part(node.value)}[{text} {rng.choice(['+', '-'])} 1]"


def _bodies(source: _Source) -> list[list[ast.stmt]]:
    return [
        body
        for node in ast.walk(source.tree)
        for body in [getattr(node, "body", None)]
        if isinstance(body, list)
    ]


def _text_of(source: _Source, statement: ast.stmt) -> list[str]:
    return source.lines[statement.lineno - 1 : statement.end_lineno]


def _moved(source: _Source, rng: random.Random) -> tuple[int, str, str, str] | None:
    """A statement past its neighbour, or out of its block to the line after it."""
    body = rng.choice(_bodies(source))
    if len(body) < 2:
        return None
    if rng.random() < 0.3 and body is not source.tree.body:
        statement, margin = body[-1], 4
        end = statement.end_lineno or statement.lineno
        lines = [line[margin:] for line in _text_of(source, statement)]
        text = [*source.lines[: statement.lineno - 1], *lines, *source.lines[end:]]
        return statement.lineno, source.segment(statement), "after its block", "\n".join(text) + "\n"
    n = rng.randrange(len(body) - 1)
    one, two = body[n], body[n + 1]
    text = [*source.lines[: one.lineno - 1], *_text_of(source, two)]
    text += [
        *source.lines[one.end_lineno : two.lineno - 1],
        *_text_of(source, one),
        *source.lines[two.end_lineno :],
    ]
    return one.lineno, source.segment(one), f"past {source.segment(two)}", "\n".join(text) + "\n"


def _deleted(source: _Source, rng: random.Random) -> tuple[int, str, str, str] | None:
    body = rng.choice(_bodies(source))
    statement = rng.choice(body)
    margin = " " * statement.col_offset
    kept = [f"{margin}pass"] if len(body) == 1 else []
    text = [*source.lines[: statement.lineno - 1], *kept, *source.lines[statement.end_lineno :]]
    return statement.lineno, source.segment(statement), "", "\n".join(text) + "\n"


def _doubled(source: _Source, rng: random.Random) -> tuple[int, str, str, str] | None:
    statement = rng.choice(rng.choice(_bodies(source)))
    text = [
        *source.lines[: statement.end_lineno],
        *_text_of(source, statement),
        *source.lines[statement.end_lineno :],
    ]
    return statement.lineno, source.segment(statement), "twice", "\n".join(text) + "\n"


def judged(mutation: Mutation, seed: int) -> CheckResult:
    """The reply to a mutation, from a process of its own."""
    lesson = LESSONS[mutation.lesson]
    reply = process.run({"job": "check", "lesson": lesson.number, "answer": mutation.text, "seed": seed}, 300)
    return CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(lesson.number, reply)


def place(mutation: Mutation, result: CheckResult) -> str:
    """Whether a reply points at the changed line, or one beside it."""
    if result.passed:
        return ""
    if result.line is None:
        return "no line"
    return "there" if abs(result.line - mutation.line) <= 1 else "elsewhere"


def unknown_names(answer: Answer, result: CheckResult) -> list[str]:
    """Names that a reply quotes and that neither the answer's file nor the task has."""
    known = {"__syncthreads", "__syncwarp"}  # CUDA's own, which a sentence on barriers names
    known |= set(re.findall(r"\w+", answer.text))
    lesson = EVERY[result.lesson]
    known |= set(re.findall(r"\w+", f"{lesson.exercise.task} {' '.join(lesson.exercise.given.values())}"))
    known |= {word for w in lesson.exercise.wanted for word in re.findall(r"\w+", w.meaning)}
    # A line that is quoted with its place introduces its names itself.
    place = r"(?:\w+\.(?:py|cuh?):\d+|line \d+)(?: \(called in line \d+\)| of your answer)?"
    message = re.sub(rf"{place},? `[^`]*`", "", result.message)
    quoted = [part for n, part in enumerate(message.split("`")) if n % 2]
    return [word for part in quoted for word in re.findall(r"(?<!\w)[A-Za-z_]\w*", part) if word not in known]


def sentences_of(result: CheckResult) -> list[str]:
    """The sentences of a failing reply, without its heading, the lines on gates and the tally."""
    lines = [line for line in str(result).splitlines()[1:] if not line.startswith("gate ")]
    lines = [line for line in lines if not re.match(r"\d+ of \d+ checks? passed", line)]
    return [part for line in lines for part in re.split(r"(?<=[.?!]) (?=[A-Z`])", line) if part.strip()]


def drawn(lessons: Sequence[int], count: int, seed: int, known: Container[tuple]) -> list[Mutation]:
    """`count` mutations that are not known yet, spread evenly over the lessons."""
    rng = random.Random(seed)
    sources = {
        number: (m for m in mutations(LESSONS[number], rng) if m.known_by not in known) for number in lessons
    }
    found = [next(sources[lessons[n % len(lessons)]], None) for n in range(count)]
    return [mutation for mutation in found if mutation is not None]


def _known_by(reply: Mapping[str, Any]) -> tuple:
    return tuple(reply[name] for name in ("lesson", "kind", "line", "before", "after"))


def draw(file: Path, lessons: list[int], count: int, seed: int) -> None:
    """Judge mutations that the file has not, add them to it, and write what was said."""
    record = json.loads(file.read_text()) if file.is_file() else {"draws": [], "mutations": []}
    known = {_known_by(reply) for reply in record["mutations"]}
    this = {
        "date": environment.today(),
        "commit": environment.commit()[0],
        "seed": seed,
        "lessons": lessons,
        "count": count,
        "sentences": 0,
    }
    record["draws"].append(this)
    said = []
    for n, mutation in enumerate(drawn(lessons, count, seed, known)):
        result = judged(mutation, seed)
        cause = result.cause if result.certain else ""
        reply = Reply(*mutation.known_by, result.status, cause, place(mutation, result))
        record["mutations"].append({"seed": seed} | asdict(reply))
        this["sentences"] += 0 if result.passed else len(sentences_of(result))
        said.append(_said(n, mutation, result))
        layout.save(record, file, "mutations")
        file.with_suffix(".txt").write_text("\n".join(said))


def again(file: Path) -> None:
    """Judge once more the mutations of which something false was said, and print what is said now."""
    record = json.loads(file.read_text())
    known: set[tuple] = set()
    for this in record["draws"]:
        texts = {m.known_by: m for m in drawn(this["lessons"], this["count"], this["seed"], known)}
        replies = [reply for reply in record["mutations"] if reply["seed"] == this["seed"]]
        for n, reply in enumerate(replies):
            if reply["false"]:
                mutation = texts.get(_known_by(reply))  # none where the solution is another one now
                said = _said(n, mutation, judged(mutation, this["seed"])) if mutation else f"#{n}: gone\n"
                print(said, flush=True)
        known |= {_known_by(reply) for reply in replies}


def _said(n: int, mutation: Mutation, result: CheckResult) -> str:
    change = f"{mutation.before!r} -> {mutation.after!r}"
    return f"#{n} {mutation.lesson:02d} {mutation.kind}, line {mutation.line}: {change}\n{result}\n"


def counted(file: Path) -> str:
    """How many replies there are of each kind, and how many false sentences."""
    replies = json.loads(file.read_text())["mutations"]
    failed = [reply for reply in replies if reply["status"] != "passed"]
    places = Counter(reply["place"] for reply in failed)
    false = sum(len(reply["false"]) for reply in replies)
    return (
        f"{len(replies)} mutations, {len(replies) - len(failed)} right in another way; of {len(failed)} "
        f"replies {places['there']} point at the changed line or one beside it, "
        f"{sum(bool(r['cause']) for r in failed)} state a cause as certain; {false} false sentences, "
        f"{sum(len(reply['misleading']) for reply in replies)} misleading"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["draw", "again", "count"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--lessons", type=int, nargs="+", default=list(range(7)))
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    args = parser.parse_args()
    if args.what == "draw":
        draw(args.file, args.lessons, args.count, args.seed)
    if args.what == "again":
        again(args.file)
    print(counted(args.file))


if __name__ == "__main__":
    main()
