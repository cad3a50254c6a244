"""The rooms of the house, read from its source: how large they are and what each one imports.

A room is a package or a module directly below `flashcore_numba`, or `cuda_reference`. Its floor is one above
the highest room that it imports, so every arrow leads down. A circle of imports has no floors and raises.
"""

import ast
import functools
import graphlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE, KERNELS = "flashcore_numba", "cuda_reference"
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h"}


@dataclass(frozen=True)
class Room:
    """parts: lines of code of each subfolder, "" for what is in none. imports: the names of other rooms."""

    name: str
    purpose: str
    floor: int
    parts: Mapping[str, int]
    imports: tuple[str, ...]

    @property
    def lines(self) -> int:
        return sum(self.parts.values())


def rooms(root: Path) -> list[Room]:
    """The rooms of the clone `root`, from the ground floor up. Raises graphlib.CycleError for a circle."""
    files: dict[str, dict[tuple[str, ...], str]] = {}  # room -> parts of a path in it -> text
    for folder in (PACKAGE, KERNELS):
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix in SOURCES and (name := _room(parts)):
                files.setdefault(name, {})[parts if folder == KERNELS else parts[1:]] = path.read_text()
    imports = {
        name: set().union(*(_imports(text) for path, text in texts.items() if path[-1].endswith(".py")))
        & set(files) - {name}
        for name, texts in files.items()
    }
    floors: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(imports).static_order():
        floors[name] = max((floors[other] + 1 for other in imports[name]), default=0)
    return [
        Room(name, _purpose(files[name]), floors[name], _lines(files[name]), tuple(sorted(imports[name])))
        for name in sorted(files, key=lambda name: (floors[name], name))
    ]


def arrows(house: Sequence[Room]) -> list[tuple[str, str]]:
    """(room, room it imports), without those that a way over other rooms implies."""
    reached: dict[str, set[str]] = {}
    for room in house:
        reached[room.name] = set(room.imports).union(*(reached[other] for other in room.imports))
    return [
        (room.name, other)
        for room in house
        for other in room.imports
        if not any(other in reached[between] for between in room.imports)
    ]


def table(house: Sequence[Room]) -> str:
    """Markdown: the rooms, the top floor first, each with its purpose and what it imports directly."""
    direct: dict[str, list[str]] = {room.name: [] for room in house}
    for room_name, other in arrows(house):
        direct[room_name].append(f"`{other}`")
    lines = ["| floor | room | what it is for | rests on |", "|--:|---|---|---|"]
    lines += [
        f"| {room.floor} | `{room.name}` | {room.purpose} | {', '.join(direct[room.name])} |"
        for room in sorted(house, key=lambda room: (-room.floor, room.name))
    ]
    return "\n".join(lines)


def alt(house: Sequence[Room]) -> str:
    """The picture in words."""
    floors = itertools.groupby(house, key=lambda room: room.floor)
    told = [f"floor {floor}: {', '.join(room.name for room in there)}" for floor, there in floors]
    leads = ", ".join(f"{room} to {other}" for room, other in arrows(house))
    return f"The rooms of the house, with blocks as large as their code; {'; '.join(told)}. Arrows: {leads}."


def _room(parts: tuple[str, ...]) -> str | None:
    """The room of a file or of a module's name; none for what starts the package or hands its names on."""
    if parts[0] == KERNELS:
        return KERNELS
    name = parts[1].removesuffix(".py")
    return None if name.startswith("__") else name


@functools.lru_cache(maxsize=2048)  # every picture and every page asks for the house
def _imports(text: str) -> frozenset[str]:
    """What a Python file imports: names of rooms, and of attributes of the package itself."""
    found: set[str] = set()
    for node in _nodes(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        split = [tuple(name.split(".")) for name in names]
        found |= {
            room for parts in split if parts[0] in (PACKAGE, KERNELS) if (room := _room((*parts, "__")))
        }
    return frozenset(found)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: imports for the type checker alone are no arrows."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            todo += ast.iter_child_nodes(node)


def _lines(texts: Mapping[tuple[str, ...], str]) -> dict[str, int]:
    """Lines of code of each part of a room."""
    found: dict[str, int] = {}
    for path, text in texts.items():
        part = path[1] if len(path) > 2 else ""
        found[part] = found.get(part, 0) + text.count("\n")
    return found


def _purpose(texts: Mapping[tuple[str, ...], str]) -> str:
    """The first sentence of a room's docstring."""
    (module,) = (path for path in texts if len(path) == 1 or path[1:] == ("__init__.py",))
    first = (ast.get_docstring(ast.parse(texts[module])) or "").partition("\n\n")[0]
    return re.split(r"(?<=\.) ", " ".join(first.split()))[0]
