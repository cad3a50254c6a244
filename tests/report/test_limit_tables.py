"""The tables of limits say what was measured and what was not, and pages are held to them."""

import pytest

from flashcore_numba.predict.limits import DATA_SHEETS
from flashcore_numba.records import artifact
from flashcore_numba.report import limit_tables, pictures, readme
from flashcore_numba.report.readme import ReadmeError

CEILINGS = {
    "fp32_tflops": 63.4, "tensor_tflops": 535.2, "mma_sync_tflops": 400.0, "exp_gops": 4000.0,
    "l1_gbs": 33454.08, "l2_gbs": None, "dram_gbs": 4425.3, "launch_us": 0.52,
}  # fmt: skip


def cells(text, first):
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.fixture
def page(fake, recorded, tmp_path, monkeypatch):
    """A README with two tables and no picture, beside a recorded run with ceilings."""
    monkeypatch.setattr(pictures, "drawable", lambda records, timelines: ([], {}))
    record = fake(ceilings=CEILINGS)
    artifact.save(record, recorded / artifact.file_name(record))
    path = tmp_path / "README.md"
    tables = "".join(
        f"<!-- table:{name} -->\nold\n<!-- table:end -->\n" for name in ("ceilings", "other-gpus")
    )
    path.write_text(tables)
    return path


def test_measured_stands_beside_allowed(page, recorded):
    text = limit_tables.ceilings(recorded)
    assert cells(text, "device memory") == ["4425 GB/s", "4917 GB/s", "90%"]
    assert cells(text, "tensor cores") == ["535 TFLOP/s", "1071 TFLOP/s", "50%"]
    assert cells(text, "the same through mma.sync") == ["400 TFLOP/s", "-", "-"]
    assert cells(text, "L2") == ["-", "-", "-"]
    assert cells(text, "an empty kernel") == ["0.52 µs", "-", "-"]
    assert "Imaginary GPU, 2001-02-03, commit 0123456789" in text


def test_without_measured_ceilings_there_is_no_table(fake, recorded):
    record = fake(ceilings=None)
    artifact.save(record, recorded / artifact.file_name(record))
    assert limit_tables.ceilings(recorded) is None


def test_a_rate_just_below_a_thousand_is_written_out():
    assert [limit_tables._figure(value) for value in (63.14, 999.4, 999.6, 4150.2)] == [
        "63.1",
        "999",
        "1000",
        "4150",
    ]


def test_data_sheets_are_marked_as_not_measured():
    text = limit_tables.other_gpus()
    assert cells(text, "by the data sheet") == [sheet.name for sheet in DATA_SHEETS]
    assert cells(text, "device memory, GB/s") == ["300", "3350", "2039", "1008"]
    needs = [float(cell) for cell in cells(text, "1x8x512x64: device memory alone")]
    assert needs == pytest.approx(
        [4 * 8 * 512 * 64 * 2 / sheet.dram_gbs / 1e3 for sheet in DATA_SHEETS], rel=0.01
    )
    assert "nothing here was measured" in text


def test_a_page_gets_its_tables_and_keeps_to_them(page, recorded):
    assert any("differs from the record" in sentence for sentence in readme.differences(page, recorded))
    assert page in readme.update(page, recorded)
    assert readme.differences(page, recorded) == []
    text = page.read_text()
    assert limit_tables.ceilings(recorded) in text
    assert "old" not in text.splitlines()
    page.write_text(text.replace("4425 GB/s", "9999 GB/s"))
    assert any("9999 GB/s" in sentence for sentence in readme.differences(page, recorded))


def test_an_unknown_table_is_named(page, recorded):
    page.write_text(page.read_text().replace("table:ceilings", "table:cielings"))
    accepted = ".*ceilings, other-gpus, gpus, tiles, resources"
    with pytest.raises(ReadmeError, match=f"table:cielings: .*accepted are {accepted}"):
        readme.update(page, recorded)
