import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from flashcore_numba.core import workload
from flashcore_numba.core.shapes import Shape
from flashcore_numba.records import artifact
from flashcore_numba.records.artifact import ArtifactError, derive, find_shape, load, save, validate
from flashcore_numba.records.layout import rounded


def test_a_good_artifact_goes_to_disk_and_back(fake, tmp_path):
    record = fake()
    path = tmp_path / "new" / "gpu.json"
    save(record, path)
    assert load(path) == rounded(record)
    assert [p.name for p in path.parent.iterdir()] == ["gpu.json"]


def test_derived_numbers(fake):
    shape = fake()["shapes"][0]
    entries = {entry["label"]: entry for entry in shape["entries"]}
    # p50 of (t, 1.1 t, 1.2 t) is 1.1 t, so ratios are those of t.
    assert entries["05 online_softmax"]["speed_up"]["stage_01"] == pytest.approx(16.0)
    assert entries["05 online_softmax"]["speed_up"]["best_peer"] == pytest.approx(10 / 125)
    assert entries["SDPA flash"]["speed_up"]["best_peer"] == pytest.approx(1.0)
    assert entries["06 register_tiles"]["share_of_limit"] == pytest.approx(shape["limits_us"]["fp32"] / 55)
    assert entries["SDPA flash"]["share_of_limit"] == pytest.approx(shape["limits_us"]["tensor"] / 11)


def test_a_peer_with_a_wrong_answer_is_no_yardstick(fake):
    shape = fake()["shapes"][0]
    flash = next(entry for entry in shape["entries"] if entry["label"] == "SDPA flash")
    flash["error"]["right"] = False
    derive(shape)
    assert shape["entries"][0]["speed_up"]["best_peer"] == pytest.approx(80 / 2000)


def test_without_stage_01_and_peers_there_are_no_ratios(fake):
    shape = fake()["shapes"][0]
    shape["entries"] = [entry for entry in shape["entries"] if entry["stage"] == 5]
    derive(shape)
    assert shape["entries"][0]["speed_up"] == {"stage_01": None, "best_peer": None}


def _set(*path):
    *inside, last, value = path

    def change(record):
        place = record
        for key in inside:
            place = place[key]
        place[last] = value

    return change


def _delete(*path):
    *inside, last = path

    def change(record):
        place = record
        for key in inside:
            place = place[key]
        del place[last]

    return change


