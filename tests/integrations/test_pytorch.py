"""The operators of PyTorch on CPU tensors, against float64: values, gradients, transforms, mistakes."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from flashcore_numba import attention
from flashcore_numba.branches.backward.backward_mma_sync import STAGE as BACKWARD
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import pytorch as ADAPTER
from integrations.broken import broken, must_notice

ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of a value near 1, and some sums of such
_numbers = itertools.count()


def drawn(rng, *shapes, dtype=torch.float16, grad=False):
    """Fresh tensors of a standard normal distribution."""
    found = [torch.from_numpy(rng.standard_normal(shape)).to(dtype) for shape in shapes]
    return [x.requires_grad_() if grad else x for x in found]


def right(
    q, k, v, causal=False, scale=None, window=(-1, -1), softcap=0.0, sinks=None, slopes=None, used=None
):
    """Attention in float64, with autograd: (out, lse). causal and window are aligned bottom-right."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    batch, _, rows, keys = scores.shape
    end = torch.full((batch,), keys) if used is None else used.long()
    place = torch.arange(rows)[None, :, None] + (end - rows)[:, None, None]
    key = torch.arange(keys)[None, None]
    seen = key < end[:, None, None]
    left, after = window
    after = 0 if causal else after
    seen = (
        seen & (key >= place - left if left >= 0 else True) & (key <= place + after if after >= 0 else True)
    )
    if slopes is not None:
        slopes = slopes.double().expand(batch, -1)
        scores = scores - slopes[:, :, None, None] * (key - place)[:, None].abs()
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(batch, -1, rows, 1)], -1)
    lse = scores.logsumexp(-1)
    p = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return (p[..., :-1] if sinks is not None else p) @ v, lse


def close(found, expected, bound):
    """Whether all of `found` is within `bound` of `expected`, relative where that is above 1."""
    assert found.shape == expected.shape
    error = (found.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)
    assert error.max() <= bound, f"{error.max():.3g} is more than {bound}"


def check_values(adapter, rng, dtype, shape, **options):
    """Output, LSE and all gradients of one problem."""
    batch, heads, kv_heads, rows, keys, dim = shape
    bound = ROUNDING[dtype]
    q, k, v = drawn(
        rng,
        (batch, rows, heads, dim),
        (batch, kv_heads, keys, dim),
        (batch, kv_heads, keys, dim),
        dtype=dtype,
    )
    q = q.transpose(1, 2)
    arrays = [x.requires_grad_() for x in (q, k, v)]
    named = {"alibi_slopes": "slopes", "seqused_k": "used"}
    mine = {named.get(name, name): value for name, value in options.items()}
    if "sinks" in options:
        arrays.append(options["sinks"])
    out, lse = adapter.attention(q, k, v, **options, return_lse=True)
    expected, expected_lse = right(q, k, v, **mine)
    close(out, expected, bound)
    close(lse, expected_lse, bound)
    dout, dlse = drawn(rng, out.shape, lse.shape, dtype=dtype)
    dlse = dlse.float()
    found = torch.autograd.grad((out, lse), arrays, (dout, dlse))
    wanted = torch.autograd.grad((expected, expected_lse), arrays, (dout.double(), dlse.double()))
    for each, x in zip(found, wanted, strict=True):
        close(each, x, 4 * bound)
    with torch.no_grad():
        close(adapter.attention(q, k, v, **options), expected, bound)


CASES = {
    "gqa": ((2, 4, 2, 24, 40, 64), {"causal": True}),
    "full": ((1, 2, 2, 40, 24, 64), {"scale": 0.21}),
    "wide": ((1, 2, 1, 24, 24, 128), {"causal": True, "window": (9, 0)}),
    "padded": ((1, 2, 1, 24, 24, 72), {"causal": True}),
    "sinks": ((1, 4, 2, 24, 24, 64), {"causal": True, "sinks": "heads"}),
    "used": ((2, 2, 2, 8, 24, 64), {"causal": True, "seqused_k": "lengths"}),
    "adjusted": ((1, 2, 2, 24, 24, 64), {"softcap": 5.0, "alibi_slopes": "slopes"}),
}


def options_of(rng, case):
    shape, options = CASES[case]
    batch, heads, _, rows, keys, _ = shape
    drawing = {
        "heads": lambda: drawn(rng, (heads,), dtype=torch.float32, grad=True)[0],
        "slopes": lambda: torch.from_numpy(rng.random(heads)).float() * 0.3,
        "lengths": lambda: torch.from_numpy(rng.integers(rows, keys, batch)).int(),
    }
    return shape, {
        name: drawing.get(x, lambda x=x: x)() if isinstance(x, str) else x for name, x in options.items()
    }


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.long)],
    ids=["float16", "bfloat16"],
)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(rng, case, dtype):
    shape, options = options_of(rng, case)
    check_values(ADAPTER, rng, dtype, shape, **options)


