"""Names the local variables that a kernel declares without a value, for reports of a read before a write.

The compiler fills such variables with a pattern, and the runtime sees a read that finds it. The attribute
`cleanup` after each declarator keeps the variable in memory, where reads are seen, and tells the runtime its
name, size and place when its scope ends.
"""

import re
from collections.abc import Sequence
from pathlib import Path

AS_THEY_ARE = ("ptx.cuh", "element.cuh")  # `asm` assigns the variables of the first, which includes the other
BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#(?:[^\n\\]|\\.)*', re.DOTALL | re.MULTILINE
)
INCLUDE = re.compile(  # or where a group may end that was skipped, with the lines of what it includes
    r'^[ \t]*#[ \t]*(?:include[ \t]*"([^"\n]+)"[ \t]*|(?:else|elif|endif)\b[^\n]*)$', re.MULTILINE
)
STATEMENT = re.compile(r"(?:(?<=[{};])|(?<=\bfor)\s*\()\s*(?=[A-Za-z_])")
TYPE = re.compile(
    r"(?:(?:const|volatile|struct|typename)\s+)*"
    r"(?P<name>(?:(?:unsigned|signed|long|short|int|char|double)\b\s*)+|[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)"
    r"(?:\s*<[^<>;{}]*(?:<[^<>;{}]*>[^<>;{}]*)*>)?\s*"
)
DECLARATOR = re.compile(r"\s*(?P<pointer>[*\s]*)(?P<name>[A-Za-z_]\w*)\s*(?:\[[^\]=;{}]*\]\s*)*")
INDEX = r"\s*(?:\[[^\]]*\]\s*)*"
COPY = re.compile(rf"\b(?P<to>[A-Za-z_]\w*){INDEX}=\s*(?P<of>[A-Za-z_]\w*){INDEX}[;,]")
NOT_A_TYPE = frozenset(
    """
    return goto break continue using typedef class enum union template extern static case default if else
    while do for switch namespace constexpr asm delete throw new operator public private protected friend
    inline void __shared__ __constant__ __device__ __global__ __host__ sizeof
    """.split()  # noqa: SIM905
)


def rewritten(source: Path, folders: Sequence[Path]) -> str:
    """The text of `source` with its variables named, and with the files that it includes from `folders`.

    Every line keeps its number and file. `AS_THEY_ARE` are included as they are. The text of another file is
    where it is first included: not in a group that may be skipped, if it is needed later.
    """
    names: list[str] = []
    body = _file(source, [source.parent, *folders], names, set())
    return "\n".join([*names, body])


def _file(path: Path, folders: Sequence[Path], names: list[str], seen: set[Path]) -> str:
    seen.add(path)
    text = _attributed(path.read_text(), path, names)

    def included(match: re.Match) -> str:
        back = text.count("\n", 0, match.start()) + 2
        if match[1] is None:
            return f'{match[0]}\n#line {back} "{path}"'
        found = next((folder / match[1] for folder in folders if (folder / match[1]).is_file()), None)
        if found is None or match[1] in AS_THEY_ARE:
            return match[0]
        inside = "" if found in seen else _file(found, folders, names, seen)
        return f'{inside}\n#line {back} "{path}"'

    body = re.sub(r"^[ \t]*#pragma once[ \t]*$", "", INCLUDE.sub(included, text), flags=re.MULTILINE)
    return f'#line 1 "{path}"\n{body}'


def _attributed(text: str, path: Path, names: list[str]) -> str:
    """`text` with every local variable without a value watched, and those that one is copied to."""
    plain = _blanked(text)
    declared = [(at, *each) for at in STATEMENT.finditer(plain) for each in _declarators(plain, at.end())]
    watched = {name for *_, name, has_value in declared if not has_value}
    copied: set[str] = set()
    while more := {copy["to"] for copy in COPY.finditer(plain) if copy["of"] in watched | copied} - copied:
        copied |= more
    added: list[tuple[int, str]] = []
    for at, end, name, has_value in declared:
        if name not in (copied if has_value else watched):
            continue
        line = text.count("\n", 0, end) + 1
        function = f"cpu_scope_end_{len(names)}"
        names.append(
            f"inline __attribute__((always_inline)) void {function}(const void* p) "
            f'{{ cpu::scope_end(p, __builtin_object_size(p, 0), "{name}", {{"{path}", {line}}}); }}'
        )
        added.append((end, f" __attribute__((cleanup({function})))"))
        if not has_value and _is_statement(
            plain, at
        ):  # or the compiler would hand the pattern on without a read
            added.append((plain.index(";", end) + 1, f' asm volatile("" : "+m"({name}));'))
    for place, addition in sorted(added, reverse=True):
        text = text[:place] + addition + text[place:]
    return text


def _is_statement(plain: str, at: re.Match) -> bool:
    """Whether a declaration is a statement of a function, where another may follow it."""
    if "(" in at[0]:
        return False  # in the head of a loop
    depth = 0
    for i in range(at.start() - 1, -1, -1):
        depth += (plain[i] == "}") - (plain[i] == "{")
        if depth < 0:
            before = re.split(r"[;{}()]", plain[:i][-400:])[-1]
            return not re.search(r"\b(struct|class|union|enum|namespace|extern)\b", before)
    return False


def _blanked(text: str) -> str:
    return BLANK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def only_copied(name: str, line: str, text: str) -> bool:
    """Whether all that `line` does with the variable is to copy it to another local one of `text`, the file.

    That is a read, but no use of what it holds; the copy is watched in its turn.
    """
    plain = _blanked(text)
    local = {each[1] for at in STATEMENT.finditer(plain) for each in _declarators(plain, at.end())}
    rest, copies = re.subn(
        COPY,
        lambda copy: ";" if copy["of"] == name and copy["to"] in local else copy[0],
        _blanked(line),
    )
    return copies > 0 and not re.search(rf"\b{re.escape(name)}\b", rest)


def _declarators(plain: str, start: int) -> list[tuple[int, str, bool]]:
    """End, name and whether it has a value of each declarator from `start` on, but of pointers with one."""
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
        has_value = plain[at : at + 1] in ("=", "{", "(")
        if has_value:
            at = _after_value(plain, at)
        if not (has_value and declarator["pointer"].strip()):  # what it points to is no local variable
            found.append((end, declarator["name"], has_value))
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
