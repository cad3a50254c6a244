"""Which stage `attention()` runs when none is named, and which `attention_backward()`: tables made from the
recorded measurements.

A rule is for GPUs of one compute capability, one mask and head dimension (None: both), and for problems of at
most so many query rows (B * H * S_q) and keys (S_k; None: any number). The first rule that fits counts. It
ranks the stages that were timed, the fastest first; the first of them that serves the problem on this machine
runs. A stage without recorded times is in no rule: it runs only when it is named.
"""

from typing import NamedTuple


class Rule(NamedTuple):
    """One row of a table; `stages` are numbers of the ladder, or names of a branch's, the fastest first."""

    capability: tuple[int, int]
    causal: bool | None
    head_dim: int | None
    rows: int | None
    keys: int | None
    stages: tuple[int | str, ...]

    def fits(self, causal: bool, head_dim: int, rows: int, keys: int) -> bool:
        """Whether the rule is for such a problem, on GPUs of its compute capability."""
        return (
            self.causal in (None, causal)
            and self.head_dim in (None, head_dim)
            and (self.rows is None or rows <= self.rows)
            and (self.keys is None or keys <= self.keys)
        )


# Written by `flashcore dispatch --save`, never by hand.
TABLE: tuple[Rule, ...] = (
    Rule((9, 0), None, None, 12298, None, (16, 13, 14, 12, 11, 10, 15, 8, 9, 7, 6, 5, 4, 3, 2, 1)),
    Rule((9, 0), None, None, None, None, (15, 14, 16, 12, 13, 11, 10, 8, 9, 7, 6, 4, 5, 2, 3, 1)),
)

BACKWARD: tuple[Rule, ...] = (
    Rule((9, 0), None, None, 32768, None, ("one_launch", "wgmma", "mma_sync", "recompute")),
    Rule((9, 0), None, None, None, None, ("wgmma", "mma_sync", "one_launch", "recompute")),
)


def ranking(
    capability: tuple[int, int] | None,
    causal: bool,
    head_dim: int,
    rows: int,
    keys: int,
    table: tuple[Rule, ...] | None = None,
) -> tuple[int | str, ...]:
    """The timed stages, the fastest first, for `rows` = B * H * S_q and `keys` = S_k.

    capability: of the GPU; a GPU that nobody recorded goes by the nearest that somebody did. None: host
    arrays, for which the newest counts, so that the simulator runs the kernel that a GPU would.
    """
    table = TABLE if table is None else table
    recorded = nearest(capability, table)
    rules = (rule for rule in table if rule.capability == recorded)
    return next(rule.stages for rule in rules if rule.fits(causal, head_dim, rows, keys))


def nearest(capability: tuple[int, int] | None, table: tuple[Rule, ...]) -> tuple[int, int]:
    """The recorded compute capability nearest to this one: of the same generation where there is one."""
    recorded = sorted({rule.capability for rule in table})
    if capability is None:
        return recorded[-1]
    major, minor = capability
    return min(recorded, key=lambda other: (abs(other[0] - major), abs(other[1] - minor)))
