"""The operators of PyTorch on CPU tensors, against float64: values, gradients, transforms, mistakes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from flashcore_numba import attention, attention_paged
from flashcore_numba.branches.backward.backward_mma_sync import STAGE as BACKWARD
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import pytorch as ADAPTER
from flashcore_numba.integrations.hub import flash_attn_func, flash_attn_varlen_func
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


ZERO, ONE = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)


@pytest.mark.parametrize(
    "shapes, lengths, message",
    [
        (((1, 2, 4, 64), (0, 2, 16, 64), (0, 2, 16, 64)), {}, "k has batch 0"),
        (((1, 2, 4, 64), (0, 2, 1, 64), (1, 2, 1, 64)), {}, "k has batch 0"),
        (((1, 2, 4, 64), (1, 2, 1, 64), (0, 2, 1, 64)), {}, "v has an empty batch"),
        (((0, 2, 4, 64), (1, 2, 8, 64), (1, 2, 8, 64)), {}, "k has batch 1"),
        (((1, 2, 4, 64), (1, 2, 0, 64), (1, 2, 1, 64)), {}, "v has length 1"),
        (((1, 2, 4, 64), (1, 2, 1, 64), (1, 2, 0, 64)), {}, "v has length zero"),
        (((1, 2, 4, 64), (1, 2, 0, 64), (1, 1, 0, 64)), {}, "v has 1 heads"),
        (((1, 3, 4, 64), (1, 2, 0, 64), (1, 2, 0, 64)), {}, "k has 2 heads"),
        (((1, 2, 4, 64), (1, 2, 0, 128), (1, 2, 0, 64)), {}, "k has head dimension 128"),
        (((1, 2, 4, 64), (1, 2, 0, 64), (1, 2, 0, 64)), {"seqused_k": ONE}, "seqused_k is 1 for sequence 0"),
        (((0, 2, 4, 64), (0, 2, 3, 64), (0, 2, 3, 64)), {"seqused_k": ONE}, r"seqused_k has shape \(1,\)"),
        (((4, 2, 64), (0, 2, 64), (0, 2, 64)), {"keys": [0, 1]}, r"cu_seqlens_k is \[0, 1\]"),
        (((0, 2, 64), (3, 2, 64), (3, 2, 64)), {"rows": [0, 1]}, r"cu_seqlens_q is \[0, 1\]"),
        (((4, 2, 64), (0, 2, 64), (1, 2, 64)), {}, "v has length 1"),
    ],
)
def test_of_nothing_too_arguments_must_fit_together(shapes, lengths, message):
    arrays = [torch.ones(shape, dtype=torch.float16) for shape in shapes]
    with pytest.raises(ArgumentError, match=f"^{message}"):
        if len(shapes[0]) == 3:
            ends = lengths.get("rows", [0, shapes[0][0]]), lengths.get("keys", [0, shapes[1][0]])
            ADAPTER.attention_varlen(*arrays, *(torch.tensor(x, dtype=torch.int32) for x in ends))
        else:
            ADAPTER.attention(*arrays, **lengths)


def test_lengths_over_no_key(rng):
    """They may be given, and are 0."""
    q, k = torch.ones(1, 2, 4, 64).half(), torch.ones(1, 2, 0, 64).half()
    assert not ADAPTER.attention(q, k, k, seqused_k=ZERO).any()
    none, row = torch.ones(0, 2, 64).half(), torch.ones(4, 2, 64).half()
    bounds = torch.tensor([0, 4], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    assert not ADAPTER.attention_varlen(row, none, none, *bounds).any()
    assert not ADAPTER.attention_varlen(none, row, row, *bounds[::-1]).numel()


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


def test_queries_and_tables_of_pages_of_any_strides(rng):
    q, *pools = drawn(rng, (2, 4, 64, 3), (5, 16, 2, 64), (5, 16, 2, 64))
    q = q.mT
    table = torch.tensor([[3, 4], [1, 0]], dtype=torch.int32).T
    lengths = torch.tensor([[20, 0], [9, 0]], dtype=torch.int32)[:, 0]
    out = ADAPTER.attention_paged(q, *pools, table, lengths)
    for b, pages in enumerate(table.tolist()):
        k, v = (pool[pages].flatten(0, 1)[: lengths[b]].transpose(0, 1)[None] for pool in pools)
        close(out[b : b + 1], right(q[b : b + 1], k, v, True)[0], 2e-3)
    with pytest.raises(ArgumentError, match=r"^lengths has shape"):
        ADAPTER.attention_paged(q, *pools, table, lengths[0])


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


F = torch.func


def by_autograd(run):
    """The gradient of what `run` returns beside one or instead of one, as autograd has it."""

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(run(x), x)[0]

    return gradient


def without_gradients(run):
    return torch.no_grad()(run)


# First derivatives through a transform inside: of total, a function of q.
FIRST = {
    "the value of grad_and_value": lambda total: F.grad(lambda x: F.grad_and_value(total)(x)[1]),
    "the value, at three levels": lambda total: F.grad(
        lambda x: F.grad_and_value(lambda y: F.grad_and_value(total)(y)[1])(x)[1]
    ),
    "the value of vjp": lambda total: F.grad(lambda x: F.vjp(total, x)[0]),
    "the value of vjp, by jacrev": lambda total: F.jacrev(lambda x: F.vjp(total, x)[0]),
    "the value, by autograd": lambda total: by_autograd(lambda x: F.grad_and_value(total)(x)[1]),
    "the value of vjp, by autograd": lambda total: by_autograd(lambda x: F.vjp(total, x)[0]),
    "aux, by autograd": lambda total: by_autograd(
        lambda x: F.grad(lambda y: (total(y), total(y)), has_aux=True)(x)[1]
    ),
    "the value, under vmap": lambda total: (
        lambda x: F.vmap(F.grad(lambda y: F.grad_and_value(total)(y)[1]))(torch.stack([x, 2 * x]))
    ),
    "the value, where gradients are off outside": lambda total: without_gradients(
        F.grad(lambda x: F.grad_and_value(total)(x)[1])
    ),
    "a step taken before": lambda total: lambda x: F.grad(total)(x - 0.1 * F.grad(total)(x).to(x.dtype)),
}
SECOND = {
    "grad of grad": lambda total: F.grad(lambda x: F.grad(total)(x).double().square().sum()),
    "grad of a linear function of grad": lambda total: F.grad(lambda x: F.grad(total)(x).double().sum()),
    "grad of vjp": lambda total: F.grad(
        lambda x: F.vjp(total, x)[1](torch.ones(()).double())[0].double().sum()
    ),
    "jacrev of grad": lambda total: F.jacrev(lambda x: F.grad(total)(x)[0, 0, 0, :2]),
    "jacrev of jacrev": lambda total: F.jacrev(lambda x: F.jacrev(total)(x)[0, 0, 0, :2]),
    "vmap of grad of grad": lambda total: (
        lambda x: F.vmap(F.grad(lambda y: F.grad(total)(y).double().square().sum()))(x[None])
    ),
    "autograd of grad": lambda total: by_autograd(lambda x: F.grad(total)(x).double().square().sum()),
    "autograd of vjp": lambda total: by_autograd(
        lambda x: F.vjp(total, x)[1](torch.ones(()).double())[0].double().sum()
    ),
    "a step that is differentiated": lambda total: F.grad(
        lambda x: total(x - 0.1 * F.grad(total)(x).to(x.dtype))
    ),
}
FORWARD = {
    "jvp of the value": lambda total: lambda x: F.jvp(lambda y: F.grad_and_value(total)(y)[1], (x,), (x,)),
    "jvp of the value of vjp": lambda total: lambda x: F.jvp(lambda y: F.vjp(total, y)[0], (x,), (x,)),
    "jvp of grad": lambda total: lambda x: F.jvp(F.grad(total), (x,), (x,)),
    "grad of jvp": lambda total: F.grad(lambda x: F.jvp(total, (x,), (x,))[1]),
    "jvp of vmap": lambda total: lambda x: F.jvp(F.vmap(total), (x[None],), (x[None],)),
    "jacfwd of grad": lambda total: F.jacfwd(F.grad(total)),
    "hessian": lambda total: F.hessian(total),
    "a dual tensor in grad": lambda total: lambda x: in_dual_level(F.grad(total), x),
}


def in_dual_level(run, x):
    with forward_ad.dual_level():
        return run(forward_ad.make_dual(x, x))


def check_nested(adapter, rng, kinds):
    """Transforms inside one another: a derivative is right or refused, and never left out."""
    q, k, v = drawn(rng, (1, 1, 4, 64), (1, 1, 7, 64), (1, 1, 7, 64))

    def mine(x):
        return adapter.attention(x, k, v).double().square().sum()

    def true(x):
        return right(x, k, v)[0].square().sum()

    for make in (FIRST[name] for name in kinds if name in FIRST):
        found, expected = make(mine)(q), make(true)(q)
        assert expected.any()
        close(found, expected, 8e-3)
    for refused, message in ((SECOND, "no second derivative"), (FORWARD, "no derivative in forward mode")):
        for make in (refused[name] for name in kinds if name in refused):
            with pytest.raises(RuntimeError, match=message):
                make(mine)(q)


@pytest.mark.parametrize("name", [*FIRST, *SECOND, *FORWARD])
def test_nested_transforms(rng, name):
    check_nested(ADAPTER, rng, [name])


def check_two_arguments(adapter, rng):
    """The outer transform by one, the inner one by another."""
    q, k, v = drawn(rng, (1, 1, 4, 64), (1, 1, 7, 64), (1, 1, 7, 64))
    (sinks,) = drawn(rng, (1,), dtype=torch.float32)
    for inner in (
        lambda x: F.grad(lambda y: adapter.attention(x, k, y).double().square().sum())(v),
        lambda x: F.grad(lambda y: adapter.attention(x, k, v, sinks=y).double().square().sum())(sinks),
    ):
        with pytest.raises(RuntimeError, match="no second derivative"):
            F.grad(lambda x, inner=inner: inner(x).double().square().sum())(q)


def test_transforms_by_two_arguments(rng):
    check_two_arguments(ADAPTER, rng)


ON = "        torch.enable_grad(),\n"
ON_FORWARD = "        forward_ad._set_fwd_grad_enabled(True),\n"
LEFT_OUT = {
    "gradients off": ((ON, ""), FIRST, AssertionError),
    "forward mode off": ((ON_FORWARD, ""), FORWARD, pytest.fail.Exception),
    "the operator as it is": (
        ("_below(_operators.attention, q", "_operators.attention(q"),
        FIRST,
        AssertionError,
    ),
    "gradients as they are": (("_below(_gradients, *", "_gradients(*"), SECOND, pytest.fail.Exception),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_derivative_that_a_transform_loses_is_noticed(rng, name):
    edit, kinds, error = LEFT_OUT[name]
    must_notice(lambda adapter: check_nested(adapter, rng, kinds), fresh(edit), error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_nested_transforms(rng, backend):
    q, k, v = drawn(rng, (1, 1, 4, 64), (1, 1, 7, 64), (1, 1, 7, 64))

    def value(attend):
        return F.grad(lambda x: F.grad_and_value(lambda y: loss(attend)(y, k, v))(x)[1])

    torch._dynamo.reset()
    compiled = torch.compile(value(ADAPTER.attention), backend=backend, fullgraph=True)
    close(compiled(q), value(lambda *given: right(*given)[0])(q), 8e-3)
    twice = F.grad(lambda x: F.grad(lambda y: loss(ADAPTER.attention)(y, k, v))(x).double().sum())
    with pytest.raises(Exception, match="no second derivative"):
        torch.compile(twice, backend=backend, fullgraph=True)(q)


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
        ("        _check_gradient(q, v, options)\n        return _below", "        return _below"),
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


def test_tensors_without_memory_under_autocast():
    q = torch.empty(1, 2, 4, 64, dtype=torch.float16, device="meta")
    with torch.autocast("cpu", torch.bfloat16):  # which leaves them alone, as PyTorch's own attention does
        assert ADAPTER.attention(q, q, q).dtype is torch.float16


def test_a_second_derivative_is_refused_and_never_left_out(rng):
    x, k, v = drawn(rng, (1, 1, 8, 64), (1, 1, 8, 64), (1, 1, 8, 64), grad=True)
    (gradient,) = torch.autograd.grad(loss(ADAPTER.attention)(x, k, v), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (gradient.square().sum() + x.square().sum()).backward()
    (gradient,) = torch.autograd.grad(loss(ADAPTER.attention)(x, k, v), x)
    assert not gradient.requires_grad


@pytest.mark.parametrize("return_lse", [False, True])
def test_a_second_derivative_of_sinks_is_refused(rng, return_lse):
    """By all that the sinks' gradient is made of, whether or not the LSE has a history."""
    arrays = drawn(rng, (1, 2, 8, 64), (1, 1, 9, 64), (1, 1, 9, 64), grad=True)
    (sinks,) = drawn(rng, (2,), dtype=torch.float32, grad=True)

    def gradient(attend):
        found = attend(*arrays, sinks=sinks)
        out = found if isinstance(found, torch.Tensor) else found[0]
        return torch.autograd.grad(loss(lambda *_: out)(*arrays), sinks, create_graph=True)[0]

    mine = gradient(lambda *given, **options: ADAPTER.attention(*given, **options, return_lse=return_lse))
    close(mine, gradient(right), 8e-3)
    for made in (mine, gradient(torch.ops.flashcore.attention)):
        for x in (*arrays, sinks):
            with pytest.raises(RuntimeError, match="no second derivative"):
                torch.autograd.grad(made.square().sum(), x, retain_graph=True)