FIRST = ("shapes", 0, "entries", 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("schema", 1), "schema is 1; this version reads 2"),
        (_delete("commit"), "x.commit is missing"),
        (_set("comit", "abc"), "x.comit is unknown; expected are schema, date, commit"),
        (_set("date", "yesterday"), "x.date is 'yesterday'; expected UTC"),
        (_set("dirty", "no"), "x.dirty is 'no'; expected boolean or null"),
        (_set("label", "My run"), "x.label is 'My run'; expected small letters"),
        (_set("gpu", []), "x.gpu is []; expected object"),
        (_set("gpu", "sm_count", 1.5), "x.gpu.sm_count is 1.5; expected integer"),
        (_set("gpu", "max_sm_mhz", float("nan")), "x.gpu.max_sm_mhz is nan; expected a finite number"),
        (_set("clocks", "sm_mhz", {"min": 1, "p50": 2}), "x.clocks.sm_mhz.max is missing"),
        (_set("ceilings", {}), "x.ceilings.fp32_tflops is missing"),
        (_set("shapes", []), "x.shapes is []; expected at least 1 items"),
        (_set("shapes", 0, "shape", "mission"), "x.shapes[0].shape is 'mission'; expected BxHxSxD"),
        (_set(*FIRST, "kind", "rival"), "x.shapes[0].entries[0].kind is 'rival'; expected 'stage' or 'peer'"),
        (_set(*FIRST, "label", "SDPA math"), "entries[5].label 'SDPA math' is there twice"),
        (_set(*FIRST, "unit", "fp64"), "entries[0].unit is 'fp64'; expected 'fp32' or 'tensor'"),
        (_set(*FIRST, "stage", None), "entries[0].stage is None; expected integer"),
        (_set("shapes", 0, "entries", 5, "stage", 3), "entries[5].stage is 3; expected null"),
        (_set(*FIRST, "gpu_us", None), "entries[0].gpu_us is None; expected object"),
        (_delete(*FIRST, "gpu_us", "p99"), "entries[0].gpu_us.p99 is missing"),
        (_set(*FIRST, "gpu_us", "p90", -1.0), "entries[0].gpu_us.p90 is -1.0; expected at least 0"),
        (_set(*FIRST, "caller_us", "max", 1.0), "entries[0].caller_us: min, p50, p90, p99 and max are"),
        (_set(*FIRST, "gpu_us", "ci", "high", 1e9), "entries[0].gpu_us.ci is {"),
        (_set(*FIRST, "gpu_us", "ci", None), "entries[0].gpu_us.ci is None; expected an interval"),
        (_set(*FIRST, "throttled", "yes"), "entries[0].throttled is 'yes'; expected array or null"),
        (_set(*FIRST, "error", "max", None), "entries[0].error.max is None; expected number"),
        (_set(*FIRST, "speed_up", "best_peer", 3.0), "best_peer is 3.0; its own times give"),
        (_set(*FIRST, "share_of_limit", None), "share_of_limit is None; its own times give"),
        (_set("shapes", 0, "entries", 1, "speed_up", "stage_01", 1.0), "its own times give"),
    ],
)  # fmt: skip
def test_each_fault_is_named(fake, change, says):
    record = copy.deepcopy(fake())
    validate(record, "x")
    change(record)
    with pytest.raises(ArtifactError) as caught:
        validate(record, "x")
    assert says in str(caught.value)
    assert str(caught.value).startswith("x")


@pytest.mark.parametrize("field", ["share_of_limit", "speed_up"])
def test_ratios_may_be_rounded_and_no_more(fake, field):
    record = fake()
    validate(rounded(record))
    entry = record["shapes"][0]["entries"][1]
    if field == "speed_up":
        entry["speed_up"]["stage_01"] *= 1.001
    else:
        entry["share_of_limit"] *= 1.001
    for each in (record, rounded(record)):
        with pytest.raises(ArtifactError, match="its own times give"):
            validate(each)


def test_a_wrong_result_may_have_no_error_figure(fake):
    record = fake()
    record["shapes"][0]["entries"][0]["error"] |= dict.fromkeys(("max", "mean", "relative")) | {
        "right": False
    }
    validate(record)


def test_an_invalid_artifact_is_not_written(fake, tmp_path):
    with pytest.raises(ArtifactError):
        save(fake(schema=9), tmp_path / "gpu.json")
    assert list(tmp_path.iterdir()) == []


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"schema": 1,')
    with pytest.raises(ArtifactError, match=r"half\.json: is not JSON"):
        load(tmp_path / "half.json")


def test_recorded_runs_come_newest_first_and_the_ladder_before_the_labelled(fake, recorded):
    for name, year, label in (("a", 2001, None), ("b", 2003, None), ("c", 2002, None), ("d", 2004, "long")):
        save(fake(date=f"{year}-01-01T00:00:00Z", label=label), recorded / f"{name}.json")
    assert [path.name for path, _ in artifact.recorded()] == ["b.json", "c.json", "a.json", "d.json"]


def test_what_else_lies_in_the_folder_is_no_run(fake, recorded):
    save(fake(), recorded / "gpu.json")
    for name in (
        "resources.json",
        "artifact.schema.json",
        "check.schema.json",
        "nsight-h200.json",
        "ring-timeline-h200.json",
    ):
        (recorded / name).write_text("{}")
    assert [path.name for path, _ in artifact.recorded()] == ["gpu.json"]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(
        json.loads((artifact.recorded_dir() / "artifact.schema.json").read_text())
    )


def test_shapes_are_found_by_name_and_mask(fake):
    record = fake()
    assert find_shape(record, "1x8x512x64") is record["shapes"][0]
    assert find_shape(record, "1x8x512x64", causal=True) is None
    assert find_shape(record, "1x8x1024x64") is None


