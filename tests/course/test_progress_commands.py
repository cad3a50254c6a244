"""Progress on the command line: `predict`, `hint`, `check` and `course` keep it where the notebooks do."""

import asyncio
import builtins
import hashlib
import io
import json
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console
from tornado.web import HTTPError

from flashcore_numba import cli
from flashcore_numba.course import exercise, lesson, lessons
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import TICK, CheckResult
from flashcore_numba.course.session import lab
from flashcore_numba.course.session.contents import Contents
from flashcore_numba.course.session.journal import FILE, Journal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data/flashcore"


def flashcore(capsys, *arguments) -> tuple[int, str]:
    status = cli.main(list(map(str, arguments)))
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def as_json(capsys, *arguments):
    assert cli.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def answer(number: int, lines: str) -> str:
    """The file of an exercise with these lines in its region."""
    chosen = lessons.find(number)
    indent = " " * exercise.region(chosen.exercise).indent
    empty = textwrap.indent(exercise.starter_cell(chosen), indent)
    text = exercise.starter(chosen)
    assert text.count(empty) == 1
    return text.replace(empty, lines)


def test_hints_come_one_at_a_time_as_in_a_notebook(capsys):
    every = lessons.find(3).exercise.hints
    assert "you have seen no hint" in flashcore(capsys, "hint", 3, "--again")[1]
    assert Journal().lesson(3)["hints"] == 0
    for seen, text in enumerate(every, 1):
        assert as_json(capsys, "hint", 3)["hints"] == [text]
        assert Journal().lesson(3)["hints"] == seen
        assert lesson(3).hints().data["hints"] == list(every[:seen]), "the notebook goes on from there"
    assert "you have seen every hint" in flashcore(capsys, "hint", 3)[1]
    assert as_json(capsys, "hint", 3, "--again")["hints"] == list(every)
    assert Journal().lesson(3)["hints"] == len(every)


@pytest.mark.long
def test_predictions_are_kept_and_set_beside_the_truth(capsys, tmp_path):
    questions = {question.key: question for question in lessons.find(1).questions}
    first, second, *rest = questions
    status, out = flashcore(capsys, "predict", 1)
    assert status == 0 and "the truth" not in out and f"flashcore predict 1 {first}=..." in out
    status, out = flashcore(capsys, "predict", 1, f"{first}=1", f"{second}=4")
    assert status == 0 and "far: 8.00x too low" in out and questions[rest[0]].why.split(":")[0] not in out
    (tmp_path / "mine.json").write_text(json.dumps({second: 32, rest[0]: 1}))
    shown = as_json(capsys, "predict", 1, "--values", "mine.json")
    assert shown["predictions"][second] == [4, 32] and shown["open"] == rest[1:]
    assert [(s["key"], s["yours"]) for s in shown["scores"]] == [(first, 1), (second, 4), (rest[0], 1)]
    in_notebook = lesson(1).measure().data["scores"]
    assert [s["truth"] for s in shown["scores"][:2]] == [s["truth"] for s in in_notebook[:2]]
    assert Journal().lesson(1)["predictions"] == shown["predictions"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["1", "k_sectors"], "'k_sectors': NAME=VALUE is accepted, for example k_sectors=4"),
        (["1", "k_sectors=many"], "k_sectors: 'many' is not a number"),
        (["1", "k_sectors=3", "nonsense=3"], "nonsense: lesson 1 asks for k_sectors"),
        (["1", "--values", "none.json"], "--values 'none.json': cannot be read"),
        (["1", "--values", "text.json"], "--values 'text.json': is not JSON"),
        (["1", "--values", "list.json"], "--values 'list.json': is no JSON object"),
        (["99"], "lesson '99': accepted are"),
    ],
)
def test_what_is_no_prediction_is_one_sentence_and_nothing_is_kept(capsys, tmp_path, arguments, says):
    (tmp_path / "text.json").write_text("many")
    (tmp_path / "list.json").write_text("[1]")
    status, out = flashcore(capsys, "predict", *arguments)
    assert status == 2 and says in out and len(out.splitlines()) == 1
    assert Journal().lesson(1)["predictions"] == {}


