"""`flashcore check FILE --lesson N` and `flashcore starter N`, as an autograder calls them."""

import json
import subprocess
import sys

import pytest

from flashcore_numba import cli
from flashcore_numba.course import exercise
from flashcore_numba.course.judge.verdict import CheckResult, GateResult, Item
from flashcore_numba.course.lessons import LESSONS


def flashcore(*arguments, cwd):
    command = [sys.executable, "-m", "flashcore_numba", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


@pytest.mark.long
def test_a_starter_is_empty_and_takes_no_files_place(tmp_path):
    made = flashcore("starter", 4, "mine.py", cwd=tmp_path)
    assert made.returncode == 0 and "flashcore check mine.py --lesson 4" in made.stdout
    empty = flashcore("check", "mine.py", "--lesson", 4, cwd=tmp_path)
    assert empty.returncode == 1 and "still empty" in empty.stdout
    again = flashcore("starter", 4, "mine.py", cwd=tmp_path)
    assert again.returncode == 2 and "exists already" in again.stderr


def test_the_command_after_a_starter_can_be_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["starter", "1", "my file.py"]) == 0
    assert capsys.readouterr().out.endswith("then: flashcore check 'my file.py' --lesson 1\n")


@pytest.mark.long
def test_from_the_starter_to_a_pass(tmp_path):
    assert flashcore("starter", 4, "mine.py", cwd=tmp_path).returncode == 0
    path = tmp_path / "mine.py"
    task = exercise.starter_cell(LESSONS[4])
    indent = " " * exercise.region(LESSONS[4].exercise).indent
    solution = exercise.region(LESSONS[4].exercise).text
    text = path.read_text()
    for line in task.splitlines():
        text = text.replace(f"{indent}{line}\n", "", 1)
    head, end, rest = text.partition(f"{indent}# </exercise>")
    path.write_text(head + solution + end + rest)
    right = flashcore("check", "mine.py", "--lesson", 4, "--json", cwd=tmp_path)
    assert right.returncode == 0, right.stdout
    data = json.loads(right.stdout)
    assert (
        data["passed"] and data["status"] == "passed" and len(data["gates"]) == len(LESSONS[4].exercise.gates)
    )
    wrong = head + solution.replace("first_key + lane] = score", "lane] = score") + end + rest
    path.write_text(wrong)
    failed = flashcore("check", "mine.py", "--lesson", 4, "--json", "out.json", cwd=tmp_path)
    data = json.loads((tmp_path / "out.json").read_text())
    assert failed.returncode == 1 and not data["passed"]
    assert (
        wrong.splitlines()[data["line"] - 1].strip() == data["line_text"] == "scores[b, h, row, lane] = score"
    )
    assert f"mine.py:{data['line']}" in failed.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("check", "none.py", "--lesson", "4"), "'none.py': cannot be read"),
        (("check", ".", "--lesson", "4"), "'.': no file"),
        (("check", "binary.py", "--lesson", "4"), "no text in UTF-8"),
        (("check", "other.py", "--lesson", "4"), "other.py: no file of lesson 4"),
        (("check", "other.py", "--lesson", "40"), "lesson '40': accepted are"),
        (("check", "other.py"), "name the lesson"),
        (("check", "other.py", "--lesson", "4", "--time-limit", "0"), "seconds above 0"),
        (("check", "5", "--time-limit", "-3"), "seconds above 0"),
        (("check", "a.py", "b.py", "--lesson", "4"), "one file is accepted"),
        (("starter", "4", "no/folder.py"), "cannot be written"),
        (("starter", "x"), "lesson 'x'"),
        (("starter", "7", "x.py"), "x.py: lesson 7 is in CUDA C, so a .cu file is accepted"),
        (("starter", "1", "x.cu"), "x.cu: lesson 1 is in Python, so a .py file is accepted"),
    ],
)
def test_what_cannot_be_judged_is_one_sentence_and_status_2(tmp_path, monkeypatch, capsys, arguments, says):
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "other.py").write_text(exercise.starter(LESSONS[5]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        sys.exit(cli.main(list(arguments)))
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert not out and says in err and len(err.splitlines()) == 1
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.long
def test_a_stop_at_the_time_limit_is_status_1(tmp_path):
    text = exercise.starter(LESSONS[0]).replace("...\n", "while True:\n            pass\n")
    (tmp_path / "endless.py").write_text(text)
    result = flashcore("check", "endless.py", "--lesson", 0, "--time-limit", 3, "--json", cwd=tmp_path)
    assert result.returncode == 1
    assert json.loads(result.stdout)["status"] == "timeout"


@pytest.mark.long
def test_a_module_of_the_same_name_in_the_folder_is_not_taken(tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('not this one')\n")
    text = exercise.source_text("stage00_three_loops")
    (tmp_path / "mine.py").write_text(text)
    code = (
        "from flashcore_numba.course.judge.process import run; "
        "print(run({'job': 'check', 'lesson': 0})['status'])"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert result.stdout.strip() == "passed", result.stderr


def test_a_verdict_survives_json_and_escapes_html():
    gate = GateResult("sectors <b>", 9.0, 32, 4, 8, False, "1x1x128x64", "too many")
    item = Item("small <i>", True, margin=2.5)
    result = CheckResult(
        5, "failed", "`a < b` is wrong", "In line 3", "Look", 3, "a < b", "gate", (item,), (gate,)
    )
    again = CheckResult.from_dict(json.loads(json.dumps(result.as_dict())))
    assert again == result and not again.passed
    assert again.message == "`a < b` is wrong\nIn line 3\nLook"
    page = result._repr_html_()
    assert "<code>a &lt; b</code>" in page and "sectors &lt;b&gt;" in page and "<i>" not in page
    assert "missed" in page and "not yet" in page and "MISSED" in str(result)
