"""Where an answer in CUDA C differs from the solution: the changes that `repair` tries.

Statements are aligned by what they have in common, names of the answer's own aside; inside a statement the
smallest parts that differ are found between its commas and brackets.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise

from flashcore_numba.course import cuda_text, exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.repair import (
    LONGEST,
    MOST_TOLD,
    Change,
    Experiments,
    aligned,
    changed,
    fewest,
    quoted,
    suspected,
)
from flashcore_numba.course.spec import Lesson

MOST_CHANGES = 16  # places in which an answer may differ from the solution
NEAR = 6  # so many are tried before well-known slips are
MOST_SLIPS = 24
FUNCTIONS = ("ex2", "expf", "exp2f", "__expf", "exp", "lg2", "logf", "log2f", "rcp")
FROM_TYPES = ("const", "float", "int", "float4", "RowState", "wmma", "element", "uint32_t", "auto", "bool")
MOST_EXPERIMENTS = 18  # on an answer; each is a compilation and a launch or two
SECONDS = 30.0  # of processor time that they may take
PAIRS = {"(": ")", "[": "]", "{": "}"}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
WAITS = re.compile(r"(?:cp_async|wgmma|mbarrier|bulk|cluster)_wait|fetched")
BARRIERS = re.compile(r"__syncthreads|__syncwarp|bar_sync|bar_arrive|cluster_sync")
ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "^=", "|=", "&=")
WORD = re.compile(
    r"\.?\d(?:[\w.]|'\d|(?<=[eE])[+-])*|[A-Za-z_]\w*|->|::|\+\+|--|&&|\|\||<<|[-+*/%^|&=!<>]=|\S"
)
SHORT = re.compile(r"const (?:int|float|float4|bool|auto|element\*) (?P<name>\w+) = (?P<value>[^;,]+[^;]*);")
DECLARATION = re.compile(r"(?:for\s*\(\s*)?((?:const\s+)?[\w:]+(?:<[^;()]*>)?[\s*&]+)(\w+)\s*[=;\[{,]")
Span = tuple[int, int, int, int]


def smallest(
    lesson: Lesson, answer: Answer, is_right: Callable[[Answer], bool], suspect: int | None = None
) -> tuple[Change, ...]:
    """The fewest changes found that make `is_right` of the answer true; none where it is too far from the
    solution. A version on which `is_right` raises is not right. suspect: the line to begin with.
    """
    experiments = Experiments(answer, is_right, MOST_EXPERIMENTS, SECONDS)
    changes = differences(lesson, answer)
    is_near = bool(changes) and _is_solution(lesson, changed(answer, changes))
    tried = [] if is_near and len(changes) <= NEAR else slips(lesson, answer)
    tried += suspected(changes, suspect) if is_near else []
    for change in sorted(tried, key=lambda change: change.line != suspect):
        if experiments.rights([change]):
            return (change,)
    if not is_near or len(changes) > MOST_CHANGES:
        return ()
    if not _is_solution_itself(lesson, changed(answer, changes)) and not experiments.rights(changes):
        return ()  # under names of its own it is no longer the solution
    found = fewest(changes, experiments.rights)
    return tuple(found) if len(found) <= MOST_TOLD and not experiments.over else ()


def slips(lesson: Lesson, answer: Answer) -> list[Change]:
    """Changes that undo well-known slips in an answer of its own build: arguments that have changed places, a
    function of another name than the solution's, a statement too much.
    """
    mine, theirs = _texts(lesson, answer)
    known = {word.text for word in theirs.words}
    calls = [(a, b) for a, b in pairwise([word.text for word in mine.words]) if b == "("]
    foreign = [name for name, _ in calls if name not in known and name in FUNCTIONS]
    wanted = [name for name in FUNCTIONS if name in known and name not in {word.text for word in mine.words}]
    found, renamed = [], list[Change]()
    for statement, follows in zip(mine.statements, [*mine.statements[1:], None], strict=True):
        words = list(statement.key)
        for n, word in enumerate(words):
            if word in foreign and wanted:
                renamed.append(_slip(answer, statement, (n, n + 1), f"ptx::{wanted[0]}"))
            if word != "(" or not _owner(words, n) or _owner(words, n) in ("if", "for", "while"):
                continue
            inside = [(a + n + 1, b + n + 1) for a, b in _split(words[n + 1 : _closer(words, n)])]
            for (a, b), (c, d) in pairwise(inside):
                if words[a:b] != words[c:d]:
                    text = f"{_between(statement, c, d)}, {_between(statement, a, b)}"
                    found.append(_slip(answer, statement, (a, d), text))
        if words[0] == "if" and follows is not None and follows.key == ("continue", ";"):
            skipped = _extra(answer, mine, statement)
            found.append(replace(skipped, edits=skipped.edits + _extra(answer, mine, follows).edits))
        if words[-1] == ";" and len(words) > 2 and words[0] not in FROM_TYPES:
            found.append(_extra(answer, mine, statement))
    if renamed:
        shown = f"the function `{foreign[0]}`{', in each call' * (len(renamed) > 1)}"
        edits = tuple(edit for each in renamed for edit in each.edits)
        found.insert(0, replace(renamed[0], cause="function", shown=shown, edits=edits))
    return found[:MOST_SLIPS]


def _slip(answer: Answer, statement: "_Statement", span: tuple[int, int], new: str) -> Change:
    start, end = span
    cause, shown = _slot(statement, start, end)
    edit = (statement.words[start].start, statement.words[end - 1].end, new)
    return Change("part", _line(answer, statement.words[start]), cause, shown, (edit,))


def _is_solution(lesson: Lesson, answer: Answer) -> bool:
    """Does it read as the solution does, names of its own aside? Then it is right."""
    mine, theirs = _texts(lesson, answer)
    return [each.key for each in mine.statements] == [each.key for each in theirs.statements]


def _is_solution_itself(lesson: Lesson, answer: Answer) -> bool:
    mine, theirs = (_Text(text) for text in ("\n".join(answer.lines), exercise.region(lesson.exercise).text))
    return [each.key for each in mine.statements] == [each.key for each in theirs.statements]


def _texts(lesson: Lesson, answer: Answer) -> tuple["_Text", "_Text"]:
    """The lines of the answer, and those of the solution as the answer would write them: with its names, and
    with a name for a value only where it has one.
    """
    mine, theirs = _named_alike(_Text("\n".join(answer.lines)), _Text(exercise.region(lesson.exercise).text))
    theirs = _inlined(_divided(mine, _renamed(mine, theirs)), {word.text for word in mine.words})
    heads = mine.heads | theirs.heads  # with braces in one text, so with their own in the other
    return _Text(mine.text, mine.given, heads), _Text(theirs.text, theirs.given, heads)


def _named_alike(mine: "_Text", theirs: "_Text") -> tuple["_Text", "_Text"]:
    """Both with the answer's names for values that the solution writes out: `const int quad = lane / 4;`."""
    text, given = theirs.text, list[str]()
    named = {word.text for word in theirs.words}
    for statement in mine.statements:
        short = SHORT.fullmatch(statement.source)
        if not short or short["name"] in named:
            continue
        words = r"\s*".join(re.escape(word.text) for word in _Text(short["value"]).words)
        changed = re.sub(rf"(?<!\w)(?<!= ){words}(?!\w)", short["name"], text)
        if changed != text:
            text = changed
            given.append(statement.source)
    return _Text(mine.text, tuple(given)), _Text(text)


