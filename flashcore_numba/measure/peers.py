"""The peers: attention kernels of other libraries, timed beside the stages on the same arrays.

Each is optional. What is not installed, or refuses the problem, is reported with its reason and not timed.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cuda_reference.extras import install
from cuda_reference.shown import shown
from flashcore_numba.attention import attention
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import OFF, on_host
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.problem import Problem
from flashcore_numba.measure.entries import Flush
from flashcore_numba.records.environment import FA3_VARIABLE

SDPA = {  # label -> member of torch.nn.attention.SDPBackend
    "SDPA flash": "FLASH_ATTENTION",
    "SDPA cuDNN": "CUDNN_ATTENTION",
    "SDPA efficient": "EFFICIENT_ATTENTION",
    "SDPA math": "MATH",
}
TWO_LAUNCHES = "two launches"  # where something follows attention: without fusing
MOST_COMPILED = 256  # what PyTorch accepts of one function in all, beside its limit for one of its objects


def prepare(
    of: Operation,
    problem: Any,
    arrays: Mapping[str, Any],
    stream: Any,
    on_peer: Callable[[str], None] = lambda label: None,
    only: Sequence[str] | None = None,
) -> tuple[list["PeerEntry"], dict[str, str]]:
    """The peers of an operation that serve `problem`, made of these arrays (CuPy's, by name), warmed up; and
    why the others do not (label: reason). only: labels of those that are wanted, all when None.
    """
    peers = {label: function for label, function in of.peers().items() if only is None or label in only}
    if not getattr(problem, "features", OFF).epilogue:
        peers.pop(TWO_LAUNCHES, None)
    if not peers:
        return [], {}
    try:
        import torch
    except ImportError as error:
        return [], dict.fromkeys(peers, f"PyTorch is not installed ({error}): {install('peers')}")
    if not torch.cuda.is_available():
        return [], dict.fromkeys(peers, f"this PyTorch ({torch.__version__}) does not see the GPU")
    element = getattr(torch, problem.element.name)
    with stream:
        tensors = {
            name: torch.from_dlpack(x.view(np.int16)).view(element)
            if x.dtype == problem.element.dtype
            else torch.from_dlpack(x)
            for name, x in arrays.items()
        }
    outputs = tuple(each.name for each in of.outputs if not each.optional)
    found, absent = [], {}
    for label, function in peers.items():
        on_peer(label)
        try:
            found.append(PeerEntry(label, stream, outputs, *function(problem, tensors)))
        except Exception as error:  # whatever another library raises: the peer is left out with its reason
            absent[label] = _reason(error)
    return found, absent


def check_labels(of: Operation, labels: Sequence[str] | None) -> None:
    """Raise ArgumentError for a label that no peer of the operation has."""
    known = of.peers()
    if unknown := [label for label in labels or () if label not in known]:
        raise ArgumentError(
            f"peer {shown(unknown[0])} is not one of {of.name}'s: accepted are {', '.join(known) or 'none'}"
        )


class PeerEntry:
    """A peer's function of no arguments, timed on one CuPy stream; satisfies `timing.Entry`.

    names: of the outputs that the function returns, a tuple where there are several. backend: selects the
    peer. to_house: what makes an output one of ours.
    """

    kind = "peer"
    launches, launch_us = 1, 0.0

    def __init__(
        self,
        label: str,
        stream: Any,
        names: tuple[str, ...],
        function: Callable[[], Any],
        backend: Callable[[], AbstractContextManager],
        to_house: Callable[[Any], Any],
    ) -> None:
        import torch

        self.label, self.names, self.function = label, names, function
        self.backend, self.to_house = backend, to_house
        self.stream = torch.cuda.ExternalStream(stream.ptr)
        torch.cuda.synchronize()  # what the function prepared on PyTorch's own stream is there
        with self.active():
            for _ in range(3):  # compiles, chooses an algorithm, fills the allocator
                self.call()
        self.stream.synchronize()

    @contextmanager
    def active(self) -> Iterator[None]:
        import torch

        with ExitStack() as stack:
            stack.enter_context(torch.cuda.stream(self.stream))
            stack.enter_context(torch.no_grad())
            stack.enter_context(self.backend())
            yield

    def call(self) -> None:
        self.called = self.function()

    def capture(self, launches: int) -> None:
        import torch

        self.graph = torch.cuda.CUDAGraph()
        with (
            self.active(),
            torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="relaxed"),
        ):
            for _ in range(launches):
                self.replayed = self.function()

    def replay(self) -> None:
        self.graph.replay()

    def cold(self, flush: Flush) -> "PeerEntry":
        """The same with an `entries.Flush` before each launch, in a graph of its own."""

        def flushed() -> Any:
            flush._launch()
            return self.function()

        pair = copy.copy(self)
        pair.function = flushed
        return pair

    def poison(self) -> None:
        with self.active():
            for found in (self.replayed, self.called):
                for out in _each(found):
                    out.fill_(float("nan"))

    def outputs(self) -> list[dict[str, np.ndarray]]:
        self.stream.synchronize()
        return [
            {
                name: self.to_house(out).float().cpu().numpy()
                for name, out in zip(self.names, _each(found), strict=True)
            }
            for found in (self.replayed, self.called)
        ]


def _each(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


Tensors = Mapping[str, Any]
Prepared = tuple[Callable[[], Any], Callable[[], AbstractContextManager], Callable[[Any], Any]]
"""A function of no arguments, a context manager that selects it, its output as [B, H, S, D]."""


def _sdpa(label: str, problem: Problem, tensors: Tensors) -> Prepared:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    refuse(problem, *problem.features.names)
    same_alignment(problem)
    q, k, v = (tensors[name] for name in "qkv")
    scores = 4 * problem.batch * problem.heads * problem.seq_q * problem.seq_k
    memory = torch.cuda.get_device_properties(q.device).total_memory
    if label == "SDPA math" and scores > memory / 10:  # it makes several copies of them
        raise ValueError(f"it writes out scores of {scores / 1e9:.0f} GB, more than a tenth of the memory")
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def run_sdpa() -> Any:
        return sdpa(q, k, v, is_causal=problem.causal, scale=problem.scale, enable_gqa=problem.group > 1)

    return run_sdpa, lambda: sdpa_kernel(getattr(SDPBackend, SDPA[label])), unchanged


def _flex(problem: Problem, tensors: Tensors) -> Prepared:
    q, k, v = (tensors[name] for name in "qkv")
    attend = flex(problem, tensors)
    return lambda: attend(q, k, v), compiles_each, unchanged


def compiles_each() -> AbstractContextManager:
    """PyTorch compiles a function for as many problems as there are.

    By itself it compiles eight, and runs the next as the function is written, with a warning alone: of
    FlexAttention that is another kernel, which no graph can hold.
    """
    from torch._dynamo import config

    return config.patch(recompile_limit=MOST_COMPILED, fail_on_recompile_limit_hit=True)


def flex(problem: Any, tensors: Tensors) -> Callable[[Any, Any, Any], Any]:
    """FlexAttention compiled for a problem: a function of q, k and v, to be called under `compiles_each`."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    device = tensors["q"].device
    lengths = problem.features.arrays.keys() & {"seqused_k", "cu_seqlens_q"}
    seen, place = (_rows_of_lengths if lengths else _rows)(problem, device)
    mask = None
    if seen:
        # Of packed sequences the whole mask would not fit; compiled, it is never whole.
        create = torch.compile(create_block_mask) if lengths else create_block_mask
        batch = problem.batch if "seqused_k" in lengths else None
        with compiles_each():
            mask = create(seen, batch, None, problem.seq_q, problem.seq_k, device=device)
    options = {"block_mask": mask, "scale": problem.scale, "enable_gqa": problem.group > 1}
    score_mod = _score_mod(problem, tensors, place)
    if score_mod:
        options["score_mod"] = score_mod
    sinks = tensors.get("sinks")
    if sinks is None:
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, **options)

    from torch.nn.attention.flex_attention import AuxRequest

    def with_sinks(q: Any, k: Any, v: Any) -> Any:
        out, more = flex_attention(q, k, v, **options, return_aux=AuxRequest(lse=True))
        share = torch.sigmoid(more.lse - sinks[:, None])  # of a row's sum, what the sink does not take
        return (out * share[..., None]).to(out.dtype)

    return torch.compile(with_sinks, dynamic=False)


