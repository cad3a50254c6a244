"""The search over configurations: its space, its funnel with times from a model, records, replays."""

import functools
import json
import multiprocessing
import pickle
import sys
import tempfile
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from cuda_reference.extras import MissingPackageError
from cuda_reference.files import MachineError
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.runner import check_stage
from flashcore_numba.cli import main
from flashcore_numba.cli import tune as cli
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.output import LSE
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.records import layout
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages.tuning import recorded
from flashcore_numba.tune import funnel, record, replay, timing
from flashcore_numba.tune.spaces import SPACES, name_of

QUIET = Progress(Console(quiet=True))
SHAPES = ("1x8x512x64", "4x16x577x64", "64x16x128x64", "1x8x1024x64", "4x16x4096x128", "2x32/8x3000x128")
GPU = record.Device("a GPU")
SMALL = Workload(parse_any("1x8x512x64"))


class Noted:
    """An executor that runs nothing and notes what is launched."""

    sm_count, shared_limit = record.SM_COUNT, 227 << 10

    def __init__(self):
        self.launched = []

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def counter(self, count=1):
        return np.zeros(count, np.uint32)

    def launch(self, kernel, grid, block, *arguments, shared_bytes=0):
        numbers = [x for x in arguments if isinstance(x, np.number | int | float)]
        self.launched.append((kernel, grid, block, numbers, shared_bytes))


def launched(space, problem, run):
    executor = Noted()
    outputs = [each for each in operation(space.stage).outputs if each is not LSE]
    run(problem, executor=executor, **{e.name: np.empty(e.shape(problem), e.dtype(problem)) for e in outputs})
    return executor.launched


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", SPACES)
def test_the_shipped_configuration_is_what_the_stage_launches(number, shape, causal):
    space = SPACES[number]
    problem = funnel.stand_in(space, Workload(parse_any(shape), causal))
    shipped = space.shipped(problem, record.SM_COUNT)
    assert list(shipped) == list(space.values)
    one = launched(space, problem, space.stage.launch)
    other = launched(space, problem, space.configured(shipped, problem).launch)
    assert one == other


@pytest.mark.parametrize("number", SPACES)
def test_every_rule_refuses_something(number):
    """But for what depends on features, and two that more warps or other values would break."""
    space, found = SPACES[number], set()
    for shape in ("64x16x128x64", "1x2x300x64", "4x16x4096x128", "1x8x600x256", "1x8x600x32"):
        problem = funnel.stand_in(space, Workload(parse_any(shape)))
        if space.stage.why_not(problem) is None:
            found |= {broken for _, broken in space.points(problem)}
    unreached = {rule.says for rule in space.rules} - found
    assert unreached <= {
        "a maximum that waits for large scores is not for scores that are adjusted",
        "the blocks of an SM have more threads than it",
        "a K/V tile has too few keys for all warps to copy",
    }
    assert None in found


def modelled(best):
    """Times by a model: the farther from `best`, the slower; what it was asked for is in `asked`."""
    asked = []

    def timed(number, workload, configs, rounds):
        asked.append((rounds, [name_of(config) for config in configs]))
        found = {}
        for config in configs:
            far = sum(config[name] != value for name, value in best.items())
            time = 0.010 * (1 + 0.1 * far)
            found[name_of(config)] = {"time": time, "rounds_us": [1000 * time] * rounds, "right": True}
        return [found]

    timed.asked = asked
    return timed


@pytest.fixture
def few(monkeypatch):
    """Stage 16 with a small space: nothing is compiled for a GPU, and few cases check the elite."""
    small = {"cluster": (1, 2), "warpgroups": (1, 2), "keys": (64, 128, 256), "stages": (1, 2)}
    monkeypatch.setitem(SPACES, 16, SPACES[16].__class__(**{**SPACES[16].__dict__, "values": small}))
    asked = []

    def check(stage, **options):
        asked.append(stage.name)
        return check_stage(stage, names=["ragged 33", "causal ragged 70 rows, 33 keys"], **options)

    facts = {"registers": 99, "spill_bytes": 0, "shared_bytes": 9}
    monkeypatch.setattr(funnel, "compiled", lambda *job: dict(facts))
    monkeypatch.setattr(funnel, "check_stage", check)
    monkeypatch.setattr(funnel.pool, "_cores", lambda: 1)
    return asked


