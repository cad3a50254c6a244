"""The rules of the house, checked over the source: style, direction of imports, stage files."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ROOT / "flashcore_numba/stages"
OF_BRANCHES = (
    path
    for path in (ROOT / "flashcore_numba/branches").glob("*/*.py")
    if path.name.startswith(f"{path.parent.name}_")
)
STAGE_FILES = sorted([*STAGES.glob("stage[0-9]*.py"), *STAGES.glob("warm_up_*.py"), *OF_BRANCHES])


def modules() -> dict[str, Path]:
    found = {}
    for package in ("flashcore_numba", "cuda_reference"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
PACKAGES = {name.rpartition(".")[0] for name in MODULES} & MODULES.keys()


def imports(name: str) -> set[str]:
    """The project's modules that module `name` imports, in its functions too; imports for the type checker
    alone do not count."""
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
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, [""])
        if isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name}:{node.lineno} imports relatively"
            add(node.module, [alias.name for alias in node.names])
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):  # which imports nothing
                walk(child)

    walk(ast.parse(MODULES[name].read_text()))
    return found


@functools.cache  # three seconds, which collecting the tests need not take in each process
def all_imports() -> dict[str, set[str]]:
    return {name: imports(name) for name in MODULES}


@functools.cache
def children() -> dict[str, dict[str, set[str]]]:
    """Package -> child -> the children of the same package that it imports.

    An import counts where the two modules' names part. What a package's own `__init__` imports is the package
    handing names on.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for name, targets in all_imports().items():
        for target in targets:
            one, other = name.split("."), target.split(".")
            common = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
            if common:
                package = ".".join(one[:common])
                found.setdefault(package, {}).setdefault(one[common], set()).add(other[common])
    return found


@pytest.mark.long
def test_the_imports_are_found() -> None:
    assert sum(map(len, all_imports().values())) > len(MODULES)
    assert {"core", "simulator"} <= children()["flashcore_numba"]["run"]
    assert children().keys() <= PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_import_circle(package: str) -> None:
    """Whatever imports lies above what it imports, so packages have floors: a circle has none."""
    list(graphlib.TopologicalSorter(children().get(package, {})).static_order())


def test_nothing_imports_the_face_of_its_own_package() -> None:
    """It would need what it is a part of."""
    every = [(name, target) for name, targets in all_imports().items() for target in targets]
    upwards = [f"{name} imports {target}" for name, target in every if name.startswith(f"{target}.")]
    assert not upwards


def test_cuda_reference_stands_alone() -> None:
    kernels = [name for name in MODULES if name.startswith("cuda_reference")]
    foreign = [t for name in kernels for t in all_imports()[name] if not t.startswith("cuda_reference")]
    assert kernels and not foreign


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


@pytest.mark.long
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


def test_only_packages_list_their_names() -> None:
    lists = [
        name for name, path in MODULES.items() if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)
    ]
    assert "flashcore_numba" in lists, "no list was found"
    modules = [name for name in lists if MODULES[name].name != "__init__.py"]
    assert not modules, (
        f"a module's names without an underscore are public: __all__ in {modules} says no more"
    )


def test_types() -> None:
    mypy = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert mypy.returncode == 0, mypy.stdout + mypy.stderr


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_style(command: list[str]) -> None:
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
    )
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr


@pytest.mark.parametrize(
    "path", sorted((ROOT / "cuda_reference").glob("stage*.cu")), ids=lambda path: path.stem
)
def test_a_kernels_header_is_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    header = next(n for n, line in enumerate(lines) if not line.startswith("//"))
    assert lines[0].startswith("// Stage ") and lines[1] and 5 < header <= 15
