"""The schedule of a rank as data: whose keys it sees at each step, which of its rows see which of them."""

from functools import cache
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


@cache
def steps(split: Split, rank: int, causal: bool) -> tuple[Step, ...]:
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
    return tuple(found)


class Piece(NamedTuple):
    """Keys of `owner`: `source` is where they are in its array of all keys, `place` where they go in ours."""

    owner: int
    source: slice
    place: slice


def comings(split: Split, rank: int, causal: bool) -> tuple[list[Piece], list[Piece]]:
    """The rank's own keys, and those that come, in the order in which its rows need them: from the last place
    to the first, each next to those before it.

    Under a causal mask the places are those of the sequence: the rows of the second piece begin with their
    own keys anyhow. Without one the order of keys does not matter, and a rank's own have the last places.
    """
    if not causal:
        end, found = split.length, []
        for i in range(split.ranks):
            owner = (rank + i) % split.ranks
            begin = end - split.rows(owner)
            found.append(
                Piece(owner, slice(split.length - split.rows(owner), split.length), slice(begin, end))
            )
            end = begin
        return found[:1], found[1:]
    owner_of = {piece: owner for owner in range(split.ranks) for piece in split.pieces(owner)}
    mine = split.pieces(rank)
    places = {piece: slice(split.bounds[piece], split.bounds[piece + 1]) for piece in range(mine[1] + 1)}
    everything = [
        Piece(owner_of[piece], places[piece], places[piece]) for piece in sorted(places, reverse=True)
    ]
    return [x for x in everything if x.owner == rank], [x for x in everything if x.owner != rank]
