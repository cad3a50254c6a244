"""The paper that every figure is drawn on: size, colours, lettering, and the PNG at the end."""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_reference.extras import explained

# Okabe and Ito's palette: told apart with any colour vision, and in grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
CYCLE = (SKY, ORANGE, GREEN, YELLOW, PURPLE, VERMILION, BLUE, "#999999")
INK, GREY = "#222222", "#E4E4E4"
DPI = 110
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.5,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "hatch.linewidth": 0.6,
}


def lettered(draw: Callable) -> Callable:
    """Run `draw` with the lettering of all figures; the caller's matplotlib settings stay as they are."""

    @functools.wraps(draw)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with explained():
            import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def paper(width: float, height: float) -> Any:
    """An empty white figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, facecolor="white")


def png(figure: Any) -> bytes:
    """The figure as a PNG with a palette: a fifth of the size, and the colours are few anyway."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    out = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(out, "PNG", optimize=True, dpi=(DPI, DPI))
    return out.getvalue()


def plain_log(axis: Any) -> None:
    """Write the powers of ten of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def short(text: str, length: int = 64) -> str:
    """A source line that fits into a heading."""
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."


def several(number: int, word: str) -> str:
    """`1 sector`, `1,024 sectors`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
