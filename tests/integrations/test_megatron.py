"""Megatron-Core's own layers with FlashCore in them, on CPU tensors, against its own attention in float64."""

import dataclasses
import itertools
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.overrides import TorchFunctionMode

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from integrations.broken import broken, must_notice
from integrations.test_pytorch import close, drawn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it misses Apex and Transformer Engine
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    from flashcore_numba.integrations import megatron as ADAPTER

pytestmark = pytest.mark.filterwarnings("ignore::Warning:megatron")

CAUSAL, FULL = AttnMaskType.causal, AttnMaskType.no_mask
HIDDEN, HEADS, GROUPS = 48, 4, 2
BOUND = {
    torch.float16: 4e-3,
    torch.bfloat16: 2.5e-2,
}  # of values near 1: a layer's linear maps round them too


@pytest.fixture(scope="module", autouse=True)
def world():
    """One rank, without a port."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch):
    """Where Megatron-Core asks for the current GPU or the state of its random numbers."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(megatron_random.CudaRNGStatesTracker, "fork", lambda *given: nullcontext())
    monkeypatch.setattr(megatron_random, "_get_cuda_rng_state", lambda *given, **options: None)
    monkeypatch.setattr(megatron_random, "_set_cuda_rng_state", lambda *given, **options: None)


class OnCPU(TorchFunctionMode):
    """For masks, which Megatron-Core makes on device "cuda"."""

    def __torch_function__(self, function, types, given=(), options=None):
        options = options or {}
        if options.get("device") == "cuda":
            options = {**options, "device": "cpu"}
        return function(*given, **options)


def configured(dtype, **options):
    given = {
        "num_layers": 4,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_query_groups": GROUPS,
        "kv_channels": 64,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "use_cpu_initialization": True,
        "params_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "fp16": dtype is torch.float16,
        "init_method_std": 0.15,
        **options,
    }
    return TransformerConfig(**given)


def specified(core=None):
    """The specification of a layer with this core attention, or with that of Megatron-Core."""
    layer = get_gpt_layer_local_spec()
    if core is not None:
        layer.submodules.self_attention.submodules.core_attention = core
    return layer


def layers(adapter, rng, dtype, number=1, kind=CAUSAL, **options):
    """(a self-attention layer with the adapter, Megatron-Core's in float64), of the same random weights."""
    torch.manual_seed(int(rng.integers(2**31)))
    groups = ProcessGroupCollection.use_mpu_process_groups()
    made = []
    for core, dtype_of in ((adapter.FlashCoreAttention, dtype), (None, torch.float64)):
        submodules = specified(core).submodules.self_attention.submodules
        config = configured(dtype_of, **options)
        made.append(SelfAttention(config, submodules, number, kind, pg_collection=groups))
    mine, true = made
    with torch.no_grad():
        for each in mine.parameters():
            if each.dim() == 1:  # biases and sinks, which begin as zeros
                each.copy_(torch.from_numpy(rng.standard_normal(each.shape)))
    true.load_state_dict({name: x.double() for name, x in mine.state_dict().items() if x is not None})
    return mine, true


def within(found, expected, bound):
    """Whether the largest error is within `bound` of the largest value."""
    close(found / expected.abs().max(), expected / expected.abs().max(), bound)


def learned(layer, x, *given, dout, **options):
    """(output, gradients of the input and of all parameters) of a layer."""
    out, bias = layer(x, *given, **options)
    out = out + bias
    out.backward(dout)
    return [out.detach(), x.grad, *(each.grad for _, each in sorted(layer.named_parameters()))]


def check_layer(adapter, rng, dtype=torch.float16, mask=None, shape=(12, 2), gradients=True, **options):
    mine, true = layers(adapter, rng, dtype, **options)
    x, dout = drawn(rng, (*shape, HIDDEN), (*shape, HIDDEN), dtype=dtype)
    with OnCPU():
        expected = learned(true, x.double().requires_grad_(), mask, dout=dout.double())
    with torch.no_grad():
        within(sum(mine(x, mask)), expected[0], BOUND[dtype])
    if not gradients:
        return
    found = learned(mine, x.requires_grad_(), mask, dout=dout)
    assert len(found) == len(expected) == 6 + (options.get("softmax_type") == "learnable")
    for each, right in zip(found, expected, strict=True):
        within(each, right, BOUND[dtype])


