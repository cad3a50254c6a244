"""The evaluator: what it refuses and by which layer, what it makes of counters, and what it raises."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from flashcore_numba.checks.trial import Failed
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.course import exercise
from flashcore_numba.course.judge import (
    answer_times,
    child,
    grade,
    grade_cuda,
    grade_python,
    grading,
    process,
)
from flashcore_numba.course.judge.layers import Layer, Layers
from flashcore_numba.course.judge.verdict import CheckResult, GateResult
from flashcore_numba.course.lessons import OF_KERNELS, find
from flashcore_numba.evolve import evaluate as evaluator
from flashcore_numba.evolve import source
from flashcore_numba.evolve.cheats import H200, cheats
from flashcore_numba.evolve.evaluate import evaluate, of_text, refused_cubin
from flashcore_numba.evolve.floor import Timed, floor_us, too_fast
from flashcore_numba.records import artifact
from flashcore_numba.run.registers import stand_in
from flashcore_numba.stages.edited import original
from flashcore_numba.stages.files import is_cuda

CHEATS = {cheat.name: cheat for cheat in cheats()}
CUBIN = {"registers": 96, "spill_bytes": 0, "shared_bytes": 49152, "warnings": []}
PASSED = CheckResult(
    14,
    "passed",
    "Right.",
    gates=tuple(
        GateResult(gate.what, gate.right, gate.before, gate.right, gate.bar, True, gate.shape)
        for gate in find("14").exercise.gates
    ),
    layers=(Layer("screen", 0.1), Layer("compile", 1.0)),
    cubin=CUBIN,
)


@pytest.fixture
def says(monkeypatch):
    """Makes the judge's process say what a test gives it: a result, or a reply without one."""

    def set_reply(said):
        reply = said
        if isinstance(said, CheckResult):
            reply = {"status": said.status, "result": json.loads(json.dumps(said.as_dict())), "layer": ""}
        monkeypatch.setattr(process, "run", lambda job, time_limit: reply)

    return set_reply


def judged(cheat, **options):
    return of_text(find(str(cheat.lesson)), *cheat.file, device=cheat.timed or False, **options)


# What can be refused before a process is started


@pytest.mark.parametrize(
    "name, data, says",
    [
        ("none.cu", None, "cannot be read"),
        (".", None, "no file"),
        ("zero\0.cu", None, "cannot be read"),
        ("binary.cu", bytes(range(256)), "no text in UTF-8"),
        ("large.cu", b"//\n" * 300_000, "at most 200000 characters"),
        ("other.cu", b"int main() {}\n", "not clear which lesson it answers; name it"),
    ],
)
def test_a_file_that_cannot_be_judged_is_one_argument_error(tmp_path, name, data, says):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ArgumentError, match=says):
        evaluate(tmp_path / name)


def test_unknown_layers_and_lessons_are_named(tmp_path):
    (tmp_path / "mine.cu").write_text("int x;\n")
    with pytest.raises(ArgumentError, match="through: 'gate' is none of screen, compile, first case"):
        evaluate(tmp_path / "mine.cu", 14, through="gate")
    with pytest.raises(ArgumentError, match="lesson 24 has no kernel to evaluate: those that have are 0, "):
        evaluate(tmp_path / "mine.cu", 24)
    with pytest.raises(ArgumentError, match="lesson '99'"):
        evaluate(tmp_path / "mine.cu", 99)
    with pytest.raises(ArgumentError, match="through: 'floor'"):
        Layers("floor")


def test_the_file_of_each_lesson_is_recognised():
    files = [lesson.exercise.file for lesson in OF_KERNELS.values()]
    for lesson in OF_KERNELS.values():
        name, text = source.whole(lesson, exercise.region(lesson.exercise).text)
        if files.count(lesson.exercise.file) == 1:
            assert source.lesson_of(name, text) is lesson


