"""vLLM's engine on the CPU with FlashCore in it, against the same engine with its own attention.

`make test-vllm` makes the environment, which is not the one that pytest runs in, and runs this.
"""

import json
import os
import subprocess
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from flashcore_numba.integrations import vllm_plugin
from integrations import stand_in_vllm

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm/bin/python"
ENGINE = Path(__file__).with_name("vllm_engine.py")
ADAPTER = ROOT / "flashcore_numba/integrations/vllm_backend.py"
STEPS, SHARED = 24, 64  # tokens that are generated, and those of a prefix that is in the cache already
# Of a log-probability: float16 rounds a number near 10 by 0.004, bfloat16 by 0.03, and so does every layer.
BOUNDS = {"float16": 0.05, "bfloat16": 0.4}

LLAMA = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "llama": LLAMA,
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 40},
    "gemma2": LLAMA
    | {
        "model_type": "gemma2", "sliding_window": 40, "attn_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 64, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
    },
}  # fmt: skip
TYPES = {"gemma2": "bfloat16"}  # vLLM refuses float16 for Gemma 2
MUTANTS = {
    "scale": ("llama", ("self.scale = float(scale)", "self.scale = 1.05 * float(scale)")),
    "window": ("mistral", ("(sliding_window - 1, 0)", "(sliding_window, 0)")),
}

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def type_of(model):
    return TYPES.get(model, "float16")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """What the process with all runs says, which takes minutes."""
    if not PYTHON.exists():
        pytest.fail(f"selected with -m vllm, but there is no {PYTHON.relative_to(ROOT)}: make vllm-env")
    folder = tmp_path_factory.mktemp("vllm")
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    runs = {}
    for model in MODELS:
        runs[f"{model}, vLLM's own"] = {"model": model, "backend": "", "dtype": type_of(model)}
        runs[model] = {"model": model, "backend": vllm_plugin.BACKEND, "dtype": type_of(model)}
    for name, (model, (old, new)) in MUTANTS.items():
        text = ADAPTER.read_text()
        assert text.count(old) == 1
        (folder / f"broken_{name}.py").write_text(text.replace(old, new))
        backend = f"broken_{name}.FlashCoreBackend"
        runs[f"broken {name}"] = {"model": model, "backend": backend, "dtype": type_of(model)}
    asked = {
        "folder": str(folder), "answer": str(folder / "answer.json"), "seed": seed, "models": MODELS,
        "rounds": rounds(seed), "steps": STEPS, "runs": runs,
    }  # fmt: skip
    alone = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{folder}",
    }  # fmt: skip
    made = subprocess.run(
        [PYTHON, ENGINE], input=json.dumps(asked), text=True, capture_output=True, env=os.environ | alone
    )
    assert made.returncode == 0, (made.stdout + made.stderr)[-6000:]
    return json.loads((folder / "answer.json").read_text())


def rounds(seed):
    """Prompts of two rounds: of the first two share a prefix, and the second round has it once more."""
    import numpy as np

    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, 512, SHARED + 6).tolist()
    tails = [rng.integers(0, 512, size).tolist() for size in (3, 40, 5, 90, 3)]
    return [[prefix + tails[0], prefix + tails[1], tails[2], tails[3]], [prefix + tails[4]]]


def compare(own, found, bound):
    """Steps compared, their largest difference of a log-probability, and the tokens that no rounding
    explains: other ones where the best two were apart. What comes after another token is not compared.
    """
    steps, most, wrong = 0, 0.0, []
    for mine, theirs in zip(*(chain(*run["rounds"]) for run in (found, own)), strict=True):
        assert mine["cached"] == theirs["cached"]
        for i, (p, q) in enumerate(zip(mine["logprobs"], theirs["logprobs"], strict=True)):
            best, second = sorted(q.values())[:-3:-1]
            token, right = str(mine["tokens"][i]), str(theirs["tokens"][i])
            steps += 1
            most = max(most, *(abs(p[each] - q[each]) for each in p.keys() & q.keys()), 0.0)
            if token != right:
                if best - second > 2 * bound:
                    wrong.append((i, token, right, best - second))
                break
    return steps, most, wrong


@pytest.mark.parametrize("model", MODELS)
def test_tokens_and_probabilities(engine, model):
    own, found = engine["runs"][f"{model}, vLLM's own"], engine["runs"][model]
    assert own["backend"] == ["vllm.v1.attention.backends.cpu_attn"]
    assert found["backend"] == [vllm_plugin.BACKEND.rsplit(".", 1)[0]]
    bound = BOUNDS[type_of(model)]
    steps, most, wrong = compare(own, found, bound)
    print(f"{model}: {steps} steps, at most {most:.2g}")
    assert not wrong and most <= bound
    assert steps >= 2 * STEPS
    assert found["rounds"][1][0]["cached"] == SHARED


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(engine, name):
    model, _ = MUTANTS[name]
    found = engine["runs"][f"broken {name}"]
    assert found["backend"] == [f"broken_{name}"]
    bound = BOUNDS[type_of(model)]
    _, most, wrong = compare(engine["runs"][f"{model}, vLLM's own"], found, bound)
    print(f"{name}: {most:.2g}, {wrong}")
    assert wrong or most > bound


SERVED = ("plain", "sinks and a window", "e4m3")


def test_what_the_selector_refuses(engine):
    reasons = engine["selector"]["reasons"]
    assert {name for name, given in reasons.items() if not given} == set(SERVED)
    assert len(reasons) > 12


def test_the_plugin_and_the_stand_ins_are_of_this_version(engine):
    told = engine["selector"]
    assert told["class"] == vllm_plugin.BACKEND
    assert told["graphs"] == "UNIFORM_SINGLE_TOKEN_DECODE"
    read = {each.name for each in fields(stand_in_vllm.CommonAttentionMetadata)}
    assert read <= set(told["fields"])
