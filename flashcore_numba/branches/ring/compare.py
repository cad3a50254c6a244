"""Times of the ways on several GPUs, beside PyTorch's context parallelism: what each process of a run does.

`flashcore ring --gpus N` starts N of these by torchrun. A time is that of the slowest rank, from event to
event over several calls, and all entries take turns. A run of the backward pass times every way twice: the
backward pass alone, and forward and backward together. PyTorch's is timed by autograd, both together: nothing
is subtracted, so its time is beside the second.
"""

import argparse
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cuda_reference.extras import explained
from flashcore_numba.attention import attention
from flashcore_numba.branches.backward import bounds as gradient_bounds
from flashcore_numba.branches.backward.call import attention_backward
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.ring.call import CAPTURED, RingAttention
from flashcore_numba.branches.ring.numerics import Arrays
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.checks import bounds
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.mask import UNBOUNDED, Mask
from flashcore_numba.core.shapes import Shape, parse_any
from flashcore_numba.measure.stats import of_rounds
from flashcore_numba.measure.timing import turns
from flashcore_numba.records import artifact, environment, layout
from flashcore_numba.records.artifact import WITH_FORWARD

ROUNDS = 9
TURN_US, MOST_CALLS = 8000.0, 20  # of one turn
SAMPLED = 8  # rows of a rank that are compared with float64, each in the query heads of one K/V head
ONE_GPU = "one GPU, its own rows"
PEERS = ("torch allgather", "torch alltoall", "Ulysses, cuDNN")
FORWARD_FLOPS, BACKWARD_FLOPS = 4, 10  # per pair of row and key and element of D: 2 and 5 products
REFERENCE_ROWS = 256  # whose scores are in memory at once, in float64
CAPTURED_PEERS = {f"{label}, captured": label for label in PEERS[:2]}
"""Labels of the graphs of PyTorch's calls, which have processes of their own: NCCL in a CUDA graph was
seen to hang.
"""


@dataclass
class Timed:
    """What is timed. call: does it once. kind: "stage" or "peer". value: what it wrote, attention of `rows`
    of `whole`, which is q, k and v; or the gradients, and dout is in `whole` too.
    """

    label: str
    call: Callable[[], Any]
    kind: str
    value: Callable[[], Any]  # out, or dq, dk and dv
    whole: Sequence[Any]
    rows: np.ndarray


Entries = tuple[list[Timed], dict[str, str]]
"""What is timed, and why the rest is not, by its label."""