@pytest.mark.long
def test_a_terminal_asks_for_what_is_open(capsys, monkeypatch):
    first, second, third, *_ = (question.key for question in lessons.find(1).questions)
    lesson(1).predict(**{first: 7})
    said, replies = [], iter(["many", "32", "", EOFError()])

    def typed(prompt):
        said.append(prompt)
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", typed)
    status, out = flashcore(capsys, "predict", 1)
    assert status == 0 and "is not a number" in out
    assert [prompt.split()[0].rstrip(",") for prompt in said[:3]] == [second, second, third]
    assert Journal().lesson(1)["predictions"] == {first: [7], second: [32]}
    assert len(said) == 4, "the end of the input ends the questions"


@pytest.mark.long
def test_check_records_attempts_and_the_pass_and_names_the_next_step(capsys, tmp_path):
    right = exercise.region(lessons.find(0).exercise).text
    (tmp_path / "empty.py").write_text(exercise.starter(lessons.find(0)))
    (tmp_path / "wrong.py").write_text(answer(0, right.replace("row_max", "row_max + 1", 1)))
    (tmp_path / "right.py").write_text(answer(0, right))
    assert flashcore(capsys, "check", "empty.py", "--lesson", 0)[0] == 1
    assert Journal().lesson(0)["attempts"] == 0
    status, out = flashcore(capsys, "check", "wrong.py", "--lesson", 0)
    assert status == 1 and "Next:" not in out
    assert (Journal().lesson(0)["attempts"], Journal().lesson(0)["passed"]) == (1, None)
    assert "flashcore check lesson00.py --lesson 0" in as_json(capsys, "course")["step"]
    assert flashcore(capsys, "check", "right.py", "--lesson", 0, "--no-record")[0] == 0
    assert Journal().lesson(0)["attempts"] == 1, "a grader's checks are not the grader's attempts"
    status, out = flashcore(capsys, "check", "right.py", "--lesson", 0)
    title = lessons.find(1).title
    assert status == 0 and f"{TICK} Lesson 00: passed" in out
    assert f"Next: lesson 01, {title}: predict, `flashcore predict 1`." in out
    record = lesson(0)._record()
    assert record["attempts"] == 2 and record["passed"] and record["answer"] is None
    shown = as_json(capsys, "course")
    assert shown["next"] == 1 and shown["lessons"][0]["attempts"] == 2
    status, out = flashcore(capsys, "course")
    assert f"{TICK} {record['passed']}" in out and "flashcore predict 1" in out


def test_a_pass_in_a_notebook_names_the_next_lesson_and_its_cells(monkeypatch):
    passed = CheckResult(15, "passed", "Right.").as_dict()
    monkeypatch.setattr(process, "run", lambda *a, **b: {"status": "done", "result": passed})
    for key in lessons.EVERY:
        if key not in (3, 16):
            Journal().change(key, lambda record: record.update(passed="2026-01-01"))
    shown = lesson(16).check()
    assert "`course.measure()`" in shown.following and "`03_warp_reduction.ipynb`" in shown.following
    assert lessons.find(3).title in shown._repr_html_()
    assert ".ipynb" not in lesson(3).check().following, "none is left"


def drawn(result) -> str:
    stream = io.StringIO()
    result.render(Console(file=stream, width=100, force_terminal=True, highlight=False))
    return stream.getvalue()


