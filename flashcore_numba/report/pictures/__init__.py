"""The pictures of recorded runs, light and dark: what they show comes from artifacts alone.

`drawable` says which pictures a list of artifacts allows; each knows its alternative text and its files.
"""

from collections.abc import Sequence
from pathlib import Path

from flashcore_numba.report.pictures import ladder, lengths, roofline, share, time_budget
from flashcore_numba.report.pictures.records import beside
from flashcore_numba.report.pictures.style import THEMES, LackingError, Picture, Record

__all__ = ["NAMES", "Picture", "Record", "drawable", "ladder_beside", "orphans"]

MAKERS = {
    "ladder": ladder.picture,
    "roofline": roofline.picture,
    "time-budget": time_budget.picture,
    "lengths": lengths.picture,
    "share": share.picture,
}
NAMES = tuple(MAKERS)


def drawable(records: Sequence[Record]) -> tuple[list[Picture], dict[str, str]]:
    """The pictures that `records` allow, and by name why the others are not among them.

    records: (file, artifact) pairs; where several hold what a picture of one run shows, the first counts.
    """
    found, lacking = [], {}
    for name, make in MAKERS.items():
        try:
            found.append(make(records))
        except LackingError as error:
            lacking[name] = str(error)
    return found, lacking


def orphans(folder: Path, drawn: Sequence[Picture]) -> list[Path]:
    """Files in `folder` of pictures that are not in `drawn`."""
    kept = {path for picture in drawn for path in picture.files(folder)}
    known = [folder / f"{name}{theme.suffix}.svg" for name in NAMES for theme in THEMES]
    return [path for path in known if path not in kept and path.exists()]


def ladder_beside(own: Record, recorded: Sequence[Record]) -> Picture:
    """The ladder of a new run at its first shape, and beside it what other GPUs or days recorded."""
    shape = own[1]["shapes"][0]
    return ladder.picture(beside(own, recorded), (shape["shape"], shape["causal"]))
