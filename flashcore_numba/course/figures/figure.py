"""A picture of one or more steps: shown in a notebook, moved through with the keyboard, put into words."""

import base64
import binascii
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_reference.files import write
from flashcore_numba.core.errors import ArgumentError

MAX_FRAMES = 12
CARD = (
    "background:#fff;color:#222;color-scheme:light;font-family:sans-serif;font-size:14px;line-height:1.4;"
    "max-width:1000px;margin:4px;padding:12px;border:1px solid #bbb;border-radius:6px"
)
# Without a script a page shows the first frame and nothing that does not work: the script adds the rest.
SCRIPT = """
(() => {
  for (const root of document.querySelectorAll("[data-flashcore-figure]:not([data-ready])")) {
    const rest = root.querySelector('script[type="application/json"]');
    if (!rest) continue;
    root.setAttribute("data-ready", "");
    const image = root.querySelector("img"), caption = root.querySelector("[data-caption]");
    const title = root.querySelector("[data-title]").textContent;
    const frames = [{src: image.src, alt: image.alt, caption: caption.textContent},
                    ...JSON.parse(rest.textContent)];
    let at = 0;
    const make = (text, label) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.style.cssText = "font:inherit;color:#222;background:#eee;border:1px solid #777;" +
        "border-radius:4px;padding:2px 12px;margin-right:8px;cursor:pointer";
      return button;
    };
    const previous = make("\\u25c0 previous", "previous step"), next = make("next \\u25b6", "next step");
    const show = (to) => {
      at = Math.max(0, Math.min(frames.length - 1, to));
      image.src = frames[at].src;
      image.alt = frames[at].alt;
      caption.textContent = `step ${at + 1} of ${frames.length}: ${frames[at].caption}`;
      for (const [button, off] of [[previous, at === 0], [next, at === frames.length - 1]]) {
        button.setAttribute("aria-disabled", off);
        button.style.opacity = off ? "0.45" : "1";
      }
    };
    previous.addEventListener("click", () => show(at - 1));
    next.addEventListener("click", () => show(at + 1));
    const bar = document.createElement("div");
    bar.style.margin = "8px 0";
    const help = document.createElement("span");
    help.textContent = "or the keys \\u2190 \\u2192 Home End";
    help.style.color = "#555";
    bar.append(previous, next, help);
    image.before(bar);
    caption.setAttribute("aria-live", "polite");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-roledescription", "stepped figure");
    root.setAttribute("aria-label", `${title}, ${frames.length} steps: left and right arrow keys, Home, End`);
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    root.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: frames.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      show(to);
    });
    root.addEventListener("focusin", (event) => { event.target.style.outline = "3px solid #0072b2"; });
    root.addEventListener("focusout", (event) => { event.target.style.outline = ""; });
    show(0);
  }
})();
"""


@dataclass(frozen=True)
class Frame:
    """One step of a figure: a PNG, one or two sentences to read beside it, and the picture in words."""

    png: bytes
    caption: str
    alt: str


@dataclass(frozen=True)
class Figure:
    """A title and 1 to 12 frames; `telling` is the index of the frame to show where only one can be.

    A notebook shows it as HTML, or in words where it shows no HTML. With several frames the left and right
    arrow keys, Home and End, or two buttons move through them, without a kernel; where scripts do not run the
    first frame stands alone.
    Raises ArgumentError for another number of frames and for a `telling` that names none of them.
    """

    title: str
    frames: tuple[Frame, ...]
    telling: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.frames) <= MAX_FRAMES:
            raise ArgumentError(f"frames: {len(self.frames)} of them; a figure has 1 to {MAX_FRAMES}")
        if not 0 <= self.telling < len(self.frames):
            raise ArgumentError(f"telling: {self.telling!r} is no frame of 0 to {len(self.frames) - 1}")

    @property
    def alt(self) -> str:
        """The title and the most telling frame in words."""
        return f"{self.title}. {self.frames[self.telling].alt}"

    def __str__(self) -> str:
        """The figure in words: the title, then each frame."""
        steps = [f"  {k}. {frame.alt}" for k, frame in enumerate(self.frames, 1)]
        return "\n".join([self.title, *steps]) if len(steps) > 1 else self.alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        # No image/png beside them: a stored notebook would hold that frame twice.
        return {"text/html": self.html(), "text/plain": str(self)}

    def html(self) -> str:
        """The figure as an HTML fragment that needs nothing else and may be in a page several times."""
        first, *rest = self.frames
        parts = [
            f'<div data-flashcore-figure style="{CARD}">',
            f'<div data-title style="font-weight:bold">{html.escape(self.title)}</div>',
            f'<img src="{_data_uri(first.png)}" alt="{html.escape(first.alt)}" '
            'style="display:block;max-width:100%;height:auto">',
            f'<p data-caption style="margin:6px 0 0">{html.escape(first.caption)}</p>',
        ]
        if rest:
            frames = [{"src": _data_uri(f.png), "alt": f.alt, "caption": f.caption} for f in rest]
            data = json.dumps(frames, ensure_ascii=False).replace("<", "\\u003c")
            parts += [f'<script type="application/json">{data}</script>', f"<script>{SCRIPT}</script>"]
        return "".join([*parts, "</div>"])

    def save(self, path: str | Path) -> Path:
        """Write a page (.html) with all frames or a picture (.png) of the most telling one; gives the path.

        Raises ArgumentError for another suffix, and OSError where the file cannot be written.
        """
        path = Path(path)
        if path.suffix == ".png":
            write(path, self.frames[self.telling].png)
        elif path.suffix == ".html":
            head = f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(self.title)}'
            write(path, f"{head}</title>\n{self.html()}\n</html>\n")
        else:
            raise ArgumentError(
                f"path: {str(path)!r} ends in {path.suffix!r}; a figure is saved as .html or .png"
            )
        return path

    def as_dict(self) -> dict[str, Any]:
        """The figure as JSON data; `from_dict` turns it back."""
        frames = [{"png": _base64(f.png), "caption": f.caption, "alt": f.alt} for f in self.frames]
        return {"title": self.title, "telling": self.telling, "frames": frames}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Figure":
        """The figure that `as_dict` described. Raises ArgumentError for anything else."""
        try:
            frames = tuple(
                Frame(base64.b64decode(f["png"], validate=True), str(f["caption"]), str(f["alt"]))
                for f in data["frames"]
            )
            return cls(str(data["title"]), frames, int(data["telling"]))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ArgumentError(f"data: not what Figure.as_dict gives ({error!r})") from None


def _base64(png: bytes) -> str:
    return base64.b64encode(png).decode()


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{_base64(png)}"
