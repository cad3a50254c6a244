"""What a stage is: data about one kernel of a ladder, and one function that launches it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.executor import Executor
from flashcore_numba.core.features import ARGUMENTS
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import LSE, OUT, Output
from flashcore_numba.core.problem import listed
from flashcore_numba.stages.kernels import KINDS, Kernels


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a ladder.

    `launch(problem, out, executor, lse=None, variant=None)` runs the stage on a `Problem` and writes every
    element of the outputs, which it takes by their names; an optional one may be None. Outputs with one
    number per row, as the LSE, are C-contiguous for a stage in CUDA C. It asks the executor, a
    `core.executor.Executor`, for scratch memory, a counter and launches, so the same function serves a GPU,
    the simulator and the compiler. It does not validate: code that holds a problem need not check again, and
    `why_not` has been asked.

    number: its place on the spine, the ladder of the forward pass; None for a stage of a branch. operation:
    what it computes; None is the forward pass, `checks.forward.FORWARD`, which is above the spine.
    elements: what q, k, v and out may hold. features: of `core.features.Features`, the arguments that it
    serves. outputs: what it can write. limit: a limit of its own, beside those that the fields say:
    `limit(problem)` gives what it does not serve, in words that follow its name, or None. shared_bytes: the
    shared memory that a block of a variant needs at a head dimension, `shared_bytes(head_dim, variant)`; None
    for a stage whose blocks fit every GPU that can run it.
    """

    number: int | None
    name: str
    title: str
    idea: str
    launch: Callable[..., None]
    language: str = "Numba"
    compute_capability: tuple[int, int] = (7, 0)
    no_other_gpu: bool = False  # code for sm_90a runs on GPUs of that compute capability, and on no newer one
    head_dims: tuple[int, ...] = (64, 128)
    elements: tuple[Element, ...] = (FLOAT16,)
    value_dims: bool = False  # whether D_v, one of head_dims, may be another than D
    causal: bool = True
    grouped_queries: bool = False
    features: tuple[str, ...] = ()  # of `core.features.Features`, those that it serves
    outputs: tuple[Output, ...] = (OUT,)
    variants: Mapping[str, str] = field(default_factory=dict)  # name -> one sentence
    default: str | None = None  # the variant that runs when none is named, unless it has the stage's name
    called: str | None = None  # the variant that `attention()` runs, where that is another
    operation: Operation | None = None
    limit: Callable[[Any], str | None] | None = None
    shared_bytes: Callable[[int, str | None], int] | None = None

    @property
    def key(self) -> str:
        """What it is known by, and no other stage: `mma_sync`, or `backward/recompute` off the spine."""
        return self.name if self.operation is None else f"{self.operation.name}/{self.name}"

    @property
    def label(self) -> str:
        """`05 online_softmax`: how tables and messages name the stage; its key off the spine."""
        return self.key if self.number is None else f"{self.number:02d} {self.name}"

    @property
    def place(self) -> int:
        """Its number, for what only the spine has. Raises ValueError for a stage of a branch."""
        if self.number is None:
            raise ValueError(f"stage {self.label} has no number: it is not on the spine")
        return self.number

    @property
    def kernels(self) -> Kernels:
        """What follows from the language of its kernels."""
        return KINDS[self.language]

    @property
    def returns_lse(self) -> bool:
        return LSE in self.outputs

    def allocate(
        self, problem: Any, empty: Callable[[tuple[int, ...], Any], Any], optional: bool = True
    ) -> dict[str, Any]:
        """Memory for its outputs, by name: `empty(shape, dtype)` for each; `optional`: also for those that
        must be asked for.
        """
        wanted = [each for each in self.outputs if optional or not each.optional]
        return {each.name: empty(each.shape(problem), each.dtype(problem)) for each in wanted}

    def run(
        self,
        problem: Any,
        executor: Executor,
        variant: str | None = None,
        empty: Callable[[tuple[int, ...], Any], Any] = np.zeros,
        optional: bool = True,
    ) -> dict[str, Any]:
        """Launch into memory from `allocate`, which is returned."""
        outputs = self.allocate(problem, empty, optional)
        self.launch(problem, executor=executor, variant=variant, **outputs)
        return outputs

    def through(self, wrap: Callable[[Executor], Executor]) -> "Stage":
        """The stage with a `launch` that is called as its own, and runs on `wrap(executor)`."""
        parameters = signature(self.launch)

        @wraps(self.launch)
        def launch(*args: Any, **options: Any) -> None:
            given = parameters.bind(*args, **options)
            given.arguments["executor"] = wrap(given.arguments["executor"])
            self.launch(*given.args, **given.kwargs)

        return replace(self, launch=launch)

    def why_not(self, problem: Any, outputs: tuple[Output, ...] = ()) -> str | None:
        """What keeps the stage from this problem, in words that follow its name; None where nothing does.

        outputs: what is wanted beside the outputs that are always written.
        """
        for each in outputs:
            if each not in self.outputs:
                return f"does not return the {each.symbol} ({each.asked})"
        own = self.limit(problem) if self.limit else None
        head_dim = getattr(problem, "head_dim", None)  # only attention of q over k and v has one
        return own if own or head_dim is None else _attention_limit(self, problem, head_dim)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability runs the stage."""
        return capability >= self.compute_capability and (
            capability == self.compute_capability or not self.no_other_gpu
        )

    def why_not_on(self, capability: tuple[int, int]) -> str | None:
        """What a GPU of this compute capability lacks, to follow the stage's name; None where it runs."""
        if self.runs_on(capability):
            return None
        here, needed = (".".join(map(str, pair)) for pair in (capability, self.compute_capability))
        only = ", no newer one," if self.no_other_gpu else ","
        return f"needs compute capability {needed}{only} and this GPU has {here}"

    def fitting(self, head_dim: int, variant: str | None, room: int) -> str | None:
        """The variant that runs where a block may have `room` bytes of shared memory.

        It is the one that is named. The default, named or not, gives way to the last before it that fits.
        """
        default, names = self.default_variant, list(self.variants)
        if self.shared_bytes is None or default is None or variant not in (None, default):
            return variant
        names = names[: names.index(default) + 1]
        fit = [name for name in names if self.shared_bytes(head_dim, name) <= room]
        return fit[-1] if fit else default

    def why_not_in(self, room: int, head_dim: int, variant: str | None = None) -> str | None:
        """What a GPU whose blocks may have `room` bytes of shared memory lacks, to follow the stage's name;
        None where the variant, or without one the stage, runs.
        """
        if self.shared_bytes is None:
            return None
        needed = self.shared_bytes(head_dim, self.fitting(head_dim, variant, room))
        if needed <= room:
            return None
        return (
            f"needs {needed} bytes of shared memory per block at head dimension {head_dim}, "
            f"and this GPU has {room}"
        )

    @property
    def default_variant(self) -> str | None:
        """The variant that runs when none is named; None where there are no variants."""
        return self.default or (self.name if self.name in self.variants else None)


def _attention_limit(stage: Stage, problem: Any, head_dim: int) -> str | None:
    """What the fields of the stage exclude."""
    if head_dim not in stage.head_dims:
        return f"does not serve head dimension {head_dim}, only {listed(stage.head_dims)}"
    if problem.value_dim != head_dim and not (stage.value_dims and problem.value_dim in stage.head_dims):
        return f"does not serve values of another head dimension ({head_dim} and {problem.value_dim})"
    if problem.element not in stage.elements:
        served = " and ".join(each.name for each in stage.elements)
        return f"does not serve {problem.element.name}, only {served}"
    if problem.causal and not stage.causal:
        return "does not serve causal=True"
    if problem.group > 1 and not stage.grouped_queries:
        return (
            f"does not serve grouped queries ({problem.heads} query heads over {problem.kv_heads} K/V heads)"
        )
    missing = [name for name in problem.features.names if name not in stage.features]
    return f"does not serve {ARGUMENTS.get(missing[0], missing[0])}" if missing else None
