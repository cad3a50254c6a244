"""The example that trains a small GPT, run as a command on a CPU."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"


@pytest.mark.long
def test_what_follows_a_byte_changes_none_of_its_logits():
    of = runpy.run_path(str(EXAMPLE))
    model = of["GPT"](of["TINY"], of["WAYS"]["FlashCore"])
    rows = torch.randint(256, (1, 24)).repeat(2, 1)
    rows[1, 16:] = (rows[1, 16:] + 1) % 256
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        one, other = model(rows)
    torch.testing.assert_close(one[:16], other[:16], atol=0, rtol=0)
    assert (one[16:] != other[16:]).any(1).all()


@pytest.mark.parametrize(
    "options, says",
    [
        (("--seed", "-1"), "argument --seed: -1: it must be 0 to 2^64 - 1"),
        (("--out", str(EXAMPLE)), f"argument --out: {EXAMPLE}: File exists, it must be a folder"),
    ],
)
def test_bad_options_are_named(options, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert says in capsys.readouterr().err


@pytest.mark.long
def test_both_losses_fall_and_agree(tmp_path):
    """Products in bfloat16 make the losses of a step differ, and each step adds to that."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "--tiny", "--out", str(tmp_path / "new")],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    record = json.loads((tmp_path / "new" / "train_gpt.json").read_text())
    mine, theirs = (record["runs"][name] for name in ("FlashCore", "SDPA"))
    for name, run in record["runs"].items():
        assert sum(run["loss"][-3:]) / 3 < run["loss"][0] - 1
        assert f"{name}  {run['tokens_per_second']:,.0f} tokens per second" in ran.stdout
    differences = [abs(a - b) for a, b in zip(mine["loss"], theirs["loss"], strict=True)]
    assert 0 < max(differences) < 5e-3  # none at all would be the same attention twice
    assert f"losses differ by {max(differences):.4f} at most" in ran.stdout
    assert (tmp_path / "new" / "train_gpt.png").read_bytes().startswith(b"\x89PNG")