def _rows(problem: Problem, device: Any) -> tuple[Callable | None, Callable]:
    """FlexAttention's mask, None where nothing is hidden, and the key on the diagonal of a row."""
    mask = problem.mask
    first, last = mask.shift - mask.left, mask.shift + mask.right

    def place(batch: Any, row: Any) -> Any:
        return row + mask.shift

    if mask.left < 0:
        return None if mask.right < 0 else lambda b, h, row, key: key <= row + last, place
    if mask.right < 0:
        return lambda b, h, row, key: key >= row + first, place
    return lambda b, h, row, key: (key >= row + first) & (key <= row + last), place


def _rows_of_lengths(problem: Problem, device: Any) -> tuple[Callable, Callable]:
    """The same where sequences have lengths of their own: from tables of the rows."""
    import torch

    table = np.zeros((3, problem.batch, problem.seq_q), np.int32)  # first key, end, key on the diagonal
    for each in problem.sequences:
        rows = np.arange(each.mask.seq_q)
        keys = np.stack([*each.mask.interval(rows), rows + each.mask.shift])
        table[:, each.batch, each.rows] = keys + each.keys.start
    begin, end, diagonal = torch.from_numpy(table).to(device)

    def seen(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (begin[batch, row] <= key) & (key < end[batch, row])

    return seen, lambda batch, row: diagonal[batch, row]


def _score_mod(problem: Problem, tensors: Tensors, place: Callable) -> Callable | None:
    """The softcap, and then ALiBi."""
    import torch

    softcap, slopes = problem.features.softcap, tensors.get("alibi_slopes")
    if not softcap and slopes is None:
        return None
    if slopes is not None and slopes.ndim > 1:
        raise ValueError("slopes of each sequence are not written for it here")

    def score_mod(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[head] * torch.abs(place(batch, row) - key)
        return score

    return score_mod


def _fa4(problem: Problem, tensors: Tensors) -> Prepared:
    import torch
    from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

    refuse(problem, "alibi_slopes")
    given = problem.features
    call, options = flash_attn_func, {"causal": problem.causal, "softmax_scale": problem.scale}
    if given.names:
        options["window_size"] = window_of(problem)
        options["softcap"] = given.softcap
    if "sinks" in tensors:
        options["learnable_sink"] = tensors["sinks"].to(getattr(torch, BFLOAT16.name))
    if given.ragged or "seqused_k" in tensors:
        call = flash_attn_varlen_func
        options |= {
            name: x for name, x in tensors.items() if name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")
        }
    if given.ragged:
        options |= dict(zip(("max_seqlen_q", "max_seqlen_k"), longest(problem), strict=True))
        tokens, to_house = packed(tensors, "qkv"), from_packed
    else:
        tokens, to_house = by_tokens(tensors, "qkv"), from_tokens

    def run_fa4() -> Any:
        out = call(*tokens, **options)
        return out[0] if isinstance(out, tuple) else out

    return run_fa4, nullcontext, to_house


def _fa3(problem: Problem, tensors: Tensors) -> Prepared:
    """FlashAttention-3 as vLLM compiles it: packed sequences only, so equal lengths are told as such."""
    import torch

    refuse(problem, "alibi_slopes")
    forward = fa3_forward()
    batch, rows, keys = problem.batch, problem.seq_q, problem.seq_k
    if problem.features.ragged:
        tokens, to_house = packed(tensors, "qkv"), from_packed
        bounds = [tensors["cu_seqlens_q"], tensors["cu_seqlens_k"]]
    else:
        tokens = [x.flatten(0, 1) for x in by_tokens(tensors, "qkv")]
        bounds = [
            torch.arange(0, (batch + 1) * each, each, dtype=torch.int32, device=tokens[0].device)
            for each in (rows, keys)
        ]

        def to_house(out: Any) -> Any:
            return from_tokens(out.unflatten(0, (batch, rows)))

    arguments = fa3_arguments(
        problem, tensors, tokens, bounds, tensors.get("seqused_k"), longest(problem), None, 1
    )
    return lambda: forward(*arguments)[0], nullcontext, to_house


def fa3_forward() -> Any:
    """Its function. Raises ValueError where nothing says which library has it."""
    import torch

    library = os.environ.get(FA3_VARIABLE)
    if not library:
        raise ValueError(f"{FA3_VARIABLE} does not name its compiled library, _vllm_fa3_C.abi3.so")
    torch.ops.load_library(library)
    return torch.ops._vllm_fa3_C.fwd


def fa3_arguments(
    problem: Any,
    tensors: Tensors,
    tokens: Sequence[Any],
    bounds: Sequence[Any],
    used: Any,
    most: tuple[int, int],
    pages: Any,
    splits: int,
    descales: Sequence[Any] = (None, None, None),
) -> tuple[Any, ...]:
    """What `fa3_forward` takes: q, k, v; bounds of packed queries and keys; how many keys count; the most
    queries and keys of a sequence; the table of pages; in how many parts keys are divided, 0: it chooses;
    of e4m3 the scales of q, k and v, float32 [B, H_kv].
    """
    import torch

    sinks = tensors["sinks"].to(getattr(torch, BFLOAT16.name)) if "sinks" in tensors else None
    mask = problem.mask
    # Its arguments have no defaults: new keys and values and a second query; the output; bounds of new keys,
    # used queries; pages, and what belongs to a cache (5); scales of FP8 (3); interleaved rotary, a schedule,
    # splits, packing of groups, SMs to spare; sinks; a context spread over one of one GPU.
    return (
        *(*tokens, None, None, None, None, *bounds, None, None, used, *most),
        *(pages, *[None] * 5, *descales, problem.scale, problem.causal, mask.left, mask.right),
        *(problem.features.softcap, True, None, splits, None, 0, sinks, 1, 0, None),
    )


def packed(tensors: Tensors, names: Iterable[str]) -> list[Any]:
    """[total, H, D] of [1, H, total, D]."""
    return [tensors[name][0].transpose(0, 1) for name in names]


def from_packed(out: Any) -> Any:
    """The way back from `packed`."""
    return out.transpose(0, 1)[None]


def by_tokens(tensors: Tensors, names: Iterable[str]) -> list[Any]:
    """[B, S, H, D] of [B, H, S, D]."""
    return [tensors[name].transpose(1, 2) for name in names]


def from_tokens(out: Any) -> Any:
    """The way back from `by_tokens`."""
    return out.transpose(1, 2)


def window_of(problem: Any) -> tuple[int | None, int | None]:
    """How far a row sees to either side of the diagonal; None where unbounded."""
    left, right = (None if side < 0 else side for side in (problem.mask.left, problem.mask.right))
    return left, right


def longest(problem: Any) -> tuple[int, int]:
    """Rows and keys of the longest sequence."""
    if not problem.features.ragged:
        return problem.seq_q, problem.seq_k
    bounds = problem.features.cu_seqlens_q, problem.features.cu_seqlens_k
    rows, keys = (int(np.diff(on_host(each)).max()) for each in bounds)
    return rows, keys


def refuse(problem: Any, *names: str) -> None:
    """Raise ValueError where one of these features is on."""
    if missing := [name for name in names if name in problem.features.names]:
        raise ValueError(f"it has no {', '.join(missing)}")


def same_alignment(problem: Any) -> None:
    """Raise ValueError where a causal mask that is aligned top-left is another mask."""
    if problem.causal and problem.seq_q != problem.seq_k:
        raise ValueError("its causal mask is aligned top-left, this ladder's bottom-right, where S_q != S_k")


def unchanged(out: Any) -> Any:
    """An output that is [B, H, S, D] already."""
    return out


def _two_launches(problem: Problem, tensors: Tensors) -> Prepared:
    """The stage that `attention` chooses, which rounds to q's type."""
    refuse(problem, "cu_seqlens_q")
    given = problem.features
    options: dict[str, Any] = {
        name: tensors[name] for name in ("sinks", "alibi_slopes", "seqused_k") if name in tensors
    }
    options |= {"window": given.window, "softcap": given.softcap}
    q, k, v = (tensors[name] for name in "qkv")
    return (
        lambda: attention(q, k, v, causal=problem.causal, scale=problem.scale, **options),
        nullcontext,
        unchanged,
    )


def after_attention(problem: Problem, tensors: Tensors) -> Callable[[Any], Any]:
    """Norm and gate of what attention gives, [B, H, S_q, D_v], as Inductor makes one kernel of them."""
    import torch

    weight, gate, eps = tensors.get("norm_weight"), tensors.get("gate"), problem.features.norm_eps

    def after(x: Any) -> Any:
        type_, x = x.dtype, x.float()
        if weight is not None:
            columns = weight.float() if weight.ndim == 1 else weight.float()[:, None]
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * columns
        if gate is not None:
            x = x * torch.sigmoid(gate.float())
        return x.to(type_)

    return torch.compile(after, dynamic=False)


def _followed(function: Callable[[Problem, Tensors], Prepared]) -> Callable[[Problem, Tensors], Prepared]:
    """The peer, and where norm or gate follow attention, a second kernel for them."""

    def prepared(problem: Problem, tensors: Tensors) -> Prepared:
        given = problem.features
        if not given.epilogue:
            return function(problem, tensors)
        before = replace(problem, features=replace(given, norm_weight=None, norm_eps=0.0, gate=None))
        names = {*tensors} - {*given.epilogue}
        run, backend, to_house = function(before, {name: tensors[name] for name in names})
        after = after_attention(problem, tensors)

        @contextmanager
        def both() -> Iterator[None]:
            with compiles_each(), backend():
                yield

        return lambda: after(to_house(run())), both, unchanged

    return prepared


PEERS: dict[str, Callable[[Problem, Tensors], Prepared]] = {
    **{label: _followed(partial(_sdpa, label)) for label in SDPA},
    "FlexAttention": _followed(_flex),
    "FA4": _followed(_fa4),
    "FA3": _followed(_fa3),
    TWO_LAUNCHES: _followed(_two_launches),
}
"""Those of the forward pass. tensors: q, k, v and the arrays of the features, by name."""


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:160]}" if first else type(error).__name__
