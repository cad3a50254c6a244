"""How fast the stages so far compute, over how many bytes they move: below which roof, and how far below."""

from functools import lru_cache
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.course.evidence import MISSION, Evidence
from flashcore_numba.course.figures.canvas import (
    BLACK,
    BLUE,
    INK,
    ORANGE,
    SKY,
    lettered,
    paper,
    plain_log,
    png,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.records.amounts import provenance
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.count import SECTOR
from flashcore_numba.stages import LADDER, Stage

KEYS = (64, 128)  # the two numbers of keys that traffic is counted at
ROWS, HEAD_DIM = 64, 64
MOST_NAMED = 6  # with more stages than these a label is a number alone


@lettered
def draw(lesson: Any, stage: Stage, whose: str, evidence: Evidence | None = None) -> Figure:
    """Every stage up to the lesson's, the kernel handed in highlighted, and the other libraries.

    FLOPs are the problem's; bytes are the sectors that a kernel's requests touch and the boxes that TMA
    copies, counted on the simulator; times are the recorded ones at the mission shape, or those of
    `evidence`. Raises SimulationError for a kernel that the simulator finds wrong.
    """
    evidence = evidence or Evidence()
    record, shape = evidence.recorded(MISSION)
    flops, least = evidence.flops(MISSION), evidence.min_bytes(MISSION)
    number = max(1, lesson.number)
    points = []
    for each in LADDER[:number]:
        mine = each.number == lesson.number
        kernel = stage if mine else each
        name = f"stage {each.number:02d}"
        if mine and whose != name:  # its bytes are counted here, its time is not measured
            name = f"{whose}, at {name}'s time"
        points.append((name, flops / bytes_moved(kernel), flops / evidence.us(each.label) / 1e6, mine))
    peers = [(e["label"], flops / e["gpu_us"]["p50"] / 1e6) for e in shape["entries"] if e["kind"] == "peer"]
    roofs = {
        "CUDA cores": flops / evidence.limit("fp32", MISSION) / 1e6,
        "tensor cores": flops / evidence.limit("tensor", MISSION) / 1e6,
    }
    bandwidth = record["gpu"]["bandwidth_gbs"] / 1e3  # TB/s
    figure = paper(8.6, 5.6)
    axes = figure.add_axes((0.085, 0.21, 0.895, 0.765))
    _roofs(axes, roofs, bandwidth, flops / least, min(x for _, x, _, _ in points) / 2)
    for name, x, y, mine in points:
        style = {"markersize": 13, "color": BLUE} if mine else {"markersize": 9, "color": SKY}
        axes.plot(x, y, "o", markeredgecolor=INK, zorder=4, **style)
        crowded = any(1 < other / x < 2 and 0.6 < level / y < 1.7 for _, other, level, _ in points)
        weight = "bold" if mine else "normal"
        if number <= MOST_NAMED:
            _label(
                axes, name.replace(", ", ",\n"), x, y, left=crowded, fontsize=10, fontweight=weight, zorder=5
            )
        elif mine:
            axes.annotate(name, (x, y), (0, -16), ha="center", fontsize=10, fontweight=weight, zorder=5,
                          textcoords="offset points")  # fmt: skip
        else:
            _label(axes, name.removeprefix("stage "), x, y, left=crowded, fontsize=8.5, zorder=5)
    for _, y in peers:
        axes.plot(flops / least, y, "D", ms=7, mfc="white", mec=ORANGE, mew=1.8)
    if peers:
        best = max(peers, key=lambda peer: peer[1])
        _label(axes, f"{best[0]}, the\nfastest library", flops / least, best[1] / 1.5, fontsize=9)
    axes.set_xlabel("FLOPs for each byte moved (logarithmic)")
    axes.set_ylabel("TFLOP/s (logarithmic)", labelpad=2)
    told = (
        f"circles: stages; bytes are all 32-byte sectors touched, most of them served by the caches\n"
        f"diamonds: libraries, set where every input is read once    times: {MISSION}, {provenance(record)}"
    )
    figure.text(0.012, 0.02, told, fontsize=9, linespacing=1.4)
    listed = "; ".join(f"{name}: {x:.3g} FLOPs per byte, {y:.3g} TFLOP/s" for name, x, y, _ in points)
    libraries = ", ".join(f"{name} {y:.3g}" for name, y in peers)
    name, x, y, mine = points[-1]
    roof = min(roofs["CUDA cores"], x * bandwidth)
    limit = "the CUDA cores" if roof == roofs["CUDA cores"] else "device memory"
    timed = f" The time is the recorded one of {LADDER[number - 1].label}." if mine else ""
    caption = (
        f"{name[0].upper()}{name[1:]}: {x:.3g} FLOPs for each byte moved, {y:.3g} TFLOP/s. At that "
        f"intensity {limit} would allow {roof:.3g}. Read once, the inputs would give {flops / least:.3g} "
        f"FLOPs per byte.{timed}"
    )
    allowed = ", ".join(f"the {unit} {value:.3g} TFLOP/s" for unit, value in roofs.items())
    alt = (
        f"Roofline of the {record['gpu']['name']} at {MISSION}. Device memory gives {bandwidth:.2f} TB/s, "
        f"{allowed}. {listed}. Other libraries in TFLOP/s: {libraries}. "
        f"The problem itself: {flops / least:.3g} FLOPs per byte."
    )
    return Figure(f"Roofline: {whose}", (Frame(png(figure), caption, alt),))


def _roofs(axes: Any, roofs: dict[str, float], bandwidth: float, ideal: float, left: float) -> None:
    top = max(roofs.values())
    right = 14 * top / bandwidth
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(0.1, top * 2)
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    x = np.array([left, top / bandwidth])
    axes.plot(x, x * bandwidth, color=INK, linewidth=1.6)
    at, text = left * 3, f"device memory, {bandwidth:.2f} TB/s"
    axes.text(at, at * bandwidth * 1.25, text, rotation=_slope(axes), rotation_mode="anchor", fontsize=9)
    for (name, y), style in zip(roofs.items(), ("--", "-"), strict=True):
        axes.plot([y / bandwidth, right], [y, y], color=INK, linewidth=1.6, linestyle=style)
        axes.text(right / 1.1, y * 1.1, f"{name}, {y:,.0f} TFLOP/s", ha="right", fontsize=9)
    axes.axvline(ideal, color=BLACK, linewidth=1, linestyle=":")
    axes.text(ideal * 0.93, 0.115, "every input read once", rotation=90, ha="right", va="bottom", fontsize=9)
    axes.grid(which="major", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(axes: Any, text: str, x: float, y: float, left: bool = False, **style: Any) -> None:
    side = {"xytext": (-11, 0), "ha": "right"} if left else {"xytext": (11, 0), "ha": "left"}
    axes.annotate(text, (x, y), textcoords="offset points", va="center", **side, **style)


def _slope(axes: Any) -> float:
    """The angle, in degrees, at which y = x runs across the logarithmic axes."""
    (left, right), (low, high) = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    box, (width, height) = axes.get_position(), axes.figure.get_size_inches()
    rise, run = box.height * height / (high - low), box.width * width / (right - left)
    return float(np.degrees(np.arctan2(rise, run)))


@lru_cache(maxsize=16)
def bytes_moved(stage: Stage, heads: int = 8, seq: int = 512) -> float:
    """Bytes of the sectors that a launch touches without a mask, and of the boxes that TMA copies.

    From two counts of one head with 64 rows: every query row meets every key, so the traffic grows by the
    same amount with each further key and with each further row; `seq` must be a multiple of 64. A kernel in
    CUDA C, whose blocks may have more rows, is counted on a whole head. Raises SimulationError for a kernel
    with problems.
    """
    if stage.language == "CUDA C":
        return heads * _counted(stage, seq, seq)
    small, large = (_counted(stage, ROWS, keys) for keys in KEYS)
    a_key = (large - small) / (KEYS[1] - KEYS[0])
    return heads * seq / ROWS * (small + a_key * (seq - KEYS[0]))


def _counted(stage: Stage, rows: int, keys: int) -> int:
    rng = np.random.default_rng(0)
    shapes = ((1, 1, length, HEAD_DIM) for length in (rows, keys, keys))
    q, k, v = (FLOAT16.round(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)
    executor = Simulator(races=False, ops=stage.language == "CUDA C")  # without it that one counts nothing
    stage.run(Problem(q, k, v), executor, optional=False)
    executor.check()
    totals = [launch.totals() for launch in executor.launches]
    sectors = sum(t[f"global_{op}_sectors"] for t in totals for op in ("load", "store", "atomic"))
    return SECTOR * sectors + sum(t.get(f"tma_{op}_bytes", 0) for t in totals for op in ("load", "store"))