@pytest.mark.parametrize(
    "shape, kv_shape",
    [((0, 2, 8, 64), (0, 1, 9, 64)), ((2, 2, 0, 64), (2, 1, 9, 64)), ((2, 2, 8, 64), (2, 1, 0, 64))],
    ids=["no batch", "no row", "no key"],
)
def test_of_nothing_there_is_an_empty_output(rng, shape, kv_shape):
    """A row without keys is zeros, its LSE the sink, and all gradients are zeros."""
    q, k, v = drawn(rng, shape, kv_shape, kv_shape, grad=True)
    (sinks,) = drawn(rng, (2,), dtype=torch.float32, grad=True)
    for attend in (ADAPTER.attention, torch.compile(ADAPTER.attention, backend="eager", fullgraph=True)):
        out, lse = attend(q, k, v, causal=True, sinks=sinks, return_lse=True)
        assert out.shape == shape and not out.any()
        assert lse.shape == shape[:3] and torch.allclose(
            lse, sinks[None, :, None].expand(lse.shape), atol=1e-5
        )
        for x in torch.autograd.grad((out, lse), (q, k, v), (torch.ones_like(out), torch.ones_like(lse))):
            assert not x.any()
    with pytest.raises(ArgumentError, match="heads"):
        ADAPTER.attention(q, k.expand(-1, 3, -1, -1), v.expand(-1, 3, -1, -1))


@pytest.mark.long
def test_packed_sequences_of_nothing():
    x = torch.zeros(0, 2, 64).half().requires_grad_()
    bounds = torch.zeros(3, dtype=torch.int32)
    out = ADAPTER.attention_varlen(x, x, x, bounds, bounds)
    assert out.shape == x.shape and torch.autograd.grad(out.sum(), x)[0].shape == x.shape


def check_packed(adapter, rng):
    """Sequences of different lengths, one of them empty, and rows after the last."""
    lengths = [int(x) for x in rng.integers(1, 12, 3)]
    bounds = torch.tensor([0, lengths[0], lengths[0], sum(lengths)], dtype=torch.int32)
    total = sum(lengths) + 3
    arrays = drawn(rng, (total, 4, 64), (total, 2, 64), (total, 2, 64), grad=True)
    sinks = drawn(rng, (4,), dtype=torch.float32, grad=True)[0]
    out = adapter.attention_varlen(*arrays, bounds, bounds, causal=True, sinks=sinks)
    (dout,) = drawn(rng, out.shape)
    found = torch.autograd.grad(out, (*arrays, sinks), dout)
    parts = []
    for begin, end in itertools.pairwise(bounds.tolist()):
        q, k, v = (x[begin:end].transpose(0, 1)[None] for x in arrays)
        parts.append(right(q, k, v, True, sinks=sinks)[0][0].transpose(0, 1))
    expected = torch.cat(parts)
    used = len(expected)
    close(out[:used], expected, 2e-3)
    assert not out[used:].any()
    for each, x in zip(
        found, torch.autograd.grad(expected, (*arrays, sinks), dout[:used].double()), strict=True
    ):
        close(each, x, 8e-3)


@pytest.mark.long
def test_packed_sequences(rng):
    check_packed(ADAPTER, rng)


@pytest.mark.long
def test_pages(rng):
    q, pools = drawn(rng, (2, 4, 1, 64))[0], drawn(rng, (5, 16, 2, 64), (5, 16, 2, 64))
    table, lengths = (
        torch.tensor([[3, 1], [4, 0]], dtype=torch.int32),
        torch.tensor([20, 9], dtype=torch.int32),
    )
    out, lse = ADAPTER.attention_paged(q, *pools, table, lengths, return_lse=True)
    for b, pages in enumerate(table.tolist()):
        k, v = (pool[pages].flatten(0, 1)[: lengths[b]].transpose(0, 1)[None] for pool in pools)
        expected, expected_lse = right(q[b : b + 1], k, v)
        close(out[b : b + 1], expected, 2e-3)
        close(lse[b : b + 1], expected_lse, 2e-3)
    compiled = torch.compile(
        lambda *given: ADAPTER.attention_paged(*given), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(q, *pools, table, lengths), out)
    with pytest.raises(RuntimeError, match="has no gradients"):
        ADAPTER.attention_paged(q.requires_grad_(), *pools, table, lengths)
    for dtype in (torch.float32, torch.bfloat16):  # a model's parameter has the model's type
        sinks = torch.zeros(4, dtype=dtype, requires_grad=True)
        with torch.no_grad():
            with_sinks = ADAPTER.attention_paged(q, *pools, table, lengths, sinks=sinks)
        close(with_sinks, out.double() * (lse.exp() / (lse.exp() + 1))[..., None], 2e-3)