CASES = {
    "causal": {},
    "full": {"kind": FULL, "softmax_scale": 0.21},
    "window": {"window_size": (5, 0), "window_attn_skip_freq": 2, "number": 1},
    "no window in this layer": {"window_size": (5, 0), "window_attn_skip_freq": 2, "number": 2},
    "two-sided window": {"kind": FULL, "window_size": (3, 2)},
    "sinks": {"softmax_type": "learnable"},
    "off by one": {"softmax_type": "off-by-one"},
    "scaled by layer": {
        "apply_query_key_layer_scaling": True,
        "attention_softmax_in_fp32": True,
        "number": 3,
    },
}
WITH_GRADIENTS = ("causal", "full", "window", "sinks")


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_layer(rng, case):
    check_layer(ADAPTER, rng, gradients=case in WITH_GRADIENTS, **CASES[case])


@pytest.mark.long
def test_a_layer_in_bfloat16(rng):
    check_layer(ADAPTER, rng, torch.bfloat16)


def packed(lengths, padded=None):
    """Where sequences of these lengths begin, and where they do with as much padding as fills `padded`."""

    def begins(counts):
        return torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)

    used, places = begins(lengths), begins(padded or lengths)
    return PackedSeqParams("thd", used, used, places, places)


def check_packed(adapter, rng, kind=CAUSAL, padded=0, window=(5, 0)):
    """Packed sequences are those sequences, each alone, with padding after them or without."""
    mine, true = layers(adapter, rng, torch.float16, kind=kind, window_size=window)
    lengths = [int(n) for n in rng.integers(7, 12, 3)]
    x, dout = drawn(rng, *[(sum(lengths) + padded * len(lengths), 1, HIDDEN)] * 2)
    params = packed(lengths, [n + padded for n in lengths])
    used = torch.cat([torch.arange(n + padded) < n for n in lengths])
    dout[~used] = 0
    found = learned(mine, x.clone().requires_grad_(), None, dout=dout, packed_seq_params=params)
    places = [
        torch.arange(end - n - padded, end - padded)
        for n, end in zip(lengths, itertools.accumulate(n + padded for n in lengths), strict=True)
    ]
    parts = []
    for place in places:
        true.zero_grad()
        with OnCPU():
            parts.append(learned(true, x[place].double().requires_grad_(), None, dout=dout[place].double()))
    for each, *right in zip(found[:2], *(part[:2] for part in parts), strict=True):
        within(each[used], torch.cat(right), BOUND[torch.float16])
    for each, *right in zip(found[2:], *(part[2:] for part in parts), strict=True):
        within(each, sum(right), BOUND[torch.float16])


@pytest.mark.parametrize(
    "kind, padded", [(CAUSAL, 0), (AttnMaskType.padding_causal, 3), (AttnMaskType.causal_bottom_right, 0)]
)
def test_packed_sequences(rng, kind, padded):
    check_packed(ADAPTER, rng, kind, padded)


