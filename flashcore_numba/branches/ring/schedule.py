"""The schedule of a rank as data: whose keys it sees at each step, which of its rows see which of them."""

from typing import NamedTuple

from flashcore_numba.branches.ring.sequence import Split
from flashcore_numba.core.errors import UnsupportedError


class Step(NamedTuple):
    """At this step `rows` of the rank see `keys` of the chunk that `owner` holds.

    rows, keys: slices within the chunk of the rank and of the owner. causal: aligned bottom-right; otherwise
    all these rows see all these keys.
    """

    owner: int
    rows: slice
    keys: slice
    causal: bool


def steps(split: Split, rank: int, causal: bool) -> list[Step]:
    """N steps: the rank's own keys first, then those of rank + 1, rank + 2, ... modulo N.

    At each step the owners are a permutation of the ranks, so no two ranks pull from the same one. Under a
    causal mask the chunks of later ranks come first. Their first piece is after our first piece, their second
    one before our second piece: our second piece sees all of such a chunk, and our first nothing. Of a chunk
    of an earlier rank all our rows see the first piece, and none the second. So every rank does half the work
    of a full step, and the last step of all ranks but rank 0 is one of all rows: it can write their output.

    Raises UnsupportedError for a causal mask without zigzag.
    """
    if causal and not split.zigzag:
        raise UnsupportedError("causal=True needs zigzag=True: otherwise the last rank has most of the work")
    everything = slice(0, split.rows(rank))
    found = [Step(rank, everything, everything, causal)]
    for i in range(1, split.ranks):
        owner = (rank + i) % split.ranks
        whole = slice(0, split.rows(owner))
        if not causal:
            found.append(Step(owner, everything, whole, False))
        elif owner > rank:
            found.append(Step(owner, slice(split.half(rank), split.rows(rank)), whole, False))
        else:
            found.append(Step(owner, everything, slice(0, split.half(owner)), False))
    return found
