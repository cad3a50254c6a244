"""Fixtures for every test: fresh random numbers, and no silent skip of what needs a GPU or a browser."""

import fcntl
import gc
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# A process per core runs tests: more threads of NumPy's and PyTorch's libraries only wait for each other.
for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # read where the libraries are imported
    os.environ.setdefault(threads, "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from flashcore_numba.core import lean  # noqa: E402

with lean.no_iri_grammars():  # before the notebooks' packages import it
    import jsonschema  # noqa: F401

pytest_plugins = ["artifacts", "stub_gpu"]

# What names the run to all its processes, which draw the same tests.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)

# A shell's background job starts with SIGINT ignored, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that was asked for on a machine without the GPU or the browser it needs is an error, no skip."""
    if item.get_closest_marker("gpu"):
        from flashcore_numba.core import gpu

        if not gpu.available():
            pytest.fail(f"selected with -m gpu, but {gpu.why_not()}", pytrace=False)
    if item.get_closest_marker("browser") and chromium() is None:
        pytest.fail("selected with -m browser, but there is no Chromium: apt install chromium", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Around fixtures too, and outside a test's time limit."""
    if not item.get_closest_marker("gpu"):
        return (yield)
    with gpu_turn(item.get_closest_marker("alone") is not None):
        try:
            return (yield)
        finally:
            give_memory_back()


def give_memory_back() -> None:
    """The GPU's memory that libraries keep for later: other processes' tests want it."""
    gc.collect()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        sys.modules["torch"].cuda.empty_cache()


@contextmanager
def gpu_turn(alone: bool, folder: str | None = None) -> Iterator[None]:
    """The GPU for one test among those of all processes; `alone`: for no other at the same time."""
    name = f"flashcore-gpu-{os.getuid()}"
    first, second = (Path(folder or tempfile.gettempdir(), f"{name}.{each}") for each in ("next", "in-use"))
    with first.open("w") as waiting, second.open("w") as using:
        fcntl.flock(waiting, fcntl.LOCK_EX)  # whoever waits to be alone keeps the others from beginning
        fcntl.flock(using, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(waiting, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long test runs only where -m names the marker: `-m gpu` selects what is quick on a GPU.

    A test that needs the GPU ends by its time limit with its process: no signal reaches Python while it waits
    for a kernel that hangs.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(method="thread"))
    left_out = {item for item in items if item.get_closest_marker("long")}
    if "long" in config.getoption("markexpr"):
        left_out = set() if os.environ.get("FLASHCORE_WHOLE") or _named(config) else undrawn(left_out)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _named(config: pytest.Config) -> bool:
    """Whether the run is of tests, files or folders that somebody named."""
    whole = {config.rootpath / each for each in config.getini("testpaths")}
    return {(config.invocation_params.dir / each).resolve() for each in config.args} != whole


def undrawn(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """What a run leaves out of the matrices: of a test with three cells or more it draws a fifth, which is
    another one in each run and the same in all its processes.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, cells in tests.items():
        if len(cells) >= 3:
            cells.sort(key=lambda item: item.nodeid)
            left_out |= {*cells} - {*random.Random(RUN + name).sample(cells, -(-len(cells) // 5))}
    return left_out


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[Any]:
    """What is imported and collected is no garbage: a search for some would take a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What the tests import stays: the frameworks' many objects need not be searched for garbage."""
    gc.collect()
    gc.freeze()


def chromium() -> str | None:
    """Where the system's Chromium is."""
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@pytest.fixture(scope="session", autouse=True)
def own_progress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test records attempts in the progress of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def browser():
    """Headless Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    quiet = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync")
    options = [f"--{name}" for name in ("no-sandbox", "disable-gpu", "disable-quic", *quiet)]
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=options)
        yield running
        running.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator with a fresh seed; a failure names it, and FLASHCORE_SEED repeats it."""
    seed = int(os.environ.get("FLASHCORE_SEED") or secrets.randbits(32))
    request.node.add_report_section("setup", "seed", f"repeat with FLASHCORE_SEED={seed}")
    return np.random.default_rng(seed)
