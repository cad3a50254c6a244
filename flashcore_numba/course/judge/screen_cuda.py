"""A look at an answer in CUDA C before it is compiled: is it there, do its brackets match, does it reach out?

It reads tokens, not C++: what only a compiler can say, `compile_errors` says.
"""

import difflib
import re
from functools import cache
from itertools import pairwise

import cuda_reference
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.cuda_text import Token, code_of, tokens
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.verdict import Refusal
from flashcore_numba.course.spec import Lesson
from flashcore_numba.stages import files
from flashcore_numba.stages.edited import MARKS
from flashcore_numba.stages.files import Place

CLOSES = {")": "(", "]": "[", "}": "{"}
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof auto bool break case char const const_cast constexpr continue decltype default do
        double else enum false float for if inline int long mutable noexcept nullptr reinterpret_cast
        return short signed sizeof static_cast struct switch true union unsigned void volatile while and or
        not xor static_assert
        """,
    )
)
TYPES = {"auto", "bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "void"}
# What every kernel has: CUDA C++ Programming Guide, "C++ Language Extensions" and the headers of NVRTC.
BUILT_IN = frozenset(
    re.findall(
        r"\w+",
        """
        threadIdx blockIdx blockDim gridDim warpSize x y z w element element2 half half2 __half __half2
        float2 float3 float4 int2 int4 uint2 uint3 uint4
        uint32_t uint64_t uint16_t uint8_t int64_t size_t uintptr_t INFINITY
        make_float2 make_float4 make_int2 make_int4 make_uint2 make_uint4 __syncthreads __syncwarp
        __shfl_sync __shfl_xor_sync __shfl_up_sync __shfl_down_sync __ballot_sync __any_sync __all_sync
        __shared__ __activemask __threadfence __threadfence_block __float2half __float2half_rn __half2float
        __half22float2 __float22half2_rn __floats2half2_rn __halves2half2 __low2float __high2float
        __low2half __high2half __half2half2 __hadd __hmul __hfma __hadd2 __hmul2 __hfma2 __hmax __hmax2
        __expf exp2f expf __logf log2f logf sqrtf rsqrtf __fdividef fmaf __fmaf_rn fmaxf fminf fabsf min max
        abs __int_as_float __float_as_int __float_as_uint __uint_as_float isnan isinf atomicAdd atomicMax
        __popc __ffs __clz __ldg __restrict__ __align__ nvcuda wmma fragment matrix_a matrix_b accumulator
        row_major col_major mem_row_major mem_col_major load_matrix_sync store_matrix_sync mma_sync
        fill_fragment num_elements tile ptx
        """,
    )
)
REFUSED = {
    **dict.fromkeys(("asm", "__asm__", "__asm"), "The wrappers in ptx.cuh stand for the instructions."),
    **dict.fromkeys(("new", "delete", "malloc", "free"), "A kernel of this course has arrays of fixed size."),
    **dict.fromkeys(("try", "throw", "catch"), "Device code has no exceptions."),
    **dict.fromkeys(("std", "string", "vector"), "Device code has no standard library."),
    "printf": "The check says which value is wrong and where.",
    **dict.fromkeys(
        (
            *("extern", "static", "thread_local", "namespace", "using", "template", "typename", "class"),
            *("typedef", "friend", "operator", "export", "import", "concept", "requires", "goto", "virtual"),
        ),
        "The region is a few statements: locals, loops, conditions and calls.",
    ),
    **dict.fromkeys(("cpu", "site"), "It belongs to what runs the kernel."),
}  # fmt: skip
# Python that a reader of the first half may write by habit.
FROM_PYTHON = {
    "True": "In C++ it is `true`.",
    "False": "In C++ it is `false`.",
    "None": "In C++ it is `nullptr`.",
    "def": "In C++ a small function within a kernel is `auto name = [&](int t) { ... };`.",
    "lambda": "In C++ a small function within a kernel is `auto name = [&](int t) { ... };`.",
    "elif": "In C++ it is `else if (...)`.",
    "pass": "In C++ an empty statement is `;`.",
    "in": "In C++ a loop over keys is `for (int key = 0; key < KEYS; key++)`.",
    "range": "In C++ a loop over keys is `for (int key = 0; key < KEYS; key++)`.",
    "float32": "In C++ the type is `float`.",
    "float16": "In these kernels the type is `element`.",
    "cuda": "In CUDA C the barrier is `__syncthreads()`, and the thread `threadIdx.x`.",
    "syncthreads": "In CUDA C it is `__syncthreads()`.",
    "syncwarp": "In CUDA C it is `__syncwarp()`.",
    "math": "In CUDA C functions stand alone: `fmaxf(a, b)`, `ptx::ex2(x)`.",
    "load4": "In CUDA C `*reinterpret_cast<const float4*>(pointer)` loads 16 bytes.",
    "fma4": "In CUDA C `a * b + c` of floats is one FMA.",
}
OURS = re.compile(r"^(?:cpu_\w+|CPU_\w+|PTX\w*|FLASHCORE\w*|flashcore\w*|_[A-Z]\w*|__\w+)$")
NEW_NAME = (
    "A new name has its type in front: `float {0} = ...;`, or `const element* {0} = ...;` for an address."
)
CHAINED = re.compile(
    r"(?<![<>=!-])<=?(?![<=])([^;,(){}&|?:<>=]+)(?<![<>=!-])<=?(?![<=])"
    r"|(?<![<>=!-])>=?(?![>=])([^;,(){}&|?:<>=]+)(?<![<>=!-])>=?(?![>=])"
)
SMALLEST_SHARE = 0.6  # of the stage's lines that a file of the lesson has at least


def screen(lesson: Lesson, answer: Answer) -> Refusal | None:
    """The first thing that keeps an answer in CUDA C from being compiled, or None.

    Raises ArgumentError for a whole file that is not one of this lesson.
    """
    if not answer.is_cell and (refusal := _whole_file(lesson, answer)) is not None:
        return refusal
    first, lines = answer.first or 1, answer.lines
    every = list(tokens("\n".join(lines), first))
    code = [token for token in every if token.kind != "comment"]
    if "".join(token.text for token in code).strip(";") in ("", "..."):
        return Refusal("empty", "The region is still empty.", answer.first, "Write the lines of the task.")
    return (
        _continued(lines, first)
        or _characters(code, answer)
        or _brackets(code, first)
        or _commas(code)
        or _names(lesson, code)
        or _hidden(lesson, code)
        or _chained(code_of("\n".join(lines)), first)
    )


def declared_names(answer: Answer) -> set[str]:
    """Names that the answer's lines seem to declare, in whatever block."""
    return _declared([token for token in tokens("\n".join(answer.lines), 1) if token.kind != "comment"])


