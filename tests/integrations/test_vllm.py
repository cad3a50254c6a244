"""vLLM's backend on CPU tensors: one layer's steps against float64, by light stand-ins of vLLM's classes."""

import itertools
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.integrations import vllm_plugin
from integrations import stand_in_vllm
from integrations.broken import broken, must_notice
from integrations.test_pytorch import close, drawn, right

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = stand_in_vllm.adapter()
DIM, HEADS, KV_HEADS = 64, 4, 2
BOUND = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
MIXED = ((1, 18), (5, 14), (9, 0))  # new tokens and those before them, of each request
DECODING = ((1, 18), (1, 0))
MANY = ((1, 37), (1, 16), (5, 12), (20, 0), (3, 45))


class Layer:
    """One layer with its cache: `step` runs the backend as vLLM does, `expected` is float64."""

    def __init__(
        self, adapter, rng, *, page=16, window=None, softcap=None, sinks=None, dtype=torch.float16,
        cache_dtype="auto", spec_window=False,
    ):  # fmt: skip
        self.adapter, self.rng, self.page, self.dtype = adapter, rng, page, dtype
        self.window, self.softcap = window, softcap
        self.sinks = None if sinks is None else drawn(rng, (HEADS,), dtype=sinks)[0]
        self.e4m3 = cache_dtype != "auto"
        self.impl = adapter.FlashCoreImpl(
            HEADS, DIM, 0.17, KV_HEADS, None, window, cache_dtype, softcap, "decoder", None, sinks=self.sinks
        )
        spec = (
            stand_in_vllm.SlidingWindowSpec(page, window) if spec_window else SimpleNamespace(block_size=page)
        )
        config = SimpleNamespace(speculative_config=None)
        self.builder = adapter.FlashCoreBuilder(spec, ["layer"], config, torch.device("cpu"))
        self.scales = SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))

    def drawn(self, *shape):
        return drawn(self.rng, shape, dtype=self.dtype)[0]

    def cache(self, pages):
        """vLLM's packed layout, with what must not be read in all of it."""
        shape = (pages, KV_HEADS, self.page, 2 * DIM)
        if self.e4m3:
            return torch.full(shape, 0x7F, dtype=torch.uint8)  # NaN
        return torch.full(shape, torch.nan, dtype=self.dtype)

    def step(self, requests, padding=0, forget=False):
        """The output of one step for requests of (new, before), and what is right. padding: rows and slots of
        no request at the end. forget: pages that no row of the window sees are not those of the request.
        """
        width = max(-(-(new + before) // self.page) for new, before in requests) + 1
        order = self.rng.permutation(len(requests) * width) + 1
        cache = self.cache(len(order) + 1)
        table = torch.from_numpy(order.reshape(len(requests), width).astype(np.int32))
        keys = [[self.drawn(new + before, KV_HEADS, DIM) for _ in "kv"] for new, before in requests]
        for row, (_, before), (k, v) in zip(table, requests, keys, strict=True):
            self.write(k[:before], v[:before], cache, self.slots(row, range(before)))
        total = sum(new for new, _ in requests)
        slots = torch.cat(
            [
                self.slots(row, range(before, before + new))
                for row, (new, before) in zip(table, requests, strict=True)
            ]
            + [torch.full((padding,), -1)]
        )
        fresh = [
            torch.cat(
                [pair[i][before:] for pair, (_, before) in zip(keys, requests, strict=True)]
                + [self.drawn(padding, KV_HEADS, DIM)]
            )
            for i in range(2)
        ]
        self.write(*fresh, cache, slots)
        if forget:
            for row, (_, before) in zip(table, requests, strict=True):
                row[: max(0, before - self.window + 1) // self.page] = 0
        q = self.drawn(total + padding, HEADS, DIM)
        out = torch.full_like(q, torch.nan)
        starts = torch.tensor([0, *itertools.accumulate(new for new, _ in requests)], dtype=torch.int32)
        lengths = torch.tensor([new + before for new, before in requests], dtype=torch.int32)
        if padding and all(new == 1 for new, _ in requests):  # as a captured batch is padded
            starts = torch.cat([starts, starts[-1:].expand(padding)])
            lengths = torch.cat([lengths, torch.zeros(padding, dtype=torch.int32)])
            table = torch.cat([table, torch.full((padding, width), -1, dtype=torch.int32)])
            tokens = total + padding
        else:
            tokens = total
        common = stand_in_vllm.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            num_reqs=len(lengths),
            num_actual_tokens=tokens,
            max_query_len=max(new for new, _ in requests),
            max_seq_len=4096,
            block_table_tensor=table,
            slot_mapping=slots,
            seq_lens_cpu_upper_bound=lengths,
        )
        self.common, self.metadata = common, self.builder.build(0, common)
        self.impl.forward(self.scales, q, *fresh, cache, self.metadata, out)
        return out[:total], torch.cat(
            [self.expected(q[starts[i] : starts[i] + new], *keys[i]) for i, (new, _) in enumerate(requests)]
        )

    def slots(self, row, places):
        return torch.tensor([int(row[j // self.page]) * self.page + j % self.page for j in places]).long()

    def write(self, k, v, cache, slots):
        self.impl.do_kv_cache_update(self.scales, k, v, cache, slots)

    def expected(self, q, k, v):
        if self.e4m3:
            scales = 0.5, 0.25
            k, v = (
                (x.float() / scale).to(torch.float8_e4m3fn).double() * scale
                for x, scale in zip((k, v), scales, strict=True)
            )
        window = (-1, -1) if self.window is None else (self.window - 1, 0)
        heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
        options = {"softcap": self.softcap or 0.0, "sinks": self.sinks}
        return right(*heads_first, True, 0.17, window=window, **options)[0][0].transpose(0, 1)


def check(adapter, rng, requests=MIXED, padding=0, forget=False, **options):
    layer = Layer(adapter, rng, **options)
    close(*layer.step(requests, padding, forget), BOUND[layer.dtype])
    return layer


CASES = {
    "mixed": {},
    "decoding, padded": {"requests": DECODING, "padding": 2},
    "prefill, padded": {"requests": ((7, 0), (4, 17)), "padding": 3},
    "window": {"window": 9},
    "window, pages gone": {
        "requests": ((1, 40), (5, 18), (3, 40)),
        "window": 5,
        "spec_window": True,
        "forget": True,
    },
    "softcap": {"softcap": 2.0},
    "bfloat16": {"dtype": torch.bfloat16},
    "e4m3": {"cache_dtype": "fp8"},
    "sinks": {"sinks": torch.float32},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_step(rng, case):
    check(ADAPTER, rng, **CASES[case])


@pytest.mark.long
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("page", [16, 32, 128])
@pytest.mark.parametrize(
    "case", [{}, {"window": 9}, {"softcap": 2.0}, {"sinks": torch.bfloat16}, {"cache_dtype": "fp8"}]
)
def test_steps_of_many_requests(rng, case, page, dtype):
    check(ADAPTER, rng, MANY, page=page, dtype=dtype, **case)


MUTANTS = {
    "scale": (("self.scale = float(scale)", "self.scale = 1.05 * float(scale)"), "mixed"),
    "last token missing, decoding": (
        ("lengths=common.seq_lens[:decoding]", "lengths=(common.seq_lens[:decoding] - 1).clamp(min=0)"),
        "decoding, padded",
    ),
    "last token missing, prefill": (("] - before,", "] - before - 1,"), "prefill, padded"),
    "next page, decoding": (
        ("common.block_table_tensor[:decoding]", "common.block_table_tensor[:decoding].roll(1, 1)"),
        "mixed",
    ),
    "next page, prefill": (("[places, columns]", "[places, columns + 1]"), "mixed"),
    "wrong group": (
        (
            "k_pool, v_pool = pools(kv_cache, self.head_size)",
            "k_pool, v_pool = (x.roll(1, 2) for x in pools(kv_cache, self.head_size))",
        ),
        "mixed",
    ),
    "K and V exchanged": (("k_pool, v_pool = pools(", "v_pool, k_pool = pools("), "mixed"),
    "prefill without a mask": (
        ("seqused_k=step.prefill.used,", "seqused_k=step.prefill.used, **options.pop('causal') and {},"),
        "prefill, padded",
    ),
    "a key too many in the window": (("(sliding_window - 1, 0)", "(sliding_window, 0)"), "window"),
    "a page of the window left out": (
        ("lengths - rows - (self.window - 1), 0)", "lengths - rows, 0)"),
        "window, pages gone",
    ),
    "softcap dropped": (("self.softcap = logits_soft_cap or 0.0", "self.softcap = 0.0"), "softcap"),
    "sinks dropped": (("sinks = None if self.sinks is None else", "sinks = None and"), "sinks"),
    "scale of e4m3 dropped": ((".float() * scale[:, None])", ".float())"), "e4m3"),
    "rows of a prefill too early": (
        ("query[step.decoding : step.tokens],", "query[: step.tokens - step.decoding],"),
        "mixed",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(rng, name):
    edit, case = MUTANTS[name]
    with stand_in_vllm.installed():
        adapter = broken(ADAPTER, edit)
    must_notice(lambda made: check(made, rng, **CASES[case]), adapter)


def made(**options):
    given = {"num_heads": 4, "head_size": 64, "scale": 1.0, "num_kv_heads": 2}
    return ADAPTER.FlashCoreImpl(**given | options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"alibi_slopes": [0.5] * 4}, "alibi_slopes are given"),
        ({"attn_type": "encoder"}, "attn_type is 'encoder'"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype is 'fp8_e5m2'"),
    ],
)
def test_what_a_layer_may_not_ask_for(options, told):
    with pytest.raises(UnsupportedError, match=told):
        made(**options)


def test_another_arrangement_of_the_cache_is_refused():
    for shape in ((2, 8, 16, 2, 64), (8, 2, 16, 64), (8, 2, 16, 192)):
        with pytest.raises(UnsupportedError, match="kv_cache has shape"):
            ADAPTER.pools(torch.zeros(shape), 64)


def test_what_cannot_be_served_within_a_step(rng):
    layer = Layer(ADAPTER, rng)
    starts = torch.tensor([0, 0, 1, 3], dtype=torch.int32)
    common = stand_in_vllm.CommonAttentionMetadata(
        *(starts, starts, torch.full((3,), 5, dtype=torch.int32), 3, 3, 2, 9),
        *(torch.zeros(3, 1, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)),
    )
    with pytest.raises(UnsupportedError, match="without query tokens"):
        layer.builder.build(0, common)
    common.causal = False
    with pytest.raises(UnsupportedError, match="causal is not True"):
        layer.builder.build(0, common)
    with pytest.raises(UnsupportedError, match="output_scale is given"):
        layer.impl.forward(None, *[None] * 5, torch.ones(1), torch.ones(1))


def test_while_memory_is_measured():
    """Without metadata there is nothing to attend to, and the output is defined."""
    out = torch.full((3, 4, 64), torch.nan)
    assert not made().forward(None, out, out, out, torch.zeros(0), None, out).any()


def test_nothing_is_copied_of_the_pools():
    cache = torch.zeros(3, 2, 16, 128)
    k, v = ADAPTER.pools(cache, 64)
    assert k.data_ptr() == cache.data_ptr() and v.data_ptr() == cache[..., 64:].data_ptr()
    assert k.shape == v.shape == (3, 16, 2, 64) and k.stride() == v.stride()


@pytest.mark.long
def test_a_captured_step_needs_nothing_of_the_host(rng):
    """A batch that only decodes: the metadata are vLLM's own tensors, at their own addresses."""
    layer = check(ADAPTER, rng, DECODING)
    assert layer.metadata.prefill is None
    assert layer.metadata.lengths.data_ptr() == layer.common.seq_lens.data_ptr()
    assert layer.metadata.block_table.data_ptr() == layer.common.block_table_tensor.data_ptr()


class Custom:
    """AttentionBackendEnum.CUSTOM, and what is registered."""

    def __init__(self, path):
        self.path = path

    def is_overridden(self):
        return self.path is not None

    def get_path(self):
        return self.path


@pytest.mark.parametrize(
    ("before", "after"), [(None, vllm_plugin.BACKEND), ("another.Backend", "another.Backend")]
)
def test_the_plugin_registers_once_and_takes_nothing_away(monkeypatch, before, after):
    custom = Custom(before)
    registry = ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = SimpleNamespace(CUSTOM=custom)
    registry.register_backend = lambda member, path: setattr(member, "path", path)
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    vllm_plugin.register()
    vllm_plugin.register()
    assert custom.path == after


def test_the_plugin_is_declared_and_leads_to_the_backend():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["vllm.general_plugins"] == {"flashcore": f"{vllm_plugin.__name__}:register"}
    module, name = vllm_plugin.BACKEND.rsplit(".", 1)
    assert module == ADAPTER.__name__ == "flashcore_numba.integrations.vllm_backend"
    assert hasattr(ADAPTER, name)
