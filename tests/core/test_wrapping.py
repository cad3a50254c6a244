"""Everything that stages are launched on is an `Executor`: mypy checks the list, and the list is complete."""

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashcore_numba
from flashcore_numba.core.executor import Executor
from flashcore_numba.core.wrapping import Passing
from flashcore_numba.course.judge.cuda_probe import _Probing
from flashcore_numba.course.launches import DryRun
from flashcore_numba.evidence.roofline import _Launches
from flashcore_numba.measure.entries import KeepScratch
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Gpu, Simulator
from flashcore_numba.run.plans import Recorder
from flashcore_numba.stages.edited import _Copies

EXECUTORS: tuple[type[Executor], ...] = (
    *(Simulator, Gpu, Compiler),
    *(Passing, KeepScratch, _Copies, Recorder),
    *(DryRun, _Launches, _Probing),
)
# Subclasses of the above inside a function, where nothing can name them, and a base without `launch`.
LOCAL = {"Noting", "Launched", "Idle"}
METHODS = ("empty", "counter", "launch")


def like_executors() -> set[str]:
    """The names of all classes of the package that take launches of kernels or subclass one that does."""
    classes = [
        node
        for path in Path(flashcore_numba.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    found = {
        node.name
        for node in classes
        for item in node.body
        if isinstance(item, ast.FunctionDef)
        and (
            (item.name == "launch" and [a.arg for a in item.args.args][1:2] == ["kernel"])
            or item.name == "counter"
        )
    }
    while (
        more := {node.name for node in classes for base in node.bases if ast.unparse(base) in found} - found
    ):
        found |= more
    return found - {"Executor"}


@pytest.mark.long
def test_the_list_is_complete() -> None:
    assert like_executors() - LOCAL == {each.__name__ for each in EXECUTORS}


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_it_has_the_methods_with_their_parameters(executor: type) -> None:
    for name in METHODS:
        theirs = inspect.signature(getattr(executor, name)).parameters
        ours = inspect.signature(getattr(Executor, name)).parameters
        assert [(p.name, p.kind, p.default) for p in theirs.values()] == [
            (p.name, p.kind, p.default) for p in ours.values()
        ], name


class Asked:
    """Notes what it is asked for."""

    sm_count, shared_limit = 7, 65536

    def __init__(self) -> None:
        self.launched: list[tuple] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def counter(self, count: int = 1) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.launched.append((kernel, grid, block, args, shared_bytes))


@pytest.mark.parametrize("wrap", [Passing, KeepScratch, lambda inner: _Copies(inner, Path())])
def test_what_wraps_another_passes_everything_on(wrap: Any) -> None:
    inner = Asked()
    outer = wrap(inner)
    assert (outer.sm_count, outer.shared_limit) == (7, 65536)
    assert outer.empty((2, 3), np.float32).shape == (2, 3)
    assert outer.counter(3).tolist() == [0, 0, 0]
    outer.launch("kernel", 2, (32, 4), 1, 2.5, shared_bytes=48)
    assert inner.launched == [("kernel", 2, (32, 4), (1, 2.5), 48)]
