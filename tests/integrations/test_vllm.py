"""vLLM's backend on CPU tensors: one layer's steps against float64, by light stand-ins of vLLM's classes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashcore_numba.core.errors import UnsupportedError
from integrations import stand_in_vllm
from integrations.broken import broken, must_notice
from integrations.test_pytorch import close, drawn, right

ADAPTER = stand_in_vllm.adapter()
DIM, HEADS, KV_HEADS = 64, 4, 2
BOUND = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
MIXED = ((1, 37), (1, 16), (5, 12), (20, 0), (3, 45))  # new tokens and those before them, of each request
DECODING = ((1, 37), (1, 0), (1, 15))


class Layer:
    """One layer with its cache: `step` runs the backend as vLLM does, `expected` is float64."""

    def __init__(
        self, adapter, rng, *, page=16, window=None, softcap=None, sinks=None, dtype=torch.float16,
        cache_dtype="auto", spec_window=False,
    ):  # fmt: skip
        self.adapter, self.rng, self.page, self.dtype = adapter, rng, page, dtype
        self.window, self.softcap, self.sinks = window, softcap, sinks
        self.e4m3 = cache_dtype != "auto"
        self.impl = adapter.FlashCoreImpl(
            HEADS, DIM, 0.17, KV_HEADS, None, window, cache_dtype, softcap, "decoder", None, sinks=sinks
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
        self.metadata = self.builder.build(0, common)
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


def sinks_of(rng, dtype=torch.float32):
    return drawn(rng, (HEADS,), dtype=dtype)[0]


CASES = {
    "mixed": {},
    "decoding": {"requests": DECODING},
    "decoding, padded": {"requests": DECODING, "padding": 2},
    "prefill, padded": {"requests": ((7, 0), (18, 33)), "padding": 3},
    "pages of 32": {"page": 32},
    "window": {"window": 9},
    "window, pages gone": {"window": 9, "spec_window": True, "forget": True},
    "softcap": {"softcap": 2.0},
    "bfloat16": {"dtype": torch.bfloat16},
    "e4m3": {"cache_dtype": "fp8"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_step(rng, case):
    check(ADAPTER, rng, **CASES[case])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks(rng, dtype):
    check(ADAPTER, rng, sinks=sinks_of(rng, dtype))