def _divided(mine: "_Text", theirs: "_Text") -> "_Text":
    """The solution with a statement for each constant where the answer has one for each."""
    first = {head[2] for each in mine.statements if (head := DECLARATION.match(each.source))}
    text = theirs.text
    for statement in theirs.statements:
        head, words = DECLARATION.match(statement.source), list(statement.key)
        parts = _split(words[:-1])
        if not head or words[0] != "const" or not first & {words[a] for a, _ in parts[1:]}:
            continue
        kind = head[1].strip()
        others = [f"{kind} {_between(statement, a, b)};" for a, b in parts[1:]]
        text = text.replace(statement.source, " ".join([f"{_between(statement, *parts[0])};", *others]))
    return _Text(text)


def _inlined(theirs: "_Text", used: set[str]) -> "_Text":
    """The solution without names that it uses once and the answer does not."""
    text = theirs.text
    for statement in theirs.statements:
        short = SHORT.fullmatch(statement.source)
        if short and short["name"] not in used and len(re.findall(rf"\b{short['name']}\b", text)) == 2:
            text = short["value"].join(re.split(rf"\b{short['name']}\b", text.replace(statement.source, "")))
    return _Text(text)


@dataclass(frozen=True)
class _Word:
    text: str
    start: int
    end: int
    line: int  # from 0


