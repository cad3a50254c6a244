"""Models of Hugging Face transformers on attention(): small, random weights, against their own attention.

`by_attention` is all that a model needs. transformers takes a name with "flash" in it for a kernel of its
hub, has one table of names in a process, and gives a function a mask only if a mask function has its name.
"""

import importlib.util
import sys
from functools import partial

import pytest

from flashcore_numba import attention, attention_varlen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what transformers warns about is its own
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
        reason="needs PyTorch and transformers 5: pip install torch transformers",
    ),
]

DEVICE = "cuda"
WINDOW, TOKENS, VOCABULARY = 32, 150, 128
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
MODELS = {  # the classes' name, and what each adds: grouped queries are in all
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma2": {
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 100,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "GptOss": {  # every expert serves every token, or rounding would choose others
        "sliding_window": WINDOW,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
EACH_MODEL = pytest.mark.parametrize("name", MODELS)
FACTOR = 1.05  # of the scale, for an answer that must be found wrong


def by_attention(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, softcap=None,
    s_aux=None, factor=1.0, calls=None, **_,
):  # fmt: skip
    """[B, S, H, D] of [B, H, S, D], on `attention`; of a padded batch on `attention_varlen`. Of a model in
    float32, q, k and v are rounded to float16. attention_mask: None, or [B, S_k], False for padding.

    factor: of the scale. calls: gets the arguments of every call that say what is served.
    """
    import torch

    assert dropout == 0
    options = {
        "causal": True,
        "scale": factor * (query.shape[3] ** -0.5 if scaling is None else scaling),
        "window": (sliding_window - 1 if sliding_window else -1, -1),  # W keys, the row's own among them
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.detach().float(),
    }
    if calls is not None:
        calls.append({**options, "rows": query.shape[2], "padded": attention_mask is not None})
    given, element = query.dtype, torch.float16 if query.dtype == torch.float32 else query.dtype
    q, k, v = (x.to(element) for x in (query, key, value))
    if attention_mask is None:
        return attention(q, k, v, **options).transpose(1, 2).to(given), None
    keys = attention_mask.bool()
    rows = keys[:, -q.shape[2] :]
    packed = [x.transpose(1, 2)[at] for x, at in ((q, rows), (k, keys), (v, keys))]
    bounds = [torch.nn.functional.pad(at.sum(1).cumsum(0), (1, 0)).int() for at in (rows, keys)]
    out = torch.zeros_like(q.transpose(1, 2))
    out[rows] = attention_varlen(*packed, *bounds, **options)
    return out.to(given), None


def rounded(module, query, key, value, attention_mask, **options):
    """The model's own attention, of q, k and v as float16 has them: what rounding costs in float32."""
    own = sys.modules[type(module).__module__].eager_attention_forward
    query, key, value = (x.half().to(x.dtype) for x in (query, key, value))
    out, weights = own(module, query, key, value, attention_mask, **options)
    return out.half().to(out.dtype), weights


def registered(function=by_attention, **changes):
    """The name that transformers knows the function by, called with these changes."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, flash_attention_mask

    name = "_".join([function.__name__, *changes])
    AttentionInterface.register(name, partial(function, **changes))
    # That of FlashAttention is None, or which tokens are no padding.
    AttentionMaskInterface.register(name, flash_attention_mask if function is by_attention else eager_mask)
    return name


def made(name, rng):
    """A model in float32 whose weights tell: attention is far from uniform, and sinks take a part of it."""
    import torch
    import transformers

    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name])
    config._experts_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(DEVICE).eval()
    seeded = torch.Generator(DEVICE).manual_seed(int(rng.integers(2**31)))
    with torch.no_grad():
        for path, weights in model.named_parameters():
            if path.endswith("sinks"):
                weights.normal_(1, 1, generator=seeded)
            elif weights.ndim > 1:
                size = 2 if "q_proj" in path or "k_proj" in path else 1
                weights.normal_(0, size * 256**-0.5, generator=seeded)
    return model


def tokens(rng, batch=2, count=TOKENS):
    import torch

    return torch.from_numpy(rng.integers(1, VOCABULARY, (batch, count))).to(DEVICE)


def logits(model, how, ids, **options):
    """In float32, by the attention of this name."""
    import torch

    model.set_attn_implementation(how)
    with torch.no_grad():
        return model(ids, **options).logits.float()


def off(found, right):
    """The size of the difference, in parts of the size of what is right."""
    return float((found - right).norm() / right.norm())


def judge(found, gauge, wrong, right, limit=4):
    """`found` is at most `limit` times as far from what is right as `gauge`, and `wrong` farther.

    Beside q, k, v and the output a kernel rounds P, and with a softcap it has the tanh of the hardware.
    """
    allowed = limit * off(gauge, right)
    assert off(found, right) <= allowed
    assert off(wrong, right) > allowed, "a wrong scale must show"


@EACH_MODEL
def test_logits_are_those_of_eager_attention(name, rng):
    model, ids, calls = made(name, rng), tokens(rng), []
    names = registered(calls=calls), registered(rounded), registered(factor=FACTOR), "eager"
    judge(*(logits(model, how, ids) for how in names))
    given = MODELS[name]
    kinds = given.get("layer_types", ["sliding_attention" if "sliding_window" in given else "full"] * 2)
    windows = [(WINDOW - 1 if kind == "sliding_attention" else -1, -1) for kind in kinds]
    assert [call["window"] for call in calls] == windows
    assert {call["softcap"] for call in calls} == {given.get("attn_logit_softcapping", 0.0)}
    assert all((call["sinks"] is not None) == (name == "GptOss") for call in calls)


@EACH_MODEL
@pytest.mark.parametrize(("element", "limit"), [("float16", 3), ("bfloat16", 1.08)])
def test_a_model_in_16_bits_is_as_right_as_with_eager_attention(name, element, limit, rng):
    """Against float32 with the same weights. In bfloat16 all of the model is rounded as much as attention."""
    import torch

    model, ids = made(name, rng).to(getattr(torch, element)), tokens(rng)
    found = [logits(model, how, ids) for how in (registered(), "eager", registered(factor=FACTOR))]
    judge(*found, logits(model.float(), "eager", ids), limit)


@EACH_MODEL
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch(name, side, rng):
    """Of the tokens that are no padding; packed sequences are what runs."""
    import torch

    model, ids, calls = made(name, rng), tokens(rng, batch=3), []
    there = torch.ones_like(ids)
    for sequence, length in enumerate((TOKENS, 70, 9)):
        there[sequence, slice(0, TOKENS - length) if side == "left" else slice(length, None)] = 0
    names = registered(calls=calls), registered(rounded), registered(factor=FACTOR), "eager"
    judge(*(logits(model, how, ids, attention_mask=there)[there.bool()] for how in names))
    assert calls and all(call["padded"] for call in calls)


@EACH_MODEL
def test_token_by_token_with_a_cache(name, rng):
    """A prompt longer than the window and then single tokens: the logits of all of it at once."""
    import torch

    model, ids, prompt, calls = made(name, rng), tokens(rng, count=60), 45, []

    def stepped(how):
        model.set_attn_implementation(how)
        found, cache = [], None
        with torch.no_grad():
            for begin, end in [(0, prompt), *((i, i + 1) for i in range(prompt, 60))]:
                step = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                found.append(step.logits.float())
        return torch.cat(found, 1)

    found, wrong = stepped(registered(calls=calls)), stepped(registered(factor=FACTOR))
    judge(found, logits(model, registered(rounded), ids), wrong, logits(model, "eager", ids))
    assert {call["rows"] for call in calls} == {prompt, 1}


@EACH_MODEL
def test_generated_tokens_are_the_best_of_eager_attention(name, rng):
    """Or as good as the best, to what rounding changes of a logit."""
    model, ids = made(name, rng), tokens(rng, batch=1, count=50)
    model.generation_config.eos_token_id = None
    model.set_attn_implementation(registered())
    made_up = model.generate(ids, max_new_tokens=24, do_sample=False)
    assert made_up.shape == (1, 74)
    right, gauge = (logits(model, how, made_up)[0, 49:-1] for how in ("eager", registered(rounded)))
    chosen = right.gather(1, made_up[0, 50:, None])[:, 0]
    assert (right.max(1).values - chosen).max() <= 4 * (gauge - right).abs().max()
