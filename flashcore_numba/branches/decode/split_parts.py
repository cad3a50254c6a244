"""Into how many parts `decode/split` divides a request, as `decode_split.cu` does."""

from flashcore_numba.branches.decode.decode_parts import KEYS

MAX_PARTS = 32  # of a request: what the merging block has room for


def part_tiles(tiles: int, warps: int, part_keys: int, at_least: int) -> int:
    """Tiles of keys in a part of a request that sees so many, as the kernel divides them."""
    share = max(min(-(-tiles // at_least), part_keys // KEYS), -(-tiles // MAX_PARTS))
    return max(1, -(-share // warps)) * warps


def parts_of(tiles: int, *how: int) -> int:
    """Of a request that sees so many tiles of keys; how: as `part_tiles` takes it."""
    return max(1, -(-tiles // part_tiles(tiles, *how)))


def most_parts(tiles: int, warps: int, part_keys: int, at_least: int) -> int:
    """Of a request that sees so many tiles or fewer: `parts_of` may be less for more tiles."""
    enough = max(at_least, -(-tiles * KEYS // part_keys))
    return max(1, min(MAX_PARTS, enough, -(-tiles // warps)))