def test_a_causal_run_has_a_file_of_its_own(fake):
    record = fake()
    assert artifact.file_name(record) == "imaginary-gpu.json"
    for shape in record["shapes"]:
        shape["causal"] = True
    assert artifact.file_name(record) == "imaginary-gpu-causal.json"


def test_a_median_of_more_digits_may_pass_its_neighbour_by_rounding(fake):
    """All five times may be one time: 1.23445 is the median, and 1.2344 the same with five digits."""
    record = fake()
    cold = record["shapes"][0]["entries"][0]["gpu_cold_us"]
    cold |= {"min": 1.2344, "p50": 1.23445, "p90": 1.2344, "p99": 1.2345, "max": 1.2345}
    cold |= {"rounds_us": None, "ci": None}
    validate(record)
    cold["p90"] = 1.2341
    with pytest.raises(ArtifactError, match="expected in rising order"):
        validate(record)


def test_a_label_is_part_of_the_file_name(fake):
    record = fake(label="lengths")
    assert artifact.file_name(record) == "imaginary-gpu-lengths.json"
    for shape in record["shapes"]:
        shape["causal"] = True
    assert artifact.file_name(record) == "imaginary-gpu-lengths-causal.json"


OPERATIONS = (artifact.FORWARD, "backward")


def test_an_artifact_names_its_operation_and_no_table_mixes_two(fake, recorded):
    """Without the name it is of the forward pass, as all were before there was another."""
    forward, other = fake(), fake(operation="backward", label="long")
    assert artifact.operation_of(forward) == "forward" and artifact.operation_of(other) == "backward"
    assert artifact.file_name(other) == "imaginary-gpu-backward-long.json"
    for record in (forward, other):
        artifact.save(record, recorded / artifact.file_name(record))
    for name, record in (("forward", forward), ("backward", other)):
        ((path, _),) = artifact.recorded(recorded, operation=name)
        assert path.name == artifact.file_name(record)
    assert [path.name for path, _ in artifact.recorded()] == ["imaginary-gpu.json"]
    assert artifact.in_type([(recorded, other)]) == []
    assert artifact.shape_title(other["shapes"][0], "backward") == "backward, 1x8x512x64"
    with pytest.raises(ArtifactError, match=r"operation is 'Back ward'; expected the name of an operation"):
        artifact.validate(fake(operation="Back ward"))


def test_what_the_repository_records_is_valid():
    """Fails on a damaged record; passes on a repository that has none yet."""
    folder = artifact.recorded_dir()
    records = [each for name in OPERATIONS for each in artifact.recorded(folder, operation=name)]
    for path, record in records:
        assert path.name == artifact.file_name(record)
        entries = [entry for shape in record["shapes"] for entry in shape["entries"]]
        assert all(entry["error"]["right"] for entry in entries if entry["kind"] == "stage")
        assert json.loads(path.read_text())["commit"] != "unknown"


def _with_features(record, **fields):
    """Beside its plain shape, the same with these features."""
    shape = copy.deepcopy(record["shapes"][0]) | {"features": {}, "flops": 10**9} | fields
    record["shapes"].append(shape)
    return shape


FEATURES = {"window": [1023, 0], "softcap": 50.0, "sinks": True, "alibi_slopes": True, "seqused_k": [3, 9]}


def test_features_are_valid_and_told(fake, tmp_path):
    record = fake()
    _with_features(record, features=FEATURES, causal=True, shape="1x8/2x512x192/128")
    ragged = {"shape": "16x8/2x128-8192x64", "features": {"lengths": [3, 8]}, "equal_lengths": "16x8/2x5x64"}
    _with_features(record, **ragged)
    save(record, tmp_path / "gpu.json")
    assert load(tmp_path / "gpu.json") == rounded(record)
    assert [artifact.shape_title(shape) for shape in record["shapes"]] == [
        "1x8x512x64",
        "1x8/2x512x192/128, causal, window=1023,0 softcap=50 sinks alibi_slopes seqused_k",
        "16x8/2x128-8192x64",
    ]


