"""What stage 15's loading thread does while keys still come, with another block that brings them late."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference import TensorMap, load, source
from cuda_reference.source import INCLUDE

HERE = Path(__file__).parent
HEADER = "warpgroup_rows.cuh"
WAIT = "        do from = ptx::load_acquire_system(word);\n        while (from > key);\n"
FENCE = "        ptx::fence_proxy_async_global();  // TMA reads what was there when the number was read\n"


def run(rng: np.random.Generator, folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The keys, those that were seen, and what the executor reports."""
    macros = {"HEAD_DIM": 64, "BLOCK_N": 64, "LAZY_MAX": 0, "KEYS_FROM": 1}
    kernel = load(source("arrivals", folder=folder, **macros), "cpu")
    brought = rng.standard_normal((128, 64)).astype(np.float16)
    keys, seen = np.full((1, 1, 128, 64), np.nan, np.float16), np.full((128, 64), np.nan, np.float16)
    number = np.array([128], np.int32)
    tiles = TensorMap(keys, (1, 1, 64, 64))
    report = kernel(2, 32, (tiles, keys, brought, seen, number), shared_mem=64 * 64 * 2 + 16)
    return brought, seen, [str(problem) for problem in report.problems]


def test_keys_that_another_block_brings_late(rng: np.random.Generator) -> None:
    brought, seen, problems = run(rng, HERE)
    assert not problems, problems
    assert np.array_equal(seen, brought)


@pytest.mark.parametrize(
    "gone, told",
    [(WAIT, "with no wait for it between"), (FENCE, "with no fence.proxy.async between")],
    ids=["no wait", "no fence"],
)
def test_without_it_the_executor_reports(
    rng: np.random.Generator, tmp_path: Path, gone: str, told: str
) -> None:
    text = (INCLUDE / HEADER).read_text()
    assert text.count(gone) == 1
    (tmp_path / HEADER).write_text(text.replace(gone, ""))
    (tmp_path / "arrivals.cu").write_text((HERE / "arrivals.cu").read_text())
    assert told in run(rng, tmp_path)[2][0]