def _whole_file(lesson: Lesson, answer: Answer) -> Refusal | None:
    """Is a file handed in one of this lesson, and is it the stage's outside the region?"""
    found = exercise.region(lesson.exercise)
    stage = exercise.source_text(lesson.exercise.file).splitlines()
    lines = answer.text.splitlines()
    ours = [*stage[: found.first_line - 1], *stage[found.last_line :]]
    share = sum(line in set(lines) for line in ours) / len(ours)
    if share < SMALLEST_SHARE:
        raise ArgumentError(
            f"{answer.file}: no file of lesson {lesson.key}, which is a copy of {lesson.exercise.file}; "
            f"`flashcore starter {lesson.key}` writes one to start from"
        )
    look = "Only the lines between the two markers may change."
    if answer.first is None or answer.last is None:
        what = "The markers `// <exercise>` and `// </exercise>` are gone, and other lines are changed."
        return Refusal("refused", what, None, look)
    marked = lines[answer.first - 2].strip() == MARKS["CUDA C"][0] if answer.first > 1 else False
    head = lines[: answer.first - 1 - marked]
    tail = lines[answer.last + marked :]
    pairs = [
        (head, stage[: found.first_line - 1], 1),
        (tail, stage[found.last_line :], answer.last + 1 + marked),
    ]
    for theirs, wanted, first in pairs:
        for n in range(max(len(theirs), len(wanted))):
            if [line.rstrip() for line in theirs[n : n + 1]] != [line.rstrip() for line in wanted[n : n + 1]]:
                changed = (theirs[n : n + 1] or [""])[0].strip()
                what = f"A line outside the region is not the stage's: `{changed}`."
                return Refusal("refused", what, min(first + n, len(lines)), look)
    return None


