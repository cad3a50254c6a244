"""The types that a kernel's variables have where paths meet, found before it runs.

Numba gives a variable one type over all paths that lead to a place, taken or not. Here the rewritten kernel
runs once without any lane: both sides of every branch, each loop until nothing changes. Its values are empty
vectors, which carry the types alone.
"""

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from flashcore_numba.simulator.arithmetic import Arithmetic
from flashcore_numba.simulator.atomics import Atomics
from flashcore_numba.simulator.control import UNDEFINED, Branch, Frame, Loop
from flashcore_numba.simulator.expressions import BINARY, UNARY
from flashcore_numba.simulator.intrinsics import CudaModule
from flashcore_numba.simulator.lanes import Lanes, kinds_of, range_kind
from flashcore_numba.simulator.memory import ARRAYS, View
from flashcore_numba.simulator.rewrite import Program, VectorFunction
from flashcore_numba.simulator.rules import Value, char_of, convert, strong
from flashcore_numba.simulator.vecmath import as_dtype

MOST_TURNS = 8  # no variable changes its type more often


def infer(program: Program, entry: VectorFunction, values: list) -> dict:
    """(context, point) -> the type, or None, of each variable that meets there.

    Where the kernel does not have types that Numba accepts, what was found so far is returned: the launch
    itself then says what is wrong.
    """
    key = kinds_of(tuple(values))
    if key not in program.types:
        typist = Typist(program)
        with np.errstate(all="ignore"):
            try:
                running: Any = entry(typist, *map(_sketch, values))
                reply = None
                while hasattr(running, "send"):
                    reply = running.send(reply)
            except Exception:  # StopIteration, and whatever the launch will report
                pass
        program.types[key] = typist.unified
    return program.types[key]


class Sketch(View):
    """An array of which only the type is known."""

    __slots__ = ("kind", "rank")

    def __init__(self, dtype: Any, rank: int) -> None:
        self.kind, self.rank = np.dtype(dtype), rank

    shape = property(lambda self: tuple(_empty("l") for _ in range(self.rank)))
    strides = shape
    ndim = property(lambda self: self.rank)
    dtype = property(lambda self: self.kind)
    size = property(lambda self: _empty("l"))
    name = "array"

    def key(self) -> tuple:
        return self.kind, self.rank

    def beside(self, other: Any, lanes: Any) -> "Sketch":
        return self


def _empty(char: str) -> np.ndarray:
    return np.empty(0, char)


def _sketch(value: Any) -> Any:
    """An argument as its type alone."""
    if isinstance(value, ARRAYS):
        return Sketch(value.dtype, value.ndim)
    if isinstance(value, tuple):
        return tuple(map(_sketch, value))
    return value if value is None else _empty(char_of(value))


def _unify(one: Any, other: Any) -> Any:
    if one is UNDEFINED or other is None:
        return other if one is UNDEFINED else one
    if other is UNDEFINED or one is None:
        return one if other is UNDEFINED else other
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(_unify, one, other))
    if isinstance(one, (*ARRAYS, tuple)) or isinstance(other, (*ARRAYS, tuple)):
        return other
    if type(one) is type(other) is int and one == other:
        return one
    return _empty(np.promote_types(strong(one).dtype, strong(other).dtype).char)


def _kind(value: Any) -> str | None:
    return char_of(value) if isinstance(value, np.ndarray | np.generic | int | float) else None


def _promote(one: str | None, other: str | None) -> str | None:
    return one or other if one is None or other is None else np.promote_types(one, other).char


