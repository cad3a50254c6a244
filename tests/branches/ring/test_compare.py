"""`flashcore ring`: what it refuses, what it starts, and the artifact of times that somebody else made up."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from flashcore_numba import cli
from flashcore_numba.branches.backward import oracle as gradient_oracle
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.ring import compare
from flashcore_numba.branches.ring.call import RingAttention
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.cli import ring
from flashcore_numba.core import gpu, oracle
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.records import artifact, layout

GPU: dict[str, Any] = {
    "name": "NVIDIA H100", "compute_capability": [9, 0], "sm_count": 132, "max_sm_mhz": 1980.0,
    "bandwidth_gbs": 3352.0, "l2_bytes": 52428800, "memory_bytes": 85899345920, "driver": None,
    "driver_cuda": "13.0", "cuda": "13.0",
}  # fmt: skip
RIGHT = {"right": True, "max": 1e-3, "mean": 1e-5, "relative": 1e-3}


def made_up(right: bool = True) -> dict[str, Any]:
    times = {
        "pull": [[80.0], [90.0]],
        compare.ONE_GPU: [[30.0], [32.0]],
        "torch allgather": [[170.0], [180.0]],
    }
    kinds = {"pull": "stage", compare.ONE_GPU: "stage", "torch allgather": "peer"}
    errors = dict.fromkeys(times, RIGHT) | {"pull": RIGHT | {"right": right}}
    shape = compare.of_shape(parse_any("1x8/2x1024x64"), True, times, kinds, errors, {"torch alltoall": "no"})
    return compare.record([shape], GPU, {"gpus": 2, "peer_access": True}, 5, 7)


def made_up_backward() -> dict[str, Any]:
    both = compare.WITH_FORWARD
    us = {
        "pull": 200.0, "pull" + both: 280.0, compare.ONE_GPU: 90.0, compare.ONE_GPU + both: 126.0,
        "torch allgather" + both: 420.0,
    }  # fmt: skip
    times = {label: [[each], [each]] for label, each in us.items()}
    kinds = {label: "peer" if label.startswith("torch") else "stage" for label in us}
    errors = dict.fromkeys(us, RIGHT)
    shape = compare.of_shape(parse_any("1x8/2x1024x64"), True, times, kinds, errors, {"ring": "no"}, True)
    return compare.record([shape], GPU, {"gpus": 2, "peer_access": True}, 5, 7, backward=True)


def test_the_artifact_follows_the_schema(tmp_path: Path) -> None:
    record = made_up()
    assert artifact.file_name(record) == "nvidia-h100-ring-gpus-2-causal.json"
    artifact.save(record, tmp_path / "a.json")
    (shape,) = artifact.load(tmp_path / "a.json")["shapes"]
    assert shape["flops"] == 4 * 8 * 64 * 1024 * 1025 // 2
    assert shape["entries"][0]["speed_up"]["best_peer"] == pytest.approx(175 / 85, rel=1e-4)
    with pytest.raises(artifact.ArtifactError, match=r"topology\.gpus"):
        artifact.validate(record | {"topology": {"gpus": 1, "peer_access": True}})


def test_an_artifact_of_the_backward_pass(tmp_path: Path) -> None:
    """Its operation says so, its flops are those of five products, and peers are beside what they do."""
    record = made_up_backward()
    assert record["operation"] == "ring_backward"
    assert artifact.file_name(record) == "nvidia-h100-ring-backward-gpus-2-causal.json"
    artifact.save(record, tmp_path / "a.json")
    (shape,) = artifact.load(tmp_path / "a.json")["shapes"]
    assert shape["flops"] == 10 * 8 * 64 * 1024 * 1025 // 2
    ratios = {entry["label"]: entry["speed_up"]["best_peer"] for entry in shape["entries"]}
    assert ratios["pull"] is None and ratios[compare.ONE_GPU] is None
    assert ratios["pull, with forward"] == pytest.approx(1.5)


def run_as_if(
    monkeypatch: pytest.MonkeyPatch, gpus: int, record: dict[str, Any], peers: Any = "no graphs"
) -> list[list[str]]:
    """`flashcore ring` where so many GPUs are, and the processes write these records.

    peers: what those of PyTorch's graphs write, or why they do not.
    """
    started: list[list[str]] = []

    def ended(words: list[str], limit: float) -> str | None:
        started.append(words)
        if "--captured-peers" in words and not isinstance(peers, dict):
            return peers
        file = Path(words[words.index(ring.MODULE) + 1])
        if "--captured-peers" in words:
            layout.save(peers, file)
        else:
            artifact.save(record, file)
        return None

    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(gpu, "device_count", lambda: gpus)
    monkeypatch.setattr(ring, "ended", ended)
    return started


def test_a_process_per_gpu_and_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    started = run_as_if(monkeypatch, 2, made_up())
    assert cli.main(["ring", "--gpus", "2", "--shape", "1x8/2x1024x64", "--save", str(tmp_path)]) == 0
    command, of_peers = started
    assert of_peers[-1] == "--captured-peers" and "--captured-peers" not in command
    assert "--nproc-per-node=2" in command and "--causal" in command
    assert command[command.index("--shape") + 1] == "1x8/2x1024x64"
    told = capsys.readouterr().out
    assert "73 %" in told and "2.06" in told and "torch alltoall" in told  # 2 x 31 / 85, 175 / 85
    assert artifact.load(tmp_path / "nvidia-h100-ring-gpus-2-causal.json")["topology"]["gpus"] == 2


def test_graphs_of_peers_are_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of processes of their own; they are peers like the others."""
    peers, label = made_up(), "torch allgather, captured"
    (shape,) = peers["shapes"]
    shape["entries"] = [entry | {"label": label} for entry in shape["entries"] if entry["kind"] == "peer"]
    shape["absent"] = {"torch alltoall, captured": "it cannot be"}
    artifact.derive(shape)
    run_as_if(monkeypatch, 2, made_up(), peers)
    assert cli.main(["ring", "--save", str(tmp_path)]) == 0
    (found,) = artifact.load(tmp_path / "nvidia-h100-ring-gpus-2-causal.json")["shapes"]
    assert [entry["label"] for entry in found["entries"]][-1] == label
    assert found["absent"]["torch alltoall, captured"] == "it cannot be"