def test_what_reads_records_sees_plain_shapes_only(fake, recorded):
    record = fake()
    for features in ({}, FEATURES):
        _with_features(record, features=features, shape="1x8x256x64")
    only, yardstick = fake(label="only"), fake(label="yardstick")
    only["shapes"] = [_with_features(only)]
    yardstick["shapes"] = yardstick["shapes"][:1]
    _with_features(yardstick, features=FEATURES)
    for name, each in (("a", record), ("b", only), ("c", yardstick)):
        save(each, recorded / f"{name}.json")
    ((path, found),) = artifact.recorded()
    assert path.name == "a.json" and found["shapes"] == rounded(record["shapes"][:1])
    record["shapes"].reverse()
    assert find_shape(record, "1x8x512x64") is record["shapes"][-1]
    assert len({artifact.shape_key(shape) for shape in record["shapes"]}) == 3


def test_every_word_of_features_may_be_recorded(fake, rng):
    """Those of the command line, in the words in which a run tells them."""
    given = workload.Workload(Shape(1, 2, 8, 64), window=(3, 0), softcap=2.0, drawn=workload.DRAWN)
    chosen = {"tokens": 2, "page": 16, "cache": "e4m3", "batch_invariant": True}
    told = workload.fields(given.features(rng), chosen)
    assert {*workload.DRAWN, *chosen} <= {*told}
    record = fake()
    _with_features(record, features=told)
    validate(record, "x")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"features": {"window": [3]}}, "x.shapes[1].features.window is [3]"),
        ({"features": {"window": [-2, 0]}}, "features.window[0] is -2; expected at least -1"),
        ({"features": {"softcap": 0}}, "features.softcap is 0"),
        ({"features": {"sinks": False}}, "features.sinks is False; expected True"),
        ({"features": {"lengths": []}}, "features.lengths is []; expected at least 1 items"),
        (
            {"features": {"bias": True}},
            "features.bias is unknown; expected are tokens, page, cache, batch_invariant, window, softcap",
        ),
        ({"features": {"tokens": 0}}, "features.tokens is 0; expected at least 1"),
        ({"features": {"page": "all"}}, "features.page is 'all'"),
        ({"features": {"page": 0}}, "features.page is 0; expected at least 1"),
        ({"kv_bytes": 0}, "x.shapes[1].kv_bytes is 0; expected at least 1"),
        ({"flops": 1.5}, "x.shapes[1].flops is 1.5; expected integer"),
        ({"equal_lengths": "16x8"}, "x.shapes[1].equal_lengths is '16x8'; expected BxHxSxD"),
        ({"shape": "1x8x9-8-7x64"}, "x.shapes[1].shape is '1x8x9-8-7x64'; expected BxHxSxD"),
    ],
)
def test_each_fault_of_features_is_named(fake, fields, says):
    record = fake()
    _with_features(record, **fields)
    with pytest.raises(ArtifactError) as caught:
        validate(record, "x")
    assert says in str(caught.value)


def test_what_was_valid_is_judged_anew_when_it_changes(fake, tmp_path):
    path, record = tmp_path / "gpu.json", fake()
    save(record, path)
    load(path)
    del record["gpu"]
    path.write_text(json.dumps(record))
    for _ in range(2):
        with pytest.raises(ArtifactError, match="gpu is missing"):
            load(path)


@pytest.mark.long
def test_validating_imports_no_grammars(fake, tmp_path):
    """Who wants them gets them afterwards."""
    path = tmp_path / "gpu.json"
    save(fake(), path)
    (tmp_path / "rfc3987_syntax.py").write_text("")
    program = f"""
import sys
from pathlib import Path
from flashcore_numba.records import artifact
artifact.load(Path({str(path)!r}))
assert "jsonschema" in sys.modules and "rfc3987_syntax" not in sys.modules
import rfc3987_syntax
"""
    folders = os.pathsep.join(map(str, (tmp_path, Path(artifact.__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": folders}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
