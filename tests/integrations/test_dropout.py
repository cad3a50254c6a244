"""Attention with dropout in PyTorch: outputs, gradients, and what a generator counts."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from flashcore_numba import ArgumentError, UnsupportedError, dropout_mask
from flashcore_numba.integrations import dropout as ADAPTER
from flashcore_numba.integrations.dropout import attention_dropout, reserve
from integrations.broken import broken, must_notice

SCALE = 0.2


class CudaGenerator:
    """What `reserve` asks of a generator on a GPU."""

    def __init__(self, seed, offset):
        self.device, self.seed, self.offset = torch.device("cuda", 0), seed, offset

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


def drawn(shape, seed, dtype=torch.float16):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float32, generator=made).to(dtype).requires_grad_()


def inputs(dtype=torch.float16):
    return drawn((1, 4, 33, 64), 1, dtype), drawn((1, 2, 70, 64), 2, dtype), drawn((1, 2, 70, 64), 3, dtype)


def standard(q, k, v, mask, p, causal):
    """Float64, with autograd's own gradients."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
    hidden = torch.ones(q.shape[2], k.shape[2]).triu(1 + k.shape[2] - q.shape[2]).bool() & causal
    scores = (SCALE * q @ keys.transpose(2, 3)).masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, dim=-1) * torch.from_numpy(mask) / (1 - p) @ values, (q, k, v)


def outputs_and_gradients(adapter, dtype):
    """Against float64 under the mask that the generator's state asks for, twice from one generator."""
    p, given, generator = 0.25, inputs(dtype), torch.Generator().manual_seed(5)
    same = torch.Generator().manual_seed(5)
    close = {"atol": 0.02, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 0.003, "rtol": 0.003}
    for causal in (False, True):
        seed, offset = reserve(same)
        out = adapter.attention_dropout(*given, p=p, scale=SCALE, causal=causal, generator=generator)
        mask = dropout_mask((1, 4, 33, 70), p=p, seed=seed, offset=offset)
        right, leaves = standard(*given, mask, p, causal)
        assert torch.allclose(out.double(), right, **close)
        dout = drawn(out.shape, 4, dtype).detach()
        grads = torch.autograd.grad(out, given, dout)
        for one, other in zip(grads, torch.autograd.grad(right, leaves, dout.double()), strict=True):
            assert torch.allclose(one.double(), other, atol=4 * close["atol"], rtol=4 * close["rtol"])


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_output_and_gradients(dtype):
    outputs_and_gradients(ADAPTER, dtype)


def counts(adapter):
    """A CUDA generator keeps its seed, and each call takes 4 of its offset."""
    generator = CudaGenerator((1 << 64) - 1, 8)
    assert [adapter.reserve(generator) for _ in range(3)] == [((1 << 64) - 1, 8 + 4 * i) for i in range(3)]
    assert generator.offset == 20


def test_what_is_taken_from_a_cuda_generator():
    counts(ADAPTER)


MISTAKES = {
    "the mask of no call": ("lse, **saved[-1])", "lse, **saved[-1] | {'seed': 0})"),
    "another p": ("ctx.options = options", "ctx.options = options | {'p': 0.5}"),
    "the scale is forgotten": ('"scale": scale}', '"scale": None}'),
    "causal is forgotten": ('"causal": causal,', '"causal": False,'),
    "always the default generator": ("if generator is None:", "if True:"),
}
MISCOUNTS = {
    "nothing is reserved": ("generator.set_offset(offset + EACH)", "pass"),
    "offsets of one": ("offset + EACH", "offset + 1"),
    "after, not before": ("% SEEDS, offset", "% SEEDS, generator.get_offset()"),
    "half a seed": ("% SEEDS, offset", "% (1 << 32), offset"),
}


