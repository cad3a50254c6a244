"""transformers' own models, with random weights, on the kernels: against eager attention in float32."""

import itertools
from functools import cache
from types import ModuleType

import pytest
import torch
import transformers
from matrix import few
from torch import Tensor
from transformers import DynamicCache, StaticCache

from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import huggingface
from integrations.broken import broken, must_notice

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
    "llama64": ("LlamaForCausalLM", "LlamaConfig", {"head_dim": 64, "num_attention_heads": 2}),
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
    "bigbird_pegasus": ("BigBirdPegasusForCausalLM", "BigBirdPegasusConfig", ENCODER),
    "splinter": ("SplinterModel", "SplinterConfig", {"hidden_dropout_prob": 0.0}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 128, "d_kv": 32, "num_layers": 1, "num_heads": 4, "d_ff": 64},
    ),
}


KINDS["gpt_oss64"] = (*KINDS["gpt_oss"][:2], KINDS["gpt_oss"][2] | {"head_dim": 64})
DECODERS = ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss"]
_names = itertools.count()


@cache
def models(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model in float16, and in float32 with eager attention: the same weights."""
    model_class, config_class, options = KINDS[kind]
    found = []
    for dtype in (torch.float16, torch.float32):
        config = getattr(transformers, config_class)(**SMALL | options, attn_implementation="eager")
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


@pytest.mark.long
@pytest.mark.parametrize(
    "kind,side",
    [*itertools.product(DECODERS, [None, "left", "right", "both"])],
)
def test_a_decoder_with_padding_on_any_side(rng, kind, side):
    check_logits(huggingface, rng, kind, side)


@pytest.mark.parametrize(
    "kind,side",
    few(
        itertools.product(["bert", "modernbert"], [None, "left", "right", "both", "between"]),
        ("bert", "between"),
        ("bert", "right"),
        ("modernbert", "left"),
        ("modernbert", "between"),
    ),
)
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
        **{"disable_compile": True} | inputs,
    )
    return found.sequences[:, -new:], torch.stack(found.logits, 1).float().log_softmax(-1)


def same_tokens(exact: tuple, eager: tuple, ours: tuple) -> None:
    """Equal tokens, unless the best two of a step are as near to each other as float16 allows; as near
    log-probabilities as long as the tokens are equal.
    """
    compared = 0
    for sequence in range(len(exact[0])):
        allowed = 0.04
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


@pytest.mark.long
@pytest.mark.parametrize(
    "kind,cache_kind",
    [*itertools.product(DECODERS, ["dynamic", "static"]), ("gpt_oss64", "dynamic")],
)
def test_generate_with_padding_gives_the_tokens_of_eager(rng, kind, cache_kind):
    check_generate(huggingface, rng, kind, "left", cache_implementation=cache_kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_generate_without_padding(rng, kind):
    check_generate(huggingface, rng, kind)
    check_generate(huggingface, rng, kind, cache_implementation="static")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"prompt_lookup_num_tokens": 3}, {"use_cache": False}])
def test_other_ways_to_generate(rng, kind, options):
    ids = tokens(rng, 1, 4).repeat(1, 3)
    exact, _, ours = three(
        kind,
        huggingface,
        lambda model: model.generate(ids, do_sample=False, max_new_tokens=6, min_new_tokens=6, **options),
    )
    if not torch.equal(exact, ours):  # two sequences as likely as each other, but for what float16 rounds
        likely, found = (likelihood(models(kind)[1], each, ids.shape[1]) for each in (exact, ours))
        assert abs(likely - found) <= 0.1


def likelihood(model: torch.nn.Module, sequence: Tensor, begin: int) -> float:
    """The log-probability of the tokens of [1, length] from `begin` on."""
    with torch.no_grad():
        found = model(sequence).logits.float().log_softmax(-1)[0, begin - 1 : -1]
    return float(found.gather(1, sequence[0, begin:, None]).sum())


def check_continued(adapter, rng, kind: str, side: str | None, static: bool) -> None:
    """A prompt in three pieces over a cache: S_q is smaller than S_k, and larger than 1."""
    ids = tokens(rng, 2, 14)
    mask = torch.ones_like(ids) if side is None else padding(side, *ids.shape)

    def run(model):
        past = (
            StaticCache(config=model.config, max_cache_len=20)
            if static
            else DynamicCache(config=model.config)
        )
        found = []
        for first, last in ((0, 6), (6, 7), (7, 14)):
            found.append(
                log_probabilities(
                    model,
                    input_ids=ids[:, first:last],
                    attention_mask=mask[:, :last],
                    position_ids=positions(mask)[:, first:last],
                    past_key_values=past,
                )
            )
        return torch.cat(found, 1)[mask.bool()]

    close(*three(kind, adapter, run))


@pytest.mark.parametrize(
    "kind,side,static",
    few(
        itertools.product(["llama", "mistral", "gpt_oss"], [None, "left"], [False, True]),
        ("llama", None, True),
        ("mistral", "left", False),
        ("mistral", None, True),
    ),
)
def test_a_prompt_in_pieces_over_a_cache(rng, kind, side, static):
    check_continued(huggingface, rng, kind, side, static)


@pytest.mark.long
def test_a_prompt_in_pieces_with_padding_between(rng):
    check_continued(huggingface, rng, "llama", "right", False)
    check_continued(huggingface, rng, "llama", "between", True)
    check_continued(huggingface, rng, "llama64", "both", False)


def check_in_place(adapter, rng, d_v: int = 64, room_of_v: int = 12) -> None:
    """A step of decoding over a padded cache with room, of a head dimension that those kernels have.

    Those of a V with another head dimension, or with more room between requests, are copied.
    """
    room, d = 12, 64
    kept = torch.zeros(2, 9, dtype=torch.bool)
    kept[0, 0], kept[0, 2:], kept[1, 3:] = True, True, True
    q, k, v = (
        torch.from_numpy(rng.standard_normal((2, h, s, d))).half()
        for h, s, d in ((4, 1, d), (2, room, d), (2, room_of_v, d_v))
    )
    v = v[:, :, :room]
    mask = adapter.make_mask(2, 1, room, q_offset=torch.tensor(8), attention_mask=kept)
    k[:, :, 9:] = v[:, :, 9:] = torch.nan
    k[:, :, 1], v[:, :, 1] = 60.0, 60.0
    out, none = adapter.attend(None, q, k, v, mask, scaling=0.2)
    assert none is None and out.shape == (2, 1, 4, d_v)
    for b in range(2):
        keys, values = (x[b, :, :9][:, kept[b]].double().repeat_interleave(2, 0) for x in (k, v))
        weights = (0.2 * q[b].double() @ keys.mT).softmax(-1)
        expected = (weights @ values).transpose(0, 1)
        assert (out[b].double() - expected).abs().max() < 4e-3


@pytest.mark.long
def test_a_padded_cache_is_read_where_it_is(rng, monkeypatch):
    monkeypatch.setattr(huggingface, "_moved", None)
    check_in_place(huggingface, rng)


@pytest.mark.long
def test_a_padded_cache_that_no_table_of_pages_describes_is_copied(rng):
    check_in_place(huggingface, rng, room_of_v=14)
    check_in_place(huggingface, rng, d_v=128)


@pytest.mark.long
def test_a_window_and_sinks_over_a_padded_cache(rng):
    q, k, v = (
        torch.from_numpy(rng.standard_normal((2, h, s, 64))).half() for h, s in ((4, 1), (2, 12), (2, 12))
    )
    sinks = torch.from_numpy(rng.standard_normal(4))
    kept = torch.ones(2, 9, dtype=torch.bool)
    kept[1, :3] = False
    window = transformers.masking_utils.sliding_window_causal_mask_function(4)
    mask = huggingface.make_mask(
        2, 1, 12, q_offset=torch.tensor(8), mask_function=window, attention_mask=kept
    )
    out, _ = huggingface.attend(None, q, k, v, mask, scaling=0.2, sliding_window=4, s_aux=sinks)
    keys, values = (x[:, :, 5:9].double().repeat_interleave(2, 1) for x in (k, v))
    scores = torch.cat([0.2 * q.double() @ keys.mT, sinks.expand(2, 4)[..., None, None]], -1)
    expected = (scores.softmax(-1)[..., :4] @ values).transpose(1, 2)
    assert (out.double() - expected).abs().max() < 4e-3


def test_a_mask_longer_than_what_a_cache_holds():
    kept = torch.ones(1, 12, dtype=torch.bool)
    kept[0, 0] = False
    mask = huggingface.make_mask(1, 1, 12, q_offset=torch.tensor(4), attention_mask=kept)
    assert mask.used.tolist() == [4]


@pytest.mark.long
def test_lengths_of_queries_and_of_keys_may_differ(rng):
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, 8, 64))).half() for _ in range(3))
    bounds = {"cu_seq_lens_q": torch.tensor([0, 3, 8]), "cu_seq_lens_k": torch.tensor([0, 6, 8])}
    out, _ = huggingface.attend(None, q, k, v, None, is_causal=False, **bounds)
    for rows, keys in ((slice(0, 3), slice(0, 6)), (slice(3, 8), slice(6, 8))):
        weights = (q[0, :, rows].double() @ k[0, :, keys].double().mT / 8).softmax(-1)
        expected = (weights @ v[0, :, keys].double()).transpose(0, 1)
        assert (out[0, rows].double() - expected).abs().max() < 4e-3
    mask = huggingface.make_mask(1, 8, 8, attention_mask=torch.ones(1, 8).bool(), allow_is_causal_skip=False)
    with pytest.raises(UnsupportedError, match="cu_seq_lens_q and cu_seq_lens_k are served together"):
        huggingface.attend(None, q, k, v, mask, **bounds)


def check_packed(adapter, rng, kind: str, by_lengths: bool) -> None:
    """Three sequences in a row of the batch."""
    lengths = (5, 1, 8)
    ids = tokens(rng, 1 if by_lengths else 2, sum(lengths))
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    several = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 8, "max_length_k": 8}

    def alone(model):
        parts = zip(ids.split(lengths, 1), places.split(lengths, 1), strict=True)
        return torch.cat([log_probabilities(model, input_ids=i, position_ids=p) for i, p in parts], 1)

    def run(model):
        if model.config._attn_implementation == "eager":
            return alone(model)
        inputs = several if by_lengths else {}
        return log_probabilities(model, input_ids=ids, position_ids=places, use_cache=False, **inputs)

    close(*three(kind, adapter, run))


@pytest.mark.long
@pytest.mark.parametrize(
    "kind,by_lengths", [("llama", False), ("mistral", False), ("llama", True), ("gpt_oss", True)]
)
def test_packed_sequences_do_not_see_each_other(rng, kind, by_lengths):
    check_packed(huggingface, rng, kind, by_lengths)


def gradients(model: torch.nn.Module, **inputs) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    found = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {"loss": loss.detach().float()} | found


def check_gradients(adapter, rng, kind: str, side: str | None) -> None:
    ids = tokens(rng, 3, 12)
    mask = torch.ones_like(ids) if side is None else padding(side, *ids.shape)
    labels = ids.masked_fill(mask == 0, -100)
    if side == "left":  # the first token is foretold by padding, which means nothing
        labels = labels.masked_fill(mask.cumsum(1) == 1, -100)
    run = lambda model: gradients(model, input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)  # noqa: E731
    exact, eager, ours = three(kind, adapter, run)
    assert exact.keys() == ours.keys()
    for name, expected in exact.items():
        size = expected.norm()
        allowed = 3 * (eager[name] - expected).norm() + 0.01 * size
        if name.endswith("router.bias"):  # a sum over tokens: where it cancels, their rounding is left
            allowed += 2e-3 * exact[name.replace("bias", "weight")].norm()
        assert (ours[name] - expected).norm() <= allowed, name


@pytest.mark.long
@pytest.mark.parametrize(
    "kind,side",
    [*itertools.product(["llama", "gemma2", "gpt_oss"], [None, "left", "right"]), ("llama64", "left")],
)
def test_gradients_of_all_weights(rng, kind, side):
    check_gradients(huggingface, rng, kind, side)


def check_encoder_decoder(adapter, rng, side: str) -> None:
    ids, started = tokens(rng, 3, 12), tokens(rng, 3, 5)
    mask = padding(side, *ids.shape)
    run = lambda model: log_probabilities(  # noqa: E731
        model, input_ids=ids, attention_mask=mask, decoder_input_ids=started
    )
    close(*three("bart", adapter, run))


@pytest.mark.long
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_an_encoder_and_a_decoder(rng, side):
    check_encoder_decoder(huggingface, rng, side)


@pytest.mark.long
@pytest.mark.parametrize("cache_kind", ["dynamic", "static"])
def test_generate_by_an_encoder_and_a_decoder(rng, cache_kind):
    ids = tokens(rng, 2, 12)
    run = lambda model: generated(  # noqa: E731
        model, 6, input_ids=ids, attention_mask=padding("right", 2, 12), cache_implementation=cache_kind
    )
    same_tokens(*three("bart", huggingface, run))


def test_speech(rng):
    heard = torch.from_numpy(rng.standard_normal((2, 8, 24)))
    started = tokens(rng, 2, 6)
    run = lambda model: log_probabilities(  # noqa: E731
        model, input_features=heard.to(model.dtype), decoder_input_ids=started
    )
    close(*three("whisper", huggingface, run))


def test_layers_that_do_not_say_or_wrongly_say_whether_they_are_causal(rng):
    """The layers of this decoder have is_causal=False, those of this encoder have no is_causal."""
    check_logits(huggingface, rng, "bigbird_pegasus")
    ids = tokens(rng, 2, 12)
    with torch.no_grad():
        close(*three("splinter", huggingface, lambda model: model(input_ids=ids).last_hidden_state))


def test_a_chunk_that_holds_all_tokens(rng):
    ids = tokens(rng, 2, 8)
    close(*three("llama4", huggingface, lambda model: log_probabilities(model, input_ids=ids)))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_decoder_that_is_told_to_look_both_ways(rng, kind):
    ids = tokens(rng, 2, 12)
    run = lambda model: log_probabilities(model, input_ids=ids, is_causal=False)  # noqa: E731
    exact, eager, found = three(kind, huggingface, run)
    close(exact, eager, found)
    assert (exact - log_probabilities(models(kind)[1], input_ids=ids)).abs().max() > 0.5


def ours(kind: str) -> torch.nn.Module:
    model = models(kind)[0]
    model.set_attn_implementation(offered(huggingface))
    return model


def test_what_no_kernel_hides_is_refused(rng):
    ids = tokens(rng, 2, 12)
    square = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    with pytest.raises(UnsupportedError, match=r"tensor of bool.*sdpa"):
        ours("llama")(input_ids=ids, attention_mask=square)
    with pytest.raises(UnsupportedError, match=r"chunked_overlay is not served.*sdpa"):
        ours("llama4")(input_ids=ids)
    with pytest.raises(UnsupportedError, match="position_bias"):
        config = transformers.T5Config(**SMALL | KINDS["t5"][2], attn_implementation=offered(huggingface))
        transformers.T5ForConditionalGeneration(config).half().eval()(input_ids=ids, decoder_input_ids=ids)
    arguments = {"config": ours("llama").config, "past_key_values": None, "attention_mask": None}
    arguments["inputs_embeds"] = torch.zeros(2, 12, 0)
    for added in ("or_mask_function", "and_mask_function"):
        with pytest.raises(UnsupportedError, match="is not served"):
            transformers.masking_utils.create_causal_mask(
                **arguments, **{added: lambda b, h, q, k: q - k < 3}
            )
    with pytest.raises(UnsupportedError, match="or_masks is not served"):
        transformers.masking_utils.create_causal_mask(
            **arguments, block_sequence_ids=torch.zeros(2, 12, dtype=torch.int64)
        )


def test_what_no_kernel_computes_is_refused(rng):
    ids = tokens(rng, 1, 6)
    exact = models("llama")[1]
    exact.set_attn_implementation(offered(huggingface))
    try:
        with pytest.raises(UnsupportedError, match=r"float32.*bfloat16.*autocast"):
            exact(input_ids=ids)
    finally:
        exact.set_attn_implementation("eager")
    model = ours("llama")
    with pytest.raises((UnsupportedError, ValueError), match="output_attentions"):
        model(input_ids=ids, output_attentions=True)
    attention = model.model.layers[0].self_attn
    attention.attention_dropout = 0.1
    try:
        model.train()
        with pytest.raises(UnsupportedError, match=r"dropout is 0.1.*eval\(\)"):
            model(input_ids=ids)
    finally:
        attention.attention_dropout = 0.0
        model.eval()


@pytest.mark.parametrize(
    "computes",
    [
        lambda mask, scores: scores + mask,
        lambda mask, scores: torch.where(mask, scores, 0.0),
        lambda mask, scores: mask[:, :, -1:],
        lambda mask, scores: mask.to(scores.dtype),
        lambda mask, scores: 1.0 - mask,
        lambda mask, scores: mask / -1e4,
    ],
)
def test_a_model_that_computes_with_its_mask_is_refused(computes):
    mask = huggingface.make_mask(1, 8, 8)
    with pytest.raises(UnsupportedError, match=r"the model .* its attention mask.*only models that.*sdpa"):
        computes(mask, torch.zeros(1, 1, 8, 8))
    assert not hasattr(mask, "dtype")


def test_a_model_with_attention_of_its_own_is_refused(rng):
    """Bloom takes any name and computes with eager code, which without a mask would not even be causal."""
    config = transformers.BloomConfig(hidden_size=64, n_layer=1, n_head=2, vocab_size=VOCABULARY)
    name = offered(huggingface)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name).half()
    with pytest.raises(UnsupportedError, match="calls a function of PyTorch with its attention mask"):
        model(input_ids=tokens(rng, 1, 6))


@pytest.mark.parametrize(
    "name", ["position_bias", "indices", "block_indices", "head_mask", "cache", "block_table"]
)
def test_an_argument_of_a_layer_that_changes_the_result_is_refused(name):
    q = torch.zeros(1, 1, 8, 32, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match=f"{name} is given"):
        huggingface.attend(None, q, q, q, huggingface.make_mask(1, 8, 8), **{name: q})


def test_masks_of_packed_sequences_and_of_chunks_that_are_refused():
    masks = transformers.masking_utils
    packed = masks.and_masks(
        masks.causal_mask_function, masks.packed_sequence_mask_function(torch.tensor([[0] * 5 + [1] * 3]))
    )
    kept = torch.ones(1, 8, dtype=torch.bool)
    for keys, offset, padding in ((8, 0, kept), (12, 4, None)):
        with pytest.raises(UnsupportedError, match="packed sequences over a cache or with padding"):
            huggingface.make_mask(1, 8, keys, q_offset=offset, mask_function=packed, attention_mask=padding)
    chunks = masks.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match="chunked_overlay is not served"):
        huggingface.make_mask(1, 1, 8, q_offset=9, kv_offset=2, mask_function=chunks)
    both = masks.sliding_window_bidirectional_mask_function(2)
    with pytest.raises(UnsupportedError, match="a window on both sides of 1 query rows over 8 keys"):
        huggingface.make_mask(1, 1, 8, q_offset=7, mask_function=both, allow_is_bidirectional_skip=True)


def test_a_compiler_is_refused_what_it_cannot_look_into():
    masks = transformers.masking_utils
    chunks = masks.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    config = transformers.Llama4TextConfig(attention_chunk_size=8)
    for function, others in (
        (chunks, {"local_size": 8, "config": config}),
        (masks.and_masks(masks.causal_mask_function, lambda b, h, q, k: q - k < 3), {"use_vmap": True}),
        (masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(torch.zeros(1, 8))), {}),
    ):
        with pytest.raises(UnsupportedError, match="other than causal or a sliding window"):
            huggingface._traced_pattern(function, 1, 8, False, False, "cpu", others)


def test_of_two_windows_the_smaller_one_counts():
    masks = transformers.masking_utils
    two = masks.and_masks(masks.sliding_window_overlay(3), masks.sliding_window_causal_mask_function(6))
    assert huggingface.find_pattern(two, 8).window == (2, 0)


def test_a_layer_that_does_not_say_whether_it_is_causal_needs_a_mask():
    q = torch.zeros(1, 1, 8, 32, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match="Identity has no is_causal"):
        huggingface.attend(torch.nn.Identity(), q, q, q, None)


def test_a_window_of_a_layer_that_its_mask_has_not_is_refused():
    q = torch.zeros(1, 1, 8, 32, dtype=torch.float16)
    with pytest.raises(UnsupportedError, match="sliding_window is 4 for 8 keys"):
        huggingface.attend(None, q, q, q, None, is_causal=True, sliding_window=4)


def test_a_mask_for_other_lengths_is_refused():
    q = torch.zeros(1, 1, 8, 32, dtype=torch.float16)
    mask = huggingface.make_mask(1, 8, 8, attention_mask=torch.ones(1, 8).bool(), allow_is_causal_skip=False)
    with pytest.raises(UnsupportedError, match="8 query rows over 8 keys, and the layer has 8 over 7"):
        huggingface.attend(None, q, q[:, :, :7], q[:, :, :7], mask)
    with pytest.raises(UnsupportedError, match="8 query rows over 9 keys"):
        huggingface.attend(None, q, q.repeat(1, 1, 2, 1)[:, :, :9], q, None, is_causal=True)


@pytest.mark.parametrize("shape", [(1, 12), (3, 12), (12,), (2, 12, 12)], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_a_mask_of_another_shape_is_refused(rng, shape, padded):
    half, _ = models("llama")
    half.set_attn_implementation(offered(huggingface))
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., :2] = not padded
    with pytest.raises(ArgumentError, match=r"^attention_mask has shape \(.* each of 2 sequences"):
        half(input_ids=tokens(rng, 2, 12), attention_mask=mask)


def test_register_refuses_names_that_mean_something_else():
    assert huggingface.register() == "fcore" == huggingface.register("fcore")
    for name in ("flashcore", "sdpa", "eager", "org/repo", "paged|fcore", "", 3):
        with pytest.raises(ArgumentError, match="name is"):
            huggingface.register(name)


@pytest.mark.long
def test_autocast_makes_a_float32_model_serve(rng):
    ids = tokens(rng, 2, 9)
    exact = models("llama")[1]
    expected = log_probabilities(exact, input_ids=ids)
    with torch.autocast("cpu", torch.bfloat16):
        eager = log_probabilities(exact, input_ids=ids)
        exact.set_attn_implementation(offered(huggingface))
        try:
            found = log_probabilities(exact, input_ids=ids)
        finally:
            exact.set_attn_implementation("eager")
    close(expected, eager, found)


@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16], torch.bfloat16), ids=str)
def test_autocast_over_a_padded_cache(rng, dtype):
    """RoPE leaves float32 queries and keys beside values of autocast's type: no pages are such."""
    ids = tokens(rng, 2, 9)
    mask = padding("left", *ids.shape)
    model = models("llama64")[1]

    def step():
        past = DynamicCache(config=model.config)
        for part in (slice(0, 8), slice(8, 9)):
            given = {"attention_mask": mask[:, : part.stop], "position_ids": positions(mask)[:, part]}
            found = log_probabilities(model, input_ids=ids[:, part], past_key_values=past, **given)
        return found

    found = [step()]
    for name in ("eager", offered(huggingface)):
        model.set_attn_implementation(name)
        try:
            with torch.autocast("cpu", dtype):
                found.append(step())
        finally:
            model.set_attn_implementation("eager")
    close(*found)


def compiled(model: torch.nn.Module, **inputs) -> Tensor:
    torch._dynamo.reset()
    forward = torch.compile(model.forward, fullgraph=True, backend="eager")
    with torch.no_grad():
        return forward(**inputs).logits.float().log_softmax(-1)


def check_compiled(adapter, rng, kind: str, side: str | None) -> None:
    """A whole forward pass as one graph, masks included: nothing may be looked at on the host."""
    ids = tokens(rng, 2, 12)
    mask = None if side is None else padding(side, *ids.shape)
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if side is None:  # two sequences in each row
        inputs["position_ids"] = torch.cat([torch.arange(7), torch.arange(5)])[None]

    def run(model):
        call = log_probabilities if model.config._attn_implementation == "eager" else compiled
        found = call(model, **inputs)
        return found if mask is None else found[mask.bool()]

    close(*three(kind, adapter, run))


@pytest.mark.long
@pytest.mark.parametrize(
    "kind,side",
    [*itertools.product(["llama", "mistral", "gpt_oss"], [None, "left", "both"])],
)
def test_a_compiled_forward_pass_is_one_graph(rng, kind, side):
    check_compiled(huggingface, rng, kind, side)


@pytest.mark.long
def test_padding_between_tokens_in_a_compiled_forward_pass(rng):
    check_compiled(huggingface, rng, "llama", "between")
    inputs = {
        "input_ids": tokens(rng, 2, 12),
        "attention_mask": padding("between", 2, 12),
        "use_cache": False,
    }
    with pytest.raises(RuntimeError, match="padding between tokens"):
        compiled(ours("mistral"), **inputs)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_decoding_is_compiled_as_often_as_eager_attention(rng, kind):
    ids = tokens(rng, 2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    graphs: dict[str, int] = {}

    def run(model):
        inputs = {"input_ids": ids, "attention_mask": mask, "cache_implementation": "static"}
        if model is models(kind)[1]:
            return generated(model, 8, **inputs)

        def backend(graph, _):
            name = model.config._attn_implementation
            graphs[name] = graphs.get(name, 0) + 1
            return graph.forward

        torch._dynamo.reset()
        options = transformers.CompileConfig(fullgraph=True, mode=None, backend=backend)
        options._compile_all_devices = True
        model.__dict__.pop("_compiled_call", None)
        return generated(model, 8, compile_config=options, disable_compile=False, **inputs)

    same_tokens(*three(kind, huggingface, run))
    more = kind == "gpt_oss"  # one graph where there is padding in the window, one after it has left
    assert 1 <= graphs["fcore"] <= graphs["eager"] + more


MUTANTS = {
    "another scale": (check_logits, ("llama",), '"scale": scaling', '"scale": 1.1 * scaling'),
    "no causal mask": (check_logits, ("llama",), '"causal": pattern.causal', '"causal": False'),
    "a window of one more": (
        check_logits,
        ("mistral",),
        'held["sliding_window"] - 1)',
        'held["sliding_window"])',
    ),
    "a window on both sides of one less": (
        check_logits,
        ("modernbert",),
        'Pattern(False, held["sliding_window"], held["sliding_window"])',
        'Pattern(False, held["sliding_window"] - 1, held["sliding_window"] - 1)',
    ),
    "no softcap": (check_logits, ("gemma2",), '"softcap": softcap or 0.0', '"softcap": 0.0'),
    "no sinks": (check_logits, ("gpt_oss",), '"sinks": s_aux', '"sinks": None'),
    "heads of K and V in another order": (
        check_logits,
        ("llama",),
        "_dense(query, key, value, mask",
        "_dense(query, key.flip(1), value.flip(1), mask",
    ),
    "query heads in another order": (
        check_logits,
        ("llama",),
        "_dense(query, key, value, mask",
        "_dense(query.roll(1, 1), key, value, mask",
    ),
    "heads before rows": (
        check_logits,
        ("llama",),
        "out.transpose(1, 2).contiguous()",
        "out.contiguous()",
    ),
    "padding seen": (
        check_logits,
        ("llama", "left"),
        "if attention_mask is not None:\n        missing",
        "if False:\n        missing",
    ),
    "padding seen by an encoder": (
        check_logits,
        ("bert", "right"),
        "if attention_mask is not None:\n        missing",
        "if False:\n        missing",
    ),
    "padding first": (check_logits, ("llama", "left"), "argsort(~kept, ", "argsort(kept, "),
    "keys of padding first for an encoder": (
        check_logits,
        ("bert", "left"),
        "argsort(~kept, ",
        "argsort(kept, ",
    ),
    "the last token not seen": (check_logits, ("llama", "left"), "kept.sum(1)", "(kept.sum(1) - 1)"),
    "one key of padding seen": (
        check_logits,
        ("bert", "right"),
        "kept.sum(1)",
        "(kept.sum(1) + 1).clamp(max=keys)",
    ),
    "query rows where they were": (
        check_logits,
        ("llama", "both"),
        "if mask.places is not None:",
        "if False:",
    ),
    "query rows not moved back": (check_logits, ("llama", "both"), "if mask.back is not None:", "if False:"),
    "a cache read from its first request": (
        check_in_place,
        (),
        "(order + first)",
        "(order + 0 * first)",
    ),
    "a static cache without its last key": (
        check_continued,
        ("llama", None, True),
        "q_offset + q_length - kv_offset if",
        "q_offset + q_length - 1 - kv_offset if",
    ),
    "a static cache to its end": (
        check_continued,
        ("llama", None, True),
        "    if static:\n",
        "    if False:\n",
    ),
    "padding of a sliding cache from its first key": (
        check_continued,
        ("mistral", "left", False),
        "[:, kv_offset : kv_offset + kv_length]",
        "[:, :kv_length]",
    ),
    "packed sequences as one": (
        check_packed,
        ("llama", False),
        "sequences[:, 1:] != sequences[:, :-1]",
        "sequences[:, 1:] < sequences[:, :-1]",
    ),
    "lengths of sequences not read": (
        check_packed,
        ("gpt_oss", True),
        "    if any(given):\n",
        "    if False:\n",
    ),
    "keys of an encoder without padding": (
        check_encoder_decoder,
        ("left",),
        "if mask.order is not None:",
        "if False:",
    ),
    "a compiled window of one more": (
        check_compiled,
        ("mistral", "left"),
        "UNBOUNDED if size is None else size - 1",
        "UNBOUNDED if size is None else size",
    ),
    "compiled sequences as one": (check_compiled, ("llama", None), "(~joined[:, 0, 0])", "(joined[:, 0, 0])"),
    "gradients without the scale": (
        check_gradients,
        ("llama", None),
        '"scale": scaling',
        '"scale": scaling.__mul__(1.1)',
    ),
}


def test_a_copy_without_a_mistake_passes(rng):
    check_logits(broken(huggingface), rng, "llama", "left")


@pytest.mark.long
@pytest.mark.parametrize(
    "mistake",
    MUTANTS,
)
def test_a_mistake_is_noticed(rng, mistake):
    check, arguments, old, new = MUTANTS[mistake]
    must_notice(lambda adapter: check(adapter, rng, *arguments), broken(huggingface, (old, new)))
