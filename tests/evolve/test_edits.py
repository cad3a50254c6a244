"""Edits that a search draws: repeatable, each once, and the harmless ones only where they are."""

import ast
import textwrap
from itertools import islice

import numpy as np
import pytest

from flashcore_numba.course import exercise
from flashcore_numba.course.lessons import OF_KERNELS, find
from flashcore_numba.evolve.edits import OPERATORS, proposals

CUDA = """\
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const float x = a[i] * scale;
        if (row < limit) sum += x;
        ptx::cp_async_wait<1>();
        __syncthreads();
        out[i] = first + x;
    }
"""


def region(key):
    return exercise.region(find(key).exercise).text


def drawn(text, seed, count=400):
    return list(islice(proposals(text, np.random.default_rng(seed)), count))


def by(operator, text=CUDA):
    return [each.text for each in drawn(text, 1) if each.operator == operator]


@pytest.mark.parametrize("key", ["5", "12", "14"])
def test_a_seed_repeats_the_edits_and_none_comes_twice(key, rng):
    seed = int(rng.integers(1 << 32))
    found = drawn(region(key), seed, 60)
    assert found == drawn(region(key), seed, 60)
    texts = [each.text for each in found]
    assert len(set(texts)) == len(texts) and region(key) not in texts
    assert found != drawn(region(key), seed + 1, 60)
    for each in found:
        assert each.harmless == OPERATORS[each.operator].harmless and each.sentence.startswith("Line ")


def test_python_stays_python(rng):
    for each in drawn(region("5"), int(rng.integers(1 << 32)), 80):
        ast.parse(textwrap.dedent(each.text))
        assert all(line.startswith(" " * 12) for line in each.text.splitlines() if line.strip())


@pytest.mark.parametrize(
    "operator, line",
    [
        ("flip_count", "        ptx::cp_async_wait<0>();"),
        ("weaken_barrier", "        __syncwarp();"),
        ("duplicate_wait", "        { __syncthreads(); __syncthreads(); }"),
        ("swap_factors", "        const float x = scale * a[i];"),
        ("swap_terms", "        out[i] = x + first;"),
        ("flip_comparison", "        if (limit > row) sum += x;"),
        ("spell_out_update", "        if (row < limit) sum = sum + (x);"),
        ("prefix_increment", "    for (int i = 0; i < TILES; ++i) {"),
        ("rename_local", "        out[i_0] = first + x;"),
        ("add_braces", "        if (row < limit) { sum += x; }"),
        ("hoist_bound", "{ const int loop_bound = TILES;"),
        ("add_comment", "// Nothing else changes."),
    ],
)
def test_what_an_operator_makes(operator, line):
    made = [each.operator for each in drawn(CUDA, 1) if line in each.text.split("\n")]
    assert operator in made or (made and not OPERATORS[operator].harmless), made


def test_operators_that_would_not_be_harmless_find_nothing():
    text = "x = a - b * c + d;\ny = a * f(b);\nz = a / b * c;\nconst float* p = q;\n"
    assert by("swap_factors", text) == [text.replace("b * c + d", "c * b + d")]
    assert by("swap_terms", text) == []
    assert by("rename_local", text) == by("hoist_bound", text) == []


def test_deleted_waits_and_unrolling():
    assert any("cp_async_wait" not in text for text in by("delete_wait"))
    assert any("#pragma" not in text for text in by("toggle_unroll"))
    assert "#pragma unroll\n" + CUDA.split("\n", 1)[1] == CUDA


@pytest.mark.long
def test_every_operator_finds_something_in_the_course():
    regions = [region(str(lesson.key)) for lesson in OF_KERNELS.values()]
    assert {*OPERATORS} == {each.operator for text in regions for each in drawn(text, 1, 250)}
