"""What the compiler gave each kernel of a stage: registers, spills, stack, shared memory."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import Run

SHAPES = ((1, 1, 64), (1, 8, 512), (4, 16, 4096))  # B, H, S of which a launcher may choose different kernels


def stand_in(batch: int, heads: int, seq: int, head_dim: int, causal: bool = False) -> Problem:
    """A problem of this shape whose elements nobody reads, so that its memory is never touched."""
    array = np.empty((batch, heads, seq, head_dim), FLOAT16.dtype)
    return Problem(array, array, array, causal=causal)


def examples(stage: Stage, head_dim: int) -> list[Problem]:
    """Problems that between them make a stage launch every kernel that it has for a head dimension."""
    if not stage.kernels.by_shape:
        return [stand_in(1, 1, 64, head_dim)]
    found = [stand_in(*shape, head_dim, causal) for shape in SHAPES for causal in (False, True)]
    return [problem for problem in found if stage.why_not(problem) is None]


def like(stage: Stage, problem: Any) -> list[Any]:
    """Problems for which a stage launches the kernels that it launches for this one, smaller where that does;
    the compiler reads none of their memory."""
    p = problem
    if stage.operation is not None:
        return [p]
    if not stage.kernels.by_shape:
        return examples(stage, p.head_dim)
    return [stand_in(p.batch, p.heads, p.seq_q, p.head_dim, p.causal)]


def why_not(stage: Stage) -> str | None:
    """Why a stage's kernels cannot be compiled here, in one sentence; None when they can."""
    from cuda_reference import compile as cuda_compiler
    from flashcore_numba.run import compiler

    return compiler.why_not() or (cuda_compiler.why_not() if stage.language == "CUDA C" else None)


def registers(
    run: Run,
    problems: Iterable[Any],
    compute_capability: tuple[int, int],
    sm_count: int = EXAMPLE_SM_COUNT,
) -> list[dict[str, Any]] | None:
    """One dictionary a kernel that the run launches for `problems`; bytes are a thread's (spill, stack) or a
    block's (shared), threads a block's.

    Compiles for the given GPU without needing one; `sm_count` is what a launcher chooses kernels by. None for
    a stage that needs another GPU, and where the CUDA compiler's libraries are not installed.
    """
    if not run.stage.runs_on(compute_capability) or why_not(run.stage):
        return None
    from flashcore_numba.run.compiler import Compiler

    compiler = Compiler(compute_capability=compute_capability)
    compiler.sm_count = sm_count
    for problem in problems:
        run.stage.run(problem, compiler, run.variant, np.empty)
    return [
        {
            "kernel": kernel.name,
            "registers": kernel.registers,
            "spill_bytes": kernel.spill_bytes,
            "stack_bytes": kernel.stack_bytes,
            "shared_bytes": kernel.shared_bytes,
            "threads": kernel.threads,
            "warnings": list(kernel.warnings),
        }
        for kernel in compiler.kernels
    ]