class _Text:
    """The words of some lines without comments and directives, and the statements that they make."""

    def __init__(
        self, text: str, given: tuple[str, ...] = (), heads: frozenset[tuple[str, ...]] = frozenset()
    ) -> None:
        self.given = given  # declarations that the other text is read with, too
        self.kept = heads  # of an `if` or a loop that keeps its braces around one statement
        self.text = re.sub(
            r"^[ \t]*#[^\n]*", lambda match: " " * len(match[0]), cuda_text.code_of(text), flags=re.MULTILINE
        )
        self.words = [
            _Word(match[0], match.start(), match.end(), text.count("\n", 0, match.start()))
            for match in WORD.finditer(self.text)
        ]

    @cached_property
    def statements(self) -> list["_Statement"]:
        """Declarations and expressions up to their `;`; the head of an `if` or a loop; a brace of a block."""
        found: list[_Statement] = []
        start, depth, values = 0, 0, 0  # depth of () and [], of braces around values
        for n, word in enumerate(self.words):
            text, before = word.text, self.words[n - 1].text if n else ";"
            if text in "([":
                depth += 1
            elif text in ")]":
                depth -= 1
                head = self.words[start].text
                ends = depth == 0 and not values and head in ("if", "for", "while") and text == ")"
            if text == "{" and (depth or values or before in ("=", ",", "(", "return") or before == "]"):
                values += 1
                continue
            if text == "}" and values:
                values -= 1
                continue
            done = (
                (text == ";" and depth == 0 and not values)
                or (text in "{}" and depth == 0)
                or (text == ")" and ends)
                or text == "else"
            )
            if done:
                found.append(_Statement(self, start, n + 1))
                start = n + 1
        if start < len(self.words):
            found.append(_Statement(self, start, len(self.words)))
        return [each for each in _unbraced(found, self.kept) if each.source not in self.given]

    @property
    def heads(self) -> frozenset[tuple[str, ...]]:
        """Every `if` or loop that has braces."""
        pairs = pairwise(self.statements)
        return frozenset(head.key for head, brace in pairs if brace.key == ("{",) and head.key[0] == "if")


@dataclass(frozen=True)
class _Statement:
    of: _Text
    first: int
    last: int  # one past

    @cached_property
    def key(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)

    @cached_property
    def words(self) -> list[_Word]:
        return self.of.words[self.first : self.last]

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end

    @property
    def source(self) -> str:
        return self.of.text[self.start : self.end]


def _unbraced(statements: list["_Statement"], kept: frozenset[tuple[str, ...]]) -> list["_Statement"]:
    """Without braces that hold one statement, but for those after `kept`."""
    dropped: set[int] = set()
    opened: list[int] = []
    for n, statement in enumerate(statements):
        if statement.key == ("{",):
            opened.append(n)
        elif statement.key == ("}",) and opened:
            start = opened.pop()
            inside = [each for m, each in enumerate(statements[start + 1 : n], start + 1) if m not in dropped]
            one = [each for each in inside if each.key[0] not in ("if", "for", "while", "else")]
            head = statements[start - 1].key[0] if start else ""
            if start and statements[start - 1].key in kept:
                continue
            if len(one) == 1 and "else" not in {each.key[0] for each in inside} and head in ("if", "for"):
                dropped |= {start, n}
    return [each for n, each in enumerate(statements) if n not in dropped]


