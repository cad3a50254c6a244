"""`flashcore evolve` with the real judge: what dies, what lives, what is shown, and what is refused."""

import json
import sys

import pytest

from flashcore_numba.cli import evolve as command
from flashcore_numba.cli import main
from flashcore_numba.course.lessons import find
from flashcore_numba.evolve import clock, engine, lineage, proposers, region, source
from flashcore_numba.evolve.proposers import BLOCK
from flashcore_numba.stages import edited

from .stand_in import LESSON, OWN, Says, before_last, search

WARM_UP = region.own(find("warm-up"))
BARRIER = next(line for line in WARM_UP.splitlines() if "__syncthreads" in line)
ROW = next(line for line in WARM_UP.splitlines() if "const int row" in line)
COLUMN = next(line for line in WARM_UP.splitlines() if "const int column" in line)


def replies(path, *blocks):
    lines = [
        json.dumps({"reply": BLOCK.format(old=old, new=new), "operator": name}) for name, old, new in blocks
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.long
def test_a_bad_edit_dies_and_a_harmless_one_lives(tmp_path, capsys, wide):
    file = replies(
        tmp_path / "replies.jsonl",
        ("no barrier", BARRIER, "    __syncwarp();"),
        ("other order", f"{ROW}\n{COLUMN}", f"{COLUMN}\n{ROW}"),
    )
    folder = tmp_path / "run"
    assert (
        main(["evolve", "warm-up", "--proposer", f"recorded:{file}", "--seed", "1", "--save", str(folder)])
        == 0
    )
    out = capsys.readouterr().out
    start, bad, harmless = lineage.load(folder).candidates
    assert start.valid and harmless.valid and not bad.valid
    assert bad.layer and "__syncwarp" in bad.message and start.counters
    assert "2 judged, 1 valid" in out and "no barrier" in out and f"wrote {folder}" in out
    assert "No time was measured" in out
    assert (folder / "best.cu").read_text() == source.whole(find("warm-up"), WARM_UP)[1]

    assert main(["evolve", "--show", str(folder)]) == 0
    assert capsys.readouterr().out == out.rpartition("wrote ")[0]
    assert main(["evolve", "--show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["candidates"][2]["operator"] == "other order"


LESSON_14 = {
    "V is not waited for": ("        ptx::mbarrier_wait(v_full + slot, parity);", None),
    "one product in flight": (
        "        ptx::wgmma_wait<0>();  // S is whole",
        "        ptx::wgmma_wait<1>();",
    ),
    "slot without a barrier": ("        __syncthreads();", None),
    "the other phase": (
        "        ptx::mbarrier_wait(k_full + slot, parity);",
        "        ptx::mbarrier_wait(k_full + slot, parity ^ 1);",
    ),
}


@pytest.mark.long
def test_what_dies_in_lesson_14(tmp_path):
    """Each with a line of the region; a harmless rewrite lives."""
    blocks = []
    for name, (begin, new) in LESSON_14.items():
        old = next(line for line in OWN.splitlines() if line.startswith(begin))
        blocks.append((name, old, new or "        // nothing"))
    wait = next(line for line in OWN.splitlines() if "// S is whole" in line)
    blocks.append(("twice", wait, f"{wait}\n{wait}"))
    blocks.append(("lane", "    const int lane = threadIdx.x % 32;", "    const int lane = 0;"))
    file, folder = replies(tmp_path / "replies.jsonl", *blocks), tmp_path / "run"
    assert main(["evolve", "14", "--proposer", f"recorded:{file}", "--save", str(folder)]) == 0
    *wrong, twice, lane = lineage.load(folder).candidates[1:]
    assert [each.operator for each in wrong] == list(LESSON_14) and twice.valid
    assert not [each.operator for each in wrong if each.valid or each.line is None]
    assert lane.layer == "region" and lane.region == ""


@pytest.mark.long
def test_edits_of_lesson_14(tmp_path):
    """Some of them die, the harmless one lives."""
    assert main(["evolve", "14", "--iterations", "4", "--seed", "1", "--save", str(tmp_path)]) == 0
    found = lineage.load(tmp_path).candidates
    assert {each.valid for each in found[1:]} == {True, False}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "LESSON: name a lesson to search, or --show DIR"),
        (["99"], "lesson '99': accepted are"),
        (
            ["14", "--proposer", "nobody"],
            "--proposer 'nobody': accepted are edits, recorded:FILE, llm and file",
        ),
        (["14", "--proposer", "recorded:none"], "'none': cannot be read"),
        (["14", "--proposer", "file"], "--proposer file: needs --save DIR"),
        (["14", "--url", "x"], "--url: is for --proposer llm"),
        (["14", "--show", "x"], "'14': is for a search, and does not go with --show"),
        (["--seed", "1", "--show", "x"], "--seed: is for a search, and does not go with --show"),
        (["--show", "/no/such"], "cannot be read"),
        (["14", "--seed", "-1"], "'-1': a whole number from 0"),
        (["14", "--start", "/no/such"], "--start '/no/such': cannot be read"),
    ],
)
def test_what_is_wrong_gets_one_line(arguments, says, capsys):
    try:
        status = main(["evolve", *arguments])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "") and says in err and err.count("\n") == 1


