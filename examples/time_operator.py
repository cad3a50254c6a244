"""What a call costs its caller: FlashCore's operator beside PyTorch's own attention, in interleaved rounds.

    python examples/time_operator.py --shape 1x8x512x64 --json times.json

Prints microseconds per call, the median over rounds, in four rows: forward, forward with grad, backward,
forward and backward. A round queues --calls calls and waits once for the GPU at its end, so a number is the
larger of the time of the host and of the GPU. Without a GPU it refuses to run.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import scaled_dot_product_attention

from flashcore_numba.integrations.pytorch import attention

ROWS = ("forward", "forward with grad", "backward", "forward and backward")


def shape(text: str) -> tuple[int, ...]:
    """BxHxSxD as numbers."""
    try:
        found = tuple(map(int, text.split("x")))
    except ValueError:
        found = ()
    if len(found) != 4 or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be BxHxSxD, such as 1x8x512x64")
    return found


def count(text: str) -> int:
    """A number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be 1 or more")
    return int(text)


def seconds(step: Callable[[], object], calls: int) -> float:
    """Seconds per call, the work on the GPU included."""
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - start) / calls


def steps(attend: Callable, size: tuple[int, ...], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """What is timed of one attention, by the name of its row. attend: takes q, k and v."""
    plain = [torch.randn(size, device="cuda", dtype=dtype) for _ in range(3)]
    leaves = [x.clone().requires_grad_() for x in plain]
    dout = torch.randn(size, device="cuda", dtype=dtype)
    kept = attend(*leaves)
    return {
        "forward": lambda: attend(*plain),
        "forward with grad": lambda: attend(*leaves),
        "backward": lambda: torch.autograd.grad(kept, leaves, dout, retain_graph=True),
        "forward and backward": lambda: torch.autograd.grad(attend(*leaves), leaves, dout),
    }


def main() -> None:
    """Read the options, time all rows and print medians."""
    parser = argparse.ArgumentParser(description="Time the operator of PyTorch beside PyTorch's own.")
    parser.add_argument("--shape", type=shape, default=(1, 8, 512, 64), help="BxHxSxD")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--calls", type=count, default=200, help="per round")
    parser.add_argument("--json", type=Path, help="where to write all rounds")
    given = parser.parse_args()
    if given.json and not given.json.parent.is_dir():
        parser.error(f"argument --json: {given.json}: its folder does not exist")
    if not torch.cuda.is_available():
        parser.error("no GPU that PyTorch can use: times of the CPU executor would say nothing of a call")
    dtype = getattr(torch, given.dtype)
    sides = {
        "flashcore": lambda q, k, v: attention(q, k, v, causal=given.causal),
        "sdpa": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=given.causal),
    }
    todo = {name: steps(attend, given.shape, dtype) for name, attend in sides.items()}
    times: dict[str, dict[str, list[float]]] = {row: {name: [] for name in sides} for row in ROWS}
    for number in range(given.rounds + 1):  # the first one warms up
        for row in ROWS:
            for name in reversed(todo) if number % 2 else todo:
                found = 1e6 * seconds(todo[name][row], given.calls)
                if number:
                    times[row][name].append(found)
    print(f"{'us per call':22}" + "".join(f"{name:>12}" for name in sides))
    for row, each in times.items():
        print(f"{row:22}" + "".join(f"{median(each[name]):12.1f}" for name in sides))
    if given.json:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": given.shape}
        options = {"dtype": given.dtype, "causal": given.causal, "calls": given.calls}
        given.json.write_text(json.dumps({**about, **options, "us": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
