"""The table of what searches found: the records give it, stages look into it, what is broken is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from test_tune import launched

from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.runner import check_stage
from flashcore_numba.cli import main
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import Features
from flashcore_numba.core.output import LSE
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.measure import timing
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.records import artifact
from flashcore_numba.report import search_tables
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages.tuning import recorded
from flashcore_numba.tune import funnel, record, table
from flashcore_numba.tune.spaces import SPACES, name_of

KEPT = artifact.recorded_dir() / table.FOLDER / "tune-16-1x8x1024x64.json"
SHAPE = "1x2x300x64"
CHOSEN = {  # legal there, and no rule's choice
    12: (1, 8, 32, 1, 0),
    13: (1, 2, 2, 32, 1, 0, 2),
    15: (2, 64, 3, 1, 1, 0, 4, 1, 1, 0, 0),
    16: (2, 1, 64, 1),
    "backward/mma_sync": (64, 64, 4, 1, 1, 0),
    "backward/wgmma": (64, 3, 0, 1, 2),
}


LOOKED_UP = [number for number, space in SPACES.items() if space.looked_up]


def stand_in(number, shape=SHAPE, causal=False):
    return funnel.stand_in(SPACES[number], Workload(parse_any(shape), causal))


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """A table with `CHOSEN` in it."""
    assert list(CHOSEN) == LOOKED_UP
    entries = [
        {"stage": number, "sm_count": 132, "problem": [1, 2, 2, 300, 64, 64], "causal": False}
        | {"element": "float16", "best": SPACES[number].config(values), "taken": True, "date": "2026-11-24"}
        for number, values in CHOSEN.items()
    ]
    other = SPACES[12].config((1, 2, 32, 1, 0))
    entries += [entries[0] | {"best": other, **change} for change in ({"sm_count": 7}, {"taken": False})]
    monkeypatch.setattr(recorded, "FILE", tmp_path / "recorded.json")
    table.save(entries)
    yield
    recorded.forget()


@pytest.mark.parametrize("number", LOOKED_UP)
def test_a_stage_launches_what_is_recorded(number, chosen):
    """For exactly that problem; a variant that names its own configuration has that."""
    space, problem = SPACES[number], stand_in(number)
    config = space.config(CHOSEN[number])
    assert space.broken(problem, config) is None
    assert config != space.rule(problem, 132) and space.shipped(problem, 132) == config
    of_config = launched(space, problem, space.configured(config, problem).launch)
    assert launched(space, problem, space.stage.launch) == of_config
    shapes = ("1x2x301x64", "2x2x300x64", "1x2/1x300x64", "1x2x300x128")
    for other in (*(stand_in(number, shape) for shape in shapes), stand_in(number, causal=True)):
        rule = space.rule(other, 132)
        assert space.shipped(other, 132) == rule
        assert launched(space, other, space.stage.launch) == launched(
            space, other, space.configured(rule, other).launch
        )


@pytest.mark.parametrize("number", [12, 13, 15, 16])
def test_another_problem_than_the_recorded_one(number, chosen):
    q, k, v = parse_any(SHAPE).untouched()
    assert recorded.find(number, Problem(q, k, v), 132) == CHOSEN[number]
    assert recorded.since(number, Problem(q, k, v), 132) == "2026-11-24"
    others = [
        Problem(*parse_any(SHAPE).untouched(BFLOAT16)),
        Problem(q, k, v, features=Features((63, 0))),
        Problem(q, k, v, features=Features(softcap=30.0)),
        Problem(q[:, :, :64], k, v),
    ]
    assert [recorded.find(number, problem, 132) for problem in others] == [None] * 4
    assert recorded.find(number, Problem(q, k, v), 114) is None


@pytest.mark.parametrize(
    ("number", "variant"),
    [(12, "large"), (13, "unsplit"), (15, "in_sequence"), (16, "one_block"), ("backward/mma_sync", "large"),
     ("backward/wgmma", "deterministic")],
)  # fmt: skip
def test_a_variant_stays_what_it_is(number, variant, chosen, monkeypatch):
    space, problem = SPACES[number], stand_in(number)

    def launch(*given, **options):
        space.stage.launch(*given, variant=variant, **options)

    with_table = launched(space, problem, launch)
    if number == 13:  # of its splits alone it says something
        unsplit = space.config((*CHOSEN[13][:-1], 1))
        assert with_table == launched(space, problem, space.configured(unsplit, problem).launch)
        return
    monkeypatch.setattr(recorded, "find", lambda *given: None)
    assert with_table == launched(space, problem, launch)


@pytest.mark.long
@pytest.mark.parametrize("number", LOOKED_UP)
def test_a_prediction_follows(number, chosen, rng):
    space = SPACES[number]
    inputs = operation(space.stage).draw(parse_any(SHAPE), False, rng)
    problem, executor = inputs.problem(inputs.arrays), Simulator(sm_count=132, races=False)
    outputs = [each for each in operation(space.stage).outputs if each is not LSE]
    space.stage.launch(
        problem,
        executor=executor,
        **{each.name: np.empty(each.shape(problem), each.dtype(problem)) for each in outputs},
    )
    counted = sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())
    assert predict(space.stage, space.stage.name, problem, 132) == counted


def test_dropout_is_another_kernel_than_the_one_that_was_searched(chosen):
    space, problem = SPACES[12], stand_in(12)

    def launch(problem, executor, out):
        space.stage.launch(problem, out, executor, macros={"DROPOUT": 1})

    (kernel, *_), *_ = launched(space, problem, launch)
    assert dict(kernel.defines)["BLOCK_N"] == space.rule(problem, 132)["keys"] != CHOSEN[12][2]


def test_the_committed_table_is_what_the_records_give():
    assert recorded.FILE.read_text() == table.text(table.made()), "run flashcore tune --table"


@pytest.mark.parametrize("entry", json.loads(recorded.FILE.read_text())["entries"], ids=lambda e: e["record"])
def test_what_is_in_the_table_is_legal(entry):
    """Or nothing is, where no configuration was timed again."""
    space = SPACES[entry["stage"]]
    problem = stand_in(entry["stage"], entry["shape"], entry["causal"])
    assert entry["rule"] == space.rule(problem, entry["sm_count"])
    assert entry["best"] is None or space.broken(problem, entry["best"]) is None
    assert not entry["taken"] or entry["best"] not in (None, entry["rule"])


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("entry", json.loads(recorded.FILE.read_text())["entries"], ids=lambda e: e["record"])
def test_what_is_in_the_table_is_right(entry):
    space = SPACES[entry["stage"]]
    problem = stand_in(entry["stage"], entry["shape"], entry["causal"])
    if entry["best"] is not None:
        report = check_stage(space.configured(entry["best"], problem), stop_at_first=True)
        assert report.passed, name_of(entry["best"])


def kept(change=lambda record: None):
    """A record whose elite is 2,1,128,2, as the rule has it, and two others."""
    found = json.loads(KEPT.read_text())
    change(found)
    return found


def written(folder, found, name=KEPT.name):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(found))
    return folder


def faster(times, finalists=False):
    """Another configuration than the rule's is the fastest, so many times."""

    def change(record):
        shipped, other = record["elite"][:2]
        other["rounds_us"] = [us / times for us in shipped["rounds_us"]]
        record["elite"] = [other]
        if finalists:  # what shipped then was neither
            record["finalists"] = dict.fromkeys((shipped["config"], "1,1,64,2"), shipped["rounds_us"])
            record["shipped"] = "1,1,64,2"

    return change


