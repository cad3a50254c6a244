"""The tables of GPUs say which stages run where, and that nothing but the recorded GPUs was measured."""

import re

from flashcore_numba.core.multiprocessors import MULTIPROCESSORS
from flashcore_numba.evidence import resource_table
from flashcore_numba.records import artifact
from flashcore_numba.report import gpu_tables
from flashcore_numba.stages.tuning import stage12_tiles


def rows(text):
    """The cells of each line by the first, or by the first two where the second is a head dimension."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            of_a_dim = re.fullmatch(r"D|32|64|80|96|128|192|256", cells[0])
            found[(first, cells.pop(0)) if of_a_dim else first] = cells
    return found


def test_every_gpu_has_its_stages(fake, recorded):
    record = fake()
    artifact.save(record, recorded / artifact.file_name(record))
    table = rows(gpu_tables.gpus(recorded))
    assert table["7.5"][1:] == ["64", "01 to 12; 09 and 10 at D = 64 alone", "nothing"]
    assert table["8.9"][1:3] == ["99", "01 to 13"]
    assert table["9.0"][1:] == ["227", "01 to 16", "Imaginary GPU"]
    assert table["12.0"][1:3] == ["99", "01 to 13"]
    assert len(table) == 1 + len(MULTIPROCESSORS)


def test_the_tiles_are_those_that_are_launched():
    table = rows(gpu_tables.tiles())
    for head_dim, named in stage12_tiles.TILES.items():
        if head_dim > 128:
            continue
        whole = [f"{16 * row_tiles * warps} x {keys}" for row_tiles, warps, keys, *_ in named.values()]
        assert table["99 and more", str(head_dim)] == whole
        halved = table["64", str(head_dim)]
        assert halved != whole
        assert [size.split()[0] for size in halved] == [size.split()[0] for size in whole]
    assert table["64", "256"] == ["-", "64 x 16", "32 x 16"]
    assert table["227 and more", "256"] == ["128 x 64", "64 x 64", "32 x 32"]


def test_resources_are_those_of_the_recorded_table():
    text = gpu_tables.resources()
    table = rows(text)
    assert table["stage", "D"] == [f"sm_{major}{minor}" for major, minor in resource_table.CAPABILITIES]
    recorded = resource_table.read()["kernels"]
    kernel = recorded["08 wmma_full, D = 64, sm_75"][0]
    registers, kib, blocks = table["08 wmma_full", "64"][0].split(", ")
    assert (int(registers), int(kib), int(blocks)) == (kernel["registers"], 30, 2)
    assert table["14 tma_wgmma", "64"].count("-") == len(resource_table.CAPABILITIES) - 1
    assert {stage[0][:2] for stage in table if stage[0][:2].isdigit()} == {f"{n:02d}" for n in range(7, 17)}
    assert "not measured on these GPUs" in text
    spilled = max(each["spill_bytes"] for each in recorded["12 mma_sync, D = 128, sm_120"])
    assert f"12 mma_sync, D = 128, sm_120: {spilled}" in text