def test_without_openevolve_one_sentence_says_how_to_get_it(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("openevolve", engine.__name__))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "flashcore_numba.evolve.population")
    monkeypatch.setitem(sys.modules, "openevolve", None)
    monkeypatch.delattr("flashcore_numba.evolve.engine")
    assert main(["evolve", "14"]) == 1
    assert "pip install 'flashcore-numba[evolve]'" in capsys.readouterr().err


def test_an_endpoint_that_goes_ends_the_search_and_loses_nothing(tmp_path, monkeypatch, capsys):
    gone = proposers.UnreachableError("--url: 'http://x' cannot be reached: no route")
    says = Says(before_last("faster"), gone, before_last("faster"))
    with pytest.raises(proposers.UnreachableError):
        search(says, 3, folder=tmp_path)
    assert len(lineage.load(tmp_path).candidates) == 2 and len(says.asked) == 2 and says.closed
    assert "faster" in (tmp_path / "best.cu").read_text()

    def evolve(*_, **__):
        raise gone

    monkeypatch.setattr(engine, "evolve", evolve)
    assert main(["evolve", "14"]) == 1
    out, err = capsys.readouterr()
    assert "1 judged, 1 valid" in out
    assert err == "flashcore evolve: --url: 'http://x' cannot be reached: no route\n"
    assert main(["evolve", "14", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["candidates"]) == 2


def test_a_search_begins_with_an_answer(tmp_path, monkeypatch, capsys):
    path = tmp_path / "answer.cu"
    path.write_text(source.whole(LESSON, OWN.replace("// S is whole", "// S is there"))[1])
    kept, record = [], search(Says(), 0)
    monkeypatch.setattr(engine, "evolve", lambda *given, **options: kept.append(options) or record)
    assert main(["evolve", "14", "--start", str(path), "--json"]) == 0
    assert region.ended(kept[0]["start"]) == OWN.replace("// S is whole", "// S is there")
    capsys.readouterr()
    path.write_text("int x;\n")
    assert main(["evolve", "14", "--start", str(path)]) == 2
    assert "is no file of Lesson 14 with its region" in capsys.readouterr().err


def rounds(stage, parent, child):
    return {
        name: {"rounds_us": [us * (1 + k / 1000) for k in range(20)]}
        for name, us in ((clock.STAGE, stage), (clock.PARENT, parent), (clock.CHILD, child))
    }


@pytest.mark.parametrize("lesson", ["5", "12", "14"])
def test_what_is_timed_has_labels_of_its_own(lesson):
    exercise = find(lesson).exercise
    stage, names = edited.original(exercise.stage), (clock.STAGE, clock.PARENT, clock.CHILD)
    runs = [clock._alone(stage, exercise.variant, name) for name in names]
    assert len({run.label for run in runs}) == 3
    wanted = exercise.variant or stage.default_variant
    assert {run.variant for run in runs} == {wanted} and all(run.is_default for run in runs)


def clocked(monkeypatch, found):
    monkeypatch.setattr(clock, "apart", lambda function, arguments, seconds: found)
    return clock.clock(LESSON, ("mission", "medium"))("child", "parent")


def test_a_time_is_the_lower_end_of_an_interval(monkeypatch):
    found = clocked(monkeypatch, rounds(12.0, 11.0, 10.0))
    assert found["right"] and 1.18 < found["fitness"] < 1.2 and 1.08 < found["of_parent"] < 1.1
    assert set(found["rounds_us"]) == {"mission", "medium"}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "at mission it does not end, or takes its process down."),
        ({clock.CHILD: {"failed": "its timed output is wrong."}}, "at mission its timed output is wrong."),
        *(
            (
                rounds(12.0, 11.0, 10.0) | {name: {"failed": "it did not run: no room"}},
                f"at mission the {name} that is timed beside it: it did not run: no room",
            )
            for name in (clock.PARENT, clock.STAGE)
        ),
    ],
)
def test_what_has_no_time_is_wrong(found, says, monkeypatch):
    assert clocked(monkeypatch, found) == {"right": False, "failed": says}


def test_times_are_said_to_be_times(capsys, wide):
    times = {"right": True, "fitness": 1.5, "basis": clock.BASIS}
    record = search(Says(before_last("x")), 1, clock=lambda child, parent: times)
    command.show(record, command.console(), 3)
    out = capsys.readouterr().out
    assert f"Fitness: {clock.BASIS}." in out and command.NO_TIME not in out
