"""The kernels with dropout: right in every case, as foretold, without spills, and no other code when off."""

import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from cuda_reference.compile import why_not
from cuda_reference.source import INCLUDE
from flashcore_numba.branches.backward.mma_sync_tiles import TILES as BACKWARD_TILES
from flashcore_numba.branches.dropout import oracle
from flashcore_numba.branches.dropout.dropout_backward_mma_sync import STAGE as BACKWARD
from flashcore_numba.branches.dropout.dropout_backward_mma_sync import TILE
from flashcore_numba.branches.dropout.dropout_mma_sync import STAGE
from flashcore_numba.branches.dropout.inputs import drawn, with_dropout
from flashcore_numba.branches.dropout.mutants import FORWARD
from flashcore_numba.branches.dropout.operation import DROPOUT, DROPOUT_BACKWARD
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.checks.trial import LAYOUTS, Trial
from flashcore_numba.checks.truth import truth
from flashcore_numba.core.shapes import Shape
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.edited import applied
from flashcore_numba.stages.runs import Run, runs

RUNS = runs([STAGE, BACKWARD])
QUICK = ("dropout/mma_sync large", "dropout_backward/mma_sync")
EACH_RUN = pytest.mark.parametrize(
    "run", few(RUNS, *(run for run in RUNS if run.label in QUICK)), ids=lambda run: run.label
)
TELLING = (
    "ragged 45 rows, 100 keys, two heads, two batches",
    "causal 150 rows, 220 keys, 2 heads on 1",
)
PROPERTY = {STAGE: "the mask itself", BACKWARD: "<Q, dQ> is <K, dK>"}
CAPABILITIES = ((8, 0), (9, 0))
NO_COMPILER = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@EACH_RUN
def test_the_cases_that_tell_most(run):
    chosen = (*TELLING, PROPERTY[run.stage])
    report = check_stage(run.stage, run.variant, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen)


@pytest.mark.long
@pytest.mark.parametrize("stage", [STAGE, BACKWARD], ids=lambda stage: stage.key)
def test_every_case(stage):
    report = check_stage(stage)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(names(stage)) > 25


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
def test_random_problems(run, rng):
    operation = run.stage.operation
    for _ in range(2):
        kv_heads, group, batch = (int(n) for n in rng.integers(1, 4, 3))
        rows, keys = (int(n) for n in rng.integers(1, 200, 2))
        element = run.stage.elements[rng.integers(2)]
        how = {"causal": bool(rng.integers(2)), "element": element}
        shape = (batch, kv_heads * group, rows, keys, int(rng.choice([64, 128])), kv_heads)
        x = with_dropout(normal(rng, *shape, **how), drawn(rng, float(rng.uniform(0, 1))))
        inputs = oracle.backward_inputs(x, rng) if run.stage is BACKWARD else x
        answer = Trial(run.stage, run.variant)(inputs, layout=str(rng.choice([*LAYOUTS, "mixed"])))
        reference = operation.reference(inputs)
        for output in operation.outputs:
            verdict = operation.judge(output, getattr(answer, output.name), reference, None)
            assert verdict.passed, (x.label, output.name, verdict.where, verdict.reason)


@EACH_RUN
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_formula_is_what_is_counted(run, causal, rng):
    """A mask is not stored: the kernels move what those without dropout do."""
    sm_count = int(rng.choice([2, 132]))
    rows, keys = (int(n) for n in rng.integers(1, 200, 2))
    x = with_dropout(normal(rng, 2, 2, rows, keys, 64, 1, causal=causal), drawn(rng, 0.1))
    inputs = oracle.backward_inputs(x, rng) if run.stage is BACKWARD else x
    problem, executor = inputs.problem(inputs.arrays), Simulator(races=False, sm_count=sm_count)
    run.stage.run(problem, executor, run.variant, optional=False)
    counted = sum((Traffic.of_totals(each.totals()) for each in executor.launches), Traffic())
    assert predict(run.stage, run.variant, problem, sm_count) == counted, (x.label, sm_count)


@pytest.mark.long
@NO_COMPILER
@pytest.mark.parametrize(
    ("run", "head_dim", "capability"),
    [(run, d, capability) for run in RUNS for d in STAGE.head_dims for capability in CAPABILITIES],
    ids=lambda value: getattr(value, "label", str(value)),
)
def test_nothing_spills(run, head_dim, capability):
    found = registers(Run(run.stage, run.variant), examples(run.stage, head_dim), capability)
    assert any("DROPOUT=1" in each["kernel"] for each in found)
    for each in found:
        assert each["spill_bytes"] == 0 and not each["warnings"], each