class Typist(Lanes):
    """A machine without lanes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.n = 0
        self.mask = self.everyone = self.gone = self.scope = None
        self.whole = np.ones(0, bool)
        self.tid = self.block = self.ids = self.warp_syncs = self.epoch = self.block_number = _empty("l")
        self.known_syncs = self.merging = self.top = None
        self.nan_sites = _empty("l")
        self.divided_at, self.index_cache, self.visits = [], {}, {}
        self.context, self.types, self.news = (), {}, 0
        self.found: dict[tuple, tuple] = {}
        self.mixed: set[tuple] = set()
        self.returned = False
        dimension = SimpleNamespace(x=_empty("i"), y=_empty("i"), z=_empty("i"))
        self.threadIdx = self.blockIdx = dimension
        self.launch: Any = SimpleNamespace(
            block=(1, 1, 1), grid=(1, 1, 1), counting=False, quiet=True, max_turns=0, program=program,
            problem=lambda *args, **options: None, meet=lambda *args: None, absent=set(), nans={},
        )  # fmt: skip
        self.group: Any = SimpleNamespace(fenced=None, scheduled=False, blocks=[0])
        self.cuda = Names(self)

    # Where paths meet

    def _note(self, point: int, *paths: tuple) -> tuple:
        """The values of several paths with the types that these and all earlier ones unify to."""
        key = self.context, point
        values = paths[0]
        for other in paths[1:]:
            values = tuple(map(_unify, values, other))
        kinds = tuple(map(_kind, values))
        known = self.found.get(key)
        if known is not None:
            kinds = tuple(map(_promote, known, kinds))
        if kinds != known:
            self.news += 1
            self.found[key] = kinds
            if known is not None and any(
                old not in (new, None) for old, new in zip(known, kinds, strict=True)
            ):
                self.mixed.add(key)
        for path in paths:
            if any(_kind(value) not in (kind, None) for value, kind in zip(path, kinds, strict=True)):
                self.mixed.add(key)
        return tuple(
            value if kind is None or value is UNDEFINED or _kind(value) == kind else convert(value, kind)
            for value, kind in zip(values, kinds, strict=True)
        )

    @property
    def unified(self) -> dict:
        """The points where some path brings another type than the one that they unify to."""
        return {key: self.found[key] for key in self.mixed}

    def select(self, old: Value, new: Value, point: int) -> Value:
        """In a loop Numba also unifies what an assignment had before the loop's variables had their types."""
        return self._note(point, (new,))[0]

    def branch(self, condition: Value, line: int) -> Branch:
        """Both sides, except where the condition is a constant."""
        branch = Branch(None, *self._taken(condition))
        branch.scope = self.returned
        return branch

    def enter(self, branch: Branch, side: bool) -> bool:
        if not side:
            branch.saved = self.returned
        self.returned = branch.scope
        return branch.yes if side else branch.no

    def _left(self, branch: Branch) -> tuple[bool, bool]:
        """Whether all lanes have returned by the end of each side; `saved` is set by an else branch."""
        return (self.returned, branch.scope) if branch.saved is None else (branch.saved, self.returned)

    def leave(self, branch: Branch) -> None:
        yes, no = self._left(branch)
        self.returned = (yes or not branch.yes) and (no or not branch.no)

    def join(self, branch: Branch, point: int, before: tuple, yes: tuple, no: tuple) -> tuple:
        sides = list(zip((branch.yes, branch.no), self._left(branch), (yes, no), strict=True))
        alive = [values for taken, left, values in sides if taken and not left]
        alive = alive or [values for taken, _, values in sides if taken]
        return self._note(point, *alive)

    def if_exp(self, condition: Value, yes: Value, no: Value, point: int = 0) -> Value:
        values = [
            operand() if callable(operand) else operand
            for taken, operand in zip(self._taken(condition), (yes, no), strict=True)
            if taken
        ]
        return self._note(point, *((value,) for value in values))[0]

    @staticmethod
    def _taken(condition: Value) -> tuple[bool, bool]:
        """Which sides Numba compiles: one for a literal, a global constant or a comparison of two."""
        known = isinstance(condition, bool | int)
        return not known or bool(condition), not known or not condition

    def logic(self, is_and: bool, a: Value, b: Value, point: int = 0) -> Value:
        return self._note(point, (a,), (b() if callable(b) else b,))[0]

    def some(self) -> bool:
        return True

    def narrow(self) -> None:
        pass

    # Loops

    def loop(self, site: int) -> Loop:
        loop = Loop(None, site, None)
        loop.now = -1
        return loop

    def again(self, loop: Loop) -> bool:
        loop.turns += 1
        go = loop.now != self.news and loop.turns <= MOST_TURNS
        loop.now = self.news
        return go

    def test(self, loop: Loop, condition: Value) -> bool:
        return True

    def each(self, loop: Loop, leaves: bool, *args: Any) -> Iterator[Value]:
        kind = range_kind(args)
        while self.again(loop):
            yield _empty(kind)

    def items(self, loop: Loop, leaves: bool, values: Any) -> Iterator[Value]:
        yield from values

    def turn(self, loop: Loop, point: int, before: tuple, after: tuple) -> tuple:
        return self._note(point, before, after)

    def head(self, loop: Loop, point: int, values: tuple) -> tuple:
        return self._note(point, values)

    def end_loop(self, loop: Loop) -> None:
        pass

    def break_(self, loop: Loop) -> None:
        pass

    def continue_(self, loop: Loop) -> None:
        pass

    # Calls

    def frame(self, point: int, arguments: tuple) -> Frame:
        frame = Frame(self.returned, None, point, self.context, arguments)
        if self.top is None:
            self.top = frame
        else:
            self.context = self.context, point, kinds_of(arguments)
        return frame

    def return_(self, frame: Frame, value: Value, given: bool = False) -> None:
        paths = [(value,)] if frame.value is None else [(frame.value,), (value,)]
        frame.value = self._note(frame.point, *paths)[0]
        self.returned = True

    def end_frame(self, frame: Frame) -> Value:
        value = self._note(frame.point, (frame.value,))[0]
        self.context, self.returned = frame.outside, frame.saved
        return value

    def given(self, value: Value, name: str, site: int) -> Value:
        return value

    def probe(self, label: str, *values: Any) -> None:
        pass

    def floating(self, kind: str, site: int, value: Value, operands: Any) -> None:
        pass

    # Memory

    def view(self, array: Any, index: Any, site: int) -> Value:
        index = index if type(index) is tuple else (index,)
        if isinstance(array, ARRAYS):
            return Sketch(array.dtype, array.ndim - sum(type(i) is not slice for i in index))
        return self.load(array, index[0] if len(index) == 1 else index, site)

    def load(self, array: Any, index: Any, site: int) -> Value:
        if isinstance(array, ARRAYS):
            left = array.ndim - (len(index) if type(index) is tuple else 1)
            return Sketch(array.dtype, left) if left else _empty(array.dtype.char)
        if type(array) is tuple and isinstance(index, np.ndarray):
            value = array[0]
            for other in array[1:]:
                value = _unify(value, other)
            return value
        return array[index]

    def store(self, array: Any, index: Any, value: Value, site: int) -> None:
        pass

    def wide_load(self, width: int, dtype: str, site: int, array: Any, index: Any) -> tuple:
        return tuple(_empty("f") for _ in range(width))

    def wide_store(self, width: int, dtype: str, site: int, array: Any, index: Any, *values: Any) -> None:
        pass


