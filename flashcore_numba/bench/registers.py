"""What the compiler gave each kernel of a stage: registers, spills, stack, shared memory."""

from typing import Any

import numpy as np

from flashcore_numba.problem import Problem

from .entries import Run

__all__ = ["registers"]


def registers(run: Run, head_dim: int, compute_capability: tuple[int, int]) -> list[dict[str, Any]] | None:
    """One dictionary a kernel of the run; bytes are a thread's (spill, stack) or a block's (shared).

    Compiles for the given GPU without needing one. None for a stage whose kernels Numba does not compile,
    and where the CUDA compiler's libraries are not installed.
    """
    from flashcore_numba import compiler as numba_compiler

    if run.stage.language != "Numba" or numba_compiler.why_not():
        return None
    from flashcore_numba.executor import Compiler

    compiler = Compiler(compute_capability=compute_capability)
    q, k, v = (np.zeros((1, 1, 64, head_dim), np.float16) for _ in range(3))
    run.stage.launch(Problem(q, k, v), np.zeros_like(q), compiler, variant=run.variant)
    return [
        {
            "kernel": kernel.name,
            "registers": kernel.registers,
            "spill_bytes": kernel.spill_bytes,
            "stack_bytes": kernel.stack_bytes,
            "shared_bytes": kernel.shared_bytes,
        }
        for kernel in compiler.kernels
    ]