def test_a_shape_without_graphs_has_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With 3 GPUs, where PyTorch's load balance does not take the rows."""
    absent = dict.fromkeys(compare.CAPTURED_PEERS, "ValueError: its load balance takes other lengths")
    shape = compare.of_shape(parse_any("1x8/2x1024x64"), True, {}, {}, {}, absent)
    run_as_if(monkeypatch, 3, made_up(), {"shapes": [shape]})
    assert cli.main(["ring", "--gpus", "3", "--save", str(tmp_path)]) == 0
    (found,) = artifact.load(tmp_path / "nvidia-h100-ring-gpus-2-causal.json")["shapes"]
    assert found["absent"].items() >= absent.items() and found["entries"]


def test_what_one_rank_raises_alone_ends_the_run(rng: np.random.Generator, one_rank: None) -> None:
    """The others wait for it; what follows from the call is a reason on all ranks."""
    arrays = [torch.from_numpy(rng.standard_normal((1, 2, 12, 16)).astype(np.float32)) for _ in range(3)]
    of_ring = RingAttention.__call__

    def entries(error: Exception) -> dict[str, str]:
        def call(self: RingAttention, *given: Any, **how: Any) -> Any:
            if self.way == "ring":
                raise error
            return of_ring(self, *given, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RingAttention, "__call__", call)
            patch.setattr(compare, "attention", partial(in_float32, return_lse=True))
            return compare._entries(*arrays, True, ExitStack(), ["ring", "ulysses"])[1]

    for error in (UnsupportedError("ring: no"), RuntimeError("No available kernel"), ImportError("no cuDNN")):
        assert entries(error) == {"ring": f"{type(error).__name__}: {error}"}
    for alone in (torch.OutOfMemoryError("2 GiB"), dist.DistBackendError("a link"), MemoryError("host")):
        with pytest.raises(type(alone)):
            entries(alone)


