"""A Llama writes tokens with FlashCore and with PyTorch's own attention: speed, and whether tokens are equal.

Without --model, it is a small Llama with random weights, which takes a few seconds on a CPU, where the CUDA
kernels run on FlashCore's CPU executor and are slow. On a GPU it is larger, and times mean something.

    python examples/generate_llama.py
    python examples/generate_llama.py --model FOLDER --new 256     # a Llama on this machine, on a GPU
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, StoppingCriteria

from flashcore_numba.integrations import huggingface

REFERENCE = "sdpa"


def arguments() -> argparse.Namespace:
    """What the command was called with."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder of a Llama or another causal model; no download")
    parser.add_argument("--batch", type=at_least_one, default=2, help="prompts (%(default)s)")
    parser.add_argument(
        "--prompt", type=at_least_one, default=1024 if on_gpu else 12, help="tokens of a prompt (%(default)s)"
    )
    parser.add_argument(
        "--new", type=at_least_one, default=256 if on_gpu else 8, help="tokens to write (%(default)s)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of random weights and prompts (%(default)s)")
    parser.add_argument("--static", action="store_true", help="a static cache, compiled on a GPU")
    return parser.parse_args()


def at_least_one(text: str) -> int:
    """A number of tokens or prompts."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be 1 or more")
    return int(text)


def seed(text: str) -> int:
    """What PyTorch takes as one."""
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text}: it must be 0 to 2^64 - 1")
    return int(text)


def small_llama(on_gpu: bool) -> LlamaForCausalLM:
    """Random weights, large enough that attention decides which token comes next."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    if on_gpu:
        sizes = {"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 8}
        heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
    width = 0.15 if not on_gpu else 0.04
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=512, initializer_range=width, **sizes, **heads, **ends)
    return LlamaForCausalLM(config)


class Progress(StoppingCriteria):
    """Says how far a text is. It never stops one."""

    def __init__(self, name: str, until: int) -> None:
        self.name, self.until = name, until

    def __call__(self, ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        if sys.stderr.isatty():
            end = "\n" if ids.shape[1] == self.until else ""
            print(
                f"\r{self.name}: token {ids.shape[1]} of {self.until}", end=end, file=sys.stderr, flush=True
            )
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def write(model: torch.nn.Module, name: str, ids: torch.Tensor, options: argparse.Namespace) -> tuple:
    """The new tokens, and seconds for them. The first of two runs compiles kernels and is not timed."""
    model.set_attn_implementation(name)
    for what in ("warming up", "timed"):
        if ids.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=options.new,
            max_new_tokens=options.new,
            cache_implementation="static" if options.static else None,
            stopping_criteria=[Progress(f"{name}, {what}", ids.shape[1] + options.new)],
        )
        tokens = written[:, ids.shape[1] :].tolist()  # waits for the GPU
        seconds = time.perf_counter() - start
    return tokens, seconds


def main() -> int:
    """Run both and print what was found. Returns the exit status."""
    options = arguments()
    name = huggingface.register()
    torch.manual_seed(options.seed)
    on_gpu = torch.cuda.is_available()
    if options.model is None:
        model = small_llama(on_gpu)
    elif not options.model.is_dir():
        print(f"--model is {options.model}: no such folder", file=sys.stderr)
        return 2
    else:
        try:
            model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True)
        except (OSError, ValueError) as error:
            print(f"--model is {options.model}, where no causal model is: {error}", file=sys.stderr)
            return 2
    model = model.to("cuda" if on_gpu else "cpu", torch.bfloat16 if on_gpu else torch.float16).eval()
    shape = options.batch, options.prompt
    ids = torch.randint(3, model.config.get_text_config().vocab_size, shape).to(model.device)
    print(f"{options.batch} prompts of {options.prompt} tokens, {options.new} new ones each, {model.device}")
    found = {each: write(model, each, ids, options) for each in (name, REFERENCE)}
    for each, (_, seconds) in found.items():
        print(f"{each}: {options.batch * options.new / seconds:.1f} tokens per second")
    pairs = zip(found[name][0], found[REFERENCE][0], strict=True)
    agreed = [sum(a == b for a, b in zip(one, other, strict=True)) for one, other in pairs]
    equal = all(n == options.new for n in agreed)
    print(f"equal tokens: {'yes' if equal else f'{sum(agreed)} of {options.batch * options.new}'}")
    if not equal:
        print("The two round differently: once a near tie goes the other way, the texts part.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
