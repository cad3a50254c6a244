"""Where an answer in Python differs from the solution: the changes that `repair` tries.

Statements are aligned by what they have in common, names of the answer's own aside; inside a statement the
smallest parts that differ are found in its tree.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.repair import (
    ALIKE,
    MOST_TOLD,
    Change,
    Edit,
    Experiments,
    aligned,
    changed,
    fewest,
    quoted,
    suspected,
)
from flashcore_numba.course.judge.trace import name_of
from flashcore_numba.course.spec import Lesson

MOST_CHANGES = 10  # places in which an answer may differ from the solution
MOST_EXPERIMENTS = 40  # on an answer; each runs one input
BLOCKS = ("body", "orelse", "finalbody")
BARRIERS = ("syncthreads", "syncwarp")


def smallest(
    lesson: Lesson, answer: Answer, is_right: Callable[[Answer], bool], suspect: int | None = None
) -> tuple[Change, ...]:
    """The fewest changes found that make `is_right` of the answer true; none where it is too far from the
    solution. A version on which `is_right` raises is not right. suspect: the line to begin with.
    """
    changes = differences(lesson, answer)
    if not changes or len(changes) > MOST_CHANGES:
        return ()
    try:
        whole = changed(answer, changes)
        far = bool(differences(lesson, whole))
    except SyntaxError:
        far = True
    if far:
        return ()
    experiments = Experiments(answer, is_right, MOST_EXPERIMENTS)
    for change in suspected(changes, suspect):
        if experiments.rights([change]):
            return (change,)
    found = fewest(changes, experiments.rights)
    told = _joined(answer, found)
    return tuple(told) if len(told) <= MOST_TOLD and experiments.rights(found) else ()


def _joined(answer: Answer, changes: Sequence[Change]) -> list[Change]:
    """The changes, with several parts of one line as one."""
    by_line: dict[int, list[Change]] = {}
    for change in changes:
        by_line.setdefault(change.line if change.kind == "part" else -id(change), []).append(change)
    found = []
    for some in by_line.values():
        causes = {change.cause for change in some}
        if len(some) == 1:
            found.append(some[0])
            continue
        cause = causes.pop() if len(causes) == 1 else "statement"
        edits = tuple(edit for change in some for edit in change.edits)
        shown = f"`{quoted(answer.code(some[0].line))}`"
        found.append(Change("part", some[0].line, cause, shown, edits))
    return found


def differences(lesson: Lesson, answer: Answer) -> list[Change]:
    """The places in which an answer differs from the solution, in the order of its lines."""
    if answer.first is None or answer.last is None:
        return []
    mine = _Region(answer.text, answer.first, answer.last)
    found = exercise.region(lesson.exercise)
    theirs = _Region(exercise.source_text(lesson.exercise.file), found.first_line, found.last_line)
    if not mine.body or not theirs.body:
        return []
    theirs = theirs.renamed(_names(mine, theirs))
    changes = _of_bodies(mine, mine.body, theirs.body, None)
    return sorted(changes, key=lambda change: min(edit[0] for edit in change.edits))


class _Region:
    """Lines of a module, and the statements that begin in them."""

    def __init__(self, text: str, first: int, last: int) -> None:
        self.whole, self.first, self.last = text, first, last
        self.lines = text.splitlines()[first - 1 : last]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.whole)

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The outermost statements of the region; they are in one block."""
        for node in ast.walk(self.tree):
            for block in BLOCKS:
                some = [n for n in getattr(node, block, []) if self.first <= n.lineno <= self.last]
                if some:
                    return some
        return []

    @cached_property
    def outside(self) -> set[str]:
        """Names that stand outside the region."""
        mine = {id(node) for statement in self.body for node in ast.walk(statement)}
        names = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and id(n) not in mine}
        return names | {n.arg for n in ast.walk(self.tree) if isinstance(n, ast.arg)}

    @cached_property
    def words(self) -> set[str]:
        """All names of the module."""
        return {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} | self.outside

    @property
    def own(self) -> list[str]:
        """Names that only the region sets, and variables of its loops, in order."""
        nodes = [n for statement in self.body for n in ast.walk(statement) if isinstance(n, ast.Name)]
        stored = sorted(
            (n for n in nodes if isinstance(n.ctx, ast.Store)), key=lambda n: (n.lineno, n.col_offset)
        )
        loops = {name for n in _flat(self.body) if isinstance(n, ast.For) for name in _bare(n.target)}
        names = dict.fromkeys(n.id for n in stored)
        return [name for name in names if name in loops or name not in self.outside]

    def renamed(self, names: dict[str, str]) -> "_Region":
        """The same with other names, in a tree of its own."""
        other = _Region(self.whole, self.first, self.last)
        for statement in other.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    node.id = names.get(node.id, node.id)
        return other

    def at(self, line: int, column: int) -> int:
        """The character of the region's text at a place of the module; column counts bytes, as `ast` does."""
        row = line - self.first
        before = sum(len(text) + 1 for text in self.lines[:row])
        return before + len(self.lines[row].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        end = self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return self.at(node.lineno, node.col_offset), end  # type: ignore[attr-defined]

    def source(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return " ".join("\n".join(self.lines)[start:end].split())


def _head(statement: ast.stmt) -> str:
    """A statement without those in it."""
    if isinstance(statement, ast.If | ast.While):
        return f"{type(statement).__name__.lower()} {ast.unparse(statement.test)}"
    if isinstance(statement, ast.For):
        return f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
    return ast.unparse(statement)


def _alike(one: ast.stmt, other: ast.stmt) -> float:
    """How much two statements have in common, 0 to 1."""
    if ast.dump(one) == ast.dump(other):
        return 1.0
    compound = isinstance(one, ast.If | ast.For | ast.While), isinstance(other, ast.If | ast.For | ast.While)
    if any(compound) and type(one) is not type(other):
        return 0.0
    heads = [_words(_head(each)) for each in (one, other)]
    share = SequenceMatcher(None, heads[0], heads[1], False).ratio()
    if all(compound):
        whole = [_words(ast.unparse(each)) for each in (one, other)]
        return 0.98 * max(share, SequenceMatcher(None, whole[0], whole[1], False).ratio())
    one_sets, other_sets = _sets(one), _sets(other)
    same = bool(one_sets) and one_sets == other_sets
    return max(0.98 * share, ALIKE if same else 0)


def _words(text: str) -> list[str]:
    return [word for word in text.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split() if word]


def _sets(statement: ast.stmt) -> set[str]:
    return {ast.unparse(t) for t in _targets(statement)}


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For) else []


def _flat(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [n for statement in body for n in ast.walk(statement) if isinstance(n, ast.stmt)]


def _names(mine: _Region, theirs: _Region) -> dict[str, str]:
    """The solution's own names as the answer calls them, where aligned statements tell which is which."""
    used = {n.id for s in mine.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    wanted = [name for name in theirs.own if name not in used]
    solution = {n.id for s in theirs.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    free = [name for name in mine.own if name not in solution]
    if not wanted or not free:
        return {}
    blank = dict.fromkeys([*wanted, *free], "_")
    one, other = mine.renamed(blank).body, theirs.renamed(blank).body
    named: dict[str, str] = {}
    for a, b in _twins(one, other, mine.body, theirs.body):
        for left, right in zip(_targets(a), _targets(b), strict=False):
            for x, y in zip(_bare(left), _bare(right), strict=False):
                if y in wanted and x in free and y not in named and x not in named.values():
                    named[y] = x
    return named


def _bare(target: ast.expr) -> list[str]:
    return [name_of(part) for part in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _twins(
    one: Sequence[ast.stmt], other: Sequence[ast.stmt], mine: Sequence[ast.stmt], theirs: Sequence[ast.stmt]
) -> list[tuple[ast.stmt, ast.stmt]]:
    """Statements under their own names that are aligned without them."""
    found = []
    for i, j in aligned(one, other, _alike):
        if i is None or j is None:
            continue
        found.append((mine[i], theirs[j]))
        for block in BLOCKS:
            four = [getattr(each, block, None) or [] for each in (one[i], other[j], mine[i], theirs[j])]
            found += _twins(*four)
    return found


def _of_bodies(
    region: _Region, mine: Sequence[ast.stmt], theirs: Sequence[ast.stmt], parent: ast.stmt | None
) -> list[Change]:
    changes: list[Change] = []
    extra: list[ast.stmt] = []
    missing: list[tuple[int, ast.stmt]] = []
    gaps = [statement for statement in mine if isinstance(statement, ast.Pass)]
    mine = [statement for statement in mine if not isinstance(statement, ast.Pass)]
    if gaps and not mine and len(theirs) == 1:  # `pass` is where the statement should be
        kind, shown = _thing(theirs[0], region.words)
        edit = (*region.span(gaps[0]), _code(theirs[0], gaps[0].col_offset).lstrip())
        return [Change("missing", gaps[0].lineno, f"{kind} left out", shown, (edit,))]
    done = 0
    for i, j in aligned(mine, theirs, _alike):
        if i is None:
            assert j is not None
            missing.append((done, theirs[j]))
            continue
        done = i + 1
        if j is None:
            extra.append(mine[i])
        elif ast.dump(mine[i]) != ast.dump(theirs[j]):
            changes += _of_statements(region, mine[i], theirs[j])
    for position, statement in list(missing):
        twin = next((each for each in extra if ast.dump(each) == ast.dump(statement)), None)
        if twin is not None:
            extra.remove(twin)
            missing.remove((position, statement))
            kind = "early" if list(mine).index(twin) < position else "late"
            edits = (*_without(region, twin), *_with(region, mine, parent, position, statement))
            changes.append(Change(kind, twin.lineno, "order", f"`{quoted(region.source(twin))}`", edits))
    for statement in extra:
        shown = quoted(_head(statement) if hasattr(statement, "body") else region.source(statement))
        cause = f"extra {_thing(statement, region.words)[0]}"
        changes.append(Change("extra", statement.lineno, cause, f"`{shown}`", _without(region, statement)))
    for position, statement in missing:
        kind, shown = _thing(statement, region.words)
        line = _last_line(mine[position - 1]) if position else (parent.lineno if parent else region.first)
        edits = _with(region, mine, parent, position, statement)
        changes.append(Change("missing", line, f"{kind} left out", shown, edits))
    return changes


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _without(region: _Region, statement: ast.stmt) -> tuple[Edit, ...]:
    start, end = region.span(statement)
    return ((start, end, "pass"),)


def _with(
    region: _Region, body: Sequence[ast.stmt], parent: ast.stmt | None, position: int, statement: ast.stmt
) -> tuple[Edit, ...]:
    """The statement after so many of a block."""
    if position:
        near = body[position - 1]
        at, margin = region.span(near)[1], near.col_offset
        at += len("\n".join(region.lines)[at:].partition("\n")[0])  # past a comment
        return ((at, at, "\n" + _code(statement, margin)),)
    if body:
        near = body[0]
        at = region.at(near.lineno, 0)
        return ((at, at, _code(statement, near.col_offset) + "\n"),)
    assert parent is not None
    at = region.span(parent)[1]
    return ((at, at, f"\n{' ' * parent.col_offset}else:\n" + _code(statement, parent.col_offset + 4)),)


def _code(statement: ast.stmt, margin: int) -> str:
    return "\n".join(" " * margin + line for line in ast.unparse(statement).splitlines())


@dataclass(frozen=True)
class _Part:
    """An expression that differs: what it is of its statement, and what the solution has there."""

    node: ast.AST
    other: ast.AST
    cause: str
    shown: str


def _of_statements(region: _Region, mine: ast.stmt, theirs: ast.stmt) -> list[Change]:
    if type(mine) is not type(theirs):
        start, end = region.span(mine)
        edit = (start, end, _code(theirs, mine.col_offset).lstrip())
        return [Change("part", mine.lineno, "statement", f"`{quoted(region.source(mine))}`", (edit,))]
    changes: list[Change] = []
    for block in BLOCKS:
        one, other = getattr(mine, block, None), getattr(theirs, block, None)
        if isinstance(one, list) and isinstance(other, list):
            changes += _of_bodies(region, one, other, mine)
    parts: list[_Part] = []
    both = isinstance(mine, ast.AugAssign) and isinstance(theirs, ast.AugAssign)
    if both and ast.dump(mine.op) != ast.dump(theirs.op):  # type: ignore[attr-defined]
        edit = (*region.span(mine), ast.unparse(theirs))
        shown = f"the operator of `{quoted(region.source(mine))}`"
        return [Change("part", mine.lineno, "operator", shown, (edit,))]
    for name, one in ast.iter_fields(mine):
        if name in BLOCKS:
            continue
        other = getattr(theirs, name)
        if isinstance(one, ast.expr):
            parts += _parts(region, one, other, *_role(region, mine, name))
        elif isinstance(one, list):
            for a, b in zip(one, other, strict=False):
                parts += _parts(region, a, b, *_role(region, mine, name))
    for part in parts:
        start, end = region.span(part.node)
        new = ast.unparse(part.other)
        if not isinstance(
            part.other, ast.Name | ast.Constant | ast.Call | ast.Subscript | ast.Attribute | ast.Tuple
        ):
            new = f"({new})"
        line = part.node.lineno  # type: ignore[attr-defined]
        changes.append(Change("part", line, part.cause, part.shown, ((start, end, new),)))
    return changes


def _role(region: _Region, statement: ast.stmt, name: str) -> tuple[str, str]:
    """What a field of a statement is: its cause, and words for it."""
    if name in ("target", "targets"):
        return "target", "what it sets"
    if name == "test":
        return "condition", "the condition"
    if name == "iter":
        return "loop bound", "what the loop runs over"
    return "value", ""


def _parts(region: _Region, mine: ast.AST, theirs: ast.AST | None, cause: str, words: str) -> list[_Part]:
    """The smallest parts of one expression that differ from another one."""
    shown = f"{words}, `{quoted(region.source(mine))}`".removeprefix(", ")
    whole = [_Part(mine, theirs or mine, cause, shown)]
    if theirs is None or type(mine) is not type(theirs):
        return whole
    if ast.dump(mine) == ast.dump(theirs):
        return []
    found: list[_Part] = []
    for name, one in ast.iter_fields(mine):
        other = getattr(theirs, name)
        some, others = (each if isinstance(each, list) else [each] for each in (one, other))
        if len(some) != len(others):
            return whole
        for number, (a, b) in enumerate(zip(some, others, strict=True)):
            if not isinstance(a, ast.AST) or not hasattr(a, "lineno"):
                same = a == b if not isinstance(a, ast.AST) else ast.dump(a) == ast.dump(b)
                if not same:
                    kind = (
                        "operator"
                        if isinstance(a, ast.operator | ast.cmpop | ast.unaryop | ast.boolop)
                        else cause
                    )
                    source = quoted(region.source(mine))
                    other_words = f"the operator of `{source}`"
                    return [_Part(mine, theirs, kind, other_words if kind == "operator" else shown)]
                continue
            found += _parts(region, a, b, *_of(region, mine, name, number, cause, words))
    return found


def _of(region: _Region, node: ast.AST, name: str, number: int, cause: str, words: str) -> tuple[str, str]:
    """What a part of an expression is."""
    if isinstance(node, ast.Subscript):
        array = ast.unparse(node.value)
        return ("index", f"the index of `{array}`") if name == "slice" else ("value", "the array")
    if isinstance(node, ast.Call):
        if name == "func":
            return "function", "the function"
        if ast.unparse(node.func) == "range" and cause == "loop bound":
            return "loop bound", "the range of the loop"
        return "argument", f"an argument of `{ast.unparse(node.func)}`"
    if isinstance(node, ast.Attribute):
        return "value" if cause == "function" else cause, f"what `.{node.attr}` is taken of"
    if isinstance(node, ast.Tuple) and cause == "index":
        return cause, words
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        return cause, (words if cause in ("index", "argument", "loop bound") else "an operand")
    return cause, words


def _thing(statement: ast.stmt, known: set[str]) -> tuple[str, str]:
    """What a statement is: a word or two, and the same for a sentence, with names that the reader knows."""
    if isinstance(statement, ast.If):
        return "condition", "a condition"
    if isinstance(statement, ast.For | ast.While):
        names = {name for inner in _flat([statement])[1:] for t in _targets(inner) for name in _bare(t)}
        shown = "`, `".join(sorted(names & known))
        return "loop", f"a loop that sets `{shown}`" if shown else "a loop"
    if targets := _targets(statement):
        name = _bare(targets[0])[0]
        return "assignment", f"a statement that sets `{name}`" if name in known else "a statement"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = ast.unparse(statement.value.func)
        if name.rpartition(".")[2] in BARRIERS:
            return "barrier", "a barrier"
        return "call", f"a call of `{name}`"
    return "statement", "a statement"