def machine_code(kernel, capability):
    """The instructions of a kernel: of an ELF file, the sections whose names begin with .text."""
    data = compiled(kernel, capability).cubin.read_bytes()
    (first,), (size, count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<3H", data, 58)
    headers = [struct.unpack_from("<2I4Q", data, first + i * size) for i in range(count)]
    found = {}
    for name, _, _, _, start, length in headers:
        name += headers[names][4]
        text = data[name : data.index(b"\0", name)].decode()
        if text.startswith(".text"):
            found[text] = data[start : start + length]
    assert found
    return found


FORWARD_TILE = {"ROW_TILES": 2, "WARPS": 4, "BLOCK_N": 64, "STAGES": 2, "BLOCKS_PER_SM": 2, "LAZY_MAX": True}
CUT_OUT = {  # everything that a kernel has of dropout, as patterns, and what was there before
    "stage12_mma_sync": {
        r'"dropout.cuh"': '"warp_rows.cuh"',
        r"if \(DROPOUT\)\s+drop_tile\([^;]*;": "",
        r" \* params.features.keep_scale": "",
    },
    "backward_mma_sync": {
        r'#include "dropout.cuh"\n': "",
        r"(?s)// A bit for each of the lane's.*?(?=// P\^T and dS\^T as left)": "",
        r"(?s)// The same with dropout.*?(?=// dQ \+= dS K)": "",
        r"uint32_t kept = 0;\s+if \(DROPOUT\)\s+kept = [^;]*;": "",
        r"if \(DROPOUT\)\s+pack_dropped[^;]*;\s+else": "",
        r"dv_rmem, sizes.features.keep_scale,": "dv_rmem, 1.0f,",
    },
}


@pytest.mark.long
@NO_COMPILER
@pytest.mark.parametrize(
    ("kernel", "head_dim", "capability"),
    [(kernel, d, capability) for kernel in CUT_OUT for d in (64, 128) for capability in CAPABILITIES],
    ids=str,
)
def test_off_it_leaves_no_trace(kernel, head_dim, capability, tmp_path):
    """The machine code is that of the same kernel with everything of dropout cut out."""
    tile = BACKWARD_TILES[head_dim][TILE]
    macros = tile.macros(head_dim) if kernel == tile.kernel else FORWARD_TILE | {"HEAD_DIM": head_dim}
    whole = source(kernel, **macros)
    text = whole.path.read_text()
    for pattern, before in CUT_OUT[kernel].items():
        text, count = re.subn(pattern, before, text)
        assert count == 1, pattern
    assert not re.search(r"(?i)dropout|keep_scale|\bkept\b", text)
    without = tmp_path / whole.path.name
    without.write_text(text)
    assert machine_code(replace(whole, path=without), capability) == machine_code(whole, capability)
    assert machine_code(source(kernel, **macros, DROPOUT=1), capability) != machine_code(whole, capability)


@pytest.mark.parametrize("operation", [DROPOUT, DROPOUT_BACKWARD], ids=lambda each: each.name)
def test_truth_of_some_heads(operation, rng, monkeypatch):
    """Parts of an input have the mask of their own batch and heads."""
    monkeypatch.setattr("flashcore_numba.checks.truth.MOST_PAIRS", 4 * 40 * 40)
    x = operation.draw(Shape(2, 4, 40, 64, kv_heads=2), True, rng)
    right = operation.reference(x)
    answers = {each.name: operation.expected(each, right) for each in operation.outputs}
    judge = truth(operation, x, rng)
    found = judge.judge([answers])
    assert found["right"] and found["heads_checked"] < found["heads"] == 4
    assert not judge.judge([{name: np.zeros_like(value) for name, value in answers.items()}])["right"]
    elsewhere = {name: np.roll(value, 1, axis=0) for name, value in answers.items()}
    assert not judge.judge([elsewhere])["right"]


(OVERFLOW_CLAMPED,) = (mutant for mutant in FORWARD if mutant.name == "overflow_clamped")
PAGE = Path(__file__).resolve().parents[3] / "docs/dropout.md"
COST = r"\| (forward, tile `large`|backward) \| (64|128) \| [48] \| ([0-9.]+) \|"


@NO_COMPILER
@pytest.mark.parametrize("row", few(range(4), 2))
def test_the_instructions_that_the_page_counts(row, tmp_path):
    """Of the loops, which are unrolled, per score of a lane; another compiler may differ a little. Behind the
    loops dropout leaves out what clamps an output, which is put back here.
    """
    kind, head_dim, more = re.findall(COST, PAGE.read_text())[row]
    tile = BACKWARD_TILES[int(head_dim)][TILE]
    back = kind == "backward"
    macros = tile.macros(int(head_dim)) if back else FORWARD_TILE | {"HEAD_DIM": int(head_dim)}
    scores = macros["ROW_TILES"] * 16 * macros["BLOCK_N"] // 32
    kernel = tile.kernel if back else "stage12_mma_sync"
    shutil.copytree(INCLUDE, tmp_path, dirs_exist_ok=True)
    output = tmp_path / "output.cuh"
    output.write_text(applied(output.read_text(), OVERFLOW_CLAMPED.edits, output.name))

    def clamped(**drops):
        of_package = source(kernel, **macros, **drops)
        return replace(of_package, path=Path(shutil.copy(of_package.path, tmp_path)))

    on, off = (
        sum(map(len, machine_code(clamped(**drops), (9, 0)).values())) / 16 for drops in ({"DROPOUT": 1}, {})
    )
    assert (on - off) / scores == pytest.approx(float(more), rel=0.1)