def test_a_sink_of_minus_infinity_over_no_key_has_no_gradient(rng):
    """The row's LSE is -inf then, and what a sink takes of it is 0."""
    arrays = drawn(rng, (2, 2, 8, 64), (2, 1, 9, 64), (2, 1, 9, 64))
    sinks = torch.tensor([-torch.inf, 0.5], requires_grad=True)
    used = torch.tensor([0, 9], dtype=torch.int32)
    out, lse = ADAPTER.attention(*arrays, sinks=sinks, seqused_k=used, return_lse=True)
    assert (lse[0, 0] == -torch.inf).all()
    dout, dlse = torch.ones_like(out), torch.ones_like(lse)
    (found,) = torch.autograd.grad((out, lse), sinks, (dout, dlse))
    seen = right(*(x[1:] for x in arrays), sinks=sinks)
    (expected,) = torch.autograd.grad(seen, sinks, (dout[1:].double(), dlse[1:].double()))
    close(found, expected + torch.tensor([0, 8]), 8e-3)  # of rows without keys the sink is the LSE
    bounds = torch.tensor([[0, 3, 8], [0, 0, 9]], dtype=torch.int32)
    packed = ADAPTER.attention_varlen(*(x[0].transpose(0, 1) for x in arrays), *bounds, sinks=sinks)
    assert torch.autograd.grad(packed.sum(), sinks)[0].isfinite().all()


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


