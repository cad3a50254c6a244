"""Small edits of a region that nobody has to write: some break it, some must not."""

import ast
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flashcore_numba.checks.edits import DRAW, SourceText, Statement, one_line
from flashcore_numba.evolve import python_edits

TRIES = 200  # draws in a row that find nothing new, before there is nothing left to find
HEAD = "void region() {\n"  # around lines in CUDA C, which are no function


@dataclass(frozen=True)
class Operator:
    """A way to edit a region. harmless: whether the result must be as right as before."""

    name: str
    sentence: str
    harmless: bool = False


OPERATORS: dict[str, Operator] = {
    each.name: each
    for each in (
        Operator("move_wait", "A wait, barrier, fence or commit some statements up or down."),
        Operator("delete_wait", "A wait, barrier, fence or commit is left out."),
        Operator("duplicate_wait", "A wait, barrier, fence or commit is there twice."),
        Operator("weaken_barrier", "A barrier of the block becomes one of the warp."),
        Operator("flip_count", "`<0>` becomes `<1>`, or the other way round."),
        Operator("change_count", "Another number in a wait, barrier or arrival."),
        Operator("change_number", "Another value for a number."),
        Operator("change_bound", "A loop from, to or by another number."),
        Operator("change_operator", "Another operator, or its operands in the other order."),
        Operator("change_comparison", "`<` becomes `<=`, `==` becomes `!=`, and the like."),
        Operator("change_condition", "A condition is negated, or always true."),
        Operator("change_slot", "Another slot, phase or tile of a ring."),
        Operator("change_stride", "Another distance between rows, heads or tiles."),
        Operator("change_register", "Another array of registers, or another element."),
        Operator("change_name", "Another variable."),
        Operator("change_index", "Another index, or two in the other order."),
        Operator("change_function", "Another function: `min` for `max`, and the like."),
        Operator("change_type", "Another type of a number."),
        Operator("exchange_keys_and_values", "K for V, or V for K."),
        Operator("swap_arguments", "Two arguments of a call in the other order."),
        Operator("swap_statements", "Two neighbouring statements in the other order."),
        Operator("hoist_statement", "A statement of a loop before or after the loop."),
        Operator("delete_statement", "A statement is left out."),
        Operator("duplicate_statement", "A statement is there twice."),
        Operator("toggle_unroll", "`#pragma unroll` goes, or comes before a loop: slower code may follow."),
        Operator("rename_local", "The variable of a loop has another name.", True),
        Operator("swap_factors", "`a * b` becomes `b * a`.", True),
        Operator("swap_terms", "`a + b` becomes `b + a`.", True),
        Operator("flip_comparison", "`a < b` becomes `b > a`.", True),
        Operator("spell_out_update", "`a += b` becomes `a = a + (b)`.", True),
        Operator("prefix_increment", "`i++` becomes `++i`.", True),
        Operator("add_braces", "A block around a statement.", True),
        Operator("hoist_bound", "The bound of a loop is a constant before it.", True),
        Operator("add_comment", "A comment between two lines.", True),
    )
}
"""By name. What is not meant to be harmless may still be: `evaluate` says."""

FROM_CUDA = {
    "move_wait": "move",
    "swap_statements": "swap",
    "hoist_statement": "hoist",
    "duplicate_statement": "duplicate",
    "change_condition": "condition",
    "swap_arguments": "arguments",
    "change_operator": "operands",
    "change_comparison": "comparison",
    "change_count": "count",
    "change_number": "constant",
    "change_bound": "bound",
    "change_slot": "ring",
    "change_stride": "stride",
    "exchange_keys_and_values": "keys and values",
    "change_register": "registers",
}
FROM_PYTHON = {
    "change_operator": "operator",
    "change_number": "constant",
    "change_comparison": "comparison",
    "change_name": "name",
    "change_index": "index",
    "swap_arguments": "arguments",
    "change_function": "function",
    "change_condition": "condition",
    "change_type": "type",
    "swap_statements": "move",
    "delete_statement": "delete",
    "duplicate_statement": "double",
}