class Watched(TorchDispatchMode):
    """Notes the operators that were called."""

    def __torch_dispatch__(self, operator, types, given=(), options=None):
        self.called = [*getattr(self, "called", ()), str(operator)]
        return operator(*given, **(options or {}))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_autocast_casts_queries_of_pages_to_the_type_of_the_pools(stored):
    """To its own where they are of e4m3. It copies no pool."""
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        q, pool = torch.empty(2, 4, 1, 64), torch.empty(5, 16, 2, 64, dtype=stored)
        pages = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        with Watched() as watched:
            out = ADAPTER.attention_paged(q, pool, pool, *pages)
    assert out.dtype is (torch.bfloat16 if stored is torch.float8_e4m3fn else stored)
    assert watched.called == ["aten._to_copy.default", "flashcore.attention_paged.default"]


@pytest.mark.long
def test_pages_under_autocast(rng):
    q, k, v = drawn(rng, (2, 4, 1, 64), (5, 16, 2, 64), (5, 16, 2, 64), dtype=torch.float32)
    pools = k.half(), v.half()
    pages = torch.tensor([[3, 1], [4, 0]], dtype=torch.int32), torch.tensor([20, 9], dtype=torch.int32)
    expected = ADAPTER.attention_paged(q.half(), *pools, *pages)
    torch._dynamo.reset()
    compiled = torch.compile(ADAPTER.attention_paged, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        for run in (ADAPTER.attention_paged, compiled):
            assert torch.equal(run(q, *pools, *pages), expected)
        with pytest.raises(ArgumentError, match="k_pool has dtype float32"):
            ADAPTER.attention_paged(q, k, v, *pages)


KEPT = 'return {"causal": causal, "scale": scale, '  # of the options that are kept for a gradient
USED = '"seqused_k": seqused_k}\n    arrays = {\n        name'
OWN = "q.shape[-1] ** -0.5 if scale is None else scale"
SCALED = f"""keywords["scale"] = {OWN}
        width = _padded_dim(max(q.shape[-1], """
CLEARED = "torch._foreach_zero_(gradients)"
MUTANTS = {
    "scale": ((KEPT, KEPT.replace("scale,", "1.02 * (scale or 0.125),")), "gqa"),
    "causal dropped": ((KEPT, KEPT.replace("causal,", "False,")), "gqa"),
    "window one too wide": (
        ('"window": _window(left, right)', '"window": (left + (left > 0), right)'),
        "wide",
    ),
    "softcap dropped": (('"softcap": softcap} | arrays', '"softcap": 0.0} | arrays'), "adjusted"),
    "one key too many": (
        (USED, USED.replace("seqused_k}", "seqused_k if seqused_k is None else seqused_k + 1}")),
        "used",
    ),
    "gradients of K and V exchanged": (("return made\n", "return made[0], made[2], made[1]\n"), "gqa"),
    "LSE in base 2": (("lse = lse.detach().contiguous()", "lse = lse.detach().contiguous() * 1.4427"), "gqa"),
    "gradient of the LSE dropped": (
        ("dlse = None if dlse is None else dlse.detach().contiguous()", "dlse = None"),
        "full",
    ),
    "scale of the padded width": ((SCALED + "columns)", SCALED.replace(OWN, "scale") + "columns)"), "padded"),
    "scale of the padded width, backward": (
        (SCALED + "v.shape[-1])", SCALED.replace(OWN, "scale") + "v.shape[-1])"),
        "padded",
    ),
    "sinks' gradient of the other sign": (("taken = -taken if dlse", "taken = taken if dlse"), "packed"),
    "sinks' gradient without the LSE's": (("else dlse - taken", "else -taken"), "sinks"),
    "rows after the last sequence": (("target.zero_()", "target.fill_(torch.nan)"), "packed"),
    "gradients after the last sequence": (
        (CLEARED, CLEARED.replace("zero_(gradients", "mul_(gradients, torch.nan")),
        "packed",
    ),
    "K and V exchanged": (("found = call(q, k, v, *bounds", "found = call(q, v, k, *bounds"), "gqa"),
}


def fresh(*edits):
    """A broken copy, with operators of its own."""
    own = ('NAMESPACE = "flashcore"', f'NAMESPACE = "flashcore_broken{next(_numbers)}"')
    return broken(ADAPTER, own, *edits)


@pytest.mark.long
def test_a_copy_without_a_mistake_passes(rng):
    copy = fresh()
    shape, options = options_of(rng, "gqa")
    check_values(copy, rng, torch.float16, shape, **options)
    check_packed(copy, rng)


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(rng, name):
    edit, case = MUTANTS[name]

    def check(adapter):
        if case == "packed":
            return check_packed(adapter, rng)
        shape, options = options_of(rng, case)
        return check_values(adapter, rng, torch.float16, shape, **options)

    must_notice(check, fresh(edit))


@pytest.mark.long
def test_the_output_is_ordered_as_the_queries_are(rng):
    q, k, v = drawn(rng, (2, 24, 4, 64), (2, 24, 2, 64), (2, 24, 2, 64))
    out = ADAPTER.attention(*(x.transpose(1, 2) for x in (q, k, v)))
    assert out.transpose(1, 2).is_contiguous()
    assert ADAPTER.attention(q, q, q).is_contiguous()


@pytest.mark.parametrize(
    "checks",
    [
        ("test_schema", "test_autograd_registration", "test_faketensor"),
        pytest.param("test_aot_dispatch_dynamic", marks=pytest.mark.long),
    ],
    ids=["quick", "compiled"],
)
def test_opcheck(rng, checks):
    q, k, v = drawn(rng, (2, 24, 4, 64), (2, 2, 40, 64), (2, 2, 40, 64))
    q = q.transpose(1, 2)
    arrays = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.flashcore.attention.default, (*arrays, True), test_utils=checks)
    out, lse = (x.detach() for x in torch.ops.flashcore.attention(*arrays, True))
    plain = [x.detach() for x in arrays]
    given = (torch.ones_like(out), *plain, out, lse, None, True)
    torch.library.opcheck(torch.ops.flashcore.attention_backward.default, given, test_utils=checks)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_without_a_break(rng, backend):
    arrays = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), grad=True)
    sinks = drawn(rng, (2,), dtype=torch.float32, grad=True)[0]

    def run(q, k, v, sinks):
        out, lse = ADAPTER.attention(q * 2, k, v, causal=True, window=(9, 0), sinks=sinks, return_lse=True)
        return out.float().square().sum() + lse.sum()

    torch._dynamo.reset()
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    found = torch.autograd.grad(compiled(*arrays, sinks), (*arrays, sinks))
    expected = torch.autograd.grad(run(*arrays, sinks), (*arrays, sinks))
    for each, x in zip(found, expected, strict=True):
        close(each, x, 8e-3)


