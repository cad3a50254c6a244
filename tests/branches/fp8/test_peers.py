"""What other libraries are asked to do in 8 bits: real tensors, and a stand-in for FlashAttention-3."""

import numpy as np
import pytest

from flashcore_numba.branches.fp8 import peers
from flashcore_numba.branches.fp8.inputs import Fp8Inputs
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.core import oracle

torch = pytest.importorskip("torch")


@pytest.fixture
def forward(monkeypatch):
    """FlashAttention-3's function for e4m3: it multiplies with the scales of each head of K and V."""

    def run(q, k, v, *rest):
        bounds_q, bounds_k, most = rest[4], rest[5], rest[9:11]
        scales, (scale, causal) = rest[17:20], rest[20:22]
        assert {x.dtype for x in (q, k, v)} == {torch.float8_e4m3fn}
        batch = len(bounds_q) - 1
        assert [each.diff().tolist() for each in (bounds_q, bounds_k)] == [[n] * batch for n in most]

        def whole(x, of_head):
            heads = x.float().unflatten(0, (batch, -1)).transpose(1, 2)
            return (
                heads * of_head.repeat_interleave(heads.shape[1] // of_head.shape[1], 1)[..., None, None]
            ).numpy()

        out, _ = oracle.attention(*map(whole, (q, k, v), scales), causal, scale)
        return (torch.from_numpy(out).transpose(1, 2).flatten(0, 1).to(torch.bfloat16),)

    monkeypatch.setattr(peers, "fa3_forward", lambda: run)


@pytest.mark.parametrize("causal", [False, True])
def test_each_peer_is_asked_for_the_same(forward, rng, causal):
    """Heads of very different size have scales of their own."""
    q, k, v = (rng.standard_normal((2, h, s, 64)).astype(np.float16) for h, s in ((6, 20), (2, 33), (2, 33)))
    size = np.float16([[1, 8], [0.1, 3]])[..., None, None]
    k, v = k * size, v / size
    x = Fp8Inputs(q, k, v, causal=causal)
    tensors = {name: torch.from_numpy(each) for name, each in x.arrays.items()}
    right = FP8.reference(x)
    for label, function in FP8.peers().items():
        call, _, to_house = function(x.problem(x.arrays), tensors)
        found = to_house(call()).float().numpy()
        assert found.shape == q.shape
        error = np.linalg.norm(found - right.out, axis=(2, 3)) / np.linalg.norm(right.out, axis=(2, 3))
        assert (error < (0.2 if label == "FA3" else 2e-3)).all(), (label, error)


def test_a_head_of_zeros_has_a_scale():
    x = torch.zeros(1, 2, 3, 64, dtype=torch.float16)
    x[0, 1] = -448
    found, scales = peers.in_e4m3(x)
    assert found.shape == (3, 2, 64) and scales[0, 1] == 1 and not found.float().isnan().any()
    assert (found.float()[:, 0] == 0).all() and (found.float()[:, 1] == -448).all()
