"""Names the local variables that a kernel declares without a value, for whoever reads them before a write.

The compiler fills such variables with a pattern, and the runtime sees a read that finds it. The attribute
`cleanup` after each declarator keeps the variable in memory, where reads are seen, and tells the runtime its
name, size and place when its scope ends.
"""

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["rewritten"]

BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#(?:[^\n\\]|\\.)*', re.DOTALL | re.MULTILINE
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[ \t]*$', re.MULTILINE)
STATEMENT = re.compile(r"(?:(?<=[{};])|(?<=\bfor)\s*\()\s*(?=[A-Za-z_])")
TYPE = re.compile(
    r"(?:(?:const|volatile|struct|typename)\s+)*"
    r"(?P<name>(?:(?:unsigned|signed|long|short|int|char|double)\b\s*)+|[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)"
    r"(?:\s*<[^<>;{}]*(?:<[^<>;{}]*>[^<>;{}]*)*>)?\s*"
)
DECLARATOR = re.compile(r"\s*(?P<pointer>[*\s]*)(?P<name>[A-Za-z_]\w*)\s*(?:\[[^\]=;{}]*\]\s*)*")
NOT_A_TYPE = frozenset(
    """
    return goto break continue using typedef class enum union template extern static case default if else
    while do for switch namespace constexpr asm delete throw new operator public private protected friend
    inline auto void __shared__ __constant__ __device__ __global__ __host__ sizeof
    """.split()  # noqa: SIM905
)


def rewritten(source: Path, folders: Sequence[Path]) -> str:
    """The text of `source` with its variables named, and with the files that it includes from `folders`.

    Every line keeps its number and file. ptx.cuh, whose variables `asm` assigns, is included as it is.
    """
    names: list[str] = []
    body = _file(source, [source.parent, *folders], names, set())
    return "\n".join([*names, body])


def _file(path: Path, folders: Sequence[Path], names: list[str], seen: set[Path]) -> str:
    seen.add(path)
    text = _attributed(path.read_text(), path, names)

    def included(match: re.Match) -> str:
        found = next((folder / match[1] for folder in folders if (folder / match[1]).is_file()), None)
        if found is None or match[1] == "ptx.cuh":
            return match[0]
        inside = "" if found in seen else _file(found, folders, names, seen)
        back = text.count("\n", 0, match.start()) + 2
        return f'{inside}\n#line {back} "{path}"'

    body = re.sub(r"^[ \t]*#pragma once[ \t]*$", "", INCLUDE.sub(included, text), flags=re.MULTILINE)
    return f'#line 1 "{path}"\n{body}'


def _attributed(text: str, path: Path, names: list[str]) -> str:
    """`text` with the attribute behind each declarator without a value."""
    plain = BLANK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    places: list[tuple[int, str]] = []
    for statement in STATEMENT.finditer(plain):
        places += _unset(plain, statement.end())
    for end, name in reversed(places):
        line = text.count("\n", 0, end) + 1
        function = f"cpu_scope_end_{len(names)}"
        names.append(
            f"inline __attribute__((always_inline)) void {function}(void* p) "
            f'{{ cpu::scope_end(p, __builtin_object_size(p, 0), "{name}", {{"{path}", {line}}}); }}'
        )
        text = f"{text[:end]} __attribute__((cleanup({function}))){text[end:]}"
    return text


def _unset(plain: str, start: int) -> list[tuple[int, str]]:
    """End and name of each declarator without a value, if a declaration begins at `start`."""
    head = TYPE.match(plain, start)
    if not head or head["name"] in NOT_A_TYPE:
        return []
    found, at = [], head.end()
    while True:
        declarator = DECLARATOR.match(plain, at)
        if not declarator or (at == head.end() and not (declarator["pointer"] or plain[at - 1].isspace())):
            return []
        end = declarator.start("name") + len(plain[declarator.start("name") : declarator.end()].rstrip())
        at = declarator.end()
        if plain[at : at + 1] in ("=", "{", "("):
            at = _after_value(plain, at)
        else:
            found.append((end, declarator["name"]))
        if plain[at : at + 1] == ";":
            return found
        if plain[at : at + 1] != ",":
            return []
        at += 1


def _after_value(plain: str, at: int) -> int:
    """Where the initialiser that begins at `at` ends."""
    depth = 0
    while at < len(plain) and (depth or plain[at] not in ",;"):
        depth += (plain[at] in "([{") - (plain[at] in ")]}")
        if depth < 0:
            return at
        at += 1
    return at
