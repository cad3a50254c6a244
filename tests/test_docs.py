"""README and docs/: what they show is run. The language of a fence says how.

    python                  a program of its own
    console                 commands after `$ `, continued after `> `, and the output they must print
    diff                    a patch
    console needs=REASON    commands for which this machine or these minutes do not suffice
    text                    nothing to run

The fences of a page run in order in one copy of the repository, which patches may change; those with the word
`long` after the language belong to the long tests. A line `...` of an output stands for any lines, `...` in a
line for any text. What is not run goes through a shell whose programs only note how they are called, and
every call must be one that the project's command line, Makefile or package accepts.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from matrix import few

from cuda_reference.files import CACHE_VARIABLE, cache_folder
from flashcore_numba.cli.parser import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SECONDS = 280  # of one command
REASONS = ("gpu", "hours", "network", "screen")
LEFT_OUT = (".*", "__pycache__", "build", "dist", "notebooks", "runs", "workspace")
NOTED = ("cp", "flashcore", "git", "make", "nvidia-smi", "pip", "pre-commit", "python", "python3")
TARGETS = " ".join(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split()


@dataclass(frozen=True)
class Fence:
    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        return next((word.removeprefix("needs=") for word in self.words if word.startswith("needs=")), None)


def fences(page: Path) -> list[Fence]:
    """Every block of code of a page; an indented one has no language."""
    blocks = (t for t in MarkdownIt().parse(page.read_text()) if t.type in ("fence", "code_block"))
    return [
        Fence(page, (t.map or [0])[0] + 1, language, tuple(words), t.content)
        for t, (language, *words) in ((t, t.info.split() or [""]) for t in blocks)
    ]


FENCES = {page: fences(page) for page in PAGES}
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(fence: Fence) -> list[tuple[str, str]]:
    """(command, expected output) of a console."""
    pairs: list[tuple[str, str]] = []
    for line in fence.text.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
            continue
        assert pairs, f"{fence.place}: a console begins with `$ ` and a command, not with {line!r}"
        command, output = pairs[-1]
        if line.startswith("> ") and not output:
            pairs[-1] = f"{command}\n{line[2:]}", ""
        else:
            pairs[-1] = command, f"{output}{line}\n"
    return pairs


def squeezed(output: str) -> str:
    """Without what only aligns: the widths of tables' columns change with their numbers."""
    return re.sub(r"(?<=\S)[ ]+(?=\S)", " ", re.sub(r"[ ]+$", "", output, flags=re.MULTILINE))


def as_pattern(expected: str) -> str:
    """A regular expression for `squeezed` output: `...` alone is any lines, in a line any text."""
    return "".join(
        r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n"
        for line in squeezed(expected).splitlines()
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `flashcore`, `python` and `pip` of the interpreter that runs the tests."""
    folder = tmp_path_factory.mktemp("programs")
    for name, call in {"flashcore": "-m flashcore_numba", "python": "", "pip": "-m pip"}.items():
        script(folder / name, f'exec {shlex.quote(sys.executable)} {call} "$@"')
    return folder


def script(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/bash\n{line}\n")
    file.chmod(0o755)


def copy_of_the_tree(folder: Path, programs: Path) -> Path:
    """A copy of the repository that a page may change, with the programs as its .venv/bin."""
    tree = folder / "flashcore"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (tree / ".venv").mkdir()
    (tree / ".venv/bin").symlink_to(programs)
    return tree


def environment(tree: Path, programs: Path) -> dict[str, str]:
    """A reader's who has just begun, save for what was compiled before."""
    home = tree.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {
        name: value for name, value in os.environ.items() if name != "COLUMNS" and not name.startswith("XDG_")
    }
    return kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "PYTHONPATH": str(tree),
        CACHE_VARIABLE: str(cache_folder("cpu").parent),
    }


def shown(fence: Fence, done: subprocess.CompletedProcess[str]) -> str:
    return f"{fence.place}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"


def run(fence: Fence, tree: Path, programs: Path) -> None:
    def process(*command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=tree,
            env=environment(tree, programs),
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    if fence.language == "diff":
        done = process("git", "apply", "-", given=fence.text)
        assert done.returncode == 0, shown(fence, done)
    if fence.language == "python":
        (tree / "example.py").write_text(fence.text)
        done = process(sys.executable, "example.py")
        assert done.returncode == 0, shown(fence, done)
    if fence.language == "console":
        for command, expected in commands(fence):
            done = process("bash", "-euo", "pipefail", "-c", command)
            assert done.returncode == 0, f"{command}\n{shown(fence, done)}"
            if expected:
                assert re.fullmatch(as_pattern(expected), squeezed(done.stdout)), (
                    f"{command}\n{shown(fence, done)}"
                )


@by_page
def test_every_fence_says_what_it_is(page: Path) -> None:
    for fence in FENCES[page]:
        assert fence.language in ("python", "console", "diff", "text"), (
            f"{fence.place}: a fence is python, console, diff or text, not {fence.language!r}"
        )
        known = {"long", *(f"needs={reason}" for reason in REASONS)} if fence.language != "text" else set()
        assert set(fence.words) <= known, f"{fence.place}: accepted are {sorted(known)}"
        assert fence.reason is None or fence.language == "console", f"{fence.place}: {fence.language} is run"
        if fence.language == "console":
            assert commands(fence), f"{fence.place}: there is no command"
        if fence.language == "text":
            looks = re.search(
                r"^(\$ .*|(?:\.venv/bin/)?(?:flashcore|python3?|pip) .*|make \w.*)", fence.text, re.MULTILINE
            )
            assert not looks, f"{fence.place}: {looks[0]!r} is a command: its fence is a console"


@pytest.mark.parametrize("page", few(PAGES, PAGES[0]), ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Path, programs: Path, tmp_path: Path) -> None:
    todo = [f for f in FENCES[page] if f.language != "text" and not f.reason and "long" not in f.words]
    tree = copy_of_the_tree(tmp_path, programs) if todo else tmp_path
    for fence in todo:
        run(fence, tree, programs)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any("long" in f.words for f in FENCES[p])], ids=lambda page: page.name
)
def test_all_that_a_page_shows_runs(page: Path, programs: Path, tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path, programs)
    for fence in FENCES[page]:
        if fence.language != "text" and not fence.reason:
            run(fence, tree, programs)


