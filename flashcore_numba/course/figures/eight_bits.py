"""e4m3 in pictures: the error of a number by its size, what an outlier does to its row, sums that stop."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.branches.fp8.cases import mean_of_one
from flashcore_numba.branches.fp8.mutants import MUTANTS
from flashcore_numba.branches.fp8.twin import e4m3, transformed
from flashcore_numba.core import oracle
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.course.figures.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    SKY,
    VERMILION,
    lettered,
    paper,
    png,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage
from flashcore_numba.stages.edited import edited

KEPT = 13  # bits of an addend below the highest bit of the largest one
STEP = 32  # products that one k-step of wgmma adds up
TILE_KEYS = 128
SEED, D, ROWS, KEYS = 22, 128, 128, 512  # of the model of outliers
OUTLIER, EDGE = 200.0, 2.5  # the latter of the picture
SIZES = (1.0, 3.0, 10.0, 30.0, 100.0)  # of outliers, in standard deviations of the others
SHARE, DRAWS = 1e-3, 7
MODEL_KEYS = tuple(2**n for n in range(7, 18))
KERNEL_KEYS = (256, 1024, 4096)


def spacing(x: float) -> float:
    """From x, a number of e4m3, to the next one towards 0."""
    below = E4M3.round(np.array(x)).view(np.uint8) - np.uint8(1)
    return float(x - np.float64(below.view(E4M3.dtype)))


def accumulated(total: np.ndarray, products: np.ndarray) -> np.ndarray:
    """total [...] and products [..., STEP] summed as Hopper sums products of e4m3; see the CPU executor.

    Every addend is cut off at 2^-KEPT of the highest bit of the largest one.
    """
    addends = np.concatenate([total[..., None], products], axis=-1)
    _, exponent = np.frexp(np.abs(addends).max(axis=-1))
    unit = np.exp2(exponent - 1.0 - KEPT)[..., None]
    return (np.trunc(addends / unit) * unit).sum(axis=-1)


def stuck_at() -> float:
    """The sum at which ones, STEP at a time, no longer add to it."""
    total, before = np.zeros(()), -np.ones(())
    while total != before:
        before, total = total, accumulated(total, np.ones(STEP))
    return float(total)


def sums(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The running sums of products [..., keys] after each tile: in one level, and in two, [..., tiles]."""
    steps = products.reshape(*products.shape[:-1], -1, TILE_KEYS // STEP, STEP)
    one = np.zeros(products.shape[:-1])
    two = np.zeros_like(one)
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for tile in range(steps.shape[-3]):
        apart = np.zeros_like(one)
        for step in range(steps.shape[-2]):
            one = accumulated(one, steps[..., tile, step, :])
            apart = accumulated(apart, steps[..., tile, step, :])
        two = (two.astype(np.float32) + apart.astype(np.float32)).astype(np.float64)
        found[0].append(one)
        found[1].append(two)
    return np.stack(found[0], axis=-1), np.stack(found[1], axis=-1)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The numbers of e4m3, and the relative error of rounding to them."""
    return Figure("What 3 bits of mantissa do", (_error(), _numbers()))


def _error() -> Frame:
    x = np.exp2(np.linspace(-14, 10, 4801))
    figure = paper(9.4, 4.1)
    axes = figure.add_axes((0.085, 0.15, 0.90, 0.72))
    figure.text(0.012, 0.935, "Relative error of rounding, by the size of a number", fontsize=10.5,
                fontweight="bold")  # fmt: skip
    with np.errstate(divide="ignore"):
        eight = 100 * np.abs(e4m3(x).astype(np.float64) - x) / x
        half = 100 * np.abs(FLOAT16.round(x).astype(np.float64) - x) / x
    axes.plot(x, np.maximum(half, 1e-4), color=SKY, lw=0.7, label=FLOAT16.name)
    axes.plot(x, np.maximum(eight, 1e-4), color=VERMILION, lw=0.7, label="e4m3")
    axes.axhline(100 * E4M3.unit_roundoff, color=INK, lw=0.8, ls="--")
    axes.text(2.0**-13.8, 100 * E4M3.unit_roundoff * 1.25, "2⁻⁴ = 6.25 %")
    for at, text in ((2.0**-6, " from 2⁻⁶ on 3 bits are there"), (448, "448, the largest ")):
        axes.axvline(at, color="#888888", lw=0.8, ls=":")
        axes.text(at, 60, text, ha="left" if at < 1 else "right", va="center", fontsize=8.5)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(1e-3, 200)
    axes.set_xlabel("the number")
    axes.set_yticks([1e-3, 1e-2, 1e-1, 1, 10, 100], ["0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"])
    figure.legend(*axes.get_legend_handles_labels(), loc="upper right", frameon=False, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    middle = eight[(x >= 2.0**-6) & (x <= 448)]
    caption = (
        f"From 2⁻⁶ to 448 the error of e4m3 is at most 6.25 %, {np.sqrt((middle**2).mean()):.1f} % in "
        "the root mean square, whatever the size. Smaller numbers lose their bits one by one, and "
        "below 2⁻¹⁰ nothing is left. Numbers beyond 448 become 448."
    )
    return Frame(png(figure), caption, caption)


def _numbers() -> Frame:
    every = np.arange(256, dtype=np.uint8).view(E4M3.dtype).astype(np.float64)
    every = np.unique(every[np.isfinite(every) & (every >= 0)])
    figure = paper(9.4, 2.9)
    figure.text(0.012, 0.92, "The numbers themselves", fontsize=10.5, fontweight="bold")
    for n, (end, name) in enumerate(((4.0, "up to 4"), (448.0, "up to 448"))):
        axes = figure.add_axes((0.085, 0.56 - 0.42 * n, 0.90, 0.20))
        shown = every[every <= end]
        axes.vlines(shown, 0, 1, color=BLUE, lw=0.9)
        axes.set_xlim(-0.01 * end, 1.01 * end)
        axes.set_ylim(0, 1)
        axes.set_yticks([0.5], [name])
        axes.set_xticks([0, 1, 2, 3, 4] if end == 4 else [0, 64, 128, 256, 448])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    caption = (
        f"A line is a number of e4m3; there are {len(every)} that are not negative. From each power of "
        f"2 to the next there are eight, so the steps double there: {spacing(2.0):g} below 2, "
        f"{spacing(448.0):g} below 448."
    )
    return Frame(png(figure), caption, caption)


@lettered
def draw_outliers(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A row with an outlier in 8 bits, and the error of attention, with and without the transform."""
    return Figure("Outliers, and a transform that spreads them", (_row(), _outputs()), 1)


def spread(rows: np.ndarray) -> np.ndarray:
    """The kernels' transform of rows [.., D], divided by sqrt(D): their lengths stay."""
    return transformed(rows.astype(np.float32)).astype(np.float64) / np.sqrt(rows.shape[-1])


def in_e4m3(x: np.ndarray, rows: int) -> np.ndarray:
    """x [S, D] in e4m3 and back, with a scale per so many rows that makes the largest number 448; float64."""
    scale = _largest(x, rows) / E4M3.largest
    return e4m3(x / scale).astype(np.float64) * scale


def in_int8(x: np.ndarray, rows: int) -> np.ndarray:
    """The same in whole numbers from -127 to 127."""
    scale = _largest(x, rows) / 127
    return np.rint(x / scale) * scale


def _largest(x: np.ndarray, rows: int) -> np.ndarray:
    found = np.abs(x.reshape(-1, rows * x.shape[1])).max(axis=1)
    return np.repeat(found, rows)[:, None]


FORMATS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {"int8": in_int8, "e4m3": in_e4m3}
WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"as they are": np.asarray, "transformed": spread}


