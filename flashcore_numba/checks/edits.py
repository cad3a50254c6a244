"""Random wrong versions of the stages in CUDA C: one small edit each, drawn from a seed.

`deletions` leaves out what orders memory; these move, swap, repeat and rename. An edit need not compile, nor
be wrong: `campaign` says what became of each.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import cuda_reference
from flashcore_numba.checks.deletions import ORDERING, OTHER
from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages import Stage, files
from flashcore_numba.stages.edited import Edit, edit_at

CLASSES = {
    "move": "a barrier, wait, fence, commit or arrival some statements up or down",
    "swap": "two neighbouring statements in the other order",
    "hoist": "a statement of a loop before or after the loop",
    "duplicate": "a statement twice",
    "condition": "a condition negated, or always true",
    "arguments": "two arguments of a call in the other order",
    "operands": "another operator, or operands in the other order",
    "comparison": "< for <=, == for !=, && for ||",
    "count": "another number in a barrier, wait, arrival or commit",
    "constant": "another number anywhere else",
    "bound": "a loop from, to or by another number",
    "ring": "another slot, phase or tile of a ring",
    "stride": "another distance between rows, heads or tiles",
    "keys and values": "K for V, or V for K",
    "registers": "another array of registers, or another element of it",
}
"""The classes of edits, and what an edit of each does to a kernel."""

OWN_FILE = 0.75  # the share of edits in a stage's own file; the others are in headers that it includes
TRIES = 100  # draws in a row that find nothing new, before there is nothing left to find
RING = r"(?:\w+\.)?(?:slot|parity)|buffer|tile|step|iteration|t|n|rank|consumer|warpgroup"
STATES = ("m", "l", "sum", "total", "rescale", "mine", "theirs", "factor", "other_factor", "p", "s", "o")
OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "%", "%": "/", "^": "|", "+=": "-=", "*=": "+=", "-=": "+="}
FUNCTIONS = {"fmaxf": "fminf", "fminf": "fmaxf", "max": "min", "min": "max"}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
CONTROL = re.compile(r"(?:if(?:\s+constexpr)?|for|while|switch)\s*(?=\()")
JUMP = re.compile(r"\s*(?:return|continue|break)\b")
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True)
class RandomEdit:
    """`kind` is a key of `CLASSES`; at `line` of `file`, `before` became `after`, or went where it says."""

    stage: int
    kind: str
    file: str
    line: int
    before: str
    after: str
    edit: Edit

    @property
    def name(self) -> str:
        return f"{self.stage:02d} {self.kind} {self.file}:{self.line}"

    @property
    def mutant(self) -> Mutant:
        mistake = f"{self.file}:{self.line}: {self.kind}: `{self.before}` -> `{self.after}`"
        return Mutant(self.stage, self.name, mistake, (self.edit,), expected=(), on_gpu=False)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, Any]) -> "RandomEdit":
        """The edit whose `as_dict` is `data`."""
        return RandomEdit(**data | {"edit": Edit(**data["edit"])})


def random_edits(stage: Stage, rng: np.random.Generator) -> Iterator[RandomEdit]:
    """Edits of a stage's `.cu` file and of the headers that it includes, ptx.cuh aside.

    No two are the same, and the classes take turns. Ends when it finds no more.
    """
    files = [SourceText(path.name, path.read_text()) for path in _paths(stage)]
    seen = set()
    failed = 0
    while failed < TRIES:
        for kind in map(str, rng.permutation(list(CLASSES))):
            own = len(files) == 1 or rng.random() < OWN_FILE
            file = files[0] if own else files[rng.integers(1, len(files))]
            found = DRAW[kind](file, rng)
            if found is None or (file.name, *found[:3]) in seen:
                failed += 1
                continue
            failed = 0
            seen.add((file.name, *found[:3]))
            line = file.text.count("\n", 0, found.at) + 1
            edit = edit_at(file.text, found.start, found.end, found.new, file.name)
            yield RandomEdit(stage.place, kind, file.name, line, found.before, found.after, edit)


def _paths(stage: Stage) -> list:
    (kernel,) = files.kernels_of(stage.place)
    headers = set(re.findall(r'#include "(\w+\.cuh)"', kernel.read_text())) - {"ptx.cuh"}
    return [kernel, *(cuda_reference.INCLUDE / name for name in sorted(headers))]


class Change(NamedTuple):
    """text[start:end] becomes `new`; the rest is for a reader: what it was and became, and where."""

    start: int
    end: int
    new: str
    before: str
    after: str
    at: int


@dataclass
class Statement:
    """A statement. `header`: what is in the parentheses of an if or a loop. `loop`: whether it is a loop."""

    start: int
    end: int
    header: tuple[int, int] | None = None
    loop: bool = False


@dataclass
class _Block:
    """The statements between two braces, and the loop whose body they are."""

    items: list[Statement] = field(default_factory=list)
    loop: Statement | None = None


class SourceText:
    """A source, taken apart as far as an edit needs: statements, in blocks, in functions.

    `code` is the text with comments and lines for the preprocessor blanked, so that places are the same.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.code = re.sub(
            r"//[^\n]*|^[ \t]*#[^\n]*", lambda match: " " * len(match[0]), text, flags=re.MULTILINE
        )
        self.items: list[Statement] = []
        self.blocks: list[_Block] = []
        self.places: list[tuple[int, int]] = []  # the bodies of functions, and constants of the file
        end = 0
        for brace in re.finditer(r"\)\s*(\{)", self.code):
            if brace.start(1) >= end:
                self._block(brace.start(1), None)
                end = self.closing(brace.start(1))
                self.places.append((brace.start(1), end))
        for line in re.finditer(r"^constexpr [^;]*;", self.code, re.MULTILINE):
            self.places.append(line.span())
        self.constants = sorted(set(re.findall(r"\b([A-Z][A-Z_]*)\b(?= = )", self.code)) | {"D"})
        self.registers = sorted(set(re.findall(r"\b\w+_rmem\b", self.code)))

    def closing(self, at: int) -> int:
        """The place of the bracket that closes the one at `at`."""
        depth = 0
        for i in range(at, len(self.code)):
            depth += (self.code[i] in "([{") - (self.code[i] in ")]}")
            if not depth:
                return i
        raise ValueError(f"{self.name}: a bracket is never closed")

    def _block(self, brace: int, loop: Statement | None) -> None:
        block, end = _Block(loop=loop), self.closing(brace)
        self.blocks.append(block)
        at = self._skip(brace + 1)
        while at < end:
            block.items.append(self._item(at))
            at = self._skip(block.items[-1].end)

    def _skip(self, at: int) -> int:
        while at < len(self.code) and self.code[at].isspace():
            at += 1
        return at

    def _item(self, at: int) -> Statement:
        item = Statement(at, at)
        self.items.append(item)
        control = CONTROL.match(self.code, at)
        if control:
            close = self.closing(control.end())
            item.header, item.loop = (control.end() + 1, close), control[0][0] in "fw"
            item.end = self._body(self._skip(close + 1), item)
            follows = self._skip(item.end)
            if control[0].startswith("if") and self.code.startswith("else", follows):
                item.end = self._body(self._skip(follows + 4), item)
        elif re.match(r"do\b", self.code[at:]):
            item.loop = True
            item.end = self.code.index(";", self._body(self._skip(at + 2), item)) + 1
        elif self.code[at] == "{":
            self._block(at, None)
            item.end = self.closing(at) + 1
        else:
            item.end = self._simple(at)
        return item

    def _body(self, at: int, owner: Statement) -> int:
        """Where the body of an if or a loop ends."""
        if self.code[at] == "{":
            self._block(at, owner if owner.loop else None)
            return self.closing(at) + 1
        return self._item(at).end

    def _simple(self, at: int) -> int:
        """Where a statement that begins at `at` ends; the bodies of its lambdas are blocks of their own."""
        while self.code[at] != ";":
            if self.code[at] in "([{":
                if self.code[at] == "{" and self.code[:at].rstrip()[-1] in ")]":
                    self._block(at, None)
                at = self.closing(at)
            at += 1
        return at + 1

    def orders(self, item: Statement) -> bool:
        """Whether the statement is one that orders memory, and nothing else."""
        call = ORDERING.match(self.code, item.start)
        return call is not None and call.end() == item.end and not OTHER.search(call["name"])

    def said(self, item: Statement) -> str:
        return one_line(self.code[item.start : item.end])

    def found(self, pattern: str | re.Pattern) -> list[re.Match]:
        """What matches in functions, and in constants of the file."""
        pattern = re.compile(pattern)
        return [match for place in self.places for match in pattern.finditer(self.code, *place)]

    def counts(self) -> list[tuple[int, int]]:
        """The calls that order memory."""
        names = r"\b(?:mbarrier|bar|cp_async|bulk|wgmma|cluster)_\w*(?:<[^;<>]*>)?\("
        calls = self.found(names)
        return [(call.start(), self.closing(call.end() - 1)) for call in calls]


