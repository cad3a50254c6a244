"""The programs of examples/, as commands."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import few

GENERATE = Path(__file__).resolve().parents[2] / "examples" / "generate_llama.py"


def called(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(GENERATE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--static", "--batch", "1")])
def test_a_llama_writes_the_same_with_both(options):
    done = called("--new", "4", *options)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.endswith("prompts of 12 tokens, 4 new ones each, cpu")
    assert [line.partition(":")[0] for line in rest] == ["fcore", "sdpa", "equal tokens"]
    assert all(float(line.split()[1]) > 0 and line.endswith("tokens per second") for line in rest[:2])
    assert rest[2] == "equal tokens: yes"


TIMES = GENERATE.with_name("time_operator.py")
BAD_SHAPE = ("--shape", "1x2"), "argument --shape: 1x2: it must be BxHxSxD"
NO_CALLS = ("--calls", "0"), "argument --calls: 0: it must be 1 or more"
NO_FOLDER = ("--model", "no/such/folder"), "--model is no/such/folder: no such folder"
NO_TOKEN = ("--new", "0"), "argument --new: 0: it must be 1 or more"
NO_NUMBER = ("--batch", "two"), "argument --batch: two: it must be 1 or more"
NO_SEED = ("--seed", str(1 << 64)), f"argument --seed: {1 << 64}: it must be 0 to 2^64 - 1"
NO_MODEL = ("--model", str(GENERATE.parent)), f"--model is {GENERATE.parent}, where no causal model is: "
NO_TIMES = ("--json", "no/such/times.json"), "argument --json: no/such/times.json: its folder does not exist"


@pytest.mark.long
@pytest.mark.parametrize("options, says", [NO_FOLDER, NO_TOKEN, NO_NUMBER, NO_SEED, NO_MODEL])
def test_bad_options_are_named(options, says):
    done = called(*options)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr


def test_every_row_of_times_is_announced():
    parsed = ast.parse(TIMES.read_text())
    (rows,) = (each.value for each in parsed.body if isinstance(each, ast.Assign))
    assert ", ".join(ast.literal_eval(rows)) in ast.get_docstring(parsed).replace("\n", " ")


@pytest.mark.parametrize("options, says", few([BAD_SHAPE, NO_CALLS, NO_TIMES], BAD_SHAPE))
def test_times_of_the_operator_name_bad_options(options, says):
    done = subprocess.run([sys.executable, str(TIMES), *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