@dataclass(frozen=True)
class Proposal:
    """text: the region with the edit. operator: a key of `OPERATORS`. sentence: what became of which line."""

    text: str
    operator: str
    sentence: str
    harmless: bool = False


Found = tuple[str, int, str, str]
"""The text with an edit; its line, from 1; and what was and is there."""


def proposals(text: str, rng: np.random.Generator) -> Iterator[Proposal]:
    """Edits of a region's lines, CUDA C or Python, each once, the operators taking turns as `rng` draws.

    Ends when it finds no more. A region that is no Python counts as CUDA C.
    """
    text = text if text.endswith("\n") else text + "\n"
    makers = _python(text) if _is_python(text) else _cuda(text)
    seen, failed = {text}, 0
    while failed < TRIES:
        for name in map(str, rng.permutation(list(makers))):
            found = makers[name](rng)
            if found is None or found[0] in seen:
                failed += 1
                continue
            failed = 0
            new, line, before, after = found
            seen.add(new)
            yield Proposal(new, name, _said(line, before, after), OPERATORS[name].harmless)


def _said(line: int, before: str, after: str) -> str:
    if not before:
        return f"Line {line}: `{after}` comes in."
    return f"Line {line}: `{before}` becomes `{after}`." if after else f"Line {line}: `{before}` goes."


def _is_python(text: str) -> bool:
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return True


# CUDA C


Make = Callable[[np.random.Generator], Found | None]
ATOM = r"[A-Za-z_]\w*(?:\.\w+)?(?:\[[\w +*/%-]*\])*|\d+(?:\.\d+f)?"
# Two atoms, and nothing beside them that binds tighter than their sign.
FACTORS = re.compile(rf"(?<=[(,=\[?+-])(?P<s> ?)(?P<a>{ATOM}) \* (?P<b>{ATOM})(?= ?[-+),;\]?]| [*/%])")
TERMS = re.compile(rf"(?<=[(,=\[?])(?P<s> ?)(?P<a>{ATOM}) \+ (?P<b>{ATOM})(?= ?[),;\]]| [-+] )")
COMPARED = re.compile(rf"(?<=[(;&|])(?P<s> ?)(?P<a>{ATOM}) (?P<op>[<>]=?) (?P<b>{ATOM})(?= ?[);&|?])")
UPDATE = re.compile(rf"(?P<a>{ATOM}) (?P<op>[-+*])= (?P<b>[^;,]+)$")
DECLARATION = re.compile(r"(?:[\w:]+(?:<[^;=()]*>)?[*&]*\s+)+[*&]*\w+|return\b|break\b|continue\b|goto\b")
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


class _Region(SourceText):
    """Lines in CUDA C with a function around them."""

    def __init__(self, text: str) -> None:
        super().__init__("region", HEAD + text + "}\n")

    def replaced(self, start: int, end: int, new: str, before: str = "", after: str = "") -> Found:
        whole = self.text[:start] + new + self.text[end:]
        old = self.text[start:end]
        line = self.text.count("\n", 0, start + len(old) - len(old.lstrip()))
        before, after = before or one_line(old), after or one_line(new)
        return whole[len(HEAD) : -len("}\n")], line, before, after

    @property
    def simple(self) -> list[Statement]:
        """Statements that are no loop, condition or block."""
        found = [item for item in self.items if item.header is None and not item.loop]
        return [item for item in found if self.code[item.start] != "{"]


def _cuda(text: str) -> Mapping[str, Make]:
    region = _Region(text)

    def from_class(kind: str) -> Make:
        def make(rng: np.random.Generator) -> Found | None:
            change = DRAW[kind](region, rng)
            if change is None or not len(HEAD) <= change.start <= change.end <= len(region.text) - 2:
                return None
            return region.replaced(change.start, change.end, change.new, change.before, change.after)

        return make

    def of(listed: Callable[[_Region], list[Found]]) -> Make:
        every: list[Found] = []

        def make(rng: np.random.Generator) -> Found | None:
            every[:] = every or listed(region)
            return every[rng.integers(len(every))] if every else None

        return make

    return {name: from_class(kind) for name, kind in FROM_CUDA.items()} | {
        name: of(listed) for name, listed in LISTED.items()
    }


