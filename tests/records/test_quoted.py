"""What pages quote of records that no command makes a table of."""

import re
from pathlib import Path

import pytest

from flashcore_numba.records import artifact

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("split", "cluster 8", "cluster 4", "cluster 2", "even, start 0", "even")
KNOWN = 8192  # keys that a table has room for, up to which no request is taken to be far longer than others


def kind(batch):
    if batch["room"] > max(batch["lengths"]):
        return "wide"
    return "equal" if len({*batch["lengths"]}) == 1 else "different"


def test_the_appendix_has_the_times_of_every_configuration():
    record = artifact.other("decode/configurations")
    text = (ROOT / "lessons/appendix_20.md").read_text()
    lines = text.partition("| units | lengths |")[2].partition("\n\n")[0].splitlines()[2:]
    units, seen = "", 0
    for line in lines:
        shown, lengths, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        units = shown or units
        ends = [int(number.replace(",", "")) for number in units.split(" to ")]
        batches = [
            each["us"]
            for each in record["batches"]
            if ends[0] <= each["batch"] * each["kv_heads"] <= ends[-1]
            and each["batch"] > 1 and each["head_dim"] == 128 and each["tokens"] == 1
            and each["room"] > KNOWN and kind(each) == lengths
        ]  # fmt: skip
        seen += len(batches)
        for column, cell in zip(COLUMNS, cells, strict=True):
            ratios = [us[column] / min(us.values()) for us in batches]
            shown = dict.fromkeys((f"{min(ratios):.2f}", f"{max(ratios):.2f}"))
            assert cell == " to ".join(shown), (units, lengths, column)
    assert len(lines) == 12 and f"? {seen} batches of D = 128" in text


def test_the_appendix_has_what_counted_starts_save():
    batches = artifact.other("decode/configurations")["batches"]
    long = [each["us"] for each in batches if each["batch"] > 1 and each["room"] > KNOWN]
    text = " ".join((ROOT / "lessons/appendix_20.md").read_text().split())
    starts = {"0": "even, start 0", "2": "even, start 2", "3": "even, start 3", "6": "even"}
    starts["12"] = "even, start 12"
    every = [*starts.values(), "even, start 1"]
    for steps, name in starts.items():
        above = [100 * (us[name] / min(us[other] for other in every) - 1) for us in long]
        assert f"{sum(above) / len(above):.1f} and {max(above):.0f} % for {steps}" in text
    assert f"the record's {len(long)} batches" in text


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (r"`merge` took ([\d.]+) µs", "merge 1x32x4096x128"),
        (r"a copy of as many bytes took ([\d.]+),", "copy of as much, merge 1x32x4096"),
        (r"made of the formula ([\d.]+)\. ", "Inductor merge 1x32x4096"),
        (r"where the compiler's took ([\d.]+)\.", "Inductor merge 64x64x1"),
    ],
)
def test_merge_took_what_the_page_says(words, name):
    text = (ROOT / "docs/decode.md").read_text().replace("\n", " ")
    (said,) = re.findall(words, text)
    assert said == f"{artifact.other('decode/merge')['us'][name][1]:.1f}"


def test_what_prepare_moves_in_a_second():
    text = (ROOT / "docs/prepare.md").read_text().replace("\n", " ")
    (rows, others), (rate,) = (
        re.findall(r"([\d,]+) bytes of rows and (\d+) others", text)[0],
        re.findall(r"At 4,096 tokens that is ([\d.]+) TB/s", text),
    )
    (row,) = (row for row in artifact.other("decode/prepare")["rows"] if row["tokens"] == 4096)
    moved = 4096 * (int(rows.replace(",", "")) + int(others))
    assert rate == f"{moved / row['16 bits']['us'] / 1e6:.2f}"


def test_what_the_profiler_says_of_a_training_step():
    runs = artifact.other("examples/train_gpt_kernels")["runs"]
    text = (ROOT / "docs/integrations.md").read_text().replace("\n", " ")
    own, peer = runs["FlashCore"], runs["SDPA"]
    for words, member, digits in (
        (r"such a step took ([\d.]+) ms with FlashCore and ([\d.]+) with SDPA", "kernels_ms", 1),
        (r"([\d.]+) and ([\d.]+) of them in the backward pass", "attention_backward_ms", 2),
        (r"attention, ([\d.]+) and ([\d.]+) in the forward pass", "attention_forward_ms", 2),
    ):
        (said,) = re.findall(words, text)
        assert said == tuple(f"{each[member]:.{digits}f}" for each in (own, peer))
    assert "4 % behind in one of 20" in text and round(100 * (peer["step_ms"] / own["step_ms"] - 1)) == 4
