"""The README's ladder: a region between two markers and a picture, made from the newest record."""

from pathlib import Path
from typing import Any

from flashcore_numba.problem import ArgumentError
from flashcore_numba.stages import LADDER

from . import artifact, picture
from .tables import compiled, limits_line, percent, provenance, short_us, times

__all__ = ["BEGIN", "END", "PICTURE", "ReadmeError", "differences", "region", "update"]

BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
PICTURE = "ladder.png"
MISSION = "1x8x512x64"
NOT_RECORDED = "Not recorded yet."


class ReadmeError(ArgumentError):
    """A README that cannot be updated: the message names the file and what is missing."""


def update(readme: Path, folder: Path | None = None) -> list[Path]:
    """Rewrite the region of `readme` and draw the picture in `folder`; returns the files that changed.

    folder: where the artifacts are recorded; the package's own by default. Raises ReadmeError, ArtifactError.
    """
    folder = folder or artifact.recorded_dir()
    before, _, after = _split(readme)
    text = f"{before}{BEGIN}\n{region(folder)}\n{END}{after}"
    changed = []
    if readme.read_text() != text:
        readme.write_text(text)
        changed.append(readme)
    source, record, shape = _newest(folder)
    image = folder / PICTURE
    if source is None:
        if image.exists():
            image.unlink()
            changed.append(image)
    elif picture.artifact_of(image) != artifact.sha256(source):
        picture.draw(record, shape, image, source)
        changed.append(image)
    return changed


def differences(readme: Path, folder: Path | None = None) -> list[str]:
    """What `update` would change, one sentence each; empty when README and picture belong to the record."""
    folder = folder or artifact.recorded_dir()
    _, has, _ = _split(readme)
    needs = f"\n{region(folder)}\n"
    found = []
    if has != needs:
        pairs = zip(has.splitlines() + [""] * len(needs), needs.splitlines(), strict=False)
        line, needed = next(
            (pair for pair in pairs if pair[0] != pair[1]), ("more lines than the record gives", "")
        )
        found.append(f"{readme}: the ladder differs from the record: it says {line!r}, the record {needed!r}")
    source, _, _ = _newest(folder)
    image = folder / PICTURE
    if source is None:
        if image.exists():
            found.append(f"{image}: a picture without a recorded artifact")
    elif not image.exists():
        found.append(f"{image}: the picture is missing")
    elif picture.artifact_of(image) != artifact.sha256(source):
        found.append(f"{image}: the picture was not drawn from {source.name}")
    return found


def region(folder: Path) -> str:
    """The Markdown between the markers."""
    _, record, shape = _newest(folder)
    if record is None:
        return NOT_RECORDED
    image = f"![{picture.alt_text(record, shape)}](flashcore_numba/recorded/{PICTURE})"
    return f"{image}\n\n{_markdown(record, shape)}"


def _newest(folder: Path) -> tuple[Path | None, Any, Any]:
    """File, artifact and mission shape of the newest record that has it."""
    for path, record in artifact.recorded(folder):
        shape = artifact.find_shape(record, MISSION)
        if shape:
            return path, record, shape
    return None, None, None


def _markdown(record: dict[str, Any], shape: dict[str, Any]) -> str:
    ideas = {stage.number: stage for stage in LADDER}
    lines = [
        "| stage | the idea | GPU time, µs | caller, µs | times faster than 01 | of the limit | max error "
        "| registers, spilled B, local B |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for entry in (e for e in shape["entries"] if e["kind"] == "stage"):
        stage = ideas.get(entry["stage"])
        idea = (stage.idea if entry["default"] else stage.variants.get(entry["variant"], "")) if stage else ""
        lines.append(_row(entry["label"], idea, entry, ", ".join(compiled(entry["resources"]))))
    for entry in (e for e in shape["entries"] if e["kind"] == "peer"):
        lines.append(_row(f"*{entry['label']}*", "peer, on the same arrays", entry, "-"))
    versions = ", ".join(
        f"{name} {record['packages'][name]}" for name in ("torch", "numba-cuda") if name in record["packages"]
    )
    return "\n".join(lines) + (
        f"\n\nMeasured on {provenance(record)} (driver {record['gpu']['driver'] or 'unknown'}, {versions}): "
        f"B x H x S x D = {shape['shape']} in fp16, medians of {record['rounds']} interleaved rounds, warm "
        "L2. GPU time is one launch inside a CUDA graph, the caller's time event to event around one call "
        "from Python. The limit is what the unit that multiplies (CUDA cores for the Numba stages), the "
        f"exponentials and memory allow: {limits_line(shape)}."
    )


def _row(label: str, idea: str, entry: dict[str, Any], of_compiler: str) -> str:
    caller = (entry["caller_us"] or {}).get("p50")
    cells = [
        label,
        idea.replace("|", "\\|"),
        short_us(entry["gpu_us"]["p50"]),
        short_us(caller),
        times(entry["speed_up"]["stage_01"]).replace("x", ""),
        percent(entry["share_of_limit"]),
        f"{entry['error']['max']:.1e}" if entry["error"]["right"] else "wrong",
        of_compiler,
    ]
    return f"| {' | '.join(cells)} |"


def _split(readme: Path) -> tuple[str, str, str]:
    """(text before the first marker, between the markers, after the second)."""
    try:
        text = readme.read_text()
    except OSError as error:
        raise ReadmeError(f"{readme}: cannot be read ({error.strerror})") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ReadmeError(f"{readme}: needs the lines {BEGIN} and {END} once each, in this order")
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after
