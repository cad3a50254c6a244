"""The picture of the ladder: GPU time of every stage, variant and peer on a logarithmic axis."""

from pathlib import Path
from typing import Any

from .artifact import sha256
from .tables import provenance, short_us, times

__all__ = ["alt_text", "artifact_of", "draw"]

# Okabe and Ito's palette: told apart with any colour vision, and in grey.
STAGE, VARIANT, PEER, LIMIT = "#0072B2", "#8EC8EC", "#E69F00", "#444444"
SOURCE = "Artifact-SHA256"  # key of the PNG's text that says which artifact it was drawn from


def draw(artifact: dict[str, Any], shape: dict[str, Any], path: Path, source: Path) -> None:
    """Draw one shape of an artifact into a PNG, 1600 pixels wide; `source` is the artifact's file.

    The same artifact gives the same bytes with the same matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    entries = shape["entries"]
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 11}):
        figure = Figure(
            figsize=(10, 1.5 + 0.36 * len(entries)), dpi=160, facecolor="white", layout="constrained"
        )
        axes = figure.subplots()
        values = [entry["gpu_us"]["p50"] for entry in entries]
        places = [k + 0.6 * (entry["kind"] == "peer") for k, entry in enumerate(entries)]
        axes.barh(places, values, height=0.72, color=[_colour(entry) for entry in entries])
        for place, entry, value in zip(places, entries, values, strict=True):
            speed = entry["speed_up"]["stage_01"]
            faster = (
                f"  ({times(speed)})" if speed and entry["kind"] == "stage" and entry["stage"] != 1 else ""
            )
            axes.text(value * 1.06, place, f"{short_us(value)} µs{faster}", va="center", color="#222222")
        axes.set_yticks(places, [entry["label"] for entry in entries])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(min([*values, *_limits(shape).values()]) / 1.6, max(values) * 4)
        for name, limit in _limits(shape).items():
            axes.axvline(limit, color=LIMIT, linewidth=1, linestyle="--" if name == "fp32" else ":", zorder=0)
            what = "CUDA-core limit" if name == "fp32" else "tensor-core limit"
            axes.annotate(
                f"{what} {short_us(limit)} µs",
                (limit, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=LIMIT,
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        causal = ", causal" if shape["causal"] else ""
        axes.set_xlabel(
            f"GPU time of one launch, median, µs (logarithmic), at {shape['shape']} fp16{causal}\n"
            "blue: stages, light blue: variants, orange: other libraries; in brackets: times faster than 01\n"
            f"{provenance(artifact)}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without "Software" the file does not name the matplotlib that drew it.
        figure.savefig(
            path,
            metadata={"Software": None, SOURCE: sha256(source), "Description": alt_text(artifact, shape)},
        )


def alt_text(artifact: dict[str, Any], shape: dict[str, Any]) -> str:
    """The picture in words, for readers who do not see it."""
    parts = [f"{entry['label']} {short_us(entry['gpu_us']['p50'])}" for entry in shape["entries"]]
    return (
        f"Bar chart of GPU time in microseconds on a logarithmic axis, {shape['shape']}, "
        f"{provenance(artifact)}: {', '.join(parts)}."
    )


def artifact_of(path: Path) -> str | None:
    """The SHA-256 of the artifact that a picture was drawn from; None for a missing or foreign picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return getattr(image, "text", {}).get(SOURCE)
    except (OSError, UnidentifiedImageError):
        return None


def _colour(entry: dict[str, Any]) -> str:
    if entry["kind"] == "peer":
        return PEER
    return STAGE if entry["default"] else VARIANT


def _limits(shape: dict[str, Any]) -> dict[str, float]:
    """The two arithmetic limits that are known."""
    limits = shape["limits_us"]
    return {unit: limits[unit] for unit in ("fp32", "tensor") if limits[unit]}