class Attending(torch.nn.Module):
    def forward(self, q, k, v):
        return ADAPTER.attention(q, k, v)


def of_hub(q, k, v):
    return flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)))


def packed_of(function):
    def run(q, k, v):
        bounds = (torch.tensor([0, x.shape[2]], dtype=torch.int32) for x in (q, k))
        return function(*(x[0].transpose(0, 1) for x in (q, k, v)), *bounds)

    return run


@pytest.mark.parametrize(
    "attend",
    [
        ADAPTER.attention,
        lambda q, k, v: ADAPTER.attention(q.clone().requires_grad_(), k, v),
        lambda q, k, v: ADAPTER.attention(torch.nn.Parameter(q), k, v),
        lambda q, k, v: ADAPTER.attention(q, k[:, :, :0], v[:, :, :0]),
        lambda *given: ADAPTER.attention(*(x.to("meta") for x in given)),
        lambda *given: torch.export.export(Attending(), given),
        packed_of(ADAPTER.attention_varlen),
        of_hub,
        packed_of(flash_attn_varlen_func),
    ],
    ids=["alone", "gradient", "parameter", "empty", "meta", "export", "packed", "hub", "packed_hub"],
)
@pytest.mark.parametrize("dims", [(72, 40), (64, 32), (40, 72)], ids=str)
def test_zeros_that_pad_hide_no_wrong_head_dimension(rng, attend, dims):
    arrays = drawn(rng, *((1, 1, rows, dim) for rows, dim in zip((4, 9, 9), (*dims, dims[0]), strict=True)))
    message = f"^k has head dimension {dims[1]}: q has {dims[0]}, and they must be equal$"
    with pytest.raises(ArgumentError, match=message):
        attend(*arrays)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((4, 64),) * 3, r"q has shape \(4, 64\): four dimensions are needed"),
        (((1, 2, 4, 64), (2, 2, 4, 64), (1, 2, 4, 64)), "k has batch 2: q has batch 1"),
        (((1, 2, 4, 64), (1, 2, 4, 64), (1, 1, 4, 64)), "v has 1 heads: k has 2"),
        (((1, 2, 4, 64), (1, 2, 4, 64), (1, 2, 5, 64)), "v has length 5: k has 4"),
        (((1, 3, 4, 64), (1, 2, 4, 64), (1, 2, 4, 64)), "k has 2 heads: q has 3"),
        (((1, 2, 4, 64), (1, 0, 4, 64), (1, 0, 4, 64)), "k has 0 heads|k has no heads"),
    ],
)
def test_tensors_without_values_are_refused_as_those_with_values(rng, shapes, message):
    arrays = drawn(rng, *shapes)
    for device in ("cpu", "meta"):
        with pytest.raises(ArgumentError, match=message):
            ADAPTER.attention(*(x.to(device) for x in arrays))
    q = torch.empty(1, 2, 4, 64, dtype=torch.float16, device="meta")
    with pytest.raises(ArgumentError, match="v has dtype bfloat16: q has float16"):
        ADAPTER.attention(q, q, q.bfloat16())
    with pytest.raises(ArgumentError, match=r"q has dtype float32: accepted.*q\.half\(\)"):
        ADAPTER.attention(q.float(), q, q)
    with pytest.raises(ArgumentError, match="k is on cpu but q is on meta"):
        ADAPTER.attention(q, torch.zeros_like(q, device="cpu"), q)