def test_graphs_that_hang_have_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_as_if(monkeypatch, 2, made_up(), "torchrun did not end within 120 s")
    assert cli.main(["ring", "--save", str(tmp_path)]) == 0
    (found,) = artifact.load(tmp_path / "nvidia-h100-ring-gpus-2-causal.json")["shapes"]
    assert found["absent"]["torch allgather, captured"] == "torchrun did not end within 120 s"


def test_one_way_alone_has_no_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = run_as_if(monkeypatch, 2, made_up())
    assert cli.main(["ring", "--way", "pull"]) == 0
    (command,) = started
    assert command[command.index("--way") + 1] == "pull"
    assert cli.main(["ring", "--way", "push"]) == 2
    assert "--way push: accepted are gated, gather" in capsys.readouterr().err


def test_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    started = run_as_if(monkeypatch, 2, made_up_backward())
    assert cli.main(["ring", "--backward", "--shape", "1x8/2x1024x64", "--save", str(tmp_path)]) == 0
    (command,) = started  # graphs of PyTorch's backward pass are not timed
    assert "--backward" in command and "--causal" in command
    told = " ".join(capsys.readouterr().out.split())
    assert "backward, 1x8/2x1024x64, causal on 2 x" in told
    rate = 10 * 8 * 64 * 1024 * 1025 / 2 / 200 / 2 / 1e6
    assert f"pull │ 200.0 │ {rate:.0f} │ 90 % │ - │" in told
    assert f"pull, with forward │ 280.0 │ {rate * 1.4 * 200 / 280:.0f} │ 90 % │ 1.50 │" in told
    assert [*tmp_path.iterdir()] == [tmp_path / "nvidia-h100-ring-backward-gpus-2-causal.json"]
    assert cli.main(["ring", "--backward", "--way", "gather"]) == 2
    assert "--way gather: accepted are pull, ring, ulysses with --backward" in capsys.readouterr().err


def test_a_run_that_does_not_end_is_stopped() -> None:
    assert ring.ended([sys.executable, "-c", "pass"], 60) is None
    assert ring.ended([sys.executable, "-c", "raise SystemExit(3)"], 60) == "torchrun ended with status 3"
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert ring.ended(waits, 0.3) == "torchrun did not end within 0.3 s"