Draw = Callable[[SourceText, np.random.Generator], Change | None]


def one_line(text: str) -> str:
    """A text with its white space as single blanks."""
    return re.sub(r"\s+", " ", text).strip()


def _one_of(things: list, rng: np.random.Generator) -> Any:
    return things[rng.integers(len(things))] if things else None


def _replace(file: SourceText, span: tuple[int, int], new: str) -> Change:
    """A change within a statement, which is shown whole."""
    start, end = span
    around = [item for item in file.items if item.start <= start and end <= item.end]
    item = min(around, key=lambda item: item.end - item.start, default=Statement(start, end))
    first, last = item.start, item.end
    if item.header and not item.header[0] <= start < item.header[1]:
        first, last = start, end
    elif item.header:
        last = item.header[1] + 1
    before = one_line(file.code[first:last])
    after = one_line(file.code[first:start] + new + file.code[end:last])
    return Change(start, end, new, before, after, start)


def _reordered(file: SourceText, items: list[Statement], order: list[int]) -> str:
    """The text of neighbouring statements in another order; what is between them stays."""
    between = [file.text[a.end : b.start] for a, b in pairwise(items)]
    texts = [file.text[items[i].start : items[i].end] for i in order]
    return "".join(text + gap for text, gap in zip(texts, [*between, ""], strict=True))