def _deleted_waits(region: _Region) -> list[Found]:
    waits = [item for item in region.items if region.orders(item)]
    return [region.replaced(item.start, item.end, ";", region.said(item), "") for item in waits]


def _doubled_waits(region: _Region) -> list[Found]:
    waits = [(item, region.text[item.start : item.end]) for item in region.items if region.orders(item)]
    return [region.replaced(item.start, item.end, f"{{ {said} {said} }}") for item, said in waits]


def _weaker(region: _Region) -> list[Found]:
    found = region.found(r"__syncthreads\(\)")
    return [region.replaced(*each.span(), "__syncwarp()") for each in found]


def _flipped(region: _Region) -> list[Found]:
    found = region.found(r"(\w+)<([01])>")
    return [region.replaced(*each.span(), f"{each[1]}<{1 - int(each[2])}>") for each in found]


def _toggled(region: _Region) -> list[Found]:
    found = [
        region.replaced(pragma.start(), pragma.end(), "", after="")
        for pragma in re.finditer(r"^[ \t]*#pragma unroll[^\n]*\n", region.text, re.MULTILINE)
    ]
    for item in _loops(region):
        if "#pragma" not in _line_before(region, item.start):
            start = region.text.rfind("\n", 0, item.start) + 1
            if not region.text[start : item.start].strip():
                found.append(region.replaced(start, start, "#pragma unroll\n"))
    return found


def _loops(region: _Region) -> list[Statement]:
    return [item for item in region.items if item.loop and region.code.startswith("for", item.start)]


def _line_before(region: _Region, at: int) -> str:
    return region.text[:at].rpartition("\n")[0].rpartition("\n")[2]


def _renamed(region: _Region) -> list[Found]:
    found = []
    for item in _loops(region):
        assert item.header is not None
        declared = re.match(r"\s*(?:int|unsigned) (\w+) =", region.code[item.header[0] :])
        if declared is None:
            continue
        name = declared[1]
        new = next(f"{name}_{n}" for n in range(9) if f"{name}_{n}" not in region.text)
        uses = re.compile(rf"(?<![\w.>:])\b{name}\b").finditer(region.code, item.start, item.end)
        text, at = "", item.start
        for use in uses:
            text += region.text[at : use.start()] + new
            at = use.end()
        found.append(region.replaced(item.start, item.end, text + region.text[at : item.end], name, new))
    return found


def _swapped(pattern: re.Pattern, sign: str) -> Callable[[_Region], list[Found]]:
    def listed(region: _Region) -> list[Found]:
        return [
            region.replaced(*each.span(), f"{each['s']}{each['b']} {sign} {each['a']}")
            for each in region.found(pattern)
        ]

    return listed


def _turned(region: _Region) -> list[Found]:
    return [
        region.replaced(*each.span(), f"{each['s']}{each['b']} {FLIPPED[each['op']]} {each['a']}")
        for each in region.found(COMPARED)
    ]


def _spelled_out(region: _Region) -> list[Found]:
    found = []
    for item in region.simple:
        said = region.code[item.start : item.end - 1]
        if (update := UPDATE.fullmatch(said)) is not None:
            new = f"{update['a']} = {update['a']} {update['op']} ({update['b']})"
            found.append(region.replaced(item.start, item.end - 1, new))
    return found


def _prefixed(region: _Region) -> list[Found]:
    return [region.replaced(*each.span(), f"++{each[1]}") for each in region.found(r"(?<=; )(\w+)\+\+(?=\))")]


def _braced(region: _Region) -> list[Found]:
    found = [item for item in region.simple if not DECLARATION.match(region.code, item.start)]
    return [
        region.replaced(item.start, item.end, f"{{ {region.text[item.start : item.end]} }}") for item in found
    ]