@pytest.mark.long
def test_a_compiled_backward_pass(rng):
    """Of a call that was not compiled: it keeps the operator, and does not look inside."""
    from torch._dynamo import compiled_autograd

    arrays = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), grad=True)
    graphs = []

    def run():
        out, lse = ADAPTER.attention(*arrays, causal=True, return_lse=True)
        return out.float().square().sum() + lse.sum()

    def compiled(graph):
        return torch.compile(graph, backend=lambda made, inputs: graphs.append(made) or made, fullgraph=True)

    torch._dynamo.reset()
    total = run()
    with compiled_autograd._enable(compiled):
        total.backward()
    assert "flashcore" in "".join(str(each.graph) for each in graphs)
    for x, expected in zip(arrays, torch.autograd.grad(run(), arrays), strict=True):
        close(x.grad, expected, 8e-3)


@pytest.mark.long
def test_one_graph_serves_all_lengths(rng):
    torch._dynamo.reset()
    graphs = []
    compiled = torch.compile(
        lambda q, k, v: ADAPTER.attention(q, k, v, causal=True),
        backend=lambda graph, inputs: graphs.append(graph) or graph,
        fullgraph=True,
        dynamic=True,
    )
    for keys in (17, 24, 33):
        arrays = drawn(rng, (1, 2, keys, 64), (1, 2, keys, 64), (1, 2, keys, 64))
        close(compiled(*arrays), right(*arrays, True)[0], 2e-3)
    assert len(graphs) == 1


def loss(attend):
    return lambda q, k, v: attend(q, k, v).double().square().sum()


@pytest.mark.long
def test_transforms(rng):
    """torch.func: grad, vmap over any dimension, and both in either order."""
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64))
    (many,) = drawn(rng, (1, 2, 3, 16, 64))
    mine, true = (
        (lambda *given: ADAPTER.attention(*given, causal=True)),
        (lambda *given: right(*given, True)[0]),
    )
    for make in (
        lambda attend: torch.func.grad(loss(attend), argnums=1)(q, k, v),
        lambda attend: torch.vmap(attend, in_dims=(2, None, None), out_dims=1)(many, k, v),
        lambda attend: torch.vmap(torch.func.grad(loss(attend)), in_dims=(2, None, None))(many, k, v),
        lambda attend: torch.func.grad(
            lambda x: torch.vmap(loss(attend), in_dims=(2, None, None))(x, k, v).sum()
        )(many),
        lambda attend: torch.func.jacrev(lambda x: attend(x, k, v).double().sum((0, 1, 3))[:2])(q),
    ):
        close(make(mine), make(true), 8e-3)


