"""`RingAttention`: its arguments, and ranks that are processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cuda_reference.extras import MissingPackageError
from flashcore_numba.branches.ring import processes as of_package
from flashcore_numba.branches.ring.call import RingAttention
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.core.errors import ArgumentError, UnsupportedError

from .processes import run


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers(each)
    else:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_are_processes(ranks: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """Forward, backward and decoding by gloo, and the GPU's rank on stand-ins: within bounds. Where one rank
    is called otherwise, all refuse.
    """
    work = ("forward", "backward", "decode", "refused", "pulled")
    found = run(ranks, tmp_path, int(rng.integers(2**31)), *work)
    for each in found:
        assert set(each) == {*work} and min(numbers(each)) > 1, each
    assert sum(1 for each in found for _ in numbers(each)) == ranks * (24 + 12 + 2 + 11 + 82)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
class TestOneRank:
    def test_one_rank_needs_no_peer(self, rng: np.random.Generator) -> None:
        q, k, v, dout = (
            torch.from_numpy(rng.standard_normal((1, 2, 9, 16)).astype(np.float32)) for _ in range(4)
        )
        for way in ("ring", "ulysses"):
            attention = RingAttention(9, way=way)
            assert attention.rows == 9
            out, lse = attention(q, k, v, causal=True)
            right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            assert torch.allclose(out, right, atol=1e-5)
        given = [each.clone().requires_grad_() for each in (q, k, v)]
        torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True).backward(dout)
        for way in ("ring", "ulysses", "gather"):
            gradients = RingAttention(9, way=way).backward(dout, q, k, v, out, lse, causal=True)
            for found, each in zip(gradients, given, strict=True):
                assert torch.allclose(found, each.grad, atol=1e-4)
        with pytest.raises(UnsupportedError, match=r"way='pull', .* need GPUs"):
            RingAttention(9).backward(dout, q, k, v, out, lse)

    def test_numpy_gives_numpy(self, rng: np.random.Generator) -> None:
        q = rng.standard_normal((1, 2, 9, 16)).astype(np.float16)
        out, lse = RingAttention(9, way="ring")(q, q, q, scale=0.5)
        assert isinstance(out, np.ndarray) and out.dtype == np.float16 and lse.dtype == np.float32

    @pytest.mark.parametrize(
        "call, told",
        [
            (
                lambda q: RingAttention(9, way="push"),
                "way is 'push': accepted are gated, gather, pull, ring, ulysses",
            ),
            (lambda q: RingAttention(9.0), "length is 9.0: a whole number of rows or a Split"),
            (lambda q: RingAttention(1), "length is 1: 1 ranks need at least 2 rows"),
            (lambda q: RingAttention(even(9, 2)), "a split for 2 ranks: the group has 1"),
            (lambda q: RingAttention(10, way="ring")(q, q, q), r"rank 0 holds 10 rows of the sequence"),
            (
                lambda q: RingAttention(9, way="ring")(q, q[:, :, :4], q),
                r"k has shape \(1, 2, 4, 16\): \[1, H_kv",
            ),
            (lambda q: RingAttention(9, way="ring")(q, q, q[:, :1]), "v is .* must be equal"),
            (lambda q: RingAttention(9, way="ring")(q, q.half(), q.half()), "k is torch.float16"),
            (
                lambda q: RingAttention(9, way="ring").backward(q[:, :1], q, q, q, q, q[..., 0]),
                r"dout has shape \(1, 1, 9, 16\): \(1, 2, 9, 16\) is needed",
            ),
            (
                lambda q: RingAttention(9, way="ring").backward(q, q, q, q, q, q),
                r"lse has shape \(1, 2, 9, 16\): \(1, 2, 9\) is needed",
            ),
            (
                lambda q: RingAttention(9, way="ring")(q, q, q, causal=[True]),
                r"causal is \[True\]: it must be True or",
            ),
            (lambda q: RingAttention(9, way=["ring"]), r"way is \['ring'\]: accepted are"),
            (lambda q: RingAttention(9, way="ring")(q, None, q), "k is of type NoneType"),
            (
                lambda q: RingAttention(9, way="ring")(q, q.numpy(), q),
                "k is NumPy on the host but q is PyTorch",
            ),
            (
                lambda q: RingAttention(9, way="ring")(q.int(), q.int(), q.int()),
                "q is torch.int32: accepted are",
            ),
            (lambda q: RingAttention(9, way="ring")(q[:0], q[:0], q[:0]), r"q has shape \(0, 2, 9, 16\)"),
            (lambda q: RingAttention(9, way="ring")(q, q, q, scale=float("nan")), "scale is nan"),
            (
                lambda q: RingAttention(9, way="ring").backward(q.half(), q, q, q, q, q[..., 0]),
                "dout is torch.float16: float32 is needed",
            ),
            (
                lambda q: RingAttention(9, way="ring").backward(q, q, q, q, q, q[..., 0].half()),
                "lse is torch.float16: float32 is needed",
            ),
            (
                lambda q: RingAttention(9, way="ring").decode(q, q[..., :8], q[..., :8]),
                r"k has shape \(1, 2, 9, 8\): \[1, H_kv, keys, 16\] is needed",
            ),
            (
                lambda q: RingAttention(9, way="ring").decode(q, q, q[:, :, :4]),
                "v is .* k and v must be equal",
            ),
            (lambda q: RingAttention(9)(q, q, q), "way='gather' and way='gated' need GPUs"),
            (
                lambda q: RingAttention(9).captured(q, q, q),
                "only way='gated', way='gather', way='pull' on GPUs can be captured",
            ),
            (
                lambda q: RingAttention(9, way="ring").decode(q, q[:, :, :4], q[:, :, :4], causal=True),
                "holds 4 keys: with causal=True it must hold those of all 9 tokens",
            ),
            (  # although it has no keys and launches nothing, while its peers would wait for it
                lambda q: RingAttention(9, way="ring", stage=12).decode(q, q[:, :, :0], q[:, :, :0]),
                "q has dtype float32",
            ),
            (
                lambda q: RingAttention(9, way="ring", stage=12).decode(
                    *[q[:, :, :n].half() for n in (9, 0, 0)]
                ),
                "head dimension 16",
            ),
        ],
    )
    def test_what_is_refused(self, call: Callable[[torch.Tensor], Any], told: str) -> None:
        with pytest.raises(ArgumentError, match=told):
            call(torch.zeros(1, 2, 9, 16))


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group has not been called"):
        RingAttention(8)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(MissingPackageError, match=r"torch is not installed: pip install .*\[torch\]"):
        RingAttention(8)


def test_bytes_are_those_of_the_array() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    of_package._bytes(array)[:4] = torch.zeros(4, dtype=torch.uint8)
    of_package._bytes(array)[4:8] = torch.zeros(4, dtype=torch.uint8)
    assert array.tolist() == [[0, 0, 2], [3, 4, 5]]
