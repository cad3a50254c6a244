"""What tests of the backward pass's stages draw, run and judge."""

from dataclasses import replace

import numpy as np

from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.checks.cases import normal
from flashcore_numba.run.executor import Simulator


class WithMacros(Simulator):
    """Runs kernels with more macros: ("PTX_ARCH", 800) plays a GPU of that architecture."""

    def __init__(self, *macros, **options):
        super().__init__(**options)
        self.macros = macros

    def launch(self, kernel, *args, **options):
        super().launch(replace(kernel, defines=(*kernel.defines, *self.macros)), *args, **options)


def drawn(rng, rows=70, keys=150, head_dim=64, batch=1, heads=2, features=None, dlse=False, **options):
    x = normal(rng, batch, heads, rows, keys, head_dim, **options)
    return backward_inputs(x.but(features=features) if features else x, rng, dlse)


def poisoned(problem):
    """Outputs that hold NaN."""
    return {each.name: np.full(each.shape(problem), np.nan, each.dtype(problem)) for each in GRADIENTS}


def gradients(x, launch):
    """By name, of `launch(problem, dq=..., dk=..., dv=...)`; what is not written stays NaN."""
    problem = x.problem(x.arrays)
    found = poisoned(problem)
    launch(problem, **found)
    return found


def wrong(x, launch):
    """The gradients that are not right, with what the judge says."""
    found, reference = gradients(x, launch), BACKWARD.reference(x)
    verdicts = [(each.name, BACKWARD.judge(each, found[each.name], reference, None)) for each in GRADIENTS]
    return [(name, verdict.reason) for name, verdict in verdicts if not verdict.passed]
