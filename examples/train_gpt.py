"""Train a small GPT twice from one seed: attention by FlashCore, then by PyTorch. Compares losses and speed.

The text is the source of Python's own standard library, byte by byte. Weights are float32 and products
bfloat16, by autocast. On a GPU the model has 10 million parameters; on a CPU, or with --tiny, 0.25 million.
FlashCore's kernels run on the CPU executor there. Writes train_gpt.json and train_gpt.png.
"""

import argparse
import json
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from flashcore_numba.integrations.pytorch import attention

VOCABULARY, HEAD_DIM, TEXT_BYTES = 256, 64, 4_000_000


@dataclass(frozen=True)
class Size:
    """Of the model and of its training."""

    layers: int
    heads: int
    kv_heads: int
    tokens: int  # of a sequence
    batch: int
    steps: int
    rate: float


FULL = Size(layers=6, heads=6, kv_heads=3, tokens=1024, batch=64, steps=400, rate=1e-3)
TINY = Size(layers=1, heads=2, kv_heads=1, tokens=48, batch=2, steps=8, rate=3e-3)
WAYS = {
    "FlashCore": lambda q, k, v: attention(q, k, v, causal=True),
    "SDPA": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
}


class Block(nn.Module):
    """Attention and two linear layers, each after a norm and beside a residual."""

    def __init__(self, size: Size, attend: Any) -> None:
        super().__init__()
        width = size.heads * HEAD_DIM
        self.attend, self.heads = attend, (size.heads, size.kv_heads, size.kv_heads)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, sum(self.heads) * HEAD_DIM, bias=False)
        self.joined = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, S, width]."""
        rows = self.qkv(self.before(x)).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        x = x + self.joined(self.attend(*rows.split(self.heads, 1)).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """Bytes to the logits of the bytes that follow."""

    def __init__(self, size: Size, attend: Any) -> None:
        super().__init__()
        width = size.heads * HEAD_DIM
        self.bytes, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(size.tokens, width)
        self.blocks = nn.Sequential(*(Block(size, attend) for _ in range(size.layers)))
        self.last, self.logits = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [B, S]; returns [B, S, 256]."""
        return self.logits(self.last(self.blocks(self.bytes(tokens) + self.places.weight[: tokens.shape[1]])))


def text() -> Tensor:
    """The first bytes of the standard library's modules, in the order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))[:TEXT_BYTES]), dtype=torch.uint8)


def train(name: str, size: Size, data: Tensor, seed: int) -> dict:
    """The loss of each step, and tokens per second without the first tenth of the steps."""
    torch.manual_seed(seed)
    model = GPT(size, WAYS[name]).to(data.device)
    print(f"{name:>9}  {sum(x.numel() for x in model.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), size.rate)
    warm = max(1, size.steps // 10)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=warm)
    drawing, columns = torch.Generator().manual_seed(seed), torch.arange(size.tokens + 1)
    losses = []
    for step in range(size.steps):
        if step == warm:
            losses[-1].item()  # once it has come, the device is done with the steps before
            began = time.perf_counter()
        begins = torch.randint(len(data) - size.tokens, (size.batch, 1), generator=drawing)
        rows = data[(begins + columns).to(data.device)].long()
        with torch.autocast(data.device.type, torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rise.step()
        losses.append(loss.detach())
        if (step + 1) % max(1, size.steps // 6) == 0:
            print(f"{name:>9}  step {step + 1:4}  loss {loss.item():.3f}", flush=True)
    losses[-1].item()
    speed = (size.steps - warm) * size.batch * size.tokens / (time.perf_counter() - began)
    print(f"{name:>9}  {speed:,.0f} tokens per second", flush=True)
    return {"tokens_per_second": speed, "loss": torch.stack(losses).tolist()}


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="the model for a CPU, on a GPU too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/train_gpt"), help="a folder")
    args = parser.parse_args()
    if not 0 <= args.seed < 1 << 64:
        parser.error(f"argument --seed: {args.seed}: it must be 0 to 2^64 - 1")
    device, on = ("cuda", torch.cuda.get_device_name()) if torch.cuda.is_available() else ("cpu", "CPU")
    size = FULL if device == "cuda" and not args.tiny else TINY
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {args.out}: {error.strerror}, it must be a folder or a new name")
    data = text().to(device)
    runs = {name: train(name, size, data, args.seed) for name in WAYS}
    apart = max(abs(a - b) for a, b in zip(*(run["loss"] for run in runs.values()), strict=True))
    print(f"losses differ by {apart:.4f} at most")
    record = {"device": on, "torch": torch.__version__, "seed": args.seed, "size": asdict(size), "runs": runs}
    (args.out / "train_gpt.json").write_text(json.dumps(record, indent=1) + "\n")
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        axes.plot(run["loss"], style, label=f"{name}, {run['tokens_per_second']:,.0f} tokens per second")
    axes.set(xlabel="step", ylabel="loss, nats per byte", title=on)
    axes.legend()
    figure.savefig(args.out / "train_gpt.png", dpi=150)


if __name__ == "__main__":
    main()
