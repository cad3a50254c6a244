"""The right answer for the arrays that are timed, and how far a timed output is from it."""

from typing import Any

import numpy as np

from flashcore_numba.checks import bounds

MOST_PAIRS = (
    2**27
)  # (query row, key) pairs: float64 attention of more takes NumPy longer than the timing itself


class Truth:
    """float64 attention of all heads of a problem, or of a random choice of them when there are too many.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], NumPy arrays.
    """

    def __init__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        causal: bool,
        scale: float | None,
        rng: np.random.Generator,
    ):
        batch, heads = q.shape[:2]
        group = heads // k.shape[1]
        most = max(1, MOST_PAIRS // (q.shape[2] * k.shape[2]))
        self.heads_total = batch * heads
        chosen = np.sort(rng.permutation(self.heads_total)[:most])
        self.at = chosen // heads, chosen % heads
        kv_at = self.at[0], self.at[1] // group
        self.reference = bounds.reference(
            q[self.at][:, None], k[kv_at][:, None], v[kv_at][:, None], causal, scale
        )

    def judge(self, outputs: list[np.ndarray]) -> dict[str, Any]:
        """Errors of all outputs, each [B, H, S_q, D]: max, mean, relative |out - ref| / |ref|, verdict.

        An error that is not finite (a NaN, an element never written) is given as None, and never passes.
        """
        ref = self.reference
        got = [np.asarray(out[self.at][:, None], np.float64) for out in outputs]
        errors = np.stack([np.abs(out - ref.out) for out in got])
        verdicts = [bounds.judge(out, ref) for out in got]
        worst = min(verdicts, key=lambda verdict: verdict.margin)
        figures = {
            "max": errors.max(),
            "mean": errors.mean(),
            "relative": max(np.linalg.norm(out - ref.out) for out in got) / np.linalg.norm(ref.out),
            "margin": worst.margin,
        }
        return {
            **{name: float(value) if np.isfinite(value) else None for name, value in figures.items()},
            "right": all(verdict.passed for verdict in verdicts),
            "reason": worst.reason,
            "heads_checked": len(self.at[0]),
            "heads": self.heads_total,
        }
