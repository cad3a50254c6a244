"""What the peers are asked to do, on the stand-ins of `peer_library`."""

import numpy as np
import pytest
from peer_library import Stream, installed

from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.core import oracle
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload, options
from flashcore_numba.measure import peers


@pytest.fixture
def library(monkeypatch):
    return installed(monkeypatch)


def problem_of(rng, shape, features, causal):
    """A problem of these words whose packed sequences lie token by token, as on the GPU."""
    workload, *_ = Workload(parse_any(shape), causal, **options(features)).drawn_with(int(rng.integers(99)))
    arrays = workload.arrays.inputs(rng)
    if workload.lengths:
        arrays = (np.ascontiguousarray(x[0].swapaxes(0, 1)).swapaxes(0, 1)[None] for x in arrays)
    return Problem(*arrays, causal, None, workload.features(rng))


def prepared(problem):
    arrays = {name: getattr(problem, name) for name in "qkv"} | problem.features.arrays
    found, absent = peers.prepare(FORWARD, problem, arrays, Stream())
    return {entry.label: entry.to_house(entry.called) for entry in found}, absent


FEATURES = {  # words: the peers that have none
    "none": "",
    "window=7,3": "SDPA",
    "window=-1,3": "SDPA",
    "window=7,-1": "SDPA",
    "softcap=2": "SDPA",
    "sinks": "SDPA",
    "alibi_slopes": "SDPA FA4 FA3",
    "seqused_k": "SDPA",
    "window=9,2 softcap=2 sinks": "SDPA",
    "softcap=3 sinks alibi_slopes seqused_k": "SDPA FA4 FA3",
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", ["2x4/2x33x64", "3x4/2x5-40x64"])
@pytest.mark.parametrize("features", FEATURES)
def test_each_peer_is_asked_for_the_same(library, rng, shape, features, causal):
    problem = problem_of(rng, shape, features, causal)
    found, absent = prepared(problem)
    lacking = "SDPA" if "-" in shape else ""
    without = {
        label for label in peers.PEERS if label.split()[0] in f"{FEATURES[features]} {lacking}".split()
    }
    assert set(absent) == without
    assert set(found) == set(peers.PEERS) - without - {peers.TWO_LAUNCHES}, "where nothing follows attention"
    for reason in absent.values():
        named = reason.removeprefix("ValueError: it has no ").split(", ")
        assert named and set(named) <= set(problem.features.names)
    right, _ = oracle.attention(
        problem.q, problem.k, problem.v, causal, problem.scale, features=problem.features
    )
    for label, out in found.items():
        np.testing.assert_allclose(out, right, atol=1e-6, err_msg=label)


def test_a_plain_problem_is_asked_for_as_ever(library, rng):
    """No argument of a feature, and nothing compiled but FlexAttention itself."""
    prepared(problem_of(rng, "1x2x33x64", "none", False))
    assert set(library.calls) == {"flash_attn_func"} and library.loaded == ["/lib/fa3.so"]
    assert library.compiled == [library.flex_attention]


def test_the_mask_of_packed_sequences_is_compiled(library, rng):
    prepared(problem_of(rng, "3x2x5-40x64", "none", True))
    assert library.compiled == [library.create_block_mask, library.flex_attention]
    assert set(library.calls) == {"flash_attn_varlen_func"}


def test_values_of_another_dimension(library, rng):
    problem = problem_of(rng, "2x2x33x64/32", "sinks", True)
    found, _ = prepared(problem)
    right, _ = oracle.attention(problem.q, problem.k, problem.v, True, features=problem.features)
    assert set(found) == {"FlexAttention", "FA4", "FA3"}
    for out in found.values():
        np.testing.assert_allclose(out, right, atol=1e-6)


@pytest.mark.parametrize("words", ["gate", "head_norm", "head_norm gate", "softcap=3 sinks head_norm gate"])
def test_without_fusing_a_second_kernel_follows(monkeypatch, rng, words):
    """`attention` of tensors on the host, and what Inductor is given, as it is written."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    problem = problem_of(rng, "1x2x33x64", words, True)
    tensors = {name: torch.from_numpy(x) for name, x in problem.inputs.items()}
    run, backend, to_house = peers.PEERS[peers.TWO_LAUNCHES](problem, tensors)
    with backend():
        out = to_house(run())
    assert out.dtype == torch.float16
    right, _ = oracle.attention(problem.q, problem.k, problem.v, True, features=problem.features)
    np.testing.assert_allclose(out.numpy(), right, rtol=4e-3, atol=4e-3)
    plain, _ = oracle.attention(problem.q, problem.k, problem.v, True)
    assert np.abs(right - plain).max() > 0.1


def test_without_its_library_fa3_says_what_is_missing(library, rng, monkeypatch):
    monkeypatch.delenv("FLASHCORE_FA3")
    found, absent = prepared(problem_of(rng, "1x2x33x64", "none", False))
    assert "FA3" not in found
    assert absent == {
        "FA3": "ValueError: FLASHCORE_FA3 does not name its compiled library, _vllm_fa3_C.abi3.so"
    }


def test_sinks_and_slopes_are_numbers_that_bfloat16_has(rng):
    """So a library that takes them in that type is asked for the same answer."""
    features = Workload(parse_any("1x12x9x64"), drawn=("sinks", "alibi_slopes")).features(rng)
    for values in (features.sinks, features.alibi_slopes):
        assert not (values.view(np.uint32) & 0xFFFF).any() and np.abs(values).min() > 0
