"""What all pictures share: two themes, files that name their artifacts, and labels that do not overlap."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from cuda_reference.extras import explained
from cuda_reference.files import write
from flashcore_numba.records.amounts import provenance
from flashcore_numba.records.artifact import sha256

KINDS = {"fp32": "CUDA cores multiply", "tensor": "tensor cores multiply", "peer": "other libraries"}
WIDTH, DPI = 10.0, 160  # inches, and dots per inch where room for labels is sought
END_GAP = 14  # points between axes and the names of curves
# Of an SVG's metadata, by Dublin Core's names: the SHA-256 of the artifacts, and the alternative text.
SOURCES, DESCRIPTION = "Source", "Description"
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
Record = tuple[Path, dict[str, Any]]


class LackingError(Exception):
    """The artifacts do not hold what a picture needs; the message says what."""


@dataclass(frozen=True)
class Theme:
    """Colours, `#rrggbb`. `kinds`: of runs by who multiplies, and peers; `series`: of several GPUs.

    The hues are those of Okabe and Ito ("Color Universal Design", 2008), told apart with any colour vision;
    each theme makes them light or dark enough to stand out from its background by 3 to 1, as WCAG 2.1 asks of
    graphics.
    """

    suffix: str
    background: str
    ink: str
    muted: str
    grid: str
    fp32: str
    tensor: str
    peer: str
    series: tuple[str, ...]
    card: str  # behind what is not data
    ramp: tuple[str, ...]  # from far below to far above; the middle is neutral

    def of(self, entry: dict[str, Any]) -> str:
        """The colour of an artifact's entry."""
        return self.peer if entry["kind"] == "peer" else self.fp32 if entry["unit"] == "fp32" else self.tensor


LIGHT = Theme(
    suffix="",
    background="#ffffff",
    ink="#1f2328",
    muted="#59636e",
    grid="#d8dee4",
    fp32="#2f8fd0",
    tensor="#005c45",
    peer="#d55e00",
    series=("#2f8fd0", "#d55e00", "#005c45", "#aa3377"),
    card="#c6ddec",
    ramp=("#b04a00", "#f0a978", "#f6f8fa", "#6fbfa4", "#005c45"),
)
DARK = Theme(
    suffix="-dark",
    background="#0d1117",
    ink="#f0f6fc",
    muted="#9198a1",
    grid="#30363d",
    fp32="#56b4e9",
    tensor="#009e73",
    peer="#e69f00",
    series=("#56b4e9", "#e69f00", "#009e73", "#cc79a7"),
    card="#173a54",
    ramp=("#e69f00", "#7a5a1a", "#1a2129", "#0b6b52", "#3fd6ae"),
)
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Picture:
    """One picture, not drawn yet: `alt` says in words what it shows, `sources` are the artifacts' files."""

    name: str
    alt: str
    sources: tuple[Path, ...]
    paint: Callable[[Theme], Any]

    def files(self, folder: Path) -> list[Path]:
        return [folder / f"{self.name}{theme.suffix}.svg" for theme in THEMES]

    @explained()
    def draw(self, folder: Path) -> list[Path]:
        """Write NAME.svg and NAME-dark.svg; the same artifacts and library versions give the same bytes.

        Text becomes outlines: the pictures look the same whatever fonts their reader has. Raises
        MissingPackageError where the extra for pictures is not installed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for theme, path in zip(THEMES, self.files(folder), strict=True):
            save(path, self.paint, theme, {SOURCES: self.mark, DESCRIPTION: self.alt})
        return self.files(folder)

    @property
    def mark(self) -> str:
        return " ".join(sha256(path) for path in self.sources)

    def stale(self, folder: Path) -> list[str]:
        """A sentence for each file that is missing or shows other numbers than the artifacts give."""
        found = []
        for path in self.files(folder):
            if not path.exists():
                found.append(f"{path}: the picture is missing")
            elif (has := written(path)).get(SOURCES) != self.mark:
                names = ", ".join(source.name for source in self.sources)
                found.append(f"{path}: the picture was not drawn from {names}")
            elif has.get(DESCRIPTION) != self.alt:
                found.append(f"{path}: the picture shows {has.get(DESCRIPTION)!r}, now {self.alt!r}")
        return found


def written(path: Path) -> dict[str, str]:
    """`SOURCES` and `DESCRIPTION` as the metadata of an SVG say; nothing for a missing or foreign file."""
    try:
        picture = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return {}
    found = {key: picture.find(f".//{DUBLIN_CORE}{key.lower()}") for key in (SOURCES, DESCRIPTION)}
    return {key: element.text or "" for key, element in found.items() if element is not None}


def save(path: Path, paint: Callable[[Theme], Any], theme: Theme, text: Mapping[str, str]) -> None:
    """Write a figure as SVG with `text` among its metadata, without anything that differs from run to run."""
    drawn = io.BytesIO()
    with _settings(theme):
        paint(theme).savefig(drawn, format="svg", metadata={**text, "Date": None, "Creator": None})
    write(path, drawn.getvalue())


@contextmanager
def _settings(theme: Theme) -> Iterator[None]:
    import matplotlib

    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.muted,
        "axes.facecolor": theme.background,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": theme.background,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "svg.hashsalt": "flashcore",  # else the names of clips differ from run to run
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(height: float) -> Any:
    """An empty figure, `height` in inches; its parts are laid out when it is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")).figure


