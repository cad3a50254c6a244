"""What `make test` leaves out is the rest of a matrix: it runs every stage, command, lesson and module."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matrix import few, first_of_each
from test_cli import COMMANDS
from test_house import MODULES, ROOT, imports

from flashcore_numba.branches.find import BRANCHES
from flashcore_numba.course.lessons import EVERY, LESSONS
from flashcore_numba.predict import FORMULAS
from flashcore_numba.stages import LADDER

LIST = """
import json, sys, pytest
from pathlib import Path

def text(value):
    if isinstance(value, (str, Path)) or type(value) is int and abs(value) < 1000:
        return str(value)
    return value.label if hasattr(type(value), "label") else type(value).__name__

class List:
    def pytest_collection_finish(self, session):
        found = []
        for item in session.items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            named = {name: text(value) for name, value in parameters.items()}
            marks = sorted({mark.name for mark in item.iter_markers()})
            found.append((str(item.path), item.originalname, named, marks))
        Path(sys.argv[1]).write_text(json.dumps(found))

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-m", "long or not long"], [List()]))
"""


class Listed(NamedTuple):
    """A test of the project with its parameters, a stage by its label, and its markers."""

    path: str
    name: str
    parameters: dict[str, str]
    marks: list[str]

    @property
    def quick(self) -> bool:
        return not {"gpu", "browser", "long"} & set(self.marks)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> list[Listed]:
    file = tmp_path_factory.mktemp("listed") / "tests.json"
    command, whole = [sys.executable, "-c", LIST, file], os.environ | {"FLASHCORE_WHOLE": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=whole, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return [Listed(*each) for each in json.loads(file.read_text())]


@pytest.fixture(scope="module")
def quick(listed: list[Listed]) -> list[Listed]:
    found = [test for test in listed if test.quick]
    assert 0 < len(found) < len(listed)
    return found


def values(tests: list[Listed], name: str, parameter: str) -> set[str]:
    return {
        test.parameters[parameter] for test in tests if test.name == name and parameter in test.parameters
    }


@cache
def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(path).read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def commands(function: ast.FunctionDef) -> set[str]:
    """The commands that a test gives to `main([...])`, or to a process by its helpers."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "cli.main",
            "main",
            "process",
            "flashcore",
        ):
            first = node.args[0] if node.args else None
            first = first.elts[0] if isinstance(first, ast.List) and first.elts else first
            if isinstance(first, ast.Constant):
                found.add(first.value)
    return found


@pytest.mark.long
def test_every_stage_is_checked(quick: list[Listed]) -> None:
    labels = {stage.label for stage in LADDER}
    for name in ("test_every_stage_is_right", "test_strided_and_misaligned_inputs"):
        assert values(quick, name, "stage") == labels


@pytest.mark.long
def test_every_command_runs(quick: list[Listed]) -> None:
    """More than its help."""
    assert values(quick, "test_each_command_has_help", "command") == set(COMMANDS)
    named = set().union(*(commands(functions(test.path)[test.name]) for test in quick))
    assert set(COMMANDS) <= named, set(COMMANDS) - named


@pytest.mark.long
def test_every_lesson_has_a_wrong_answer(quick: list[Listed], listed: list[Listed]) -> None:
    """And some of them are judged at once."""
    wrong = "test_a_wrong_answer_is_told_what_is_wrong_and_where"
    assert values(listed, wrong, "key") == {str(key) for key in EVERY}
    for name, parameter in (
        (wrong, "key"),
        ("test_the_solution_passes_with_margin", "key"),
        ("test_notebook_runs_fresh", "path"),
    ):
        assert values(quick, name, parameter)


@pytest.mark.long
def test_every_kind_of_mistake_is_named(quick: list[Listed], listed: list[Listed]) -> None:
    """Of broken kernels of the simulator and the CPU executor; and mutants die in both languages."""
    for name, parameter in (
        ("test_broken_kernel_is_named", "name"),
        ("test_the_bug_is_named", "kind"),
        ("test_bug_is_named", "name"),
    ):
        assert values(quick, name, parameter) == values(listed, name, parameter) != set()
    mutants = values(quick, "test_it_dies", "mutant") | values(
        quick, "test_what_is_left_out_is_reported", "mutant"
    )
    killed = {label.split()[0] for label in mutants}
    for ladder in (LADDER, *(each.ladder() for each in BRANCHES.values())):
        named = {stage.language for stage in ladder if stage.label.split()[0] in killed}
        assert named == {stage.language for stage in ladder} - {"NumPy"}


def reached(tests: set[str], *by_name: str) -> set[str]:
    """The package's modules that these files import or name, those given, and what they import in turn."""
    todo = [*by_name]
    for path in tests:
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                todo += node.value.split()
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in MODULES and name not in found:
            found.add(name)
            todo += [*imports(name), name.rpartition(".")[0]]
    return found


@pytest.mark.long
def test_every_module_is_used(quick: list[Listed]) -> None:
    """Those of a formula or a lesson are loaded by its number, those of a command when it runs: see above."""
    predicted = {label[:2] for label in values(quick, "test_formula_is_what_is_counted", "stage")}
    predicted |= {label[:2] for label in values(quick, "test_formula_is_what_is_counted", "run")}
    assert predicted - {"ba"} == {stage.label[:2] for stage in LADDER}  # and stages of backward/
    loaded = [f"flashcore_numba.predict.stage{stage.number:02d}" for stage in LADDER]
    loaded += [f"flashcore_numba.course.lessons.lesson{number:02d}" for number in LESSONS]
    loaded += [name for name in MODULES if name.startswith("flashcore_numba.cli.")]
    loaded += {*FORMULAS.values()} & set(MODULES)  # of branches, each with a test beside it
    missing = set(MODULES) - reached({test.path for test in quick}, *loaded)
    missing -= {name for name in missing if name.endswith(".__main__")}
    assert not missing, missing


@pytest.mark.long
def test_every_file_of_tests_has_quick_ones(quick: list[Listed], listed: list[Listed]) -> None:
    asked_for = {test.path for test in listed if {"gpu", "browser"} & set(test.marks)}
    left_out = {test.path for test in listed} - asked_for - {test.path for test in quick} - {__file__}
    assert not left_out


def ran(parameters: list[Any]) -> list[Any]:
    return [p.values for p in parameters if not p.marks]


def test_few_keeps_what_is_named() -> None:
    assert ran(few("abc", "b")) == [("b",)]
    assert [p.values for p in few("abc", "b")] == [("a",), ("b",), ("c",)]
    assert ran(few([(1, 2), pytest.param(3, 4, id="x")], (3, 4))) == [(3, 4)]
    with pytest.raises(ValueError, match=r"\('d',\) is none of the values"):
        few("abc", "d")


def test_first_of_each_keeps_one_of_a_kind() -> None:
    pairs = [(1, "a"), (1, "b"), pytest.param(2, "c", id="x", marks=pytest.mark.browser)]
    found = first_of_each(pairs, lambda number, _: number)
    assert [[mark.name for mark in p.marks] for p in found] == [[], ["long"], ["browser"]]
    assert found[2].id == "x"