def _row() -> Frame:
    row = np.random.default_rng(SEED).standard_normal((1, D))
    row[0, D // 3] = OUTLIER
    figure = paper(9.4, 4.8)
    told = []
    for n, (way, change) in enumerate(WAYS.items()):
        rows = change(row)
        largest, others = np.abs(rows).max(), np.abs(rows) < OUTLIER / 2
        axes = figure.add_axes((0.085, 0.58 - 0.48 * n, 0.90, 0.31))
        title = f"Numbers {way}: the largest is {largest:.3g}"
        figure.text(0.012, 0.945 - 0.48 * n, title, fontsize=10.5, fontweight="bold")
        axes.bar(np.arange(D), rows[0], width=0.95, color=GREY, label="the number")
        errors = []
        for (name, rounded), colour, width in zip(
            FORMATS.items(), (VERMILION, BLUE), (0.75, 0.35), strict=True
        ):
            error = rounded(rows, 1) - rows
            axes.bar(np.arange(D), error[0], width=width, color=colour, label=f"its error in {name}")
            share = np.linalg.norm(error[others]) / np.linalg.norm(rows[others])
            errors.append(f"{share:.1%} in {name}")
        told.append(f"{way} {' and '.join(errors)}")
        axes.set_xlim(-1, D)
        axes.set_ylim(-EDGE, EDGE)
        if n == 0:
            axes.text(D // 3 + 1, 0.8 * EDGE, f"{OUTLIER:g}", fontsize=8.5, va="center")
            figure.legend(*axes.get_legend_handles_labels(), loc="upper right", frameon=False, ncols=3)
        else:
            axes.set_xlabel("column")
        axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"A row of {D} numbers N(0, 1), of which one is {OUTLIER:g}, and the same row after the "
        "transform. Bars are cut at the edge. The relative error of all other numbers together: "
        f"{'; '.join(told)}. The steps of whole numbers follow the largest. e4m3 has an exponent for "
        "each number, and its small numbers keep their 3 bits."
    )
    return Frame(png(figure), caption, caption)


@functools.cache
def errors_of_outputs() -> dict[tuple[str, str], list[float]]:
    """|out - right| / |out| where only Q and K are rounded, by format and way, for each of SIZES: medians."""
    rng = np.random.default_rng(SEED)
    found: dict[tuple[str, str], list[float]] = {(name, way): [] for name in FORMATS for way in WAYS}
    for size in SIZES:
        drawn: dict[tuple[str, str], list[float]] = {key: [] for key in found}
        for _ in range(DRAWS):
            q, k = (
                rng.standard_normal((rows, D))
                + size * (rng.random((rows, D)) < SHARE) * rng.standard_normal((rows, D))
                for rows in (ROWS, KEYS)
            )
            v = rng.standard_normal((KEYS, D))
            right = _attended(q, k, v)
            for name, way in found:
                q8, k8 = FORMATS[name](WAYS[way](q), 1), FORMATS[name](WAYS[way](k), TILE_KEYS)
                error = _attended(q8, k8, v) - right
                drawn[name, way].append(float(np.linalg.norm(error) / np.linalg.norm(right)))
        for key, some in drawn.items():
            found[key].append(float(np.median(some)))
    return found


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.T / np.sqrt(D)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p @ v / p.sum(axis=1, keepdims=True)


def _outputs() -> Frame:
    figure = paper(9.4, 4.0)
    axes = figure.add_axes((0.085, 0.15, 0.90, 0.65))
    figure.text(0.012, 0.93, "Error of the outputs where only Q and K are rounded", fontsize=10.5,
                fontweight="bold")  # fmt: skip
    looks = ((ORANGE, "////"), (ORANGE, ""), (SKY, "////"), (SKY, ""))
    at, told = np.arange(len(SIZES)), []
    for n, ((key, errors), (colour, hatch)) in enumerate(
        zip(errors_of_outputs().items(), looks, strict=True)
    ):
        places = at + 0.21 * (n - 1.5)
        axes.bar(places, np.multiply(100, errors), width=0.19, fc=colour, ec=INK, lw=0.5, hatch=hatch,
                 label=", ".join(key))  # fmt: skip
        for x, error in zip(places, errors, strict=True):
            axes.text(x, 100 * error, f"{100 * error:.1f}", ha="center", va="bottom", fontsize=8)
        told.append(f"{', '.join(key)}: " + ", ".join(f"{error:.1%}" for error in errors))
    axes.set_xticks(at, [f"{size:g}" for size in SIZES])
    axes.set_xlabel("standard deviation of the outliers that 0.1 % of the numbers get, beside N(0, 1)")
    axes.set_ylabel("percent")
    figure.legend(*axes.get_legend_handles_labels(), loc="upper right", frameon=False, ncols=2,
                  bbox_to_anchor=(1, 0.99))  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"{ROWS} rows, {KEYS:,} keys, D = {D}, medians of {DRAWS} draws. A row of Q has a scale, and "
        f"{TILE_KEYS} rows of K share one, as in the kernels."
    )
    return Frame(png(figure), caption, f"{caption} By the size of outliers {SIZES}, {'; '.join(told)}.")


