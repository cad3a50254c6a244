"""Choosing stages by what a command line says: those of the ladder, and those of branches by their keys."""

import re
from collections.abc import Sequence

from cuda_reference.shown import shown
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.dropout.operation import DROPOUT, DROPOUT_BACKWARD
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.prepare.operation import PREPARE
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.operation import Operation
from flashcore_numba.stages import find as spine
from flashcore_numba.stages.stage import Stage

BRANCHES: dict[str, Operation] = {
    each.name: each for each in (BACKWARD, DECODE, DROPOUT, DROPOUT_BACKWARD, EPILOGUE, FP8, PREPARE)
}
"""The operations beside the forward pass, by name."""
RANGE = "[0-9]+ *- *[0-9]*|- *[0-9]+"  # also one that lacks an end


def find(selector: int | str | Stage) -> Stage:
    """The stage that `stages.find.find` finds, or the one with this key ("backward/mma_sync").

    Raises ArgumentError, which lists what is accepted.
    """
    ladder = _ladder(selector)
    if ladder is None:
        if isinstance(selector, str) and ("," in selector or re.fullmatch(RANGE, selector.strip())):
            raise ArgumentError(f"stage {shown(selector)}: one stage is accepted, and no range or list")
        return spine.find(selector, f"; and stages of {', '.join(BRANCHES)}, written as backward/NAME")
    for stage in ladder:
        if stage.key == str(selector).strip():
            return stage
    keys = ", ".join(stage.key for stage in ladder)
    raise ArgumentError(f"stage {shown(selector)}: accepted are {keys}")


def select(*selectors: int | str | Stage, also: Sequence[str] = ()) -> list[Stage]:
    """What `stages.find.select` selects; the name of a branch ("backward") is its whole ladder, and comes
    after the spine. Raises ArgumentError, which lists what is accepted, and beside it `also`.
    """
    found: list[int | str | Stage] = []
    for selector in selectors:
        ladder = _ladder(selector)
        if ladder is None:
            _refuse_list(selector)
            found.append(selector)
        elif str(selector).strip() in BRANCHES:
            found += ladder
        else:
            found.append(find(selector))
    names = ", ".join((*BRANCHES, *also))
    return spine.select(*found, also=f"; ranges of them; {names}; and backward/NAME")


def _refuse_list(selector: int | str | Stage) -> None:
    """Raise ArgumentError for what is meant as a list or a range, and is none."""
    if not isinstance(selector, str):
        return
    if "," in selector:
        words = " ".join(selector.replace(",", " ").split())
        raise ArgumentError(f"stage {shown(selector)}: separate several with spaces, as in {words}")
    if re.fullmatch("[0-9]+ *-|- *[0-9]+", selector.strip()):
        raise ArgumentError(f"stage range {shown(selector)} lacks an end: both are needed, as in 2-5")


def _ladder(selector: int | str | Stage) -> Sequence[Stage] | None:
    """The ladder of the branch that a selector names, alone or before a slash."""
    if not isinstance(selector, str):
        return None
    operation = BRANCHES.get(selector.strip().partition("/")[0])
    return None if operation is None else operation.ladder()
