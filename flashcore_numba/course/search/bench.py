"""What an evaluator works with: candidates, inputs, memory, launches, and the right answer.

A candidate is a version of stage 04. Everything that an evaluator does is logged while somebody watches.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.checks import bounds
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import edited, files

PARENT = 4
"""The stage that candidates are versions of."""
FILE = "stage04_shared_tiles"
HEAD_DIM = 64
MOST = {"heads": 4, "rows": 128, "keys": 128}
MAX_TURNS = 300  # of a loop, before it is called endless


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel that was proposed. text: stage 04's file with something of it changed.

    A candidate with `_table` runs no kernel: each launch gives the next of these outputs.
    """

    text: str
    _table: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch: inputs, what was reported, the output before and after, and where it was asked for.

    loaded: whether the candidate's file could be imported. barriers: how often warps came to one. file, line:
    of the call.
    """

    inputs: Inputs
    reports: tuple[str, ...]
    before: np.ndarray
    after: np.ndarray
    loaded: bool
    barriers: int
    file: str
    line: int

    @property
    def wrong(self) -> bool:
        """Is an element off by more than allowed, or no number?"""
        return not within(self.after, self.inputs)

    @property
    def shows(self) -> bool:
        """Does anything of it show that the candidate is not right?"""
        return bool(self.reports) or self.wrong


@dataclass
class Log:
    """What was done while somebody watched: launches, lines that drew inputs, and those that took memory."""

    launches: list[Launch] = field(default_factory=list)
    drawn: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[str, int]] = field(default_factory=list)


_logs: list[Log] = []
_before: dict[tuple[int, ...], list[np.ndarray]] = {}  # by shape: the outputs of the evaluation before
_now: dict[tuple[int, ...], list[np.ndarray]] = {}  # and of this one
_references: dict[int, tuple[Inputs, bounds.Reference]] = {}  # of the inputs asked for last
_pages: dict[int, tuple[Candidate, int]] = {}  # of a table: how many outputs it has given


@contextmanager
def watched() -> Iterator[Log]:
    """Log what is done while the context is open, an evaluation. Tables begin with their first output."""
    _logs.append(Log())
    _pages.clear()
    _before.clear()
    _before.update(_now)
    _now.clear()
    try:
        yield _logs[-1]
    finally:
        _logs.pop()


def region_lines() -> list[str]:
    """The lines of stage 04 that a search may change: those that lesson 04 asks for."""
    return _region(_original()).text.splitlines()


def of_lines(lines: list[str]) -> Candidate:
    """Stage 04 with these lines in its region."""
    text = _original()
    return Candidate(edited.with_region(text, _region(text), "".join(f"{line}\n" for line in lines)))


def of_edits(*edits: tuple[str, str]) -> Candidate:
    """Stage 04 after some edits, (old, new) pairs. Raises EditError where one does not fit."""
    return Candidate(edited.applied(_original(), [edited.Edit(*pair) for pair in edits], FILE))


def _original() -> str:
    return files.path(FILE).read_text()


def _region(text: str) -> edited.Region:
    found = edited.marked_region(text, "Python")
    assert found is not None
    return found


# What an evaluator calls


def draw(rng: np.random.Generator, heads: int, rows: int, keys: int, causal: bool = False) -> Inputs:
    """Random float16 inputs from `rng`: q [1, heads, rows, 64], k and v [1, heads, keys, 64].

    Raises ArgumentError for a size that is none, or too large for the simulator.
    """
    if not isinstance(rng, np.random.Generator):
        raise ArgumentError(f"rng: {type(rng).__name__}; a numpy.random.Generator is accepted")
    for name, value in (("heads", heads), ("rows", rows), ("keys", keys)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 1 <= value <= MOST[name]:
            raise ArgumentError(f"{name}: {shown(value)}; 1 to {MOST[name]} are accepted")
    for log in _logs:
        log.drawn.append(_place())
    q, k, v = (
        FLOAT16.round(rng.standard_normal((1, heads, count, HEAD_DIM))) for count in (rows, keys, keys)
    )
    return Inputs(q, k, v, bool(causal))


def empty(x: Inputs) -> np.ndarray:
    """Memory for an output of `x`, [1, heads, rows, 64] float16, as an allocator gives it: the same requests
    in the same order get the same memory, and in it is what the evaluation before left there.
    """
    for log in _logs:
        log.taken.append(_place())
    given, left = len(_now.get(x.q.shape, ())), _before.get(x.q.shape, [])
    return left[given].copy() if given < len(left) else np.zeros_like(x.q)


def exact(x: Inputs) -> np.ndarray:
    """Attention in float64, [1, heads, rows, 64]."""
    return _reference(x).out


def allowed(x: Inputs) -> np.ndarray:
    """How far an element may be from the exact one, as `checks.bounds` derives it from the arithmetic."""
    return _reference(x).allowed


def launch(candidate: Candidate, x: Inputs, out: np.ndarray) -> tuple[str, ...]:
    """Run a candidate on the simulator: it writes to `out`, [1, heads, rows, 64] float16.

    Returns what the simulator reports, a sentence each: races, reads of what nobody wrote, indices past an
    end, loops that do not end; also why a file does not import, or a kernel does not run. Raises
    ArgumentError for an `out` of another type or shape.
    """
    if not isinstance(out, np.ndarray) or out.dtype != x.q.dtype or out.shape != x.q.shape:
        what = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentError(f"out: {what}; an array of float16 {list(x.q.shape)} is accepted")
    before = out.copy()
    if candidate._table:
        reports, loaded, barriers = _read_off(candidate, out), True, 0
    else:
        reports, loaded, barriers = _run(candidate, x, out)
    _now.setdefault(out.shape, []).append(out.copy())
    for log in _logs:
        log.launches.append(Launch(x, reports, before, out.copy(), loaded, barriers, *_place()))
    return reports


def _run(candidate: Candidate, x: Inputs, out: np.ndarray) -> tuple[tuple[str, ...], bool, int]:
    executor = Simulator(max_turns=MAX_TURNS)
    try:
        with edited.loaded(PARENT, {FILE: candidate.text}) as stage, np.errstate(all="ignore"):
            stage.launch(x.problem(x.arrays), out=out, executor=executor, variant=None)
    except edited.EditError as error:
        return (f"it does not import: {error.__cause__ or error}",), False, 0
    except Exception as error:  # a candidate may raise anything
        return (f"it does not run: {error}",), True, 0
    reports = tuple(str(problem) for each in executor.launches for problem in each.problems)
    return reports, True, sum(each.totals()["barriers"] for each in executor.launches)


def _read_off(candidate: Candidate, out: np.ndarray) -> tuple[str, ...]:
    """Give the next output of a table, where it has the shape that is asked for."""
    page = _pages.get(id(candidate), (candidate, 0))[1]
    _pages[id(candidate)] = candidate, page + 1
    known = candidate._table[page] if page < len(candidate._table) else None
    out[...] = known if known is not None and known.shape == out.shape else 0
    return ()


# What the judge asks


def within(out: np.ndarray, x: Inputs) -> bool:
    """Is every element a number that is no further from the exact one than allowed?"""
    with np.errstate(invalid="ignore"):
        return bool((np.abs(out - exact(x)) <= allowed(x)).all())


def _reference(x: Inputs) -> bounds.Reference:
    if not isinstance(x, Inputs):
        raise ArgumentError(f"x: {type(x).__name__}; inputs that `draw` made are accepted")
    if id(x) not in _references:
        while len(_references) > 8:
            _references.pop(next(iter(_references)))
        _references[id(x)] = x, bounds.reference(x.q, x.k, x.v, x.causal)
    return _references[id(x)][1]


def _place() -> tuple[str, int]:
    """File and line of the call of the function that calls this."""
    frame: Any = sys._getframe(2)
    return frame.f_code.co_filename, frame.f_lineno