@pytest.mark.long
def test_transforms_of_the_operator(rng):
    """Of its backward too, and by a transform without a gradient."""
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64))
    operators = torch.ops.flashcore
    expected = torch.func.grad(loss(lambda *given: right(*given)[0]))(q, k, v)
    close(torch.func.grad(loss(lambda *given: operators.attention(*given)[0]))(q, k, v), expected, 8e-3)
    close(torch.func.functionalize(ADAPTER.attention)(q, k, v), right(q, k, v)[0], 2e-3)
    out, lse = operators.attention(q, k, v)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda x: operators.attention_backward(x, q, k, v, out, lse, None)[0].sum())(out)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_transform(rng, backend):
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64))
    torch._dynamo.reset()
    compiled = torch.compile(torch.func.grad(loss(ADAPTER.attention)), backend=backend, fullgraph=True)
    close(compiled(q, k, v), torch.func.grad(loss(lambda *given: right(*given)[0]))(q, k, v), 8e-3)


@pytest.mark.long
def test_a_trace_holds_the_operator(rng):
    """And no result of the call that was traced."""
    arrays = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), grad=True)
    traced = torch.jit.trace(lambda *given: ADAPTER.attention(*given, causal=True), arrays, check_trace=False)
    others = drawn(rng, (2, 2, 9, 64), (2, 1, 20, 64), (2, 1, 20, 64), grad=True)
    out, expected = traced(*others), right(*others, True)[0]
    close(out, expected, 2e-3)
    (dout,) = drawn(rng, out.shape)
    found = torch.autograd.grad(out, others, dout)
    for each, x in zip(found, torch.autograd.grad(expected, others, dout.double()), strict=True):
        close(each, x, 8e-3)


def counted(run, *given, **options):
    """The total of PyTorch's counter of operations, and those by operator."""
    with FlopCounterMode(display=False) as counter:
        run(*given, **options)
    return {str(name): n for name, n in counter.get_flop_counts()["Global"].items()}


def test_operations_are_counted_as_of_pytorchs_own_attention():
    name = "flashcore.attention"
    with torch.device("meta"):
        q = torch.empty(2, 4, 7, 64).half().requires_grad_()
        k, v = torch.empty(2, 2, 9, 64).half(), torch.empty(2, 2, 9, 40).half()
        rows, keys, pool = (torch.empty(*size).half() for size in ((12, 4, 64), (14, 2, 64), (5, 16, 2, 64)))
        new, table = torch.empty(2, 4, 3, 64).half(), torch.empty(2, 2).int()
    found = counted(lambda: ADAPTER.attention(q, k, v, causal=True).sum().backward())
    assert found == {
        name: sdpa_flop_count(q.shape, k.shape, v.shape),
        f"{name}_backward": sdpa_backward_flop_count((2, 4, 7, 40), q.shape, k.shape, v.shape),
    }
    # Where nobody knows the values, sequences are equally long and pages are full.
    begins = torch.tensor([[0, 2, 2, 12], [0, 5, 8, 14]], dtype=torch.int32)
    rows.requires_grad_()
    for bounds, pairs in ((begins, 2 * 5 + 10 * 6), (begins.to("meta"), 12 * 14 // 3)):
        found = counted(
            lambda given: ADAPTER.attention_varlen(rows, keys, keys, *given).sum().backward(), bounds
        )
        assert found == {name: 4 * pairs * 4 * 64, f"{name}_backward": 4 * pairs * 10 * 64}
    lengths = torch.tensor([20, 9], dtype=torch.int32)
    for given, stored in ((lengths, 29), (lengths.to("meta"), 64)):
        found = counted(ADAPTER.attention_paged, new, pool, pool, table, given)
        assert found == {f"{name}_paged": 12 * stored * 4 * 64}


class Marked(torch.Tensor):
    """A class of one's own, as libraries for images have."""


def test_classes_derived_from_tensor(rng):
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64))
    out = ADAPTER.attention(q.as_subclass(Marked), k, v)
    assert type(out) is Marked
    close(out.as_subclass(torch.Tensor), right(q, k, v)[0], 2e-3)


def test_what_transforms_cannot_do_is_refused(rng):
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64))
    with pytest.raises(RuntimeError, match="no derivative in forward mode"):
        torch.func.jvp(lambda x: ADAPTER.attention(x, k, v), (q,), (q,))
    with pytest.raises(UnsupportedError, match="sinks is mapped by vmap"):
        torch.vmap(lambda x: ADAPTER.attention(q, k, v, sinks=x))(torch.zeros(3, 2))
    bounds = torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="vmap of packed sequences"):
        torch.vmap(lambda x: ADAPTER.attention_varlen(x, x, x, bounds, bounds))(
            torch.zeros(3, 8, 1, 64).half()
        )