@pytest.mark.parametrize("finalists", [False, True])
@pytest.mark.parametrize(("times", "taken"), [(1.1, True), (1.03, True), (1.015, False), (0.9, False)])
def test_a_configuration_replaces_the_rule_where_it_is_worth_it(times, taken, finalists, tmp_path):
    (entry,) = table.made(written(tmp_path, kept(faster(times, finalists))))
    assert name_of(entry["rule"]) == "2,1,128,2" and name_of(entry["best"]) == "1,2,128,2"
    assert entry["taken"] == taken
    assert entry["less"]["low"] < 1 - 1 / times < entry["less"]["high"]
    assert entry["us"]["rule"] / entry["us"]["best"] == pytest.approx(times)


def test_a_stage_that_does_not_look_keeps_its_rule(tmp_path):
    """Of decoding the lengths are on the GPU: times at one say nothing about a request of another."""
    space, workload = SPACES["decode/split"], Workload(parse_any("8x32/8x4096x128"))
    problem = funnel.stand_in(space, workload)
    rule, best = space.rule(problem, 132), space.config((1, 4, 2, 2, 8, 256))
    found = record.new(space, workload, record.Device("a GPU"))
    found["cache"][name_of(best)] = record.entry(best, time=0.02, checked=True)
    rounds = {"rounds_us": [20.0, 20.1, 20.2], "shipped_rounds_us": [40.0, 40.1, 40.2]}
    found |= {"shipped": name_of(rule), "elite": [{"config": name_of(best), **rounds}]}
    (entry,) = table.made(written(tmp_path, found, "tune-decode_split.json"))
    assert entry["less"]["low"] > 0.4 and not entry["taken"]
    assert space.shipped(problem, 132) == rule and "lengths" in table.row(entry)[5]


