"""The statistics of times that were taken in rounds, and how far they can be trusted.

Replays of one turn follow each other within milliseconds and share the state of the GPU, so they are not
independent; rounds nearly are. What is said about uncertainty is therefore found by drawing rounds, never
single replays: a percentile bootstrap of the median, RESAMPLES times, always with the same seed, so that the
same times give the same interval. With R rounds no interval can reach beyond the smallest and the largest
round, which for R = 5 hold the true median in 94 of 100 cases, not 95.
"""

import math
from collections.abc import Sequence

import numpy as np

FIELDS = ("p50", "p90", "p99", "mean", "std", "min", "max")
RESAMPLES, SEED = 2000, 20260131
INSIDE = (2.5, 97.5)  # percentiles of a 95 % interval


def of_rounds(rounds: Sequence[Sequence[float]]) -> dict[str, object]:
    """`summary` of all times, and: `rounds_us`, the median of each round; `ci`, the 95 % interval {low, high}
    of their median; `outliers`, how many times lie more than 1.5 interquartile ranges outside the quartiles.

    rounds: the times of each round, in microseconds. Outliers are counted and kept. Raises ValueError as
    `summary` does.
    """
    every = [time for times in rounds for time in times]
    statistics = summary(every)
    medians = [float(np.median(times)) for times in rounds]
    low, high = np.percentile(every, (25, 75))
    reach = 1.5 * (high - low)
    return statistics | {
        "outliers": sum(not low - reach <= time <= high + reach for time in every),
        "ci": interval(medians),
        "rounds_us": medians,
    }


def interval(rounds_us: Sequence[float]) -> dict[str, float]:
    """The 95 % bootstrap interval {low, high} of the median of `rounds_us`."""
    return _percentiles(_medians(rounds_us, np.random.default_rng(SEED)))


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """The 95 % bootstrap interval {low, high} of median(over) / median(under); both are drawn anew."""
    rng = np.random.default_rng(SEED)
    return _percentiles(_medians(over, rng) / _medians(under, rng))


def _medians(rounds_us: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    drawn = rng.integers(len(rounds_us), size=(RESAMPLES, len(rounds_us)))
    return np.median(np.asarray(rounds_us)[drawn], axis=1)


def _percentiles(values: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(values, INSIDE)
    return {"low": float(low), "high": float(high)}


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
    p50, p90, p99 = np.percentile(ordered, (50, 90, 99))
    return {
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "mean": float(np.mean(ordered)),
        "std": float(np.std(ordered, ddof=1)) if len(ordered) > 1 else 0.0,
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
    }