def test_a_search_near_the_shipped_configuration(few, tmp_path, capsys):
    path = tmp_path / "record.json"
    space = SPACES[16]
    found = funnel.search(space, SMALL, QUIET, path, changes=1)
    shipped = found["cache"][found["shipped"]]
    facts = [sum(each[name] != shipped[name] for name in space.values) for each in found["cache"].values()]
    assert sorted(facts) == [0, *[1] * (len(facts) - 1)]
    assert len(facts) == found["funnel"]["legal"] > 3
    whole = funnel.search(space, SMALL, QUIET)
    assert len(whole["cache"]) > len(facts)
    with pytest.raises(ArgumentError, match="holds another search: its changes is 1, this one's 2"):
        funnel.search(space, SMALL, QUIET, path, changes=2)
    cli.show(found, Console())
    assert "with at most 1 value that differs from the shipped ones" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.long
def test_a_search_finds_the_best_and_checks_it(few, tmp_path):
    best = {"cluster": 2, "warpgroups": 1, "keys": 64, "stages": 2}
    timed, path = modelled(best), tmp_path / "a" / "record.json"
    found = funnel.search(SPACES[16], SMALL, QUIET, path, timed, GPU, elite=2)
    assert found["elite"][0]["config"] == name_of(best) == few[0]
    assert len(found["elite"]) == 2
    assert found["cache"][name_of(best)]["checked"]
    shipped = found["shipped"]
    assert all(names[-1] == shipped for _, names in timed.asked), "what all others are compared with"
    assert [rounds for rounds, _ in timed.asked][-1] == funnel.LONG_ROUNDS
    assert json.loads(path.read_text()) == layout.rounded(json.loads(json.dumps(found)))
    ratio = found["cache"][name_of(best)]["of_shipped"]
    assert ratio == pytest.approx(found["cache"][name_of(best)]["time"] / found["cache"][shipped]["time"])


@pytest.mark.long
def test_a_search_times_what_is_launched_and_what_the_rule_says(few, monkeypatch):
    """Once a search has replaced the rule's choice, the next one still compares with both."""
    space, problem = SPACES[16], funnel.stand_in(SPACES[16], SMALL)
    rule, launches = space.rule(problem, record.SM_COUNT), (1, 2, 64, 2)
    monkeypatch.setattr(recorded, "find", lambda *given: launches)
    monkeypatch.setattr(funnel, "FINALISTS", 2)
    timed = modelled({"cluster": 1, "warpgroups": 1, "keys": 256, "stages": 1})
    found = funnel.search(space, SMALL, QUIET, None, timed, GPU, elite=1)
    assert found["shipped"] == name_of(space.config(launches))
    assert {found["shipped"], name_of(rule), "1,1,256,1"} <= set(found["finalists"])
    assert len(found["finalists"]) == 4, "the two best, and these"
    assert {len(rounds) for rounds in found["finalists"].values()} == {funnel.LONG_ROUNDS}
    assert (found["compute_capability"], found["sm_count"]) == ([9, 0], 132)


def test_a_search_goes_on_where_it_was_stopped(few, tmp_path, monkeypatch):
    monkeypatch.setattr(funnel, "CHUNK", 4)
    path, timed = tmp_path / "record.json", modelled({"keys": 64})

    def stopped(*given):
        if len(timed.asked) == 2:
            raise KeyboardInterrupt
        return timed(*given)

    with pytest.raises(KeyboardInterrupt):
        funnel.search(SPACES[16], SMALL, QUIET, path, stopped, GPU)
    seen = {name for _, names in timed.asked for name in names}
    timed.asked.clear()
    compiled = []
    monkeypatch.setattr(funnel, "compiled", lambda *given: compiled.append(given))
    found = funnel.search(SPACES[16], SMALL, QUIET, path, timed, GPU, elite=1)
    short = [set(names[:-1]) for rounds, names in timed.asked if rounds == funnel.SHORT_ROUNDS]
    assert short and not set.union(*short) & seen - {found["shipped"]}
    assert not compiled, "nothing is compiled again"
    timed.asked.clear()
    again = funnel.search(SPACES[16], SMALL, QUIET, path, timed, GPU, elite=1)
    assert again == layout.rounded(json.loads(json.dumps(found))) and not timed.asked, "it is finished"
    more = funnel.search(SPACES[16], SMALL, QUIET, path, timed, GPU, elite=2)
    assert len(more["elite"]) == 2 and [rounds for rounds, _ in timed.asked] == [funnel.LONG_ROUNDS]
    other = Workload(parse_any("1x8x1024x64"))
    with pytest.raises(ArgumentError, match="holds another search: its workload"):
        funnel.search(SPACES[16], other, QUIET, path, timed, GPU)


