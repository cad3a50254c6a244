"""`RingAttention`: its arguments, and ranks that are processes."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cuda_reference.extras import MissingPackageError
from flashcore_numba.branches.ring import processes as of_package
from flashcore_numba.branches.ring import programs
from flashcore_numba.branches.ring.call import RingAttention
from flashcore_numba.branches.ring.processes import ProcessRank
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.core.errors import ArgumentError, UnsupportedError

from .processes import BY_A_STAGE, call_a_stage, run


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


@pytest.mark.long
def test_a_stage_refuses_on_one_rank(tmp_path: Path) -> None:
    """What its stage says of its arguments, a rank hears before any has begun, and all raise."""
    first, last = (each["refused_by_a_stage"] for each in run(2, tmp_path, 0, "refused_by_a_stage"))
    for here, there, (_, _, told) in zip(first, last, BY_A_STAGE, strict=True):
        assert re.match(f"(Argument|Unsupported)Error: {told}", there), there
        assert here.startswith(f"ArgumentError: rank 1 refuses its arguments, and no rank begins: {told}")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why one rank refused, call by call; empty where it did not."""
    found: list[str] = []
    told = ProcessRank._told
    monkeypatch.setattr(
        ProcessRank, "_told", lambda rank, call, why: found.append(why) or told(rank, call, why)
    )
    return found


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

    def test_decoding_warns_of_nothing(self, rng: np.random.Generator) -> None:
        q = torch.from_numpy(rng.standard_normal((1, 2, 9, 16)).astype(np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out, _ = RingAttention(9, way="ring").decode(q, q, q)
        assert torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, q, q), atol=1e-5)

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
            (lambda q: RingAttention(9, way=np.array(["ring", "pull"])), r"way is array\(.*accepted are"),
            (lambda q: RingAttention(9, group=0), "group is 0: it must be a process group"),
            (
                lambda q: RingAttention(9, group=dist.GroupMember.NON_GROUP_MEMBER),
                "group is -100: it must be a process group of torch.distributed with this process in it",
            ),
            (lambda q: RingAttention(-(10**5000)), "length is an integer of 5001 digits: 1 ranks need"),
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

    @pytest.mark.parametrize(
        "method, otherwise, told",
        [
            *BY_A_STAGE,
            ("call", {"q": "reversed"}, "q has strides"),
            ("call", {"q": "fortran", "stage": None}, "q has strides"),
            ("call", {"way": "ulysses", "stage": 1}, "stage 01 scalar does not return the LSE"),
            ("call", {"dim": 32, "stage": 5}, "stage 05 online_softmax does not serve head dimension 32"),
            ("backward", {"q": "fortran", "backward_stage": None}, "q has strides"),
            ("backward", {"out": "fortran"}, "out has strides"),
            ("backward", {"dout": "reversed"}, "dout has strides"),
            ("backward", {"dim": 32}, "stage backward/mma_sync does not serve head dimension 32"),
            ("backward", {"dim": 32, "backward_stage": None}, "no stage of the ladder serves"),
            ("backward", {"backward_stage": "none"}, "stage 'none' is not in the ladder"),
            ("decode", {"q": "fortran"}, "q has strides"),
            ("decode", {"v": "reversed"}, "v has strides"),
        ],
    )
    def test_what_a_stage_refuses_is_refused_before_ranks_begin(
        self, said: list[str], method: str, otherwise: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(ArgumentError, match=told) as raised:
            call_a_stage(method, **otherwise)
        assert said == [str(raised.value)]

    def test_stages_that_do_not_merge_are_too_few_for_parts(
        self, said: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a compiler: stage 5 does for a call of one rank, but parts are written in float32."""
        monkeypatch.setattr("cuda_reference.cpu.why_not", lambda: "no compiler was found")
        for way in ("ring", "ulysses"):
            call_a_stage("call", stage=None, way=way)
        with pytest.raises(UnsupportedError, match="no stage"):
            call_a_stage("decode", stage=None)
        assert ["no stage" in each for each in said] == [False, False, True]

    @pytest.mark.parametrize(
        "method, otherwise",
        [
            ("call", {"k": "fortran", "v": "reversed"}),
            ("call", {"way": "ulysses", "q": "fortran", "k": "reversed"}),
            ("backward", {"k": "reversed", "v": "fortran"}),
            ("backward", {"way": "ulysses", **dict.fromkeys(("q", "v", "dout", "out", "lse"), "fortran")}),
        ],
    )
    def test_what_programs_pack_is_not_refused(
        self, said: list[str], monkeypatch: pytest.MonkeyPatch, method: str, otherwise: dict[str, Any]
    ) -> None:
        for ways in (programs.FORWARD, programs.BACKWARD):
            monkeypatch.setitem(ways, otherwise.get("way", "ring"), lambda *arguments: None)
        call_a_stage(method, **otherwise)
        assert said == [""]

    @pytest.mark.long
    @pytest.mark.parametrize("way, free", [("ring", "kv"), ("ulysses", "qkv")])
    def test_what_programs_pack_has_any_layout(
        self, rng: np.random.Generator, said: list[str], way: str, free: str
    ) -> None:
        q, k, v, dout = rng.standard_normal((4, 1, 1, 8, 64)).astype(np.float16)
        attention = RingAttention(8, way=way, stage=5, backward_stage="backward/recompute")
        found = []
        for layout in ("C", "F"):
            arrays = {
                name: np.asarray(x, order=layout if name in free else "C")
                for name, x in (("q", q), ("k", k), ("v", v))
            }
            out, lse = attention(**arrays)
            more = {"dout": dout, "out": out, "lse": lse}
            if "q" in free:
                more = {name: np.asarray(x, order=layout) for name, x in more.items()}
            found.append((out, lse, *attention.backward(**arrays, **more)))
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True)) and not any(said)

    def test_no_stage_sees_keys_of_a_rank_without_any(
        self, said: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(programs, "decode", lambda *arguments: None)
        q = np.zeros((1, 2, 3, 64), np.float16)
        k = np.asfortranarray(q)[:, :, :0]
        RingAttention(9, way="ring", stage=12).decode(q, k, k)
        assert said == [""]


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
