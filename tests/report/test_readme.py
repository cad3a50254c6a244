import pytest

from flashcore_numba.core.shapes import Shape
from flashcore_numba.records import artifact, ring_timeline
from flashcore_numba.report import pictures, readme
from flashcore_numba.report.pictures.style import THEMES
from flashcore_numba.report.readme import ReadmeError, differences, update

PLACES = "\n\n".join(
    f"<!-- {kind}:{name} -->\n{{}}\n<!-- {kind}:end -->"
    for kind, name in (("text", "result"), ("picture", "ladder"), ("table", "ladder"))
)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A README; of the pictures only the ladder is drawn."""
    monkeypatch.setattr(pictures, "MAKERS", {"ladder": ("forward", pictures.ladder.picture)})
    path = tmp_path / "README.md"
    path.write_text(f"# Title\n\n{PLACES}\n\nThe rest.\n")
    return path


def test_without_a_record_every_place_says_so(page, recorded):
    assert differences(page)
    assert update(page) == [page]
    places = PLACES.replace("{}", "Not recorded yet.")
    assert page.read_text() == f"# Title\n\n{places}\n\nThe rest.\n"
    assert differences(page) == []


@pytest.mark.long
def test_the_places_are_written_from_the_record(page, recorded, fake):
    artifact.save(fake(), recorded / "imaginary-gpu.json")
    assert update(page) == [page, recorded / "ladder.svg", recorded / "ladder-dark.svg"]
    text = page.read_text()
    dark = 'media="(prefers-color-scheme: dark)" srcset="flashcore_numba/records/data/ladder-dark.svg"'
    assert f"<!-- picture:ladder -->\n<picture>\n<source {dark}>\n<img alt=" in text
    assert 'src="flashcore_numba/records/data/ladder.svg">\n</picture>\n' in text
    assert text.endswith("<!-- table:end -->\n\nThe rest.\n")
    row = next(line for line in text.splitlines() if line.startswith("| 05 online_softmax |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == ["138", "16.0", "5.8%"]
    assert "| *SDPA flash* |" in text
    assert "SDPA math" not in text.partition("<!-- table:ladder -->")[2]
    assert "06 q_outer" not in text.partition("<!-- table:ladder -->")[2]
    assert "Imaginary GPU, 2001-02-03, commit 0123456789" in text
    assert differences(page) == []
    assert update(page) == []


@pytest.mark.long
def test_an_edit_by_hand_is_found_and_named(page, recorded, fake):
    artifact.save(fake(), recorded / "imaginary-gpu.json")
    update(page)
    page.write_text(page.read_text().replace("| 138 |", "| 13 |"))
    (found,) = differences(page)
    assert "| 13 |" in found
    assert "| 138 |" in found


def test_text_outside_the_places_is_free(page, recorded):
    update(page)
    page.write_text(page.read_text().replace("The rest.", "Another rest."))
    assert differences(page) == []


@pytest.mark.long
def test_a_new_record_makes_text_and_picture_stale(page, recorded, fake):
    artifact.save(fake(), recorded / "imaginary-gpu.json")
    update(page)
    newer = fake(date="2010-01-01T00:00:00Z")
    artifact.save(newer, recorded / "imaginary-gpu.json")
    found = differences(page)
    assert len(found) == 3
    assert "README.md: differs from the record: it says" in found[0]
    assert "ladder.svg: the picture was not drawn from imaginary-gpu.json" in found[1]
    assert "ladder-dark.svg: the picture was not drawn from imaginary-gpu.json" in found[2]


@pytest.mark.long
def test_a_missing_and_an_orphaned_picture_are_found(page, recorded, fake):
    artifact.save(fake(), recorded / "imaginary-gpu.json")
    update(page)
    (recorded / "ladder.svg").rename(recorded / "kept.svg")
    assert [d for d in differences(page) if "the picture is missing" in d]
    (recorded / "kept.svg").rename(recorded / "ladder.svg")
    (recorded / "imaginary-gpu.json").unlink()
    assert [d for d in differences(page) if "a picture without a recorded artifact" in d]
    update(page)
    assert not list(recorded.glob("*.svg"))


@pytest.mark.long
def test_a_picture_is_written_where_a_page_asks_for_it(page, recorded, fake):
    place = "<!-- picture:{} -->\n{}\n<!-- picture:end -->"
    page.write_text(page.read_text() + place.format("lengths", "?") + "\n" + place.format("ladder", "?"))
    lesson = page.parent / readme.DOCS / "page.md"
    lesson.parent.mkdir()
    lesson.write_text(f"Before.\n\n{place.format('ladder', 'something old')}\n\nAfter.\n")
    artifact.save(fake(), recorded / "imaginary-gpu.json")
    assert len(differences(page)) == 4
    assert update(page)[:2] == [page, lesson]
    assert place.format("lengths", "Not recorded yet.") in page.read_text()
    assert page.read_text().count("<picture>") == 2
    text = lesson.read_text()
    assert text.startswith("Before.\n\n<!-- picture:ladder -->\n<picture>\n")
    assert text.endswith("</picture>\n<!-- picture:end -->\n\nAfter.\n")
    assert 'src="../flashcore_numba/records/data/ladder.svg"' in text
    assert differences(page) == []
    lesson.write_text(text.replace("microseconds", "seconds"))
    assert [sentence for sentence in differences(page) if str(lesson) in sentence]


@pytest.mark.parametrize(
    ("markers", "message"),
    [
        (
            "<!-- picture:laddder -->\n<!-- picture:end -->\n",
            "picture:laddder: there is none; accepted are ladder",
        ),
        ("<!-- picture:ladder -->\n", "<!-- picture:ladder -->: needs its other half"),
        ("<!-- picture:end -->\n", "<!-- picture:end -->: needs its other half"),
        (
            "<!-- picture:ladder -->\n<!-- picture:share -->\n<!-- picture:end -->\n",
            "<!-- picture:ladder -->: needs its other half",
        ),
        ("<!-- table:laddder -->\n<!-- table:end -->\n", "table:laddder: there is none; accepted are ladder"),
        ("<!-- text:ladder -->\n<!-- text:end -->\n", "text:ladder: there is none; accepted are result"),
    ],
)
def test_bad_markers_are_named(page, recorded, markers, message):
    page.write_text(before := page.read_text() + markers)
    with pytest.raises(ReadmeError) as error:
        update(page)
    assert str(error.value).startswith(f"{page}: {message}")
    assert page.read_text() == before


@pytest.mark.long
def test_a_record_without_the_mission_shape_is_not_quoted(page, recorded, fake):
    artifact.save(fake(shape=Shape(1, 1, 64, 64)), recorded / "imaginary-gpu.json")
    update(page)
    assert "Not recorded yet." in page.read_text()


def test_a_page_without_a_place_is_refused(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("no markers")
    with pytest.raises(ReadmeError, match=r"README\.md: has no place to write to, such as <!-- table:ladder"):
        update(path)
    assert path.read_text() == "no markers"


@pytest.mark.parametrize("name", ["README.md", "docs/page.md"])
def test_a_page_that_is_no_text_is_named(page, recorded, name):
    broken = page.parent / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"# Title \xff")
    before = page.read_bytes()
    for call in (update, differences):
        with pytest.raises(ReadmeError, match=f"{name}: is no text in UTF-8 .* at byte 8"):
            call(page)
    assert page.read_bytes() == before


def test_the_repositorys_readme_belongs_to_its_record(request):
    assert readme.differences(request.config.rootpath / "README.md") == []
    drawn, _ = pictures.drawable(artifact.recorded_whole(), ring_timeline.recorded())
    assert len(list(artifact.recorded_dir().glob("*.svg"))) == len(drawn) * len(THEMES)
    assert {*pictures.NAMES} - {picture.name for picture in drawn} <= {*pictures.TIMELINES}
