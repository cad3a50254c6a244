"""What is where in shared memory, and the constants of a kernel: read from its own text.

Constants are what `constexpr` and the launcher's macros say. Dynamic shared memory is divided by pointers
that begin at `smem`, one statement each, `half* k_smem = q_smem + ROWS * D;  // [STAGES, KEYS, D]`; static
arrays are declared `__shared__`. Nothing is compiled.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cuda_reference import INCLUDE, Source
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.cuda_text import code_of

SIZES = {  # bytes
    "unsigned char": 1,
    "char": 1,
    "element": 2,
    "half": 2,
    "stored": 2,  # of a pool that is not e4m3, and no lesson's is
    "uint16_t": 2,
    "element2": 4,
    "half2": 4,
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "uint32_t": 4,
    "float2": 8,
    "uint2": 8,
    "uint64_t": 8,
    "float4": 16,
    "int4": 16,
    "uint4": 16,
}
DEFAULT = re.compile(r"^#ifndef (\w+)\n#define \1 (\w+)", re.MULTILINE)  # of a macro, a number or another one
CONSTANT = re.compile(r"\bconstexpr\s+(?:int|unsigned|bool|float|uint32_t|size_t)\s+([^;]*);")
UNREADABLE = (ArithmeticError, AttributeError, NameError, SyntaxError, TypeError, ValueError)
MOST_PADDING = 32  # elements of a row: a part with more has more rows than its shape says
POINTER = re.compile(
    r"^[ \t]*(?:const\s+)?(?P<type>unsigned char|\w+)\s*\*\s*(?:const\s+)?"
    r"(?P<name>\w+)\s*=\s*(?P<value>[^;]*);"
    r"(?:[ \t]*//[ \t]*(?P<shape>\[[^\]]*\])?)?",
    re.MULTILINE,
)
STATIC = re.compile(
    r"^[ \t]*__shared__\s+(?:__align__\(\d+\)\s+)?(?P<type>\w+)\s+(?P<names>[^;]*);"
    r"(?:[ \t]*//[ \t]*(?P<shape>\[[^\]]*\])?)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """A part of a block's shared memory.

    first and bytes are of dynamic shared memory, or of the static arrays in the order of their declaration;
    `type` is of an element; `shape` as its comment says, "" where there is none; over: the part that these
    bytes belonged to before, "" where it has its own; row: elements from one row to the next, 0 where the
    text does not say.
    """

    name: str
    first: int
    bytes: int
    type: str
    shape: str = ""
    over: str = ""
    row: int = 0

    @property
    def stop(self) -> int:
        return self.first + self.bytes


def constants(source: Source, text: str | None = None) -> dict[str, int]:
    """The integers that the kernel's `constexpr` names and its macros stand for, at these macros."""
    names: dict[str, Any] = dict(source.defines)
    whole = _with_headers(source.text() if text is None else text)
    for default in DEFAULT.finditer(whole):
        names.setdefault(default[1], int(default[2]) if default[2].isdigit() else names.get(default[2]))
    for statement in CONSTANT.finditer(code_of(whole)):
        for part in _split(statement[1]):
            name, equals, value = part.partition("=")
            name = name.strip()
            if equals and re.fullmatch(r"\w+", name) and name not in names:
                try:
                    names[name] = _number(value, names)
                except UNREADABLE:
                    continue  # of a template, or a function's value
    return {name: int(value) for name, value in names.items() if isinstance(value, int | float | bool)}


def _with_headers(text: str) -> str:
    """The text with the headers of `include/` in place of the lines that include them, PTX aside."""

    def included(match: re.Match) -> str:
        path = INCLUDE / match[1]
        return _with_headers(path.read_text()) if match[1] != "ptx.cuh" and path.exists() else ""

    return re.sub(r'^#include "(\w+\.cuh)"', included, text, flags=re.MULTILINE)


