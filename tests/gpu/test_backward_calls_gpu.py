"""attention_backward() on a GPU by plans and by graphs: right, on the caller's stream, and captured."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba import attention_backward, attention_varlen_backward
from flashcore_numba.branches.backward import bounds
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.features import Features
from flashcore_numba.run import plans

sys.path.insert(0, str(Path(__file__).parent))
from capturing import library

pytestmark = pytest.mark.gpu

HAVE_TORCH = importlib.util.find_spec("torch") is not None
WITHOUT = pytest.mark.skipif(
    not HAVE_TORCH, reason="PyTorch is missing: pip install 'flashcore-numba[peers]'"
)
EACH_KIND = pytest.mark.parametrize("kind", ["cupy", pytest.param("torch", marks=WITHOUT)])
NAMES = ("dout", "q", "k", "v", "out", "lse")
LENGTHS = np.array([0, 70, 70, 200], np.int32)
CASES = {
    "plain": ({}, {}),
    "deterministic": ({}, {"deterministic": True}),
    "scratch memory": ({}, {"stage": "backward/mma_sync"}),
    "window, sinks": ({"window": (50, 3), "sinks": 4}, {}),
    "ALiBi": ({"alibi_slopes": 4}, {}),
    "packed": ({"cu_seqlens_q": LENGTHS, "cu_seqlens_k": LENGTHS}, {}),
}


class Call:
    """One call of the backward pass of random numbers, by a plan from the second time on."""

    def __init__(self, lib, case, rng):
        self.lib = lib
        features, self.options = CASES[case]
        features = {
            name: rng.random(given).astype(np.float32) if isinstance(given, int) else given
            for name, given in features.items()
        }
        forward = normal(rng, 1, 4, 200, 200, 64, kv_heads=2, causal=True)
        self.x = backward_inputs(forward.but(features=Features(**features)), rng)
        self.packed = "cu_seqlens_q" in features
        arrays = [self._turned(self.x.arrays[name]) for name in NAMES]
        self.arrays = [lib.array(np.ascontiguousarray(each)) for each in arrays]
        self.features = {
            name: lib.array(given) if isinstance(given, np.ndarray) else given
            for name, given in features.items()
        }

    def _turned(self, array):
        """The array as the call of packed sequences takes it."""
        if not self.packed:
            return array
        return array[0].swapaxes(0, 1) if array.ndim == 4 else array[0]

    def __call__(self, **targets):
        function = attention_varlen_backward if self.packed else attention_backward
        return function(*self.arrays, causal=True, **self.features, **self.options, **targets)

    def check(self, found):
        reference = bounds.reference(self.x)
        for output, array in zip(GRADIENTS, found, strict=True):
            value = self.lib.view(array).get()
            value = value.swapaxes(0, 1)[None] if self.packed else value
            assert bounds.judge(output, value, reference, None).passed, output.name


@EACH_KIND
@pytest.mark.parametrize("case", CASES)
def test_calls_by_a_plan_and_by_its_graph_are_right(rng, kind, case):
    lib = library(kind)
    plans.forget()
    call = Call(lib, case, rng)
    made = [call() for _ in range(6)]

    assert len(plans._plans) == 1
    lib.synchronize()
    for each in made:
        call.check(each)
    targets = {output.name: lib.empty(tuple(x.shape)) for output, x in zip(GRADIENTS, made[0], strict=True)}
    for _ in range(4):
        for target in targets.values():
            lib.fill(target, float("nan"))
        found = call(**targets)
        assert all(one is other for one, other in zip(found, targets.values(), strict=True))
        lib.synchronize()
        call.check(found)


@EACH_KIND
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
def test_a_call_can_be_captured(rng, kind, case, first):
    lib = library(kind)
    call = Call(lib, case, rng)
    plans.forget()
    if not first:
        call(), call()
    lib.synchronize()
    graph, found = lib.captured(lambda handle: call(), "global")
    for _ in range(3):
        for array in found:
            lib.fill(array, float("nan"))
        lib.synchronize()
        lib.replay(graph, lib.stream())
        lib.synchronize()
        call.check(found)