def differences(lesson: Lesson, answer: Answer) -> list[Change]:
    """The places in which an answer differs from the solution, names of its own aside, in order."""
    if answer.first is None or answer.last is None or not answer.is_cuda:
        return []
    mine, theirs = _texts(lesson, answer)
    if not mine.words:
        return []
    changes: list[tuple[int, Change]] = []
    extra: list[_Statement] = []
    missing: list[tuple[int, _Statement]] = []  # after so many of the answer's statements
    one, other = mine.statements, theirs.statements
    done = 0
    for a, b in aligned([each.key for each in one], [each.key for each in other], _alike):
        if a is None:
            assert b is not None
            missing.append((done, other[b]))
        elif b is None:
            extra.append(one[a])
        else:
            done = a + 1
            parts = _parts(answer, one[a], other[b]) if one[a].key != other[b].key else []
            changes += [(one[a].start, part) for part in parts]
    for run in _moves(one, extra, missing):
        some = [each for _, each in run]
        extra = [each for each in extra if each not in some]
        changes.append((some[0].start, _moved(answer, mine, some, run[0][0])))
    for each in extra:
        change = _extra(answer, mine, each)
        at = one.index(each)
        if at and one[at - 1] in extra and one[at - 1].key[0] in ("if", "for", "while"):
            head = changes.pop()[1]  # and what it governs
            change = replace(head, edits=head.edits + change.edits)
        changes.append((each.start, change))
    for n, (position, statement) in enumerate(missing):
        change = _missing(answer, mine, position, statement)
        if n and missing[n - 1][0] == position and missing[n - 1][1].key[0] in ("for", "while"):
            head = changes.pop()[1]  # and what it governs
            change = replace(head, edits=head.edits + change.edits)
        changes.append((mine.statements[position - 1].end if position else 0, change))
    return _balanced([change for _, change in sorted(changes, key=lambda each: each[0])])


def _moves(
    one: Sequence[_Statement], extra: Sequence[_Statement], missing: list[tuple[int, _Statement]]
) -> list[list[tuple[int, _Statement]]]:
    """Statements that are elsewhere in the solution, neighbours together; they are taken out of `missing`."""
    runs: list[list[tuple[int, _Statement]]] = []
    free = list(extra)
    for position, statement in list(missing):
        twin = next((each for each in free if each.key == statement.key), None)
        if twin is None or twin.key[0] in "{}":
            continue
        free.remove(twin)
        missing.remove((position, statement))
        follows = runs and runs[-1][0][0] == position and one.index(runs[-1][-1][1]) + 1 == one.index(twin)
        if follows:
            runs[-1].append((position, twin))
        else:
            runs.append([(position, twin)])
    return runs


def _renamed(mine: _Text, theirs: _Text) -> _Text:
    """The solution with its own new names as the answer calls them, where their types tell which is which."""
    used, wanted = ({word.text for word in text.words} for text in (mine, theirs))
    free = [(name, kind) for name, kind in _declared(mine) if name not in wanted]
    names: dict[str, str] = {}
    for name, kind in _declared(theirs):
        if name in used:
            continue
        twin = next((each for each, other in free if other == kind and each not in names.values()), None)
        if twin:
            names[name] = twin
    text = theirs.text
    for name, twin in names.items():
        text = re.sub(rf"\b{name}\b", twin, text)
    return _Text(text) if names else theirs


def _declared(text: _Text) -> list[tuple[str, str]]:
    """Names that statements declare, with the text of their types."""
    found = []
    for statement in text.statements:
        head = DECLARATION.match(statement.source)
        if not head or head[1].split()[0] in ("return", "else", "goto"):
            continue
        kind, words = " ".join(head[1].split()), list(statement.key)
        found.append((head[2], kind))
        found += [(words[a], kind) for a, b in _split(words)[1:] if b > a and words[0] != "for"]
    return found