def parts(source: Source, shared_bytes: int = 0, text: str | None = None) -> list[Part]:
    """Static arrays, then the parts of dynamic shared memory, of which a block has `shared_bytes`."""
    return [*static_parts(source, text), *dynamic_parts(source, text, shared_bytes)]


def static_parts(source: Source, text: str | None = None) -> list[Part]:
    """The `__shared__` arrays of a fixed size, in the order of their declarations."""
    text, known, found, at = text or source.text(), constants(source, text), [], 0
    for match in STATIC.finditer(text):
        for declared in _split(match["names"]):
            array = re.fullmatch(r"\s*(\w+)((?:\s*\[[^\]]+\])+)\s*", declared)
            if array is None or match["type"] not in SIZES:
                continue
            count, row = 1, 0
            for extent in re.findall(r"\[([^\]]+)\]", array[2]):
                row = int(_number(extent.rpartition("*")[2], known)) if count > 1 or "*" in extent else 0
                count *= int(_number(extent, known))
            bytes_ = count * SIZES[match["type"]]
            found.append(Part(array[1], at, bytes_, match["type"], match["shape"] or "", row=row))
            at += bytes_
    return found


def dynamic_parts(source: Source, text: str | None = None, shared_bytes: int = 0) -> list[Part]:
    """What the pointers into `smem` divide; variables such as a warp's number count as 0."""
    text = text or source.text()
    declared = re.search(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+smem\s*\[", text)
    if declared is None:
        return []
    known: dict[str, Any] = dict(constants(source, text))
    known["smem"] = _Pointer(0, SIZES.get(declared[1].strip(), 1))
    starts: list[tuple[str, int, str, str]] = []
    for match in POINTER.finditer(text, declared.end()):
        if match["type"] not in SIZES or not re.search(
            r"_smem$|^\w*(?:full|empty|arrived|mbarrier)\w*$", match["name"]
        ):
            continue
        first, *others = _split(match["value"])
        declared_here = [(match["name"], first)]
        declared_here += [
            (m[1], m[2]) for m in (re.fullmatch(r"\s*\*\s*(\w+)\s*=(.*)", o) for o in others) if m
        ]
        for name, expression in declared_here:
            try:
                value = _evaluated(expression, _Zero(known))
            except UNREADABLE:
                continue
            if isinstance(value, _Pointer) and name not in known:
                known[name] = _Pointer(value.byte, SIZES[match["type"]])
                starts.append((name, value.byte, match["type"], match["shape"] or ""))
    return _sized(starts, known, shared_bytes)


def _sized(
    starts: list[tuple[str, int, str, str]], known: Mapping[str, Any], shared_bytes: int
) -> list[Part]:
    """A part ends where the next one begins. A pointer into the last part so far divides it; one into an
    earlier part lies over it.
    """
    owners: list[tuple[str, int]] = []  # in the order of their first bytes
    over: dict[str, str] = {}
    for name, first, _, _ in starts:
        if not owners or first > owners[-1][1]:
            owners.append((name, first))
        else:
            over[name] = next((owner for owner, at in reversed(owners) if at <= first), "smem")
    stops = [first for _, first in owners[1:]] + [shared_bytes]
    sizes = {name: stop - first for (name, first), stop in zip(owners, stops, strict=True)}
    found: list[Part] = []
    if owners and owners[0][1] > 0:  # no pointer names what lies first
        found.append(Part("smem", 0, owners[0][1], "element"))
    for name, first, type_, shape in starts:
        bytes_ = sizes.get(name, _bytes_of(shape, type_, known))
        row = _row_of(shape, bytes_, type_, known)
        found.append(Part(name, first, bytes_, type_, shape, over.get(name, ""), row))
    return found


def _bytes_of(shape: str, type_: str, known: Mapping[str, Any]) -> int:
    count = SIZES[type_]
    try:
        for extent in shape.strip("[]").split(","):
            count *= int(_number(extent, known))
    except UNREADABLE:
        return 0
    return count


def _row_of(shape: str, bytes_: int, type_: str, known: Mapping[str, Any]) -> int:
    """Elements from row to row, padding included: what the part has of them, over the rows of its shape."""
    head, _, last = shape.strip("[]").rpartition(",")
    rows, columns = (_bytes_of(extents, "char", known) for extents in (head, last))
    if not head or not rows:
        return 0
    row = bytes_ // SIZES[type_] // rows
    return row if columns <= row <= columns + MOST_PADDING else columns


def part_at(found: list[Part], byte: int) -> Part | None:
    """The part that owns a byte of dynamic shared memory."""
    return next((part for part in found if not part.over and part.first <= byte < part.stop), None)


@dataclass(frozen=True)
class _Pointer:
    byte: int
    size: int

    def __add__(self, elements: int) -> "_Pointer":
        return _Pointer(self.byte + int(elements) * self.size, self.size)


class _Zero(dict):
    """Names without a constant count as 0: which warp, which consumer."""

    def __missing__(self, name: str) -> int:
        if name.startswith("__"):
            raise NameError(name)
        return 0


def _evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """A C++ expression of integers and pointers; casts as calls of `cast`."""
    text = re.sub(r"reinterpret_cast<\s*(?:const\s+)?([\w ]+?)\s*\*\s*>", r"cast_\1", expression)
    text = re.sub(
        r"\(\s*(element|half|float|float4|float2|int|uint32_t|uint64_t|unsigned char)\s*\*\s*\)\s*(\w+|\()",
        _c_cast,
        text,
    )
    text = re.sub(r"sizeof\((\w+)\)", _size_of, text)
    text = re.sub(r"(?<![/])/(?![/])", "//", text)
    text = re.sub(r"&&", " and ", re.sub(r"\|\|", " or ", re.sub(r"!(?!=)", " not ", text)))
    text = _conditional(text)
    casts = {f"cast_{name.replace(' ', '_')}": _cast_to(size) for name, size in SIZES.items()}
    text = re.sub(r"cast_unsigned char", "cast_unsigned_char", text)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    if not re.fullmatch(r"[\w\s()+\-*/%<>=!&|.,~]*", text):
        raise ValueError(expression)
    scope = casts | dict(names) | {"true": True, "false": False, "min": min, "max": max}
    known = _Zero(scope) if isinstance(names, _Zero) else scope
    return eval(text.strip(), {"__builtins__": {}}, known)


def _size_of(match: re.Match) -> str:
    if match[1] not in SIZES:
        raise NameError(match[0])
    return str(SIZES[match[1]])


def _cast_to(size: int) -> Callable[["_Pointer"], "_Pointer"]:
    return lambda pointer: _Pointer(pointer.byte, size)


def _c_cast(match: re.Match) -> str:
    return f"cast_{match[1]}({match[2]})" if match[2] != "(" else f"cast_{match[1]}("


def _conditional(text: str) -> str:
    """`a ? b : c` as Python has it."""
    if match := re.fullmatch(r"(.*?)\?(.*):(.*)", text, re.DOTALL):
        return f"(({_conditional(match[2])}) if ({match[1].strip()}) else ({_conditional(match[3])}))"
    return text


def _number(expression: str, names: Mapping[str, Any]) -> Any:
    return _evaluated(expression, dict(names))


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    out, depth, start = [], 0, 0
    for n, character in enumerate(text):
        depth += character in "([{"
        depth -= character in ")]}"
        if character == "," and depth == 0:
            out.append(text[start:n])
            start = n + 1
    return [*out, text[start:]]


def find(names: Mapping[str, Any], name: str, what: str) -> Any:
    """An entry, or an ArgumentError that lists what there is."""
    if name not in names:
        raise ArgumentError(f"{what} {name!r}: accepted are {', '.join(map(str, names)) or 'none'}")
    return names[name]
