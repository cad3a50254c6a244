"""The statistics of a list of times."""

import math
from collections.abc import Sequence

__all__ = ["FIELDS", "summary"]

FIELDS = ("p50", "p90", "p99", "mean", "std", "min", "max")


def summary(samples: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 (linear between neighbours), mean, sample standard deviation, min, max and count `n`.

    The unit is that of the samples. Raises ValueError for an empty list and for a time that is not a positive
    finite number: a clock that returns one is broken, and no statistic of it means anything.
    """
    ordered = sorted(float(x) for x in samples)
    if not ordered:
        raise ValueError("samples is empty; at least one time is needed")
    bad = [x for x in ordered if not (math.isfinite(x) and x > 0)]
    if bad:
        raise ValueError(f"samples holds {bad[0]!r}; every time must be positive and finite")
    n = len(ordered)
    mean = math.fsum(ordered) / n
    spread = math.fsum((x - mean) ** 2 for x in ordered)
    return {
        "p50": _percentile(ordered, 50),
        "p90": _percentile(ordered, 90),
        "p99": _percentile(ordered, 99),
        "mean": mean,
        "std": math.sqrt(spread / (n - 1)) if n > 1 else 0.0,
        "min": ordered[0],
        "max": ordered[-1],
        "n": n,
    }


def _percentile(ordered: list[float], percent: float) -> float:
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
