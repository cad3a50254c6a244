import io

import pytest
from rich.console import Console

from flashcore_numba.report import tables
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import runs


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00415, "0.004"),
        (0.5, "0.50"),
        (3.514, "3.51"),
        (9.996, "10.0"),
        (35.14, "35.1"),
        (351.4, "351"),
        (3514, "3514"),
        (None, "-"),
    ],
)
def test_microseconds_keep_three_digits(value, text):
    assert tables.short_us(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0048, "0.005x"), (0.934, "0.93x"), (5.84, "5.84x"), (66.2, "66.2x"), (208.9, "209x"), (None, "-")],
)
def test_factors(value, text):
    assert tables.times(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (981, "981"),
        (9_999, "9999"),
        (9_999.6, "10k"),
        (12_340, "12.3k"),
        (999_400, "999k"),
        (999_600, "1M"),
        (4_560_000, "4.56M"),
        (999_600_000, "1G"),
        (7.8e9, "7.8G"),
    ],
)
def test_amounts(value, text):
    assert tables.amount(value) == text


def test_the_largest_kernel_counts_and_the_unknown_is_a_dash():
    kernel = {"registers": 40, "spill_bytes": 0, "stack_bytes": 128}
    assert tables.compiled([kernel, kernel | {"registers": 64, "stack_bytes": 0}]) == ["64", "0", "128"]
    assert tables.compiled(None) == ["-", "-", "-"]
    assert tables.compiled([dict.fromkeys(kernel)]) == ["-", "-", "-"]


@pytest.mark.parametrize("width", [56, tables.SMALL, tables.WIDE, 200])
def test_no_cell_of_the_latency_table_is_cut(fake, width):
    record = fake()
    record["shapes"][0]["entries"][1]["label"] = max((run.label for run in runs(LADDER)), key=len)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables.latency_table(record, record["shapes"][0], width))
    text = console.export_text()
    assert "…" not in text
    for entry in record["shapes"][0]["entries"]:
        assert entry["label"] in text
        assert tables.short_us(entry["gpu_us"]["p50"]) in text


def test_a_wrong_result_stands_out(fake):
    record = fake()
    record["shapes"][0]["entries"][0]["error"] |= {"right": False, "max": None}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.latency_table(record, record["shapes"][0], 200))
    assert "WRONG NaN" in console.export_text()


def shown(*printed):
    console = Console(width=200, record=True, file=io.StringIO())
    for each in printed:
        console.print(each)
    return " ".join(console.export_text().split())


@pytest.mark.parametrize("read, shares", [(4000.0, ("25%", "12%")), (None, ("-", "-"))])
def test_the_rate_of_k_and_v_is_shown_warm_and_cold(fake, read, shares):
    """8.39 MB in 8.39 us is 1 TB/s; with a cold L2 it takes twice as long, and an entry has no cold time."""
    record = fake(operation="decode", ceilings={"read_gbs": read} if read else None)
    shape = record["shapes"][0]
    shape |= {"kv_bytes": 8_388_608, "flops": 1, "features": {"tokens": 2, "page": "contiguous"}}
    first, second = shape["entries"] = shape["entries"][:2]
    first["gpu_us"]["p50"], first["gpu_cold_us"]["p50"] = 8.388608, 16.777216
    second["gpu_cold_us"] = None
    text = shown(tables.kv_table(record, shape))
    assert text.startswith("decode, 1x8x512x64, tokens=2 page=contiguous: 8.39M bytes of K and V")
    row = text.split("01 scalar │")[1].split("│")[:6]
    assert [cell.strip() for cell in row] == ["8.39", "1.00", shares[0], "16.8", "0.50", shares[1]]
    assert "│ - │ - │ - │" in text
    told = "4.00 TB/s, what a kernel that only reads reached" if read else "Of read: of not known"
    assert told in text
    assert tables.rates_lines(record, shape) == []


def test_a_ragged_batch_of_decoding_is_beside_equal_lengths(fake):
    record = fake(operation="decode")
    equal = record["shapes"][0]
    equal |= {"kv_bytes": 10**7, "flops": 1, "features": {"tokens": 1, "page": 16}}
    lengths = equal["features"] | {"lengths": [1, 2]}
    ragged = equal | {"shape": "1x8x1-900x64", "equal_lengths": equal["shape"], "features": lengths}
    ragged["kv_bytes"] = 5 * 10**6
    other = equal | {"features": {"tokens": 2, "page": 16}, "kv_bytes": 10**9}
    record["shapes"] = [other, ragged, equal]
    (line,) = tables.rates_lines(record, ragged)
    assert line.startswith("TB/s of K and V (of the rate at 1x8x512x64): 01 scalar 0.00 (50%), ")


def test_an_interval_is_shown_as_a_share_of_the_median():
    assert tables.either_side({"p50": 10.0, "ci": {"low": 9.9, "high": 10.3}}) == "±2.0%"
    assert tables.either_side({"p50": 10.0, "ci": None}) == "-"


def test_what_was_throttled_gets_a_sentence_a_reason(fake):
    shape = fake()["shapes"][0]
    assert tables.throttled_lines(shape) == []
    power, clock = "the power limit in 3 of 20 readings", "SM clock 1510 MHz, 76% ..."
    shape["entries"][1]["throttled"] = [power, clock]
    shape["entries"][2]["throttled"] = None
    assert tables.throttled_lines(shape) == [
        f"Throttled: 05 online_softmax: {power}",
        f"Throttled: 05 online_softmax: {clock}",
    ]
    for entry in shape["entries"]:
        entry["throttled"] = [power]
    shape["entries"][-1]["throttled"] = [clock, power]
    last = shape["entries"][-1]["label"]
    assert tables.throttled_lines(shape) == [f"Throttled: all: {power}", f"Throttled: {last}: {clock}"]


def test_reasons_are_grouped_and_limits_and_clocks_are_told(fake):
    record = fake()
    shape = record["shapes"][0] | {"absent": {"A": "no torch", "B": "no torch", "C": "too old"}}
    assert tables.not_timed(shape) == ["Not timed: A, B: no torch", "Not timed: C: too old"]
    assert tables.limits_line(shape).startswith("CUDA cores 8.02 us, tensor cores 0.50 us")
    assert tables.clocks_seen(record) == "During the rounds: SM clock 1900 to 1980 MHz."
    nothing = record | {"clocks": dict.fromkeys(record["clocks"])}
    assert tables.clocks_seen(nothing) == "Clocks, temperature and power were not read."
