"""What the pages say of the examples' records, of records made here."""

import json

from flashcore_numba.report import example_tables

ABOUT = {"commit": "abcdef0123", "date": "2026-01-02", "torch": "9.9"}


def kept(folder, name, record):
    (folder / "examples").mkdir(exist_ok=True)
    (folder / f"examples/{name}.json").write_text(json.dumps(ABOUT | record))


def test_without_a_record_there_is_no_table(tmp_path):
    assert [make(tmp_path) for make in example_tables.TABLES.values()] == [None] * 4


def test_a_call_beside_sdpa(tmp_path):
    us = {
        "forward": {"flashcore": [9.0, 10.0, 30.0], "sdpa": [21.0, 20.0, 5.0]},
        "backward": {"flashcore": [100.0, 90.0, 80.0], "sdpa": [45.0, 45.0, 46.0]},
    }
    options = {"gpu": "A GPU", "shape": [1, 2, 3, 64], "dtype": "float16", "causal": True, "calls": 7}
    kept(tmp_path, "time_operator", options | {"us": us})
    text = example_tables.operator(tmp_path).splitlines()
    assert text[2:4] == ["| forward | 10.0 | 20.0 | 2.00 |", "| backward | 90.0 | 45.0 | 0.50 |"]
    assert text[-1] == (
        "A GPU, 2026-01-02, commit abcdef0, PyTorch 9.9: 1x2x3x64, causal, float16, medians of 3 interleaved "
        "rounds of 7 calls."
    )


def test_a_training_run(tmp_path):
    early, late = [5.0] * 100, [2.0]
    runs = {
        "FlashCore": {"tokens_per_second": 2_100_400.0, "loss": early + late},
        "SDPA": {"tokens_per_second": 2_000_000.0, "loss": [5.002, *early[1:], 1.95]},
    }
    kept(tmp_path, "train_gpt", {"device": "A GPU", "seed": 3, "size": {"steps": 101}, "runs": runs})
    text = example_tables.training(tmp_path).splitlines()
    assert text[2:4] == ["| FlashCore | 2.100 | 5.000 | 2.000 |", "| SDPA | 2.000 | 5.002 | 1.950 |"]
    assert text[-1].endswith("differ by 0.050 at most, in the first 100 steps by 0.002.")


def test_vllm_with_each_attention(tmp_path):
    one = {"steps": 9, "of": 5, "equal": 4, "logprob_difference": 0.25, "bound": 0.05}
    right = one | {"equal": 5, "logprob_difference": 0.0076}
    found = {"llama, eager, BROKEN": one, "llama, graphs, CUSTOM": right}
    times = {"CUSTOM": [1.0, 2.0, 3.0], "FLASH_ATTN": [2.0, 2.5, 2.6], "TRITON_ATTN": [4.0, 4.0, 4.0]}
    model = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "type": "float16"}
    about = {"gpu": "A GPU", "vllm": "1.2", "model": model}
    kept(tmp_path, "vllm", about | {"answers": found, "step_ms": {"1 x 512": times}})
    broken, correct, *_ = example_tables.answers(tmp_path).splitlines()[2:]
    assert broken == "| llama | eager | FlashCore, scale 5 % too large | 4 of 5 | 0.25 | 0.05 |"
    assert correct == "| llama | graphs | FlashCore | 5 of 5 | 0.0076 | 0.05 |"
    text = example_tables.steps(tmp_path).splitlines()
    assert text[2].startswith("| 1 x 512 | 2.00 (1.00 to 3.00) | 2.50 (2.00 to 2.60) | 4.00 ")
    assert "vLLM 1.2" in text[-1] and "2 layers of 64" in text[-1]
