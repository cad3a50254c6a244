"""The backward pass in NumPy as a stage, and the wrong versions of it that people write.

What the checks of the operation are tested by: a version is a change of `Arithmetic`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.features import OF_MODELS
from flashcore_numba.stages.stage import Stage

Steps = dict[str, Any]


@dataclass(frozen=True)
class Arithmetic:
    """One head in float32. A version replaces a step, which takes the names of the steps before it."""

    scores: Callable = lambda s: s["scale"] * (s["q"] @ s["k"].T)
    delta: Callable = lambda s: (s["dout"] * s["out"]).sum(axis=1)
    seen: Callable = lambda s: s["mask"].matrix()
    lse: Callable = lambda s: s["lse"]
    p: Callable = lambda s: np.exp(np.where(s["seen"], s["capped"] - s["safe_lse"][:, None], -np.inf))
    ds: Callable = lambda s: s["p"] * (s["dp"] - s["delta"][:, None])
    dq: Callable = lambda s: s["scale"] * (s["ds"] @ s["k"])
    dk: Callable = lambda s: s["scale"] * (s["ds"].T @ s["q"])
    dv: Callable = lambda s: s["p"].T @ s["dout"]
    kv_head: Callable = lambda h, p: h // p.group
    add: Callable = lambda old, new: old + new
    rounded: bool = True


def head(a: Arithmetic, p: BackwardProblem, s: Steps) -> Steps:
    """The steps of one head, in their order."""
    s["scores"], s["seen"] = a.scores(s), a.seen(s)
    cap = np.float32(p.features.softcap)
    tanh = np.tanh(s["scores"] / cap) if cap else None
    s["capped"] = s["scores"] if tanh is None else cap * tanh
    s["capped"] = s["capped"] - np.float32(s["slope"]) * s["mask"].distances().astype(np.float32)
    s["lse"] = a.lse(s)
    s["safe_lse"] = np.where(np.isneginf(s["lse"]), np.float32(np.inf), s["lse"])
    s["delta"] = a.delta(s) - s["dlse"]
    s["p"], s["dp"] = a.p(s), s["dout"] @ s["v"].T
    s["ds"] = a.ds(s)
    if tanh is not None:
        s["ds"] = s["ds"] * (1 - tanh**2)
    if a.rounded:
        s["p"], s["ds"] = (p.element.round(s[name]).astype(np.float32) for name in ("p", "ds"))
    return s | {"dq": a.dq(s), "dk": a.dk(s), "dv": a.dv(s)}


def stage(**changes: Any) -> Stage:
    """A stage of the backward pass; changes: of `Arithmetic`."""
    a = Arithmetic(**changes)

    def launch(
        problem: BackwardProblem, dq: Any, dk: Any, dv: Any, executor: Any, variant: str | None = None
    ) -> None:
        p = problem
        sums = {"dq": np.zeros(p.q.shape, np.float32), "dk": np.zeros(p.k.shape, np.float32)}
        sums["dv"] = np.zeros(p.v.shape, np.float32)
        for each in p.sequences:
            for h in range(p.heads):
                at = (each.batch, h, each.rows)
                kv = (each.batch, a.kv_head(h, p), each.keys)
                s: Steps = {
                    name: getattr(p, name)[at].astype(np.float32) for name in ("q", "out", "dout", "lse")
                }
                s |= {name: getattr(p, name)[kv].astype(np.float32) for name in "kv"}
                s["dlse"] = 0 if p.dlse is None else p.dlse[at]
                s |= {"mask": each.mask, "scale": np.float32(p.scale), "causal": p.causal}
                s["slope"] = p.features.slopes(each.number, p.heads)[h]
                with np.errstate(all="ignore"):
                    s = head(a, p, s)
                for name, place in (("dq", at), ("dk", kv), ("dv", kv)):
                    sums[name][place] = a.add(sums[name][place], s[name])
        with np.errstate(all="ignore"):
            dq[...], dk[...], dv[...] = (p.element.round(sums[name]) for name in ("dq", "dk", "dv"))

    return Stage(
        number=None,
        name="numpy",
        title="Gradients in NumPy",
        idea="Five products of a head.",
        launch=launch,
        elements=ACCEPTED,
        grouped_queries=True,
        features=OF_MODELS,
        outputs=GRADIENTS,
        operation=BACKWARD,
    )


WRONG: dict[str, dict[str, Any]] = {
    "D left out": {"ds": lambda s: s["p"] * s["dp"]},
    "D of V instead of O": {"delta": lambda s: (s["dout"].sum(axis=1) * s["v"].mean())},
    "D in half precision": {
        "delta": lambda s: np.add.reduce(
            (s["dout"] * s["out"]).astype(np.float16), axis=1, dtype=np.float16
        ).astype(np.float32)
    },
    "P is not normalised": {
        "lse": lambda s: np.where(s["seen"], s["scores"], -np.inf).max(axis=1, initial=-np.inf)
    },
    "base 2 with a natural LSE": {"p": lambda s: np.exp2(
        np.where(s["seen"], s["capped"] - s["safe_lse"][:, None], -np.inf))},
    "scale missing in dQ": {"dq": lambda s: s["ds"] @ s["k"]},
    "scale missing in dK": {"dk": lambda s: s["ds"].T @ s["q"]},
    "scale in dV": {"dv": lambda s: s["scale"] * (s["p"].T @ s["dout"])},
    "D outside the parentheses": {"ds": lambda s: s["p"] * s["dp"] - s["delta"][:, None]},
    "the sign of D": {"ds": lambda s: s["p"] * (s["dp"] + s["delta"][:, None])},
    "causal mask aligned top-left": {"seen": lambda s: np.tri(*s["mask"].matrix().shape, dtype=bool)
                                     if s["causal"] else s["mask"].matrix()},
    "causal mask without the diagonal": {"seen": lambda s: s["mask"].matrix() & (
        np.arange(s["mask"].seq_k) != np.arange(s["mask"].seq_q)[:, None] + s["mask"].shift)},
    "masked before a negative scale": {"p": lambda s: np.exp(
        s["scale"] * np.where(s["seen"], s["q"] @ s["k"].T, -np.inf) - s["safe_lse"][:, None])},
    "rows without keys": {"p": lambda s: np.exp(
        np.where(s["seen"], s["capped"] - s["lse"][:, None], -np.inf - s["lse"][:, None]))},
    "a group's last head wins": {"add": lambda old, new: new},
    "head h % H_kv": {"kv_head": lambda h, p: h % p.kv_heads},
    "dS not transposed": {"dq": lambda s: s["scale"] * (
        np.resize(s["ds"].T, s["ds"].shape) @ s["k"])},
    "the LSE's gradient forgotten": {"delta": lambda s: (s["dout"] * s["out"]).sum(axis=1) + s["dlse"]},
    "sums of dK in half precision": {"dk": lambda s: s["scale"] * np.add.accumulate(
        (s["ds"][:, :, None] * s["q"][:, None]).astype(np.float16), axis=0, dtype=np.float16
    )[-1].astype(np.float32)},
}  # fmt: skip
