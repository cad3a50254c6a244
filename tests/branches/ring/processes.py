"""Ranks as processes: `run` starts them with gloo, and each compares its rows with float64."""

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from flashcore_numba.branches.backward import bounds as gradient_bounds
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.ring import gpus, numerics
from flashcore_numba.branches.ring.call import RingAttention
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, Layer
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.checks import bounds
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.arrays import adopt
from flashcore_numba.core.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[3]


def run(ranks: int, folder: Path, seed: int, *work: str, limit: float = 200) -> list[dict[str, Any]]:
    """What each of `ranks` processes found, by the names of `work`: functions of this module."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(ranks), str(folder), str(seed), *work]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def forward(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """Margins of ring and Ulysses, causal and full, tensors of three types, two calls on the same memory."""
    margins = {}
    for way in ("ring", "ulysses"):
        attention = RingAttention(8 * ranks + 3, way=way)
        split = attention.split
        for causal in (True, False):
            for dtype in ("float16", "float32", "bfloat16"):  # a finer type after a coarser one
                heads = (2 * ranks, ranks, ranks)
                tensors = [
                    torch.from_numpy(rng.standard_normal((2, h, split.length, 16)).astype(np.float32)).to(
                        getattr(torch, dtype)
                    )
                    for h in heads
                ]
                q, k, v = (each[:, :, torch.from_numpy(split.indices(rank))] for each in tensors)
                out, lse = attention(q, k, v, causal=causal)
                whole = [_numpy(each) for each in tensors]
                ref = bounds.reference(*whole, causal)
                rows = split.indices(rank)
                own = bounds.Reference(
                    ref.out[:, :, rows],
                    ref.allowed[:, :, rows],
                    ref.lse[:, :, rows],
                    ref.lse_allowed[:, :, rows],
                )
                assert out.dtype == q.dtype and lse.dtype == torch.float32
                verdicts = bounds.judge(_numpy(out), own), bounds.judge_lse(lse.numpy(), own)
                margins[f"{way} {causal} {dtype}"] = [v.margin if v.passed else 0.0 for v in verdicts]
    return margins


def backward(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """Margins of dq, dk and dv."""
    margins = {}
    for way, causal in product(("ring", "ulysses"), (True, False)):
        attention = RingAttention(6 * ranks + 1, way=way)
        heads = (2 * ranks, ranks, ranks)
        arrays = [rng.standard_normal((1, h, 6 * ranks + 1, 16)).astype(np.float32) for h in heads]
        x = backward_inputs(Inputs(*arrays, causal), rng)
        q, k, v, out, lse, dout = (
            attention.split.cut(each, rank) for each in (*arrays, x.out, x.lse, x.dout)
        )
        found = attention.backward(dout, q, k, v, out, lse, causal=causal)
        margins[f"{way} {causal}"] = _gradients_judged(x, attention.split.indices(rank), found)
    return margins


def _gradients_judged(x: Any, rows: np.ndarray, found: Any) -> list[float]:
    """Margins of a rank's rows of dq, dk and dv."""
    ref, margins = gradient_bounds.reference(x), []
    for output, value in zip(GRADIENTS, found, strict=True):
        right, allowed = (each[:, :, rows] for each in ref.of(output))
        verdict = gradient_bounds.compare(np.asarray(value, np.float64), right, allowed)
        margins.append(verdict.margin if verdict.passed else 0.0)
    return margins


def decode(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """Margins of out and LSE; the first rank has no keys."""
    attention, share = RingAttention(2 * ranks, way="ring"), 7
    q, k, v = (
        rng.standard_normal((2, h, s, 16)).astype(np.float32)
        for h, s in ((4, 3), (2, share * (ranks - 1)), (2, share * (ranks - 1)))
    )
    own = slice(max(0, rank - 1) * share, rank * share)
    out, lse = attention.decode(q, k[:, :, own].copy(), v[:, :, own].copy(), causal=True)
    ref = bounds.reference(q, k, v, True)
    return [
        verdict.margin if verdict.passed else 0.0
        for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref))
    ]


OTHERWISE: tuple[tuple[str, dict[str, Any]], ...] = (  # what all ranks are told, what the last is called with
    ("type is float16 on rank 0 and bfloat16", {"dtype": "bfloat16"}),
    ("type is float16 on rank 0 and float32", {"dtype": "float32"}),
    ("batch is 1", {"batch": 2}),
    ("heads of k is 4", {"kv_heads": 2}),
    ("causal is True on rank 0 and False", {"causal": False}),
    ("scale is None on rank 0 and 0.5", {"scale": 0.5}),
    ("split is Split(bounds=(0,", {"length": 1}),
    ("way is ring on rank 0 and ulysses", {"way": "ulysses"}),
    ("method is the call on rank 0 and decode", {"method": "decode"}),
    ("scale is 'x'", {"scale": "x"}),
)


