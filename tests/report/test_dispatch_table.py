"""The table by which attention() chooses: made from the record, right at every recorded problem, no wider."""

from pathlib import Path

import pytest

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.records import artifact
from flashcore_numba.report import dispatch_table
from flashcore_numba.report.dispatch_table import Point
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.tuning import dispatch
from flashcore_numba.stages.tuning.dispatch import Rule, nearest, ranking

STAGES = {stage.number: stage for stage in LADDER}
RECORDED = [
    (path.name, shape, record["gpu"]) for path, record in artifact.recorded() for shape in record["shapes"]
]


def point(times, rows=512, keys=64, causal=False, head_dim=64, capability=(9, 0)):
    return Point(capability, f"{rows} rows", causal, head_dim, rows, keys, tuple(times.items()))


def chosen(table, **problem):
    return next(rule for rule in table if rule.fits(**problem)).stages[0]


def times_of(shape):
    """Microseconds by stage of one recorded problem."""
    entries = [entry for entry in shape["entries"] if entry["kind"] == "stage" and entry["default"]]
    return {entry["stage"]: entry["gpu_us"]["p50"] for entry in entries if entry["error"]["right"]}


@pytest.mark.long
def test_the_table_is_that_of_the_record():
    for name, made in dispatch_table.made().items():
        assert made == getattr(dispatch, name), "run flashcore dispatch --save"


@pytest.mark.parametrize(
    "file, shape, gpu",
    RECORDED,
    ids=lambda x: x["shape"] if "shape" in x else x if isinstance(x, str) else "",
)
def test_the_chosen_stage_is_within_3_percent_of_the_fastest(file, shape, gpu):
    """For every way in which a problem can restrict the stages, of those timed in the same run."""
    batch, heads, seq, head_dim = map(int, shape["shape"].split("x"))
    capability = tuple(gpu["compute_capability"])
    times = times_of(shape)
    counted = [
        dict(each.times)
        for each in dispatch_table.points(artifact.recorded())
        if (each.shape, each.causal) == (shape["shape"], shape["causal"])
    ]
    if counted and times not in counted:
        return  # a newer run of this problem counts, or one of more stages
    able = [n for n, stage in STAGES.items() if stage.runs_on(capability) and head_dim in stage.head_dims]
    order = ranking(capability, shape["causal"], head_dim, batch * heads * seq, seq)
    for limit in (None, "grouped_queries", "returns_lse"):
        allowed = [n for n in able if limit is None or getattr(STAGES[n], limit)]
        first = next(n for n in order if n in allowed)
        if first in times:
            assert times[first] <= 1.03 * min(times[n] for n in allowed if n in times), (file, limit)
        else:
            assert times not in counted, (file, limit)


def test_of_the_backward_pass_too():
    recorded = artifact.recorded(operation="backward")
    assert recorded
    for _, record in recorded:
        capability = tuple(record["gpu"]["compute_capability"])
        for shape in record["shapes"]:
            batch, heads, seq, head_dim = map(int, shape["shape"].split("x"))
            problem = capability, shape["causal"], head_dim, batch * heads * seq, seq
            first, *_ = ranking(*problem, dispatch.BACKWARD)
            times = {
                e["label"]: e["gpu_us"]["p50"] for e in shape["entries"] if e["default"] and "/" in e["label"]
            }
            assert times[f"backward/{first}"] <= 1.03 * min(times.values()), shape["shape"]


def test_of_runs_of_one_problem_the_newest_of_the_fast_ones_counts(fake):
    old, slower, partial = fake(), fake(date="2001-02-04T00:00:00Z"), fake(date="2001-02-05T00:00:00Z")
    for entry in slower["shapes"][0]["entries"]:
        entry["gpu_us"]["p50"] *= 1.5
    partial["shapes"][0]["entries"] = [e for e in partial["shapes"][0]["entries"] if e["stage"] in (5, 6)]

    def counted(*records):
        (point,) = dispatch_table.points([(Path("a"), record) for record in records])
        return {stage: round(us / 1.1) for stage, us in point.times}  # 1.1: the median of the fake's times

    assert counted(old, slower) == {1: 2000, 5: 125, 6: 50}, "kernels get faster, not slower"
    assert counted(old, partial) == {5: 125, 6: 50}
    faster = fake(date="2001-02-06T00:00:00Z")
    faster["shapes"][0]["entries"][1]["gpu_us"]["p50"] = 22.0
    assert counted(old, faster) == {1: 2000, 5: 20, 6: 50}


def test_a_stage_without_recorded_times_is_in_no_rule():
    timed = {stage for _, shape, _ in RECORDED for stage in times_of(shape)}
    assert timed
    assert all(set(rule.stages) == timed for rule in dispatch.TABLE)


def test_every_problem_has_a_rule(rng):
    for _ in range(200):
        rows, keys = (int(2**x) for x in rng.uniform(0, 40, 2))
        order = ranking(
            (int(rng.integers(7, 13)), int(rng.integers(10))),
            bool(rng.integers(2)),
            int(rng.choice([64, 128])),
            rows,
            keys,
        )
        assert len(set(order)) == len(order) > 0


