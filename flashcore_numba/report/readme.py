"""Pictures, tables and sentences in README and docs, made from the records; the picture of the house, made
from the source beside the README.

Each is between two markers, `<!-- picture:NAME -->` and `<!-- picture:end -->`, or the same with `table` or
`text`, in the README and in the pages of `docs/` beside it.
"""

import html
import re
from pathlib import Path

from cuda_reference.files import write
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.records import artifact, ring_timeline
from flashcore_numba.report import (
    backward_tables,
    branch_tables,
    command_tables,
    decode_tables,
    example_tables,
    feature_tables,
    gpu_tables,
    ladder_tables,
    limit_tables,
    pictures,
    search_tables,
    trust_tables,
)
from flashcore_numba.report.pictures import house
from flashcore_numba.report.pictures.rooms import Room, alt, rooms, table

PLACE = re.compile(
    r"(<!-- (picture|table|text):(?!end )(\S+) -->\n)(?:(?!<!-- \2:).)*?(<!-- \2:end -->)", re.DOTALL
)
MARKER = re.compile(r"<!-- (?:picture|table|text):\S+ -->")
IMAGES = "flashcore_numba/records/data"  # from the root of the repository
DOCS = "docs"
EXAMPLE = "<!-- table:ladder --> and, in a line below, <!-- table:end -->"
NOT_RECORDED = "Not recorded yet."


class ReadmeError(ArgumentError):
    """A page that cannot be updated: the message names the file and what is missing."""


def update(readme: Path, folder: Path | None = None) -> list[Path]:
    """Rewrite the places in `readme` and in the pages of docs/ beside it, and draw the pictures in `folder`.
    Returns the files that changed.

    folder: where the artifacts are recorded; the package's own by default. Raises ReadmeError, ArtifactError.
    """
    _read(readme)
    kept = folder or artifact.recorded_dir()
    changed = []
    drawable, _ = pictures.drawable(artifact.recorded_whole(folder), ring_timeline.recorded(folder))
    built = rooms(readme.parent)
    for page, text in _pages(readme, folder, drawable, built).items():
        if page.read_text() != text:
            write(page, text)
            changed.append(page)
    for picture in drawable:
        if picture.stale(kept):
            changed += picture.draw(kept)
    for path in pictures.orphans(kept, drawable):
        path.unlink()
        changed.append(path)
    if house.stale(built, readme.parent / DOCS):
        changed += house.draw(built, readme.parent / DOCS)
    return changed


def differences(readme: Path, folder: Path | None = None) -> list[str]:
    """What `update` would change, one sentence each; empty when pages and pictures belong to the record."""
    _read(readme)
    kept = folder or artifact.recorded_dir()
    drawable, _ = pictures.drawable(artifact.recorded_whole(folder), ring_timeline.recorded(folder))
    built = rooms(readme.parent)
    found = []
    for page, text in _pages(readme, folder, drawable, built).items():
        has, needs = page.read_text().splitlines(), text.splitlines()
        if has != needs:
            n = next((n for n, (a, b) in enumerate(zip(has, needs, strict=False)) if a != b), None)
            says = f"it says {has[n]!r}, the record {needs[n]!r}" if n is not None else "it has other lines"
            found.append(f"{page}: differs from the record: {says}")
    for picture in drawable:
        found += picture.stale(kept)
    orphans = pictures.orphans(kept, drawable)
    found += [f"{path}: a picture without a recorded artifact" for path in orphans]
    return found + house.stale(built, readme.parent / DOCS)


def _pages(
    readme: Path, folder: Path | None, drawable: list[pictures.Picture], built: list[Room]
) -> dict[Path, str]:
    """The text that README and the pages of docs/ must have."""
    by_name = dict.fromkeys(pictures.NAMES) | {picture.name: picture for picture in drawable}
    made = ladder_tables.TABLES | limit_tables.TABLES | gpu_tables.TABLES | trust_tables.TABLES
    made |= (
        branch_tables.TABLES
        | feature_tables.TABLES
        | backward_tables.TABLES
        | decode_tables.TABLES
        | search_tables.TABLES
        | example_tables.TABLES
        | command_tables.TABLES
    )
    tables = {name: make(folder) for name, make in made.items()} | {"rooms": table(built)}
    sentences = ladder_tables.TEXTS | feature_tables.TEXTS | decode_tables.TEXTS
    texts = {name: make(folder) for name, make in sentences.items()}
    text = _read(readme)
    images = {name: _image(picture, IMAGES) for name, picture in by_name.items()}
    pages = {readme: _filled(readme, text, {"picture": images, "table": tables, "text": texts})}
    images = {name: _image(picture, f"../{IMAGES}") for name, picture in by_name.items()}
    images["house"] = _themed("house", alt(built))
    for page in sorted((readme.parent / DOCS).glob("*.md")):
        pages[page] = _filled(page, _text(page), {"picture": images, "table": tables, "text": texts})
    return pages


def _filled(page: Path, text: str, contents: dict[str, dict[str, str | None]]) -> str:
    """`text` with all that is between markers written anew. contents: by kind and name; None: no data."""
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


def _text(page: Path) -> str:
    try:
        return page.read_text()
    except OSError as error:
        raise ReadmeError(f"{page}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ReadmeError(f"{page}: is no text in UTF-8 ({error.reason} at byte {error.start})") from None


def _read(readme: Path) -> str:
    text = _text(readme)
    if not PLACE.search(text):
        raise ReadmeError(f"{readme}: has no place to write to, such as {EXAMPLE}")
    return text