def _hoisted(region: _Region) -> list[Found]:
    found = []
    for item in _loops(region):
        assert item.header is not None
        start, end = item.header
        bound = re.fullmatch(r"([^;]*; \w+ < )([A-Z][A-Z_0-9 /*]*|\d+)(; [^;]*)", region.code[start:end])
        if bound is None:
            continue
        pragma = re.search(r"#pragma unroll[^\n]*\n\s*$", region.text[: item.start])
        first = pragma.start() if pragma else item.start
        declared = f"{{ const int loop_bound = {bound[2]};\n"
        head = region.text[first : start + len(bound[1])]
        rest = region.text[end - len(bound[3]) : item.end]
        new = f"{declared}{head}loop_bound{rest} }}"
        found.append(region.replaced(first, item.end, new, bound[2], "loop_bound"))
    return found


def _commented(region: _Region) -> list[Found]:
    lines = [each.end() for each in re.finditer(r";[^\n]*\n", region.text)]
    return [region.replaced(at, at, "// Nothing else changes.\n") for at in lines]


LISTED: Mapping[str, Callable[[_Region], list[Found]]] = {
    "delete_wait": _deleted_waits,
    "duplicate_wait": _doubled_waits,
    "weaken_barrier": _weaker,
    "flip_count": _flipped,
    "toggle_unroll": _toggled,
    "rename_local": _renamed,
    "swap_factors": _swapped(FACTORS, "*"),
    "swap_terms": _swapped(TERMS, "+"),
    "flip_comparison": _turned,
    "spell_out_update": _spelled_out,
    "prefix_increment": _prefixed,
    "add_braces": _braced,
    "hoist_bound": _hoisted,
    "add_comment": _commented,
}


# Python


PYTHON_FLIPPED = {ast.Lt: ">", ast.Gt: "<", ast.LtE: ">=", ast.GtE: "<="}
PYTHON_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def _python(text: str) -> Mapping[str, Make]:
    margin = re.match(r" *", next(line for line in text.split("\n") if line.strip()))
    assert margin is not None
    source = python_edits.Source(textwrap.dedent(text))

    def back(found: Found) -> Found:
        return (textwrap.indent(found[0].rstrip() + "\n", margin[0]), *found[1:])

    def from_kind(kind: str) -> Make:
        def make(rng: np.random.Generator) -> Found | None:
            edit = python_edits.edit(source, kind, random.Random(int(rng.integers(1 << 32))))
            return None if edit is None else back((edit.text, edit.line, edit.before, edit.after))

        return make

    def of(other: Callable[[python_edits.Source, ast.AST], str | None]) -> Make:
        every = [(node, new) for node in source.nodes if (new := other(source, node)) is not None]

        def make(rng: np.random.Generator) -> Found | None:
            if not every:
                return None
            node, new = every[rng.integers(len(every))]
            line = getattr(node, "lineno", 0)
            return back((source.with_part(node, new), line, source.segment(node), new))

        return make

    return {name: from_kind(kind) for name, kind in FROM_PYTHON.items()} | {
        "swap_factors": of(lambda source, node: _commuted(source, node, ast.Mult, "*")),
        "swap_terms": of(lambda source, node: _commuted(source, node, ast.Add, "+")),
        "flip_comparison": of(_turned_in_python),
        "spell_out_update": of(_spelled_out_in_python),
    }


def _commuted(source: python_edits.Source, node: ast.AST, kind: type, sign: str) -> str | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, kind):
        return None
    return f"({source.segment(node.right)}) {sign} ({source.segment(node.left)})"


def _turned_in_python(source: python_edits.Source, node: ast.AST) -> str | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in PYTHON_FLIPPED:
        return None
    sign = PYTHON_FLIPPED[type(node.ops[0])]
    return f"{source.segment(node.comparators[0])} {sign} {source.segment(node.left)}"


def _spelled_out_in_python(source: python_edits.Source, node: ast.AST) -> str | None:
    if not isinstance(node, ast.AugAssign) or type(node.op) not in PYTHON_SIGNS:
        return None
    target = source.segment(node.target)
    return f"{target} = {target} {PYTHON_SIGNS[type(node.op)]} ({source.segment(node.value)})"
