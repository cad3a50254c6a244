"""What a text in CUDA C says without a compiler: its tokens, its names, who calls whom, who sets what."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flashcore_numba.course.exercise import Answer

TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<open>/\*)|(?P<directive>^[ \t]*#[^\n]*)"
    r"|(?P<text>\"[^\"\n]*\"?|'[^'\n]*'?)|(?P<number>\.?\d(?:[\w.]|'\d|(?<=[eE])[+-])*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>->|::|\S)",
    re.DOTALL | re.MULTILINE,
)
CASTS = {"const", "element", "element2", "float", "float2", "float4", "half", "half2", "int", "uint32_t"}


@dataclass(frozen=True)
class Token:
    """A word, number, sign, comment or directive; `kind` is the name of its group in `TOKEN`."""

    kind: str
    text: str
    line: int  # from 1, of the text that was read


def tokens(text: str, first: int) -> Iterator[Token]:
    """The tokens of a text whose first line has the number `first`, comments among them."""
    line, position = first, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield Token(match.lastgroup or "", match[0].strip(), line)


def code_of(text: str) -> str:
    """C++ with blanks for its comments; lines and columns stay."""

    def blank(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match.lastgroup == "comment" else match[0]

    return TOKEN.sub(blank, text)


def words(text: str) -> set[str]:
    """The names in a text, comments aside."""
    return set(re.findall(r"[A-Za-z_]\w*", code_of(text)))


def function_around(text: str, line: int) -> str | None:
    """The name of the innermost function, or lambda with a name, that contains a line of C++."""
    code = code_of(text)
    start = sum(len(each) + 1 for each in code.split("\n")[: line - 1])
    heads = re.compile(
        r"(?:\bauto (?P<local>\w+) = \[[^\]]*\]\s*|__(?:forceinline|noinline|global)__[^;{}()]*?"
        r"(?:__launch_bounds__\s*\([^)]*\))?[^;{}()]*?\b(?P<name>\w+)\s*)\((?:[^(){};]|\([^()]*\))*\)\s*\{"
    )
    found = None
    for head in heads.finditer(code):
        if head.end() <= start < _closing(code, head.end()):
            found = head["local"] or head["name"]
    return found


def _closing(code: str, at: int) -> int:
    """Where the block that opened before `at` closes."""
    depth = 1
    for n in range(at, len(code)):
        depth += (code[n] == "{") - (code[n] == "}")
        if depth == 0:
            return n
    return len(code)


def lines_calling(text: str, name: str) -> list[int]:
    """The lines that call a function of this name or give it another one, its own head aside."""
    call = re.compile(rf"(?<!\w){re.escape(name)}(?:<[^;()]*>)?[(;]")
    head = re.compile(rf"__(?:forceinline|noinline|global)__.*\b{re.escape(name)}\(|auto {re.escape(name)} =")
    lines = enumerate(code_of(text).splitlines(), 1)
    return [number for number, line in lines if call.search(line) and not head.search(line)]


def last_set(answer: Answer, expression: str) -> int | None:
    """The last line of the region that assigns to the expression's variable, or hands it whole to a call."""
    names = [word for word in re.findall(r"[A-Za-z_]\w*", expression) if word not in CASTS]
    if not names or answer.first is None:
        return None
    name = re.escape(names[0])
    assigned = re.compile(
        rf"\b{name}\b(?:\s*\[[^=;]*?\]|\.\w+)*\s*(?:[-+*/|&^%]|<<|>>)?=(?!=)|(?:\+\+|--)\s*{name}\b"
    )
    handed = re.compile(rf"\b(?!wgmma_pin)\w+(?:<[^;()]*>)?\(\s*&?\(?{name}\b|, &?{name}(?=[,)])")
    code = code_of("\n".join(answer.lines)).splitlines()
    return max(
        (answer.first + n for n, line in enumerate(code) if assigned.search(line) or handed.search(line)),
        default=None,
    )


def leaving(answer: Answer, *statements: str) -> int | None:
    """The first line of the region where threads leave: return, break or continue."""
    if answer.first is None:
        return None
    pattern = re.compile(rf"\b(?:{'|'.join(statements or ('return', 'break', 'continue'))})\b")
    code = code_of("\n".join(answer.lines)).splitlines()
    return next((answer.first + n for n, line in enumerate(code) if pattern.search(line)), None)
