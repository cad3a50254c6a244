"""What each process of `test_ring_gpu.py` does on its GPU: it compares the ways in WAYS with float64.

Prints a line of JSON per rank: the smallest margin, allowed / error, of each call.
"""

import json
import os

import numpy as np
import torch
import torch.distributed as dist

from flashcore_numba.branches.backward import bounds as gradient_bounds
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.ring.call import CAPTURED, RingAttention
from flashcore_numba.branches.ring.programs import BACKWARD
from flashcore_numba.checks import bounds
from flashcore_numba.checks.trial import Inputs

LENGTH, MANY = 2 * 613, 8
"""Rows, which 2 N divides for no N from 2 to 8; and the least heads: `ulysses` needs a multiple of N."""


def margin(value, right, allowed):
    verdict = bounds.compare(value.double().cpu().numpy(), right, allowed)
    return verdict.margin if verdict.passed else 0.0


def judged(out, lse, ref, rows):
    return [
        margin(out, ref.out[:, :, rows], ref.allowed[:, :, rows]),
        margin(lse, ref.lse[:, :, rows], ref.lse_allowed[:, :, rows]),
    ]


def decoded(rng, heads, dim, causal, device):
    """3 tokens over keys of which the first rank has none, where there is another."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    keys = [0 if number == 0 < ranks - 1 else 100 + 7 * number for number in range(ranks)]
    q, k, v = (
        rng.standard_normal((2, heads, rows, dim)).astype(np.float16) for rows in (3, sum(keys), sum(keys))
    )
    begin = sum(keys[:rank])
    own = (q, *(x[:, :, begin : begin + keys[rank]].copy() for x in (k, v)))
    attention = RingAttention(LENGTH)
    out, lse = attention.decode(*(torch.from_numpy(x).to(device) for x in own), causal=causal)
    return judged(out, lse, bounds.reference(q, k, v, causal), slice(None))


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks, found = dist.get_rank(), dist.get_world_size(), {}
    heads = ranks * -(-MANY // ranks)
    rng = np.random.default_rng(int(os.environ["SEED"]))
    for dim in (64, 128):
        for causal in (True, False):
            whole = [rng.standard_normal((2, heads, LENGTH, dim)).astype(np.float16) for _ in range(3)]
            found[f"decode {dim} {causal}"] = decoded(rng, heads, dim, causal, device)
            equal = [rng.standard_normal((1, heads, 256 * ranks, dim)).astype(np.float16) for _ in range(3)]
            equal_ref = bounds.reference(*equal, causal)
            ref = bounds.reference(*whole, causal)
            x = backward_inputs(Inputs(*whole, causal), rng)
            right = gradient_bounds.reference(x)
            for way in os.environ["WAYS"].split():
                attention = RingAttention(LENGTH, way=way)
                q, k, v = (torch.from_numpy(attention.split.cut(x, rank)).to(device) for x in whole)
                rows, name = attention.split.indices(rank), f"{way} {dim} {causal}"
                for call in range(2):
                    found[f"{name} {call}"] = judged(*attention(q, k, v, causal=causal), ref, rows)
                once = RingAttention(256 * ranks, way=way)  # of one batch and equal pieces: in fewer launches
                own = (torch.from_numpy(once.split.cut(x, rank)).to(device) for x in equal)
                found[f"{name} equal"] = judged(
                    *once(*own, causal=causal), equal_ref, once.split.indices(rank)
                )
                if way in BACKWARD:
                    given = (attention.split.cut(each, rank) for each in (x.dout, x.out, x.lse))
                    dout, out, lse = (torch.from_numpy(each).to(device) for each in given)
                    for call in range(2):
                        values = attention.backward(dout, q, k, v, out, lse, causal=causal)
                        found[f"{name} backward {call}"] = [
                            margin(value, *(each[:, :, rows] for each in right.of(output)))
                            for output, value in zip(GRADIENTS, values, strict=True)
                        ]
                if way in CAPTURED:
                    graph = attention.captured(q, k, v, causal=causal)
                    attention(*(x[:1].bfloat16() for x in (q, k, v)), causal=causal)
                    del attention  # the graph has what it needs
                    for _ in range(3):
                        graph.out.fill_(torch.nan)
                        graph.replay()
                        torch.cuda.synchronize()
                    found[f"{name} captured"] = judged(graph.out, graph.lse, ref, rows)
    torch.cuda.synchronize()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
