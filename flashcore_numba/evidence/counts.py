"""What a stage moves: its counters on the simulator, and whether the counted run was right."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flashcore_numba.calls import refuse
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.truth import truth
from flashcore_numba.core.shapes import Shape
from flashcore_numba.predict.formula import SECTOR
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages.runs import Run


@dataclass(frozen=True)
class Counted:
    """One run of a stage on the simulator. `launches`: the results of `simulate`, one per kernel launch."""

    run: Run
    shape: Shape
    causal: bool
    min_bytes: int
    launches: list[Any]
    error: dict[str, Any]

    @property
    def problems(self) -> list[Any]:
        return [problem for launch in self.launches for problem in launch.problems]

    @property
    def right(self) -> bool:
        return self.error["right"] and not self.problems

    def totals(self) -> dict[str, int]:
        """The counters summed over the launches; of figures a thread or a block, the largest."""
        sums: dict[str, int] = {}
        for launch in self.launches:
            for name, value in launch.totals().items():
                if isinstance(value, dict):
                    continue
                if name.endswith(("_per_thread", "_per_block")):
                    sums[name] = max(sums.get(name, 0), value)
                else:
                    sums[name] = sums.get(name, 0) + value
        return sums

    def moved(self) -> dict[str, float]:
        """The few figures that tell the stages apart; bytes are those of the 32-byte sectors touched, and of
        the boxes that TMA copies.
        """
        totals = self.totals()

        def of(*names: str) -> int:
            return sum(totals.get(name, 0) for name in names)

        sectors = of("global_load_sectors", "global_store_sectors", "global_atomic_sectors")
        requests = of("global_load_requests", "global_store_requests", "global_atomic_requests")
        moved = sectors * SECTOR + of("tma_load_bytes", "tma_store_bytes")
        return {
            "global_requests": requests + of("tma_load", "tma_store"),
            "global_bytes": moved,
            "times_needed": moved / self.min_bytes,
            "shared_wavefronts": of(
                "shared_load_wavefronts", "shared_store_wavefronts", "shared_atomic_wavefronts"
            ),
            "bank_conflicts": of(
                "shared_load_conflicts", "shared_store_conflicts", "shared_atomic_conflicts"
            ),
            "barriers": of("barriers"),
            "shuffles": of("shuffle"),
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.run.label,
            "variant": self.run.variant,
            "shape": str(self.shape),
            "causal": self.causal,
            "right": self.right,
            "error": self.error,
            "problems": [str(problem) for problem in self.problems],
            "moved": self.moved(),
            "totals": self.totals(),
            "lines": [asdict(line) for launch in self.launches for line in launch.lines()],
        }


def _unwritten(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def count(
    run: Run,
    shape: Shape,
    causal: bool = False,
    rng: np.random.Generator | None = None,
    sm_count: int = EXAMPLE_SM_COUNT,
) -> Counted:
    """Run on the simulator with fresh random inputs, counting everything and checking for races.

    A launcher that fills a GPU takes it to have `sm_count` multiprocessors.
    Raises UnsupportedError where the stage does not serve the shape.
    """
    rng = rng or np.random.default_rng()
    of = operation(run.stage)
    inputs = of.draw(shape, causal, rng)
    problem = inputs.problem(inputs.arrays)
    refuse(run.stage, problem)
    executor = Simulator(sm_count=sm_count)
    outputs = run.stage.run(problem, executor, run.variant, _unwritten, optional=False)
    error = truth(of, inputs, rng).judge([outputs])
    return Counted(run, shape, causal, problem.min_bytes, executor.launches, error)


def count_all(chosen: list[Run], shape: Shape, progress: Progress, causal: bool = False) -> list[Counted]:
    """Count each run on the simulator, saying which."""
    found = []
    for k, run in enumerate(chosen):
        progress.count(f"counting on the simulator at {shape}", k + 1, len(chosen), run.label)
        found.append(count(run, shape, causal))
    return found