def check_forward_mode(adapter, rng):
    """A derivative that a tensor carries is refused by all that would lose it, and by nothing else."""
    q, *pools = drawn(rng, (1, 2, 1, 64), (2, 16, 2, 64), (2, 16, 2, 64))
    table, lengths = torch.tensor([[1]], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    (k,) = drawn(rng, (1, 2, 9, 64))
    out, lse = adapter.attention(q, k, k, return_lse=True)
    operators = getattr(torch.ops, adapter.NAMESPACE)
    calls = (
        lambda x: adapter.attention_paged(x, *pools, table, lengths),
        lambda x: adapter.attention(q, k, k, gate=x),
        lambda x: adapter.attention(x, k, k, head_norm=(torch.ones(64), 1e-6)),
        lambda x: operators.attention(x, k, k),
        lambda x: operators.attention_backward(x, q, k, k, out, lse, None),
    )
    for call in calls:
        refusal = "no derivative in forward mode"
        with forward_ad.dual_level():
            call(q)
            for context in (torch.enable_grad, torch.no_grad):
                with context(), pytest.raises(RuntimeError, match=refusal):
                    call(forward_ad.make_dual(q, q))
        with pytest.raises((RuntimeError, UnsupportedError), match=f"{refusal}|transform of torch.func"):
            torch.func.jvp(call, (q,), (q,))


@pytest.mark.long
def test_forward_mode_is_refused_where_there_is_no_formula(rng):
    check_forward_mode(ADAPTER, rng)


TANGENTS = {
    "of pages": '    _check_tangents("attention_paged", "it has no gradients", arguments)\n',
    "of a gate": '"apply them to what it returns", named.values())',
    "of the operator": '    _check_tangents("attention", "use reverse mode", arguments)\n',
    "of gradients": '    _check_tangents("attention_backward", "it has no derivatives", arguments)\n',
}


@pytest.mark.parametrize("name", TANGENTS)
def test_a_lost_tangent_is_noticed(rng, name):
    edit = TANGENTS[name], '"", ())' if name == "of a gate" else ""
    must_notice(lambda adapter: check_forward_mode(adapter, rng), fresh(edit), pytest.fail.Exception)


def check_slopes(adapter, rng):
    """A gradient of slopes is refused and never left out."""
    (q,) = drawn(rng, (1, 2, 8, 64))
    slopes = torch.ones(2, requires_grad=True)
    bounds = torch.tensor([0, 2], dtype=torch.int32)

    def call(slopes):
        return adapter.attention(q, q, q, alibi_slopes=slopes).double().sum()

    for make in (
        lambda: call(slopes),
        lambda: adapter.attention_varlen(q[0], q[0], q[0], bounds, bounds, alibi_slopes=slopes),
        lambda: torch.func.grad(call)(slopes.detach()),
    ):
        with pytest.raises(UnsupportedError, match="alibi_slopes require a gradient"):
            make()
    with torch.no_grad():
        call(slopes)


@pytest.mark.long
def test_a_gradient_of_slopes_is_refused(rng):
    check_slopes(ADAPTER, rng)


@pytest.mark.parametrize(
    "edit",
    [
        ("        _check_gradient(q, v, options)\n        return _op", "        return _op"),
        ("wanted = _wanted(q, k, v, sinks, options[SLOPES])", "wanted = _wanted(q, k, v, sinks, None)"),
    ],
    ids=["in a transform", "alone"],
)
def test_a_lost_gradient_of_slopes_is_noticed(rng, edit):
    must_notice(lambda adapter: check_slopes(adapter, rng), fresh(edit), pytest.fail.Exception)


def check_sinks_of_a_model(adapter, rng):
    """A parameter in the type of the model, as its gradient then is."""
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), dtype=torch.bfloat16)
    (sinks,) = drawn(rng, (2,), dtype=torch.bfloat16, grad=True)
    out, expected = adapter.attention(q, k, v, sinks=sinks), right(q, k, v, sinks=sinks)[0]
    close(out, expected, 1.6e-2)
    (dout,) = drawn(rng, out.shape, dtype=torch.bfloat16)
    found = torch.autograd.grad(out, sinks, dout)[0]
    assert found.dtype is torch.bfloat16
    close(found, torch.autograd.grad(expected, sinks, dout.double())[0], 6.4e-2)


