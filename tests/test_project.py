"""The project from outside: pins, make targets, the examples of docs/python.md."""

import ast
import ctypes
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
PYTHON_PAGE = (ROOT / "docs/python.md").read_text()
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", PYTHON_PAGE, re.DOTALL | re.MULTILINE)


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=240,
    )


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("group", ["dependencies", "dev", "notebooks", "pictures", "site"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_constraints_pin_what_the_project_asks_for(group: str, python: str) -> None:
    project = PYPROJECT["project"]
    asked = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    machine = default_environment() | {"python_version": python, "python_full_version": f"{python}.9"}
    for requirement in map(Requirement, asked):
        if requirement.name == project["name"]:  # another extra of the project
            continue
        found = [
            p for p in pins() if p.name == requirement.name and (not p.marker or p.marker.evaluate(machine))
        ]
        assert len(found) == 1, f"{requirement.name} has {len(found)} pins for Python {python}"
        (version,) = found[0].specifier
        assert version.operator == "==" and version.version in requirement.specifier, (
            f"{requirement}: {found[0]}"
        )


@pytest.mark.parametrize(
    "driver_version, devices, capability, extra",
    [
        (13010, 1, (9, 0), "cuda13"),
        (13000, 2, (7, 5), "cuda13"),
        (13000, 1, (7, 0), "cuda12"),
        (12090, 1, (9, 0), "cuda12"),
        (11080, 1, (8, 0), ""),
        (13000, 0, (0, 0), ""),
        (None, 1, (9, 0), ""),
    ],
)
def test_make_picks_the_cuda_extra(driver_version, devices, capability, extra, monkeypatch, capsys) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            if driver_version is None:
                raise OSError(f"{name}: cannot open shared object file")

        def cuInit(self, flags: int) -> int:
            return 0 if devices else 100  # CUDA_ERROR_NO_DEVICE

        def cuDeviceGetCount(self, count) -> int:
            count._obj.value = devices
            return 0

        def cuDriverGetVersion(self, version) -> int:
            version._obj.value = driver_version
            return 0

        def cuDeviceGetAttribute(self, value, attribute: int, device: int) -> int:
            value._obj.value = dict(zip((75, 76), capability, strict=True))[attribute]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    runpy.run_path(str(ROOT / ".ci/cuda_extra.py"))
    assert capsys.readouterr().out.strip() == extra


@pytest.mark.parametrize("target", ["ladder", "test", "lab-env", "site"])
def test_make_without_a_usable_python_says_what_to_do(target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    before = sorted(tmp_path.iterdir())
    made = run("make", target, "PYTHON=no-such-python", cwd=tmp_path, MAKEFLAGS="")
    assert made.returncode != 0
    assert "none of these is Python 3.11 or newer with venv and pip: no-such-python" in made.stderr
    assert f"make {target} PYTHON=" in made.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_continuous_integration_runs_every_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test-all")


def imports_of(block: str) -> set[str]:
    return {node.module for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)}


def test_the_source_distribution_has_all_that_make_and_the_tests_read() -> None:
    """What is tracked, but for what an editor and a code host want; README and licence come by themselves."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name.partition("/")[0] for name in listed.splitlines()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = {name.lstrip("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    alone = {"README.md", "LICENSE", "pyproject.toml", "CITATION.cff"}
    assert included == {name for name in tracked if name == ".ci" or not name.startswith(".")} - alone


@pytest.mark.long
def test_the_page_shows_the_lines_of_the_race(tmp_path: Path) -> None:
    (block,) = (block for block in PYTHON_BLOCKS if "tile[63 - i]" in block)
    (tmp_path / "example.py").write_text(block)
    lines, ran = block.splitlines(), run(sys.executable, "example.py", cwd=tmp_path)
    write, read = (next(n for n, s in enumerate(lines, 1) if text in s) for text in ("tile[i] =", "= tile["))
    last = ran.stdout.splitlines()[-1]
    assert str(write) in last and str(read) in last, f"the race is between lines {write} and {read}: {last}"


def test_the_page_has_an_example_of_each() -> None:
    modules = set().union(*map(imports_of, PYTHON_BLOCKS))
    assert {"flashcore_numba", "flashcore_numba.simulator"} <= modules


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own with this one's configuration and fixtures, and tests with and without markers."""
    for name in ("pyproject.toml", "tests/conftest.py", "tests/artifacts.py", "tests/stub_gpu.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests/test_sample.py").write_text(
        "import pytest\n"
        "@pytest.mark.gpu\n"
        "def test_on_gpu(): pass\n"
        "@pytest.mark.gpu\n"
        "@pytest.mark.long\n"
        "def test_long_on_gpu(): pass\n"
        "@pytest.mark.long\n"
        "def test_long(): pass\n"
        "def test_seed(rng): assert False, f'drew {rng.integers(1 << 62)}'\n"
    )
    return tmp_path


def pytest_in(project: Path, *arguments: str, **env: str) -> str:
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
    return run(*command, cwd=project, PYTHONPATH=str(ROOT), **env).stdout


@pytest.mark.long
def test_gpu_tests_are_left_out_unless_asked_for(project: Path) -> None:
    assert re.search(r"1 failed, 3 deselected", pytest_in(project))


def test_help_names_what_clean_removes() -> None:
    (said,) = re.findall(r'"make clean +(.*)"', MAKEFILE)
    (removed,) = re.findall(r"^clean:\n\trm -rf (.*)", MAKEFILE, re.MULTILINE)
    named = [name for name in removed.split() if "cache" not in name and name != ".hypothesis"]
    assert named and not [name for name in named if name not in re.split(r",? ", said)]


def chosen(project: Path, *arguments: str) -> set[str]:
    listed = pytest_in(project, "--collect-only", "-q", *arguments)
    return set(re.findall(r"::(\w+)", listed))


@pytest.mark.long
def test_long_tests_are_left_out_unless_named(project: Path) -> None:
    """What `make test` and `make test-matrices` select has nothing in common, and together is everything."""
    quick, whole = (
        ("not gpu and not browser and not vllm", "gpu"),
        ("not gpu and (long or browser)", "gpu and long"),
    )
    for expression in (*quick, *whole):
        assert f",{expression}" in MAKEFILE, expression
    assert [chosen(project, "-m", expression) for expression in (*quick, *whole)] == [
        {"test_seed"}, {"test_on_gpu"}, {"test_long"}, {"test_long_on_gpu"},
    ]  # fmt: skip
    assert chosen(project) == {"test_seed"}


@pytest.mark.long
def test_a_fifth_is_drawn_and_all_are_there_by_name(project: Path) -> None:
    """Each process of a run draws the same, each run draws anew; what is named runs whole, as all does where
    the environment says so. Of two cells both run.
    """
    (project / "tests/test_drawn.py").write_text(
        "import pytest\n"
        "@pytest.mark.long\n"
        "@pytest.mark.parametrize('i', range(30))\n"
        "def test_of_many(i): pass\n"
        "@pytest.mark.long\n"
        "@pytest.mark.parametrize('i', range(2))\n"
        "def test_of_two(i): pass\n"
    )

    def found(*arguments: str, run: str, whole: str = "") -> tuple[str, ...]:
        variables = {"PYTEST_XDIST_TESTRUNUID": run, "FLASHCORE_WHOLE": whole}
        listed = pytest_in(project, "--collect-only", "-q", "-m", "long", *arguments, **variables)
        assert arguments or listed.count("test_of_two[") == 2
        return tuple(re.findall(r"test_of_many\[\d+\]", listed))

    first, again, other = found(run="a"), found(run="a"), found(run="b")
    assert first == again != other and len(first) == len(other) == 6
    assert len(found("tests/test_drawn.py::test_of_many", run="a")) == 30
    assert len(found("tests/test_drawn.py", run="a")) == len(found(run="a", whole="1")) == 30


@pytest.mark.long
def test_a_plugin_that_warns_beside_xdist_does_not_end_the_run(project: Path, tmp_path: Path) -> None:
    """As pytest-benchmark does up to its release 5.2, where a warning is an error."""
    plugins = tmp_path / "plugins"
    installed = plugins / "pytest_benchmark-5.2.3.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-benchmark\nVersion: 5.2.3\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nbenchmark = warns_beside_xdist\n")
    (plugins / "warns_beside_xdist.py").write_text(
        "import warnings\n"
        "def pytest_configure(config):\n"
        "    if config.getoption('numprocesses', None) or hasattr(config, 'workerinput'):\n"
        "        warnings.warn('Benchmarks are automatically disabled')\n"
    )
    paths = os.pathsep.join((str(ROOT), str(plugins)))
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "-k", "seed")
    assert "1 failed" in run(*command, cwd=project, PYTHONPATH=paths).stdout
    unblocked = (project / "pyproject.toml").read_text().replace('"-p", "no:benchmark", ', "")
    (project / "pyproject.toml").write_text(unblocked)
    assert "Benchmarks are automatically disabled" in run(*command, cwd=project, PYTHONPATH=paths).stderr


@pytest.mark.long
def test_gpu_test_without_a_gpu_is_an_error(project: Path) -> None:
    out = pytest_in(project, "-m", "gpu", CUDA_VISIBLE_DEVICES="")
    assert re.search(r"3 deselected, 1 error", out), out
    assert "selected with -m gpu, but" in out


@pytest.mark.long
def test_failure_names_the_seed_that_repeats_it(project: Path) -> None:
    first, other = pytest_in(project, FLASHCORE_SEED=""), pytest_in(project, FLASHCORE_SEED="")
    seed, drawn = re.search(r"FLASHCORE_SEED=(\d+)", first), re.search(r"drew \d+", first)
    assert seed and drawn, first
    assert drawn[0] not in other, "two runs drew the same numbers"
    assert drawn[0] in pytest_in(project, FLASHCORE_SEED=seed[1])