def _alike(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    if one == other:
        return 1.0
    if "{" in (one[0], other[0]) or "}" in (one[0], other[0]):
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _parts(answer: Answer, mine: _Statement, theirs: _Statement) -> list[Change]:
    """The places in which a statement differs from its other version; one where they are many."""
    spans = _spans(list(mine.key), list(theirs.key), 0, 0)
    called = [n for n, word in enumerate(mine.key[:-1]) if mine.key[n + 1] == "(" and n]
    is_call = any(i <= n < k for i, k, *_ in spans for n in called) and len(spans) > 1
    if len(spans) > 3 or is_call:
        spans = [(spans[0][0], spans[-1][1], spans[0][2], spans[-1][3])]
    parts: list[Change] = []
    for part in (_part(answer, mine, theirs, span) for span in spans):
        if parts and parts[-1].shown == part.shown:
            part = replace(part, edits=parts.pop().edits + part.edits)
        parts.append(part)
    return parts


def _spans(mine: list[str], theirs: list[str], at: int, to: int) -> list[Span]:
    """Where some words differ from others, as [from, to) of both; `at` and `to` are where they begin."""
    one, other = _split(mine), _split(theirs)
    pairs = list(zip(one, other, strict=False))
    texts = [(mine[a:b], theirs[c:d]) for (a, b), (c, d) in pairs]
    if len(one) == len(other) > 1 and sum(a == b for a, b in texts) + 2 >= len(one) - (len(one) > 3):
        differ = [n for n, (a, b) in enumerate(texts) if a != b]
        same = sorted(texts[n][0] for n in differ) == sorted(texts[n][1] for n in differ)
        if same and len(differ) > 1:  # some have changed places
            (a, _), (c, _) = pairs[differ[0]]
            (_, b), (_, d) = pairs[differ[-1]]
            return [(at + a, at + b, to + c, to + d)]
        found = []
        for n in differ:
            (a, _), (c, _) = pairs[n]
            found += _spans(*texts[n], at + a, to + c)
        return found
    units, others = _units(mine), _units(theirs)
    keys, other_keys = [mine[a] for a, _ in units], [theirs[c] for c, _ in others]
    found = []
    for tag, i, k, j, m in SequenceMatcher(None, keys, other_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            for (a, b), (c, d) in zip(units[i:k], others[j:m], strict=True):
                if b - a > 1 and mine[a:b] != theirs[c:d]:
                    found += _spans(mine[a + 1 : b - 1], theirs[c + 1 : d - 1], at + a + 1, to + c + 1)
            continue
        a, b = _extent(units, i, k, len(mine))
        c, d = _extent(others, j, m, len(theirs))
        found.append((at + a, at + b, to + c, to + d))
    joined: list[Span] = []
    for span in found:
        if joined and span[0] - joined[-1][1] <= 1:  # one word between is no place of its own
            span = (joined[-1][0], span[1], joined.pop()[2], span[3])
        joined.append(span)
    return joined


def _extent(units: list[tuple[int, int]], first: int, last: int, end: int) -> tuple[int, int]:
    start = units[first][0] if first < len(units) else end
    return start, units[last - 1][1] if last > first else start


def _units(words: list[str]) -> list[tuple[int, int]]:
    """Words, and whole brackets, as [from, to)."""
    units, n = [], 0
    while n < len(words):
        end = _closer(words, n) + 1 if words[n] in PAIRS else n + 1
        units.append((n, min(end, len(words))))
        n = units[-1][1]
    return units


def _split(words: list[str]) -> list[tuple[int, int]]:
    """What commas and semicolons outside brackets divide, as [from, to)."""
    cuts = [a for a, b in _units(words) if b == a + 1 and words[a] in (",", ";")]
    return list(zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(words)], strict=True))


def _part(answer: Answer, mine: _Statement, theirs: _Statement, span: Span) -> Change:
    i, k, j, m = span
    at = mine.words[i].start if i < len(mine.words) else mine.end
    end = mine.words[k - 1].end if k > i else at
    new = theirs.of.text[theirs.words[j].start : theirs.words[m - 1].end] if m > j else ""
    cause, shown = _slot(mine, i, k)
    word = mine.words[min(i, len(mine.words) - 1)]
    assert answer.first is not None
    return Change("part", answer.first + word.line, cause, shown, ((at, end, f" {new} "),))


def _extra(answer: Answer, mine: _Text, statement: _Statement) -> Change:
    line = _line(answer, statement.words[0])
    edit = (statement.start, statement.end, "")
    cause = f"extra {_thing(statement)[0]}"
    return Change("extra", line, cause, f"`{quoted(statement.source)}`", (edit,))


def _missing(answer: Answer, mine: _Text, position: int, statement: _Statement) -> Change:
    at, line = _after(answer, mine, position)
    kind, shown = _thing(statement)
    edits = ((at, at, f"\n{statement.source}\n"),)
    if kind == "condition" and position < len(mine.statements):
        free = next(each for each in [*mine.statements[position:], statement] if each.key[0] not in "{}")
        at_fault = _line(answer, free.words[0])
        if free.key[0] == "if":  # it has a condition, but not this one
            last = len(free.words) - 1
            return Change("part", at_fault, *_slot(free, last - 1, last), edits)
        return Change("free", at_fault, "condition left out", f"`{quoted(free.source)}`", edits)
    return Change("missing", line, f"{kind} left out", shown, edits)


