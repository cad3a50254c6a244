"""The rules of the house, checked over the source: style, direction of imports, stage files."""

import ast
import graphlib
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGE_FILES = sorted((ROOT / "flashcore_numba/stages").glob("stage[0-9]*.py"))

# A module imports from its own layer or one below.
LAYERS = (
    {"cuda_reference"},
    {"wide", "simulator", "core"},
    {"stages"},
    {"run"},
    {"attention", "predict"},
    {"checks", "records"},
    {"measure", "evidence"},
    {"report"},
    {"course"},
    {"cli", "__main__"},
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def modules() -> dict[str, Path]:
    found = {}
    for package in ("flashcore_numba", "cuda_reference"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, top_level_only: bool) -> set[str]:
    """The project's modules that module `name` imports; imports for the type checker alone do not count."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()

    def add(base: str, names: list[str]) -> None:
        for each in names:
            target = f"{base}.{each}"
            while target and target not in MODULES:
                target = target.rpartition(".")[0]
            if target and target != name:
                found.add(target)

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, [""])
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            add(base, [alias.name for alias in node.names])
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text()))
    return found


def layer(module: str) -> int | None:
    """The rank of a module; None for `flashcore_numba` itself, which only hands names on."""
    top, _, rest = module.partition(".")
    if top == "cuda_reference":
        return RANK[top]
    part = rest.partition(".")[0]
    assert not part or part in RANK, (
        f"flashcore_numba.{part} has no layer: give it one in {Path(__file__).name}"
    )
    return RANK[part] if part else None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_down(name: str) -> None:
    own = layer(name)
    for target in imports(name, top_level_only=False):
        rank = layer(target)
        if own is not None:
            assert rank is None or rank <= own, f"{name} imports {target}, which lies above it"
        if name.startswith("cuda_reference"):
            assert target.startswith("cuda_reference"), f"{name} imports {target}"


def test_no_import_circle() -> None:
    graph = {name: imports(name, top_level_only=True) for name in MODULES}
    assert sum(map(len, graph.values())) > len(MODULES) // 2, "the imports were not found"
    # Every module of a package runs the package's __init__ first, so only what __init__ names is an edge.
    graph["flashcore_numba"] = set()
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", STAGE_FILES, ids=lambda path: path.stem)
def test_stage_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120


@pytest.mark.parametrize("path", STAGE_FILES, ids=lambda path: path.stem)
def test_every_barrier_names_its_hazard(path: Path) -> None:
    with path.open("rb") as source:
        commented = {t.start[0] for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT}
    bare = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"syncthreads", "syncwarp"}
        and not commented & {node.lineno - 1, node.lineno}
    ]
    assert not bare, f"{path.name}: the barriers at lines {bare} do not say which hazard they close"


def test_stages_are_found() -> None:
    assert STAGE_FILES


def text_files() -> list[Path]:
    """What git tracks or would track; without git, every file outside hidden and generated folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode == 0 and (ROOT / ".git").exists():
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        files = [p for p in ROOT.rglob("*") if not re.search(r"/(\.venv|\.\w+_cache|__pycache__)/", str(p))]
    return [p for p in files if p.is_file() and b"\0" not in p.read_bytes()[:8192]]


@pytest.mark.parametrize(
    "what, pattern",
    [
        ("a path of one machine", r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+|tmp/w)(?:/|\b)"),
        ("a package registry", r"pypi\.|pythonhosted\.org|/simple/|--(?:extra-)?index[-]url|artifactory"),
    ],
)
def test_no_trace_of_one_machine(what: str, pattern: str) -> None:
    files = text_files()
    assert ROOT / "pyproject.toml" in files
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not hits, f"{what} is named:\n" + "\n".join(hits)


def test_types() -> None:
    mypy = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert mypy.returncode == 0, mypy.stdout + mypy.stderr


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_style(command: list[str]) -> None:
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
    )
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr
