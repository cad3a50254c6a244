"""Whether a region pins the registers that products of wgmma wrote: the CPU executor cannot see it.

A wait names no registers, so the compiler of a GPU may move their use in front of it; `ptx::wgmma_pin` after
the wait keeps the order.
"""

from flashcore_numba.course.cuda_text import Token, tokens
from flashcore_numba.course.exercise import Answer

STARTS = {"issue_qk": "s_rmem", "issue_pv": "o_rmem"}  # the calls that start products, and what they write
WAIT, PIN = "wgmma_wait", "wgmma_pin"


def unpinned(answer: Answer, under_way: tuple[str, ...] = ()) -> tuple[int, str] | None:
    """The line of the first wait behind which an array is used, or left, without a pin, and the array.

    under_way: arrays that products from before the region still write.
    """
    if answer.first is None:
        return None
    code = [token for token in tokens("\n".join(answer.lines), answer.first) if token.kind == "name"]
    writing, waited = set(under_way), dict[str, int]()
    for n, token in enumerate(code):
        argument = code[n + 1].text if n + 1 < len(code) else ""
        if token.text in STARTS:
            writing.add(STARTS[token.text])
        elif token.text == WAIT:
            waited |= dict.fromkeys(sorted(writing), token.line)
        elif token.text == PIN:
            writing.discard(argument)
            waited.pop(argument, None)
        elif token.text in waited and not _is_argument_of_a_pin_or_start(code, n):
            return waited[token.text], token.text
    return next(((line, name) for name, line in waited.items()), None)


def _is_argument_of_a_pin_or_start(code: list[Token], n: int) -> bool:
    return n > 0 and code[n - 1].text in (PIN, *STARTS)