PAGES = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([6], dtype=torch.int32)


def of_pages(q, k, v, **options):
    pools = (x[0, :, :8].unflatten(1, (2, 4)).movedim(0, 2) for x in (k, v))
    return ADAPTER.attention_paged(q, *pools, *PAGES, **options)


WAYS = {
    "alone": ADAPTER.attention,
    "packed": lambda *given, **options: packed_of(lambda *args: ADAPTER.attention_varlen(*args, **options))(
        *given
    ),
    "gradient": lambda q, k, v, **options: ADAPTER.attention(q.clone().requires_grad_(), k, v, **options),
    "parameter": lambda q, k, v, **options: ADAPTER.attention(torch.nn.Parameter(q), k, v, **options),
    "transform": lambda q, k, v, **options: F.vmap(lambda x: ADAPTER.attention(x, k, v, **options))(q[None]),
    "meta": lambda *given, **options: ADAPTER.attention(*(x.to("meta") for x in given), **options),
    "pages": of_pages,
    "gate": lambda q, k, v, **options: ADAPTER.attention(q, k, v, gate=q, **options),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options, message",
    [
        ({"causal": 1}, "^causal is 1: it must be True or False$"),
        ({"scale": True}, "^scale is True: it must be a"),
        ({"scale": "x"}, "^scale is 'x': it must be a"),
        ({"scale": 10**400}, "^scale is an integer of 401 digits"),
        ({"scale": float("nan")}, "^scale is nan: it must be"),
        ({"window": (True, 0)}, r"^window is \(True, 0\): it must be \(left, right\), each a number of keys"),
        ({"window": (3.0, 0)}, r"^window is \(3\.0, 0\): it must be"),
        ({"window": (1 << 70, 0)}, r"^window is \(1180591620717411303424, 0\): it must be"),
        ({"window": (0, -2)}, r"^window is \(0, -2\): it must be"),
        ({"window": "ab"}, "^window is 'ab': it must be"),
        ({"softcap": None}, "^softcap is None: it must be 0, or"),
        ({"softcap": True}, "^softcap is True: it must be 0, or"),
        ({"softcap": -1.0}, r"^softcap is -1\.0: it must be 0, or"),
        ({"return_lse": 1}, "^return_lse is 1: it must be True or False$"),
        ({"deterministic": 1}, "^deterministic is 1: it must be True or False$"),
        ({"batch_invariant": 1}, "^batch_invariant is 1: it must be True or False$"),
    ],
    ids=str,
)
def test_what_the_dispatcher_would_take_or_refuse_obscurely(rng, way, options, message):
    """The same words for an argument, whoever looks at it first."""
    if options.keys() & ({"deterministic"} if way == "pages" else {"batch_invariant"}):
        return
    with pytest.raises(ArgumentError, match=message):
        WAYS[way](*drawn(rng, (1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 9, 64)), **options)


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_other_classes(rng, way):
    """NumPy's, and whole ones. With a plan too, and where the operator of the backward pass is called."""
    arrays = drawn(rng, (1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 9, 64))
    given = {"causal": np.bool_(True), "scale": np.float32(0.25), "window": [np.int64(3), 0], "softcap": 2}
    plain = {"causal": True, "scale": 0.25, "window": (3, 0), "softcap": 2.0}
    for _ in range(2):
        found, expected = WAYS[way](*arrays, **given), WAYS[way](*arrays, **plain)
        assert found.is_meta or torch.equal(found, expected)
    if way == "gradient":
        x = arrays[0].requires_grad_()
        out = ADAPTER.attention(*arrays, **given)
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_numbers_of_a_compiled_function(rng):
    """Those of Python stay in the graph, also where they change; for those of NumPy it is left."""
    arrays = drawn(rng, (1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 9, 64))

    def run(scale, left, softcap):
        return ADAPTER.attention(*arrays, scale=scale, window=(left, 0), softcap=softcap)

    torch._dynamo.reset()
    whole = torch.compile(run, backend="aot_eager", fullgraph=True)
    for given in ((0.25, 3, 2.0), (0.5, 4, 3.0), (1, 5, 4)):
        assert torch.equal(whole(*given), run(*given))
    given = np.float32(0.25), np.int64(3), np.float64(2.0)
    assert torch.equal(torch.compile(run, backend="aot_eager")(*given), run(*given))
    with pytest.raises(ArgumentError, match=r"^scale is True"):
        torch.compile(run, backend="aot_eager")(True, 3, 2.0)
    with pytest.raises(Exception, match="must be of Python's classes"):
        whole(np.float32(0.25), 3, 2.0)