class CuDnn:
    """PyTorch's attention by cuDNN, for Ulysses; it gives no LSE. Made before `context_parallel` puts a
    function of its own in the place of PyTorch's.
    """

    def __init__(self) -> None:
        import torch

        self.function = torch.nn.functional.scaled_dot_product_attention

    def check_waits(self) -> None:
        raise NotImplementedError

    def attend(
        self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None, keys_from: Any = None
    ) -> None:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = reads
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            grouped = q.shape[1] != k.shape[1]
            found = self.function(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        writes[0].copy_(found)

    def backward(self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None) -> None:
        raise NotImplementedError


def record(
    shapes: Sequence[dict[str, Any]],
    gpu: Mapping[str, Any],
    topology: Mapping[str, Any],
    rounds: int,
    seed: int,
    backward: bool = False,
) -> dict[str, Any]:
    """The artifact of a run, whose shapes `of_shape` has made. Its operation is "ring", or "ring_backward".
    Raises ArtifactError.
    """
    commit, dirty = environment.commit()
    made = {
        "schema": artifact.SCHEMA,
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
        "operation": "ring_backward" if backward else "ring",
        "label": f"gpus-{topology['gpus']}",
        "gpu": dict(gpu),
        "topology": dict(topology),
        "packages": environment.packages(),
        "rounds": rounds,
        "l2": "warm",
        "seed": seed,
        "clocks": {"sm_mhz": None, "temperature_c": None, "power_w": None},
        "clocks_why_not": "clocks of several GPUs are not read",
        "ceilings": None,
        "shapes": list(shapes),
    }
    made = layout.rounded(made)
    artifact.validate(made, "the new artifact")
    return made


def of_shape(
    shape: Shape,
    causal: bool,
    times: Mapping[str, list[list[float]]],
    kinds: Mapping[str, str],
    errors: Mapping[str, dict[str, Any]],
    absent: Mapping[str, str],
    backward: bool = False,
) -> dict[str, Any]:
    """One shape of an artifact. times: microseconds of the slowest rank, for each round.

    backward: flops are those of the backward pass alone.
    """
    entries = [
        {
            "label": label, "kind": kinds[label], "stage": None, "variant": None, "default": True,
            "unit": "tensor", "launches": 1, "rounds": len(rounds), "gpu_us": of_rounds(rounds),
            "gpu_cold_us": None, "caller_us": None, "clocks": None, "throttled": None,
            "error": errors[label], "resources": None,
        }
        for label, rounds in times.items()
    ]  # fmt: skip
    pairs = Mask(shape.seq, shape.seq, right=0 if causal else UNBOUNDED).pairs
    flops = (
        (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * shape.batch * shape.heads * pairs * shape.head_dim
    )
    limits = dict.fromkeys(("fp32", "tensor", "exp", "memory"))
    found = {
        "shape": str(shape), "causal": causal, "scale": None, "flops": flops, "limits_us": limits,
        "entries": entries, "absent": dict(absent),
    }  # fmt: skip
    artifact.derive(found)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Time every shape on this process's GPU, with its peers; rank 0 writes the artifact."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", action="append", required=True, help="with the rows of all GPUs")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--way", action="append", choices=[*FORWARD], help="only these, and no peers")
    parser.add_argument("--backward", action="store_true", help="the gradients")
    parser.add_argument("--captured-peers", action="store_true", help="only graphs of PyTorch's calls")
    args = parser.parse_args(arguments)
    rank, count, seed = join()
    made = partial(_backward_entries if args.backward else _entries, ways=args.way)
    measured = partial(
        _measured, made=_captured_peers if args.captured_peers else made, backward=args.backward
    )
    shapes = [measured(parse_any(text), args.causal, args.rounds, seed) for text in args.shape]
    if args.captured_peers:
        if rank == 0:  # no artifact: a shape may have no graph at all
            layout.save({"shapes": shapes}, args.file)
        os._exit(0)  # a communicator that a graph holds was seen not to close
    if rank == 0:
        made_of_all = record(shapes, environment.gpu(), topology(count), args.rounds, seed, args.backward)
        artifact.save(made_of_all, args.file)
    leave()


def join() -> tuple[int, int, int]:
    """Make this process, which torchrun has started, a rank with a GPU of its own. Returns its number, how
    many ranks there are, and a seed that is the same on all.
    """
    with explained():
        import torch
        import torch.distributed as dist
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun sets it
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    seeds = [secrets.randbits(32)]
    dist.broadcast_object_list(seeds)
    return dist.get_rank(), dist.get_world_size(), seeds[0]


def leave() -> None:
    """End what `join` began."""
    import torch.distributed as dist

    dist.destroy_process_group()


def topology(count: int) -> dict[str, Any]:
    """How many GPUs take part, and whether every GPU of this host reads every other one's memory."""
    import torch

    devices = torch.cuda.device_count()
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    return {"gpus": count, "peer_access": all(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)}


def drawn(shape: Shape, seed: int, backward: bool = False) -> list[Any]:
    """q, k, v of the whole sequence, and dout for the backward pass: the same on every rank, on its GPU."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    sizes = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    return [
        torch.randn(
            shape.batch, h, shape.seq, shape.head_dim, device="cuda", dtype=torch.half, generator=generator
        )
        for h in (sizes if backward else sizes[:3])
    ]


def _measured(
    shape: Shape, causal: bool, rounds: int, seed: int, made: Callable[..., Entries], backward: bool = False
) -> dict[str, Any]:
    with ExitStack() as stack:
        entries, absent = made(*drawn(shape, seed, backward), causal, stack)
        errors = {each.label: error_of(each, causal, seed) for each in entries}
        times: dict[str, list[list[float]]] = {each.label: [] for each in entries}
        spent = [0.0] * len(entries)  # alike on all ranks, as the times are
        for _, index in turns(rounds, spent):
            entry = entries[index]
            before = times[entry.label][-1][0] if times[entry.label] else TURN_US
            calls = max(3, min(MOST_CALLS, round(TURN_US / before)))
            times[entry.label].append([_slowest(entry.call, calls)])
    kinds = {each.label: each.kind for each in entries}
    return of_shape(shape, causal, times, kinds, errors, absent, backward)


def _captured_peers(q: Any, k: Any, v: Any, causal: bool, stack: ExitStack) -> Entries:
    """Graphs of PyTorch's calls, and why there is none."""
    import torch

    found: list[Timed] = []
    absent = dict[str, str]()
    makers = _peers(q, k, v, causal, stack)
    for label, plain in CAPTURED_PEERS.items():
        try:
            function, rows = makers[plain]()
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                for _ in range(3):  # communicators and memory are made
                    function()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, stream=aside, capture_error_mode="thread_local"
            ):  # NCCL asks meanwhile
                out = function()
        except Exception as error:
            absent[label] = _reason(error)
            continue
        found.append(Timed(label, graph.replay, "peer", partial(_same, out), (q, k, v), rows))
    return found, absent


def _entries(
    q: Any, k: Any, v: Any, causal: bool, stack: ExitStack, ways: Sequence[str] | None = None
) -> Entries:
    """Everything that is timed, and why the rest is not. ways: only these, beside one GPU and no peers."""
    import torch.distributed as dist

    rank, whole = dist.get_rank(), (q, k, v)
    found, absent = [], {}
    for way in ways or FORWARD:
        ring = RingAttention(q.shape[2], way=way)
        own = [ring.split.cut(each, rank) for each in whole]
        rows = ring.split.indices(rank)
        try:
            call, value = _kept(partial(_first, ring, *own, causal=causal))
        except Exception as error:
            absent[way] = _reason(error)
            continue
        found.append(Timed(way, call, "stage", value, whole, rows))
        if way in CAPTURED:
            label = f"{way}, captured"
            try:
                graph = ring.captured(*own, causal=causal)
            except Exception as error:
                absent[label] = _reason(error)
                continue
            found.append(Timed(label, graph.replay, "stage", partial(_same, graph.out), whole, rows))
    split = even(q.shape[2], dist.get_world_size())
    own = [split.cut(each, rank) for each in whole]
    call, value = _kept(partial(attention, *own, causal=causal))
    found.append(Timed(ONE_GPU, call, "stage", value, own, np.arange(split.rows(rank))))
    for label, make in ({} if ways else _peers(q, k, v, causal, stack)).items():
        try:
            function, rows = make()
            call, value = _kept(function)
        except Exception as error:
            absent[label] = _reason(error)
            continue
        found.append(Timed(label, call, "peer", value, whole, rows))
    return found, absent


def _backward_entries(
    q: Any, k: Any, v: Any, dout: Any, causal: bool, stack: ExitStack, ways: Sequence[str] | None = None
) -> Entries:
    """`_entries` of the backward pass: every way, and one GPU, alone and with its forward pass; PyTorch's
    context parallelism with it.
    """
    import torch.distributed as dist

    rank, whole = dist.get_rank(), (q, k, v, dout)
    found: list[Timed] = []
    absent = dict[str, str]()

    def add(label: str, kind: str, make: Callable[[], Callable[[], Any]], of: Any, rows: np.ndarray) -> None:
        try:
            call, value = _kept(make())
        except Exception as error:
            absent[label] = _reason(error)
        else:
            found.append(Timed(label, call, kind, value, of, rows))

    def add_both(label: str, forward: Any, backward: Any, own: Any, of: Any, rows: np.ndarray) -> None:
        add(label, "stage", lambda: _backward_alone(forward, backward, own, causal), of, rows)
        together = partial(_forward_and_backward, forward, backward, own, causal)
        add(label + WITH_FORWARD, "stage", lambda: together, of, rows)

    for way in ways or BACKWARD:
        ring = RingAttention(q.shape[2], way=way)
        own = [ring.split.cut(each, rank) for each in whole]
        add_both(way, ring, ring.backward, own, whole, ring.split.indices(rank))
    split = even(q.shape[2], dist.get_world_size())
    own = [split.cut(each, rank) for each in whole]
    with_lse = partial(attention, return_lse=True)
    add_both(ONE_GPU, with_lse, attention_backward, own, own, np.arange(split.rows(rank)))
    peers = {} if ways else _backward_peers(q, k, v, dout, causal, stack)
    for label, make in peers.items():
        add(label, "peer", make, whole, split.indices(rank))
    return found, absent


def _backward_alone(forward: Any, backward: Any, own: Sequence[Any], causal: bool) -> Callable[[], Any]:
    """A function that goes back from what the forward pass gives now. own: q, k, v and dout of the rank."""
    q, k, v, dout = own
    out, lse = forward(q, k, v, causal=causal)
    return partial(backward, dout, q, k, v, out, lse, causal=causal)


def _forward_and_backward(forward: Any, backward: Any, own: Sequence[Any], causal: bool) -> Any:
    return _backward_alone(forward, backward, own, causal)()


def _first(function: Callable[..., Any], *arrays: Any, causal: bool) -> Any:
    return function(*arrays, causal=causal)[0]


def _same(value: Any) -> Any:
    return value


def _kept(function: Callable[[], Any]) -> tuple[Callable[[], None], Callable[[], Any]]:
    """A function that calls `function`, once already, and one that gives what it returned last."""
    kept = {"out": function()}

    def call() -> None:
        kept["out"] = function()

    return call, partial(kept.get, "out")


def _peers(
    q: Any, k: Any, v: Any, causal: bool, stack: ExitStack
) -> dict[str, Callable[[], tuple[Callable[[], Any], np.ndarray]]]:
    """What makes each peer: a function that returns its output, and the rank's rows of the sequence."""
    import torch
    import torch.distributed as dist

    rank, count = dist.get_rank(), dist.get_world_size()
    length = q.shape[2]

    cudnn = CuDnn()

    @cache
    def buffers() -> list[Any]:
        kept = _rows_in_parallel((q, k, v), causal, stack)
        stack.enter_context(torch.no_grad())
        return kept

    def context_parallel(method: str) -> Any:
        from torch.distributed.tensor.experimental._attention import set_rotate_method

        own, grouped = buffers(), q.shape[1] != k.shape[1]

        def call() -> Any:
            set_rotate_method(method)
            return torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True, enable_gqa=grouped)

        return call, even(length, count).indices(rank)

    def ulysses() -> Any:
        ring = RingAttention(length, way="ulysses")
        ring._numerics = lambda q: cudnn  # type: ignore[method-assign]
        own = [ring.split.cut(each, rank) for each in (q, k, v)]
        return partial(_first, ring, *own, causal=causal), ring.split.indices(rank)

    makers = (partial(context_parallel, "allgather"), partial(context_parallel, "alltoall"), ulysses)
    return dict(zip(PEERS, makers, strict=True))