def check_cross(adapter, rng, kind=AttnMaskType.causal_bottom_right):
    """More keys than query rows: [S, B, H * D] of the core alone, with the mask that it says."""
    core = core_of(adapter, kind=kind)
    q, k, v = drawn(rng, (5, 2, HEADS, 64), (9, 2, GROUPS, 64), (9, 2, GROUPS, 64))
    mask = torch.ones(5, 9, dtype=torch.bool).triu(5) if kind is not FULL else torch.zeros(5, 9).bool()
    heads = [x.double().permute(1, 2, 0, 3) for x in (q, k, v)]
    k_all, v_all = (x.repeat_interleave(HEADS // GROUPS, 1) for x in heads[1:])
    scores = (heads[0] @ k_all.mT / 8).masked_fill(mask, -torch.inf)
    expected = (scores.softmax(-1) @ v_all).permute(2, 0, 1, 3).flatten(2)
    for given in (None, mask[None, None]):
        close(core(q, k, v, given), expected, 2e-3)


@pytest.mark.parametrize("kind", [AttnMaskType.causal_bottom_right, FULL])
def test_more_keys_than_rows(rng, kind):
    check_cross(ADAPTER, rng, kind)


def core_of(adapter, kind=CAUSAL, attention_dropout=None, **options):
    config = configured(torch.float16, **options)
    return adapter.FlashCoreAttention(config, 1, kind, "self", attention_dropout)


def check_mask(adapter, rng):
    """A mask that is not what `attn_mask_type` says is refused, whatever the type."""
    q, k, v = drawn(rng, (8, 1, HEADS, 64), (8, 1, GROUPS, 64), (8, 1, GROUPS, 64))
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    mask[0, 0, 6, 2] = True
    for kind in (CAUSAL, FULL):
        with pytest.raises(
            UnsupportedError, match=f"attention_mask is not that of attn_mask_type {kind.name}"
        ):
            core_of(adapter)(q, k, v, mask, attn_mask_type=kind)


def test_another_mask_is_refused(rng):
    check_mask(ADAPTER, rng)


def check_shallow(adapter, rng, **options):
    check_layer(adapter, rng, gradients=False, **options)


def check_deterministic(adapter, rng):
    """Dense and packed, as the configuration says."""
    seen = []
    for name in ("attention", "attention_varlen"):
        setattr(adapter, name, lambda q, *_, **options: seen.append(options["deterministic"]) or q)
    (q,) = drawn(rng, (8, 1, HEADS, 64))
    for mode in (False, True):
        core = core_of(adapter, deterministic_mode=mode)
        core(q, q, q, None)
        core(q[:, 0], q[:, 0], q[:, 0], None, packed_seq_params=LONG)
    assert seen == [False, False, True, True]


def test_gradients_are_deterministic_where_the_configuration_says_so(rng):
    check_deterministic(broken(ADAPTER), rng)


def of_case(case):
    return lambda adapter, rng: check_shallow(adapter, rng, **CASES[case])


PADDED = AttnMaskType.padding_causal
SCALE = "config.kv_channels**-0.5 if softmax_scale is None else softmax_scale"
MUTANTS = {
    "scale of the wrong dimension": ("config.kv_channels**", "config.hidden_size**", of_case("window")),
    "scale dropped": (SCALE, "config.kv_channels**-0.5", of_case("full")),
    "scale divided by the layer": (SCALE, "self.softmax_scale", of_case("scaled by layer")),
    "causal dropped": ('"causal": causal', '"causal": False', of_case("causal")),
    "causal always": ('"causal": causal', '"causal": True', of_case("full")),
    "type of the call ignored": (
        "self.attn_mask_type if attn_mask_type is None else attn_mask_type",
        "AttnMaskType.causal",
        of_case("full"),
    ),
    "K and V exchanged": ("in (query, key, value)", "in (query, value, key)", of_case("causal")),
    "another K/V head": ("attention(q, k, v,", "attention(q, k.flip(1), v.flip(1),", of_case("causal")),
    "heads of a group apart": (
        "attention(q, k, v,",
        "attention(q, *(x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v)),",
        of_case("causal"),
    ),
    "S and B not transposed back": (
        ".permute(2, 0, 1, 3).flatten(2)",
        ".permute(0, 2, 1, 3).reshape(*query.shape[:2], -1)",
        of_case("causal"),
    ),
    "heads within columns": (
        ".permute(2, 0, 1, 3).flatten(2)",
        ".permute(2, 0, 3, 1).flatten(2)",
        of_case("causal"),
    ),
    "window off by one": (
        "tuple(config.window_size)",
        "(config.window_size[0] - 1, config.window_size[1])",
        of_case("window"),
    ),
    "sides of the window exchanged": (
        "tuple(config.window_size)",
        "tuple(reversed(config.window_size))",
        of_case("two-sided window"),
    ),
    "window in every layer": (
        "if windowed else",
        "if config.window_size else",
        of_case("no window in this layer"),
    ),
    "sinks dropped": ("None if self.softmax_offset is None", "None if True", of_case("sinks")),
    "ends of packed keys off by one": (
        "return found[0], found[1]",
        "return found[0], found[1] - (found[1] > 0).int()",
        check_packed,
    ),
    "packed sequences off by one": (
        "return found[0], found[1]",
        "return (found[0] - (found[0] > 0).int(),) * 2",
        check_packed,
    ),
    "packed sequences as one": (
        "return found[0], found[1]",
        "return found[0][[0, -1]], found[1][[0, -1]]",
        lambda adapter, rng: check_packed(adapter, rng, window=None),
    ),
    "padding as rows": (
        "used if padded is None else padded",
        "used",
        lambda adapter, rng: check_packed(adapter, rng, PADDED, 3),
    ),
    "deterministic mode ignored": ("self.config.deterministic_mode", "False", check_deterministic),
    "mask not compared": ("or not (mask == right).all()", "", check_mask),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(rng, name):
    old, new, check = MUTANTS[name]
    error = pytest.fail.Exception if check is check_mask else AssertionError
    must_notice(lambda adapter: check(adapter, rng), broken(ADAPTER, (old, new)), error)


@pytest.mark.long
def test_a_copy_without_a_mistake_passes(rng):
    copy = broken(ADAPTER)
    for check in {id(check): check for *_, check in MUTANTS.values()}.values():
        check(copy, rng)


@pytest.mark.parametrize(
    "kind, window, same",
    [
        (CAUSAL, (-1, 0), (99, 0)),
        (CAUSAL, (3, -1), (3, 0)),
        (FULL, (-1, 2), (99, 2)),
        (FULL, (4, -1), (4, 99)),
    ],
)
def test_a_side_of_minus_one_is_unbounded(rng, kind, window, same):
    """As the configuration has it. Megatron-Core's own attention in PyTorch takes it for a number of keys."""
    given = *drawn(rng, (9, 2, HEADS, 64), (9, 2, GROUPS, 64), (9, 2, GROUPS, 64)), None
    close(
        core_of(ADAPTER, kind, window_size=window)(*given),
        core_of(ADAPTER, kind, window_size=same)(*given),
        2e-3,
    )


def models(rng, **options):
    """A tiny GPT with the adapter and one of Megatron-Core in float64, of the same random weights."""
    torch.manual_seed(int(rng.integers(2**31)))
    made = []
    for core, dtype in ((ADAPTER.FlashCoreAttention, torch.float16), (None, torch.float64)):
        config = configured(dtype, **options if core else {})
        config.num_layers = 2
        model = GPTModel(config, specified(core), 32, 16, position_embedding_type="rope")
        made.append(model.to(dtype).train())
    made[1].load_state_dict({name: x.double() for name, x in made[0].state_dict().items() if x is not None})
    return made


@pytest.mark.long
def test_a_tiny_gpt_with_recomputed_attention(rng):
    """Losses, and the gradients of all parameters, through two layers with rotary positions; the mask given
    as a data set gives it.
    """
    mine, true = models(rng, recompute_granularity="selective")
    tokens, labels = torch.from_numpy(rng.integers(0, 32, (2, 2, 12)))
    places = torch.arange(12).expand(2, -1)
    mask = torch.ones(1, 1, 12, 12, dtype=torch.bool).triu(1)
    losses = [model(tokens, places, mask, labels=labels) for model in (mine, true)]
    within(*losses, BOUND[torch.float16])
    for loss in losses:
        loss.mean().backward()
    of_true = dict(true.named_parameters())
    for name, each in mine.named_parameters():
        within(each.grad, of_true[name].grad, 4 * BOUND[torch.float16])


def test_saved_states_are_those_of_megatron(rng):
    """The same names, so that a checkpoint of one is read by the other."""
    for kind in ("vanilla", "learnable"):
        mine, true = layers(ADAPTER, rng, torch.float16, softmax_type=kind)
        shapes = [
            {name: x.shape for name, x in each.state_dict().items() if x is not None} for each in (mine, true)
        ]
        assert shapes[0] == shapes[1]


@pytest.mark.long
def test_autocast(rng):
    """A layer whose parameters stay in float32."""
    mine, true = layers(ADAPTER, rng, torch.float32)
    (x,) = drawn(rng, (12, 2, HIDDEN), dtype=torch.float32)
    with torch.no_grad(), OnCPU():
        expected = sum(true(x.double(), None))
        with torch.autocast("cpu", torch.bfloat16):
            within(sum(mine(x, None)), expected, BOUND[torch.bfloat16])


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"attention_dropout": 0.1},
            r"attention_dropout is 0\.1: the adapter drops no weights, set it to 0\.0",
        ),
        ({"context_parallel_size": 2}, "context_parallel_size is 2: .* set it to 1"),
        ({"qk_clip": True}, "qk_clip is True: .* set it to False"),
        ({"log_max_attention_logit": True}, "log_max_attention_logit is True"),
        ({"fp8_dot_product_attention": True}, "fp8_dot_product_attention is True"),
        ({"window_size": 5}, "window_size is 5: it must be"),
        ({"window_size": (5,)}, r"window_size is \(5,\): it must be \(left, right\)"),
    ],
)
def test_configurations_that_no_kernel_serves(options, message):
    error = ArgumentError if "window_size" in options else UnsupportedError
    with pytest.raises(error, match=message):
        core_of(ADAPTER, **options)


