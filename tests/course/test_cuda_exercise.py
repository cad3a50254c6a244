"""Exercises in CUDA C: the region, what is said before it is compiled, by the compiler, of what it does."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from cuda_reference import Source, load
from cuda_reference.cpu import CompileError
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import cuda_text, exercise
from flashcore_numba.course.book import weave
from flashcore_numba.course.counters import in_file, of_line, total
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.judge import answer_stage, grade, process
from flashcore_numba.course.judge.compile_errors import first_complaint
from flashcore_numba.course.judge.screen_cuda import screen
from flashcore_numba.course.launches import recorded
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.course.spec import Gate
from flashcore_numba.stages.edited import MARKS
from flashcore_numba.stages.files import is_cuda

from .cuda_lessons import PRODUCT, SOFTMAX, answer, edited, verdict

BEGIN, END = MARKS["CUDA C"]

STORE = "wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);"
MULTIPLY = "wmma::mma_sync(o, p, v, o);"
LOAD_O = "wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);"
WHOLE = "__syncthreads();  // P is whole, and O rescaled, before a warp multiplies them"
LEFT = "__syncthreads();  // every warp has left K, V, P and O before the next tile overwrites them"

# The region


def test_anchors_that_do_not_fit_are_named():
    task = PRODUCT.exercise
    with pytest.raises(ArgumentError, match="first: 'nothing' is 0 lines of stage08"):
        exercise.region(replace(task, first="nothing"))
    with pytest.raises(ArgumentError, match="last: 'nothing' is no line"):
        exercise.region(replace(task, last="nothing"))


def test_indentation_and_tabs_do_not_matter():
    solution = exercise.region(PRODUCT.exercise).text
    for text in (solution.replace("    ", "\t"), re.sub(r"^    ", "", solution, flags=re.MULTILINE)):
        found = exercise.answer_in_cell(PRODUCT, text)
        assert found.text == exercise.source_text(PRODUCT.exercise.file)


def whole(lesson, text):
    """A starter with the region filled in."""
    starter = exercise.starter(lesson)
    head, _, rest = starter.partition(BEGIN)
    return f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"


def test_a_whole_file_is_judged_by_its_region_alone():
    text = whole(PRODUCT, edited(PRODUCT))
    assert screen(PRODUCT, exercise.answer_in_file(PRODUCT, text, "mine.cu")) is None
    unmarked = exercise.source_text(PRODUCT.exercise.file)
    assert screen(PRODUCT, exercise.answer_in_file(PRODUCT, unmarked, "mine.cu")) is None
    changed = exercise.answer_in_file(PRODUCT, text.replace("KEYS = 32", "KEYS = 16"), "mine.cu")
    found = screen(PRODUCT, changed)
    assert found.status == "refused" and "outside the region" in found.what and "KEYS = 16" in found.what
    assert "KEYS = 16" in changed.text.splitlines()[found.line - 1]
    empty = exercise.answer_in_file(PRODUCT, exercise.starter(PRODUCT), "mine.cu")
    assert screen(PRODUCT, empty).status == "empty"
    with pytest.raises(ArgumentError, match="no file of lesson 8"):
        screen(PRODUCT, exercise.answer_in_file(PRODUCT, "int x;\n", "mine.cu"))


def test_a_line_of_a_file_is_named_with_the_file():
    text = whole(PRODUCT, edited(PRODUCT, (MULTIPLY, "wmma::mma_sync(o, v, p, o);")))
    result = grade.check(PRODUCT, exercise.answer_in_file(PRODUCT, text, "mine.cu"))
    assert result.line_text == "wmma::mma_sync(o, v, p, o);" and f"mine.cu:{result.line}" in result.where
    assert text.splitlines()[result.line - 1].strip() == result.line_text


# Before the compiler


@pytest.mark.parametrize("text", ["", "...", "// a thought\n...\n", "/* nothing */\n;\n"])
def test_nothing_written_is_empty(text):
    assert screen(PRODUCT, exercise.answer_in_cell(PRODUCT, text)).status == "empty"


@pytest.mark.parametrize(
    "text, line, says",
    [
        ("float x = 1;\n...\n", 2, "still there"),
        ("float x = (1;\n", 1, r"`;`|never closed"),
        ("if (true) {\n", 1, "`{` is never closed"),
        ("float x = 1;\n}\n", 2, "did not open"),
        ("float x = y[0);\n", 1, "meets"),
        ("float x = 1; /* a\n", 1, "never closed"),
        ("#include <stdio.h>\nfloat x = 1;\n", 1, "preprocessor"),
        ("# a comment of Python\n", 1, "begins with //|`//`"),
        ('printf("x");\n', 1, "no text|printf"),
        ("printf(o_smem);\n", 1, "which value is wrong"),
        ("asm volatile(x);\n", 1, "asm"),
        ("float x = zebra;\n", 1, "Nothing defines `zebra`.*Given are o_smem"),
        ("float x = p_smen[0];\n", 1, "Did you mean .*`p_smem`"),
        ("for key in range(KEYS):\n", 1, "`in` is Python.*for \\(int key"),
        ("bool x = True;\n", 1, "`true`"),
        ("float x = “1”;\n", 1, "no character of C\\+\\+"),
        ("cpu::fault(1);\n", 1, "may not use `cpu`"),
        ("std::vector<int> x;\n", 1, "std"),
        ("%:include <x>\n", 1, "preprocessor"),
        ("// a thought \\\nfloat x = 1;\n", 1, "goes on in the next line"),
        ("float x = 1;  // why??/ \n", 1, "goes on in the next line"),
        ("float __attribute__((unused)) x;\n", 1, "Nothing defines `__attribute__`"),
        ("{ int __builtin_trap; }\n__builtin_trap();\n", 1, "Nothing defines `__builtin_trap`"),
        ("int _Exit = 1;\n", 1, "may not use `_Exit`"),
        ("goto end;\nend:;\n", 1, "may not use `goto`"),
        ("zebra = 1;\n", 1, "type in front: `float zebra"),
        ("if (0 <= KEYS < 3) o_smem[0] = 1;\n", 1, "no chained.*`... <= KEYS && KEYS <= ...`"),
        ("float x = load4(o_smem);\n", 1, "`load4` is Python.*reinterpret_cast"),
        ("float x = 1;\nx += o_smem[KEYS, 0];\n", 2, "is Python.*after the comma.*row \\* LD"),
        ("float x = min(1, 2);\nfloat o_smem[2];\n", 2, "`o_smem` is given.*hides"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, line, says):
    given = exercise.answer_in_cell(PRODUCT, text)
    found = screen(PRODUCT, given)
    assert found is not None and found.status == "refused", found
    assert given.number(found.line) == line
    assert re.search(says, f"{found.what} {found.look}", re.DOTALL), found


DECLARES = """\
const float a = 1, *b = &a;
float4 c[2] = {};
for (int n = 0, m = 2; n < m; n++) {
    uint32_t (&r)[4] = *reinterpret_cast<uint32_t(*)[4]>(&c[n]);
    r[0] = (uint32_t)a;
}
wmma::fragment<wmma::accumulator, 16, 16, 16, float> x, y;
auto twice = [&, x](float z) { return 2.0f * z; };
const float e = o_smem[max(0, 1)];
const float d = twice(*b);  // "no text", it's a comment
"""


def test_names_that_the_answer_declares_are_known():
    assert screen(PRODUCT, exercise.answer_in_cell(PRODUCT, DECLARES)) is None


def test_calls_lead_from_a_header_to_the_line_that_makes_them():
    text = exercise.source_text("tile.cuh")
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "m_new > -INFINITY" in each)
    assert cuda_text.function_around(text, line) == "online_softmax"
    kernel = exercise.source_text("stage08_wmma_full.cu")
    (call,) = cuda_text.lines_calling(kernel, "online_softmax")
    assert "tile::online_softmax(p, m)" in kernel.splitlines()[call - 1]
    assert cuda_text.function_around(kernel, call) == "wmma_full"
    assert len(cuda_text.lines_calling(kernel, "load_tile")) == 3
    assert len(cuda_text.lines_calling(exercise.source_text("stage10_pipeline.cu"), "load_tile_async")) == 2
    ring = exercise.source_text("stage14_tma_wgmma.cu")
    inside = next(n for n, each in enumerate(ring.splitlines(), 1) if "arrive_expect(k_full" in each)
    assert cuda_text.function_around(ring, inside) == "load_keys"


# The compiler


@pytest.mark.parametrize(
    "old, new, line, says",
    [
        ("float> o;", "float> o", 1, "A `;` is missing"),
        (MULTIPLY, "wmma::mma_sync(o, v, p, o);", 9, "a must be a fragment of matrix_a"),
        (LOAD_O, "wmma::load_matrix_sync(o, o_smem, O_LD);", 2, "also takes its layout"),
        (STORE, "wmma::store_matrix_sync(v_smem, o, O_LD, wmma::mem_row_major);", 11, "only an accumul"),
        (MULTIPLY, "o = p * v;", 9, "not defined between .*mma_sync"),
        ("float> o;", "float> x;", 2, "Nothing defines `o` here.*needs its type"),
        (LOAD_O, f"v = v_smem;\n{LOAD_O}", 2, "Nothing defines `v`.*`const element\\* v = ...;`"),
        (LOAD_O, f"ptx::cp_async_wait(1);\n{LOAD_O}", 2, "`cp_async_wait<PENDING>\\(\\)`.*angle brackets"),
        (LOAD_O, f"tile::store4(p_smem, o_smem);\n{LOAD_O}", 2, "only be read.*here `element\\*` is needed"),
        (LOAD_O, f"tile::store4();\n{LOAD_O}", 2, "`store4\\(element\\* target, const float\\* x\\)`"),
        ("float> o;", "float, wmma::row_major> o;", 2, "accumulator has no layout"),
        ("float> o;", "half> o;", 2, "holds `float`, not `half`"),
        ("float> o;", "float> o = o_smem;", 1, "not set from a `float\\*`.*load_matrix_sync"),
        ("wmma::fragment<wmma::accumulator", "wmma.fragment<wmma::accumulator", 1, "two colons"),
        ("16, 16, 16, float> o;", "16, 16, 17, float> o;", 1, "`static_assert` does not hold: .*16x16x16"),
        (LOAD_O, f"const int n = 1;\nconst int n = 1;\n{LOAD_O}", 3, "second time.*needs another name"),
        (LOAD_O, f"int n = 1;\nint n = 2;\n{LOAD_O}", 3, "second time.*assigned without the type"),
        (LOAD_O, f"tile::load8(o, first_row);\n{LOAD_O}", 2, "`first_row` here.*of the file, but not in"),
        (LOAD_O, f"o_smem[0] = p0;\nconst float p0 = 1;\n{LOAD_O}", 2, "defines `p0` here.*A local needs"),
    ],
)  # fmt: skip
def test_a_compilers_error_is_one_sentence_at_the_learners_line(old, new, line, says):
    result = verdict(PRODUCT, (old, new))
    assert result.status == "failed" and result.kind == "error" and result.line == line, result
    assert re.search(says, result.message, re.DOTALL), result
    assert any("The compiler says:" in note for note in result.notes)


PYTHONIC = {  # a line, of a reader of Python, and what is said of it
    "float4 x = reinterpret_cast<const float4*>(p_smem);": r"`const float4\*` is given where a `float4`",
    "float x[8] = tile::load8(x, p_smem);": "not set as a whole",
    "float x = tile::load8(eight, p_smem);": "gives nothing back",
    "float x; tile::load8(x, p_smem);": r"writes into a `float \[8\]`.*`float name\[8\];`",
    "float4 x; float y = x[0];": r"\.x, \.y, \.z and \.w",
    "float4 x; float y = x;": r"\.x, \.y, \.z and \.w",
    "float4 x = (float4) o_smem[0];": r"`make_float4\(...\)` makes",
    "float4 x = *reinterpret_cast<float4*>(p_smem);": r"only be read.*`const float4\*`",
    "float x = o_smem[0][1];": "one dimension",
    "float x = o_smem(0);": "Only a function is called",
    "float x = o_smem * 2.0f;": "pointer is an address",
    "float x[2] = [1, 2];": "in braces",
    "int middle = KEYS // 2;": "`//` begins a comment",
    "float x = 1 if KEYS > 0 else 2;": r"`c \? a : b`",
    "if (KEYS > 0): o_smem[0] = 1;": "begins with no `:`",
    "for (int i = 0, i < 4, i++) o_smem[i] = 0;": "divided by `;`",
    "void twice(float x) { }": r"within another.*`auto name = \[&\]",
    "auto twice = [](int i) { return o_smem[i]; };": r"not use `o_smem`.*`\[&\]`",
    "auto a = [](int i) { return i; }; int b = a();": r"other arguments.*takes \(int\), and here are \(\)",
    "auto a = [](int i) { return i; }; int b = a[2];": r"round brackets: it takes \(int\)",
    "take(o_smem);": r"A `float\*` is given where a `float \[4\]`.*order",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """A file with a function for each of these lines, and what the compiler says of it."""
    heads = [
        "#include <cuda_fp16.h>",
        '#include "tile.cuh"',
        "constexpr int KEYS = 32;",
        "void take(const float (&x)[4]);",
    ]
    given = "float* o_smem, const half* p_smem, float (&eight)[8]"
    for number, line in enumerate(PYTHONIC):
        heads += [f"__device__ void f{number}({given}) {{", line, "}"]
    path = tmp_path_factory.mktemp("pythonic") / "stage.cu"
    heads.append('extern "C" __global__ void stage(float* out) {}')
    path.write_text("\n".join(heads) + "\n")
    with pytest.raises(CompileError) as caught:
        load(Source(path, "stage"), "cpu")
    return path.read_text(), str(caught.value)


@pytest.mark.parametrize("line", PYTHONIC)
def test_what_a_reader_of_python_writes_is_told_in_words(refused, line):
    text, said = refused
    number = text.splitlines().index(line) + 1
    given = exercise.Answer(text, "stage.cu", number, number, False, is_cuda=True)
    found = first_complaint(given, said, "stage.cu")
    assert found is not None and found.line == number and found.inside, (found, said)
    assert "does not take it" not in found.what, found
    assert re.search(PYTHONIC[line], f"{found.what} {found.look}", re.DOTALL), found


def test_what_later_lines_need_is_named():
    lesson = replace(
        SOFTMAX,
        exercise=replace(
            SOFTMAX.exercise,
            first="const Interval row_keys = mask.interval(min(first_row + row, params.S_q - 1));",
            last="const Interval row_keys = mask.interval(min(first_row + row, params.S_q - 1));",
        ),
    )
    result = verdict(lesson, ("const Interval row_keys", "const Interval keys_of_row"))
    assert "The lines behind the region need `row_keys`" in result.message


# What it does


HAPPENS = [
    (SOFTMAX, WHOLE, "", 8, "race.*`o_smem` at row .*Between line 8.*line 6.*exercise's own advice"),
    (SOFTMAX, LEFT, "", 8, r"race.*In line 8.*against tile.cuh:\d+ \(called in line \d+\)"),
    (SOFTMAX, WHOLE, f"if (first_row + row >= S_q) return;\n{WHOLE}", 7,
     "barrier after exit.*Threads leave at line 7"),
    (SOFTMAX, "l = l * rescale +", "l = l +", 4, "second time it comes there.*`l` .*`m` is right there"),
    (PRODUCT, LOAD_O, "", 9, "uninitialised read.*fragment c.*never loaded or filled"),
    (PRODUCT, "key < KEYS", "key <= KEYS", 4, "uninitialised read.*`p_smem` at row 16, column 32"),
    (PRODUCT, MULTIPLY, f"if (threadIdx.x % 32 == 0) {MULTIPLY}", 9, "warp mask.*Between line 9.*line 7"),
    (PRODUCT, "p_smem + key,", "p_smem + key + 4,", 7, "misaligned"),
    (PRODUCT, "element, wmma::row_major> v", "element, wmma::col_major> v", 6, "the first column of O"),
    (PRODUCT, STORE, "", 10, "It is 0 in every lane"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("lesson, old, new, line, says", HAPPENS)
def test_what_happens_is_told_at_the_learners_line(lesson, old, new, line, says):
    result = verdict(lesson, (old, new))
    assert result.status == "failed" and result.line == line, result
    assert re.search(says, result.message, re.DOTALL), result


@pytest.mark.long
@pytest.mark.parametrize(
    "number, old, new, says",
    [
        (9, "(t + 1);", "(t + 1);\nload_keys_and_values(t + 1);", "written .* copies to the same place"),
        (
            10,
            "if (t < tiles.end)",
            "if (true)",
            "A thread returns before what it has started is done: .*waited for",
        ),
        (12, "r < LANE_ROWS; r++) sum", "r < 1; r++) sum", "a part of `sum` is read .*Between line 11"),
        (13, "i < count; i++) m", "i <= count; i++) m", "4 bytes are read just past the end of part_lse"),
        (
            15,
            "end_turn();",
            "end_turn();\nend_turn();",
            "too many arrivals: barrier 1, .* 257 arrivals.*one turn per tile",
        ),
    ],
)
def test_a_report_says_no_more_than_what_happened(number, old, new, says):
    result = verdict(LESSONS[number], (old, new))
    assert re.search(says, result.message, re.DOTALL), result
    assert not re.search("A warp reads|operands|thread.* returns.*somebody reads", result.message), result


@pytest.mark.long
def test_an_address_is_no_matter_of_arrivals():
    result = verdict(LESSONS[14], ("q_smem, k_smem + slot * TILE", "q_smem, k_smem + (slot - 1) * TILE"))
    assert "the address is not in the block's shared memory" in result.what and "arrival" not in result.look


@pytest.mark.long
def test_a_slot_that_the_next_work_tile_waits_for_is_missed():
    """A block with one work tile ends all the same."""
    result = verdict(LESSONS[15], ("release(v_empty + v_ring.slot);", "release(v_empty + k_ring.slot);"))
    assert result.cause == "argument" and "release(v_empty + k_ring.slot)" in result.line_text, result
    assert "every size of GPU" in result.what and "deadlock" in result.what, result


@pytest.mark.long
def test_a_reference_that_falls_behind_is_drawn_where_it_may():
    """A sum that reaches l before anybody asked whether it fits stays there."""
    result = verdict(LESSONS[12], ("sum[r] += p1;", "l[r] += p1;"))
    assert result.cause == "target" and "scores rise and fall" in result.what, result


@pytest.mark.long
def test_a_launch_that_was_stopped_keeps_no_bar():
    """At D = 128 the loader stops with a report: what it counted until then is no counter of the kernel."""
    result = verdict(LESSONS[15], ("fetched(v_full, v_ring);", "fetched(k_full, k_ring);"))
    assert result.kind == "copy" and not any("D = 128" in gate.what for gate in result.gates), result


@pytest.mark.long
@pytest.mark.parametrize(
    "old, new", [("cp_async_wait<AHEAD - 1>", "cp_async_wait<AHEAD>"), ("cp_async_wait<AHEAD - 1>();", ";")]
)
def test_of_a_copy_the_barrier_behind_its_wait_is_missed(old, new):
    """Barriers stand between the copy's instruction and the read."""
    result = verdict(LESSONS[11], (old, new))
    assert "with no barrier between (" not in result.what, result
    if result.kind == "race":
        assert "filled by the cp.async of thread" in result.what, result
        assert "no barrier between the wait for it and this read" in result.what, result