def test_a_slow_configuration_may_leave_before_the_last_round(tmp_path):
    """What is compared are the rounds that both were in: the drift after them is of one alone."""

    class Clock:
        reading = None
        calls = replays = staticmethod(lambda entry, count: [entry.launch_us] * count)

    names = ("1,2,128,2", "2,1,128,2")
    slow = [SimpleNamespace(launches=1, launch_us=us) for us in (24_000.0, 30_000.0)]
    rounds = {
        name: [float(np.median(times)) for times in samples.gpu_us]
        for name, samples in zip(names, timing.measure(slow, funnel.LONG_ROUNDS, Clock()), strict=True)
    }
    assert [len(each) for each in rounds.values()] == [20, 17]
    rounds[names[0]][17:] = [1e6] * 3

    def change(found):
        elite = {"config": names[0], "rounds_us": rounds[names[0]], "shipped_rounds_us": rounds[names[1]]}
        found |= {"finalists": rounds, "elite": [elite], "shipped": names[1]}

    (entry,) = table.made(written(tmp_path, kept(change)))
    assert entry["less"] == {"low": pytest.approx(0.2), "high": pytest.approx(0.2)} and entry["taken"]


def test_times_that_vary_replace_nothing(tmp_path):
    def vary(found):
        faster(1.03)(found)
        rounds = found["elite"][0]["rounds_us"]
        rounds[::2] = [1.05 * us for us in rounds[::2]]

    (entry,) = table.made(written(tmp_path, kept(vary)))
    assert entry["less"]["low"] < table.WORTH and not entry["taken"]


def test_a_rule_that_has_changed_since_stays(tmp_path, monkeypatch):
    """Its new choice is not in the run: nothing was measured against it."""
    folder = written(tmp_path, kept(faster(1.5)))
    new = SPACES[16].config((1, 1, 64, 3))
    other = SPACES[16].__class__(**{**SPACES[16].__dict__, "rule": lambda *given: new})
    monkeypatch.setitem(SPACES, 16, other)
    (entry,) = table.made(folder)
    assert not entry["taken"] and "less" not in entry
    assert "search again" in " ".join(table.row(entry))


def test_the_newer_record_counts(tmp_path):
    for name, date, times in (("tune-a.json", "2026-11-25", 1.2), ("tune-b.json", "2026-11-24", 1.1)):
        written(tmp_path, kept(faster(times)) | {"date": date}, name)
    (entry,) = table.made(tmp_path)
    assert entry["record"] == "tune-a.json" and entry["date"] == "2026-11-25"


def test_the_page_says_what_the_records_hold(tmp_path):
    """With what the best of one problem costs at another."""
    assert search_tables.tuned(tmp_path) is None
    folder = tmp_path / table.FOLDER
    one, other = kept(faster(1.25)), kept()
    other["workload"]["shape"] = "1x8x2048x64"
    for name, each in other["cache"].items():
        each["of_shipped"] = {"2,1,128,2": 1.0, "1,2,128,2": 1.4}.get(name, 2.0)
    written(folder, one)
    assert search_tables.tuned(tmp_path).endswith(
        "In 0 of 1 searches the best takes at most 2% less than the rule's."
    )
    written(folder, other, "tune-16-1x8x2048x64.json")
    assert table.near(table.made(folder)) == (1, 2)
    assert table.elsewhere(folder) == pytest.approx(1.4)
    page = search_tables.tuned(tmp_path)
    assert "| 2,1,128,2 | 1,2,128,2 | 19.9 to 20.1 % | the best | [2026-11-24](" in page
    assert "takes up to 40% more time on another of the same stage" in page


def edited(*path, to):
    def change(found):
        for name in path[:-1]:
            found = found[name]
        if to is None:
            del found[path[-1]]
        else:
            found[path[-1]] = to

    return change