def _moved(answer: Answer, mine: _Text, some: list[_Statement], position: int) -> Change:
    at, _ = _after(answer, mine, position)
    start, end = some[0].start, some[-1].end
    text = mine.text[start:end]
    edits = ((start, end, ""), (at, at, f"\n{text}\n"))
    kind = "early" if at > start else "late"
    return Change(kind, _line(answer, some[0].words[0]), "order", f"`{quoted(text)}`", edits)


def _after(answer: Answer, mine: _Text, position: int) -> tuple[int, int]:
    """Where so many statements end: the character, and the line of the module."""
    if not position:
        return 0, answer.first or 1
    statement = mine.statements[position - 1]
    return statement.end, _line(answer, statement.words[-1])


def _line(answer: Answer, word: _Word) -> int:
    assert answer.first is not None
    return answer.first + word.line


def _balanced(changes: list[Change]) -> list[Change]:
    """The changes with those that open a brace and those that close it made one."""
    some = [change for change in changes if re.fullmatch(r"extra brace|brace left out", change.cause)]
    if not some:
        return changes
    first = min(some, key=lambda change: change.line)
    heads = [
        c
        for c in changes
        if c.kind in ("extra", "free") and c.cause in ("extra condition", "condition left out")
    ]
    joined = [*some, *heads]
    shown = heads[0].shown if heads else "which statements the braces `{ }` hold"
    cause = heads[0].cause if heads else "braces"
    kind = heads[0].kind if heads else "part"
    line = heads[0].line if heads else first.line
    whole = Change(kind, line, cause, shown, tuple(edit for each in joined for edit in each.edits))
    rest = [change for change in changes if change not in joined]
    return sorted([whole, *rest], key=lambda change: change.line)


def _thing(statement: _Statement) -> tuple[str, str]:
    """What a statement is: a word or two, and the same for a sentence."""
    text = statement.source
    head = statement.words[0].text
    if head in "{}":
        return "brace", f"`{head}`"
    if head in ("if", "else"):
        return "condition", "a condition"
    if head in ("for", "while"):
        return "loop", "a loop"
    call = re.search(r"\b(?:ptx|wmma|tile)?(?:::)?(\w+)\s*(?:<[^;()]*>)?\(", text)
    name = call[1] if call else ""
    if BARRIERS.search(name):
        return "barrier", "a barrier"
    if WAITS.search(name):
        return "wait", "a wait"
    if "fence" in name:
        return "fence", "a fence"
    if "commit" in name:
        return "commit", "a commit"
    if target := re.match(r"(?:[\w:<>,\s*&]*?\b)??(\w+)(?:\s*\[[^=;]*\])*\s*[-+*/%^|&]?=(?!=)", text):
        return "assignment", f"a statement that sets `{target[1]}`"
    if call:
        return "call", f"a call of `{name}`"
    return "statement", "a statement"


def _slot(statement: _Statement, start: int, end: int) -> tuple[str, str]:
    """What part of its statement some words are: a word or two, and the same, quoted, for a sentence."""
    words = [word.text for word in statement.words]
    low, high = start, end
    while True:
        opener = _opener(words, low, high)
        first, last = (opener + 1, _closer(words, opener)) if opener is not None else (0, len(words))
        separators = [
            n for n in range(first, last) if words[n] in (",", ";") and _opener(words, n, n + 1) == opener
        ]
        before = max((n + 1 for n in separators if n < low), default=first)
        after = min((n for n in separators if n >= high), default=last)
        number = sum(n < low for n in separators)
        text = _between(statement, before, after)
        detail = f", `{text}`" if text and len(text) <= LONGEST else ""
        if opener is None:
            return _top(statement, words, low, high)
        owner = _owner(words, opener)
        if words[opener] == "[":
            return "index", f"the index of `{owner}`{detail}"
        if words[opener] == "{":
            return "value", f"a value in braces{detail}"
        if words[opener] == "<":
            return "template argument", f"what `{owner}` has in angle brackets{detail}"
        if owner in ("if", "constexpr", "while"):
            return "condition", f"the condition{detail}"
        if owner == "for":
            part = ("where the loop begins", "what ends the loop", "the step of the loop")[min(number, 2)]
            return ("loop start", "loop bound", "loop step")[min(number, 2)], f"{part}{detail}"
        if owner:
            if any(low <= n < high for n in separators):
                return "arguments", f"the arguments of `{owner}`{detail}"
            which = ORDINALS[number] if number < len(ORDINALS) else "last"
            return "argument", f"the {which} argument of `{owner}`{detail}"
        low, high = opener, last + 1  # brackets that only hold an expression together


