"""What the compiler gave each kernel of a stage: registers, spills, stack, shared memory."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import Run

SHAPES = ((1, 1, 64), (1, 8, 512), (4, 16, 4096))  # B, H, S of which a launcher may choose different kernels


def stand_in(
    batch: int, heads: int, seq: int, head_dim: int, causal: bool = False, element: Element = FLOAT16
) -> Problem:
    """A problem of this shape whose elements nobody reads, so that its memory is never touched."""
    return Problem(*Shape(batch, heads, seq, head_dim).untouched(element), causal=causal)


def stand_in_for(stage: Stage, shape: Shape, causal: bool = False) -> Any:
    """A problem of what the stage computes, whose elements nobody reads."""
    of = stage.operation
    if of is None:
        return Problem(*shape.untouched(), causal=causal)
    if of.stand_in is not None:
        return of.stand_in(shape, causal)
    inputs = of.draw(shape, causal, np.random.default_rng())
    return inputs.problem(inputs.arrays)


def examples(stage: Stage, head_dim: int) -> list[Any]:
    """Problems that between them make a stage launch every kernel that it has for a head dimension."""
    if not stage.kernels.by_shape:
        return [stand_in_for(stage, Shape(1, 1, 64, head_dim))]
    shapes = [Shape(*shape, head_dim) for shape in SHAPES]
    found = [stand_in_for(stage, shape, causal) for shape in shapes for causal in (False, True)]
    if stage.operation is not None:
        also = stage.operation.also_compiled
        found += [each for shape in shapes for causal in (False, True) for each in also(shape, causal)]
    return [problem for problem in found if stage.why_not(problem) is None]


def like(stage: Stage, problem: Any) -> list[Any]:
    """Problems on the host for which a stage launches the kernels that it launches for this one on the host,
    smaller where that does; the compiler reads none of their memory.
    """
    if stage.operation is not None or stage.kernels.by_shape or problem.features.names:
        return [problem]
    return examples(stage, problem.head_dim)


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
    block's (shared), threads per block's.

    Compiles for the given GPU without needing one; `sm_count` is what a launcher chooses kernels by. None for
    a run that needs another GPU, and where the CUDA compiler's libraries are not installed.
    """
    room = shared_limit(compute_capability)
    problems = [p for p in problems if not run.stage.why_not_in(room, getattr(p, "head_dim", 0), run.variant)]
    if not problems or not run.stage.runs_on(compute_capability) or why_not(run.stage):
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