@pytest.mark.long
def test_a_report_counts_lines_as_the_author_of_a_cell_does():
    declared = "wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;"
    result = verdict(
        PRODUCT, (declared, f"if (threadIdx.x % 32 == 0) {{\n{declared}"), (STORE, f"{STORE}\n}}")
    )
    assert re.search(r"waiting at wmma::load_matrix_sync, line 3 of your answer", result.what), result


@pytest.mark.long
def test_a_loop_that_changes_memory_for_ever_is_stopped_with_its_line(monkeypatch):
    monkeypatch.setattr(answer_stage, "LAUNCH_SECONDS", 0.5)
    result = verdict(PRODUCT, ("key += 16", "key += 0"))
    assert result.kind == "hang" and 4 <= result.line <= 10, result
    assert "time limit" in result.what, result


@pytest.mark.long
def test_a_loop_that_touches_no_memory_is_reported_with_its_line():
    number = next(n for n, each in LESSONS.items() if is_cuda(each.exercise.file))
    text = "int turns = threadIdx.x;\nwhile (turns < 1000) turns = turns / 2;\n"
    reply = process.run({"job": "check", "lesson": number, "answer": text}, time_limit=120)["result"]
    assert reply["kind"] == "hang" and reply["line"] in (1, 2) and "endless loop" in reply["what"], reply


