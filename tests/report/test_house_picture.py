"""The picture of the house shows the source: floors, arrows, sizes. One of another house is found."""

import graphlib
from pathlib import Path

import pytest

from flashcore_numba.report.pictures import house
from flashcore_numba.report.pictures.rooms import alt, arrows, rooms, table

ROOT = Path(__file__).resolve().parents[2]
SOURCE = {
    "cuda_reference/__init__.py": '"""Kernels and their loader. More."""\n',
    "cuda_reference/stage07.cu": "one\ntwo\n",
    "cuda_reference/cpu/run.cpp": "one\n",
    "flashcore_numba/__init__.py": "from flashcore_numba.top import nothing\n",
    "flashcore_numba/base/__init__.py": '"""What all stand on."""\n',
    "flashcore_numba/base/more/deep.py": "import cuda_reference\n" * 5,
    "flashcore_numba/middle.py": (
        '"""Is it right? It is\nin the middle. More."""\nimport flashcore_numba.base.more.deep\n'
    ),
    "flashcore_numba/top/__init__.py": '"""The command."""\n',
    "flashcore_numba/top/late.py": (
        "from typing import TYPE_CHECKING\n"
        "import numpy\n"
        "if TYPE_CHECKING:\n    from flashcore_numba.unseen import x\n"
        "def f():\n    from flashcore_numba import base, middle\n"
    ),
    "flashcore_numba/unseen.py": '"""Imported for types alone."""\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SOURCE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_rooms_are_read_from_the_source(root: Path) -> None:
    found = {room.name: room for room in rooms(root)}
    assert {name: room.floor for name, room in found.items()} == {
        "cuda_reference": 0, "unseen": 0, "base": 1, "middle": 2, "top": 3,
    }  # fmt: skip
    assert found["top"].imports == ("base", "middle"), "inside a function too, and not for types alone"
    assert found["cuda_reference"].parts == {"": 3, "cpu": 1}
    assert found["base"].parts == {"": 1, "more": 5}
    assert found["middle"].purpose == "Is it right? It is in the middle."


def test_arrows_that_others_imply_are_left_out(root: Path) -> None:
    assert arrows(rooms(root)) == [("base", "cuda_reference"), ("middle", "base"), ("top", "middle")]


def test_a_circle_has_no_floors(root: Path) -> None:
    (root / "flashcore_numba/base/up.py").write_text("def f():\n    import flashcore_numba.top.late\n")
    with pytest.raises(graphlib.CycleError):
        rooms(root)


def test_the_table_leads_from_the_top_down(root: Path) -> None:
    rows = [line.split(" | ") for line in table(rooms(root)).splitlines()[2:]]
    assert [row[1] for row in rows] == ["`top`", "`middle`", "`base`", "`cuda_reference`", "`unseen`"]
    assert rows[1][2:] == ["Is it right? It is in the middle.", "`base` |"]


def test_the_same_house_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    built = rooms(root)
    first = [path.read_bytes() for path in house.draw(built, tmp_path / "a")]
    assert first == [path.read_bytes() for path in house.draw(built, tmp_path / "b")]
    assert first[0] != first[1], "light and dark"
    assert house.stale(built, tmp_path / "a") == []


@pytest.mark.parametrize(
    "change, says",
    [
        ({"flashcore_numba/base/new.py": "x\n" * 9}, "the picture shows 6 lines of base, now 15"),
        ({"flashcore_numba/middle.py": '"""On the ground."""\n'}, "the picture shows another middle"),
        (
            {"flashcore_numba/added.py": '"""New."""\n'},
            "the picture shows another added: floor and imports None",
        ),
    ],
    ids=["lines", "imports", "room"],
)
def test_a_picture_of_another_house_is_found(change: dict[str, str], says: str, root: Path) -> None:
    house.draw(rooms(root), root)
    for name, text in change.items():
        (root / name).write_text(text)
    found = house.stale(rooms(root), root)
    assert len(found) == 2 and all(says in sentence for sentence in found), found


def test_missing_and_foreign_pictures_are_found(root: Path) -> None:
    built = rooms(root)
    light, dark = house.draw(built, root)
    light.unlink()
    dark.write_text("<svg/>")
    missing, foreign = house.stale(built, root)
    assert missing == f"{light}: the picture is missing"
    assert "the picture shows another base" in foreign


@pytest.mark.long
def test_every_room_of_the_repository_says_what_it_is_for() -> None:
    built = rooms(ROOT)
    floors = {room.name: room.floor for room in built}
    assert {"core", "stages", "run", "course", "cli", "cuda_reference"} <= floors.keys()
    assert all(floors[lower] < floors[upper] for upper, lower in arrows(built))
    assert [room.name for room in built if not room.purpose.endswith((".", "?"))] == []
    assert all(room.name in alt(built) for room in built)
