"""What the pages say of the examples' records, of records made here."""

import json

from flashcore_numba.report import example_tables

ABOUT = {"commit": "abcdef0123", "date": "2026-01-02", "torch": "9.9"}


def kept(folder, name, record):
    (folder / "examples").mkdir(exist_ok=True)
    (folder / f"examples/{name}.json").write_text(json.dumps(ABOUT | record))


def test_without_a_record_there_is_no_table(tmp_path):
    assert [make(tmp_path) for make in example_tables.TABLES.values()] == [None, None]


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
