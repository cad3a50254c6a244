"""The forward pass over many keys with few query rows, as the kernels of decoding do it: without pages."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flashcore_numba.branches.decode.decode_cluster import STAGE as CLUSTER
from flashcore_numba.branches.decode.decode_cluster import fill_gpu
from flashcore_numba.branches.decode.decode_split import STAGE as SPLIT
from flashcore_numba.branches.decode.problem import FEATURES
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.stage import Stage

MOST_TOKENS, MOST_ROWS = 16, 64  # query rows of a head, and of those that share a K/V head
FEWEST_KEYS = 512


@dataclass(frozen=True)
class Unpaged:
    """A problem of the forward pass as the kernels of decoding are given theirs: request b is page b."""

    forward: Problem

    paged: ClassVar[bool] = False
    batch_invariant: ClassVar[bool] = False
    e4m3: ClassVar[bool] = False
    block_table: ClassVar[None] = None
    table_row: ClassVar[int] = 0
    width: ClassVar[int] = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    @property
    def k_pool(self) -> Array:
        """[B, H_kv, S_k, D], heads first, unlike a pool of pages."""
        return self.forward.k

    @property
    def v_pool(self) -> Array:
        return self.forward.v

    @property
    def capacity(self) -> int:
        return self.forward.seq_k

    @property
    def page(self) -> int:
        return self.forward.seq_k


def _of_forward(stage: Stage) -> Stage:
    """A stage of decoding as one of the forward pass."""

    def launch(
        problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
    ) -> None:
        stage.launch(Unpaged(problem), out, executor, lse, variant)

    features = (*FEATURES, "seqused_k")
    return replace(stage, name=f"decode_{stage.name}", operation=None, launch=launch, features=features)


STAGES = _of_forward(CLUSTER), _of_forward(SPLIT)


def preferred(problem: Problem) -> tuple[Stage, ...]:
    """The stages that `attention` tries before those of the spine: none unless there are few query rows and
    many keys.
    """
    p = problem
    few = p.seq_q <= MOST_TOKENS and p.seq_q * p.group <= MOST_ROWS and p.seq_k >= FEWEST_KEYS
    if not (few and p.on_gpu):
        return ()
    return STAGES if fill_gpu(Unpaged(p)) else STAGES[::-1]
