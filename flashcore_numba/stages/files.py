"""The source files of the ladder: what exercises are cut from, and what edited copies start from."""

from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGE = "flashcore_numba.stages"
ROOMS = (FOLDER, FOLDER / "parts", FOLDER / "tuning")


def path(module: str) -> Path:
    """The file of a module by its last name, `stage05_online_softmax` or `common`; it need not exist."""
    found = (folder / f"{module}.py" for folder in ROOMS)
    return next((file for file in found if file.exists()), FOLDER / f"{module}.py")


def of_stage(number: int) -> list[Path]:
    """The files that belong to a stage alone, in the order of their names."""
    found = (file for folder in ROOMS for file in folder.glob(f"stage{number:02d}_*.py"))
    return sorted(found, key=lambda file: file.name)