def test_green_is_said_in_a_sign_and_a_word_too(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    passed, failed = CheckResult(3, "passed", "Right."), CheckResult(3, "failed", "Wrong.")
    for result, colour, sign, word in ((passed, "32", "✓", "passed"), (failed, "31", "✗", "not yet")):
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert f"\x1b[1;{colour}m{sign} Lesson 03: {word}" in drawn(result)
        monkeypatch.setenv("NO_COLOR", "1")
        plain = drawn(result)
        assert f"{sign} Lesson 03: {word}" in plain and f"{colour}m" not in plain
        page = result._repr_html_()
        assert f"{sign} Lesson 03: {word}" in page and "color:#fff" in page
        assert str(result).startswith(f"{sign} Lesson 03: {word}")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_a_verdict_is_legible_on_a_light_and_on_a_dark_page(status):
    page = CheckResult(3, status, "Said.")._repr_html_()
    (colour,) = {word.split(";")[0] for word in page.split("background:")[1:]}
    assert contrast("#ffffff", colour) >= 4.5, "the words on the badge"
    for paper in ("#ffffff", "#111111"):  # JupyterLab's
        assert contrast(paper, colour) >= 2.5, f"the badge on {paper}"


def tree() -> dict[str, str]:
    """Every file and folder of the lessons and notebooks, with what is in it."""
    every = [path for name in ("lessons", "notebooks") for path in (ROOT / name).rglob("*")]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "" for p in every}


@pytest.mark.long
@pytest.mark.parametrize("folder", ["lessons", "notebooks"])
def test_no_command_of_a_learner_writes_into_the_lessons(capsys, monkeypatch, folder, tmp_path):
    before = tree()
    (tmp_path / "mine.py").write_text(exercise.starter(lessons.find(0)))
    monkeypatch.chdir(ROOT / folder)
    for command in (
        ["course"],
        ["hint", 0],
        ["predict", 0],
        ["check", tmp_path / "mine.py", "--lesson", 0],
    ):
        flashcore(capsys, *command)
    for command in (["starter", 0], ["starter", 0, ROOT / folder / "x/mine.py"]):
        status, out = flashcore(capsys, *command)
        assert status == 2 and f"{folder}/ belongs to the course" in out
    course = lesson(0)
    course.write("pass")
    course.hints()
    course.source()
    assert tree() == before
    assert (tmp_path / "data/flashcore" / FILE).is_file(), "they wrote somewhere else"


@pytest.fixture
def files(tmp_path):
    """JupyterLab's contents manager in a clone with a lesson and a working copy."""
    for name in ("lessons/glossary.md", f"{lab.FOLDER}/00.txt"):
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True)
        path.write_text("text")
    return Contents(root_dir=str(tmp_path / "clone"))


async def reading_leaves_nothing(files):
    model = await files.get("lessons/glossary.md")
    assert model["content"] == "text" and not model["writable"]
    assert await files.list_checkpoints("lessons/glossary.md") == []
    made = await files.create_checkpoint("lessons/glossary.md")
    assert await files.list_checkpoints("lessons/glossary.md") == [made]
    for change in (
        files.save(model | {"content": "other"}, "lessons/glossary.md"),
        files.rename("lessons/glossary.md", f"{lab.FOLDER}/mine.md"),
        files.rename(f"{lab.FOLDER}/00.txt", "lessons/mine.txt"),
        files.delete("lessons/glossary.md"),
        files.new({"type": "file"}, "lessons/new.md"),
        files.copy("lessons/glossary.md", "lessons"),
    ):
        with pytest.raises(HTTPError, match="belongs to the repository"):
            await change
    mine = await files.get(f"{lab.FOLDER}/00.txt")
    assert mine["writable"]
    await files.save(mine | {"content": "other"}, f"{lab.FOLDER}/00.txt")
    await files.create_checkpoint(f"{lab.FOLDER}/00.txt")


def test_reading_in_jupyterlab_leaves_nothing_beside_the_lessons(files):
    root = Path(files.root_dir)
    asyncio.run(reading_leaves_nothing(files))
    assert [path.name for path in (root / "lessons").iterdir()] == ["glossary.md"]
    assert (root / "lessons/glossary.md").read_text() == "text"
    assert {path.name for path in root.iterdir()} == {"lessons", lab.FOLDER}
    assert (root / lab.FOLDER / "00.txt").read_text() == "other"
    assert [path.name for path in (root / lab.FOLDER).iterdir() if path.name[0] != "."] == ["00.txt"]
