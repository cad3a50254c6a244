"""Lanes: threads that execute each statement together, under masks: assignments, branches, loops, calls.

A value that all lanes share stays a Python or NumPy scalar; a vector is never changed in place.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import count_nonzero

from flashcore_numba.simulator.access import Accesses
from flashcore_numba.simulator.arithmetic import Arithmetic
from flashcore_numba.simulator.control import NOBODY, UNDEFINED, Branch, Frame, Loop, Mask, Stuck
from flashcore_numba.simulator.intrinsics import CudaModule, Waiting
from flashcore_numba.simulator.memory import ARRAYS, choose
from flashcore_numba.simulator.probe import take
from flashcore_numba.simulator.rules import INTEGERS, UNSIGNED, Value, char_of, convert, strong
from flashcore_numba.simulator.vecmath import BOOL

if TYPE_CHECKING:
    from flashcore_numba.simulator.group import Group

ndarray = np.ndarray
TURNS_AT_ONCE = 64  # of a loop that may wait, before other warps get their turn


def range_kind(args: tuple) -> str:
    """The type that a range over these counts in: a literal is an int64."""
    kinds = "".join("l" if type(arg) is int else char_of(arg) for arg in args)
    if any(kind not in INTEGERS for kind in kinds):
        raise TypeError("a range over other numbers than integers")
    if all(kind in UNSIGNED for kind in kinds):
        return "L"
    return "i" if all(kind in "bhi" for kind in kinds) else "l"


def _equal(one: Value, other: Value) -> bool:
    """Is a variable unchanged? Numbers by their bits."""
    if one is other:
        return True
    if not isinstance(one, ndarray | np.generic | int | float):
        return False
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))


def _truth(value: Value) -> bool:
    if isinstance(value, ARRAYS):
        raise TypeError("an array as a condition")
    return bool(value)


def kinds_of(values: tuple) -> tuple:
    """What tells one specialisation of a function from another: the types of its arguments."""
    kinds: list = []
    for value in values:
        if isinstance(value, ARRAYS):
            kinds.append((value.dtype.char, value.ndim))
        elif isinstance(value, tuple):
            kinds.append(kinds_of(value))
        else:
            kinds.append(char_of(value) if isinstance(value, ndarray | np.generic | int | float) else None)
    return tuple(kinds)


class Lanes(Accesses, Arithmetic):
    """The machine that a rewritten kernel calls. All its lanes run in lockstep."""

    def __init__(
        self, group: "Group", tid: np.ndarray, block: np.ndarray, only: np.ndarray | None = None
    ) -> None:
        super().__init__(group, tid, block, only)
        self.cuda = CudaModule(self)

    # Values

    def select(self, old: Value, new: Value, point: int) -> Value:
        """The value of a variable after an assignment by the active lanes."""
        if self.types:
            new = self._unified(point, (new,))[0]
        if self.mask is self.scope:
            return new
        return self._select(self.mask, old, new)

    def _select(self, mask: Mask, old: Value, new: Value) -> Value:
        """`new` in the lanes of `mask`, `old` in the others."""
        if mask is None or old is UNDEFINED or old is new or mask is NOBODY or new is UNDEFINED:
            return old if new is UNDEFINED else new
        if isinstance(new, tuple):
            if not isinstance(old, tuple) or len(old) != len(new):
                return new
            return tuple(self._select(mask, one, other) for one, other in zip(old, new, strict=True))
        if isinstance(new, ARRAYS):
            return choose(mask, new, old)
        if new is None or old is None or isinstance(old, (*ARRAYS, tuple)):
            return new
        return np.where(mask, strong(new), strong(old))

    def assigned(self, has: Mask) -> np.ndarray:
        """The lanes in which a variable has a value, after the active ones assigned to it."""
        return self.with_active(has)

    def defined(self, has: Mask, value: Value, name: str, site: int) -> Value:
        """The value of a variable, which every active lane must have assigned."""
        missing = self.active() if has is None else self.active() & ~has
        if count_nonzero(missing):
            text = f"the variable {name} was never assigned, {self.whom(missing)}"
            facts: dict[str, Any] = {"array": name, "threads": (self.first(missing),)}
            self.launch.problem("uninitialised read", site, None, text, value is UNDEFINED, **facts)
        return value

    # Where paths meet, a variable has one type: what Numba unifies the types of all paths to.

    def _unified(self, point: int, values: tuple) -> tuple:
        kinds = self.types.get((self.context, point))
        if kinds is None:
            return values
        return tuple(
            value if kind is None or value is UNDEFINED else convert(value, kind)
            for value, kind in zip(values, kinds, strict=True)
        )

    def join(self, branch: Branch, point: int, before: tuple, yes: tuple, no: tuple) -> tuple:
        """The values of the variables after an if statement, whose sides left `yes` and `no`."""
        if branch.no is NOBODY:
            values = yes
        elif branch.yes is NOBODY:
            values = no
        else:
            values = tuple(self._select(branch.yes, b, a) for a, b in zip(yes, no, strict=True))
        if branch.saved is not branch.scope:
            values = tuple(self._select(branch.saved, b, v) for b, v in zip(before, values, strict=True))
        return self._unified(point, values)

    def head(self, loop: Loop, point: int, values: tuple) -> tuple:
        """The values of a loop's variables before its first turn."""
        return self._unified(point, values)

    def turn(self, loop: Loop, point: int, before: tuple, after: tuple) -> tuple:
        """The values of a loop's variables at the end of a turn, which not all lanes took part in."""
        if loop.now is not loop.scope:
            after = tuple(self._select(loop.now, b, a) for b, a in zip(before, after, strict=True))
        return self._unified(point, after)

    def narrow(self) -> None:
        """Lanes have returned: their variables are dead."""
        self.scope = self.mask

    def uniform(self, value: Value) -> Value:
        """The value as a Python integer where all active lanes agree."""
        if type(value) is not ndarray:
            return value
        mine = value if self.mask is None else value[self.mask]
        return int(mine[0]) if mine.size and (mine == mine[0]).all() else value

    # if

    def branch(self, condition: Value, line: int) -> Branch:
        branch = self._divide(condition, line)
        branch.scope = self.scope
        return branch

    def _divide(self, condition: Value, line: int) -> Branch:
        saved = self.mask
        if type(condition) is not ndarray:
            _truth(condition)
            return Branch(saved, saved, NOBODY) if condition else Branch(saved, NOBODY, saved)
        condition = condition.astype(bool, copy=False)
        yes, no = (condition, ~condition) if saved is None else (condition & saved, ~condition & saved)
        if not count_nonzero(no):
            return Branch(saved, saved, NOBODY)
        if not count_nonzero(yes):
            return Branch(saved, NOBODY, saved)
        self.divided_at.append(line)
        return Branch(saved, yes, no, line)

    def enter(self, branch: Branch, side: bool) -> bool:
        mask = branch.yes if side else branch.no
        if mask is NOBODY:
            return False
        self.mask = self.scope = mask
        return True

    def leave(self, branch: Branch) -> None:
        self.scope = branch.scope
        if branch.divided_at is not None:
            self.divided_at.pop()
        self.mask = self.without(branch.saved, self.gone)

    def if_exp(self, condition: Value, yes: Value, no: Value, point: int = 0) -> Value:
        """`yes if condition else no`; an operand with side effects comes as a function."""
        if type(condition) is not ndarray:
            chosen = yes if _truth(condition) else no
            return self._unified(point, (chosen() if callable(chosen) else chosen,))[0]
        branch, value = self.branch(condition, 0), UNDEFINED
        for side, operand in ((True, yes), (False, no)):
            if self.enter(branch, side):
                value = self._select(self.mask, value, operand() if callable(operand) else operand)
        self.leave(branch)
        return self._unified(point, (value,))[0]

    def logic(self, is_and: bool, a: Value, b: Value, point: int = 0) -> Value:
        """`a and b`, `a or b` with short circuit; b comes as a function when it has side effects."""
        return self._unified(point, (self._logic(is_and, a, b),))[0]

    def _logic(self, is_and: bool, a: Value, b: Value) -> Value:
        if type(a) is not ndarray:
            if _truth(a) != is_and:
                return a
            return b() if callable(b) else b
        truth = a.astype(bool, copy=False)
        if callable(b):
            b = self.if_exp(truth if is_and else ~truth, b, a if a is not truth else not is_and)
        if a is truth and (type(b) is bool or getattr(b, "dtype", None) == BOOL):
            return (a & b) if is_and else (a | b)
        a, b = strong(a), strong(b)
        return np.where(truth, b, a) if is_and else np.where(truth, a, b)

    def not_(self, x: Value) -> Value:
        return ~x.astype(bool, copy=False) if type(x) is ndarray else not _truth(x)

    # Leaving early

    def _depart(self, already: Mask) -> np.ndarray:
        """Take the active lanes out; the new set of lanes that left the same way."""
        self.gone, left = self.with_active(self.gone), self.with_active(already)
        self.mask = NOBODY
        return left

    def _come_back(self, lanes: Mask) -> None:
        if lanes is not None:
            left = self.gone & ~lanes
            self.gone = left if count_nonzero(left) else None

    # Loops

    def loop(self, site: int) -> Loop:
        return Loop(self.mask, site, self.scope)

    def break_(self, loop: Loop) -> None:
        loop.broken = self._depart(loop.broken)

    def continue_(self, loop: Loop) -> None:
        loop.continued = self._depart(loop.continued)

    def again(self, loop: Loop) -> bool:
        """Start a turn: those who continued come back. False when nobody is left."""
        loop.turns += 1
        if loop.turns > self.launch.max_turns:
            self._endless(loop)
        if not loop.turns % 64:
            self.launch.check_time(loop.site, loop.turns)
        self._come_back(loop.continued)
        loop.continued = None
        self.mask = self.scope = loop.now = self.without(loop.mask, self.gone)
        return self.mask is not NOBODY

    def _endless(self, loop: Loop) -> None:
        turns = f"more than max_turns = {self.launch.max_turns} turns"
        self.launch.problem("endless loop", loop.site, None, turns, fatal=True)

    def test(self, loop: Loop, condition: Value) -> bool:
        """The condition of a while loop: lanes for which it is false wait for the end of the loop."""
        if type(condition) is not ndarray:
            return _truth(condition)
        if count_nonzero(condition) == self.n:
            return True
        condition = condition.astype(bool, copy=False)
        go = condition if self.mask is None else condition & self.mask
        if not count_nonzero(go):
            loop.mask = self.mask = NOBODY
            return False
        if not loop.divided:
            loop.divided = True
            self.divided_at.append(self.launch.program.sites[loop.site].line)
        loop.mask = self.mask = self.scope = loop.now = go
        return True

    def each(self, loop: Loop, leaves: bool, *args: Value) -> Iterable[Value]:
        """The values of `range(*args)`; a vector once the lanes count differently."""
        kind = range_kind(args)
        bounds = [self.uniform(convert(arg, kind)) for arg in args]
        if any(type(bound) is ndarray for bound in bounds):
            start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
            return self._each_vector(loop, kind, start, stop, step)
        values = range(*map(int, bounds))
        if len(values) > self.launch.max_turns:
            self._endless(loop)
        if leaves:
            return self._each_scalar(loop, values, kind)
        return values if kind == "l" else (convert(value, kind) for value in values)

    def items(self, loop: Loop, leaves: bool, values: Value) -> Iterable[Value]:
        """The elements of a tuple."""
        if not isinstance(values, tuple):
            raise TypeError("a for loop goes over range(...) or over a tuple")
        return self._each_scalar(loop, values) if leaves else values

    def _each_scalar(self, loop: Loop, values: range | tuple, kind: str = "l") -> Iterator[Value]:
        for value in values:
            if not self.again(loop):
                return
            yield value if kind == "l" else convert(value, kind)

    def _each_vector(self, loop: Loop, kind: str, value: Value, stop: Value, step: Value) -> Iterator[Value]:
        while self.again(loop):
            if type(step) is ndarray:
                more = np.where(step > 0, value < stop, value > stop)
            else:
                more = value < stop if step > 0 else value > stop
            if not self.test(loop, more):
                return
            yield value if type(value) is ndarray else convert(int(value), kind)
            value = value + step

    # Waiting for other threads

    def idle(self, loop: Loop, values: tuple) -> bool:
        """Has a turn brought nothing nearer? No lane left, no variable and no memory changed."""
        state = self.launch.changes, count_nonzero(self.active()), values
        before, loop.seen = loop.seen, state
        same = before is not None and before[:2] == state[:2] and all(map(_equal, before[2], values))
        loop.idle = loop.idle + 1 if same else 0
        return same or loop.turns % TURNS_AT_ONCE == 0

    def check_idle(self, loop: Loop, idle: bool) -> None:
        """In lockstep nobody else can end the waiting."""
        if loop.idle > 1:
            raise Stuck(loop.site)

    def waiting(self, loop: Loop) -> Waiting:
        alive = self.without(self.everyone, self.exited)
        all_alive = self.n if alive is None else count_nonzero(alive)
        return Waiting(loop.site, loop.idle > 0, bool(count_nonzero(self.active()) < all_alive))

    def acquire(self) -> None:
        """These lanes have waited for a flag or a lock: others' accesses before are ordered before theirs."""
        self.acquired = self.acquired | self.active()

    def end_loop(self, loop: Loop) -> None:
        self._come_back(loop.continued)
        self._come_back(loop.broken)
        if loop.divided:
            self.divided_at.pop()
        self.scope = loop.scope
        self.mask = self.without(loop.saved, self.gone)

    # Calls

    def frame(self, point: int, arguments: tuple) -> Frame:
        frame = Frame(self.mask, self.scope, point, self.context, arguments)
        self.scope = self.mask
        if self.top is None:
            self.top = frame
        elif self.types:
            self.context = self.context, point, kinds_of(arguments)
        return frame

    @staticmethod
    def specialisation(frame: Frame) -> tuple:
        """What tells the compiled function of this call from others of the same source."""
        return kinds_of(frame.arguments)

    def return_(self, frame: Frame, value: Value, given: bool = False) -> None:
        if isinstance(value, ARRAYS) and not given:
            raise TypeError("Numba returns an array from a function only if it is one of its parameters")
        if value is None:
            frame.empty = self.with_active(frame.empty)
        else:
            frame.value = value if frame.value is None else self._select(self.mask, frame.value, value)
        frame.returned = self._depart(frame.returned)

    def end_frame(self, frame: Frame) -> Value:
        value = self._unified(frame.point, (frame.value,))[0]
        if self.some():  # these came to the end of the function
            frame.empty = self.with_active(frame.empty)
        self.empty = frame.empty
        self.context, self.scope = frame.outside, frame.scope
        if frame is not self.top:
            self._come_back(frame.returned)
            self.mask = self.without(frame.saved, self.gone)
        return value

    def given(self, value: Value, name: str, site: int) -> Value:
        """What a call returned, which must be a value in every lane: Numba ends a thread that uses none."""
        if value is not None and self.empty is not None:
            text = f"the function {name} returned no value, {self.whom(self.empty)}"
            facts: dict[str, Any] = {"array": name, "threads": (self.first(self.empty),)}
            self.launch.problem("uninitialised read", site, None, text, **facts)
        return value

    def probe(self, label: str, *values: Callable[[], Value]) -> None:
        take(self, label, values)

    @staticmethod
    def unpack(value: Value, count: int) -> tuple:
        """The right-hand side of `a, b = value`."""
        if not isinstance(value, tuple) or len(value) != count:
            raise TypeError(f"only a tuple of {count} can be assigned to {count} names")
        return value