def _continued(lines: list[str], first: int) -> Refusal | None:
    """A line that the next one continues: a comment would hide from the compiler what is looked at here."""
    for n, line in enumerate(lines):
        if re.search(r"(\\|\?\?/)\s*$", line):
            what = f"`{line.strip()[-40:]}` goes on in the next line."
            look = "A statement may have several lines without a `\\` at their ends."
            return Refusal("refused", what, first + n, look)
    return None


def _characters(code: list[Token], answer: Answer) -> Refusal | None:
    """Text that is no C++, or that an exercise does not need."""
    for n, token in enumerate(code):
        if token.kind == "open":
            return Refusal("refused", "A comment that `/*` opens is never closed.", token.line,
                           "Close it with `*/`, or write `//` before each line.")  # fmt: skip
        if token.kind == "directive" and not re.fullmatch(
            r"#\s*pragma\s+unroll(\s*\(?\w+\)?)?\s*(//.*)?", token.text
        ):
            look = "A comment begins with `//`; of the lines with `#` an exercise has `#pragma unroll` only."
            return Refusal(
                "refused", f"`{token.text[:40]}` is a line for the preprocessor.", token.line, look
            )
        if token.kind == "text":
            return Refusal("refused", f"An exercise needs no text: {token.text[:40]}.", token.line)
        if token.kind == "sign" and (token.text in "\\@$`" or not token.text.isascii()):
            look = "It may come from copying formatted text: write it anew."
            return Refusal("refused", f"`{token.text}` is no character of C++.", token.line, look)
        following = code[n + 1] if n + 1 < len(code) else None
        if token.text == "%" and following and following.text == ":":
            return Refusal("refused", "`%:` is a line for the preprocessor.", token.line)
        if token.text == "." and [t.text for t in code[n : n + 3]] == ["."] * 3:
            look = "It stood for the lines to write: take it out."
            return Refusal("refused", "The `...` of the starter is still there.", token.line, look)
    return None


def _brackets(code: list[Token], first: int) -> Refusal | None:
    opened: list[Token] = []
    for token in code:
        if token.text in ("(", "[", "{"):
            opened.append(token)
        elif token.text in CLOSES:
            if not opened:
                look = "What is open before the region stays open: the file closes it behind the region."
                return Refusal(
                    "refused", f"`{token.text}` closes what the region did not open.", token.line, look
                )
            last = opened.pop()
            if last.text != CLOSES[token.text]:
                what = f"`{token.text}` meets `{last.text}` of line {last.line - first + 1} of the region."
                look = "Every bracket is closed by its own kind, the last one opened first."
                return Refusal("refused", what, token.line, look)
    if opened:
        what = f"`{opened[-1].text}` is never closed."
        return Refusal(
            "refused", what, opened[-1].line, "Every bracket that opens closes again in the region."
        )
    return None


def _commas(code: list[Token]) -> Refusal | None:
    """`tile[row, column]`, which C++ takes for `tile[column]`."""
    opened: list[tuple[str, bool]] = []  # the bracket, and whether it takes an element
    for n, token in enumerate(code):
        if token.text in ("(", "[", "{"):
            before = code[n - 1] if n else token
            of_element = before.text in (")", "]") or (before.kind == "name" and before.text not in WORDS)
            opened.append((token.text, token.text == "[" and of_element))
        elif token.text in CLOSES:
            opened.pop()
        elif token.text == "," and opened and opened[-1][1]:
            what = "`[row, column]` is Python: C++ takes what is after the comma."
            look = "The array has one dimension: `tile[row * LD + column]`, with the distance of its rows."
            if any(one.text == "]" and other.text == "[" for one, other in pairwise(code)):
                look = "Each dimension has its own brackets: `tile[row][column]`."
            return Refusal("refused", what, token.line, look)
    return None


def _hidden(lesson: Lesson, code: list[Token]) -> Refusal | None:
    """A given name that the region declares anew, so that its own lines see another variable."""
    types = TYPES | {"element", "half", "float4", "uint4"}
    for n, token in enumerate(code[1:-1], 1):
        is_new = code[n - 1].text in types and code[n + 1].text in ("=", ";", "{", "[", ",")
        if is_new and token.text in lesson.exercise.given:
            what = f"`{token.text}` is given, and this declares a second one that hides it."
            return Refusal("refused", what, token.line, "Use what is given, or take another name.")
    return None


