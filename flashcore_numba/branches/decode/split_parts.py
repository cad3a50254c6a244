"""Into how many parts `decode/split` divides a request, as `decode_split.cu` does."""

from flashcore_numba.branches.decode.decode_parts import KEYS, Tile
from flashcore_numba.branches.decode.problem import DecodeProblem

MAX_PARTS = 32  # of a request: what the merging block has room for


def part_tiles(tiles: int, warps: int, longest: int, at_least: int) -> int:
    """Tiles of keys in a part of a request that sees so many, as the kernel divides them."""
    share = max(min(-(-tiles // at_least), longest), -(-tiles // MAX_PARTS))
    return max(1, -(-share // warps)) * warps


def parts_of(tiles: int, *how: int) -> int:
    """Of a request that sees so many tiles of keys; how: as `part_tiles` takes it."""
    return max(1, -(-tiles // part_tiles(tiles, *how)))


def most_parts(tiles: int, warps: int, longest: int, at_least: int) -> int:
    """Of a request that sees so many tiles or fewer: `parts_of` may be less for more tiles."""
    enough = max(at_least, -(-tiles // longest))
    return max(1, min(MAX_PARTS, enough, -(-tiles // warps)))


def sizes(p: DecodeProblem, tile: Tile, at_least: int, longest: int, sm_count: int) -> tuple[int, int]:
    """The most parts of all requests, and blocks for each head and tile of rows."""
    most = p.batch * most_parts(p.capacity // KEYS + 1, tile.warps, longest, at_least)
    places = sm_count * tile.blocks_an_sm * p.batch // tile.blocks(p)
    return most, max(1, min(places, most))