def calls(fence: Fence, folder: Path) -> Iterator[list[str]]:
    """How the commands of a fence would call their programs, as a shell expands them."""
    programs, notes = folder / ".venv/bin", folder / "notes"
    programs.mkdir(parents=True, exist_ok=True)
    for name in NOTED:
        script(programs / name, f"{{ printf '%s\\037' {name} \"$@\"; echo; }} >> {shlex.quote(str(notes))}")
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", "\n".join(command for command, _ in commands(fence))],
        cwd=folder,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, shown(fence, done)
    yield from (line.rstrip("\037").split("\037") for line in notes.read_text().split("\n")[:-1])


@pytest.mark.parametrize(
    "fence", [f for page in PAGES for f in FENCES[page] if f.reason], ids=lambda fence: fence.place
)
def test_what_is_not_run_could_be(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = list(calls(fence, tmp_path))
    assert called, f"{fence.place}: no program is called"
    monkeypatch.chdir(tmp_path)
    for program, *arguments in called:
        said = f"{fence.place}: {shlex.join([program, *arguments])}"
        if program == "flashcore":
            accepted(arguments, said)
        if program == "make":
            wanted = [argument for argument in arguments if "=" not in argument]
            assert wanted and set(wanted) <= set(TARGETS), said
        if program in ("python", "python3") and arguments[0] == "-m":
            assert find_spec(arguments[1]), said


def accepted(arguments: list[str], said: str) -> None:
    for name in (argument for argument in arguments if argument.endswith((".json", ".py", ".cu"))):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()  # what an earlier command of the page has written
    try:
        build_parser().parse_args(arguments)
    except SystemExit as stopped:
        pytest.fail(f"{said}: the command line refuses it ({stopped.code})")


@by_page
def test_names_of_commands_and_targets_exist(page: Path) -> None:
    for name in re.findall(r"`flashcore ([a-z]+)", page.read_text()):
        with pytest.raises(SystemExit) as stopped:
            build_parser().parse_args([name, "--help"])
        assert stopped.value.code == 0, f"{page.name}: flashcore {name}"
    named = set(re.findall(r"`make ([a-z][a-z-]+)", page.read_text()))
    assert named <= set(TARGETS), f"{page.name}: {named - set(TARGETS)}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a forge makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@by_page
def test_links_hold(page: Path) -> None:
    found = []
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or []:
            found += [str(child.attrs[name]) for name in ("href", "src") if name in child.attrs]
        found += re.findall(r'(?:src|srcset)="([^"]+)"', token.content) if token.type == "html_block" else []
    assert found, f"{page.name} leads nowhere"
    for link in found:
        if re.match(r"https?:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}: there is no such heading"


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("a.c\n", "abc\n", False),
        ("| a | b |\n", "| a    |  b |  \n", True),
    ],
)
def test_outputs_are_compared(expected: str, printed: str, same: bool) -> None:
    assert bool(re.fullmatch(as_pattern(expected), squeezed(printed))) == same


@pytest.mark.parametrize(
    "info, text, says",
    [
        ("python", "raise SystemExit(3)\n", "exit status 3"),
        ("console", "$ false\n", "exit status 1"),
        ("console", "$ echo 1\n2\n", "echo 1"),
        ("diff", "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-no such line\n+x\n", "README.md"),
    ],
    ids=["python", "status", "output", "diff"],
)
def test_a_fence_that_fails_is_found(info: str, text: str, says: str, programs: Path, tmp_path: Path) -> None:
    fence = Fence(ROOT / "README.md", 1, info, (), text)
    with pytest.raises(AssertionError, match=says):
        run(fence, copy_of_the_tree(tmp_path, programs), programs)


@pytest.mark.parametrize(
    "command", ["flashcore fly", "flashcore compare --rounds 1", "make coffee", "rm x", "$X"]
)
def test_a_call_that_nothing_accepts_is_found(command: str, tmp_path: Path, monkeypatch) -> None:
    fence = Fence(ROOT / "README.md", 1, "console", ("needs=gpu",), f"$ {command}\n")
    with pytest.raises((AssertionError, pytest.fail.Exception), match=r"README\.md:1"):
        test_what_is_not_run_could_be(fence, tmp_path, monkeypatch)
