"""The source files of stages: what exercises are cut from, and what edited copies start from."""

import re
from collections.abc import Iterable
from pathlib import Path

import cuda_reference
from cuda_reference.source import BRANCHES, kernel_path
from flashcore_numba.stages.stage import Stage

FOLDER = Path(__file__).parent
PACKAGE = "flashcore_numba.stages"
ROOMS = (
    *(FOLDER, FOLDER / "parts", FOLDER / "tuning", *sorted((FOLDER.parent / "branches").glob("*/"))),
    *(FOLDER.parent / "course" / room for room in ("search", "ranks")),  # no stages: for exercises
)
Place = int | str
"""A stage's number; off the spine its key, "backward/mma_sync", with `_` for `/` how the names of its files
begin: "warm_up" will do.
"""


def place_of(stage: Stage) -> Place:
    """Where the files of a stage of a ladder are."""
    return stage.key if stage.number is None else stage.number


def shown(place: Place) -> str:
    """`05`, or a key as it is: the first word of what is said about the stage."""
    return f"{place:02d}" if isinstance(place, int) else place


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


def _prefix(place: Place) -> str:
    return f"stage{place:02d}" if isinstance(place, int) else place.replace("/", "_")


def of_stage(place: Place) -> list[Path]:
    """The modules that belong to a stage alone, in the order of their names."""
    found = (file for folder in ROOMS for file in _named(place, folder, ".py"))
    return sorted(found, key=lambda file: file.stem)


def kernels_of(place: Place) -> list[Path]:
    """The `.cu` files of a stage in the order of their names, then those that it shares with others: the ones
    that a module beside its own names, and its own import, and, for a branch, those of the spine that its own
    name.
    """
    folders = (cuda_reference.FOLDER, BRANCHES)
    own = sorted(file for folder in folders for file in _named(place, folder, ".cu"))
    texts = [file.read_text() for file in of_stage(place)]
    beside = {name for text in texts for name in re.findall(r"branches\.\w+\.(\w+) import", text)}
    named = {name for each in beside for name in re.findall(r'"(\w+)"', path(each).read_text())}
    shared = {file for name in named if (file := BRANCHES / f"{name}.cu").exists()}
    if isinstance(place, str):
        spine = {name for text in texts for name in re.findall(r"\b(stage\d\d_\w+)", text)}
        shared |= {file for name in spine if (file := cuda_reference.FOLDER / f"{name}.cu").exists()}
    return [*own, *sorted(shared - set(own))]


def _named(place: Place, folder: Path, ending: str) -> list[Path]:
    prefix = _prefix(place)
    named = (file for file in folder.glob(f"{prefix}*{ending}") if re.match(rf"{prefix}(_|\.)", file.name))
    return sorted(named)


def module(file: str) -> str:
    """The dotted name of a module of `path`."""
    return ".".join(path(file).relative_to(FOLDER.parents[1]).with_suffix("").parts)


def headers_including(names: Iterable[str]) -> list[Path]:
    """The headers of `include/` that include one of these by name, themselves or through another header."""
    includes = {
        header: set(re.findall(r'^#include "([\w.]+)"', header.read_text(), re.MULTILINE))
        for header in sorted(cuda_reference.INCLUDE.glob("*.cuh"))
    }
    reached = set(names)
    while more := {header.name for header, own in includes.items() if own & reached} - reached:
        reached |= more
    return [header for header in includes if header.name in reached]