def stored(rng, dtype=torch.float8_e4m3fn):
    q, *pools = drawn(rng, (1, 4, 1, 64), (3, 4, 2, 64), (3, 4, 2, 64))
    return q, *(x.to(torch.float8_e4m3fn).view(dtype) for x in pools), *PAGES


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8], ids=str)
def test_scales_of_pages(rng, dtype):
    """As numbers and of each head, alone and in a graph: the bits of the function for arrays."""
    given = stored(rng, dtype)
    many = torch.tensor([0.5, 2.0])
    torch._dynamo.reset()
    compiled = torch.compile(ADAPTER.attention_paged, backend="aot_eager", fullgraph=True)
    for scales in ({}, {"k_scale": 0.5}, {"v_scale": 3}, {"k_scale": many, "v_scale": np.float32(0.25)}):
        out, lse = ADAPTER.attention_paged(*given, **scales, return_lse=True)
        for found, expected in zip(
            (out, lse), attention_paged(*given, **scales, return_lse=True), strict=True
        ):
            assert torch.equal(found, expected)
    scales = {"k_scale": many, "v_scale": 0.25}
    assert torch.equal(compiled(*given, **scales), attention_paged(*given, **scales))
    if dtype is torch.uint8:  # `opcheck` compares its inputs, which PyTorch cannot do with float8_e4m3fn
        torch.library.opcheck(
            torch.ops.flashcore.attention_paged.default,
            given,
            {"k_scales": many, "v_scale": 0.25},
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.mark.parametrize(
    "scales, message",
    [
        ({"k_scale": 0}, "^k_scale is 0: it must be a number above 0"),
        ({"v_scale": True}, "^v_scale is True: it must be a number above 0"),
        ({"v_scale": -1.0}, r"^v_scale is -1\.0: it must be a number above 0"),
        ({"k_scale": "x"}, "^k_scale is of type str: a number or a torch.Tensor is needed"),
        ({"k_scale": None}, "^k_scale is of type NoneType: a number"),
        ({"k_scale": np.ones(2, np.float32)}, "^k_scale is of type ndarray: a number"),
        ({"k_scale": torch.ones(3)}, r"^k_scale has shape \(3,\): it must be \(2,\)"),
        ({"v_scale": torch.ones(2).half()}, "^v_scale has dtype float16: only float32"),
    ],
    ids=str,
)
def test_bad_scales_of_pages(rng, scales, message):
    with pytest.raises(ArgumentError, match=message):
        ADAPTER.attention_paged(*stored(rng), **scales)


def test_scales_belong_to_pages_of_e4m3_and_have_no_gradients(rng):
    q, k, v = drawn(rng, (1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 9, 64))
    with pytest.raises(ArgumentError, match="k_scale is given for pools of float16"):
        of_pages(q, k, v, k_scale=2.0)
    with pytest.raises(RuntimeError, match="has no gradients"):
        ADAPTER.attention_paged(*stored(rng), k_scale=torch.ones(2, requires_grad=True))


@pytest.mark.parametrize(
    "place, change, message",
    [
        (0, lambda x: x.float(), "^q has dtype float32: accepted are"),
        (0, lambda x: x[..., :32], "^k_pool has head dimension 64: q has 32, and they must be equal"),
        (0, lambda x: x[:, :3], "^k_pool has 2 heads: q has 3, which must be a multiple of that"),
        (1, lambda x: x[0], r"^k_pool has shape \(4, 2, 64\): four dimensions are needed"),
        (1, lambda x: x.to(torch.float8_e5m2), "^k_pool has dtype float8_e5m2"),
        (2, lambda x: x[:2], r"^v_pool has shape \(2, 4, 2, 64\): k_pool has \(3, 4, 2, 64\)"),
        (3, lambda x: x.long(), "^block_table has dtype int64: only int32 is accepted"),
        (4, lambda x: x.repeat(2), r"^lengths has shape \(2,\): .* is needed, and q has batch 1"),
    ],
)
def test_pages_without_values_are_refused_as_those_with_values(rng, place, change, message):
    given = drawn(rng, (1, 4, 1, 64), (3, 4, 2, 64), (3, 4, 2, 64)) + list(PAGES)
    given[place] = change(given[place])
    for device in ("cpu", "meta"):
        with pytest.raises(ArgumentError, match=message):
            ADAPTER.attention_paged(*(x.to(device) for x in given))
    q, k_pool, v_pool = drawn(rng, (1, 4, 1, 64), (3, 4, 2, 64), (3, 4, 2, 64))
    with pytest.raises(ArgumentError, match=r"^v_pool is on cpu but q is on meta"):
        ADAPTER.attention_paged(q.to("meta"), k_pool.to("meta"), v_pool, *PAGES)


def test_vmap_over_no_entry(rng):
    q, k, v = drawn(rng, (0, 3, 2, 8, 64), (3, 2, 9, 64), (3, 2, 9, 64))
    out, lse = F.vmap(lambda x: ADAPTER.attention(x, k, v, return_lse=True))(q)
    assert out.shape == q.shape and lse.shape == q.shape[:-1]
    assert F.vmap(F.grad(lambda x: loss(ADAPTER.attention)(x, k, v)))(q).shape == q.shape


def test_what_is_no_tensor_beside_a_norm_or_a_gate(rng):
    q, k, v = drawn(rng, (1, 2, 8, 64), (1, 2, 9, 64), (1, 2, 9, 64))
    norm = (torch.ones(64), 1e-6)
    with pytest.raises(ArgumentError, match=r"^q is of type ndarray: a torch\.Tensor is needed"):
        ADAPTER.attention(q.numpy(), k.numpy(), v.numpy(), head_norm=norm)
    with pytest.raises(ArgumentError, match=r"^gate is of type ndarray: a torch\.Tensor is needed"):
        ADAPTER.attention(q, k, v, gate=q.numpy())
    with pytest.raises(ArgumentError, match=r"^sinks is of type list: a torch\.Tensor is needed"):
        ADAPTER.attention(q, k, v, head_norm=norm, sinks=[0.0, 0.0])


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
    with pytest.raises(ArgumentError, match=r"^q is no plain memory of numbers.*negat"):
        attention(rows, rows, rows)
