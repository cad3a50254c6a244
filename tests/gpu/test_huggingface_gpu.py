"""transformers on a GPU by the adapter: `generate` with both caches, compiled decoding, padding, training."""

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flashcore_numba.integrations import huggingface  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what transformers and its compiler warn about is their own
]

WINDOW, VOCABULARY, NEW = 32, 128, 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "Llama": {},
    "GptOss": {  # every expert serves every token, or rounding would choose others
        "sliding_window": WINDOW,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
EACH_MODEL = pytest.mark.parametrize("name", MODELS)


def made(name):
    """The model in bfloat16, and in float32 with eager attention: the same weights."""
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name], attn_implementation="eager")
    config._experts_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for path, weights in model.named_parameters():
        if path.endswith("sinks"):
            torch.nn.init.normal_(weights, 1.0)
    exact = getattr(transformers, f"{name}ForCausalLM")(deepcopy(config)).eval()  # it stays eager
    exact.load_state_dict(model.bfloat16().float().state_dict())
    return model.bfloat16().cuda(), exact.float().cuda()


def prompts(rng, length=70):
    """Tokens of two prompts, the second with padding on the left, and their mask."""
    ids = torch.from_numpy(rng.integers(3, VOCABULARY, (2, length))).cuda()
    mask = torch.ones_like(ids)
    mask[1, :23] = 0
    return {"input_ids": ids, "attention_mask": mask}


def log_probabilities(model, ids, mask):
    """Of what a model foretells at every token that is not padding, in one forward pass."""
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits.float().log_softmax(-1)[mask.bool()]


def generated(model, how, inputs, **options):
    model.set_attn_implementation(how)
    return model.generate(**inputs, do_sample=False, min_new_tokens=NEW, max_new_tokens=NEW, **options)


def follows(exact, model, inputs, written):
    """Every new token is the best of the exact model after those before it, but for what bfloat16 rounds:
    eager attention in bfloat16 says how much that is.
    """
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(written[:, -NEW:])], 1)
    expected = log_probabilities(exact, written, mask)
    model.set_attn_implementation("eager")
    rounding = (log_probabilities(model, written, mask) - expected).abs().max()
    with torch.no_grad():
        logits = exact(input_ids=written, attention_mask=mask).logits[:, -NEW - 1 : -1].log_softmax(-1)
    chosen = logits.gather(2, written[:, -NEW:, None])[..., 0]
    lost = (logits.amax(-1) - chosen).max()
    assert lost <= 3 * rounding, (float(lost), float(rounding))


@EACH_MODEL
@pytest.mark.parametrize(
    "options",
    [{}, {"cache_implementation": "static", "disable_compile": True}, {"cache_implementation": "static"}],
    ids=["dynamic", "static", "static compiled"],
)
def test_generate_writes_what_the_exact_model_would(rng, name, options):
    model, exact = made(name)
    torch._dynamo.reset()
    inputs = prompts(rng)
    written = generated(model, huggingface.register(), inputs, **options)
    follows(exact, model, inputs, written)
    half = {key: value.roll(1, 1) for key, value in inputs.items()}
    with pytest.raises(AssertionError):  # the tokens of other prompts are noticed
        follows(exact, model, half, torch.cat([half["input_ids"], written[:, -NEW:]], 1))


@EACH_MODEL
def test_logits_and_gradients(rng, name):
    model, exact = made(name)
    inputs = prompts(rng)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"].cumsum(1) <= 1, -100)

    def gradients(each, how):
        each.set_attn_implementation(how)
        each.zero_grad()
        each(**inputs, labels=labels, use_cache=False).loss.backward()
        return {path: weights.grad.float() for path, weights in each.named_parameters()}

    expected, eager = gradients(exact, "eager"), gradients(model, "eager")
    found = gradients(model, huggingface.register())
    for path, gradient in expected.items():
        allowed = 3 * (eager[path] - gradient).norm() + 0.03 * gradient.norm()
        assert (found[path] - gradient).norm() <= allowed, path


def test_a_forward_pass_over_a_static_cache_is_captured(rng):
    """One step of decoding in a CUDA graph: replays read the lengths that the cache has then."""
    model, _ = made("Llama")
    model.set_attn_implementation(huggingface.register())
    ids = prompts(rng, 20)["input_ids"]
    token = ids[:, :1].clone()

    def started():
        past = transformers.StaticCache(config=model.config, max_cache_len=64)
        model(input_ids=ids, past_key_values=past)
        return past

    with torch.no_grad():
        plain = started()
        expected = [model(input_ids=token, past_key_values=plain).logits for _ in range(4)]
        past = started()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            first = model(input_ids=token, past_key_values=past).logits
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(input_ids=token, past_key_values=past).logits
        found = [first]
        for _ in range(3):
            graph.replay()
            found.append(logits.clone())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
