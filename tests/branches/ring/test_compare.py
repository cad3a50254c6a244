"""`flashcore ring`: what it refuses, what it starts, and the artifact of times that somebody else made up."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashcore_numba import cli
from flashcore_numba.branches.ring import compare
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.cli import ring
from flashcore_numba.core import gpu, oracle
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.records import artifact

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


def test_the_artifact_follows_the_schema(tmp_path: Path) -> None:
    record = made_up()
    assert artifact.file_name(record) == "nvidia-h100-ring-gpus-2-causal.json"
    artifact.save(record, tmp_path / "a.json")
    (shape,) = artifact.load(tmp_path / "a.json")["shapes"]
    assert shape["flops"] == 4 * 8 * 64 * 1024 * 1025 // 2
    assert shape["entries"][0]["speed_up"]["best_peer"] == pytest.approx(175 / 85, rel=1e-4)
    with pytest.raises(artifact.ArtifactError, match=r"topology\.gpus"):
        artifact.validate(record | {"topology": {"gpus": 1, "peer_access": True}})


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
        made = peers if "--captured-peers" in words else record
        artifact.save(made, Path(words[words.index(ring.MODULE) + 1]))
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
