"""The rules of the house for CUDA C, and that each stage has its kernel and its launcher."""

import re
from pathlib import Path

import pytest

from cuda_reference import FOLDER, INCLUDE
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.stages import LADDER

KERNELS = sorted(FOLDER.glob("stage*.cu"))
SOURCES = [*sorted(FOLDER.glob("*.cu")), *sorted(INCLUDE.glob("*.cuh"))]
CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]
LINES = {**dict.fromkeys(range(7, 14), 230), **dict.fromkeys(range(14, 17), 400)}
EACH_KERNEL = pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
EACH_SOURCE = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)


def number(path: Path) -> int:
    return int(re.match(r"stage(\d+)_", path.name)[1])


def test_each_stage_has_one_kernel_file():
    named = [f"stage{stage.number:02d}_{stage.name}.cu" for stage in CUDA]
    assert [path.name for path in KERNELS] == named


@EACH_KERNEL
def test_a_kernel_fits_its_pages(path):
    assert len(path.read_text().splitlines()) <= LINES[number(path)]


@EACH_SOURCE
def test_lines_are_short(path):
    lines = path.read_text().splitlines()
    long = [n for n, line in enumerate(lines, 1) if len(line) > 110 or line != line.rstrip() or "\t" in line]
    assert not long, f"{path.name}: lines {long} have more than 110 characters, or blanks at the end"


@EACH_SOURCE
def test_a_file_begins_with_prose_that_explains_it(path):
    text = path.read_text()
    header = re.match(r"(//[^\n]*\n)+", text)
    assert header, f"{path.name} begins without a comment"
    assert len(header[0].splitlines()) <= 15


@EACH_SOURCE
def test_only_ptx_cuh_knows_the_machine(path):
    """`asm` is in ptx.cuh, and conditional compilation there and in features.cuh: a stage is one text."""
    code = re.sub(r"//[^\n]*", "", path.read_text())
    found = re.findall(r"\basm\b|#\s*(?:if|ifdef|ifndef|elif|else)\b", code)
    everything = path.name in ("ptx.cuh", "features.cuh")
    allowed = found if everything else ["#ifndef"] if path.name == "element.cuh" else []
    assert found == allowed, f"{path.name}: {found}"


@EACH_KERNEL
def test_a_kernel_includes_what_nvrtc_has(path):
    """NVRTC has no standard headers."""
    found = re.findall(r"#include <([^>]+)>", path.read_text())
    assert set(found) <= {"cuda_fp16.h", "cuda_fp8.h", "mma.h"}


@EACH_KERNEL
def test_entry_points_have_plain_names(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    entries = re.findall(r"__global__ void(?:\s+__\w+__\([^)]*\))*\s+(\w+)\(", text)
    assert len(entries) == text.count("__global__")
    assert len(entries) == text.count('extern "C" __global__')
    assert re.sub(r"^stage\d+_", "", path.stem) in entries


@pytest.mark.parametrize("stage", CUDA, ids=lambda stage: stage.label)
def test_every_barrier_names_its_hazard(stage):
    """Barriers, waits and fences; a commit of copies needs no comment."""
    bare = []
    for mutant in deletions(stage):
        (edit,) = mutant.edits
        path = FOLDER / edit.file if edit.file.endswith(".cu") else INCLUDE / edit.file
        lines = path.read_text().splitlines()
        at = int(mutant.mistake.split(":")[1])
        if "commit" not in lines[at - 1] and "//" not in lines[at - 1] + lines[at - 2]:
            bare.append(mutant.mistake)
    assert not bare, "these do not say which hazard they close: " + "; ".join(bare)
    assert deletions(stage)


def code(path: Path) -> str:
    return re.sub(r"//[^\n]*", "", path.read_text())


def those_that_say(pattern: str) -> dict[str, set[str]]:
    """What kernels and headers say that matches, by file."""
    found = {path.name: set(re.findall(pattern, code(path))) for path in [*KERNELS, *INCLUDE.glob("*.cuh")]}
    return {name: words for name, words in found.items() if words}


def test_one_file_says_what_a_row_sees():
    assert set(those_that_say(r"\bcausal\b")) == {"mask.cuh", "params.cuh"}
    assert set(those_that_say(r"S_k\s*-\s*(?:\w+\.)?S_q|S_q\s*-\s*(?:\w+\.)?S_k")) == {"mask.cuh"}


def test_one_file_names_the_element_type():
    found = those_that_say(r"\b_*half\w*|\bb?f16\w*|\w+_half2?\b|\b\w*bfloat16\w*|\b65504")
    names = {"half", "half2", "__half22float2", "f16", "65504"}
    names |= {"bfloat16", "__nv_bfloat16", "__nv_bfloat162", "__bfloat1622float2", "PTX_bfloat16", "bf16"}
    names |= {"f16x2", "__floats2bfloat162_rn"}
    of_e4m3 = {"f16x2", "half2"}  # which becomes .f16 first, whatever the element is
    assert found == {"element.cuh": names, "ptx.cuh": of_e4m3}


def test_one_file_declares_strides_and_sizes():
    assert set(those_that_say(r"long long \w+_(?:batch|head|row)\b|int S_k")) <= {"params.cuh", "mask.cuh"}
    takers = set(those_that_say(r"\bPARAMS\b|\bSIZES\b")) - {"params.cuh"}
    assert takers == {path.name for path in KERNELS}