def test_a_wrong_result_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_as_if(monkeypatch, 4, made_up(right=False))
    assert cli.main(["ring", "--full"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, status, told",
    [
        (["--gpus", "4"], 1, "--gpus 4: this machine has 2; flashcore check ring needs no GPU"),
        (["--gpus", "1"], 2, "--gpus 1: at least 2 are needed; flashcore compare times one"),
        (["--shape", "1x8x3x64"], 2, "--shape 1x8x3x64: 2 GPUs need at least 4 rows"),
        (["--shape", "4x8x128-256x64"], 2, "sequences of one length are accepted"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_as_if(monkeypatch, 2, made_up())
    assert cli.main(["ring", *arguments]) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--way", "push"], "--way push: accepted are gated, gather"),
        (["--shape", "1x1"], "shape '1x1': accepted are"),
        (["--shape", "1x8x3x64"], "--shape 1x8x3x64: 2 GPUs need at least 4 rows"),
        (["--timeline", "--way", "pull", "--way", "ring"], "--timeline: one --way and one --shape"),
    ],
)
def test_a_bad_argument_is_told_before_a_lacking_gpu(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "available", lambda: False)
    assert cli.main(["ring", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_without_a_gpu_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver")
    assert cli.main(["ring", "--gpus", "2", "--json"]) == 1
    assert capsys.readouterr().err == (
        "flashcore ring: --gpus 2: no NVIDIA driver; flashcore check ring needs no GPU\n"
    )


def test_errors_of_sampled_rows(rng: np.random.Generator) -> None:
    """A rank's rows of the whole sequence; one wrong row of those sampled is seen."""
    q, k, v = (torch.from_numpy(rng.standard_normal((1, h, 12, 16))).half() for h in (2, 1, 1))
    right = oracle.attention(q.numpy(), k.numpy(), v.numpy(), True)[0]
    rows = np.arange(8, 12)
    out = torch.from_numpy(right[:, :, rows]).half()
    found = compare.sampled_error(out, (q, k, v), rows, True, [1])
    assert found["right"] and 0 < found["max"] < 1e-2 and json.dumps(found)
    out[0, 1, 2, 3] += 0.1
    assert not compare.sampled_error(out, (q, k, v), rows, True, [1])["right"]
    assert not compare.sampled_error(out, (q, k, v), rows - 1, True, [1])["right"]


@pytest.mark.parametrize("causal", [True, False])
def test_errors_of_sampled_gradients(rng: np.random.Generator, causal: bool) -> None:
    """Right ones of the rank's rows pass; one wrong row of each gradient does not, nor do other rows."""
    arrays = [rng.standard_normal((2, h, 12, 16)).astype(np.float16) for h in (4, 2, 2)]
    x = backward_inputs(Inputs(*arrays, causal), rng)
    rows = np.arange(4, 9)
    exact = [each[:, :, rows] for each in gradient_oracle.gradients(x)]
    whole = [torch.from_numpy(each) for each in (*arrays, x.dout)]
    right = [torch.from_numpy(each).half() for each in exact]
    found = compare.sampled_gradient_error(right, whole, rows, causal, [3])
    assert found["right"] and 0 < found["mean"] < found["max"] < 1e-2 and json.dumps(found)
    for i in range(3):
        wrong = [each.clone() for each in right]
        wrong[i][:, :, 2] += 0.1
        assert not compare.sampled_gradient_error(wrong, whole, rows, causal, [3])["right"]
    swapped = [right[0], right[2], right[1]]
    assert not compare.sampled_gradient_error(swapped, whole, rows, causal, [3])["right"]
    assert not compare.sampled_gradient_error(right, whole, rows - 1, causal, [3])["right"]


@pytest.mark.parametrize("causal", [True, False])
def test_the_output_in_float64(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    monkeypatch.setattr(compare, "REFERENCE_ROWS", 5)
    q, k, v = (torch.from_numpy(rng.standard_normal((2, h, 12, 16))) for h in (3, 1, 1))
    right = oracle.attention(q.numpy(), k.numpy(), v.numpy(), causal)
    for found, wanted in zip(compare._exact_output(q, k, v, causal), right, strict=True):
        assert np.allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def in_float32(q: Any, k: Any, v: Any, *, causal: bool, return_lse: bool) -> Any:
    """`attention` by NumPy."""
    assert return_lse
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    arrays = [each.numpy() for each in (q, k, v, out, lse)]
    Float32().attend(tuple(arrays[:3]), tuple(arrays[3:]), causal=causal, scale=None)
    return out, lse


def gradients_in_float32(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool) -> Any:
    made = [torch.zeros_like(each) for each in (q, k, v)]
    reads = tuple(each.numpy() for each in (q, k, v, out, lse, dout, made[0]))
    Float32().backward(reads, tuple(each.numpy() for each in made), causal=causal, scale=None)
    return tuple(made)


@pytest.mark.usefixtures("one_rank")
def test_what_is_timed_backward(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way and one GPU twice, PyTorch's with its forward pass; what cannot be has its reason."""
    monkeypatch.setattr(compare, "attention", in_float32)
    monkeypatch.setattr(compare, "attention_backward", gradients_in_float32)
    of_torch: list[str] = []
    shards = lambda arrays, causal, stack: [each.clone() for each in arrays]  # noqa: E731
    monkeypatch.setattr(compare, "_rows_in_parallel", shards)
    monkeypatch.setattr("torch.distributed.tensor.experimental._attention.set_rotate_method", of_torch.append)
    q, k, v, dout = (
        torch.from_numpy(rng.standard_normal((1, h, 12, 16)).astype(np.float32)) for h in (4, 2, 2, 4)
    )
    entries, absent = compare._backward_entries(q, k, v, dout, True, ExitStack())
    both = compare.WITH_FORWARD
    mine = [label + end for label in ("ring", "ulysses", compare.ONE_GPU) for end in ("", both)]
    assert [each.label for each in entries] == [*mine, f"torch allgather{both}", f"torch alltoall{both}"]
    assert [each.kind for each in entries] == ["stage"] * 6 + ["peer"] * 2
    assert of_torch == ["allgather", "alltoall"]
    assert set(absent) == {"pull", f"pull{both}"} and "need GPUs" in absent["pull"]
    for each in entries:
        each.call()
        assert np.array_equal(each.rows, even(12, 1).indices(0))
        found = compare.sampled_gradient_error(each.value(), each.whole, each.rows, True, [1])
        assert found["right"], (each.label, found)
    only, _ = compare._backward_entries(q, k, v, dout, True, ExitStack(), ["ring"])
    assert [each.label for each in only] == ["ring", f"ring{both}", compare.ONE_GPU, compare.ONE_GPU + both]


@pytest.mark.usefixtures("one_rank")
def test_a_backward_pass_alone_has_no_forward_pass(rng: np.random.Generator) -> None:
    """Forward runs once before, or with every call."""
    counts = [0, 0]

    def forward(*_: Any, causal: bool) -> Any:
        counts[0] += 1
        return "out", "lse"

    def backward(*arguments: Any, causal: bool) -> Any:
        counts[1] += 1
        assert arguments == ("dout", "q", "k", "v", "out", "lse")

    own = ("q", "k", "v", "dout")
    alone = compare._backward_alone(forward, backward, own, True)
    for _ in range(3):
        alone()
    assert counts == [1, 3]
    for _ in range(3):
        compare._forward_and_backward(forward, backward, own, True)
    assert counts == [4, 6]


@pytest.mark.parametrize(
    "causal, length, told", [(False, 12, "takes no full mask"), (True, 13, "takes lengths that 2 divides")]
)
@pytest.mark.usefixtures("one_rank")
def test_what_context_parallelism_does_not_take(causal: bool, length: int, told: str) -> None:
    x = torch.zeros(1, 2, length, 16)
    peers = compare._backward_peers(x, x, x, x, causal, ExitStack())
    for make in peers.values():
        with pytest.raises(ValueError, match=told):
            make()


def test_turns_and_values_of_what_is_timed() -> None:
    count = iter(range(9))
    call, value = compare._kept(lambda: next(count))
    assert value() == 0
    call()
    assert value() == 1
    assert compare._reason(ValueError("one\ntwo")) == "ValueError: one"
    assert compare._first(lambda x, causal: (x, causal), 3, causal=True) == 3


def test_cudnn_for_ulysses_is_attention(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU by another back end; arguments and heads are the same."""
    from torch.nn.attention import SDPBackend

    monkeypatch.setattr(SDPBackend, "CUDNN_ATTENTION", SDPBackend.MATH, raising=False)
    q, k, v = (torch.from_numpy(rng.standard_normal((1, h, 6, 16)).astype(np.float32)) for h in (4, 2, 2))
    out, right, lse = torch.empty_like(q), np.empty(q.shape, np.float32), np.empty(q.shape[:3], np.float32)
    compare.CuDnn().attend((q, k, v), (out, None), causal=True, scale=None)
    arrays = tuple(each.numpy() for each in (q, k, v))
    Float32().attend(arrays, (right, lse), causal=True, scale=None)
    assert np.allclose(out.numpy(), right, atol=1e-5)