def test_blocks_to_evolve_are_the_judges_regions_at_the_same_lines():
    lesson = find("14")
    region = exercise.region(lesson.exercise)
    _, text = source.whole(lesson, region.text)
    lines = text.split("\n")
    lines.insert(region.first_line - 1, "        // EVOLVE-BLOCK-START")
    lines.insert(region.last_line + 1, "        // EVOLVE-BLOCK-END")
    marked = source.marked("\n".join(lines), lesson)
    answer = exercise.answer_in_file(lesson, marked, "mine.cu")
    assert (answer.first, answer.last) == (region.first_line + 1, region.last_line + 1)
    assert "\n".join(answer.lines) + "\n" == region.text
    lesson = find("5")
    _, text = source.whole(lesson, "            # EVOLVE-BLOCK-START\n            x = 1\n")
    marked = source.marked(text, lesson)
    assert "EVOLVE" not in marked and marked.count("\n") == text.count("\n")
    assert exercise.answer_in_file(lesson, marked, "mine.py").lines == ["", "            x = 1"]


# What it makes of a verdict


def test_the_stages_own_counters_are_fitness_one_and_fewer_are_more(says):
    says(PASSED)
    found = of_text(find("14"), "mine.cu", "")
    assert found.valid and found.layer is None and found.fitness == 1.0 and "no time" in found.basis
    assert found.counters == {gate.what: gate.right for gate in find("14").exercise.gates}
    first, *others = PASSED.gates
    says(replace(PASSED, gates=(replace(first, value=first.right / 2), *others)))
    better = of_text(find("14"), "mine.cu", "")
    assert better.fitness == pytest.approx(((first.right + 1) / (first.right / 2 + 1)) ** (1 / 3))
    assert json.loads(json.dumps(better.as_json()))["gates"][0]["bar"] == first.bar


def test_what_was_not_judged_to_the_end_has_no_fitness(says):
    says(replace(PASSED, gates=(), cubin=None))
    found = of_text(find("14"), "mine.cu", "", through="checks")
    assert found.valid and found.fitness == 0.0 and found.basis == evaluator.NOT_JUDGED
    says(replace(PASSED, status="failed", layer="gates", kind="gate", look="Look.", line=7))
    found = of_text(find("14"), "mine.cu", "")
    assert not found.valid and (found.layer, found.fitness, found.line) == ("gates", 0.0, 7)
    assert (found.message, found.advice) == ("Right.", "Look.")


@pytest.mark.parametrize("status", ["timeout", "crashed"])
def test_a_process_that_gives_no_result_is_refused_by_the_layer_that_was_at_work(says, status):
    says({"status": status, "result": None, "why": "It went.", "printed": "x" * 4000, "layer": "checks"})
    found = of_text(find("14"), "mine.cu", "")
    assert not found.valid and found.layer == "checks" and found.message == "It went."


@pytest.mark.parametrize(
    "change, layer, said",
    [
        ({}, None, ""),
        ({"spill_bytes": 40}, "cubin", "40 bytes per thread"),
        ({"warnings": ["ptxas info : (C7512) Potential Performance Loss: wgmma"]}, "cubin", "serialises"),
        ({"warnings": ["ptxas info : (C7508) setmaxnreg ignored"]}, "cubin", "serialises"),
        ({"warnings": ["ptxas warning : something else"]}, None, ""),
    ],
)
def test_machine_code_that_spills_or_waits_is_refused(says, change, layer, said):
    says(replace(PASSED, cubin=CUBIN | change))
    found = of_text(find("14"), "mine.cu", "")
    assert (found.layer, found.valid) == (layer, layer is None)
    assert said in found.message and said in refused_cubin(CUBIN | change)
    assert (found.fitness > 0) == found.valid


