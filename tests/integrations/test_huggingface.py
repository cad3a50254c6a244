"""transformers' own models, with random weights, on the kernels: against eager attention in float32."""

import itertools
from functools import cache
from types import ModuleType

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, StaticCache

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import huggingface
from tests.integrations.broken import broken, must_notice

WINDOW, VOCABULARY = 5, 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    "d_model": 128,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.15,
    "dropout": 0.0,
    "decoder_start_token_id": 1,
}
SLIDING = ["sliding_attention", "full_attention"]
KINDS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 32,
            "layer_types": SLIDING,
        },
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 32, "layer_types": SLIDING},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "sliding_window": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
            "layer_types": SLIDING,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {"hidden_dropout_prob": 0.0}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {"local_attention": 6}),
    "bart": ("BartForConditionalGeneration", "BartConfig", ENCODER),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        ENCODER
        | {
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 128, "d_kv": 32, "num_layers": 1, "num_heads": 4, "d_ff": 64},
    ),
}
DECODERS = ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss"]
_names = itertools.count()


@cache
def models(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model in float16, and in float32 with eager attention: the same weights."""
    model_class, config_class, options = KINDS[kind]
    found = []
    for dtype in (torch.float16, torch.float32):
        config = getattr(transformers, config_class)(**SMALL | options)
        config._attn_implementation = "eager"
        torch.manual_seed(7)
        model = getattr(transformers, model_class)(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(parameter, 1.0)
        found.append(model.half().to(dtype))
    return found[0], found[1]


@cache
def offered(adapter: ModuleType) -> str:
    """The name under which transformers knows an adapter."""
    return adapter.register("fcore" if adapter is huggingface else f"fcore{next(_names)}")


def tokens(rng, batch: int, length: int) -> Tensor:
    return torch.from_numpy(rng.integers(3, VOCABULARY, (batch, length)))


def three(kind: str, adapter: ModuleType, run) -> list:
    """What `run(model)` gives: exact, of eager attention in float16, of the adapter."""
    half, exact = models(kind)
    found = [run(exact)]
    for name in ("eager", offered(adapter)):
        half.set_attn_implementation(name)
        found.append(run(half))
    return found


def close(exact: Tensor, eager: Tensor, ours: Tensor) -> None:
    """As near to float32 as eager attention in float16 is, but for a factor and a constant."""
    allowed = 3 * (eager.float() - exact).abs().max() + 1e-2 * exact.abs().max().clamp(max=1)
    found = (ours.float() - exact).abs().max()
    assert found <= allowed, (float(found), float(allowed))


def log_probabilities(model: torch.nn.Module, kept: Tensor | None = None, **inputs) -> Tensor:
    """Of every token of the vocabulary, at the places that are kept."""
    with torch.no_grad():
        found = model(**inputs).logits.float().log_softmax(-1)
    return found if kept is None else found[kept.bool()]


def padding(side: str, batch: int, length: int) -> Tensor:
    """int64 [batch, length]: 0 where there is padding, as transformers wants it."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for i, n in enumerate([0, 4, 7][:batch]):
        if side in ("left", "both"):
            mask[i, :n] = 0
        if side == "right":
            mask[i, length - n :] = 0
        if side == "both" and n:
            mask[i, -2:] = 0
        if side == "between" and n:
            mask[i, 2 : 2 + n] = 0
    return mask


def positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def check_logits(adapter, rng, kind: str, side: str | None = None) -> None:
    ids = tokens(rng, 3, 12)
    mask = None if side is None else padding(side, *ids.shape)
    run = lambda model: log_probabilities(model, mask, input_ids=ids, attention_mask=mask)  # noqa: E731
    close(*three(kind, adapter, run))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("side", [None, "left", "right", "both"])
def test_a_decoder_with_padding_on_any_side(rng, kind, side):
    check_logits(huggingface, rng, kind, side)


@pytest.mark.parametrize("side", [None, "left", "right", "both", "between"])
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_an_encoder_with_padding_anywhere(rng, kind, side):
    if (kind, side) == ("modernbert", "between"):
        with pytest.raises(UnsupportedError, match="padding between tokens"):
            check_logits(huggingface, rng, kind, side)
    else:
        check_logits(huggingface, rng, kind, side)


def test_padding_between_tokens(rng):
    check_logits(huggingface, rng, "llama", "between")
    with pytest.raises(UnsupportedError, match="padding between tokens"):
        check_logits(huggingface, rng, "mistral", "between")


def generated(model: torch.nn.Module, new: int, **inputs) -> tuple[Tensor, Tensor]:
    """New tokens [B, new], and their log-probabilities [B, new, vocabulary]."""
    found = model.generate(
        do_sample=False,
        max_new_tokens=new,
        min_new_tokens=new,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
        **inputs,
    )
    return found.sequences[:, -new:], torch.stack(found.logits, 1).float().log_softmax(-1)


def same_tokens(exact: tuple, eager: tuple, ours: tuple) -> None:
    """Equal tokens, unless the best two of a step are as near to each other as float16 allows; as near
    log-probabilities as long as the tokens are equal.
    """
    compared = 0
    for sequence in range(len(exact[0])):
        allowed = 0.02
        for step in range(exact[0].shape[1]):
            expected, found = exact[1][sequence, step], ours[1][sequence, step]
            reachable = expected > -12
            allowed = max(allowed, 3 * float((eager[1][sequence, step] - expected)[reachable].abs().max()))
            assert float((found - expected)[reachable].abs().max()) <= min(allowed, 0.2)
            compared += 1
            best = expected.topk(2).values
            if ours[0][sequence, step] != exact[0][sequence, step]:
                assert float(best[0] - best[1]) <= 2 * allowed
            if len({int(each[0][sequence, step]) for each in (exact, eager, ours)}) > 1:
                break
    assert compared > exact[0].numel() // 2


def check_generate(adapter, rng, kind: str, side: str | None = None, **options) -> None:
    ids = tokens(rng, 2, 9)
    mask = torch.ones_like(ids) if side is None else padding(side, *ids.shape)
    new = options.pop("new", 8)
    run = lambda model: generated(model, new, input_ids=ids, attention_mask=mask, **options)  # noqa: E731
    same_tokens(*three(kind, adapter, run))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("cache_kind", ["dynamic", "static"])
def test_generate_with_padding_gives_the_tokens_of_eager(rng, kind, cache_kind):
    check_generate(huggingface, rng, kind, "left", cache_implementation=cache_kind)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_generate_without_padding(rng, kind):
    check_generate(huggingface, rng, kind)
    check_generate(huggingface, rng, kind, cache_implementation="static")


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 3}, {"use_cache": False}])
def test_other_ways_to_generate(rng, kind, options):
    ids = tokens(rng, 1, 4).repeat(1, 3)
    exact, _, ours = three(
        kind,
        huggingface,
        lambda model: model.generate(ids, do_sample=False, max_new_tokens=6, **options),
    )
    assert torch.equal(exact, ours)