@pytest.mark.long
def test_what_is_wrong_or_does_not_end_is_no_time(few):
    def timed(number, workload, configs, rounds):
        (found,) = modelled({})(number, workload, configs, rounds)
        for name, each in found.items():
            if name.startswith("2,1"):
                each["right"] = False
            if name.startswith("1,2"):
                found[name] = {"failed": "it did not end"}
        return [found]

    found = funnel.search(SPACES[16], SMALL, QUIET, None, timed, GPU, elite=9)
    kinds = {name: each["time"] for name, each in found["cache"].items()}
    assert {kinds[name] for name in kinds if name.startswith(("2,1", "1,2"))} == {"RuntimeFailedConfig"}
    assert not any(each["config"].startswith(("2,1", "1,2")) for each in found["elite"])


@pytest.mark.long
def test_a_wrong_kernel_is_no_elite(few, monkeypatch):
    """The check runs what the configuration launches, not the stage as it ships."""
    space = SPACES[16]

    def run(problem, executor, config, **outputs):
        if config["keys"] == 64:
            problem = problem.__class__(problem.q, problem.k, problem.v, not problem.causal, problem.scale)
        space.run(problem, executor, config, **outputs)

    wrong = space.__class__(**{**space.__dict__, "run": run})
    monkeypatch.setitem(SPACES, 16, wrong)
    found = funnel.search(wrong, SMALL, QUIET, None, modelled({"keys": 64}), GPU, elite=1)
    assert found["elite"] and ",64," not in found["elite"][0]["config"]
    assert [name for name in few if ",64," in name]


@pytest.mark.long
def test_a_search_of_the_backward_pass(monkeypatch):
    """Its elite is checked by gradients; a kernel that is wrong is none."""
    small = {"rows": (64, 128), "stages": (2,), "ping_pong": (1,), "dv_early": (0,), "heads_together": (1, 2)}
    space = SPACES["backward/wgmma"]

    def run(problem, executor, config, dq, dk, dv):
        if config["rows"] == 64:
            dk, dv = dv, dk
        space.run(problem, executor, config, dq, dk, dv)

    for given, wins in ((space.run, 64), (run, 128)):
        one = space.__class__(**{**space.__dict__, "values": small, "run": given})
        monkeypatch.setitem(SPACES, "backward/wgmma", one)
        check = functools.partial(check_stage, names=["causal ragged 33 rows, 70 keys"])
        monkeypatch.setattr(funnel, "check_stage", check)
        monkeypatch.setattr(funnel.pool, "_cores", lambda: 1)
        workload = Workload(parse_any("1x2x100x64"))
        found = funnel.search(one, workload, QUIET, None, modelled({"rows": 64}), GPU, elite=1)
        assert found["funnel"]["legal"] == 5, "four, and the shipped one"
        assert found["elite"][0]["config"].startswith(f"{wins},")


@pytest.mark.long
@pytest.mark.parametrize("d", [64, 128])
def test_a_legal_tile_of_the_backward_pass_is_right(d, rng):
    """The rules let nothing through that the kernels cannot be; what they ship is among it."""
    space = SPACES["backward/mma_sync"]
    problem = funnel.stand_in(space, Workload(parse_any(f"1x8x512x{d}")))
    legal = [config for config, broken in space.points(problem) if broken is None]
    for shape in ("4x32x4096", "4x8x1024", "1x8x512"):
        large = funnel.stand_in(space, Workload(parse_any(f"{shape}x{d}")))
        assert space.shipped(large, record.SM_COUNT) in legal
    drawn = (
        [config for config in legal if config["split"]],
        [config for config in legal if not config["split"]],
    )
    for some in drawn:
        stage = space.configured(some[rng.integers(len(some))], problem)
        report = check_stage(stage, names=["causal ragged 33 rows, 70 keys"])
        assert report.passed, stage.name


