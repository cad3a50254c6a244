"""The operators of PyTorch on a GPU: values, streams, graphs, compilers, and PyTorch's own attention."""

import pytest
import torch
from integrations.test_pytorch import CASES, ROUNDING, close, drawn, options_of, right

from flashcore_numba.integrations import pytorch as adapter
from flashcore_numba.integrations import sdpa

pytestmark = pytest.mark.gpu
LENGTH = 300


def on_gpu(arrays, grad=False):
    found = [x.detach().cuda() for x in arrays]
    return [x.requires_grad_() for x in found] if grad else found


def drawn_on_gpu(rng, dtype=torch.float16, dim=64, grad=False):
    shapes = ((2, 4, LENGTH, dim), (2, 2, LENGTH, dim), (2, 2, LENGTH, dim))
    return on_gpu(drawn(rng, *shapes, dtype=dtype), grad)


@pytest.mark.parametrize("dtype", ROUNDING, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(rng, case, dtype):
    (batch, heads, kv_heads, rows, keys, dim), options = options_of(rng, case)
    arrays = drawn(
        rng, (batch, heads, rows, dim), *((batch, kv_heads, keys, dim),) * 2, dtype=dtype, grad=True
    )
    names = {"alibi_slopes": "slopes", "seqused_k": "used"}
    expected, expected_lse = right(*arrays, **{names.get(name, name): x for name, x in options.items()})
    there = {name: x.detach().cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    (dout,) = drawn(rng, expected.shape, dtype=dtype)
    gradients = torch.autograd.grad(expected, arrays, dout.double())
    for _ in range(2):  # the second time by plans
        mine = on_gpu(arrays, grad=True)
        out, lse = adapter.attention(*mine, **there, return_lse=True)
        close(out.cpu(), expected, ROUNDING[dtype])
        close(lse.cpu(), expected_lse, ROUNDING[dtype])
        for each, x in zip(torch.autograd.grad(out, mine, dout.cuda()), gradients, strict=True):
            close(each.cpu(), x, 4 * ROUNDING[dtype])


def test_a_graph_of_forward_and_backward_serves_other_inputs(rng):
    """Captured on a stream of its own, with everything allocated inside."""
    arrays = drawn_on_gpu(rng, torch.bfloat16, grad=True)
    dout = torch.empty_like(arrays[0])

    def step():
        return torch.autograd.grad(adapter.attention(*arrays, causal=True), arrays, dout)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        found = step()
    for _ in range(2):
        new = drawn(rng, *(x.shape for x in arrays), dout.shape, dtype=torch.bfloat16)
        with torch.no_grad():
            for old, x in zip((*arrays, dout), new, strict=True):
                old.copy_(x)
            for each in found:
                each.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        plain = [x.requires_grad_() for x in new[:3]]
        expected = torch.autograd.grad(right(*plain, True)[0], plain, new[3].double())
        for each, x in zip(found, expected, strict=True):
            close(each.cpu(), x, 4 * ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(rng, mode):
    def run(q, k, v):
        return adapter.attention(q * 2, k, v, causal=True).float().square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, mode=mode)
    for _ in range(3):
        arrays = drawn_on_gpu(rng, torch.bfloat16, grad=True)
        found = torch.autograd.grad(compiled(*arrays), arrays)
        for each, x in zip(found, torch.autograd.grad(run(*arrays), arrays), strict=True):
            close(each.cpu(), x.cpu(), 8 * ROUNDING[torch.bfloat16])


def test_opcheck(rng):
    arrays = drawn_on_gpu(rng, grad=True)
    torch.library.opcheck(torch.ops.flashcore.attention.default, (*arrays, True))


def test_the_current_stream_is_used(rng):
    """What comes before and after on a stream is ordered with the call."""
    arrays = drawn_on_gpu(rng)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            torch.cuda._sleep(1_000_000)
            given = [x + 0 for x in arrays]
            out = adapter.attention(*given, causal=True)
            copy = out.clone()
            out.fill_(torch.nan)
    stream.synchronize()
    close(copy.cpu(), right(*(x.cpu() for x in arrays), True)[0], ROUNDING[torch.float16])


def test_autocast(rng):
    arrays = [x.float() for x in drawn_on_gpu(rng)]
    with torch.autocast("cuda", torch.bfloat16):
        out = adapter.attention(*arrays)
    assert out.dtype is torch.bfloat16
    close(out.cpu(), right(*(x.cpu() for x in arrays))[0], 2 * ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("dim", [64, 72, 128])
def test_scaled_dot_product_attention(rng, dim, monkeypatch):
    """A plain call of it comes here, with its gradients, and goes back to PyTorch's own afterwards."""
    import torch.nn.attention as switch

    calls = []
    compute = adapter.compute
    monkeypatch.setattr(adapter, "compute", lambda *given: calls.append(1) or compute(*given))
    arrays = drawn_on_gpu(rng, torch.bfloat16, dim, grad=True)
    sdpa.register()
    switch.activate_flash_attention_impl(sdpa.NAME)
    try:
        with switch.sdpa_kernel(switch.SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True, enable_gqa=True)
        dout = torch.randn_like(out)
        found = torch.autograd.grad(out, arrays, dout)
    finally:
        switch.restore_flash_attention_impl()
    assert calls
    plain = [x.detach().cpu().requires_grad_() for x in arrays]
    expected = right(*plain, True)[0]
    close(out.cpu(), expected, ROUNDING[torch.bfloat16])
    for each, x in zip(found, torch.autograd.grad(expected, plain, dout.cpu().double()), strict=True):
        close(each.cpu(), x, 4 * ROUNDING[torch.bfloat16])
    with switch.sdpa_kernel(switch.SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True, enable_gqa=True)
    assert len(calls) == 1