def caption(
    figure: Any,
    what: str,
    how: str,
    records: Sequence[dict[str, Any]],
    theme: Theme,
    colours: Sequence[str] = (),
) -> None:
    """What is shown; below it, smaller, what the marks mean; at the foot GPU, date and commit of each
    artifact, with the colour that stands for it where there are several.
    """
    height, line = figure.get_figheight(), 0.19
    figure.text(0.01, 1 - 0.1 / height, what, va="top", fontsize=14, fontweight="bold")
    figure.text(0.01, 1 - 0.42 / height, how, va="top", fontsize=10, color=theme.muted, linespacing=1.35)
    foot = [f"Measured on {provenance(record)}" for record in records]
    foot = foot if colours else list(dict.fromkeys(foot))
    for k, text in enumerate(foot):
        place = (0.1 + (len(foot) - 1 - k) * line) / height
        left = 0.01
        if colours:
            figure.text(left, place, "\u25a0", va="bottom", fontsize=11, color=colours[k])
            left = 0.028
        figure.text(left, place, text, va="bottom", fontsize=9, color=theme.muted)
    above, below = 0.52 + 0.2 * (how.count("\n") + 1), 0.15 + line * len(foot)
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - (above + below) / height))


def legend(axes: Any, entries: Sequence[dict[str, Any]], theme: Theme, place: str) -> None:
    """What the colours of these entries mean, in a corner of the axes."""
    from matplotlib.lines import Line2D

    kinds = {theme.of(entry): entry for entry in entries}
    words = {theme.fp32: KINDS["fp32"], theme.tensor: KINDS["tensor"], theme.peer: KINDS["peer"]}
    handles = [
        Line2D([], [], color=colour, marker="o", ms=8, linestyle="none", label=text)
        for colour, text in words.items()
        if colour in kinds
    ]
    axes.legend(
        handles=handles, loc=place, fontsize=11, frameon=True, facecolor=theme.background,
        edgecolor=theme.grid, labelcolor=theme.ink, handletextpad=0.3,
    )  # fmt: skip


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def log_axis(axis: Any, unit: Callable[[float], str] = lambda value: f"{value:g}") -> None:
    """Label a logarithmic axis with plain numbers at the powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axis.set_minor_formatter(NullFormatter())


def mask(shape: dict[str, Any]) -> str:
    """`1x8x512x64` or `1x8x512x64, causal`."""
    return f"{shape['shape']}{', causal' if shape['causal'] else ''}"


def short_name(entry: dict[str, Any]) -> str:
    """`05` for a stage, the label of a peer."""
    return f"{entry['stage']:02d}" if entry["kind"] == "stage" else entry["label"]


@dataclass(frozen=True)
class Label:
    """A text that belongs to a point, in the units of the axes."""

    x: float
    y: float
    text: str
    colour: str
    size: float = 9.5


def name_points(axes: Any, labels: Sequence[Label], theme: Theme, gap: float = 5.0) -> None:
    """Write each label near its point so that no label covers another or a point, with a line where it had to
    move away. Call it last: it fixes the layout. `gap`: points (1/72 inch) between a mark and its label.
    """
    figure = axes.figure
    settle(figure)
    renderer = figure.canvas.get_renderer()
    pixels = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    centres = [tuple(axes.transData.transform((label.x, label.y))) for label in labels]
    radius = gap * pixels
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in centres]
    for label, (x, y) in sorted(zip(labels, centres, strict=True), key=lambda pair: (pair[1], pair[0].text)):
        text = axes.text(0, 0, label.text, fontsize=label.size, transform=None)
        box = text.get_window_extent(renderer)
        text.remove()
        width, height = box.width + 2 * pixels, box.height
        places = list(_around(x, y, width, height, radius))
        lines = [_line((x, y), place, 2 * radius, pixels) for place in places]
        at = min(
            range(len(places)),
            key=lambda k: (
                _overlap(places[k], taken)
                + _outside(places[k], frame)
                + sum(_overlap(part, taken) for part in lines[k]),
                k,
            ),
        )
        x0, y0, x1, y1 = places[at]
        taken += [places[at], *lines[at]]
        middle = (x0 + x1) / 2, (y0 + y1) / 2
        nearest = _nearest((x, y), places[at])
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=((middle[0] - x) / pixels, (middle[1] - y) / pixels),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=label.size,
            color=theme.ink,
            annotation_clip=False,
            bbox={"facecolor": theme.background, "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
            arrowprops=None
            if not lines[at]
            else {
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 2,
                "relpos": ((nearest[0] - x0) / width, (nearest[1] - y0) / height),
            },
        )


def _nearest(point: tuple[float, float], box: tuple[float, ...]) -> tuple[float, float]:
    """The place of a box that is nearest to a point."""
    (x, y), (x0, y0, x1, y1) = point, box
    return min(max(x, x0), x1), min(max(y, y0), y1)


def _line(
    point: tuple[float, float], box: tuple[float, ...], near: float, size: float
) -> list[tuple[float, float, float, float]]:
    """Small boxes along the line from a point to its label; none where the label is near enough without."""
    x, y = point
    end = _nearest(point, box)
    length = math.dist(point, end)
    if length < near:
        return []
    steps = max(2, round(length / (3 * size)))
    parts = [near / 2 + (length - near / 2) * k / steps for k in range(1, steps)]
    centres = [(x + (end[0] - x) * part / length, y + (end[1] - y) * part / length) for part in parts]
    return [(a - size, b - size, a + size, b + size) for a, b in centres]


def _around(
    x: float, y: float, width: float, height: float, radius: float
) -> Iterator[tuple[float, float, float, float]]:
    """Boxes for a label of a point at (x, y), the best first: beside, above and below, then farther away."""
    for ring in (1.0, 1.6, 2.5, 3.5, 5.0, 7.0, 9.0, 12.0):
        for angle in (0, 180, 90, 270, 30, 330, 150, 210, 60, 300, 120, 240):
            along, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            left = x + ring * radius * along + (0 if along > 0.1 else -width if along < -0.1 else -width / 2)
            low = y + ring * radius * up + (0 if up > 0.1 else -height if up < -0.1 else -height / 2)
            yield left, low, left + width, low + height


def _overlap(box: tuple[float, ...], others: Sequence[tuple[float, ...]]) -> float:
    """The area, in square pixels, that `box` shares with the others."""
    x0, y0, x1, y1 = box
    return sum(
        max(0.0, min(x1, b[2]) - max(x0, b[0])) * max(0.0, min(y1, b[3]) - max(y0, b[1])) for b in others
    )


def _outside(box: tuple[float, ...], frame: Any) -> float:
    """The area of `box` outside of the axes."""
    x0, y0, x1, y1 = box
    inside = max(0.0, min(x1, frame.x1) - max(x0, frame.x0)) * max(0.0, min(y1, frame.y1) - max(y0, frame.y0))
    return (x1 - x0) * (y1 - y0) - inside


def name_ends(ends: Sequence[tuple[Any, Sequence[Label]]], theme: Theme) -> None:
    """For each of the axes: write each label right of them, at the height of its curve's end or as near as
    the others allow. It makes room for the labels, and fixes the layout.
    """
    for axes, labels in ends:
        axes.annotate(
            max((label.text for label in labels), key=len, default=""),
            (1, 0.5),
            xycoords="axes fraction",
            xytext=(END_GAP, 0),
            textcoords="offset points",
            fontsize=9.5,
            alpha=0,
        )
    for axes, labels in ends:
        settle(axes.figure)
        pixels = axes.figure.dpi / 72
        to_axes = axes.transAxes.inverted().transform
        heights = [float(axes.transData.transform((label.x, label.y))[1]) for label in labels]
        edge = float(axes.transAxes.transform((1, 0))[0]) + END_GAP * pixels
        for label, place in zip(labels, spread(heights, 11.5 * pixels), strict=True):
            axes.annotate(
                label.text,
                (label.x, label.y),
                xytext=to_axes((edge, place)),
                textcoords="axes fraction",
                va="center",
                fontsize=label.size,
                color=theme.ink,
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": label.colour,
                    "linewidth": 0.7,
                    "shrinkA": 0,
                    "shrinkB": 3,
                    "relpos": (0, 0.5),
                },
            )


def settle(figure: Any) -> None:
    """Lay the figure out, once and for all."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Places moved as little as they must be so that neighbours are `distance` apart; the order stays.

    >>> spread([0.0, 1.0, 1.2, 5.0], 1.0)
    [-0.2..., 0.7..., 1.7..., 5.0]
    """
    order = sorted(range(len(places)), key=lambda k: places[k])
    groups: list[list[float]] = []  # [sum of (place - rank in the group), count]; its mean is where it starts
    for k in order:
        groups.append([places[k], 1.0])
        while (
            len(groups) > 1
            and groups[-2][0] / groups[-2][1] + groups[-2][1] * distance > groups[-1][0] / groups[-1][1]
        ):
            total, count = groups.pop()
            groups[-1][0] += total - count * groups[-1][1] * distance
            groups[-1][1] += count
    moved = [total / count + k * distance for total, count in groups for k in range(int(count))]
    found = [0.0] * len(places)
    for k, place in zip(order, moved, strict=True):
        found[k] = place
    return found