def _move(file: SourceText, rng: np.random.Generator) -> Change | None:
    places = []
    for block in file.blocks:
        for i, item in enumerate(block.items):
            if file.orders(item):
                ways = [d for d in (-3, -2, -1, 1, 2, 3) if 0 <= i + d < len(block.items)]
                places += [(block.items, i, d) for d in ways]
    chosen = _one_of(places, rng)
    if chosen is None:
        return None
    items, i, way = chosen
    low, high = sorted((i, i + way))
    order = list(range(high - low + 1))
    order.insert(max(0, way), order.pop(i - low))
    some = items[low : high + 1]
    where = f"{abs(way)} {'down' if way > 0 else 'up'}, past `{file.said(items[i + way])}`"
    new = _reordered(file, some, order)
    return Change(some[0].start, some[-1].end, new, file.said(items[i]), where, items[i].start)


def _swap(file: SourceText, rng: np.random.Generator) -> Change | None:
    pairs = [pair for block in file.blocks for pair in pairwise(block.items)]
    pairs = [pair for pair in pairs if not any(map(file.orders, pair))]
    a, b = _one_of(pairs, rng) or (None, None)
    if a is None or b is None:
        return None
    after = f"after `{file.said(b)}`"
    return Change(a.start, b.end, _reordered(file, [a, b], [1, 0]), file.said(a), after, a.start)


def _hoist(file: SourceText, rng: np.random.Generator) -> Change | None:
    inside = [
        (block.loop, item)
        for block in file.blocks
        if block.loop
        for item in block.items
        if item.header is None and not JUMP.match(file.code, item.start)
    ]
    loop, item = _one_of(inside, rng) or (None, None)
    if loop is None or item is None:
        return None
    statement = file.text[item.start : item.end]
    rest = file.text[loop.start : item.start] + file.text[item.end : loop.end]
    first = rng.random() < 0.5
    # An unrolled loop's pragma must stay in front of it, so a block holds both.
    new = f"{{ {statement}\n{rest} }}" if first else f"{{ {rest}\n{statement} }}"
    start = loop.start
    if first and (pragma := re.search(r"#pragma unroll[^\n]*\n\s*$", file.text[: loop.start])):
        start, new = pragma.start(), f"{statement}\n{pragma[0]}{rest}"
    where = f"{'before' if first else 'after'} the loop `{file.said(loop).partition('{')[0].strip()}`"
    return Change(start, loop.end, new, file.said(item), where, item.start)


def _duplicate(file: SourceText, rng: np.random.Generator) -> Change | None:
    item = _one_of([item for item in file.items if not JUMP.match(file.code, item.start)], rng)
    if item is None:
        return None
    statement = file.text[item.start : item.end]
    return Change(
        item.start, item.end, f"{{ {statement}\n{statement} }}", file.said(item), "twice", item.start
    )


