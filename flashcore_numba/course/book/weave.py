"""Numbers and code excerpts in lessons: what is between two comments is generated, never typed.

In prose `<!--us 05 online_softmax-->73.0<!---->`. Kinds, all by `Evidence`:

    us LABEL, ratio LABEL / LABEL                recorded GPU time in microseconds, quotient of two
    registers LABEL, local LABEL, spilled LABEL  the compiler's figures, a thread
    limit UNIT                                   fp32, tensor, exp or memory, in microseconds
    count STAGE[:VARIANT] KEY                    a total of the simulator
    line STAGE[:VARIANT] "TEXT" OP FIELD         a counter of one access
    calc EXPRESSION [| FORMAT]                   us("01 scalar") / us("02 coalesced") | .1f
    code FILE "FIRST" "LAST"                     from one text to another of a stage's file, as a fence;
                                                 a .cu or .cuh of cuda_reference has its ending

All but the last two take `@SHAPE` and `causal` after them. A code cell that begins with `%%write N` gets the
starter of lesson N's exercise.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise, lessons
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.records.amounts import short_us
from flashcore_numba.stages import files
from flashcore_numba.stages.edited import MARKS

OPENED = re.compile(r"<!--([a-z]+)(?: (.*?))?-->", re.DOTALL)
CLOSED = "<!---->"
# Markdown takes a line that begins with a comment for HTML, which ends the paragraph before it.
BROKEN = re.compile(r"(?<=[^\n>|])\n[ ]*(?=<!--(?!code )[a-z])")
WRITE = re.compile(r"^(```\{code-cell\}[^\n]*\n%%write (\d+)\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)


class WeaveError(ArgumentError):
    """A comment that cannot be filled in: the message names file, line, comment and reason."""


def woven(text: str, file: str, evidence: Evidence | None = None) -> str:
    """`text` with every generated part written anew. `file` names it in errors; its number, as in
    `05_online_softmax.md` or `appendix_05.md`, says which solutions an excerpt must not show.
    """
    evidence = evidence or Evidence()
    text = BROKEN.sub(" ", text)
    parts, position = [], 0
    for comment, kind, argument, at, start, stop in _comments(text, file):
        try:
            if kind != "code" and re.search(r"(?:\A|\n)\s*(?:[-*+] |\d+\. )?\Z", text[:at]):
                raise ArgumentError("a paragraph cannot begin with it: write a word before it")
            value = _generated(kind, argument, evidence, _number(file))
        except ArgumentError as error:
            line = text.count("\n", 0, at) + 1
            raise WeaveError(f"{file}:{line}: {comment}: {error}") from None
        parts += [text[position:start], value]
        position = stop
    whole = "".join(parts) + text[position:]
    return WRITE.sub(lambda cell: cell[1] + exercise.starter_cell(lessons.find(cell[2])), whole)


def plain(text: str) -> str:
    """`text` without the comments around what is generated, as a notebook shows it."""
    text = re.sub(r"^<!--code [^\n]*-->\n(.*?)^<!---->\n?", r"\1", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--[a-z]+ [^\n]*?-->(.*?)<!---->", r"\1", text)


def differences(text: str, file: str, evidence: Evidence | None = None) -> list[str]:
    """One sentence for each line that `woven` would change."""
    has, needs = text.splitlines(), woven(text, file, evidence).splitlines()
    if len(has) != len(needs):
        at = next((n for n, (a, b) in enumerate(zip(has, needs, strict=False)) if a != b), len(has))
        return [f"{file}:{at + 1}: a generated part has another length than the sources give"]
    return [
        f"{file}:{n}: says {a.strip()!r}, the sources give {b.strip()!r}"
        for n, (a, b) in enumerate(zip(has, needs, strict=True), 1)
        if a != b
    ]


def _comments(text: str, file: str) -> Iterator[tuple[str, str, str, int, int, int]]:
    """(comment, kind, argument, where it starts, start and stop of what it generates) of every comment."""
    position = 0
    while found := OPENED.search(text, position):
        stop = text.find(CLOSED, found.end())
        following = text.find("<!--", found.end())
        if stop < 0 or following < stop:
            line = text.count("\n", 0, found.start()) + 1
            raise WeaveError(f"{file}:{line}: {found[0]}: no {CLOSED} ends what it generates")
        yield found[0], found[1], found[2] or "", found.start(), found.end(), stop
        position = stop + len(CLOSED)


def _number(file: str) -> int | None:
    found = re.match(r"(?:appendix_)?(\d\d)[_.]", Path(file).name)
    return int(found[1]) if found else None


def _generated(kind: str, argument: str, evidence: Evidence, lesson: int | None) -> str:
    if kind == "calc":
        return _calculated(argument, evidence)
    if kind == "code":
        return _excerpt(argument, lesson)
    if kind not in KINDS:
        raise ArgumentError(f"kind {kind!r}: accepted are {', '.join([*KINDS, 'calc', 'code'])}")
    return KINDS[kind](evidence, *_options(argument))


def _options(argument: str) -> tuple[str, dict[str, Any]]:
    """The argument without its trailing `@SHAPE` and `causal`, and these as keywords."""
    options: dict[str, Any] = {}
    while found := re.fullmatch(r"(.*\S)\s+(@\S+|causal)", argument):
        argument = found[1]
        options |= {"causal": True} if found[2] == "causal" else {"shape": found[2][1:]}
    return argument, options


def _ratio(evidence: Evidence, argument: str, options: dict[str, Any]) -> str:
    labels = [label.strip() for label in argument.split("/")]
    if len(labels) != 2:
        raise ArgumentError(f"{argument!r}: LABEL / LABEL is accepted")
    return short_us(evidence.ratio(labels[0], labels[1], **options))


def _count(evidence: Evidence, argument: str, options: dict[str, Any]) -> str:
    stage, key = _words(argument, 2, "STAGE[:VARIANT] KEY", options)
    return amount(evidence.count(stage, key, **options))


def _line(evidence: Evidence, argument: str, options: dict[str, Any]) -> str:
    stage, text, op, field = _words(argument, 4, 'STAGE[:VARIANT] "TEXT" OP FIELD', options)
    return amount(evidence.line(stage, text, op, field, **options))


def _words(argument: str, count: int, form: str, options: dict[str, Any]) -> list[str]:
    words = shlex.split(argument)
    if len(words) != count:
        raise ArgumentError(f"{argument!r}: {form} is accepted")
    words[0], colon, variant = words[0].partition(":")
    if colon:
        options["variant"] = variant
    return words


KINDS: dict[str, Callable[[Evidence, str, dict[str, Any]], str]] = {
    "us": lambda evidence, label, options: short_us(evidence.us(label, **options)),
    "ratio": _ratio,
    "registers": lambda evidence, label, _: str(evidence.registers(label)),
    "local": lambda evidence, label, _: str(evidence.local(label)),
    "spilled": lambda evidence, label, _: str(evidence.spilled(label)),
    "limit": lambda evidence, unit, options: short_us(evidence.limit(unit, **options)),
    "count": _count,
    "line": _line,
}


def amount(value: float) -> str:
    """A whole number with thousands separated, another one with three significant digits: 1,048,576, 4.57."""
    return f"{value:,.0f}" if float(value).is_integer() else short_us(value)


def _calculated(argument: str, evidence: Evidence) -> str:
    expression, _, form = argument.rpartition(" | ") if " | " in argument else (argument, "", "")
    methods = {
        name: method for name, method in inspect.getmembers(evidence, inspect.ismethod) if name[0] != "_"
    }
    names = methods | {"min": min, "max": max, "round": round, "abs": abs, "__builtins__": {}}
    try:
        value = eval(expression.strip(), names)
        return format(value, form.strip()) if form else amount(value)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(f"cannot be calculated ({type(error).__name__}: {error})") from None


def _excerpt(argument: str, lesson: int | None) -> str:
    words = shlex.split(argument)
    if len(words) != 3:
        raise ArgumentError(f'{argument!r}: FILE "FIRST" "LAST" is accepted')
    name, first, last = words
    cuda = files.is_cuda(name)
    path = files.path(name)
    if not path.is_file():
        known = sorted(p.name if cuda else p.stem for p in path.parent.glob(f"*{path.suffix}"))
        known = [name for name in known if name != "__init__"]
        raise ArgumentError(f"there is no {path.name} among the stages: accepted are {', '.join(known)}")
    lines = path.read_text().splitlines()
    starts = [n for n, line in enumerate(lines) if first in line]
    if len(starts) != 1:
        raise ArgumentError(f"{first!r} is in {len(starts)} lines of {path.name}, not in one")
    ends = [n for n in range(starts[0], len(lines)) if last in lines[n]]
    if not ends:
        raise ArgumentError(f"{last!r} is in no line of {path.name} from {first!r} on")
    marks = [n for n, line in enumerate(lines) if line.strip() in MARKS["Python"]]
    kept = [n for n in range(starts[0], ends[0] + 1) if n not in marks or cuda]
    if set(kept) & _hidden(name, lesson):
        raise ArgumentError(f"the excerpt shows lines of the exercise of {path.name}")
    body = _dedented([lines[n] for n in kept])
    return f"\n```{'cpp' if cuda else 'python'}\n{body}\n```\n"


def _hidden(name: str, lesson: int | None) -> set[int]:
    """Indices of lines that the lesson's reader, or that of a later one, writes."""
    if lesson is None:
        return set()
    tasks = [each.exercise for each in lessons.EVERY.values() if each.number >= lesson]
    found = [exercise.region(task) for task in tasks if task.file == name]
    return {n for place in found for n in range(place.first_line - 1, place.last_line)}


def _dedented(lines: list[str]) -> str:
    """Without the common indentation; a `#pragma` has a margin of its own."""
    full = [line for line in lines if line.strip() and not line.startswith("#pragma")]
    margin = min((len(line) - len(line.lstrip()) for line in full), default=0)
    return "\n".join(line if line.startswith("#pragma") else line[margin:] for line in lines)