LONG = packed([3, 5])


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"bias": True}, UnsupportedError, "attention_bias is given: .* it must be None"),
        ({"dtype": torch.float32}, ArgumentError, "query has dtype float32: set bf16=True"),
        ({"window": (4, 2)}, ArgumentError, r"window_size is \(4, 2\): .* must be 0 or -1"),
        ({"kind": AttnMaskType.padding}, UnsupportedError, "attn_mask_type is padding: .* or no_mask; pack"),
        ({"kind": AttnMaskType.arbitrary}, UnsupportedError, "attn_mask_type is arbitrary: without"),
        ({"keys": 9}, UnsupportedError, "8 query rows and 9 keys: it must be causal_bottom_right"),
        ({"rank": 3}, ArgumentError, r"query has shape \(8, 4, 64\): without packed_seq_params it must be"),
        ({"params": LONG, "rank": 4}, UnsupportedError, r"qkv_format is 'thd' and query is \(8, 1, 4, 64\)"),
        ({"params": dataclasses.replace(LONG, qkv_format="bshd")}, UnsupportedError, "'bshd'"),
        (
            {"params": dataclasses.replace(LONG, cu_seqlens_kv=None)},
            ArgumentError,
            "packed_seq_params.cu_seqlens_kv is None",
        ),
        (
            {"params": LONG, "kind": AttnMaskType.arbitrary},
            UnsupportedError,
            "attn_mask_type is arbitrary: with packed_seq_params",
        ),
        ({"params": LONG, "mask": True}, UnsupportedError, "attention_mask is given with packed_seq_params"),
        ({"params": dataclasses.replace(LONG, local_cp_size=2)}, UnsupportedError, "local_cp_size is 2"),
        (
            {"params": packed([3, 3], [3, 5]), "kind": FULL},
            UnsupportedError,
            "cu_seqlens_q_padded is not cu_seqlens_q: .* not by no_mask",
        ),
        (
            {"params": dataclasses.replace(LONG, cu_seqlens_q_padded=packed([4, 4]).cu_seqlens_q)},
            UnsupportedError,
            "cu_seqlens_q is not cu_seqlens_kv: with the mask causal",
        ),
    ],
)
def test_calls_that_no_kernel_serves(rng, options, error, message):
    given = {"kind": CAUSAL, "dtype": torch.float16, "window": None, "keys": 8, "params": None, **options}
    heads = (1,) if given.get("rank", 3 if given["params"] else 4) == 4 else ()
    q, k, v = drawn(
        rng,
        (8, *heads, HEADS, 64),
        *[(given["keys"], *heads, GROUPS, 64)] * 2,
        dtype=given["dtype"],
    )
    ones = torch.ones(1, 1, 8, 8)
    core = core_of(ADAPTER, given["kind"], window_size=given["window"])
    with pytest.raises(error, match=message):
        core(
            q,
            k,
            v,
            ones.bool().triu(1) if given.get("mask") else None,
            attention_bias=ones if given.get("bias") else None,
            packed_seq_params=given["params"],
        )