def test_an_unknown_gpu_goes_by_the_nearest():
    capabilities = [(8, 0), (9, 0), (8, 6), (12, 0)]
    table = tuple(Rule(each, None, None, None, None, (1,)) for each in capabilities)
    near = {(7, 5): (8, 6), (8, 9): (8, 6), (8, 0): (8, 0), (9, 0): (9, 0), (10, 3): (9, 0), (12, 1): (12, 0)}
    assert {capability: nearest(capability, table) for capability in near} == near
    assert nearest(None, table) == (12, 0)


def test_the_fewest_rules():
    same = [point({1: 10, 2: 10.2, 3: 5, 4: 20}, rows=64 * 2**n) for n in range(3)]
    assert dispatch_table.rules(same) == (Rule((9, 0), None, None, None, None, (3, 1, 2, 4)),)

    crossing = [point({1: 10, 2: 10 * 2 ** (1 - n)}, rows=2 ** (2 * n), causal=n % 2 == 0) for n in (0, 2, 4)]
    assert dispatch_table.rules(crossing) == (
        Rule((9, 0), None, None, 4, None, (1, 2)),
        Rule((9, 0), None, None, None, None, (2, 1)),
    )


def test_each_feature_can_divide(rng):
    limits = {"causal": (False, True), "head_dim": (64, 128), "rows": (100, 400), "keys": (100, 400)}
    for feature, (low, high) in limits.items():
        found = dispatch_table.rules(
            [point({1: 1, 2: 2}, **{feature: low}), point({1: 2, 2: 1}, **{feature: high})]
        )
        problem = {"causal": False, "head_dim": 64, "rows": 512, "keys": 64}
        at = {value: chosen(found, **(problem | {feature: value})) for value in (low, high)}
        assert at == {low: 1, high: 2}
        if feature in ("rows", "keys"):
            assert getattr(found[0], feature) == 200
    assert len(found) == 2


def test_a_stage_must_have_been_timed_at_all_problems_of_its_rule():
    found = dispatch_table.rules([point({1: 10, 2: 5}, rows=64), point({1: 10}, rows=256)])
    assert [rule.stages for rule in found] == [(2, 1), (1, 2)]


def test_each_compute_capability_has_rules_of_its_own():
    found = dispatch_table.rules([point({1: 1, 2: 2}), point({1: 2, 2: 1}, capability=(8, 0))])
    assert [(rule.capability, rule.stages) for rule in found] == [((8, 0), (2, 1)), ((9, 0), (1, 2))]


def test_records_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match=r"the recorded runs of 512 rows contradict each other: .* 3%"):
        dispatch_table.rules([point({1: 1, 2: 2}), point({1: 2, 2: 1})])


def test_what_knows_fewer_stages_counts_only_beyond_what_knows_more(fake):
    """16 was timed at the mission shape alone and at 1x8x1024x64; between them nobody asks the others."""
    shapes = ("1x8x256x64", "1x8x512x64", "1x8x768x64", "1x8x1024x64", "1x8x2048x64")
    records = []
    for shape in shapes:
        record = fake()
        record["shapes"] = record["shapes"][:1]
        record["shapes"][0]["shape"] = shape
        if shape not in ("1x8x512x64", "1x8x1024x64"):
            entries = record["shapes"][0]["entries"]
            record["shapes"][0]["entries"] = [e for e in entries if e["stage"] != 6]
        records.append((Path(shape), record))
    counted = [point.shape for point in dispatch_table.points(records)]
    assert counted == [shape for shape in shapes if shape != "1x8x768x64"]


def test_which_entries_count(fake):
    full, few, wrong = fake(), fake(label="variants"), fake()
    few["shapes"][0]["entries"] = [e for e in few["shapes"][0]["entries"] if e["stage"] == 1]
    next(e for e in wrong["shapes"][0]["entries"] if e["stage"] == 6 and e["default"])["error"]["right"] = (
        False
    )
    read = [
        dispatch_table.points([(Path("a"), record) for record in records])
        for records in ([full, few], [wrong])
    ]
    assert [[dict(point.times) for point in each] for each in read] == [
        [{number: pytest.approx(us * 1.1) for number, us in ((1, 2000), (5, 125), (6, 50))}],
        [{number: pytest.approx(us * 1.1) for number, us in ((1, 2000), (5, 125))}],
    ]
    (mission, *_) = read[0]
    assert mission[:6] == ((9, 0), "1x8x512x64", False, 64, 4096, 512)


def test_nothing_recorded_writes_nothing(recorded):
    before = Path(dispatch.__file__).read_bytes()
    with pytest.raises(ArgumentError, match="holds no recorded time of a stage"):
        dispatch_table.save()
    assert Path(dispatch.__file__).read_bytes() == before