def _top(statement: _Statement, words: list[str], low: int, high: int) -> tuple[str, str]:
    """The part of a statement outside all its brackets."""
    commas = [n for n, word in enumerate(words) if word == "," and _opener(words, n, n + 1) is None]
    first = max((n + 1 for n in commas if n < low), default=0)
    last = min((n for n in commas if n >= high), default=len(words) - (words[-1] == ";"))
    equals = next(
        (n for n in range(first, last) if words[n] in ASSIGNS and _opener(words, n, n + 1) is None), None
    )
    if equals is not None:
        target = _between(statement, first, equals)
        if low > equals:
            value = _between(statement, equals + 1, last)
            detail = f", `{value}`" if value and len(value) <= LONGEST else ""
            return "value", f"the value of `{quoted(_name_of(target))}`{detail}"
        if high > equals:
            return "operator", f"the sign `{words[equals]}` behind `{quoted(target)}`"
        return "target", f"what is set, `{quoted(target)}`"
    if words[:3] == ["wmma", "::", "fragment"]:
        return "type", f"the type of `{words[last - 1]}`"
    if words[high : high + 1] == ["("] and high > low:
        return "function", f"the function, `{quoted(_between(statement, low, high))}`"
    return "statement", f"`{quoted(statement.source)}`"


def _name_of(target: str) -> str:
    """The variable in `const float* name` or `name[index]`."""
    found = re.match(r"^(?:.*[\s*&>])?(\w+(?:\s*\[.*\])?)$", target.strip())
    return found[1] if found else target


def _between(statement: _Statement, first: int, last: int) -> str:
    if last <= first:
        return ""
    text = statement.of.text[statement.words[first].start : statement.words[last - 1].end]
    return " ".join(text.split())


def _angles(words: list[str]) -> dict[int, int]:
    """The `<` that open template arguments of a call or a type, and where each closes."""
    found = {}
    for n, word in enumerate(words):
        if word != "<" or n == 0 or not re.fullmatch(r"[A-Za-z_]\w*", words[n - 1]):
            continue
        for m in range(n + 1, len(words)):
            if words[m] in (";", "(", "{", "&", "|"):
                break
            if words[m] == ">":
                follows = words[m + 1 : m + 2]
                if follows and (follows[0] == "(" or re.fullmatch(r"[A-Za-z_]\w*", follows[0])):
                    found[n] = m
                break
    return found


def _opener(words: list[str], low: int, high: int) -> int | None:
    """The innermost bracket that is open before `low` and closed after `high`."""
    angles = _angles(words)
    closes = {close: n for n, close in angles.items()}
    stack: list[int] = []
    inside: list[int] = []
    for n, word in enumerate(words):
        if n == low:
            inside = list(stack)
        if word in PAIRS or n in angles:
            stack.append(n)
        elif (word in PAIRS.values() or n in closes) and stack:
            closed = stack.pop()
            if low <= n < high and closed in inside:
                inside.remove(closed)
    if low >= len(words):
        inside = stack
    return inside[-1] if inside else None


def _closer(words: list[str], opener: int) -> int:
    if opener in (angles := _angles(words)):
        return angles[opener]
    depth = 0
    for n in range(opener, len(words)):
        depth += (words[n] in PAIRS) - (words[n] in PAIRS.values())
        if not depth:
            return n
    return len(words)


def _owner(words: list[str], opener: int) -> str:
    """The name before a bracket: an array, a function, `for`; "" for brackets around an expression."""
    n = opener - 1
    closes = {close: at for at, close in _angles(words).items()}
    while n >= 0 and (words[n] == "]" or n in closes):
        n = closes[n] - 1 if n in closes else _opening(words, n) - 1
    if n < 0 or not re.fullmatch(r"[A-Za-z_]\w*", words[n]) or words[n] in ("return", "const", "else"):
        return ""
    return words[n]


def _opening(words: list[str], closer: int) -> int:
    depth = 0
    for n in range(closer, -1, -1):
        depth += (words[n] in PAIRS.values()) - (words[n] in PAIRS)
        if not depth:
            return n
    return 0
