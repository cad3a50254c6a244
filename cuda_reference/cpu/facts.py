"""The facts in a problem's text: the runtime sends them as data, and here they get their words."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WARP = 32
FACT = re.compile("\x02(\\w+):(-?\\d+):([^\x03]*)\x03")  # as `fact` in src/report.cpp writes them


class Line(NamedTuple):
    """A line of the kernel's file."""

    number: int

    def __str__(self) -> str:
        return f"line {self.number}"


class Thread(NamedTuple):
    """A thread of the block."""

    number: int

    def __str__(self) -> str:
        return f"thread {self.number} (warp {self.number // WARP}, lane {self.number % WARP})"


class Block(NamedTuple):
    """A block of the grid."""

    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"[block {self.x},{self.y},{self.z}]"


class Variable(NamedTuple):
    """A local variable."""

    name: str

    def __str__(self) -> str:
        return f"`{self.name}`"


@dataclass(frozen=True)
class Memory:
    """A byte of memory. space: "shared" for dynamic shared memory, "static" for a static array, "global" for
    an argument, "nowhere" for an address that is near no array of the launch. array: the name of a static
    array or an argument; "" where there is none. byte: from the start of the array, or of dynamic shared
    memory; of "nowhere" the address.
    """

    space: str
    array: str
    byte: int

    def __str__(self) -> str:
        if self.space == "shared":
            return f"shared memory at byte {self.byte}"
        if self.space == "static" and self.array:
            return f"`{self.array}` (shared memory, byte {self.byte} of it)"
        if self.space == "static":
            return f"shared memory between two arrays, byte {self.byte} of the block's storage"
        if self.space == "global":
            return f"{self.array} at byte {self.byte}"
        return f"address {f'{self.byte:#x}' if self.byte else '(nil)'}, near no array of the launch"


Piece = str | Line | Thread | Block | Variable | Memory


Arrays = Callable[[], Sequence[tuple[int, int, str]]]


def pieces_of(sent: str, arrays: Arrays) -> tuple[tuple[Piece, ...], str]:
    """What the runtime sent, as words and facts in their order, and what the problem is about, "" where its
    kind says it all.

    arrays: gives first byte, size and name of each static shared array.
    """
    words, found = FACT.split(sent), list[Piece]()
    about = ""
    for at in range(0, len(words), 4):
        if words[at]:
            found.append(words[at])
        if at + 3 < len(words):
            kind, number, name = words[at + 1], int(words[at + 2]), words[at + 3]
            if kind == "about":
                about = name
            else:
                found.append(_fact(kind, number, name, arrays))
    return tuple(found), about


def _fact(kind: str, number: int, name: str, arrays: Arrays) -> Piece:
    if kind == "line":
        return Line(number)
    if kind == "thread":
        return Thread(number)
    if kind == "block":
        return Block(*map(int, name.split(",")))
    if kind == "variable":
        return Variable(name)
    if kind == "static":
        for first, size, array in arrays():
            if first <= number < first + size:
                return Memory("static", array, number - first)
    return Memory(kind, name, number)
