"""What other libraries are asked to do for decoding, on the stand-ins of `peer_library`."""

import sys

import numpy as np
import pytest
from peer_library import Stream, installed, tensor

from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.peers import PEERS, in_one_piece
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import CONTIGUOUS, Workload, options
from flashcore_numba.measure import peers


@pytest.fixture
def library(monkeypatch):
    return installed(monkeypatch)


def drawn(rng, shape, features="none", causal=True, **chosen):
    given = Workload(parse_any(shape), causal, **options(features), **chosen)
    workload, *_ = given.drawn_with(int(rng.integers(99)))
    return DECODE.draw(workload.arrays, causal, rng, features=workload.features(rng), **workload.chosen)


def prepared(x):
    arrays = x.arrays
    found, absent = peers.prepare(DECODE, x.problem(arrays), arrays, Stream())
    return {entry.label: entry for entry in found}, absent


FEATURES = ("none", "window=7,0", "softcap=2", "sinks", "seqused_k", "window=9,2 softcap=2 sinks seqused_k")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("page", [5, 16, CONTIGUOUS])
@pytest.mark.parametrize("shape", ["2x4/2x33x64", "3x4/2x9-40x64"])
@pytest.mark.parametrize("features", FEATURES)
def test_each_peer_is_asked_for_the_same(library, rng, shape, page, tokens, features, causal):
    x = drawn(rng, shape, features, causal, tokens=tokens, page=page)
    found, absent = prepared(x)
    equal = len({*x.lengths.tolist()}) == 1
    named = [name for name in ("window", "softcap", "sinks") if name in features]
    without = {label for label in PEERS if label.startswith("SDPA") and (named or not equal)}
    says = f"it has no {', '.join(named)}" if named else "it has no lengths of requests, and these differ"
    expected = dict.fromkeys(without, f"ValueError: {says}")
    if "sinks" in named:
        expected["FlashInfer"] = "ValueError: it has no sinks"
    assert absent == expected and set(found) == set(PEERS) - set(expected)
    right = DECODE.reference(x).out
    for label, entry in found.items():
        np.testing.assert_allclose(entry.to_house(entry.called), right, atol=1e-6, err_msg=label)


def test_no_peer_reads_a_cache_of_another_type(library, rng):
    found, absent = prepared(drawn(rng, "2x4/2x33x64", cache="e4m3"))
    assert not found and set(absent) == set(PEERS)
    assert all("e4m3" in reason for reason in absent.values())


def test_a_pool_with_pages_to_spare_is_no_cache(library, rng):
    """Though every request has one page, and they are in order."""
    x = drawn(rng, "2x4/2x9x64")
    x.block_table[:] = [[0], [1]]
    assert x.k_pool.shape[0] > 2
    found, absent = prepared(x)
    assert not absent and library.calls[-1] == "FA3 paged"
    right = DECODE.reference(x).out
    for label, entry in found.items():
        np.testing.assert_allclose(entry.to_house(entry.called), right, atol=1e-6, err_msg=label)


def test_fa3_reads_pages_where_they_are_and_a_cache_without(library, rng):
    prepared(drawn(rng, "2x4/2x33x64"))
    assert {call for call in library.calls if "FA3" in call} == {"FA3 paged"}
    prepared(drawn(rng, "2x4/2x33x64", page=CONTIGUOUS))
    assert library.calls[-1] == "FA3"


@pytest.mark.parametrize(
    ("shape", "chosen", "called", "page"),
    [
        ("2x8/2x40x64", {"page": 8}, "FlashInfer, tensor cores", 8),
        ("2x4/2x40x64", {"page": 8}, "FlashInfer", 8),
        ("2x4/2x40x64", {"page": 8, "tokens": 3}, "FlashInfer fa2", 8),
        ("3x8/2x48x64", {"page": CONTIGUOUS}, "FlashInfer, tensor cores", 16),
        ("3x8/2x44x64", {"page": CONTIGUOUS, "tokens": 2}, "FlashInfer fa2", 4),
    ],
)
def test_flashinfer_gets_pages_between_which_it_can_divide_keys(library, rng, shape, chosen, called, page):
    x = drawn(rng, shape, "window=7,0 softcap=2", **chosen).but(scale=0.3)
    found, absent = peers.prepare(DECODE, x.problem(x.arrays), x.arrays, Stream(), only=["FlashInfer"])
    assert not absent and library.calls == [called] and library.planned.page == page
    one, two = found[0].called, found[0].function()
    assert one is not two, "an output of each call is checked"
    np.testing.assert_allclose(found[0].to_house(two), DECODE.reference(x).out, atol=1e-6)


def test_flashinfer_says_what_it_lacks(library, rng, monkeypatch):
    def reason(*of, **chosen):
        return prepared(drawn(rng, *of, **chosen))[1].get("FlashInfer")

    assert reason("1x2x33x32") == "ValueError: it takes D = D_v = 64, 128 or 256"
    assert reason("1x2x33x64", "window=9,2", False, tokens=3) == "ValueError: its window has no right side"
    assert reason("1x2x33x64", "window=9,2", False) is None, "no key is to the right of a single token"
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert reason("1x2x33x64").startswith("ModuleNotFoundError: ")


def test_a_mask_is_asked_for_where_a_token_does_not_see_all(library, rng, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["torch"].nn.functional,
        "scaled_dot_product_attention",
        (lambda *args, **how: asked.append(how) or library.scaled_dot_product_attention(*args, **how)),
    )
    for tokens, named in ((1, {"scale", "enable_gqa"}), (3, {"scale", "enable_gqa", "attn_mask"})):
        asked.clear()
        library.calls.clear()
        prepared(drawn(rng, "2x4/2x33x64", tokens=tokens))
        assert {frozenset(how) for how in asked} == {frozenset(named)}
        assert ("flash" in library.calls) == (tokens > 1), "its operator, which aligns bottom-right"


def test_keys_are_gathered_once_and_only_from_pages(library, rng):
    x = drawn(rng, "3x4/2x33x64")
    problem, tensors = x.problem(x.arrays), {name: tensor(each) for name, each in x.arrays.items()}
    k, v = in_one_piece(problem, tensors)
    assert k is in_one_piece(problem, tensors)[0] and k.shape == v.shape == (3, 2, 33, 64)
    whole = drawn(rng, "3x4/2x33x64", page=CONTIGUOUS)
    problem = whole.problem(whole.arrays)
    tensors = {name: tensor(each) for name, each in whole.arrays.items()}
    k, _ = in_one_piece(problem, tensors)
    assert np.shares_memory(k, whole.k_pool)
    # A page per request in another order is no cache [B, S, H_kv, D].
    moved = whole.but(block_table=whole.block_table[::-1].copy())
    k, _ = in_one_piece(moved.problem(moved.arrays), tensors | {"block_table": tensor(moved.block_table)})
    np.testing.assert_array_equal(k[0], whole.k_pool[2].swapaxes(0, 1))


def test_without_its_library_fa3_says_what_is_missing(library, rng, monkeypatch):
    monkeypatch.delenv("FLASHCORE_FA3")
    _, absent = prepared(drawn(rng, "1x2x33x64"))
    assert absent == {
        "FA3": "ValueError: FLASHCORE_FA3 does not name its compiled library, _vllm_fa3_C.abi3.so"
    }


def test_without_pytorch_each_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found, absent = peers.prepare(DECODE, None, {}, None)
    assert found == [] and list(absent) == list(PEERS)
    assert all("PyTorch is not installed" in reason for reason in absent.values())