def test_a_time_below_the_floor_is_refused_and_one_above_it_is_the_fitness(says):
    says(PASSED)
    floor = floor_us(stand_in(1, 8, 512, 64), H200, "tensor")
    assert floor == pytest.approx(4 * 8 * 512 * 512 * 64 / (4096 * 132 * 1980))
    for us, valid in ((0.99 * floor, False), (1.01 * floor, True), (5.0, True)):
        found = of_text(find("14"), "mine.cu", "", device=Timed(us, 10.0, "1x8x512x64", H200))
        assert found.valid == valid and found.layer == (None if valid else "floor")
        assert found.fitness == (pytest.approx(10.0 / us) if valid else 0.0)
        assert found.basis.startswith("time") == valid
        assert found.layers[-1].name == "floor"
    unknown = replace(H200, compute_capability=(6, 1))
    assert too_fast(1e-9, stand_in(1, 8, 512, 64), unknown, "tensor") is None


def test_the_floor_of_a_numba_kernel_is_that_of_cuda_cores(says):
    says(PASSED)
    floor = 4 * 8 * 512 * 512 * 64 / (256 * 132 * 1980)
    text = source.whole(find("5"), exercise.region(find("5").exercise).text)[1]
    for us, valid in ((0.99 * floor, False), (1.01 * floor, True)):
        found = of_text(find("5"), "mine.py", text, device=Timed(us, 73.0, "1x8x512x64", H200))
        assert found.valid == valid and ("with all CUDA cores" in found.message) != valid


def test_a_time_needs_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(evaluator.gpu, "available", lambda: False)
    monkeypatch.setattr(evaluator.gpu, "why_not", lambda: "there is none.")
    with pytest.raises(UnsupportedError, match="device: times need a GPU; there is none"):
        evaluate(tmp_path / "mine.cu", 14, device=True)


@pytest.mark.parametrize(
    "reply, layer, said",
    [
        ({"right": True}, None, ""),
        ({"right": False}, "floor", "its timed output is wrong"),
        (None, "floor", "was not timed: It had not ended after 180 s."),
    ],
)
def test_what_is_wrong_on_the_gpu_has_no_time(monkeypatch, reply, layer, said):
    def run(job, time_limit):
        if job["job"] == "check":
            return {"status": "passed", "result": json.loads(json.dumps(PASSED.as_dict())), "layer": ""}
        if reply is None:
            return {"status": "timeout", "result": None, "why": "It had not ended after 180 s."}
        own, stage = answer_times.YOURS, answer_times.own_labels(find("14"))[-1]
        rows = [{"label": stage, "us": 8.0, "right": True}, {"label": own, "us": 4.0, **reply}]
        return {"status": "done", "result": {"rows": rows}}

    gpu = {"compute_capability": [9, 0], "sm_count": 132, "max_sm_mhz": 1980.0, "bandwidth_gbs": 4917.0}
    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(evaluator.gpu, "available", lambda: True)
    monkeypatch.setattr(evaluator.environment, "gpu", lambda: gpu)
    found = of_text(find("14"), "mine.cu", "", device=True)
    assert found.layer == layer and said in found.message
    assert found.fitness == (2.0 if layer is None else 0.0)


# Host code: a learner may change what is around the region of a file in Python, a candidate may not

REST = (
    "\nKEPT = {}\n\n\ndef rest(row, visible, q, k, v, out, scale):\n    for row in range(1):\n        pass\n"
)


def host_code(lesson):
    own = exercise.region(lesson.exercise).text
    text = source.whole(lesson, own)[1]
    yield text + "KEPT = {}\n", "`KEPT = {}`"
    yield (
        text.replace("import numpy as np\n", "import numpy as np\nnp.isfinite = abs\n"),
        "`np.isfinite = abs`",
    )
    yield source.whole(lesson, own + REST)[1], "The region ends before `KEPT = {}`"
    yield source.whole(lesson, own + "        from numpy import dot\n")[1], "A region imports nothing"
    yield source.whole(lesson, f"{own}# </exercise>\n# <exercise>\n")[1], "are not there once each"
    yield text.replace("# <exercise>", "#"), "are not there once each"


