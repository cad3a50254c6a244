"""The wheel: what is in it, and what of it runs beside NumPy alone and beside what it declares."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cuda_reference import extras
from cuda_reference.extras import EXTRAS, install

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INFO = f"flashcore_numba-{PROJECT['version']}.dist-info"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE
)
WITHOUT_NUMBA = [text for text in EXAMPLES if "from flashcore_numba.simulator import cuda" in text]
PROBES = (
    "cuda_reference/stage99_probe.cu",
    "cuda_reference/include/probe.cuh",
    "flashcore_numba/records/data/trust/probe.json",
)
PICTURES = ("flashcore_numba/records/data/probe.png", "flashcore_numba/records/data/probe.svg")


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA"))}
    parts = [str(part) for part in command]
    return subprocess.run(parts, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree to which one file of each kind has been added."""
    tree = tmp_path_factory.mktemp("tree")
    generated = shutil.ignore_patterns("__pycache__")
    for package in ("flashcore_numba", "cuda_reference", "tests"):
        shutil.copytree(ROOT / package, tree / package, ignore=generated)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    for name in (*PROBES, *PICTURES):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("probe\n")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tree / "dist", cwd=tree)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


def environment(folder: Path, wheel: Path, packages: set[str]) -> Path:
    """The Python of a new virtual environment: the wheel without its dependencies, these distributions of the
    tests' own environment, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    for name in packages:
        for file in metadata.files(name) or []:
            if not {"..", "__pycache__"} & set(file.parts):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).symlink_to(file.locate())
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-cache-dir")
    installed = run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return python


def declared(wheel: Path) -> set[str]:
    """The distributions that the wheel needs without an extra, and those that they need in turn."""
    found: dict[str, Requirement] = {}
    with zipfile.ZipFile(wheel) as archive:
        asked = metadata.PathDistribution(zipfile.Path(archive, f"{INFO}/")).requires or []
        waiting = [(requirement, "") for requirement in asked]
        while waiting:
            text, extra = waiting.pop()
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = requirement.name.lower().replace("_", "-")
            assert requirement.specifier.contains(metadata.version(name), prereleases=True), text
            if name not in found:
                waiting += [(each, "") for each in metadata.requires(name) or []]
            waiting += [(each, one) for one in requirement.extras for each in metadata.requires(name) or []]
            found[name] = requirement
    return set(found)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and NumPy."""
    return environment(tmp_path_factory.mktemp("bare"), wheel, {"numpy"})


@pytest.fixture(scope="module")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and what it declares."""
    return environment(tmp_path_factory.mktemp("complete"), wheel, declared(wheel))


@pytest.mark.long
def test_wheel_holds_both_packages_and_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(f"{INFO}/entry_points.txt").decode()
    assert set(PROBES) <= names
    assert not [name for name in names if name.endswith((".png", ".svg"))]
    sources = {
        str(path.relative_to(ROOT))
        for package in ("flashcore_numba", "cuda_reference")
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources and sources <= names
    assert {name.partition("/")[0] for name in names} == {"flashcore_numba", "cuda_reference", INFO}
    assert {f"{INFO}/licenses/LICENSE", "flashcore_numba/py.typed", "cuda_reference/py.typed"} <= names
    assert "flashcore = flashcore_numba.cli:main" in entry_points


# Beside NumPy alone


@pytest.mark.long
def test_the_bare_environment_has_numpy_and_the_wheel(bare: Path, tmp_path: Path) -> None:
    program = """
        import importlib.metadata, importlib.util, sys
        names = sorted(each.name for each in importlib.metadata.distributions())
        assert names == ["flashcore-numba", "numpy"], names
        for name in ("numba", "numba_cuda", "llvmlite", "rich", "matplotlib", "platformdirs", "cupy"):
            assert importlib.util.find_spec(name) is None, name
        import flashcore_numba
        assert flashcore_numba.__file__.startswith(sys.prefix), flashcore_numba.__file__
        print(flashcore_numba.__version__)
    """
    ran = run(bare, "-c", textwrap.dedent(program), cwd=tmp_path)
    assert (ran.returncode, ran.stdout.strip()) == (0, PROJECT["version"]), ran.stderr


@pytest.mark.parametrize("number", range(len(WITHOUT_NUMBA)))
def test_a_readme_example_runs_beside_numpy_alone(number: int, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(WITHOUT_NUMBA[number])
    ran = run(bare, "example.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_readme_has_an_example_without_numba() -> None:
    assert WITHOUT_NUMBA and not any("from numba" in text for text in WITHOUT_NUMBA)


KERNEL = """
import numpy as np
from flashcore_numba.simulator import SimulationError, cuda, float32, simulate