@pytest.mark.long
def test_the_commands_of_an_autograder_take_a_kernel(tmp_path):
    number = next(n for n, each in LESSONS.items() if is_cuda(each.exercise.file))
    flashcore = [sys.executable, "-m", "flashcore_numba"]
    made = subprocess.run([*flashcore, "starter", str(number)], cwd=tmp_path, capture_output=True, text=True)
    path = tmp_path / f"lesson{number:02d}.cu"
    assert made.returncode == 0 and path.name in made.stdout, made
    lesson = LESSONS[number]
    path.write_text(whole(lesson, exercise.region(lesson.exercise).text))
    check = [*flashcore, "check", path.name, "--lesson", str(number), "--json"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["passed"], done


@pytest.mark.long
def test_a_gate_is_missed_by_waste_alone():
    gate = Gate("products", total("mma"), 256, 512, 512, "Look at the loop.")
    lesson = replace(PRODUCT, exercise=replace(PRODUCT.exercise, gates=(gate,)))
    twice = f"wmma::fill_fragment(z, 0.0f);\nwmma::mma_sync(z, p, v, z);\n{MULTIPLY}"
    found = "wmma::fragment<wmma::accumulator, 16, 16, 16, float> o, z;"
    result = verdict(lesson, (PRODUCT.exercise.first, found), (MULTIPLY, twice))
    assert result.kind == "gate" and "products at 1x1x128x64 is 768" in result.what
    assert "Counted in the region, of 768: line 10" in result.where and "`: 256; line 11" in result.where


@pytest.mark.long
def test_of_many_lines_that_count_it_is_told_how_many_are_not_named():
    gate = Gate("wavefronts", total("shared_wavefronts"), 0, 11_648, 12_200, "")
    lesson = replace(PRODUCT, exercise=replace(PRODUCT.exercise, gates=(gate,)))
    result = verdict(lesson, (STORE, f"{STORE}\n{STORE}"))
    assert result.kind == "gate" and re.search(r"1,024; and 1 more\.$", result.where, re.MULTILINE), result


@pytest.mark.long
def test_bank_conflicts_of_a_right_answer_are_told_by_line():
    gate = Gate("wavefronts", total("shared_wavefronts"), 0, 11_648, 1e9, "")
    lesson = replace(SOFTMAX, exercise=replace(SOFTMAX.exercise, gates=(gate,)))
    result = verdict(lesson, ("4 * part, p);", "4 * part, p);  // 8 lanes a row"))
    assert result.passed
    (note,) = (note for note in result.notes if note.startswith("Lost to bank conflicts at 1x1x128x64"))
    assert "line 5 of your answer, `tile::store4(" in note and "256 of 512 wavefronts" in note


def test_without_a_compiler_the_check_says_what_to_install(monkeypatch):
    monkeypatch.setattr(grade, "why_not_simulated", lambda language: f"{language} needs g++: install it")
    with pytest.raises(ArgumentError, match="lesson 8 is in CUDA C: CUDA C needs g\\+\\+"):
        verdict(PRODUCT, (STORE, ""))


def test_the_same_answer_is_compiled_once():
    kernels = []
    for _ in range(2):
        with answer_stage.loaded(PRODUCT, answer(PRODUCT)) as stage:
            (kernel,) = recorded(stage, None, "1x1x64x64").sources
            kernels.append(kernel)
    one, two = kernels
    assert one == two and one.text() == answer(PRODUCT).text
    assert load(one, "cpu") is load(two, "cpu")


# Counters, evidence, excerpts


def test_counters_sum_what_the_executor_counts():
    launches = Evidence().counted(8).launches
    assert total("barriers")(launches) == of_line("__syncthreads", "barrier")(launches) == 512
    assert total("nothing of the kind")(launches) == 0
    file = "stage08_wmma_full.cu"
    headers = in_file("tile.cuh", "load", "wavefronts")(launches)
    assert in_file(file, "load", "wavefronts")(launches) + headers == total("shared_load_wavefronts")(
        launches
    )


def test_evidence_of_a_kernel_in_cuda_c():
    e = Evidence()
    assert e.barriers(8) == e.predicted(8, "barriers") == 4 * e.barriers(8, "S is whole")
    assert e.wavefronts(8, "load_matrix_sync(v") == e.line(8, "load_matrix_sync(v", "load", "wavefronts")
    assert e.conflicts(8) == e.predicted(8, "bank_conflicts") and e.degree(8, "load_matrix_sync(v") == 1
    assert e.constant(9, "SMEM_BYTES") == e.shared_bytes(9) == e.part(9, "o_smem", "stop") == 49536
    assert e.part(8, "p_smem", "row") == e.constant(8, "P_LD")
    assert e.part(11, "k_smem", "row") == e.constant(11, "LD")
    assert sum(part.bytes for part in e.memory_map(8)) == e.shared_bytes(8)
    assert (e.grid(12, "1x8x512x64"), e.warps(8)) == (128, 8)
    with pytest.raises(ArgumentError, match=r"constant of stage 9 'NONE': accepted are .*SMEM_BYTES"):
        e.constant(9, "NONE")
    with pytest.raises(ArgumentError, match="no kernel in CUDA C"):
        e.grid(5)
    with pytest.raises(ArgumentError, match="counted nowhere"):
        e.wavefronts(8, "no such line")


@pytest.mark.parametrize("number", range(7, 17))
def test_the_parts_of_shared_memory_fill_what_the_launch_gives(number):
    parts = [part for part in Evidence().memory_map(number) if not part.over]
    assert sum(part.bytes for part in parts) == Evidence().shared_bytes(number)


def test_an_excerpt_of_a_kernel_hides_what_its_reader_writes():
    number = next((n for n, each in LESSONS.items() if is_cuda(each.exercise.file)), None)
    if number is None:
        pytest.fail("no lesson has an exercise in CUDA C")
    task = LESSONS[number].exercise
    text = f'<!--code {task.file} "#include" "{task.first}"-->\n<!---->\n'.replace(
        "#include", "using namespace"
    )
    with pytest.raises(ArgumentError, match="shows lines of the exercise"):
        weave.woven(text, f"lessons/{number:02d}_x.md")
    shown = '<!--code tile.cuh "void load8(" "x[2 * i]"-->\n<!---->\n'
    assert "```cpp\n__device__ __forceinline__ void load8" in weave.woven(shown, f"lessons/{number:02d}_x.md")
