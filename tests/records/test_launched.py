"""No page compares a time of overlapped launches with another library."""

import re
from pathlib import Path

import pytest

from flashcore_numba.course.launches import recorded
from flashcore_numba.records import launched
from flashcore_numba.stages import LADDER

ROOT = Path(__file__).resolve().parents[2]


def entry(stage, variant, us, default):
    return {
        "label": f"{stage:02d} {variant or 'own'}", "kind": "stage", "stage": stage, "variant": variant,
        "default": default, "gpu_us": {"p50": us},
    }  # fmt: skip


PEER = {
    "label": "FA4",
    "kind": "peer",
    "stage": None,
    "variant": None,
    "default": True,
    "gpu_us": {"p50": 9.0},
}
BEFORE = entry(13, None, 5.5, True)


def test_the_entry_that_overlaps_is_told_apart():
    plain, other = entry(16, "cluster_split", 4.0, True), entry(16, "overlapped", 3.5, False)
    assert launched.overlapped({"entries": [BEFORE, other, plain, PEER]}) == other
    assert launched.overlapped({"entries": [BEFORE, plain, PEER]}) is None


def test_no_stage_overlaps_its_launches_unless_that_is_its_variant() -> None:
    """What a record calls the default of a stage is launched without the attribute."""
    for stage in LADDER[6:]:
        for variant in (None, *stage.variants):
            sources = recorded(stage, variant, "1x8x512x64").sources
            early = any(source.early for source in sources)
            assert early == (variant == launched.OVERLAPPED), (stage.label, variant)


PEER_NAMES = re.compile(r"SDPA|cuDNN|Flash-?Attention|FlexAttention|\bFA\d")
QUOTED = re.compile(r"us 16 overlapped|us\(\"16 overlapped\"")


def claims(text: str) -> list[str]:
    """Paragraphs and rows of tables that quote the overlapped time beside another library."""
    parts = re.split(r"\n\s*\n|\n(?=\|)", text)
    return [part for part in parts if QUOTED.search(part) and PEER_NAMES.search(part)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "lessons").glob("*.md")],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_no_page_compares_the_overlapped_time_with_a_library(page: Path) -> None:
    assert claims(page.read_text()) == []


def test_such_a_comparison_is_found() -> None:
    assert claims("Here.\n\n<!--us 16 overlapped-->3.48<!----> µs\nbefore cuDNN's 9.1.\n\nThere.")
    assert claims('| a | <!--calc us("16 overlapped")-->3<!----> | <!--us FA4-->9<!----> |')
    assert not claims("<!--us 16 overlapped-->3.48<!---->, overlapped.\n\ncuDNN takes 9.1.")
