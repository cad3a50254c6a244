"""The peers: attention kernels of other libraries, timed beside the stages on the same arrays.

Each is optional. What is not installed, or refuses the problem, is reported with its reason and not timed.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np

from cuda_reference.extras import install
from flashcore_numba.core.output import OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.measure.entries import Flush

SDPA = {  # label -> member of torch.nn.attention.SDPBackend
    "SDPA flash": "FLASH_ATTENTION",
    "SDPA cuDNN": "CUDNN_ATTENTION",
    "SDPA efficient": "EFFICIENT_ATTENTION",
    "SDPA math": "MATH",
}
LABELS = (*SDPA, "FlexAttention", "FA4")


def prepare(
    problem: Problem, stream: Any, on_peer: Callable[[str], None] = lambda label: None
) -> tuple[list["PeerEntry"], dict[str, str]]:
    """The peers that serve `problem` (CuPy arrays), warmed up; and why the others do not (label: reason)."""
    try:
        import torch
    except ImportError as error:
        return [], dict.fromkeys(LABELS, f"PyTorch is not installed ({error}): {install('peers')}")
    if not torch.cuda.is_available():
        return [], dict.fromkeys(LABELS, f"this PyTorch ({torch.__version__}) does not see the GPU")
    with stream:
        tensors = [torch.from_dlpack(x) for x in (problem.q, problem.k, problem.v)]
    found, absent = [], {}
    for label in LABELS:
        on_peer(label)
        try:
            found.append(PeerEntry(label, stream, *_function(label, problem, tensors)))
        except Exception as error:  # whatever another library raises: the peer is left out with its reason
            absent[label] = _reason(error)
    return found, absent


class PeerEntry:
    """A peer's function of no arguments, timed on one CuPy stream; satisfies `timing.Entry`."""

    kind = "peer"
    launches, launch_us = 1, 0.0

    def __init__(
        self,
        label: str,
        stream: Any,
        function: Callable[[], Any],
        backend: Callable[[], AbstractContextManager],
        to_house: Callable[[Any], Any],
    ) -> None:
        import torch

        self.label, self.function, self.backend, self.to_house = label, function, backend, to_house
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
            for out in (self.replayed, self.called):
                out.fill_(float("nan"))

    def outputs(self) -> list[dict[str, np.ndarray]]:
        self.stream.synchronize()
        return [{OUT.name: self.to_house(out).float().cpu().numpy()} for out in (self.replayed, self.called)]


def _function(
    label: str, problem: Problem, tensors: list[Any]
) -> tuple[Callable[[], Any], Callable[[], AbstractContextManager], Callable[[Any], Any]]:
    """(function of no arguments, context manager that selects it, its output as [B, H, S_q, D])."""
    import torch

    q, k, v = tensors
    grouped = problem.heads != problem.kv_heads
    if label in SDPA:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        _same_alignment(problem)
        scores = 4 * problem.batch * problem.heads * problem.seq_q * problem.seq_k
        memory = torch.cuda.get_device_properties(q.device).total_memory
        if label == "SDPA math" and scores > memory / 10:  # it makes several copies of them
            raise ValueError(
                f"it writes out scores of {scores / 1e9:.0f} GB, more than a tenth of the memory"
            )
        sdpa = torch.nn.functional.scaled_dot_product_attention

        def run_sdpa() -> Any:
            return sdpa(q, k, v, is_causal=problem.causal, scale=problem.scale, enable_gqa=grouped)

        return run_sdpa, lambda: sdpa_kernel(getattr(SDPBackend, SDPA[label])), _unchanged
    if label == "FlexAttention":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = None
        if problem.causal:
            shift = problem.mask.shift
            mask = create_block_mask(
                lambda b, h, row, key: key <= row + shift,
                None,
                None,
                problem.seq_q,
                problem.seq_k,
                device=q.device,
            )
        compiled = torch.compile(flex_attention, dynamic=False)

        def run_flex() -> Any:
            return compiled(q, k, v, block_mask=mask, scale=problem.scale, enable_gqa=grouped)

        return run_flex, nullcontext, _unchanged
    from flash_attn.cute.interface import flash_attn_func

    tokens = [x.transpose(1, 2) for x in tensors]  # FA4 takes [B, S, H, D]

    def run_fa4() -> Any:
        out = flash_attn_func(*tokens, causal=problem.causal, softmax_scale=problem.scale)
        return out[0] if isinstance(out, tuple) else out

    return run_fa4, nullcontext, lambda out: out.transpose(1, 2)


def _same_alignment(problem: Problem) -> None:
    if problem.causal and problem.seq_q != problem.seq_k:
        raise ValueError("its causal mask is aligned top-left, this ladder's bottom-right, where S_q != S_k")


def _unchanged(out: Any) -> Any:
    return out


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:160]}" if first else type(error).__name__
