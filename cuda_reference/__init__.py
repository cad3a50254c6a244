"""The CUDA C kernels of stages 07 and later, one `.cu` file per stage, and what runs and compiles them.

`source` names a kernel with its defines; `load` makes it callable, on a GPU or on the CPU; `compile.compile`
translates it for any GPU and says what the assembler gave it. Knows nothing of flashcore_numba.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda_reference.shown import shown
from cuda_reference.source import FOLDER, INCLUDE, Source, source
from cuda_reference.tensor_map import TensorMap

__all__ = ["FOLDER", "INCLUDE", "Source", "TensorMap", "load", "source"]


def load(kernel: Source | str, backend: str = "gpu", defines: dict[str, Any] | None = None) -> Any:
    """A callable `kernel(grid, block, args, shared_mem=0)`, as CuPy's RawKernel is one.

    kernel: a `Source`, or the name of a file, "stage12_mma_sync", with `defines`. backend: "gpu", which takes
    CuPy arrays and launches on CuPy's current stream, or "cpu", which takes NumPy arrays and returns what it
    counted and found: see `cpu.CpuKernel`. Scalars are NumPy scalars of the parameter's type: np.int32,
    np.int64, np.float32; None is a null pointer; a `TensorMap` stands for an array that TMA copies.

    Raises ValueError for an unknown back end, FileNotFoundError for an unknown file, and
    `compile.CompileError` or `cpu.CompileError`, with file and line, for a source that does not compile.
    """
    if isinstance(kernel, str):
        kernel = source(kernel, **(defines or {}))
    elif defines:
        raise ValueError(f"defines: {kernel.label} has its own, so pass a name or a Source, not both")
    if not Path(kernel.path).is_file():
        raise FileNotFoundError(f"there is no {kernel.path}")
    if backend == "gpu":
        from cuda_reference.gpu import load as load_on_gpu

        return load_on_gpu(kernel)
    if backend == "cpu":
        return _on_cpu(kernel, kernel.digest)
    raise ValueError(f"backend is {shown(backend)}: accepted are 'gpu' and 'cpu'")


@lru_cache(maxsize=256)
def _on_cpu(kernel: Source, digest: str) -> Any:
    """Loaded once for each state of its files, which `digest` stands for."""
    from cuda_reference.cpu import CpuModule

    return CpuModule(kernel.path, dict(kernel.defines)).kernel(kernel.entry)