def _backward_peers(
    q: Any, k: Any, v: Any, dout: Any, causal: bool, stack: ExitStack
) -> dict[str, Callable[[], Callable[[], Any]]]:
    """What makes each peer: a function that returns the gradients of the rank's rows."""
    import torch

    @cache
    def buffers() -> list[Any]:
        kept = _rows_in_parallel((q, k, v, dout), causal, stack)
        return [*(each.requires_grad_() for each in kept[:3]), kept[3]]

    def context_parallel(method: str) -> Callable[[], Any]:
        from torch.distributed.tensor.experimental._attention import set_rotate_method

        *own, own_dout = buffers()
        grouped = q.shape[1] != k.shape[1]

        def call() -> Any:
            set_rotate_method(method)
            out = torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True, enable_gqa=grouped)
            return torch.autograd.grad(out, own, own_dout)

        return call

    methods = ("allgather", "alltoall")
    return {f"torch {method}{WITH_FORWARD}": partial(context_parallel, method) for method in methods}


def _rows_in_parallel(arrays: Sequence[Any], causal: bool, stack: ExitStack) -> list[Any]:
    """The rank's rows of the arrays, as `context_parallel` keeps them until the stack is closed. Raises
    ValueError for what it does not take.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import experimental
    from torch.nn.attention import SDPBackend, sdpa_kernel

    count = dist.get_world_size()
    if not causal:
        raise ValueError("its load balance takes no full mask")
    if arrays[0].shape[2] % (2 * count):
        raise ValueError(f"its load balance takes lengths that {2 * count} divides")
    kept = [each.clone() for each in arrays]
    stack.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
    stack.enter_context(
        experimental.context_parallel(
            init_device_mesh("cuda", (count,)),
            buffers=kept,
            buffer_seq_dims=[2] * len(kept),
            no_restore_buffers=set(kept),
        )
    )
    return kept


def _slowest(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call on the slowest rank, event to event over `calls` calls."""
    import torch
    import torch.distributed as dist

    torch.cuda.synchronize()
    dist.barrier()  # or a rank that came early waits within its time
    call()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(calls):
        call()
    after.record()
    after.synchronize()
    took = torch.tensor([before.elapsed_time(after) / calls * 1e3], device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def error_of(entry: Timed, causal: bool, seed: int) -> dict[str, Any]:
    """Of some rows of every rank, against float64; the worst of all ranks."""
    import torch
    import torch.distributed as dist

    entry.call()
    torch.cuda.synchronize()
    sampled = sampled_gradient_error if len(entry.whole) > 3 else sampled_error
    found = sampled(entry.value(), entry.whole, entry.rows, causal, [seed, dist.get_rank()])
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    worst = {name: max(each[name] for each in every) for name in ("max", "mean", "relative")}
    return {"right": all(each["right"] for each in every)} | worst


def sampled_error(
    out: Any, whole: Sequence[Any], rows: np.ndarray, causal: bool, seed: Sequence[int]
) -> dict[str, Any]:
    """How wrong some rows of `out`, [B, H, rows, D], are: they are these rows of attention of q, k and v."""
    q, k, v = whole
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    found: dict[str, Any] = {"right": True, "max": 0.0, "mean": 0.0, "relative": 0.0}
    rng = np.random.default_rng(seed)
    for place in rng.choice(len(rows), min(SAMPLED, len(rows)), replace=False):
        row, h_kv = int(rows[place]), int(rng.integers(kv_heads))
        seen, heads = row + 1 if causal else q.shape[2], slice(h_kv * group, (h_kv + 1) * group)
        keys = (each[:, h_kv : h_kv + 1, :seen] for each in (k, v))
        one = [each.cpu().numpy() for each in (q[:, heads, row : row + 1], *keys)]
        ref = bounds.reference(*one)
        value = out[:, heads, int(place) : int(place) + 1].cpu().numpy()
        error = np.abs(value - ref.out)
        found["right"] &= bool(bounds.judge(value, ref).passed)
        found["max"] = max(found["max"], float(error.max()))
        found["mean"] += float(error.mean()) / min(SAMPLED, len(rows))
        found["relative"] = max(found["relative"], float(error.max() / np.abs(ref.out).max()))
    return found


def sampled_gradient_error(
    gradients: Sequence[Any], whole: Sequence[Any], rows: np.ndarray, causal: bool, seed: Sequence[int]
) -> dict[str, Any]:
    """How wrong some rows of dq, [B, H, rows, D], and of dk and dv, [B, H_kv, rows, D], are: they are these
    rows of the gradients of q, k and v, and whole is q, k, v and dout. The heads are those of one K/V head.

    Each is the gradient of a smaller problem, of one row over the keys that it sees or of one key under the
    rows that see it, if O and LSE are those over all keys. Bounds are those of what goes back from an output
    of its own.
    """
    kv_heads, group = whole[1].shape[1], whole[0].shape[1] // whole[1].shape[1]
    rng = np.random.default_rng(seed)
    places = rng.choice(len(rows), min(SAMPLED, len(rows)), replace=False)
    h_kv = int(rng.integers(kv_heads))
    kv, heads = slice(h_kv, h_kv + 1), slice(h_kv * group, (h_kv + 1) * group)
    taken = [each[:, which] for each, which in zip(whole, (heads, kv, kv, heads), strict=True)]
    of_output = _exact_output(taken[0], taken[1], taken[2], causal)
    q, k, v, dout, out, lse = (each.cpu().numpy() for each in (*taken, *of_output))
    out, lse = out.astype(q.dtype), lse.astype(np.float32)
    found: dict[str, Any] = {"right": True, "mean": 0.0}
    largest = {output.name: [0.0, 0.0] for output in GRADIENTS}  # error and right value of all places
    for place in (int(each) for each in places):
        at = int(rows[place])
        row, seen = slice(at, at + 1), slice(0, at + 1 if causal else None)
        later = slice(at if causal else 0, None)
        for x_rows, keys, outputs in ((row, seen, GRADIENTS[:1]), (later, row, GRADIENTS[1:])):
            given = Inputs(q[:, :, x_rows], k[:, :, keys], v[:, :, keys], False)
            x = BackwardInputs(given, out[:, :, x_rows], lse[:, :, x_rows], dout[:, :, x_rows])
            ref = gradient_bounds.reference(x).of_peers
            assert ref is not None
            for output in outputs:
                value = gradients[GRADIENTS.index(output)][:, heads if output.name == "dq" else kv]
                value = value[:, :, place : place + 1].cpu().numpy()
                right, _ = ref.of(output)
                error = np.abs(value - right)
                found["right"] &= bool(gradient_bounds.judge(output, value, ref, None).passed)
                found["mean"] += float(error.mean()) / len(places) / len(GRADIENTS)
                both = zip(largest[output.name], (error, np.abs(right)), strict=True)
                largest[output.name] = [max(so_far, float(each.max())) for so_far, each in both]
    relative = (error / size for error, size in largest.values() if size)  # dQ of the first row alone is 0
    return found | {"max": max(error for error, _ in largest.values()), "relative": max(relative)}


def _exact_output(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Out and LSE in float64, where the tensors are; k and v have one head. Some rows at a time."""
    import torch

    k, v, outs, sums = k.double(), v.double(), [], []
    for begin in range(0, q.shape[2], REFERENCE_ROWS):
        scores = q[:, :, begin : begin + REFERENCE_ROWS].double() @ k.mT / q.shape[3] ** 0.5
        if causal:
            numbers = torch.arange(begin, begin + scores.shape[2], device=q.device)
            hidden = torch.arange(k.shape[2], device=q.device) > numbers[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
        sums.append(scores.logsumexp(3))
        outs.append((scores - sums[-1][..., None]).exp() @ v)
    return torch.cat(outs, 2), torch.cat(sums, 2)


def _reason(error: Exception) -> str:
    """Why an entry is absent, where all ranks leave it out: the error follows from the call. Raises any other
    error again, such as one of memory or of a link. Its rank would go on alone, and the others would wait for
    it on their GPUs, where nothing ends them before the time limit.
    """
    of_the_call = ValueError, TypeError, ImportError, AttributeError, NotImplementedError
    if not isinstance(error, of_the_call) and type(error) is not RuntimeError:  # PyTorch's own checks
        raise error
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


if __name__ == "__main__":
    main()