def _condition(file: SourceText, rng: np.random.Generator) -> Change | None:
    item = _one_of([item for item in file.items if item.header and not item.loop], rng)
    if item is None:
        return None
    start, end = item.header
    return _replace(file, item.header, "true" if rng.random() < 0.5 else f"!({file.code[start:end]})")


def _arguments(file: SourceText, rng: np.random.Generator) -> Change | None:
    calls = [call for call in file.found(r"\b(\w+)(?:<[^;<>]*>)?\(") if not CONTROL.match(call[0])]
    rng.shuffle(calls)
    for call in calls:
        parts = _parts(file, call.end(), file.closing(call.end() - 1))
        pairs = [
            (a, b)
            for i, a in enumerate(parts)
            for b in parts[i + 1 :]
            if file.code[slice(*a)] != file.code[slice(*b)]
        ]
        if pairs:
            a, b = _one_of(pairs, rng)
            new = file.code[slice(*b)] + file.code[a[1] : b[0]] + file.code[slice(*a)]
            return _replace(file, (a[0], b[1]), new)
    return None


def _parts(file: SourceText, start: int, end: int) -> list[tuple[int, int]]:
    """The places between commas, without the space around them."""
    cuts, at = [start - 1], start
    while at < end:
        if file.code[at] in "([{":
            at = file.closing(at)
        elif file.code[at] == ",":
            cuts.append(at)
        at += 1
    parts = []
    for a, b in zip(cuts, [*cuts[1:], end], strict=True):
        text = file.code[a + 1 : b]
        if text.strip():
            first = a + 1 + len(text) - len(text.lstrip())
            parts.append((first, first + len(text.strip())))
    return parts


def _operands(file: SourceText, rng: np.random.Generator) -> Change | None:
    way = rng.integers(3)
    if way == 0:
        match = _one_of(file.found(r"(?<= )(?:[-+*/%^]|[-+*]=)(?= )"), rng)
        return match and _replace(file, match.span(), OPERATORS[match[0]])
    if way == 1:
        match = _one_of(file.found(r"\b(?:fmaxf|fminf|max|min)(?=\()"), rng)
        return match and _replace(file, match.span(), FUNCTIONS[match[0]])
    either = r"(?P<a>[\w.]+(?:\[[^][]*\])?)(?P<between> - | / | % | \+ )(?P<b>[\w.]+(?:\[[^][]*\])?)"
    arms = r"(?<=\? )(?P<a>[^?:;,{}()]+)(?P<between> : )(?P<b>[^?:;,{}()]+)(?=[;,)}])"
    match = _one_of(file.found(either) + file.found(arms), rng)
    return match and _replace(file, match.span(), match["b"] + match["between"] + match["a"])


def _comparison(file: SourceText, rng: np.random.Generator) -> Change | None:
    match = _one_of(file.found(r"(?<= )(?:[<>]=?|[!=]=|&&|\|\|)(?= )"), rng)
    return match and _replace(file, match.span(), COMPARISONS[match[0]])


