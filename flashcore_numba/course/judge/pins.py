"""Whether a region pins the registers that products of wgmma wrote: the CPU executor cannot see it.

A wait names no registers, so the compiler of a GPU may move their use in front of it; `ptx::wgmma_pin` after
the wait keeps the order.
"""

import re
from dataclasses import replace

from flashcore_numba.course.cuda_text import Token, tokens
from flashcore_numba.course.exercise import Answer

STARTS = "issue_qk", "issue_pv"  # the calls that start products, a group each, into their first argument
WAIT, PIN = "wgmma_wait", "wgmma_pin"


def unpinned(answer: Answer, under_way: tuple[str, ...] = ()) -> tuple[int, str] | None:
    """The line of the first wait behind which an array is used, or left, without a pin, and the array.

    under_way: arrays that products from before the region still write.
    """
    if answer.first is None:
        return None
    every = [token for token in tokens("\n".join(answer.lines), answer.first) if token.kind != "comment"]
    at = [n for n, token in enumerate(every) if token.kind == "name"]
    meant = _other_names(every)
    code = [replace(every[n], text=meant.get(every[n].text, every[n].text)) for n in at]
    left = _left_by_waits(every)
    writing, waited = list(under_way), dict[str, tuple[int, int]]()  # the first started first
    for n, token in enumerate(code):
        argument = code[n + 1].text if n + 1 < len(code) else ""
        if token.text in STARTS:
            writing.append(argument)
        elif token.text == WAIT:
            unfinished = left.pop(0)
            done = writing[: max(0, len(writing) - (unfinished or 0))]
            waited |= dict.fromkeys(done, (token.line, at[n]))
            if unfinished is not None:
                writing = writing[len(done) :]
        elif token.text == PIN and argument in waited and _always(every, waited[argument][1], at[n]):
            waited.pop(argument)
            writing = [name for name in writing if name != argument]
        elif token.text in waited and not _is_argument_of_a_pin_or_start(code, n):
            return waited[token.text][0], token.text
    return next(((line, name) for name, (line, _) in waited.items()), None)


def _other_names(every: list[Token]) -> dict[str, str]:
    """What the region's references and pointers to an array stand for."""
    found: dict[str, str] = {}
    for sign, name, equals, array in zip(every, every[1:], every[2:], every[3:], strict=False):
        if sign.text in ("&", "*") and equals.text == "=" and array.kind == "name":
            found[name.text] = found.get(array.text, array.text)
    return found


def _always(every: list[Token], wait: int, pin: int) -> bool:
    """Is a pin a statement that runs whenever its wait does? Under a condition it may never run."""
    conditions: list[bool] = []  # of the blocks and brackets that are open
    for before, token in zip(every[wait:pin], every[wait + 1 : pin], strict=False):
        if token.text in ("{", "("):
            conditions.append(token.text == "(" or before.text not in (";", "{", "}"))
        elif token.text in ("}", ")") and conditions:
            conditions.pop()
    in_front = next(token.text for token in reversed(every[:pin]) if token.text not in ("ptx", "::"))
    return not any(conditions) and in_front in (";", "{", "}")


def _left_by_waits(every: list[Token]) -> list[int | None]:
    """How many groups each wait leaves unfinished; None where it does not say a number."""
    at = [n for n, token in enumerate(every) if token.text == WAIT]
    said = ["".join(token.text for token in every[n + 1 : n + 4]) for n in at]
    return [int(text[1:-1]) if re.fullmatch(r"<\d+>", text) else None for text in said]


def _is_argument_of_a_pin_or_start(code: list[Token], n: int) -> bool:
    return n > 0 and code[n - 1].text in (PIN, *STARTS)
