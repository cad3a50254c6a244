import pytest

from flashcore_numba.bench import artifact, picture


@pytest.fixture
def drawn(fake, tmp_path):
    record, source, image = fake(), tmp_path / "gpu.json", tmp_path / "ladder.png"
    artifact.save(record, source)
    picture.draw(record, record["shapes"][0], image, source)
    return record, source, image


def test_the_picture_names_its_artifact(drawn):
    _, source, image = drawn
    assert picture.artifact_of(image) == artifact.sha256(source)
    source.write_text(source.read_text().replace("Imaginary", "Changed"))
    assert picture.artifact_of(image) != artifact.sha256(source)


def test_the_same_artifact_gives_the_same_bytes(drawn):
    record, source, image = drawn
    first = image.read_bytes()
    picture.draw(record, record["shapes"][0], image, source)
    assert image.read_bytes() == first


def test_size_and_light_background(drawn):
    from PIL import Image

    with Image.open(drawn[2]) as image:
        assert image.width == 1600
        assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
        assert "Software" not in image.text
        assert image.text["Description"] == picture.alt_text(drawn[0], drawn[0]["shapes"][0])


def test_the_colours_of_stages_variants_and_peers_are_all_there(drawn):
    from PIL import Image

    with Image.open(drawn[2]) as image:
        seen = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=2**24)}
    for colour in (picture.STAGE, picture.VARIANT, picture.PEER):
        assert tuple(bytes.fromhex(colour[1:])) in seen


def test_the_alt_text_says_what_the_picture_shows(fake):
    record = fake()
    text = picture.alt_text(record, record["shapes"][0])
    for entry in record["shapes"][0]["entries"]:
        assert entry["label"] in text
    assert "Imaginary GPU, 2001-02-03, commit 0123456789" in text


def test_foreign_pictures_have_no_artifact(tmp_path):
    assert picture.artifact_of(tmp_path / "none.png") is None
    (tmp_path / "text.png").write_text("not a picture")
    assert picture.artifact_of(tmp_path / "text.png") is None