@pytest.mark.long
def test_a_legal_configuration_of_decoding_is_right(rng):
    """Of several warps and parts, with pages that end inside a tile."""
    space = SPACES["decode/split"]
    problem = funnel.stand_in(space, Workload(parse_any("8x32/8x4096x64")))
    legal = [config for config, broken in space.points(problem) if broken is None]
    names = ["lengths around pages of 16", "alone and in a batch: the same bits"]
    stage = space.configured(legal[rng.integers(len(legal))], problem)
    report = check_stage(stage, names=names)
    assert report.passed, stage.name


def test_a_search_of_the_backward_pass_is_in_float16(capsys):
    sent = pickle.loads(pickle.dumps(SMALL))  # as another process gets it
    assert funnel.stand_in(SPACES["backward/wgmma"], sent).q.dtype == np.float16
    assert main(["tune", "backward/wgmma", "--element", "bfloat16"]) == 2
    assert "float16" in capsys.readouterr().err


def test_what_the_compiler_drops(monkeypatch):
    """Two blocks of so many registers do not fit one SM; too large a tile spills."""
    spilled = {"row_tiles": 2, "warps": 8, "keys": 128, "blocks": 2, "lazy": 1}
    found = funnel.compiled(12, SMALL, spilled)
    assert found["dropped"] == "registers are spilled to local memory" and found["spill_bytes"] > 0
    kept = funnel.compiled(12, SMALL, SPACES[12].shipped(funnel.stand_in(SPACES[12], SMALL), record.SM_COUNT))
    assert "dropped" not in kept and 0 < kept["registers"] <= 255 and not kept["spill_bytes"]
    broken = funnel.compiled(16, SMALL, {"cluster": 4, "warpgroups": 1, "keys": 64, "stages": 1})
    assert broken["dropped"] == "it does not compile", "static_assert of the kernel"


class Slower:
    """Each run takes half as long again as the one before: what `timing._apart` may find. Some do not end."""

    def __init__(self, *hang):
        self.hang, self.time = {*hang}, 0.010

    def __call__(self, number, workload, some, rounds):
        names = [name_of(each) for each in some]
        if self.hang & {*names}:
            return None
        self.time *= 1.5
        return {
            name: {"time": self.time, "rounds_us": [1000 * self.time] * rounds, "right": True}
            for name in names
        }


def test_one_that_hangs_is_found_among_others(monkeypatch):
    """Each run has the times of the last one there."""
    monkeypatch.setattr(timing, "_apart", Slower("4"))
    runs = timing.timing(16, SMALL, [{"n": n} for n in (*range(7), 99)], 5)
    assert [set(run) - {"99"} for run in runs] == [{"0", "1", "2"}, {"3"}, {"4"}, {"5", "6"}]
    assert [name for run in runs for name, each in run.items() if "failed" in each] == ["4"]
    assert "did not end in" in next(run["4"]["failed"] for run in runs if "4" in run)
    assert len({run["99"]["time"] for run in runs}) == len(runs)


@pytest.mark.parametrize("hang, failed", [("3", {"3"}), ("99", {"3", "99"})])
def test_one_that_hangs_beside_the_last_one_alone(monkeypatch, hang, failed):
    monkeypatch.setattr(timing, "_apart", Slower(hang))
    (run,) = timing.timing(16, SMALL, [{"n": 3}, {"n": 99}], 5)
    assert set(run) == {"3", "99"} and {name for name in run if "failed" in run[name]} == failed


@pytest.fixture
def passing(few, monkeypatch):
    """The CPU executor finds everything right."""
    monkeypatch.setattr(funnel, "check_stage", lambda stage, **options: SimpleNamespace(passed=True))


HANGS = "1,2,64,2"


def test_times_of_runs_apart_are_compared_within_each(passing, monkeypatch):
    """All are as fast as the shipped one beside them."""
    monkeypatch.setattr(timing, "_apart", Slower(HANGS))
    found = funnel.search(SPACES[16], SMALL, QUIET, None, timing.timing, GPU)
    assert [name for name, each in found["cache"].items() if "failed" in each] == [HANGS]
    assert {each["of_shipped"] for name, each in found["cache"].items() if name != HANGS} == {1.0}


