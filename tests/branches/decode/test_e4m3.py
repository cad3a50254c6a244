"""Decoding over pools of e4m3: right, with scales of any kind, on GPUs with and without its instructions."""

from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba import ArgumentError, UnsupportedError, attention_paged
from flashcore_numba.branches.decode.inputs import NAMES, paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.mutants import E4M3 as FILE
from flashcore_numba.branches.decode.mutants import MUTANTS
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import own_type_alone
from flashcore_numba.checks.mutation import kill_one
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.element import BFLOAT16, E4M3, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.output import OUT
from flashcore_numba.core.wrapping import Passing
from flashcore_numba.predict import predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.runs import Run

CHUNKS, *STAGES = LADDER
RUNS = [
    (stage, variant)
    for stage in STAGES
    for variant in stage.variants
    if not variant.startswith("wide")  # which take elements alone, and give way to others
]
SCALES = {"k_scale": 0.4, "v_scale": 1.7}
label = lambda x: getattr(x, "label", x)  # noqa: E731


def of_bytes(stage):
    return [name for name in names(stage) if name.startswith("e4m3")]


def called(x, **options):
    given = {name: getattr(x, name) for name in (*NAMES, "causal", "scale", *SCALES)}
    return attention_paged(**given | options)


def assert_right(x, found):
    reference = DECODE.reference(x)
    for output, value in zip(DECODE.outputs, found, strict=False):
        verdict = DECODE.judge(output, value, reference, None)
        assert verdict.passed, (x.label, output.name, verdict)


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES, ids=label)
def test_every_case(stage):
    chosen = of_bytes(stage)
    report = check_stage(stage, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen) > 25


class Older(Passing):
    """A GPU without conversions of e4m3."""

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        older = replace(kernel, defines=(*kernel.defines, ("PTX_ARCH", 800)))
        self.executor.launch(older, grid, block, *args, shared_bytes=shared_bytes)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("stage", "variant"), RUNS, ids=label)
def test_every_head_dimension_in_every_order(stage, variant, head_dim, rng):
    sinks = rng.standard_normal(6).astype(np.float32)
    features = Features(window=(int(rng.integers(200, 400)), -1), softcap=4.0, sinks=sinks)
    scales = {name: rng.uniform(0.5, 2, 2).astype(np.float32) for name in SCALES}
    for tokens, given, element in ((2, Features(), FLOAT16), (7, features, BFLOAT16)):
        options = {"element": element, "stored": E4M3, "features": given, **scales}
        x = paged(rng, [600, 0, 90], 6, 2, tokens, head_dim, 48, **options)
        for order in ("reverse", f"random:{rng.integers(1000)}"):
            executor = Simulator(order=order, ops=False, sm_count=3)
            found = stage.run(x.problem(x.arrays), executor, variant, optional=True)
            executor.check()
            assert_right(x, (found["out"], found["lse"]))


@pytest.mark.long
@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda each: each.name)
def test_an_older_gpu_gives_the_same_bits(element, rng):
    x = paged(rng, [60, 0, 90], 4, 2, 2, element=element, stored=E4M3, **SCALES)
    every = rng.permutation(np.arange(x.k_pool.size)).astype(np.uint8).reshape(x.k_pool.shape)
    every[(every & 0x7F) == 0x7F] = 0  # its two NaNs
    x = x.but(k_pool=every.view(E4M3.dtype), v_pool=every[::-1].copy().view(E4M3.dtype), k_scale=2.0**-6)
    executor = Simulator(ops=False)
    newer, older = (STAGES[0].run(x.problem(x.arrays), each) for each in (executor, Older(executor)))
    executor.check()
    assert_right(x, (newer["out"], newer["lse"]))
    assert all(np.array_equal(newer[name], older[name]) for name in ("out", "lse"))


@pytest.mark.long
def test_a_nan_that_counts_stays_one(rng):
    """In a key that its tokens see; a request that does not see it is right."""
    x = paged(rng, [20, 33], 2, 1, stored=E4M3, **SCALES)
    bits = x.v_pool.view(np.uint8).copy()
    bits[x.block_table[0, 0], 3, 0, 5] = 0xFF
    found = called(x.but(v_pool=bits.view(E4M3.dtype)), stage=STAGES[0])
    assert np.isnan(found[0, :, 0, 5]).all() and np.isnan(found).sum() == 2


@pytest.mark.long
def test_bytes_and_scales_of_any_kind(rng):
    """uint8 pools, scales of numbers, of arrays, with a stride, of 0 too: the same bits."""
    x = paged(rng, [20, 0, 45], 4, 2, 3, stored=E4M3, k_scale=np.full(2, 0.4, np.float32), v_scale=2)
    found = called(x, return_lse=True)
    assert_right(x, found)
    k_bytes, v_bytes = x.k_pool.view(np.uint8), x.v_pool.view(np.uint8)
    wide = np.full((2, 3), np.float32(0.4))
    once = np.broadcast_to(np.float32(2), 2)
    for changes in (
        {"k_pool": k_bytes, "v_pool": v_bytes},
        {"k_scale": float(np.float32(0.4)), "v_scale": np.full(2, 2, np.float32)},
        {"k_scale": wide[:, 1], "v_scale": once},
        {"k_scale": np.float32(0.4), "v_scale": np.int64(2)},
    ):
        again = called(x, **changes, return_lse=True)
        assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True)), changes


def test_what_a_problem_knows(rng):
    x = paged(rng, [32, 16], 8, 2, stored=E4M3, **SCALES)
    problem = x.problem(x.arrays)
    assert problem.e4m3 and problem.element is FLOAT16
    assert problem.min_bytes == 2 * problem.q.nbytes + 48 * 2 * 128
    assert "in e4m3" in problem.shape_label and "e4m3" in x.label
    again = problem.on(problem.inputs)
    assert (again.k_scale, again.v_scale) == (0.4, 1.7)