@cuda.jit
def window_sum(x, out):
    tile = cuda.shared.array(66, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t + 1] = x[i] if i < x.size else float32(0)
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else float32(0)
        tile[65] = x[i + 64] if i + 64 < x.size else float32(0)
    BARRIER
    if i < x.size:
        out[i] = tile[t] + tile[t + 1] + tile[t + 2]

x = np.random.default_rng().standard_normal(200, dtype=np.float32)
out = cuda.device_array_like(x)
"""


def test_a_race_is_named_beside_numpy_alone(bare: Path, tmp_path: Path) -> None:
    kernel = KERNEL.replace("BARRIER", "pass")
    end = """
for problem in simulate(window_sum, 4, 64, x, out).problems:
    print(problem.kind, problem.line, problem.other_line)
try:
    window_sum[4, 64](cuda.to_device(x), out)
except SimulationError as error:
    print(len(error.problems), "raised")
"""
    (tmp_path / "racy.py").write_text(kernel + end)
    ran = run(bare, "racy.py", cwd=tmp_path)
    lines = kernel.splitlines()
    write, read = (n for n, text in enumerate(lines, 1) if "tile[t + 1] =" in text or "out[i] = tile" in text)
    *found, raised = ran.stdout.splitlines()
    assert f"race {write} {read}" in found, ran.stdout + ran.stderr
    assert raised == f"{len(found)} raised"


def test_a_correct_kernel_is_right_beside_numpy_alone(bare: Path, tmp_path: Path) -> None:
    end = """
window_sum[4, 64](cuda.to_device(x), out)
padded = np.pad(x, 1)
np.testing.assert_allclose(out.copy_to_host(), padded[:-2] + x + padded[2:], rtol=1e-5, atol=1e-5)
simulate(window_sum, 4, 64, x, out, order="random:3").check()
"""
    (tmp_path / "right.py").write_text(KERNEL.replace("BARRIER", "cuda.syncthreads()") + end)
    ran = run(bare, "right.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "program",
    [
        "flashcore_numba.LADDER",
        "flashcore_numba.attention(x, x, x, stage=5)",
        "flashcore_numba.attention(x, x, x)",
    ],
)
def test_the_ladder_asks_for_numba_beside_numpy_alone(program: str, bare: Path, tmp_path: Path) -> None:
    start = "import flashcore_numba, numpy as np\nx = np.zeros((1, 1, 32, 64), np.float16)\n"
    ran = run(bare, "-c", start + program, cwd=tmp_path)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.endswith(f"MissingPackageError: the package numba is not installed: {install()}")


@pytest.mark.long
def test_the_command_says_what_it_needs_beside_numpy_alone(bare: Path, tmp_path: Path) -> None:
    helped = run(bare.parent / "flashcore", "--help", cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    commands = re.findall(r"^    ([a-z]+) ", helped.stdout, re.MULTILINE)
    assert {"stages", "check", "count", "pictures", "lab"} <= set(commands)
    program = """
        import sys
        from flashcore_numba.cli import main
        for command in sys.argv[1:]:
            print(main([command, *["5"] * (command in ("count", "profile", "starter", "predict", "hint"))]))
    """
    ran = run(bare, "-c", textwrap.dedent(program), *commands, cwd=tmp_path)
    assert ran.stdout.split() == ["1"] * len(commands), ran.stderr
    for command, line in zip(commands, ran.stderr.splitlines(), strict=True):
        message = rf"flashcore {command}: the package \w+ is not installed: {install()}"
        assert re.fullmatch(message, line), line


# Beside what it declares


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_a_readme_example_runs_beside_what_the_wheel_declares(
    number: int, complete: Path, tmp_path: Path
) -> None:
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    ran = run(complete, "example.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.long
def test_every_module_is_imported_beside_what_the_wheel_declares(complete: Path, tmp_path: Path) -> None:
    program = """
        import importlib, pkgutil, sys
        import cuda_reference, flashcore_numba
        for package in (cuda_reference, flashcore_numba):
            assert package.__file__.startswith(sys.prefix), package.__file__
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if module.name.endswith("__main__"):
                    continue
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    known = {"cupy", "torch", "openevolve", "IPython", "jupyter_server"}
                    assert error.name.partition(".")[0] in known, f"{module.name}: {error}"
        from numba import cuda
        assert "numba_cuda" in cuda.__file__, cuda.__file__
        print(len([name for name in sys.modules if name.startswith("flashcore_numba.")]), "modules")
    """
    ran = run(complete, "-c", textwrap.dedent(program), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[0]) > 100


@pytest.mark.long
@pytest.mark.parametrize(
    "command, status, said",
    [
        (["stages"], 0, "online_softmax"),
        (["count", "5", "--shape", "1x1x32x64"], 0, "online_softmax"),
        (
            ["pictures"],
            1,
            f"flashcore pictures: the package matplotlib is not installed: {install('pictures')}\n",
        ),
        (["resources", "5"], 1, f"is missing: {install('compiler')}\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_runs_or_names_the_extra(
    command: list[str], status: int, said: str, complete: Path, tmp_path: Path
) -> None:
    ran = run(complete.parent / "flashcore", *command, cwd=tmp_path)
    assert ran.returncode == status, ran.stderr
    if status:
        assert ran.stderr.endswith(said) and ran.stderr.count("\n") == 1
    else:
        assert said in ran.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        "from flashcore_numba.records.artifact import recorded\n"
        "from flashcore_numba.report.pictures import drawable\n"
        "drawable(recorded())[0][0].draw(Path())",
        "from flashcore_numba.course.figures.canvas import lettered\nlettered(print)()",
    ],
    ids=["picture", "figure"],
)
def test_a_picture_asks_for_its_extra(program: str, complete: Path, tmp_path: Path) -> None:
    ran = run(complete, "-c", f"from pathlib import Path\n{program}", cwd=tmp_path)
    last = ran.stderr.splitlines()[-1]
    assert "MissingPackageError" in last and last.endswith(f"is not installed: {install('pictures')}")


# What the messages say


def test_every_extra_that_a_message_names_brings_its_package() -> None:
    """Some packages are imported under another name than their distribution's."""
    distributions = {"PIL": "matplotlib", "IPython": "ipykernel", "cuda": "numba-cuda", "llvmlite": "numba"}
    brings = PROJECT["optional-dependencies"] | {"": PROJECT["dependencies"]}
    for package, extra in EXTRAS.items():
        names = {Requirement(text).name for text in brings[extra]}
        wanted = distributions.get(package, package.replace("_", "-"))
        assert any(name == wanted or name.startswith(f"{wanted}-") for name in names), (package, extra)


