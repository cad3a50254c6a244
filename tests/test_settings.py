"""What editors, hosts, hooks and citation tools read of the project agrees with the project."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_house import text_files

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = " ".join(re.findall(r"^([a-z][a-z -]*):", MAKEFILE, re.MULTILINE)).split()
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def files(*endings: str) -> list[Path]:
    """The project's text files with these endings; all of them when there are none."""
    return [path for path in text_files() if not endings or path.suffix in endings]


def test_one_version() -> None:
    numbered = re.findall(r"^## \[(\d[^]]*)\]", CHANGELOG, re.MULTILINE)
    assert numbered[0] == PROJECT["version"] == CITATION["version"]
    assert sorted(numbered, key=lambda text: [int(n) for n in text.split(".")], reverse=True) == numbered


def test_the_changelog_keeps_its_form() -> None:
    headings = re.findall(r"^(#+) (.+)$", CHANGELOG, re.MULTILINE)
    assert headings[:2] == [("#", "Changelog"), ("##", "[Unreleased]")]
    assert {text for marks, text in headings if marks == "###"} <= KINDS
    for _, text in (pair for pair in headings[2:] if pair[0] == "##"):
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d|not released)", text), text


def test_the_citation_says_what_the_project_says() -> None:
    assert CITATION["cff-version"] == "1.2.0" and CITATION["type"] == "software"
    assert CITATION["message"] and CITATION["title"].startswith("FlashCore")
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    assert set(CITATION["keywords"]) == set(PROJECT["keywords"])
    for paper in CITATION["references"]:
        assert paper["title"] and paper["year"] and paper["authors"]


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_run_the_tests() -> None:
    started = {name: workflow[True] for name, workflow in WORKFLOWS.items()}  # YAML 1.1 reads `on` as true
    assert set(started["tests"]) == {"push", "pull_request"}
    assert set(started["gpu"]) == {"workflow_dispatch"}, "by hand only: the runner is somebody's own machine"
    said = {name: "\n".join(step.get("run", "") for step in steps(w)) for name, w in WORKFLOWS.items()}
    assert re.search(r"^make test( |$)", said["tests"], re.MULTILINE)
    assert "pytest -m gpu" in said["gpu"]
    matrix = WORKFLOWS["tests"]["jobs"]["quick"]["strategy"]["matrix"]["python"]
    assert f">={matrix[0]}" == PROJECT["requires-python"], "the oldest Python that is supported"


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_names_what_exists(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for step in steps(WORKFLOWS[name]):
        assert ("run" in step) != ("uses" in step), step
        for target in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE):
            assert target in TARGETS, target
        action = step.get("uses", "")
        if action.startswith("./"):
            inputs = yaml.safe_load((ROOT / action / "action.yml").read_text())["inputs"]
            assert set(step["with"]) == set(inputs)
        else:
            assert not action or re.fullmatch(r"actions/[\w-]+@v\d+", action), action
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["timeout-minutes"] and job["runs-on"]
        assert set(job.get("needs", "").split()) <= set(WORKFLOWS[name]["jobs"])


def test_hooks_are_the_tools_of_the_tests() -> None:
    (local,) = HOOKS
    assert local["repo"] == "local", "the versions are those of constraints.txt"
    dev = {re.match(r"[\w-]+", line)[0] for line in PROJECT["optional-dependencies"]["dev"]}
    tools = {}
    for hook in local["hooks"]:
        words = hook["entry"].split()
        tool = words[2] if words[:2] == [".venv/bin/python", "-m"] else words[0].removeprefix(".venv/bin/")
        tools[hook["id"]] = tool
        assert hook["language"] == "system" and tool in dev, hook["entry"]
    assert set(tools.values()) == {"ruff", "mypy", "clang-format"}
    (clang,) = (hook for hook in local["hooks"] if hook["id"] == "clang-format")
    sources = files(".cu", ".cuh", ".h", ".cpp")
    assert sources and all(re.search(clang["files"], str(path)) for path in sources)


def test_generated_files_are_marked(tmp_path: Path) -> None:
    """As git itself reads .gitattributes."""
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = [path.relative_to(ROOT).as_posix() for path in files()]
    asked = ["git", "check-attr", "-z", "--stdin", "linguist-generated", "linguist-language", "eol"]
    said = subprocess.run(
        asked, cwd=tmp_path, input="\0".join(names), capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found = {(file, key): value for file, key, value in zip(said[::3], said[1::3], said[2::3], strict=False)}
    generated = {name for name in names if found[name, "linguist-generated"] == "set"}
    assert {
        name for name in names if re.match(r"notebooks/|flashcore_numba/records/data/", name)
    } <= generated
    assert {"constraints.txt", "docs/edits.md", "docs/house.svg", "lessons/wrong_answers.md"} <= generated
    assert not [n for n in generated if n.endswith((".py", ".cu", ".cuh", ".cpp", ".h"))]
    kernels = [name for name in names if name.endswith((".cu", ".cuh"))]
    assert kernels and {found[name, "linguist-language"] for name in kernels} == {"CUDA"}
    assert {found[name, "eol"] for name in names} == {"lf"}


def test_text_keeps_to_the_editors_settings() -> None:
    """Every text file ends its lines as .editorconfig says, and Python and Makefile are indented so."""
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    assert settings["*"]["end_of_line"] == "lf" and settings["*"].getboolean("insert_final_newline")
    assert settings["*"].getboolean("trim_trailing_whitespace") and settings["*"]["indent_style"] == "space"
    for path in files():
        data = path.read_bytes()
        assert not data or data.endswith(b"\n"), path
        assert b"\r" not in data, path
        free = f"*{path.suffix}" in settings and not settings[f"*{path.suffix}"].getboolean(
            "trim_trailing_whitespace"
        )
        assert free or not re.search(rb"[ \t]$", data, re.MULTILINE), f"{path}: a line ends with blanks"
        tabs = path.name == "Makefile" or path == ROOT / ".ci/run"
        assert tabs or not re.search(rb"^\t", data, re.MULTILINE), f"{path}: indented with tabs"


def clang_format(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("clang-format")
    return subprocess.run(
        [str(program), *map(str, arguments)], cwd=ROOT, input=given, capture_output=True, text=True
    )


@pytest.mark.long
def test_clang_format_leaves_kernels_as_they_are() -> None:
    sources = files(".cu", ".cuh", ".h", ".cpp")
    done = clang_format("--dry-run", "--Werror", *sources)
    assert done.returncode == 0, done.stderr
    kernel = ROOT / "cuda_reference/stage12_mma_sync.cu"
    text = kernel.read_text()
    for wrong in (
        text.replace("    Queries q_rmem;", "  Queries q_rmem;", 1),
        text.replace("= WARPS * WARP_ROWS", "= WARPS*WARP_ROWS", 1),
    ):
        assert wrong != text
        assert clang_format(f"--assume-filename={kernel}", given=wrong).stdout == text, (
            "it mends what is wrong"
        )