def check_deterministic(adapter, rng):
    """By the argument, and by what PyTorch is told for all operators."""
    asked, run = [], adapter.call_backward
    adapter.call_backward = lambda *given, **options: (
        asked.append(options["deterministic"]) or run(*given, **options)
    )
    (q,) = drawn(rng, (1, 1, 8, 64), grad=True)
    try:
        for here, everywhere in ((False, False), (True, False), (False, True)):
            torch.use_deterministic_algorithms(everywhere)
            adapter.attention(q, q, q, deterministic=here).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True, True]


OF_MODELS = {
    "sinks as they are": ("sinks = _in_float32(options[SINKS])", "sinks = options[SINKS]"),
    "PyTorch's switch": ("deterministic or torch.are_deterministic_algorithms_enabled()", "deterministic"),
    "the argument": ("deterministic = deterministic or torch.are", "deterministic = torch.are"),
}


@pytest.mark.long
@pytest.mark.parametrize("check", [check_sinks_of_a_model, check_deterministic])
def test_what_models_and_programs_set(rng, check):
    check(fresh(), rng)


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_models_and_programs_set_is_not_lost(rng, name):
    check, error = check_deterministic, AssertionError
    if "sinks" in name:
        check, error = check_sinks_of_a_model, ArgumentError
    must_notice(lambda adapter: check(adapter, rng), fresh(OF_MODELS[name]), error)


@pytest.mark.long
def test_many_gradients_of_one_output_at_once(rng):
    """`is_grads_batched` maps over the backward pass, by another vmap than that of torch.func."""
    q, k, v = drawn(rng, (1, 2, 8, 64), (1, 1, 9, 64), (1, 1, 9, 64), grad=True)
    (sinks,) = drawn(rng, (2,), dtype=torch.float32, grad=True)
    out, expected = ADAPTER.attention(q, k, v, sinks=sinks), right(q, k, v, sinks=sinks)[0]
    (douts,) = drawn(rng, (3, *out.shape))
    wanted = (q, k, v, sinks)
    found = torch.autograd.grad(out, wanted, douts, is_grads_batched=True)
    for x, y in zip(
        found, torch.autograd.grad(expected, wanted, douts.double(), is_grads_batched=True), strict=True
    ):
        close(x, y, 8e-3)


def test_tensors_without_memory(rng):
    """Of the device meta, on which models are laid out before they have weights."""
    q, k = (torch.empty(size, dtype=torch.float16, device="meta") for size in ((2, 8, 4, 64), (2, 2, 9, 64)))
    q = q.transpose(1, 2).requires_grad_()
    out, lse = ADAPTER.attention(q, k, k, return_lse=True)
    assert out.is_meta and out.stride() == q.stride() and lse.shape == q.shape[:3]
    out.sum().backward()
    assert q.grad.is_meta and q.grad.shape == q.shape


def test_a_second_derivative_is_refused_and_never_left_out(rng):
    x, k, v = drawn(rng, (1, 1, 8, 64), (1, 1, 8, 64), (1, 1, 8, 64), grad=True)
    (gradient,) = torch.autograd.grad(loss(ADAPTER.attention)(x, k, v), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (gradient.square().sum() + x.square().sum()).backward()
    (gradient,) = torch.autograd.grad(loss(ADAPTER.attention)(x, k, v), x)
    assert not gradient.requires_grad


@pytest.mark.long
def test_autocast(rng):
    q, k, v = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), dtype=torch.float32, grad=True)
    for attend in (ADAPTER.attention, torch.ops.flashcore.attention):
        with torch.autocast("cpu", torch.bfloat16):
            found = attend(q, k, v)
        out = found if isinstance(found, torch.Tensor) else found[0]
        assert out.dtype is torch.bfloat16
        close(out, right(q, k, v)[0], 3e-2)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), q)
        assert gradient.dtype is torch.float32
        close(gradient, torch.autograd.grad(right(q, k, v)[0].square().sum(), q)[0], 6e-2)


def test_a_parameter_needs_no_gradient_under_no_grad(rng):
    q, k, v = (torch.nn.Parameter(x) for x in drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64)))
    with torch.no_grad():
        close(ADAPTER.attention(q, k, v), right(q, k, v)[0], 2e-3)


@pytest.mark.long
def test_views_of_any_strides(rng):
    (packed,) = drawn(rng, (2, 24, 3, 2, 64))
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    close(ADAPTER.attention(q, k, v), right(q, k, v)[0], 2e-3)
    columns = q.mT.contiguous().mT
    close(ADAPTER.attention(columns, k, v), right(q, k, v)[0], 2e-3)
    one = k[:1].expand(2, -1, -1, -1)
    close(ADAPTER.attention(q, one, one), right(q, one, one)[0], 2e-3)
    x = q.detach().clone().requires_grad_()
    sinks, used = torch.ones(2, 2)[:, 1], torch.tensor([20], dtype=torch.int32).expand(2)
    slopes = torch.tensor([0.25, 0.5]).expand(2, 2)
    found = ADAPTER.attention(q, k, v, sinks=sinks, seqused_k=used, alibi_slopes=slopes)
    close(found, right(q, k, v, sinks=sinks, used=used, slopes=slopes)[0], 2e-3)
    ADAPTER.attention(x, k, v).sum().backward()  # a gradient whose strides are 0
    close(x.grad, torch.autograd.grad(right(x, k, v)[0].sum(), x)[0], 8e-3)


