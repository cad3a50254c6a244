"""The committed table of what the compiler gives every kernel in CUDA C: a gate for changes.

`flashcore resources --save` writes it; a test compiles again and names every difference.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flashcore_numba.branches.find import find
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.records import layout
from flashcore_numba.records.artifact import RESOURCES, recorded_dir
from flashcore_numba.run import pool
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import Run, runs

CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
# What other GPUs and head dimensions give variants tells nothing more.
WITH_VARIANTS, DIMS_WITH_VARIANTS = ((8, 0), (8, 9), (9, 0)), (64, 128)
Item = tuple[str, str | None, int, tuple[int, int]]  # stage's key, variant, head dimension, capability


def items(stages: Sequence[Stage]) -> Iterator[Item]:
    """Everything that the table has a line for."""
    for run in runs([stage for stage in stages if stage.language == "CUDA C"]):
        for head_dim in run.stage.head_dims:
            for capability in CAPABILITIES:
                lacks = run.stage.why_not_on(capability)
                lacks = lacks or run.stage.why_not_in(shared_limit(capability), head_dim, run.variant)
                telling = capability in WITH_VARIANTS and head_dim in DIMS_WITH_VARIANTS
                if lacks is None and (run.is_default or telling):
                    yield run.stage.key, run.variant, head_dim, capability


def name(item: Item) -> str:
    """`12 mma_sync, D = 64, sm_80`."""
    key, variant, head_dim, (major, minor) = item
    return f"{Run(find(key), variant).label}, D = {head_dim}, sm_{major}{minor}"


def compiled(key: str, variant: str | None, head_dim: int, capability: tuple[int, int]) -> list[dict]:
    """The kernels of one item, compiled now: see `registers`."""
    run = Run(find(key), variant)
    return registers(run, examples(run.stage, head_dim), capability) or []


def save(stages: Sequence[Stage], progress: Callable[[int, int, str], None] | None = None) -> Path:
    """Compile every item and write the table. Needs the CUDA compiler, no GPU."""
    from cuda_reference.compile import nvrtc_version

    jobs = list(items(stages))
    found = pool.run(compiled, jobs, None, progress, name)
    kernels = {name(job): now for job, now in zip(jobs, found, strict=True)}
    path = recorded_dir() / RESOURCES
    layout.save({"nvrtc": ".".join(map(str, nvrtc_version())), "kernels": kernels}, path, "kernels")
    return path


def read() -> dict[str, Any]:
    """nvrtc: the version of the compiler; kernels: by `name`, what `compiled` returned."""
    return json.loads((recorded_dir() / RESOURCES).read_text())


def differences(item: Item, recorded: list[dict], now: list[dict], exact: bool = True) -> list[str]:
    """A sentence for each figure that is not as recorded; not `exact`: for more spills and other warnings."""
    before = {kernel["kernel"]: kernel for kernel in recorded}
    after = {kernel["kernel"]: kernel for kernel in now}
    found = [f"{name(item)}: {kernel} is not in the table" for kernel in after if kernel not in before]
    found += [f"{name(item)}: {kernel} is not launched any more" for kernel in before if kernel not in after]
    for kernel in [kernel for kernel in after if kernel in before]:
        for field, value in after[kernel].items():
            old = before[kernel].get(field)
            worse = field == "warnings" or (field == "spill_bytes" and value > old)
            if value != old and (exact or worse):
                found.append(f"{name(item)}: {kernel}: {field} {old} became {value}")
    return found