def _other_number(text: str, rng: np.random.Generator) -> str:
    n = int(text)
    return str(_one_of(sorted({n + 1, max(0, n - 1), 2 * n, n // 2} - {n}), rng))


def _count(file: SourceText, rng: np.random.Generator) -> Change | None:
    calls = file.counts()
    found = [
        match for match in file.found(r"(?<![\w.])(?:\d+|[A-Z][A-Z_]+)(?![\w.(])")
        if any(start < match.start() < end for start, end in calls)
    ]  # fmt: skip
    match = _one_of(found, rng)
    if match is None:
        return None
    name = f"({match[0]} {'+' if rng.random() < 0.5 else '-'} 1)"
    return _replace(file, match.span(), _other_number(match[0], rng) if match[0].isdigit() else name)


def _constant(file: SourceText, rng: np.random.Generator) -> Change | None:
    calls = file.counts()
    found = [n for n in file.found(NUMBER) if not any(start < n.start() < end for start, end in calls)]
    found += file.found(r"(?<![\w.])\d+\.\d+f\b")
    match = _one_of(found, rng)
    if match is None:
        return None
    if match[0].isdigit():
        return _replace(file, match.span(), _other_number(match[0], rng))
    return _replace(file, match.span(), "1.0f" if float(match[0][:-1]) != 1 else "0.5f")


def _bound(file: SourceText, rng: np.random.Generator) -> Change | None:
    headers = [item.header for item in file.items if item.loop and item.header]
    header = _one_of([place for place in headers if ";" in file.code[slice(*place)]], rng)
    if header is None:
        return None
    start, end = header
    first, last, step = file.code[start:end].split(";")
    way = rng.integers(3)
    sign = "+" if rng.random() < 0.5 else "-"
    if way == 0 and "=" in first:
        return _replace(file, (start, start + len(first)), f"{first} {sign} 1")
    if way == 1 and last.strip():
        place = start + len(first) + 1
        return _replace(file, (place, place + len(last)), f"{last} {sign} 1")
    if step.strip():
        return _replace(file, (end - len(step), end), f"{step}, {step.strip()}")
    return None


def _ring(file: SourceText, rng: np.random.Generator) -> Change | None:
    if rng.random() < 0.3 and (modulus := _one_of(file.found(r"(?<=% )(?:[A-Z]+|2)\b"), rng)):
        new = f"({modulus[0]} {'+' if rng.random() < 0.5 else '-'} 1)"
        return _replace(file, modulus.span(), "1" if new == "(2 - 1)" else new)
    uses = rf"(?<=[-+(\[,%*/] )(?:{RING})\b|(?<=[(\[])(?:{RING})\b|\b(?:{RING})(?= [-+*/%])"
    match = _one_of(file.found(rf"(?:{uses})(?! ?[\w(.<\[]| =|\+\+|--)"), rng)
    way = _one_of(["^", "+", "-"], rng)
    return match and _replace(file, match.span(), f"({match[0]} {way} 1)")


def _stride(file: SourceText, rng: np.random.Generator) -> Change | None:
    names = file.found(r"\b(?:q|k|v|out)_(?:row|head|batch)\b")
    match = _one_of([*names, *file.found(rf"\b(?:{'|'.join(file.constants)})\b")], rng)
    if match is None:
        return None
    others = sorted({each[0] for each in names}) if match in names else file.constants
    other = _one_of([each for each in others if each != match[0]], rng)
    return other and _replace(file, match.span(), other)


def _keys_and_values(file: SourceText, rng: np.random.Generator) -> Change | None:
    name = re.compile(r"\b[kv](?=_\w|\b(?! =))")
    simple = [item for item in file.items if item.header is None]
    item = _one_of([item for item in simple if name.search(file.code, item.start, item.end)], rng)
    if item is None:
        return None
    found = list(name.finditer(file.code, item.start, item.end))
    chosen = found if rng.random() < 0.5 else [_one_of(found, rng)]
    text = list(file.text[item.start : item.end])
    for match in chosen:
        text[match.start() - item.start] = "v" if match[0] == "k" else "k"
    new = "".join(text)
    return Change(
        item.start, item.end, new, file.said(item), one_line(re.sub(r"//[^\n]*", "", new)), item.start
    )


def _registers(file: SourceText, rng: np.random.Generator) -> Change | None:
    way = rng.integers(3)
    if way == 0 and len(file.registers) > 1:
        match = _one_of(file.found(r"\b\w+_rmem\b"), rng)
        return match and _replace(
            file, match.span(), _one_of([name for name in file.registers if name != match[0]], rng)
        )
    if way == 1:
        names = file.found(rf"\b(?:{'|'.join(STATES)})\b(?=\[|[,;)]| [-+*/])")
        match = _one_of(names, rng)
        others = sorted({name[0] for name in names} - {match[0]}) if match else []
        other = _one_of(others, rng)
        return other and _replace(file, match.span(), other)
    match = _one_of(file.found(r"(?<=\w\[)[^][]+(?=\])"), rng)
    return match and _replace(file, match.span(), f"({match[0]}) ^ 1")


DRAW: dict[str, Draw] = {
    "move": _move,
    "swap": _swap,
    "hoist": _hoist,
    "duplicate": _duplicate,
    "condition": _condition,
    "arguments": _arguments,
    "operands": _operands,
    "comparison": _comparison,
    "count": _count,
    "constant": _constant,
    "bound": _bound,
    "ring": _ring,
    "stride": _stride,
    "keys and values": _keys_and_values,
    "registers": _registers,
}
