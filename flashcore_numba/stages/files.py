"""The source files of the ladder: what exercises are cut from, and what edited copies start from."""

from pathlib import Path

import cuda_reference
from cuda_reference.source import kernel_path

FOLDER = Path(__file__).parent
PACKAGE = "flashcore_numba.stages"
ROOMS = (FOLDER, FOLDER / "parts", FOLDER / "tuning")


def is_cuda(file: str) -> bool:
    """Whether a name is that of a file of `cuda_reference`: a kernel, or a header of `include/`."""
    return file.endswith((".cu", ".cuh"))


def path(file: str) -> Path:
    """Where a module is by its last name, `stage05_online_softmax` or `common`, and a kernel or header by its
    file's; it need not exist.
    """
    if is_cuda(file):
        return cuda_reference.INCLUDE / file if file.endswith(".cuh") else kernel_path(file)
    found = (folder / f"{file}.py" for folder in ROOMS)
    return next((each for each in found if each.exists()), FOLDER / f"{file}.py")


def of_stage(number: int) -> list[Path]:
    """The modules that belong to a stage alone, in the order of their names."""
    found = (file for folder in ROOMS for file in folder.glob(f"stage{number:02d}_*.py"))
    return sorted(found, key=lambda file: file.name)


def kernels_of(number: int) -> list[Path]:
    """The `.cu` files of a stage, in the order of their names."""
    return sorted(cuda_reference.FOLDER.glob(f"stage{number:02d}_*.cu"))
