"""Attention, forward and backward, over a sequence that no process holds alone.

    torchrun --standalone --nproc-per-node 2 examples/ring_attention.py

With a GPU per process each step's keys are pulled from their owner's memory. Without one they go round by
gloo, and the arithmetic is NumPy's. Rank 0 puts the parts together and compares them with PyTorch in float64.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from flashcore_numba.branches.ring.call import RingAttention

BATCH, HEADS, KV_HEADS, DIM = 1, 4, 2, 64


def joined(attention: RingAttention, part: Tensor) -> Tensor:
    """The rows of all ranks in the order of the sequence, float64 on the host."""
    parts: list[Tensor] = [torch.empty(0)] * dist.get_world_size()
    dist.all_gather_object(parts, part.cpu().double())
    ranks = range(len(parts))
    order = torch.cat([torch.from_numpy(attention.split.indices(rank)) for rank in ranks]).argsort()
    return torch.cat(parts, dim=2)[:, :, order]


def main() -> None:
    """What each process does."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise SystemExit(__doc__)
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, length = dist.get_rank(), 4096 if on_gpu else 202
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)

    attention = RingAttention(length, way="pull" if on_gpu else "ring")
    torch.manual_seed(0)  # every rank draws the whole sequence and keeps its rows
    whole = [torch.randn(BATCH, h, length, DIM).to(dtype) for h in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    q, k, v, dout = (attention.split.cut(each, rank).to(device) for each in whole)

    out, lse = attention(q, k, v, causal=True)
    gradients = attention.backward(dout, q, k, v, out, lse, causal=True)
    print(f"rank {rank} of {dist.get_world_size()}: {attention.rows} of {length} rows", flush=True)

    found = [joined(attention, each) for each in (out, *gradients)]
    if rank == 0:
        exact = [each.double().requires_grad_() for each in whole[:3]]
        right = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
        right.backward(whole[3].double())
        for name, value, of in zip(("out", "dq", "dk", "dv"), found, (right, *exact), strict=True):
            error = float((value - (right.detach() if of is right else of.grad)).abs().max())
            print(f"{name}: off by at most {error:.0e}")
            assert error < (0.1 if on_gpu else 1e-4), name
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