def test_other_stages_refuse_it(rng):
    x = paged(rng, [20, 3], 2, 1, stored=E4M3)
    message = (
        "^stage decode/chunks does not serve pools of float8_e4m3fn, only of q's type; stage decode/split"
    )
    with pytest.raises(UnsupportedError, match=message):
        called(x, stage=CHUNKS)
    assert not of_bytes(CHUNKS) and CHUNKS.limit is own_type_alone


def test_one_error_names_the_argument(rng):
    x = paged(rng, [20, 3], 4, 2, stored=E4M3)
    plain = paged(rng, [20, 3], 4, 2)
    two = np.ones(2, np.float32)
    for y, changes, message in (
        (plain, {"k_scale": 0.5}, "k_scale is given for pools of float16: only pools of float8_e4m3fn have"),
        (plain, {"v_scale": two}, "v_scale is given for pools of float16"),
        (plain, {"v_scale": True}, "v_scale is given for pools of float16"),
        (x, {"k_scale": 0}, "k_scale is 0: it must be a number above 0"),
        (x, {"k_scale": -1.0}, "k_scale is -1.0: it must be a number above 0"),
        (x, {"v_scale": float("nan")}, "v_scale is nan"),
        (x, {"v_scale": 1e39}, "v_scale is 1e.39"),
        (x, {"v_scale": 1e-40}, "v_scale is 1e-40: it must be a number above 0, as float32 has"),
        (x, {"v_scale": np.zeros(2, "f4, i2")["f0"]}, r"v_scale has strides \(6,\) bytes or an odd address"),
        (x, {"v_scale": True}, "v_scale is True"),
        (x, {"v_scale": None}, "v_scale is of type NoneType"),
        (x, {"v_scale": [1.0, 1.0]}, "v_scale is of type list"),
        (x, {"k_scale": two.astype(np.float64)}, "k_scale has dtype float64: only float32"),
        (x, {"k_scale": np.ones(3, np.float32)}, r"k_scale has shape \(3,\): it must be \(2,\)"),
        (x, {"k_scale": np.ones((), np.float32)}, r"k_scale has shape \(\)"),
        (x, {"k_scale": two[::-1]}, "k_scale has strides .* must be >= 0"),
        (x, {"v_pool": plain.v_pool}, "v_pool has dtype float16: k_pool has float8_e4m3fn"),
        (x, {"k_pool": plain.k_pool}, "v_pool has dtype float8_e4m3fn: k_pool has float16"),
        (x, {"k_pool": x.k_pool.astype(np.float32)}, "k_pool has dtype float32: accepted are .*float8"),
        (x, {"q": E4M3.round(x.q)}, "q has dtype float8_e4m3fn"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=f"^{message}"):
            called(y, **changes)


MISTAKES = {"k_scale has no effect": {"k_scale": 1.0}, "v_scale has no effect": {"v_scale": 1.0}}
MISTAKES["k_scale multiplies V, and v_scale K"] = {"k_scale": 1.7, "v_scale": 0.4}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_wrong_answer_is_explained(sentence, rng):
    x = paged(rng, [20, 33], 4, 2, 2, stored=E4M3, **SCALES)
    ref = DECODE.reference(x)
    wrong = FLOAT16.round(DECODE.reference(x.but(**MISTAKES[sentence])).out)
    verdict = DECODE.judge(OUT, wrong, ref, None)
    assert not verdict.passed and sentence in DECODE.explain(x, OUT, wrong, ref, verdict)


SCALED = [
    mutant
    for mutant in MUTANTS
    if any(
        word in edit.old or edit.file == FILE
        for edit in mutant.edits
        for word in ("scales", "v_scale", "k_scale", "E4M3")
    )
]


@pytest.mark.long
@pytest.mark.parametrize("mutant", SCALED, ids=lambda mutant: mutant.name)
def test_mutants_die(mutant):
    fate = kill_one(mutant, names=of_bytes(STAGES[0]))
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"
    assert len(SCALED) >= 10


def test_no_formula_and_other_kernels(rng):
    """What is not known is not predicted; what is compiled for e4m3 is listed with the rest."""
    x = paged(rng, [40, 3], 4, 2, stored=E4M3)
    for stage in STAGES:
        with pytest.raises(ArgumentError, match=r"^no formula predicts the traffic of pools of e4m3: count"):
            predict(stage, None, x.problem(x.arrays), 132)
    for stage in LADDER:
        assert any(problem.e4m3 for problem in examples(stage, 128)) == (stage is not CHUNKS)


COMPILED = [
    (stage, variant, head_dim, capability)
    for stage, variant in RUNS
    for head_dim in (64, 128, 256)
    for capability in ((80, 89, 90) if stage is STAGES[0] else (90,))
    if capability == 90 or variant not in ("few", "rows")  # for which an older block has no room
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "variant", "head_dim", "capability"),
    COMPILED,
    ids=label,
)
def test_nothing_is_spilled(stage, variant, head_dim, capability, rng):
    problems = []
    for element, page in ((FLOAT16, 16), (BFLOAT16, 20)):
        x = paged(rng, [40, 3], 4, 2, 1, head_dim, page, element=element, stored=E4M3)
        problems.append(x.problem(x.arrays))
    found = registers(Run(stage, variant), problems, divmod(capability, 10))
    assert len(found) == 2
    for kernel in found:
        assert (kernel["spill_bytes"], kernel["stack_bytes"]) == (0, 0), kernel
        assert 0 < kernel["registers"] <= (168 if variant == "many" and head_dim < 256 else 255)
        assert not kernel["warnings"]
