"""What other libraries' backward passes are asked to do, on the stand-ins of `peer_library`."""

import sys

import numpy as np
import pytest
from peer_library import Stream, installed

from flashcore_numba.branches.backward import oracle
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.peers import PEERS
from flashcore_numba.core import oracle as forward
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload, options
from flashcore_numba.measure import peers


@pytest.fixture
def library(monkeypatch):
    return installed(monkeypatch)


def drawn(rng, shape, features, causal):
    workload, *_ = Workload(parse_any(shape), causal, **options(features)).drawn_with(int(rng.integers(99)))
    return BACKWARD.draw(workload.arrays, causal, rng, features=workload.features(rng))


def token_by_token(x):
    return np.ascontiguousarray(x[0].swapaxes(0, 1)).swapaxes(0, 1)[None] if x.ndim == 4 else x


def prepared(x):
    """The entries by label, and what is absent; packed sequences lie as on the GPU."""
    place = token_by_token if x.forward.features.ragged else np.asarray
    arrays = {name: place(each) for name, each in x.arrays.items()}
    found, absent = peers.prepare(BACKWARD, x.problem(arrays), arrays, Stream())
    return {entry.label: entry for entry in found}, absent


def expected(x):
    """Gradients from the output and LSE in float64, which the stand-ins save."""
    f = x.forward
    out, lse = forward.attention(f.q, f.k, f.v, f.causal, f.scale, features=f.features)
    return oracle.gradients(x.but(out=out, lse=lse))._asdict()


FEATURES = {  # words: the peers that have none
    "none": "",
    "window=2,1": "SDPA",
    "softcap=2": "SDPA",
    "sinks": "SDPA FA4",
    "alibi_slopes": "SDPA FA4",
    "seqused_k": "SDPA",
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", ["1x2/1x5x32", "2x2x2-5x32"])
@pytest.mark.parametrize("features", FEATURES)
def test_each_peer_goes_back_from_what_it_saved(library, rng, shape, features, causal):
    x = drawn(rng, shape, features, causal)
    found, absent = prepared(x)
    lacking = f"{FEATURES[features]} {'SDPA' if '-' in shape else ''}".split()
    without = {label for label in PEERS if label.split()[0] in lacking}
    assert set(absent) == without and set(found) == set(PEERS) - without
    for reason in absent.values():
        named = reason.removeprefix("ValueError: it has no ").split(", ")
        assert named and set(named) <= set(x.forward.features.names)
    right = expected(x)
    for label, entry in found.items():
        for replayed in (entry.called, entry.function()):
            for name, value in zip(entry.names, replayed, strict=True):
                np.testing.assert_allclose(
                    entry.to_house(value), right[name], atol=1e-6, err_msg=f"{label}: {name}"
                )


def test_the_forward_pass_runs_before_and_once(library, rng):
    found, _ = prepared(drawn(rng, "1x2x5x32", "none", True))
    for once, often in (("cudnn", "cudnn backward"), ("flash", "flash backward")):
        assert (library.calls.count(once), library.calls.count(often)) == (1, 3)
    assert (library.calls.count("flash_attn_func"), library.calls.count("_flash_attn_bwd")) == (1, 3)
    before = len(library.calls)
    for entry in found.values():
        entry.call()
    assert library.calls[before:] == ["flash backward", "cudnn backward", "autograd", "_flash_attn_bwd"]


def test_every_gradient_is_poisoned_and_read(library, rng):
    found, _ = prepared(drawn(rng, "1x2x5x32", "none", False))
    for entry in found.values():
        entry.replayed = tuple(x.copy() for x in entry.called)
        first, second = entry.outputs()
        assert list(first) == list(second) == ["dq", "dk", "dv"]
        assert all(np.isfinite(x).all() for x in (*first.values(), *second.values()))
        entry.poison()
        assert all(np.isnan(x).all() for given in entry.outputs() for x in given.values())


def test_a_mask_that_is_aligned_elsewhere_is_not_asked_for(library, rng):
    """Two query rows on three keys, causal: PyTorch's operators align top-left, the others bottom-right."""
    x = drawn(rng, "1x2x3x32", "none", True)
    f = x.forward
    rest = {name: getattr(x, name)[:, :, 1:].copy() for name in ("out", "lse", "dout")}
    short = x.but(forward=f.but(q=f.q[:, :, 1:].copy()), **rest)
    found, absent = prepared(short)
    assert set(found) == {"FlexAttention", "FA4"}
    assert all("aligned top-left" in absent[label] for label in ("SDPA flash", "SDPA cuDNN"))
    right = expected(short)
    for entry in found.values():
        for name, value in zip(entry.names, entry.called, strict=True):
            np.testing.assert_allclose(entry.to_house(value), right[name], atol=1e-6)


def test_the_gradient_of_the_lse_is_asked_of_none(library, rng):
    x = drawn(rng, "1x2x5x32", "none", False)
    found, absent = prepared(x.but(dlse=np.ones_like(x.lse)))
    assert not found and set(absent) == set(PEERS)
    assert all("the gradient of the LSE" in reason for reason in absent.values())


def test_without_pytorch_each_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found, absent = peers.prepare(BACKWARD, None, {}, None)
    assert found == [] and list(absent) == list(PEERS)
    assert all("PyTorch is not installed" in reason for reason in absent.values())
