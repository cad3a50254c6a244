"""One run of vLLM's engine on a CPU, in a process that test_vllm_engine.py starts.

Takes JSON on standard input and writes JSON to the file that it names: for each prompt of each round its
tokens and the logarithms of the probabilities of the likeliest ones, step by step.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_model(folder, config, seed):
    """Random weights of transformers' model of this configuration, large enough for attention to matter."""
    import transformers

    torch.manual_seed(seed)
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    weights = {name: x.normal_(0, 0.12) if x.ndim > 1 else x for name, x in model.state_dict().items()}
    kept = {name: x.to(torch.bfloat16).contiguous() for name, x in weights.items() if "rotary" not in name}
    if config.get("tie_word_embeddings", made.tie_word_embeddings):
        kept.pop("lm_head.weight", None)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    made.architectures = [type(model).__name__]
    made.save_pretrained(folder)


def main():
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    if not (folder / "config.json").exists():
        write_model(folder, asked["config"], asked["seed"])
    if asked["backend"]:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        # The CPU platform takes its own backend whatever is asked for, so that name is given to another.
        register_backend(AttentionBackendEnum.CPU_ATTN, asked["backend"])
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=asked["longest"],
        max_num_batched_tokens=asked["batched"],
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        kv_cache_memory_bytes=asked["cache_bytes"],
        block_size=asked["page"],
        seed=0,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=asked["steps"], logprobs=5, ignore_eos=True, detokenize=False
    )
    found = []
    for prompts in asked["rounds"]:
        answers = engine.generate([{"prompt_token_ids": each} for each in prompts], sampling, use_tqdm=False)
        found.append(
            [
                {
                    "tokens": list(one.outputs[0].token_ids),
                    "logprobs": [
                        {str(token): x.logprob for token, x in step.items()}
                        for step in one.outputs[0].logprobs
                    ],
                    "cached": one.num_cached_tokens,
                }
                for one in answers
            ]
        )
    Path(asked["answer"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
