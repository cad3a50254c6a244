"""The pictures of recorded runs, light and dark: what they show comes from artifacts alone.

`drawable` says which pictures a list of artifacts allows; each knows its alternative text and its files.
"""

from collections.abc import Sequence
from pathlib import Path

from flashcore_numba.records.artifact import FORWARD, in_type
from flashcore_numba.report.pictures import (
    backward,
    ladder,
    lengths,
    ring_timeline,
    roofline,
    share,
    time_budget,
)
from flashcore_numba.report.pictures.records import beside
from flashcore_numba.report.pictures.style import THEMES, LackingError, Picture, Record

__all__ = ["NAMES", "Picture", "Record", "drawable", "ladder_beside", "orphans"]

MAKERS = {  # and of which operation the artifacts are
    "ladder": (FORWARD, ladder.picture),
    "roofline": (FORWARD, roofline.picture),
    "time-budget": (FORWARD, time_budget.picture),
    "lengths": (FORWARD, lengths.picture),
    "share": (FORWARD, share.picture),
    "backward": ("backward", backward.picture),
}
TIMELINES = {ring_timeline.name(backward): backward for backward in (False, True)}
NAMES = (*MAKERS, *TIMELINES)


def drawable(
    records: Sequence[Record], timelines: Sequence[Record] = ()
) -> tuple[list[Picture], dict[str, str]]:
    """The pictures that `records` allow, and by name why the others are not among them.

    records: (file, artifact) pairs, of which plain shapes in float16 are shown; where several hold what a
    picture of one run shows, the first counts. timelines: the same of time lines of a ring.
    """
    found, lacking = [], {}
    for name, (operation, make) in MAKERS.items():
        try:
            found.append(make(in_type(records, operation=operation)))
        except LackingError as error:
            lacking[name] = str(error)
    for name, backward_pass in TIMELINES.items():
        try:
            found.append(ring_timeline.picture(timelines, backward_pass))
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
