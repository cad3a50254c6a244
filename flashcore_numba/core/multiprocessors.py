"""What one SM of a GPU holds, and how much shared memory a block may have, by compute capability."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """What one SM holds at most: blocks, warps, KiB of shared memory; all have 65536 registers."""

    blocks: int
    warps: int
    shared_kib: int


# CUDA C++ Programming Guide, "Compute Capabilities", technical specifications.
MULTIPROCESSORS = {
    (7, 0): Multiprocessor(32, 64, 96),
    (7, 5): Multiprocessor(16, 32, 64),
    (8, 0): Multiprocessor(32, 64, 164),
    (8, 6): Multiprocessor(16, 48, 100),
    (8, 9): Multiprocessor(24, 48, 100),
    (9, 0): Multiprocessor(32, 64, 228),
    (10, 0): Multiprocessor(32, 64, 228),
    (12, 0): Multiprocessor(24, 48, 100),
}


def kept_bytes(compute_capability: tuple[int, int]) -> int:
    """Shared memory that the system keeps for itself in each block."""
    return 1024 if compute_capability >= (8, 0) else 0


def shared_limit(compute_capability: tuple[int, int]) -> int:
    """Bytes of shared memory, static and dynamic, that a block may have once it asks for more than 48 KiB.

    A GPU that is not in the table is taken for the last one before it.

    >>> shared_limit((7, 5)), shared_limit((8, 9)), shared_limit((9, 0))
    (65536, 101376, 232448)
    """
    known = max((each for each in MULTIPROCESSORS if each <= compute_capability), default=(7, 0))
    return 1024 * MULTIPROCESSORS[known].shared_kib - kept_bytes(known)


EXAMPLE_SHARED_LIMIT = shared_limit((9, 0))  # what a launcher goes by where there is no GPU
