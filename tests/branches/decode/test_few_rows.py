"""attention() of few query rows over many keys: the kernels of decoding on arrays without pages."""

from types import SimpleNamespace

import numpy as np
import pytest

from flashcore_numba.branches.decode.few_rows import STAGES, Unpaged, preferred
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.features import Features
from flashcore_numba.run.executor import Simulator

EACH_STAGE = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


def wrong(stage, f, **options):
    """What is not right of what the stage writes on the CPU executor."""
    executor = Simulator(**options)
    found = stage.run(f.problem(f.arrays), executor, None, lambda shape, dtype: np.full(shape, np.nan, dtype))
    executor.check()
    right = FORWARD.reference(f)
    verdicts = [FORWARD.judge(each, found[each.name], right, None) for each in FORWARD.outputs]
    return [each.reason for each in verdicts if not each.passed]


def drawn(rng, rows=3, keys=700, **features):
    f = normal(rng, 2, 8, rows, keys, 64, 2, causal=True)
    return f.but(features=Features(**features)) if features else f


@pytest.mark.long
@EACH_STAGE
def test_right(stage, rng):
    assert not wrong(stage, drawn(rng), sm_count=132)
    sinks, used = rng.standard_normal(8).astype(np.float32), np.array([600, 0], np.int32)
    f = drawn(rng, 9, 650, window=(400, -1), softcap=20.0, sinks=sinks, seqused_k=used)
    assert not wrong(stage, f, sm_count=3)


@EACH_STAGE
@pytest.mark.long
def test_cases_of_the_forward_pass(stage, rng):
    """A third of them, which each run draws."""
    every = names(stage)
    assert len(every) > 40
    chosen = rng.choice(every, len(every) // 3, replace=False)
    report = check_stage(stage, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen)


MISTAKES = {
    "a key less": ("capacity", lambda p: p.forward.seq_k - 1),
    "K for V": ("v_pool", lambda p: p.forward.k),
    "the first K/V head": ("k_pool", lambda p: p.forward.k[:, :1].repeat(2, 1)),
    "heads not first": ("k_pool", lambda p: p.forward.k.swapaxes(1, 2)[:, :2].copy()),
    "not causal": ("causal", lambda p: False),
    "another scale": ("scale", lambda p: p.forward.scale * 1.01),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_view_is_seen(mistake, monkeypatch, rng):
    name, made = MISTAKES[mistake]
    monkeypatch.setattr(Unpaged, name, property(made), raising=False)
    try:
        assert wrong(STAGES[0], drawn(rng), sm_count=132)
    except Exception as error:  # what is read beside the arrays is an error of the executor
        assert "Simulation" in type(error).__name__, error


def test_which_problems():
    def served(rows, keys, batch=2, group=4, on_gpu=True, dim=64):
        p = SimpleNamespace(seq_q=rows, seq_k=keys, batch=batch, group=group, on_gpu=on_gpu, head_dim=dim)
        return preferred(p)

    assert served(1, 512) == served(16, 9000) == served(9, 9000, batch=1) == STAGES
    assert served(9, 9000, batch=1, dim=256) == STAGES[::-1]  # 36 rows of a K/V head, one request
    assert not served(1, 511) and not served(17, 9000) and not served(9, 9000, group=8)
    assert not served(1, 9000, on_gpu=False)