@lettered
def draw_levels(lesson: Any, stage: Stage, whose: str) -> Figure:
    """What sums lose: a running sum in one level and in two, and kernels on the CPU executor."""
    return Figure(f"Sums of e4m3 products, and {whose}", (_running(), _lost(stage, whose)), 1)


def products(keys: int) -> np.ndarray:
    """Weights between 16 and 32 times values around 1, all of e4m3, [8, keys]."""
    rng = np.random.default_rng(SEED)
    p, v = e4m3(rng.uniform(16, 32, (8, keys))), e4m3(1 + 0.1 * rng.standard_normal((8, keys)))
    return p.astype(np.float64) * v.astype(np.float64)


@functools.cache
def _sums() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = products(MODEL_KEYS[-1])
    right = x.cumsum(axis=-1)[:, TILE_KEYS - 1 :: TILE_KEYS]
    return (right, *sums(x))


def _running() -> Frame:
    right, one, two = (each[0] for each in _sums())
    keys = TILE_KEYS * np.arange(1, len(right) + 1)
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.085, 0.16, 0.87, 0.70))
    figure.text(
        0.012, 0.93, "One output's running sum of weight times value", fontsize=10.5, fontweight="bold"
    )
    axes.plot(keys, right / 1e6, color=GREY, lw=6, label="exact")
    axes.plot(keys, two / 1e6, color=BLUE, lw=1.4, label="two levels")
    axes.plot(keys, one / 1e6, color=VERMILION, lw=1.4, label="one level")
    axes.set_xlim(0, keys[-1])
    axes.set_ylim(0, None)
    axes.set_xticks(quarters := range(0, keys[-1] + 1, keys[-1] // 4), [f"{n:,}" for n in quarters])
    axes.set_xlabel("keys so far")
    axes.set_ylabel("millions")
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"{keys[-1]:,} keys with weights between 16 and 32 and values around 1. In one level the sum "
        f"ends at {one[-1] / right[-1]:.0%} of what it should be: the larger it is, the more of each "
        "product is cut off."
    )
    return Frame(png(figure), caption, caption)


@functools.cache
def _lost_by_one_level() -> tuple[float, ...]:
    (mutant,) = (each for each in MUTANTS if each.name == "one_level_of_sums")
    with edited("fp8/wgmma", *mutant.edits) as one_level:
        return lost_by(one_level)


def lost_by(stage: Stage) -> tuple[float, ...]:
    """The share of the outputs' sum that a kernel loses, by KERNEL_KEYS: V around 1, weights nearly equal."""
    found = []
    for keys in KERNEL_KEYS:
        x = mean_of_one(np.random.default_rng(SEED), keys, 64, FLOAT16)
        out = stage.run(x.problem(x.arrays), Simulator(races=False, ops=False))["out"]
        right, _ = oracle.attention(x.q, x.k, x.v, x.causal, 64**-0.5)
        found.append(float(1 - out.astype(np.float64).sum() / right.sum()))
    return tuple(found)


def _lost(stage: Stage, whose: str) -> Frame:
    right, one, two = _sums()
    at = [n // TILE_KEYS - 1 for n in MODEL_KEYS]
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.085, 0.16, 0.90, 0.70))
    figure.text(
        0.012, 0.93, "How much of a sum is lost, by the number of keys", fontsize=10.5, fontweight="bold"
    )
    told = []
    for model, kernel, colour, name, label in (
        (one, _lost_by_one_level(), VERMILION, "one level", "a kernel with one level"),
        (two, lost_by(stage), BLUE, "two levels", whose),
    ):
        share = (1 - model / right).mean(axis=0)[at]
        axes.plot(MODEL_KEYS, 100 * share, color=colour, lw=1.4, label=f"{name}, in NumPy")
        axes.plot(KERNEL_KEYS, [100 * each for each in kernel], "o", mfc="white", mec=colour, mew=1.6,
                  label=f"{label}, on the CPU executor")  # fmt: skip
        told.append(f"{name}: {share[0]:.2%} of {MODEL_KEYS[0]} keys, {share[-1]:.2%} of {MODEL_KEYS[-1]:,}")
        told.append(f"{label}: " + ", ".join(
            f"{lost:.2%} of {keys:,}" for keys, lost in zip(KERNEL_KEYS, kernel, strict=True)
        ))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(MODEL_KEYS, [f"{n:,}" for n in MODEL_KEYS])
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(-0.05, 100)
    axes.set_yticks([0, 0.5, 1, 10, 50], ["0", "0.5 %", "1 %", "10 %", "50 %"])
    axes.set_xlabel("keys")
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        "Lines: products as in the step before. Circles: the outputs of kernels, with V around 1 and "
        "nearly equal weights; P and V are rounded too. In two levels a tile's sum begins at 0, so what "
        "is lost does not grow."
    )
    return Frame(png(figure), caption, f"{caption} Lost: {'; '.join(told)}.")
