"""PyTorch's own operators of flash attention, implemented for CPU tensors as they are for a GPU."""

import pytest
import torch
import torch.nn.attention as switch
from torch.nn.attention.varlen import varlen_attn, varlen_attn_out

from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.integrations import sdpa as ADAPTER
from integrations.broken import broken, must_notice
from integrations.test_pytorch import close, drawn, right


@pytest.fixture
def implemented():
    """A function that implements an adapter's operators, until the test ends."""
    handles = []
    yield lambda adapter: handles.append(adapter.implement("CPU"))
    for each in handles:
        each.remove()


def check_dense(rng, dim=64):
    q, k, v = drawn(rng, (2, 24, 4, dim), (2, 2, 40, dim), (2, 2, 40, dim))
    arrays = [x.requires_grad_() for x in (q.transpose(1, 2), k, v)]
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*arrays, 0.0, True, False, scale=0.11)
    expected, expected_lse = right(*arrays, True, 0.11)
    close(out, expected, 2e-3)
    close(lse, expected_lse, 2e-3)
    (dout,) = drawn(rng, out.shape)
    found = torch.autograd.grad(out, arrays, dout)
    for each, x in zip(found, torch.autograd.grad(expected, arrays, dout.double()), strict=True):
        close(each, x, 8e-3)


def check_packed(rng):
    """With a window, as `torch.nn.attention.varlen` calls, and causal, as nested tensors do."""
    bounds = torch.tensor([0, 5, 5, 20], dtype=torch.int32)
    arrays = drawn(rng, (20, 4, 64), (20, 4, 64), (20, 4, 64), grad=True)
    heads_first = [[x[begin:end].transpose(0, 1)[None] for x in arrays] for begin, end in ((0, 5), (5, 20))]
    given = (*arrays, bounds, bounds, 15, 15)
    for causal, window in ((False, (6, 0)), (True, (-1, -1))):
        if causal:
            out, *_ = torch.ops.aten._flash_attention_forward(*given, 0.0, True, False, scale=0.2)
        else:
            out = varlen_attn(*given, window_size=window, scale=0.2)
        parts = [right(*x, causal, 0.2, window)[0][0].transpose(0, 1) for x in heads_first]
        expected = torch.cat(parts)
        close(out, expected, 2e-3)
        (dout,) = drawn(rng, out.shape)
        found = torch.autograd.grad(out, arrays, dout)
        for each, x in zip(found, torch.autograd.grad(expected, arrays, dout.double()), strict=True):
            close(each, x, 8e-3)


def check_used(rng):
    """Keys that count, slopes, and an output that is there already."""
    bounds, used = torch.tensor([[0, 5, 12], [0, 3, 4]], dtype=torch.int32)
    used = used[1:]
    arrays, slopes = drawn(rng, (12, 4, 64), (12, 2, 64), (12, 2, 64)), torch.rand(4)
    heads_first = [[x[begin:end].transpose(0, 1)[None] for x in arrays] for begin, end in ((0, 5), (5, 12))]

    def expected(**options):
        parts = [right(*x, used=n, **options)[0][0] for x, n in zip(heads_first, used[:, None], strict=True)]
        return torch.cat(parts, 1).transpose(0, 1)

    out = torch.full_like(arrays[0], torch.nan)
    varlen_attn_out(out, *arrays, bounds, bounds, 7, 7, seqused_k=used, enable_gqa=True)
    close(out, expected(), 2e-3)
    out, *_ = torch.ops.aten._flash_attention_forward(
        *(*arrays, bounds, bounds, 7, 7, 0.0, False, False), seqused_k=used, alibi_slopes=slopes
    )
    close(out, expected(slopes=slopes), 2e-3)


@pytest.mark.long
@pytest.mark.parametrize("dim", [64, 72])
def test_dense(rng, implemented, dim):
    implemented(ADAPTER)
    check_dense(rng, dim)


@pytest.mark.long
@pytest.mark.parametrize("check", [check_packed, check_used])
def test_packed(rng, implemented, check):
    implemented(ADAPTER)
    check(rng)


def test_heads_after_rows(rng, implemented):
    """`_flash_attention_forward` without bounds takes [B, S, H, D]."""
    implemented(ADAPTER)
    q, k, v = drawn(rng, (2, 24, 4, 64), (2, 40, 2, 64), (2, 40, 2, 64))
    out, *_ = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 24, 40, 0.0, True, False)
    close(out.transpose(1, 2), right(*(x.transpose(1, 2) for x in (q, k, v)), True)[0], 2e-3)


OF_PACKED = "_options(is_causal, scale, sides, None, None"
MUTANTS = {
    "scale dropped": (("return (causal, scale, left", "return (causal, None, left"), check_dense),
    "causal dropped": (("return (causal, scale, left", "return (False, scale, left"), check_dense),
    "gradients not causal": (
        ("out, lse, None, *_options(is_causal, scale))", "out, lse, None, *_options(False, scale))"),
        check_dense,
    ),
    "sides of the window exchanged": (
        ("left, right = (-1 if", "right, left = (-1 if"),
        check_packed,
    ),
    "packed gradients not causal": ((OF_PACKED, OF_PACKED.replace("is_causal", "False")), check_packed),
    "scale of packed gradients": ((OF_PACKED, OF_PACKED.replace("scale", "None")), check_packed),
    "window of packed gradients": ((OF_PACKED, OF_PACKED.replace("sides", "(None, None)")), check_packed),
    "used keys dropped": (("alibi_slopes, seqused_k, cum", "alibi_slopes, None, cum"), check_used),
    "slopes dropped": (("sides, alibi_slopes, seqused_k", "sides, None, seqused_k"), check_used),
    "an output not written": (("    out.copy_(made)\n", ""), check_used),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(rng, implemented, name):
    edit, check = MUTANTS[name]

    def run(adapter):
        implemented(adapter)
        check(rng)

    must_notice(run, broken(ADAPTER, edit))


def test_it_is_offered_and_nothing_more():
    ADAPTER.register()
    assert ADAPTER.NAME in switch.list_flash_attention_impls()
    assert switch.current_flash_attention_impl() is None


def test_what_the_kernels_do_not_have_is_refused(rng, implemented):
    implemented(ADAPTER)
    (q,) = drawn(rng, (1, 2, 8, 64))
    with pytest.raises(UnsupportedError, match=r"dropout_p is 0\.1"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.1)
    bounds = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="block_table is given"):
        torch.ops.aten._flash_attention_forward(
            *(q[0], q[0], q[0], bounds, bounds, 2, 2, 0.0, False, False), block_table=bounds[None]
        )


@pytest.mark.parametrize("name", ["alibi_slopes", "seqused_k"])
def test_gradients_that_pytorch_would_ask_for_without_an_argument_are_refused(rng, implemented, name):
    implemented(ADAPTER)
    q, k, v = drawn(rng, *[(8, 2, 64)] * 3, grad=True)
    bounds = torch.tensor([0, 8], dtype=torch.int32)
    given = (q, k, v, bounds, bounds, 8, 8, 0.0, False, False)
    options = {name: torch.rand(2) if name == "alibi_slopes" else bounds[1:]}
    with pytest.raises(UnsupportedError, match=f"{name} is given and a gradient is wanted"):
        torch.ops.aten._flash_attention_forward(*given, **options)
    with torch.no_grad():
        torch.ops.aten._flash_attention_forward(*given, **options)
    out = torch.empty_like(q)
    torch.ops.aten._flash_attention_forward_no_dropout_inplace(out, *given, **options)
    assert out.isfinite().all()