@pytest.mark.parametrize("edit", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_noticed(edit):
    must_notice(lambda adapter: outputs_and_gradients(adapter, torch.float16), broken(ADAPTER, edit))


@pytest.mark.parametrize("edit", MISCOUNTS.values(), ids=MISCOUNTS)
def test_a_miscount_is_noticed(edit):
    must_notice(counts, broken(ADAPTER, edit))


@pytest.mark.long
def test_a_generator_repeats_a_call_and_moves_on():
    q, k, v = inputs()
    one, two = (torch.Generator().manual_seed(3) for _ in range(2))
    first, again = (attention_dropout(q, k, v, p=0.5, generator=g) for g in (one, two))
    assert torch.equal(first, again)
    assert not torch.equal(first, attention_dropout(q, k, v, p=0.5, generator=one))
    torch.manual_seed(11)
    first = attention_dropout(q, k, v, p=0.5)
    torch.manual_seed(11)
    assert torch.equal(first, attention_dropout(q, k, v, p=0.5))


@pytest.mark.long
def test_a_step_computed_again_has_its_mask():
    """Checkpointing restores the generator's state, and with it the mask."""
    q, k, v = inputs()
    torch.manual_seed(9)
    plain = torch.autograd.grad(attention_dropout(q, k, v, p=0.3).square().sum(), (q, k, v))
    torch.manual_seed(9)
    out = checkpoint(lambda *x: attention_dropout(*x, p=0.3), q, k, v, use_reentrant=False)
    again = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.long
def test_under_autocast_and_in_a_compiled_function():
    """A compiler leaves its graph for the call, and the rest is as without one."""
    q, k, v = (x.detach().float().requires_grad_() for x in inputs())

    def run(q, k, v):
        return 2 * attention_dropout(2 * q, k, v, p=0.25, generator=torch.Generator().manual_seed(5))

    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        expected = run(q, k, v)
        out = torch.compile(run, backend="eager")(q, k, v)
    assert out.dtype is torch.bfloat16 and torch.equal(out, expected)
    assert torch.autograd.grad(out.float().sum(), q)[0].dtype is torch.float32


def deterministic(adapter):
    q, k, v = inputs()
    out = adapter.attention_dropout(q, k, v, p=0.25)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="are not deterministic"):
            out.sum().backward(retain_graph=True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="are not deterministic"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_are_not_deterministic_and_say_so():
    deterministic(ADAPTER)


def test_silence_about_it_is_noticed():
    edit = ("        _check_deterministic()\n", "")
    must_notice(deterministic, broken(ADAPTER, edit), pytest.fail.Exception)


def take_nothing(adapter):
    """Calls that are refused leave the generator as it was."""
    q, k, v = inputs()
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    for given, p, error in (
        ((q, k, v), 2.0, ArgumentError),
        ((q, k, v.float()), 0.1, ArgumentError),
        (tuple(x[..., :32] for x in (q, k, v)), 0.1, UnsupportedError),
    ):
        with pytest.raises(error):
            adapter.attention_dropout(*given, p=p, generator=generator)
        assert torch.equal(generator.get_state(), before)
    with forward_ad.dual_level():
        q = forward_ad.make_dual(q.detach(), torch.ones_like(q))
        with pytest.raises(NotImplementedError):
            adapter.attention_dropout(q, k, v, p=0.1, generator=generator)
    assert torch.equal(generator.get_state(), before)


def test_a_refused_call_takes_nothing_from_a_generator():
    take_nothing(ADAPTER)


def test_what_a_refused_call_takes_is_noticed():
    must_notice(take_nothing, broken(ADAPTER, ("generator.set_state(before)", "pass")))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap], ids=["grad", "vmap"])
def test_a_transform_is_refused(transform):
    q, k, v = (x.detach() for x in inputs())
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    with pytest.raises(UnsupportedError, match=r"inside a transform of torch\.func"):
        transform(lambda x: attention_dropout(x, k, v, p=0.1, generator=generator).sum())(q)
    assert torch.equal(generator.get_state(), before)


def test_tensors_without_values_are_refused():
    with pytest.raises(UnsupportedError, match="q has no values"):
        attention_dropout(*(x.to("meta") for x in inputs()), p=0.1)
    with FakeTensorMode() as mode, pytest.raises(UnsupportedError, match="q has no values"):
        attention_dropout(*map(mode.from_tensor, inputs()), p=0.1)


def test_a_default_device_does_not_move_what_is_drawn():
    q, k, v = inputs()
    torch.manual_seed(7)
    expected = attention_dropout(q, k, v, p=0.25)
    torch.manual_seed(7)
    with torch.device("meta"):
        out = attention_dropout(q, k, v, p=0.25)
        out.sum().backward()
    assert torch.equal(out, expected) and q.grad.isfinite().all()


@pytest.mark.parametrize("generator", ["x", 5, torch.zeros(2)], ids=str)
def test_what_is_no_generator(generator):
    with pytest.raises(ArgumentError, match=r"^generator is .*: it must be a torch\.Generator on q's device"):
        attention_dropout(*inputs(), p=0.1, generator=generator)


@pytest.mark.parametrize("place", range(3))
def test_what_is_no_tensor(place):
    given = [x.detach() for x in inputs()]
    given[place] = given[place].numpy()
    with pytest.raises(ArgumentError, match=f"^{'qkv'[place]} is of type ndarray: a torch.Tensor is needed"):
        attention_dropout(*given, p=0.1)


def test_what_is_refused():
    q, k, v = inputs()
    with pytest.raises(ArgumentError, match="generator is on cuda but q is on cpu"):
        attention_dropout(q, k, v, p=0.1, generator=CudaGenerator(0, 0))
    with pytest.raises(ArgumentError, match=r"p is 1\.5"):
        attention_dropout(q, k, v, p=1.5)
    out = attention_dropout(q, k, v, p=0.1)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()