BROKEN = [
    (edited("kernel_name", to="tma_wgmma"), "it is of 'tma_wgmma', which has no space to search"),
    (edited("kernel_name", to=["a"]), "it is of \\['a'\\], which has no space to search"),
    (
        edited("tune_params_keys", to=["keys"]),
        "it searched keys, and 16 cluster_split has cluster, warpgroups",
    ),
    (edited("workload", "shape", to="1x8"), "shape '1x8': accepted are"),
    (edited("workload", "shape", to="4x8x100-900x64"), "4x8x100-900x64 is a ragged batch"),
    (edited("workload", "shape", to="1x8x512x80"), "16 cluster_split does not serve head dimension 80"),
    (edited("workload", "element", to="float64"), "its element type is 'float64'"),
    (edited("workload", "causal", to=None), "is no whole record of flashcore tune: KeyError\\('causal'\\)"),
    (edited("elite", 0, "config", to="2,1,128"), "2,1,128 of its elite is not in its cache"),
    (edited("elite", 0, "rounds_us", 3, to=-1.0), "the rounds of 2,1,128,2 are not those of one run"),
    (edited("elite", 0, "rounds_us", 3, to=float("nan")), "the rounds of 2,1,128,2 are not those of one run"),
    (edited("elite", 0, "rounds_us", to=[7.0]), "the rounds of .* are not those of one run"),
    (edited("elite", 0, "rounds_us", to=[7.0] * 4), "the rounds of .* are not those of one run"),
    (edited("cache", "2,1,128,2", "keys", to=64), "2,1,128,2 of its elite is 2,1,64,2 in its cache"),
    (edited("cache", "2,1,128,2", "checked", to=False), "2,1,128,2 of its elite .*has not found it right"),
    (edited("cache", "1,2,128,2", "dropped", to="it spills"), "1,2,128,2 of its elite .*: it spills"),
    (edited("cache", "2,1,256,1", "stages", to="x"), "is no whole record of flashcore tune: ValueError"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_record_is_refused_with_one_sentence(change, message, tmp_path):
    folder = written(tmp_path, kept(change))
    with pytest.raises(ArgumentError, match=rf"^tune-16-1x8x1024x64.json:? {message}") as error:
        table.made(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((2, 2, 256, 2), "a block needs more shared memory than there is"),
        ((2, 2, 128, 4), "a block needs more shared memory than there is"),
        ((2, 2, 128, 3), "the ring has more slots than there are tiles"),
        ((4, 1, 64, 1), "cluster has no such value in the space"),
    ],
)
def test_an_illegal_configuration_is_refused(values, message, tmp_path):
    config = SPACES[16].config(values)

    def change(found):
        found["cache"][name_of(config)] = record.entry(config, time=0.001, checked=True)
        found["elite"][0]["config"] = name_of(config)

    with pytest.raises(
        ArgumentError, match=rf"{name_of(config)} of its elite may not be launched: {message}"
    ):
        table.made(written(tmp_path, kept(change)))


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A folder of recorded measurements, and another file for the table."""
    (tmp_path / table.FOLDER).mkdir()
    monkeypatch.setattr(artifact, "recorded_dir", lambda: tmp_path)
    monkeypatch.setattr(recorded, "FILE", tmp_path / "recorded.json")
    yield tmp_path / table.FOLDER
    recorded.forget()


def test_the_command(records, capsys, monkeypatch):
    """A new record is in the table, and launched, once the command has run."""
    monkeypatch.setenv("COLUMNS", "120")  # so that no cell folds, however long the intervals are
    written(records, kept(faster(1.25)))
    problem = stand_in(16, "1x8x1024x64")
    assert main(["tune", "--table"]) == 0
    shown = capsys.readouterr().out
    assert "2,1,128,2 │ 1,2,128,2 │ 19." in shown and "the best" in shown and "1 of 1 take the place" in shown
    assert "wrote recorded.json; what else follows" in shown
    assert name_of(SPACES[16].shipped(problem, 132)) == "1,2,128,2"
    assert main(["tune", "--table"]) == 0
    assert capsys.readouterr().out.endswith("recorded.json says the same already\n")
    written(records, kept(faster(1.01)))
    assert main(["tune", "--table", "--json", "-"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert not entry["taken"] and name_of(SPACES[16].shipped(problem, 132)) == "2,1,128,2"


def test_a_broken_record_leaves_the_table_as_it_is(records, capsys):
    written(records, kept(faster(1.25)))
    main(["tune", "--table"])
    before = recorded.FILE.read_text()
    written(records, kept(BROKEN[0][0]))
    capsys.readouterr()
    assert main(["tune", "--table"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("flashcore tune: tune-16-1x8x1024x64.json: it is of") and error.count("\n") == 1
    assert recorded.FILE.read_text() == before


@pytest.mark.parametrize(
    "words", [["16"], ["--strategy", "random_sample"], ["--save", "x"], ["--evals", "3"]]
)
def test_the_command_takes_nothing_else(words, capsys):
    assert main(["tune", *words, "--table"]) == 2
    assert "beside --table" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_a_narrow_terminal_cuts_no_configuration(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(table, "save", lambda entries: False)
    assert main(["tune", "--table"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(entry["shape"] in shown for entry in table.made())