@pytest.mark.long
def test_checkpointing_and_saved_tensors(rng):
    from torch.utils.checkpoint import checkpoint

    arrays = drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), grad=True)
    plain = torch.autograd.grad(loss(ADAPTER.attention)(*arrays), arrays)
    with torch.autograd.graph.save_on_cpu():
        kept = torch.autograd.grad(loss(ADAPTER.attention)(*arrays), arrays)
    again = torch.autograd.grad(checkpoint(loss(ADAPTER.attention), *arrays, use_reentrant=False), arrays)
    for one, other, third in zip(plain, kept, again, strict=True):
        close(one, other, 1e-3)
        close(one, third, 1e-3)


def test_the_dimensions_of_gradients_are_those_of_the_kernels():
    assert tuple(sorted(BACKWARD.head_dims)) == ADAPTER.GRADIENT_DIMS


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda q: ADAPTER.attention(q.float(), q, q), ArgumentError, r"q has dtype float32.*q\.half\(\)"),
        (lambda q: ADAPTER.attention(q, q.float(), q), ArgumentError, "k has dtype float32|k is"),
        (lambda q: ADAPTER.attention(q, q, q, window=5), ArgumentError, "window is 5"),
        (lambda q: ADAPTER.attention(q.numpy(), q, q), ArgumentError, "q is of type ndarray"),
        (lambda q: ADAPTER.attention(q, q, q, sinks=[0.0] * 2), ArgumentError, "sinks is of type list"),
        (lambda q: ADAPTER.attention(q.to_sparse(), q, q), ArgumentError, "q is of layout sparse_coo"),
        (lambda q: ADAPTER.attention(q, q, q[:, :1, :, :]), ArgumentError, "v has"),
        (
            lambda q: ADAPTER.attention_varlen(q[0], q[0], q[0], None, None),
            ArgumentError,
            "cu_seqlens_q is None",
        ),
        (
            lambda q: ADAPTER.attention(*(torch.zeros(1, 1, 8, 264).half(),) * 3),
            ArgumentError,
            "264: for attention it can be at most 256",
        ),
        (
            lambda q: ADAPTER.attention(*(torch.zeros(1, 1, 8, 192).half().requires_grad_(),) * 3),
            ArgumentError,
            "192: for gradients it can be at most 128",
        ),
        (
            lambda q: ADAPTER.attention(
                q.clone().requires_grad_(), q, q, alibi_slopes=torch.ones(2, requires_grad=True)
            ),
            UnsupportedError,
            "alibi_slopes require a gradient",
        ),
        (lambda q: ADAPTER.attention_paged(q, q, q, [[0]], q), ArgumentError, "block_table is of type list"),
        (
            lambda q: ADAPTER.attention_paged(q, q, q, q, q, sinks=[0.0]),
            ArgumentError,
            "sinks is of type list",
        ),
        (
            lambda q: ADAPTER.attention_paged(q, q.to_sparse(), q, q, q),
            ArgumentError,
            "k_pool is of layout sparse_coo",
        ),
        (
            lambda q: torch.ops.flashcore.attention_backward(q, q, q, q, q, torch.zeros(0), None),
            ArgumentError,
            "return_lse=True",
        ),
    ],
)
def test_bad_arguments(rng, make, error, message):
    (q,) = drawn(rng, (1, 2, 8, 64))
    with pytest.raises(error, match=message):
        make(q)


def test_a_plain_call_does_not_pass_through_the_dispatcher(rng, monkeypatch):
    def fail(*given):
        raise AssertionError("it did")

    arrays = drawn(rng, (1, 2, 8, 64), (1, 2, 8, 64), (1, 2, 8, 64))
    monkeypatch.setattr(ADAPTER, "_operators", SimpleNamespace(attention=fail, attention_backward=fail))
    ADAPTER.attention(*arrays)
    x = arrays[0].clone().requires_grad_()
    ADAPTER.attention(x, *arrays[1:]).sum().backward()
    assert x.grad is not None


def test_a_view_that_negates_its_memory_is_refused():
    rows = torch._neg_view(torch.ones(1, 2, 4, 64, dtype=torch.float16))
    with pytest.raises(ArgumentError, match=r"^q is no plain memory of numbers: .*negative bit"):
        attention(rows, rows, rows)
