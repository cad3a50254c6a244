"""Random edits of lines in Python: one small change each, which as a rule is a mistake."""

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass

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
"""The kinds of edits, and what each does. Those in CUDA C are `checks.edits.CLASSES`."""
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "%", ast.RShift: "<<"}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
FUNCTIONS = {"max": "min", "min": "max", "exp": "exp2", "syncthreads": "syncwarp", "syncwarp": "syncthreads",
             "warp_max": "warp_sum", "shfl_xor_sync": "shfl_down_sync", "zeros": "ones"}  # fmt: skip


@dataclass(frozen=True)
class PythonEdit:
    """kind: a key of `KINDS`. At `line`, `before` became `after`; text: all lines."""

    kind: str
    line: int
    before: str
    after: str
    text: str


class Source:
    """Lines in Python without a margin: its statements, and text by their places."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
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


def random_edit(text: str, rng: random.Random) -> PythonEdit | None:
    """An edit of a kind that is drawn first; None where the kind finds nothing. text: without a margin."""
    return edit(Source(text), rng.choice(list(KINDS)), rng)


def edit(source: Source, kind: str, rng: random.Random) -> PythonEdit | None:
    """One edit of a kind, drawn; None where it finds nothing to change, or the result is no Python."""
    statement_kinds: dict[str, Callable[[Source, random.Random], tuple[int, str, str, str] | None]] = {
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
        change = (node.lineno, source.segment(node), new, source.with_part(node, new))
    if change is None:
        return None
    line, before, after, text = change
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    if ast.dump(tree) == ast.dump(source.tree):
        return None
    return PythonEdit(kind, line, before, after, text)


def _other(kind: str, node: ast.AST, source: Source, rng: random.Random) -> str | None:
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


def _bodies(source: Source) -> list[list[ast.stmt]]:
    return [
        body
        for node in ast.walk(source.tree)
        for body in [getattr(node, "body", None)]
        if isinstance(body, list)
    ]


def _text_of(source: Source, statement: ast.stmt) -> list[str]:
    return source.lines[statement.lineno - 1 : statement.end_lineno]


def _moved(source: Source, rng: random.Random) -> tuple[int, str, str, str] | None:
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


def _deleted(source: Source, rng: random.Random) -> tuple[int, str, str, str] | None:
    body = rng.choice(_bodies(source))
    statement = rng.choice(body)
    margin = " " * statement.col_offset
    kept = [f"{margin}pass"] if len(body) == 1 else []
    text = [*source.lines[: statement.lineno - 1], *kept, *source.lines[statement.end_lineno :]]
    return statement.lineno, source.segment(statement), "", "\n".join(text) + "\n"


def _doubled(source: Source, rng: random.Random) -> tuple[int, str, str, str] | None:
    statement = rng.choice(rng.choice(_bodies(source)))
    text = [
        *source.lines[: statement.end_lineno],
        *_text_of(source, statement),
        *source.lines[statement.end_lineno :],
    ]
    return statement.lineno, source.segment(statement), "twice", "\n".join(text) + "\n"