def _chained(code: str, first: int) -> Refusal | None:
    """`0 <= step < tiles`, which C++ takes for `(0 <= step) < tiles`."""
    for n, line in enumerate(code.splitlines()):
        if (found := CHAINED.search(line)) and not line.lstrip().startswith("#"):
            middle = (found[1] or found[2]).strip()
            look = f"Write both comparisons, with `&&` between: `... <= {middle} && {middle} <= ...`."
            what = f"C++ has no chained comparisons: `{line.strip()}` compares `{middle}` once."
            return Refusal("refused", what, first + n, look)
    return None


def _names(lesson: Lesson, code: list[Token]) -> Refusal | None:
    """Names that no exercise needs, and names that nothing defines."""
    known = known_names(lesson.exercise.file, lesson.exercise.stage)
    declared = _declared(code)
    for n, token in enumerate(code):
        if token.kind != "name" or token.text in WORDS:
            continue
        before = code[n - 1].text if n else ""
        if before in (".", "->"):
            continue
        name = token.text
        if name in REFUSED:
            return Refusal("refused", f"An exercise may not use `{name}`.", token.line, REFUSED[name])
        if name in FROM_PYTHON and name not in known:
            return Refusal("refused", f"`{name}` is Python.", token.line, FROM_PYTHON[name])
        if name in known or name in declared or name in BUILT_IN:
            continue
        if OURS.match(name) and not name.startswith("__"):
            return Refusal("refused", f"An exercise may not use `{name}`.", token.line, REFUSED["cpu"])
        begins = before in ("", ";", "{", "}") and [t.text for t in code[n + 1 : n + 2]] == ["="]
        look = _did_you_mean(lesson, name, known | declared, begins)
        return Refusal("refused", f"Nothing defines `{name}`.", token.line, look)
    return None


def _did_you_mean(lesson: Lesson, name: str, known: set[str], is_new: bool) -> str:
    likely = difflib.get_close_matches(name, sorted(known | set(BUILT_IN)), 2, 0.75)
    if not likely or is_new:
        given = ", ".join(lesson.exercise.given)
        return f"{NEW_NAME.format(name)} Given are {given}."
    return f"Did you mean {' or '.join(f'`{each}`' for each in likely)}?"


def _declared(code: list[Token]) -> set[str]:
    """Names that a statement seems to declare: `float x`, `uint4* y`, `fragment<...> z, more`."""
    found: set[str] = set()
    for n, token in enumerate(code):
        if token.kind != "name" or token.text in WORDS or OURS.match(token.text):
            continue
        back = n - 1
        while back >= 0 and code[back].text in ("*", "&", "const", "("):
            back -= 1
        previous = code[back] if back >= 0 else None
        if previous is None or n == 0:
            continue
        is_type = previous.kind == "name" and (previous.text not in WORDS or previous.text in TYPES)
        is_call = code[n - 1].text == "(" and back == n - 2
        follows_comma = previous.text == "," and back == n - 1 and _begins_with_a_type(code, n)
        in_brackets = previous.text == "[" and back > 0 and code[back - 1].text in ("auto", "&")
        if ((is_type or previous.text == ">") and not is_call) or follows_comma or in_brackets:
            found.add(token.text)
    return found


def _begins_with_a_type(code: list[Token], at: int) -> bool:
    """Is the statement around a comma at `at - 1`, outside brackets, a declaration?"""
    depth, n = 0, at - 1
    while n >= 0:
        text = code[n].text
        if text in CLOSES:
            if text == "}" and depth == 0:
                break
            depth += 1
        elif text in ("(", "[", "{"):
            if depth == 0:
                break
            depth -= 1
        elif text == ";" and depth == 0:
            break
        n -= 1
    start = [
        token for token in code[n + 1 : at] if token.text not in ("const", "constexpr", "*", "&", "unsigned")
    ]
    if len(start) < 2:
        return False
    return start[0].kind == "name" and (start[1].kind == "name" or start[1].text in ("<", "::"))


@cache
def known_names(file: str, stage: Place) -> set[str]:
    """Every name of the stage's kernel and of the headers in `include/`, comments aside."""
    kernels = files.kernels_of(stage)
    texts = [path.read_text() for path in [*kernels, *cuda_reference.INCLUDE.glob("*.cuh")]]
    names = {
        token.text
        for text in texts
        for token in tokens(text, 1)
        if token.kind == "name" and token.text not in WORDS
    }
    return {name for name in names if name not in REFUSED and (name in BUILT_IN or not OURS.match(name))}