def test_the_command_without_an_installed_distribution_names_the_source_tree(monkeypatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert install("tune") == "pip install 'flashcore-numba[tune]'"
    monkeypatch.setattr(extras, "version", missing)
    assert shlex.split(install("tune")) == ["pip", "install", f"{ROOT}[tune]"]
    assert shlex.split(install()) == ["pip", "install", str(ROOT)]
    assert Path(shlex.split(install())[-1], "pyproject.toml").exists()


def test_the_page_names_every_extra() -> None:
    page = (ROOT / "docs/python.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    named = re.findall(r"`([a-z0-9]+)`", " ".join(cells))
    assert sorted(named) == sorted(set(PROJECT["optional-dependencies"]) - {"dev"})


def test_no_program_of_a_page_takes_the_distribution_from_an_index() -> None:
    """No index has it, so a program that installs it names a source tree."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("lessons/*.md")]
    programs = [
        block
        for page in pages
        for block in re.findall(r"^```python\b.*?^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    installing = [block for block in programs if '"pip", "install"' in block]
    assert installing and not any("flashcore-numba" in block for block in installing)


@pytest.mark.long
def test_every_command_for_pip_names_an_extra_that_exists() -> None:
    pattern = re.compile(r"""(?:flashcore-numba|["']\.)\[([a-z0-9,]+)\]|\binstall\(["']([a-z0-9]+)["']\)""")
    named: set[str] = set()
    for suffix in ("*.md", "*.py"):
        for folder in ("", "docs", "lessons", "flashcore_numba", "cuda_reference", "tests"):
            for path in (ROOT / folder).rglob(suffix) if folder else ROOT.glob(suffix):
                text = path.read_text()
                assert not re.search(r"\bflashcore\[[a-z0-9]", text), path
                named |= {extra for found in pattern.findall(text) for extra in "".join(found).split(",")}
    assert {"compiler", "notebooks", "peers", "pictures"} <= named <= set(PROJECT["optional-dependencies"])
