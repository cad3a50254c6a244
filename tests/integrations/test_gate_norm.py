"""Norm and gate after attention, through PyTorch: the same numbers, and no silent loss of a gradient."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashcore_numba import UnsupportedError
from flashcore_numba import attention as call
from flashcore_numba.integrations import pytorch as adapter
from flashcore_numba.integrations.pytorch import attention, attention_varlen
from integrations.broken import must_notice
from integrations.test_pytorch import fresh


def drawn(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype)


def as_modules_do(out, weight, eps, gate):
    x = torch.nn.functional.rms_norm(out.float(), (out.shape[-1],), None, eps) * weight.float()
    return x * torch.sigmoid(gate.float())


def as_modules(module, tokens_first=False):
    """A Parameter is a weight where no gradient is wanted; q and gate are slices of one projection."""
    q, gate = drawn(1, 2, 40, 128).chunk(2, dim=3)
    if tokens_first:
        q, gate = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, gate))
    k, v = drawn(1, 1, 50, 64), drawn(1, 1, 50, 64)
    weight = torch.nn.Parameter(torch.randn(64))
    with torch.no_grad():
        given = {"causal": True, "return_lse": True}
        out, lse = module.attention(q, k, v, head_norm=(weight, 0.1), gate=gate, **given)
        plain, plain_lse = attention(q, k, v, **given)
    assert out.dtype is torch.float16 and torch.equal(lse, plain_lse)
    assert not tokens_first or out.transpose(1, 2).is_contiguous()
    right = as_modules_do(plain, weight.detach(), 0.1, gate)
    torch.testing.assert_close(out.float(), right, rtol=5e-3, atol=5e-3)


@pytest.mark.long
@pytest.mark.parametrize("tokens_first", [False, True])
def test_it_is_norm_and_gate_as_modules_write_them(tokens_first):
    as_modules(adapter, tokens_first)


def refused(module, wanted):
    """Where a gradient of this argument is wanted, and not where none is."""
    arrays = {name: drawn(1, 2, 9, 64) for name in ("q", "k", "v", "gate")} | {"head_norm[0]": drawn(64)}
    arrays[wanted].requires_grad_()
    q, k, v, gate, weight = arrays.values()
    with pytest.raises(UnsupportedError) as raised:
        module.attention(q, k, v, head_norm=(weight, 1e-6), gate=gate)
    assert str(raised.value).startswith(f"{wanted} requires a gradient") and "no_grad" in str(raised.value)
    with torch.no_grad():
        assert torch.isfinite(module.attention(q, k, v, head_norm=(weight, 1e-6), gate=gate)).all()


MISTAKES = {
    "no gate": ("head_norm=head_norm, gate=gate, out=out", "head_norm=head_norm, gate=None, out=out"),
    "no norm": ("head_norm=head_norm, gate=gate, out=out", "head_norm=None, gate=gate, out=out"),
    "values for keys": ("call_forward, q, k, v, head_norm", "call_forward, q, v, v, head_norm"),
    "eps lost": ("contiguous(), *head_norm[1:])", "contiguous(), 1e-6)"),
}


@pytest.mark.long
@pytest.mark.parametrize("edit", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_adapter_is_noticed(edit):
    must_notice(as_modules, fresh(edit))


@pytest.mark.parametrize("wanted", ["q", "head_norm[0]"])
def test_a_lost_gradient_is_noticed(wanted):
    edit = ("if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:", "if False:")
    with pytest.raises(pytest.fail.Exception):
        refused(fresh(edit), wanted)


@pytest.mark.long
def test_packed_sequences():
    q, k, v, gate = drawn(60, 4, 64), drawn(60, 2, 64), drawn(60, 2, 64), drawn(60, 4, 64)
    bounds, weight = torch.tensor([0, 25, 60], dtype=torch.int32), drawn(4, 64)
    out = attention_varlen(q, k, v, bounds, bounds, causal=True, head_norm=(weight, 0.1), gate=gate)
    for first, end in ((0, 25), (25, 60)):
        one = (x[first:end].transpose(0, 1)[None] for x in (q, k, v, gate))
        *qkv, own = one
        alone = call(*qkv, causal=True, head_norm=(weight, 0.1), gate=own, stage=15)
        torch.testing.assert_close(out[first:end].transpose(0, 1)[None], alone, rtol=4e-3, atol=4e-3)


def test_rows_outside_all_sequences_are_zeros_and_arrays_of_any_strides():
    q, k, v, gate = drawn(12, 2, 64), drawn(9, 2, 64), drawn(9, 2, 64), drawn(12, 2, 64)
    bounds, used, weight = torch.tensor([0, 4, 9]).int(), torch.tensor([4, 3]).int(), drawn(64)
    spread = [x.repeat_interleave(2)[::2] for x in (bounds, used, weight)]
    outs = [
        attention_varlen(q, k, v, b, b, seqused_k=u, head_norm=(w, 0.1), gate=gate)
        for b, u, w in ((bounds, used, weight), spread)
    ]
    assert torch.equal(*outs) and not outs[0][9:].any() and outs[0].isfinite().all()


@pytest.mark.parametrize("place", ["meta", "fake"])
def test_tensors_without_values_are_refused(place):
    x = drawn(1, 2, 9, 64)
    x = x.to("meta") if place == "meta" else FakeTensorMode().from_tensor(x)
    with pytest.raises(UnsupportedError, match=r"^q has no values"):
        attention(x, x, x, gate=x)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "gate", "head_norm[0]"])
def test_where_a_gradient_is_wanted_they_are_refused(wanted):
    refused(adapter, wanted)


def test_transforms_are_refused():
    q = drawn(3, 1, 2, 9, 64)
    with pytest.raises(UnsupportedError, match=r"transform of torch\.func"):
        torch.vmap(lambda x: attention(x, x, x, gate=x))(q)


@pytest.mark.long
def test_under_autocast_a_gate_is_cast_like_the_others():
    q, k, v, gate = (torch.randn(1, 2, 9, 64) for _ in range(4))
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, gate=gate)
    assert out.dtype is torch.bfloat16
    cast = (x.to(torch.bfloat16) for x in (q, k, v))
    right = attention(*cast).float() * torch.sigmoid(gate)
    np.testing.assert_allclose(out.float(), right, rtol=0.03, atol=0.02)


@pytest.mark.long
def test_sinks_of_another_type_join():
    q, k, v = drawn(1, 2, 9, 64), drawn(1, 2, 20, 64), drawn(1, 2, 20, 64)
    sinks, gate = drawn(2, dtype=torch.bfloat16), torch.full_like(q, 100)
    assert torch.equal(attention(q, k, v, sinks=sinks, gate=gate, softcap=5.0).isfinite(), q.isfinite())