def test_a_candidate_has_no_host_code():
    lesson = find("0")
    for text, said in host_code(lesson):
        found = of_text(lesson, "mine.py", text)
        assert not found.valid and found.layer == "screen" and found.fitness == 0.0 and said in found.message
        if found.line is not None:
            line = text.splitlines()[found.line - 1].strip()
            assert line in ("", "KEPT = {}", "np.isfinite = abs", "from numpy import dot")


def test_the_stages_own_files_have_no_host_code():
    """And what does not parse is left to the judge, which points at it."""
    for lesson in [each for each in OF_KERNELS.values() if not is_cuda(each.exercise.file)]:
        own = exercise.region(lesson.exercise).text
        assert source.outside(f"{source.whole(lesson, own)[1]}\n\n", lesson) is None
        assert source.outside(source.whole(lesson, "        x = (\n")[1], lesson) is None


def test_an_evaluator_that_takes_host_code_is_noticed(monkeypatch, says):
    says(PASSED)
    monkeypatch.setattr(source, "outside", lambda text, lesson: None)
    with pytest.raises(AssertionError):
        test_a_candidate_has_no_host_code()


# Candidates, each in a process


def refused_by_its_layer(cheat):
    found = judged(cheat)
    assert not found.valid and found.layer == cheat.layer, (cheat.name, found.message)
    assert found.fitness == 0.0 and found.message
    if found.layers:
        assert found.layers[-1].name == cheat.layer
    return found


@pytest.mark.long
def test_a_cheat_is_refused_at_its_line():
    found = refused_by_its_layer(CHEATS["asm"])
    assert CHEATS["asm"].file[1].splitlines()[found.line - 1].strip().startswith("asm volatile")


@pytest.mark.long
def test_cheats_that_are_drawn_are_refused_by_their_layers(rng):
    for name in rng.choice([*CHEATS], 4, replace=False):
        refused_by_its_layer(CHEATS[name])