def test_the_elite_is_of_one_run(passing, monkeypatch):
    """Which is repeated without a configuration that hangs in it."""
    asked = []
    monkeypatch.setattr(timing, "_apart", apart := Slower())

    def timed(number, workload, configs, rounds):
        if rounds == funnel.LONG_ROUNDS:
            apart.hang = {HANGS}
            asked.append({name_of(config) for config in configs})
        return timing.timing(number, workload, configs, rounds)

    found = funnel.search(SPACES[16], SMALL, QUIET, None, timed, GPU)
    first, second = asked
    assert first - second == {HANGS} and set(found["finalists"]) == second and len(found["elite"]) == 3
    assert all(each["rounds_us"] == each["shipped_rounds_us"] for each in found["elite"])


@pytest.mark.parametrize("hang, elite", [("the other", 1), ("the shipped one", 0), ("none", 0)])
def test_the_only_finalist_hangs(passing, monkeypatch, tmp_path, hang, elite):
    """Or what it is compared with: the record is written, with an elite where there is a comparison."""
    space, path = SPACES[16], tmp_path / "record.json"
    shipped = name_of(space.shipped(funnel.stand_in(space, SMALL), record.SM_COUNT))

    def timed(number, workload, configs, rounds):
        if rounds == funnel.SHORT_ROUNDS:  # of one alone there is a time
            (found,) = modelled({})(number, workload, configs, rounds)
            right = [name for name in found if name != shipped][:1]
            return [{name: each | {"right": name in right} for name, each in found.items()}]
        (other,) = (name_of(config) for config in configs[:-1])
        if hang == "none":
            (found,) = modelled({})(number, workload, configs, rounds)
            return [found | {shipped: {"failed": "it did not run"}}]
        monkeypatch.setattr(timing, "_apart", Slower(other if hang == "the other" else shipped))
        return timing.timing(number, workload, configs, rounds)

    monkeypatch.setattr(funnel, "CHUNK", 99)
    found = funnel.search(space, SMALL, QUIET, path, timed, GPU, elite=3)
    assert [each["config"] for each in found["elite"]] == [shipped] * elite
    assert record.load(path)["elite"] == layout.rounded(found["elite"])


def _sleep(pipe, *given):
    time.sleep(60)


def _answer(pipe, function, arguments, folder):
    pipe.send({"answer": arguments[0]})


def _die(pipe, *given):
    sys.exit(3)


@pytest.mark.long
@pytest.mark.parametrize("child, expected", [(_sleep, None), (_die, None), (_answer, {"answer": 16})])
def test_a_run_is_a_process_that_can_be_stopped(monkeypatch, child, expected):
    monkeypatch.setattr(timing, "_send", child)
    monkeypatch.setattr(timing, "SECONDS_BESIDE", 0.2 if child is _sleep else 30)
    monkeypatch.setattr(timing, "SECONDS_EACH", 0)
    assert timing._apart(16, SMALL, [{}], 5) == expected
    assert not multiprocessing.active_children()


def _full(*given):
    raise MachineError("the disk is full")


def test_a_machine_that_fails_is_no_configuration_that_does(monkeypatch):
    monkeypatch.setattr(timing, "measured", _full)
    with pytest.raises(MachineError, match="the disk is full"):
        timing.timing(16, SMALL, [{"a": 1}, {"a": 2}, {"a": 3}], 5)
    assert not multiprocessing.active_children()


def _leave(*given):
    tempfile.mkdtemp()
    time.sleep(60)


@pytest.mark.long
def test_what_is_stopped_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert timing.apart(_leave, (), 5) is None
    assert not [*tmp_path.iterdir()]


