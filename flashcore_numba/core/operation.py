"""What an operation is: all that checks, counts and times need to know of it beside its kernels.

Who adds one writes an `Operation` in a file of its own, and stages that name it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from flashcore_numba.core.output import Output


class Work(Protocol):
    """What a problem is, whatever the operation: so much work, on arrays in one place."""

    @property
    def flops(self) -> int:
        """Floating-point operations."""

    @property
    def exponentials(self) -> int:
        """The fewest results of exp2 that any kernel needs."""

    @property
    def min_bytes(self) -> int:
        """Bytes that must move: every input read once, every output written once."""

    @property
    def on_gpu(self) -> bool: ...


class Inputs(Protocol):
    """One input of a check: host arrays and options, from which a problem is made wherever the arrays lie."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays that the stage reads, by name."""

    @property
    def label(self) -> str:
        """Shape and options, for messages."""

    def problem(self, arrays: Mapping[str, Any]) -> Any:
        """The problem on these arrays, which hold what `arrays` holds."""


@dataclass(frozen=True)
class Verdict:
    """One comparison. `margin` is the smallest allowed / error over all elements, below 1 when it fails."""

    passed: bool
    error: float  # |value - expected| at the element nearest to (or farthest beyond) its bound
    bound: float  # what was allowed there
    margin: float
    where: tuple[int, ...]
    reason: str = ""
    wrong: np.ndarray | None = field(default=None, repr=False, compare=False)  # bool, shape of the output


@dataclass(frozen=True)
class Case:
    """One input. `make(rng)` draws it; a case with a `seed` is the same in every run.

    gate: what `Operation.judge` takes beside the bounds. layout: how the arrays lie, see `checks.trial`.
    """

    name: str
    make: Callable[[np.random.Generator], Any]
    gate: Any = None
    seed: int | None = None
    layout: str = "inside"
    scaled: str = ""  # what the simulator made smaller


@dataclass(frozen=True)
class Property:
    """A relation between answers to related inputs.

    `holds(run, rng)` runs a stage as `run(inputs, **how)` and returns the smallest margin (allowed / error)
    it saw; it raises `checks.trial.Failed("property", ...)` where the relation does not hold.
    """

    name: str
    holds: Callable[[Callable[..., Any], np.random.Generator], float]


def _nothing(*_: Any) -> tuple:
    return ()


def _no_words(*_: Any) -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Operation:
    """What some stages compute.

    outputs: all that a stage may write, in the order in which they are judged.
    draw(shape, causal, rng): `Inputs` of ordinary random numbers, for counts and times; an operation whose
    stages serve several element types also takes `element`, one whose stages serve `core.features.Features`
    also `features`, with arrays on the host.
    reference(inputs): the float64 answer and its bounds, in a form that `judge` reads.
    expected(output, reference): the right value of one output, float64.
    judge(output, value, reference, gate): a `Verdict` on one output; gate is the case's, or None.
    cases(stage, full_size), properties(stage, backend): what a stage is checked on. full_size: as large as on
    a GPU, else small enough for the simulator.
    explain(inputs, output, value, reference, verdict): a sentence on the likely cause of a wrong value, or
    nothing.
    truth(inputs, rng): the right answer to what is counted and timed, a `checks.truth.Whole`; None: that of
    the whole input.
    caller(problem, stage, outputs): a function of no arguments that does what a caller of the library does to
    have `outputs` written by that stage; None where the operation has no such call.
    ladder(): its stages, simplest first.
    borrowed(): stages of another branch whose kernels these add something to.
    mutants(): `checks.mutation.Mutant`s of these stages; those of the forward pass are in `checks.library`.
    stand_in(shape, causal): a problem on the host whose elements nobody reads, so that its memory is never
    touched; None: one that is drawn.
    choices: what a workload may say beside shape, mask, element type and features, by its fields' names
    (`core.workload.CHOICES`): draw takes them.
    also_compiled(shape, causal): problems like `stand_in`'s for which stages have kernels of their own.
    peers(): what other libraries have for it: label -> a function of the problem and its arrays as PyTorch's
    tensors, by name, which returns what `measure.peers.PeerEntry` times.
    """

    name: str
    outputs: tuple[Output, ...]
    draw: Callable[..., Any]
    reference: Callable[[Any], Any]
    expected: Callable[[Output, Any], np.ndarray]
    judge: Callable[[Output, np.ndarray, Any, Any], Verdict]
    cases: Callable[[Any, bool], Sequence[Case]]
    ladder: Callable[[], Sequence[Any]]
    properties: Callable[[Any, str], Sequence[Property]] = _nothing
    explain: Callable[[Any, Output, np.ndarray, Any, Verdict], str] = _no_words
    truth: Callable[[Any, np.random.Generator], Any] | None = None
    caller: Callable[[Any, Any, Mapping[str, Any]], Callable[[], Any]] | None = None
    borrowed: Callable[[], Sequence[Any]] = _nothing
    mutants: Callable[[], Sequence[Any]] = _nothing
    stand_in: Callable[[Any, bool], Any] | None = None
    also_compiled: Callable[[Any, bool], Sequence[Any]] = _nothing
    peers: Callable[[], Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = dict
    choices: tuple[str, ...] = ()