def _vague(name: str) -> Callable[..., Value]:
    """An operation of which Numba does not compute the result when it compiles."""
    own = Lanes.__dict__.get(name) or Arithmetic.__dict__[name]

    def run(self: Typist, *operands: Any) -> Value:
        compute = own.__func__ if isinstance(own, staticmethod) else functools.partial(own, self)
        value = compute(*operands)
        return value if isinstance(value, np.ndarray) else _empty(char_of(value))

    return run


for _name in (*BINARY.values(), *UNARY.values(), "multiply_add", "multiply_subtract", "subtract_product"):
    setattr(Typist, _name, _vague(_name))


class TypedAtomics(Atomics):
    """Atomic operations, which return what the array holds."""

    def change(self, site: int, array: Any, index: Any, update: Callable[..., Any], *operands: Any) -> Value:
        return _empty(array.dtype.char)


class Names(CudaModule):
    """`numba.cuda` for a machine without lanes."""

    def __init__(self, lanes: Any) -> None:
        super().__init__(lanes)
        self.laneid = _empty("i")
        size = SimpleNamespace(x=_empty("i"), y=_empty("i"), z=_empty("i"))
        self.warpsize, self.blockDim, self.gridDim = _empty("i"), size, size
        self.const = SimpleNamespace(array_like=lambda site, array: _sketch_constant(array))
        self.atomic = TypedAtomics(lanes)

    def grid(self, site: int, ndim: int) -> Value:
        return _empty("l") if ndim == 1 else tuple(_empty("l") for _ in range(ndim))

    gridsize = grid

    def _shared_array(
        self, site: int, shape: int | tuple[int, ...], dtype: Any, alignment: int | None = None, **_: Any
    ) -> Any:
        return Sketch(as_dtype(dtype), len(shape) if isinstance(shape, tuple) else 1)

    _local_array = _shared_array

    def threadfence(self, site: int) -> None:
        pass

    threadfence_system = threadfence

    def _barrier(self, site: int, name: str = "syncthreads", predicate: Value = 0) -> Value:
        return _empty("i")

    def syncwarp(self, site: int, mask: Value = 0) -> None:
        pass

    def _shuffle(self, site: int, mask: Value, value: Value, source: Value) -> np.ndarray:
        return _empty(char_of(value))

    def _vote(
        self, site: int, mask: Value, predicate: Value, reduce: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        return _empty("?")

    def ballot_sync(self, site: int, mask: Value, predicate: Value) -> Value:
        return _empty("i")

    def activemask(self, site: int) -> Value:
        return _empty("I")


def _sketch_constant(array: Any) -> Sketch:
    return Sketch(array.dtype, array.ndim)