def kept(tmp_path):
    """A record with times, and one configuration that has none."""
    found = record.new(SPACES[16], SMALL, GPU)
    for number, (config, broken) in enumerate(SPACES[16].points(funnel.stand_in(SPACES[16], SMALL))):
        if broken is None:
            found["cache"][name_of(config)] = record.entry(config, time=1.0 + number)
    last = name_of(config)
    if last in found["cache"]:
        found["cache"][last]["time"] = record.FAILED[0]
    path = tmp_path / "record.json"
    record.save(path, found)
    return path, found


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # what Kernel Tuner warns about is its own
@pytest.mark.parametrize("strategy", ["brute_force", "random_sample", "genetic_algorithm"])
def test_a_replay_sees_what_was_recorded(tmp_path, strategy):
    path, found = kept(tmp_path)
    before = path.read_text()
    result = replay.replay(path, strategy, 10)
    times = {name_of(record.config_of(found, each)): each["time"] for each in record.timed(found)}
    seen = [times[name_of(config)] for config in result["seen"]]
    assert len(seen) == result["evaluations"] >= (len(times) if strategy == "brute_force" else 5)
    assert result["time"] == min(seen) == times[name_of(result["best"])]
    assert result["share"] == pytest.approx(min(times.values()) / min(seen))
    assert path.read_text() == before, "the record is left as it was"


def test_what_a_replay_refuses(tmp_path, monkeypatch):
    path, _ = kept(tmp_path)
    with pytest.raises(ArgumentError, match=r"strategy 'other': accepted are .*brute_force"):
        replay.replay(path, "other", 5)
    with pytest.raises(ArgumentError, match="evaluations is 0"):
        replay.replay(path, "random_sample", 0)
    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    with pytest.raises(MissingPackageError, match=r"flashcore-numba\[tune\]"):
        replay.replay(path, "random_sample", 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache", []),
        ("cache", {"1,1": 3}),
        ("cache", {"1,1": {"time": 1.0}}),
        ("funnel", None),
        ("elite", {}),
        ("tune_params", {}),
        ("tune_params_keys", 3),
    ],
)
def test_a_damaged_record_is_no_record(name, value, tmp_path):
    path, found = kept(tmp_path)
    path.write_text(json.dumps(found | {name: value}))
    for read in (record.whole, lambda path: replay.replay(path, "random_sample", 5)):
        with pytest.raises(ArgumentError, match=r"is no whole record of flashcore tune: its \w+ is damaged"):
            read(path)
    with pytest.raises(ArgumentError, match="is damaged"):
        funnel.search(SPACES[16], SMALL, QUIET, path)
    path.write_text("[" * 99_999)
    with pytest.raises(ArgumentError, match="is not JSON"):
        record.load(path)


def test_the_command_without_a_gpu(few, tmp_path, capsys):
    assert main(["tune", "16", "--shape", "1x8x512x64", "--save", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "24 combinations of cluster, warpgroups, keys, stages" in shown and "Times need a GPU" in shown
    found = record.load(tmp_path / "tune-16-1x8x512x64.json")
    assert found["funnel"]["combinations"] == 24 and not found["elite"]
    assert main(["tune", "--replay", str(tmp_path / "tune-16-1x8x512x64.json")]) == 2
    assert "has no times" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["tune"], "name a stage to search"),
        (["tune", "7"], "stage '7' has no space to search"),
        (["tune", "16", "--strategy", "random_sample"], "--strategy: is for --replay"),
        (["tune", "--replay", "a.json", "--changes", "2"], "--changes: is for a search"),
        (["tune", "--replay", "a.json", "--save", "runs"], "--save: is for a search"),
        (["tune", "--replay", "a.json", "--shape", "small"], "--shape: is for a search"),
        (["tune", "--replay", "a.json", "--elite", "2"], "--elite: is for a search"),
        (["tune", "--table", "--changes", "2"], "--changes beside --table"),
        (["tune", "--table", "--causal"], "--causal beside --table"),
        (["tune", "--table", "16"], "'16' beside --table"),
        (["tune", "16", "--shape", "1x8x512x80"], "head dimension"),
        (["tune", "--replay", "nowhere.json"], "'nowhere.json': cannot be read"),
    ],
)
def test_bad_arguments(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_the_elite_beside_the_shipped(few, capsys):
    from flashcore_numba.cli.tune import show

    timed = modelled({"cluster": 1, "warpgroups": 1, "keys": 64, "stages": 1})
    found = funnel.search(SPACES[16], SMALL, QUIET, None, timed, GPU, elite=1)
    show(found, Console(width=120))
    shown = capsys.readouterr().out
    assert found["elite"][0]["config"] in shown and "The best takes" in shown
