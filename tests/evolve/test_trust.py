"""What docs/search.md claims of the evaluator: its records, and a fresh sample of what they are about."""

import json

import pytest

from flashcore_numba.course.lessons import OF_KERNELS
from flashcore_numba.evolve import trust
from flashcore_numba.evolve.cheats import cheats
from flashcore_numba.evolve.evaluate import LAYERS
from flashcore_numba.records import artifact
from flashcore_numba.report import search_tables

DIED = {"lesson": 14, "name": "a_cheat", "says": "It cheats.", "wanted": "checks", "layer": "checks",
        "message": "No.", "seconds": 3.0}  # fmt: skip


def record(kind):
    return json.loads((artifact.recorded_dir() / f"trust/evolve-{kind}.json").read_text())


def fates(kind):
    return [trust.Fate(**each) for each in record(kind)["fates"]]


def test_the_record_of_cheats_is_that_of_the_gallery():
    wanted = [(cheat.lesson, cheat.name, cheat.hack, cheat.layer) for cheat in cheats()]
    assert [(each.lesson, each.name, each.says, each.wanted) for each in fates("cheats")] == wanted
    assert len(wanted) >= 12 and {layer for *_, layer in wanted} == {*LAYERS}
    assert all(each.as_wanted for each in fates("cheats"))


def test_the_record_of_mutants_is_that_of_the_library():
    known = [(each.lesson, each.name) for each in trust.of_mutants()]
    assert [(each.lesson, each.name) for each in fates("mutants")] == known
    assert all(each.wanted == "" for each in fates("mutants"))
    assert {(each.lesson, each.name) for each in fates("mutants") if not each.as_wanted} == {*trust.LIVES}


def test_every_lesson_has_harmless_edits_in_the_record_and_all_lived():
    assert {str(each.lesson) for each in fates("harmless")} == {str(key) for key in OF_KERNELS}
    assert all(each.as_wanted and each.wanted is None for each in fates("harmless"))


def test_a_fate_is_as_wanted_only_where_it_is():
    fate = trust.Fate(**DIED)
    assert fate.as_wanted and not trust.Fate(**DIED | {"layer": "gates"}).as_wanted
    assert not trust.Fate(**DIED | {"layer": None}).as_wanted
    assert trust.Fate(**DIED | {"wanted": ""}).as_wanted
    assert not trust.Fate(**DIED | {"wanted": "", "layer": None}).as_wanted
    assert trust.Fate(**DIED | {"wanted": None, "layer": None}).as_wanted
    assert not trust.Fate(**DIED | {"wanted": None}).as_wanted


def test_tables_say_what_records_hold(tmp_path):
    assert search_tables.cheats(tmp_path) is None and search_tables.rates(tmp_path) is None
    folder = tmp_path / "trust"
    folder.mkdir()
    whole = {"date": "2026-01-31", "commit": "0123456789", "seed": 7}
    lived = DIED | {"name": "another", "layer": None}
    (folder / "evolve-cheats.json").write_text(json.dumps(whole | {"fates": [DIED, lived]}))
    table = search_tables.cheats(tmp_path)
    assert "| a cheat | It cheats. | 14 | checks |" in table and "| 14 | **nothing** |" in table
    rates = search_tables.rates(tmp_path)
    assert "| 2 | 1 | checks 1 | 1 |" in rates and "another of lesson 14: lived" in rates
    assert "0123456" in rates and "2026-01-31" in rates
    for name in LAYERS:
        assert f"| {name} |" in search_tables.layers()


def test_a_record_grows_with_each_verdict(tmp_path, monkeypatch, capsys):
    lived = DIED | {"layer": None}
    several = list(trust.of_harmless(3, per_lesson=1))[:2]
    monkeypatch.setattr(trust, "of_harmless", lambda seed: iter(several))
    monkeypatch.setattr(trust, "fate", lambda candidate: trust.Fate(**lived | {"name": candidate.name}))
    path = trust.record_of("harmless", tmp_path)
    written = json.loads(path.read_text())
    assert [each["name"] for each in written["fates"]] == [each.name for each in several]
    assert written["seed"] >= 0 and "NOT AS WANTED" in capsys.readouterr().out


@pytest.mark.long
def test_a_fresh_sample_gets_its_verdicts(rng):
    harmless = list(trust.of_harmless(int(rng.integers(1 << 31))))
    mutants = list(trust.of_mutants())
    for candidates in (harmless, mutants):
        chosen = candidates[rng.integers(len(candidates))]
        found = trust.fate(chosen)
        assert found.as_wanted or (chosen.lesson, chosen.name) in trust.LIVES, (chosen.says, found)