@pytest.mark.long
def test_the_stages_own_region_is_valid_and_names_every_layer(tmp_path, rng):
    key = int(rng.choice([14, 12, 5]))
    lesson = find(str(key))
    name, text = source.whole(lesson, exercise.region(lesson.exercise).text)
    (tmp_path / name).write_text(text)
    found = evaluate(tmp_path / name, key, seed=7)
    assert found.valid and found.fitness == 1.0 and found.seed == 7, found.message
    assert [layer.name for layer in found.layers] == [*evaluator.LAYERS][:-1]
    assert found.cubin is not None and found.cubin["registers"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "more, said",
    [
        ("while True:\n    pass\n", "had not ended after 8 s"),
        ("for n in range(500):\n    print('x' * 100_000)\nraise KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_a_file_that_does_not_end_dies_or_floods_is_refused_as_it_is_loaded(more, said):
    """By the judge, which takes a learner's file; the evaluator's screen does not let it come to that."""
    name, text = source.whole(find("0"), exercise.region(find("0").exercise).text)
    text = f"{text}\n\n{more}"
    job = {"job": "check", "lesson": 0, "file": {"name": name, "text": text}}
    found = evaluator._of_check(find("0"), process.run(job, 8))
    assert not found.valid and found.layer == "compile" and found.fitness == 0.0
    assert said in found.message
    assert of_text(find("0"), name, text).layer == "screen"


def graded(key, monkeypatch, seed):
    """The grading of a lesson's own lines, which says what it runs on and runs nothing."""
    lesson = find(key)
    answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    kind = grade_cuda.CudaGrading if answer.is_cuda else grade_python.PythonGrading
    monkeypatch.setattr(kind, "left_out", lambda self: "")
    return kind(lesson, answer, original(lesson.exercise.stage), seed, lambda *_: None, Layers())


@pytest.mark.parametrize("key", ["2", "5", "14"])
def test_sizes_are_drawn_beyond_those_of_the_cases(monkeypatch, key):
    """More of each than in any case, if not in every check: a kernel wrong there is not right for long."""
    drawn = [graded(key, monkeypatch, 0)._drawn_sizes(np.random.default_rng(seed)) for seed in range(60)]
    heads, rows = (max(x.q.shape[axis] for x in drawn) for axis in (1, 2))
    keys = max(x.k.shape[2] for x in drawn)
    assert heads > 4 and rows > 200 and keys > {"2": 70, "5": 300, "14": 1100}[key]
    assert {x.causal for x in drawn} == {True, False} and {x.q.shape[3] for x in drawn} == {64, 128}


def test_what_is_wrong_on_drawn_sizes_is_no_pass(monkeypatch):
    grading_ = graded("14", monkeypatch, 0)

    def trial(inputs, **_):
        raise Failed("value", f"wrong at {inputs.label}")

    trial.stage = grading_.stage
    grading_.trial = trial
    found = grading_._run_drawn()
    assert found.kind == "value" and "sizes that were drawn for this check, B=" in found.message


@pytest.mark.long
def test_the_commands_json_follows_its_schema():
    schema = json.loads((artifact.recorded_dir() / "check.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    name, text = CHEATS["patched_timer"].file
    reply = process.run({"job": "check", "lesson": 5, "file": {"name": name, "text": text}})
    jsonschema.validate(reply["result"], schema)
    assert reply["result"]["layer"] == "screen" == reply["layer"]


def test_a_verdict_follows_the_schema_and_comes_back_from_it():
    schema = json.loads((artifact.recorded_dir() / "check.schema.json").read_text())
    data = json.loads(json.dumps(PASSED.as_dict()))
    jsonschema.validate(data, schema)
    assert CheckResult.from_dict(data) == PASSED
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"layer": "nowhere"}, schema)


# Mutants of the evaluator: each lets a cheat live, so the test of the cheats fails with it


def _in_this_process(monkeypatch):
    def run(job, time_limit):
        return {"layer": "", **child.do(job, lambda *_: None)}

    monkeypatch.setattr(process, "run", run)


def _no_gates(monkeypatch):
    monkeypatch.setattr(grading.Grading, "_run_gates", lambda self: None)
    monkeypatch.setattr(grade_python.PythonGrading, "_run_gates", lambda self: None)


def _no_screen(monkeypatch):
    monkeypatch.setattr(grade, "screen", lambda lesson, answer: None)


def _first_case_only(monkeypatch):
    own = Layers.asked
    monkeypatch.setattr(Layers, "asked", lambda self, name: own(self, name) and name != "checks")


def _counters_alone(monkeypatch):
    monkeypatch.setattr(grading.Grading, "_wrong_at", lambda *_: None)


def _no_floor(monkeypatch):
    monkeypatch.setattr(evaluator, "too_fast", lambda *_: None)


def _no_cubin(monkeypatch):
    own = Layers.asked
    monkeypatch.setattr(Layers, "asked", lambda self, name: own(self, name) and name != "cubin")


@pytest.mark.long
@pytest.mark.parametrize(
    "weaken, name",
    [
        (_no_screen, "kept_between_launches"),
        (_first_case_only, "copied_output"),
        (_no_gates, "old_structure"),
        (_counters_alone, "nothing_to_count"),
        (_no_cubin, "pin_that_never_runs"),
    ],
)
def test_an_evaluator_without_a_layer_is_noticed(monkeypatch, weaken, name):
    _in_this_process(monkeypatch)
    weaken(monkeypatch)
    assert judged(CHEATS[name]).layer != CHEATS[name].layer


def test_an_evaluator_without_a_floor_is_noticed(monkeypatch, says):
    says(PASSED)
    assert judged(CHEATS["faster_than_physics"]).layer == "floor"
    _no_floor(monkeypatch)
    assert judged(CHEATS["faster_than_physics"]).valid
