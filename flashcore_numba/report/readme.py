"""The README's ladder, and pictures and tables in README and docs, made from the records; the picture of the
house, made from the source beside the README.

The ladder stands between two markers; so does each further picture, `<!-- picture:NAME -->` and
`<!-- picture:end -->`, and each table, `<!-- table:NAME -->` and `<!-- table:end -->`, in the README and in
the `PAGES` beside it.
"""

import html
import re
from pathlib import Path
from typing import Any

from cuda_reference.files import write
from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import compiled, percent, provenance, short_us, times
from flashcore_numba.report import limit_tables, pictures, trust_tables
from flashcore_numba.report.pictures import house
from flashcore_numba.report.pictures.records import MISSION
from flashcore_numba.report.pictures.rooms import Room, alt, rooms, table
from flashcore_numba.report.tables import limits_line
from flashcore_numba.stages import LADDER

BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
PLACE = re.compile(
    r"(<!-- (picture|table):(?!end )(\S+) -->\n)(?:(?!<!-- \2:).)*?(<!-- \2:end -->)", re.DOTALL
)
MARKER = re.compile(r"<!-- (?:picture|table):\S+ -->")
IMAGES = "flashcore_numba/records/data"  # from the root of the repository
HOUSE = "docs"
PAGES = ("docs/architecture.md", "docs/benchmarking.md", "docs/trust.md", "docs/edits.md")
NOT_RECORDED = "Not recorded yet."


class ReadmeError(ArgumentError):
    """A page that cannot be updated: the message names the file and what is missing."""


def update(readme: Path, folder: Path | None = None) -> list[Path]:
    """Rewrite the region of `readme` and the places of pictures, and draw the pictures in `folder`; returns
    the files that changed.

    folder: where the artifacts are recorded; the package's own by default. Raises ReadmeError, ArtifactError.
    """
    folder = folder or artifact.recorded_dir()
    changed = []
    drawable, _ = pictures.drawable(artifact.recorded(folder))
    built = rooms(readme.parent)
    for page, text in _pages(readme, folder, drawable, built).items():
        if page.read_text() != text:
            write(page, text)
            changed.append(page)
    for picture in drawable:
        if picture.stale(folder):
            changed += picture.draw(folder)
    for path in pictures.orphans(folder, drawable):
        path.unlink()
        changed.append(path)
    if house.stale(built, readme.parent / HOUSE):
        changed += house.draw(built, readme.parent / HOUSE)
    return changed


def differences(readme: Path, folder: Path | None = None) -> list[str]:
    """What `update` would change, one sentence each; empty when pages and pictures belong to the record."""
    folder = folder or artifact.recorded_dir()
    drawable, _ = pictures.drawable(artifact.recorded(folder))
    built = rooms(readme.parent)
    found = []
    for page, text in _pages(readme, folder, drawable, built).items():
        has, needs = page.read_text().splitlines(), text.splitlines()
        if has != needs:
            n = next((n for n, (a, b) in enumerate(zip(has, needs, strict=False)) if a != b), None)
            says = f"it says {has[n]!r}, the record {needs[n]!r}" if n is not None else "it has other lines"
            found.append(f"{page}: differs from the record: {says}")
    for picture in drawable:
        found += picture.stale(folder)
    for path in pictures.orphans(folder, drawable):
        found.append(f"{path}: a picture without a recorded artifact")
    return found + house.stale(built, readme.parent / HOUSE)


def region(folder: Path, image: str) -> str:
    """The Markdown between the ladder's markers; `image`: that of its picture."""
    _, record, shape = _newest(folder)
    return NOT_RECORDED if record is None else f"{image}\n\n{_markdown(record, shape)}"


def _pages(
    readme: Path, folder: Path, drawable: list[pictures.Picture], built: list[Room]
) -> dict[Path, str]:
    """The text that README and pages must have; a page only where there is one."""
    before, _, after = _split(readme)
    by_name = dict.fromkeys(pictures.NAMES) | {picture.name: picture for picture in drawable}
    images = {name: _image(picture, IMAGES) for name, picture in by_name.items()}
    ladder = region(folder, images["ladder"] or "")
    text = f"{before}{BEGIN}\n{ladder}\n{END}{after}"
    made = limit_tables.TABLES | trust_tables.TABLES
    tables = {name: make(folder) for name, make in made.items()} | {"rooms": table(built)}
    pages = {readme: _filled(readme, text, {"picture": images, "table": tables})}
    images = {name: _image(picture, f"../{IMAGES}") for name, picture in by_name.items()}
    images["house"] = _themed("house", alt(built))
    for page in filter(Path.is_file, (readme.parent / name for name in PAGES)):
        pages[page] = _filled(page, page.read_text(), {"picture": images, "table": tables})
    return pages


def _filled(page: Path, text: str, contents: dict[str, dict[str, str | None]]) -> str:
    """`text` with all that stands between markers written anew. contents: by kind and name; None: no data."""
    paired = {at for place in PLACE.finditer(text) for at in (place.start(1), place.start(4))}
    for marker in MARKER.finditer(text):
        if marker.start() not in paired:
            raise ReadmeError(f"{page}: {marker[0]}: needs its other half, such as <!-- picture:end -->")

    def written(place: re.Match) -> str:
        begin, kind, name, end = place.groups()
        known = contents[kind]
        if name not in known:
            raise ReadmeError(f"{page}: {kind}:{name}: there is none; accepted are {', '.join(known)}")
        return f"{begin}{known[name] or NOT_RECORDED}\n{end}"

    return PLACE.sub(written, text)


def _image(picture: pictures.Picture | None, folder: str) -> str | None:
    return None if picture is None else _themed(f"{folder}/{picture.name}", picture.alt)


def _themed(file: str, alt: str) -> str:
    """HTML that shows the light or the dark picture, as the reader's theme is."""
    alt = html.escape(alt, quote=False).replace('"', "&quot;")
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{file}-dark.svg">\n'
        f'<img alt="{alt}" src="{file}.svg">\n</picture>'
    )


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
