"""Runs of vLLM's engine on a CPU, in a process that test_vllm_engine.py starts.

Takes JSON on standard input and writes JSON to the file that it names: of each run, for each prompt of each
round its tokens and the logarithms of the probabilities of the likeliest ones, step by step.
"""

import gc
import json
import sys
import time
from dataclasses import fields
from pathlib import Path

import torch


def write_model(folder, config, seed):
    """Random weights of transformers' model of this configuration, large enough for attention to matter."""
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    weights = {}
    for name, x in model.state_dict().items():
        if not (made.tie_word_embeddings and name == "lm_head.weight"):
            weights[name] = (torch.randn_like(x) * 0.12 if x.ndim > 1 else x).to(torch.float16).contiguous()
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    made.architectures = [type(model).__name__]
    made.save_pretrained(folder)


def generate(folder, backend, dtype, rounds, steps):
    """Greedy answers to each round of prompts, one engine for all rounds."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.platforms import current_platform
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # The CPU platform takes its own backend whatever is asked for, so its name is given to another.
    AttentionBackendEnum.CPU_ATTN.clear_override()
    if backend:
        register_backend(AttentionBackendEnum.CPU_ATTN, backend)
    selector._cached_get_attn_backend.cache_clear()
    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=256,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        kv_cache_memory_bytes=1 << 24,
        block_size=32,
        seed=0,
    )
    sampling = SamplingParams(temperature=0, max_tokens=steps, logprobs=5, ignore_eos=True, detokenize=False)
    found = []
    for prompts in rounds:
        given = [{"prompt_token_ids": each} for each in prompts]
        answers = engine.generate(given, sampling, use_tqdm=False)
        found.append([answer_of(each) for each in answers])
    layers = engine.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    ran = sorted({type(each.impl).__module__ for each in layers})
    del engine, layers
    cleanup_dist_env_and_memory()
    # Has done its work, and stumbles over an object of llvmlite's when it looks through all modules again.
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
    gc.collect()
    return {"backend": ran, "rounds": found}


def answer_of(request):
    said = request.outputs[0]
    steps = [{str(token): x.logprob for token, x in step.items()} for step in said.logprobs]
    return {"tokens": list(said.token_ids), "logprobs": steps, "cached": request.num_cached_tokens}


def told_by_the_selector():
    """What vLLM's selector says of the real backend, by what is asked, and where its plugin leads."""
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from flashcore_numba.integrations import vllm_plugin

    vllm_plugin.register()
    vllm_plugin.register()
    backend = AttentionBackendEnum.CUSTOM.get_class()
    plain = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16,
        "use_mla": False, "has_sink": False, "use_sparse": False, "use_mm_prefix": False,
        "use_per_head_quant_scales": False, "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
    }  # fmt: skip
    asked = {
        "plain": {},
        "sinks and a window": {"has_sink": True, "has_sliding_window": True, "head_size": 64},
        "e4m3": {"kv_cache_dtype": "fp8_e4m3", "head_size": 256},
        "float32": {"dtype": torch.float32},
        "cache of another type": {"kv_cache_dtype": "float16"},
        "e5m2": {"kv_cache_dtype": "fp8_e5m2"},
        "head of 96": {"head_size": 96},
        "MLA": {"use_mla": True},
        "encoder": {"attn_type": "encoder_only"},
        "cross": {"attn_type": "encoder_decoder"},
        "not causal": {"use_non_causal": True},
        "sparse": {"use_sparse": True},
        "images": {"use_mm_prefix": True},
        "old GPU": {"device_capability": DeviceCapability(7, 5)},
        "batch invariance": {"use_batch_invariant": True},
        "context parallel": {"use_dcp": True},
    }
    return {
        "class": f"{backend.__module__}.{backend.__qualname__}",
        "graphs": backend.get_builder_cls()._cudagraph_support.name,
        "fields": [each.name for each in fields(CommonAttentionMetadata)],
        "reasons": {name: backend.validate_configuration(**plain | each) for name, each in asked.items()},
    }


def main():
    asked = json.load(sys.stdin)
    found = {"selector": told_by_the_selector(), "runs": {}, "seconds": {}}
    for name, run in asked["runs"].items():
        begun = time.perf_counter()
        folder = Path(asked["folder"]) / run["model"]
        if not folder.exists():
            write_model(folder, asked["models"][run["model"]], asked["seed"])
        found["runs"][name] = generate(folder, run["backend"], run["dtype"], asked["rounds"], asked["steps"])
        found["seconds"][name] = time.perf_counter() - begun
    Path(asked["answer"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
