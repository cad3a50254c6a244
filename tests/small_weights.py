"""Problems whose lazy maximum never has to be raised again, and the traffic that is counted for them."""

import numpy as np

from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.output import OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import Traffic
from flashcore_numba.run.executor import Simulator


def problem(rng, batch, heads, seq_q, seq_k, head_dim, causal, group=1, features=OFF):
    """Scores lie within +-1.42 (D = 128), so no weight exceeds exp(2.84), and no tile is done twice."""
    q = rng.uniform(-1 / 8, 1 / 8, (batch, heads, seq_q, head_dim))
    k, v = (rng.uniform(-1, 1, (batch, heads // group, seq_k, head_dim)) for _ in range(2))
    return Problem(*(x.astype(np.float16) for x in (q, k, v)), causal=causal, features=features)


def counted(stage, variant, problem, sm_count):
    executor = Simulator(sm_count=sm_count, races=False)
    out = np.empty(OUT.shape(problem), OUT.dtype(problem))
    stage.launch(problem, out, executor, variant=variant)
    return sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())


def window(rng, **options):
    sides = (int(rng.integers(0, 60)), int(rng.integers(-1, 30)))
    rows, keys = (int(n) for n in rng.integers(1, 400, 2))
    return problem(rng, 1, 2, rows, keys, features=Features(sides), **options)


def adjusted(rng, **options):
    features = Features(softcap=3.0, sinks=ones(2), alibi_slopes=ones(2, 2) / 256)
    return problem(rng, 2, 2, 70, int(rng.integers(1, 150)), features=features, **options)


def used(rng, **options):
    counts = rng.permutation([0, 150, int(rng.integers(150))]).astype(np.int32)
    return problem(rng, 3, 2, 50, 150, features=Features(seqused_k=counts), **options)


def packed(rng, **options):
    """More sequences than a warp has lanes, some of them empty."""
    bounds_q, bounds_k = (np.cumsum([0, *rng.integers(0, 50, 40)], dtype=np.int32) for _ in range(2))
    features = Features(
        (int(rng.integers(20)), -1),
        sinks=ones(2),
        seqused_k=np.minimum(20, np.diff(bounds_k)),
        cu_seqlens_q=bounds_q,
        cu_seqlens_k=bounds_k,
    )
    return problem(rng, 1, 2, bounds_q[-1], bounds_k[-1], features=features, **options)


def merged(rng, **options):
    """With what was computed before, of every row, and a float32 output or not."""
    rows, keys, float32_out = int(rng.integers(1, 200)), int(rng.integers(1, 200)), bool(rng.integers(2))
    shape = (2, 2, rows, options["head_dim"])
    features = Features(float32_out=float32_out, prior_out=ones(*shape), prior_lse=ones(*shape[:3]))
    return problem(rng, *shape[:3], keys, features=features, **options)


def ones(*shape):
    return np.ones(shape, np.float32)


WITH_FEATURES = (window, adjusted, used, packed)
