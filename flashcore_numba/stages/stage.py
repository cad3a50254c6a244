"""What a stage is: data about one kernel of the ladder, and one function that launches it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of the ladder.

    `launch(problem, out, executor, lse=None, variant=None)` runs the stage on a `Problem` and writes every
    element of `out` (float16 [B, H, S_q, D]) and, where the stage `returns_lse` and one is given, of `lse`
    (float32 [B, H, S_q]; C-contiguous for a stage in CUDA C). It asks the executor for scratch memory, a
    counter and launches, so the same function serves a GPU, the simulator and the compiler. It does not
    validate: whoever
    holds a `Problem` need not check again, and `flashcore_numba.attention.refuse` has compared the problem
    with the limits below.
    """

    number: int
    name: str
    title: str
    idea: str
    launch: Callable
    language: str = "Numba"
    compute_capability: tuple[int, int] = (7, 0)
    no_other_gpu: bool = False  # code for sm_90a runs on GPUs of that compute capability, and on no newer one
    head_dims: tuple[int, ...] = (64, 128)
    causal: bool = True
    grouped_queries: bool = False
    returns_lse: bool = False
    variants: Mapping[str, str] = field(default_factory=dict)  # name -> one sentence
    default: str | None = None  # the variant that runs when none is named, unless it has the stage's name

    @property
    def label(self) -> str:
        """`05 online_softmax`: how tables and messages name the stage."""
        return f"{self.number:02d} {self.name}"

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

    @property
    def default_variant(self) -> str | None:
        """The variant that runs when none is named; None where there are no variants."""
        return self.default or (self.name if self.name in self.variants else None)