def refused(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """2 for each call that the last rank makes otherwise and that all refuse; then the margin of a right
    one.
    """
    found = {}
    for told, otherwise in OTHERWISE:
        how: dict[str, Any] = {"batch": 1, "kv_heads": 4, "dtype": "float16", "causal": True, "way": "ring"}
        how |= otherwise if rank == ranks - 1 else {}
        attention = RingAttention(4 * ranks + how.get("length", 0), way=how["way"])
        q, k = (
            torch.zeros(how["batch"], heads, attention.rows, 16, dtype=getattr(torch, how["dtype"]))
            for heads in (4, how["kv_heads"])
        )
        call = attention.decode if "method" in how else attention
        try:
            call(q, k, k, causal=how["causal"], scale=how.get("scale"))
            found[told] = 0.0
        except ArgumentError as error:
            found[told] = 2.0 if told in str(error) else 0.0
    attention = RingAttention(4 * ranks, way="ring")
    x = rng.standard_normal((1, 2, 4 * ranks, 16)).astype(np.float32)
    out, _ = attention(*[attention.split.cut(x, rank)] * 3, causal=True)
    ref, rows = bounds.reference(x, x, x, True), attention.split.indices(rank)
    verdict = bounds.compare(out.astype(np.float64), ref.out[:, :, rows], ref.allowed[:, :, rows])
    return found | {"right": verdict.margin if verdict.passed else 0.0}


BY_A_STAGE: tuple[tuple[str, dict[str, Any], str], ...] = (  # what the last rank does otherwise, and hears
    ("call", {"q": "fortran"}, "q has strides"),
    ("call", {"stage": 1}, "stage 01 scalar does not return the LSE"),
    ("backward", {"dout": "fortran"}, "dout has strides"),
    ("backward", {"out": "reversed"}, "out has strides"),
    ("backward", {"lse": "fortran"}, "lse has strides"),
    ("decode", {"k": "fortran"}, "k has strides"),
)


def refused_by_a_stage(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """What each call of `BY_A_STAGE` raises on this rank. Who waits for a rank that has left does not wait
    long.
    """
    found = []
    for method, otherwise, _ in BY_A_STAGE:
        dist.barrier()  # also after a rank has waited in vain
        group = dist.new_group(timeout=timedelta(seconds=10))
        try:
            call_a_stage(method, group, **(otherwise if rank == ranks - 1 else {}))
            found.append("nothing")
        except Exception as error:  # of gloo, where a rank has waited in vain
            found.append(f"{type(error).__name__}: {error}")
    return found


def call_a_stage(
    method: str, group: Any = None, *, way: str = "ring", stage: Any = 12,
    backward_stage: Any = "backward/mma_sync", dim: int = 64, **layouts: str,
) -> Any:  # fmt: skip
    """A method on zeros, those arrays that have one in a layout of their own."""
    attention = RingAttention(
        8 * dist.get_world_size(group), way=way, group=group, stage=stage, backward_stage=backward_stage
    )
    shape = (1, 2, attention.rows, dim)
    arrays = {name: np.zeros(shape, np.float16) for name in ("q", "k", "v")}
    if method == "backward":
        arrays |= {"dout": arrays["q"], "out": arrays["q"], "lse": np.zeros(shape[:3], np.float32)}
    arrays |= {name: laid_out(arrays[name], how) for name, how in layouts.items()}
    return (attention if method == "call" else getattr(attention, method))(**arrays)


def laid_out(array: np.ndarray, how: str) -> np.ndarray:
    """The same numbers in another order of memory."""
    return np.asfortranarray(array) if how == "fortran" else array[:, ::-1].copy()[:, ::-1]


def pulled(rank: int, ranks: int, rng: np.random.Generator) -> Any:
    """Margins of two `GpuRank`, side by side, whose GPU is the host: streams do nothing, shared memory is a
    file. What one of them keeps is of no use for the next call, or for the other one.
    """
    margins = {}
    with tempfile.TemporaryDirectory() as own:
        folders = [own]
        dist.broadcast_object_list(folders)
        with on_the_host(Path(folders[0])):
            both = gpus.GpuRank(), gpus.GpuRank()
            for number, each in enumerate((*KINDS, KINDS[0])):
                for which, gpu in enumerate(both):
                    found = _pulled(gpu, ranks, rng, *each)
                    margins |= {f"{name}, call {number} of {which}": x for name, x in found.items()}
        dist.barrier()
    return margins


KINDS = (  # way, causal, batch, scale, type, whether rows of all heads follow each other
    ("pull", True, 2, None, "float32", False),
    ("pull", False, 2, None, "float32", False),
    ("gather", True, 2, None, "float32", False),
    ("pull", True, 1, None, "float32", True),
    ("gather", False, 1, 0.5, "float32", True),
    ("pull", True, 2, 0.5, "float64", False),
    ("gather", True, 2, None, "float64", True),
    ("ring", True, 2, None, "float32", False),
    ("ulysses", False, 1, 0.5, "float32", True),
)


def _pulled(
    gpu: Any, ranks: int, rng: np.random.Generator, way: str, causal: bool, batch: int,
    scale: float | None, dtype: str, transposed: bool,
) -> Any:  # fmt: skip
    split, margins = even(8 * ranks + 3, ranks, way != "ulysses"), {}
    kv_heads = ranks if way == "ulysses" else 2

    def given(array: np.ndarray, floats: str = dtype) -> torch.Tensor:
        tensor = torch.from_numpy(split.cut(array, gpu.number)).to(getattr(torch, floats))
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if transposed else tensor

    heads = 2 * kv_heads, kv_heads, kv_heads
    x = Inputs(
        *(rng.standard_normal((batch, h, split.length, 16)).astype(np.float32) for h in heads),
        causal, scale,
    )  # fmt: skip
    q, k, v = (given(each) for each in (x.q, x.k, x.v))
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
    layer = Layer(split, causal, InTorch(), scale)
    FORWARD[way](gpu, layer, q, k, v, out, lse)
    ref, rows = bounds.reference(x.q, x.k, x.v, causal, scale), split.indices(gpu.number)
    verdicts = (
        bounds.compare(out.double().numpy(), ref.out[:, :, rows], ref.allowed[:, :, rows]),
        bounds.compare(lse.double().numpy(), ref.lse[:, :, rows], ref.lse_allowed[:, :, rows]),
    )
    margins[way] = [verdict.margin if verdict.passed else 0.0 for verdict in verdicts]
    if way in BACKWARD:
        y = backward_inputs(x, rng)
        more = given(y.out), torch.from_numpy(split.cut(y.lse, gpu.number)), given(y.dout)
        found = [torch.full_like(each, torch.nan) for each in (q, k, v)]
        BACKWARD[way](gpu, layer, q, k, v, *more, *found)
        margins["gradients"] = _gradients_judged(y, rows, found)
    return margins


class InTorch:
    """Attention in float32 by PyTorch's operators; backward NumPy's, on the tensors' memory."""

    def attend(self, reads: Any, writes: Any, *, causal: bool, scale: float | None) -> None:
        q, k, v, *before = reads
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
        if causal:
            rows, keys = scores.shape[2:]
            hidden = torch.ones(rows, keys, dtype=torch.bool).triu(1 + keys - rows)
            scores = scores.masked_fill(hidden, -torch.inf)
        numerics.put(scores.softmax(3) @ v, scores.logsumexp(3), before, writes, torch)

    def backward(self, reads: Any, writes: Any, *, causal: bool, scale: float | None) -> None:
        arrays = tuple(each.numpy() for each in reads), tuple(each.numpy() for each in writes)
        numerics.Float32().backward(*arrays, causal=causal, scale=scale)


@contextmanager
def on_the_host(folder: Path) -> Iterator[None]:
    """`gpus` with a stand-in for CUDA and for symmetric memory."""
    stream = SimpleNamespace(cuda_stream=0, record_event=lambda: "event", wait_event=lambda event: None)
    cuda = SimpleNamespace(
        current_device=lambda: 0, current_stream=lambda device: stream,
        Stream=lambda device, priority=0: stream, stream=lambda stream: nullcontext(),
    )  # fmt: skip
    stub = SimpleNamespace(
        cuda=cuda, float32=torch.float32, device=lambda *_: torch.device("cpu"), empty=torch.empty
    )

    made: list[torch.Tensor] = []  # in the same order on every rank

    def mapped(rank: int, number: int, shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        size, file = int(np.prod(shape)), folder / f"{rank}-{number}"
        return torch.from_file(str(file), shared=True, size=size, dtype=dtype).view(shape)

    def empty(shape: Any, dtype: Any, device: Any) -> torch.Tensor:
        made.append(mapped(dist.get_rank(), len(made), shape, dtype))
        return made[-1]

    @dataclass
    class Handle:
        number: int

        def get_buffer(self, peer: int, shape: Any, dtype: Any) -> torch.Tensor:
            return mapped(peer, self.number, shape, dtype)

        def barrier(self, channel: int) -> None:
            assert channel in gpus.CHANNELS.values()
            dist.barrier()

    def rendezvous(tensor: Any, group: Any) -> Handle:
        dist.barrier()
        return Handle(next(i for i, each in enumerate(made) if each is tensor))

    def memcpy_2d(to: int, pitch: int, source: int, other: int, width: int, height: int, *_: int) -> None:
        for row in range(height):
            ctypes.memmove(to + row * pitch, source + row * other, width)

    runtime = SimpleNamespace(
        memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
        memcpy2DAsync=memcpy_2d, memcpyDefault=4,
    )  # fmt: skip
    copying = SimpleNamespace(runtime=runtime)
    symmetric = SimpleNamespace(empty=empty, rendezvous=rendezvous)
    with (
        patch.object(gpus, "torch", stub),
        patch.object(gpus, "symmetric", symmetric),
        patch.dict(sys.modules, {"cupy": SimpleNamespace(cuda=copying), "cupy.cuda": copying}),
    ):
        yield


def _numpy(tensor: Any) -> np.ndarray:
    return adopt(tensor, "tensor").view


def one_rank(rank: int, ranks: int, folder: Path, seed: int, work: list[str]) -> None:
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = {name: globals()[name](rank, ranks, np.random.default_rng(seed)) for name in work}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    """All ranks are forks of this process, which has imported everything once."""
    ranks, folder, seed, *work = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=one_rank, args=(rank, int(ranks), Path(folder), int(seed), work))
        for rank in range(int(ranks))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
