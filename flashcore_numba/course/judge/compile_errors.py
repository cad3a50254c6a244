"""What a C++ compiler says about an answer, as one plain sentence at the learner's own line."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

import cuda_reference
from flashcore_numba.course.cuda_text import code_of
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.screen_cuda import NEW_NAME, declared_names

MESSAGE = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?P<kind>fatal error|error|note): (?P<text>.*)$"
)
FROM = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+):\s+required from here")
WMMA = {
    "load_matrix_sync": "It takes a fragment, the address of the matrix's first element and the distance "
    "of its rows; of an accumulator also `wmma::mem_row_major`. The memory holds what the fragment holds: "
    "`element` in matrix_a and matrix_b, `float` in the accumulator.",
    "store_matrix_sync": "It takes the address, a fragment of accumulator, the distance of rows and "
    "`wmma::mem_row_major`; only an accumulator can be stored, to memory of its own type, `float`.",
    "mma_sync": "It takes (d, a, b, c): d and c are accumulators, a is a fragment of matrix_a, b one of "
    "matrix_b.",
    "fill_fragment": "It takes a fragment and the value of all its elements.",
}
LAYOUT = re.compile(r"\bwmma::(?:row|col)_major(?=\s*\))")
FOR = re.compile(r"\bfor\s*\(")
COMMENT = re.compile(r"^(.*[\w)\]])\s*//")  # code that does not end before the comment does


class Told(NamedTuple):
    """One error in plain words. missing: what it says is missing, ";" for example; undefined: the name that
    it says nothing defines; "" where it says neither.
    """

    what: str
    look: str
    missing: str = ""
    undefined: str = ""


Rule = Callable[[re.Match], tuple[str, str] | Told]


@dataclass(frozen=True)
class Complaint:
    """what: one plain sentence. look: what to look at. said: the compiler's own words. line: of the answer's
    file, None where the compiler names none of it. inside: the line is one of the region's.
    """

    what: str
    look: str
    said: str
    line: int | None
    inside: bool


def first_complaint(answer: Answer, stderr: str, file: str) -> Complaint | None:
    """The first error of a compiler's output; `file` is the name of the answer's copy."""
    errors: list[dict] = []
    above: list[int] = []  # lines of the file that "required from here" names for the error that follows
    for row in stderr.splitlines():
        row = row.replace("\u2018", "'").replace("\u2019", "'")
        if (start := FROM.match(row)) and PurePath(start["file"]).name == file:
            above.append(int(start["line"]))
        elif found := MESSAGE.match(row):
            own = PurePath(found["file"]).name == file
            line = int(found["line"]) if own else None
            if line is not None and re.match(r"expected .* before", found["text"]):
                line = _before(answer, line, int(found["column"]))
            if found["kind"] != "note":
                candidates = [*above, *([line] if line else [])]
                own_lines = [n for n in candidates if answer.inside(n)]
                errors.append({"text": found["text"], "line": next(iter(own_lines + candidates), None)})
                above = []
    if not errors:
        return None
    # The first in the region; but a name that later lines lack is the region's fault, and comes first.
    chosen = next((e for e in errors if e["line"] and answer.inside(e["line"])), errors[0])
    if errors[0]["line"] is not None and _is_cause(errors[0]["text"]):
        chosen = errors[0]
    line, text = chosen["line"], re.sub(r"\w+\([^<>]*\)::<lambda", "<lambda", chosen["text"])
    inside = line is not None and answer.inside(line)
    what, look, missing, undefined = _told(text)
    if inside and "before ')'" in text and (named := LAYOUT.search(answer.text.splitlines()[line - 1])):
        what = f"`{named[0]}` belongs into a fragment's type and is no value."
        look = "Where an accumulator is loaded or stored the layout is `wmma::mem_row_major`."
    if inside and missing == ";" and FOR.search(answer.text.splitlines()[line - 1]):
        what = "The three parts in the brackets of a `for` are divided by `;`."
        look = "`for (int i = 0; i < 4; i++)`: where it starts, while it goes on, what a turn ends with."
    if inside and missing == ";" and (cut := COMMENT.search(answer.text.splitlines()[line - 1])):
        what = f"`//` begins a comment: nothing behind `{cut[1].strip()}` is read."
        look = "`/` divides, and drops the rest where both sides are integers; a statement ends with `;`."
    new = undefined if inside else ""
    if new and _is_first(answer, line, new):
        look = f"{NEW_NAME.format(new)} Given names need none."
    elif new and new in declared_names(answer):  # further down, or in a block that has ended
        look = LOCAL
    elif new in _names_outside(answer):
        look = (
            "It is a name of the file, but not in this place: the region has what is given and what it "
            "declares itself."
        )
    if (
        line
        and not inside
        and (needed := re.search(r"'(\w+)' was not declared|undeclared identifier '(\w+)'", text))
    ):
        name = needed[1] or needed[2]
        what = f"The lines behind the region need `{name}`, and the answer does not set it there."
        look = "Declare it in the region, outside every block of its own: `{ ... }` keeps what it declares."
    return Complaint(what, look, text, line, inside)


def _before(answer: Answer, line: int, column: int) -> int:
    """Where something is missing before a line's first word, it is missing at the end of the line before."""
    lines = code_of(answer.text).splitlines()
    if lines[line - 1][: column - 1].strip():
        return line
    return next(
        (n for n in range(line - 1, 0, -1) if lines[n - 1].strip() and lines[n - 1].strip()[0] != "#"), line
    )


def _is_first(answer: Answer, line: int, name: str) -> bool:
    """Does a statement of the line begin with `name =`?"""
    code = code_of(answer.text).splitlines()[line - 1]
    return re.search(rf"(?:^|[;{{}}])\s*{re.escape(name)}\s*=(?!=)", code) is not None


def _names_outside(answer: Answer) -> set[str]:
    """Names of the file's code, without those of the region."""
    lines = code_of(answer.text).splitlines()
    return set(re.findall(r"\w+", " ".join(line for n, line in enumerate(lines, 1) if not answer.inside(n))))


def _is_cause(text: str) -> bool:
    return "was not declared" in text or "undeclared identifier" in text


def _told(text: str) -> Told:
    text = re.sub(r" \{aka [^}]*\}| \[-f\w+\]", "", text)
    for pattern, rule in RULES:
        if match := re.search(pattern, text):
            return Told(*rule(match))
    return Told(f"The compiler does not take it: {text}.", "")


def _call(match: re.Match) -> tuple[str, str]:
    name = re.sub(r"<.*", "", match[1]).split("(")[0].split("::")[-1].strip()
    what = f"`{name}` does not take these arguments."
    if name in WMMA:
        if re.search(r"accumulator, \d+, \d+, \d+, \w+, ", match[1]):
            return "A fragment of accumulator has no layout in its type.", FRAGMENT
        if re.search(r"accumulator, \d+, \d+, \d+, (?:_Float16|half)", match[1]):
            return "The accumulator of these kernels holds `float`, not `half`.", FRAGMENT
        return what, WMMA[name]
    if re.fullmatch(r"(?:float|uint|int|half)[234]", name):
        return f"A `{name}` is not made of this.", (
            f"`make_{name}(...)` makes one from its numbers, and `*reinterpret_cast<const {name}*>(pointer)` "
            "loads one."
        )
    declared = _declaration(name)
    if not declared:
        return what, ""
    brackets = " What is in angle brackets is a constant: `ptx::cp_async_wait<1>()`." * ("<" in declared)
    return what, f"It is declared as `{declared}`.{brackets}"


def _declaration(name: str) -> str:
    """The head of a function of the headers."""
    for path in sorted(cuda_reference.INCLUDE.glob("*.cuh")):
        head = re.search(
            rf"^(?:template <(?P<parameters>[^\n>]*)>\s*)?[^\n;=]*\b{re.escape(name)}"
            r"\((?P<arguments>[^;{]*?)\)\s*(?:PTX|\{)",
            path.read_text(),
            re.MULTILINE,
        )
        if head:
            parameters = re.findall(r"int (\w+)", head["parameters"] or "")
            arguments = re.sub(r"\s*\bPTX_SITE(?:_ONLY)?\b", "", " ".join(head["arguments"].split()))
            return f"{name}{'<' + ', '.join(parameters) + '>' if parameters else ''}({arguments})"
    return ""


def _semicolon(match: re.Match) -> Told:
    return Told(
        f"A `{match[1]}` is missing, in this line or at the end of the one before.",
        "A statement ends with `;`, and every bracket closes."
        if match[1] == ";"
        else "Every bracket closes again.",
        missing=match[1],
    )


def _converted(match: re.Match) -> tuple[str, str]:
    have, want = match[1], match[2]
    if "const" in have and "const" not in want and "*" in want:
        return f"`{have}` points at memory that may only be read, and here `{want}` is needed.", (
            "Read through `const` pointers and write through the others."
        )
    if "fragment<" in want:
        return f"A fragment is not set from a `{have}`.", (
            "Declare it, and load it: `wmma::load_matrix_sync(fragment, pointer, distance of rows)`, of an "
            "accumulator with `wmma::mem_row_major` behind."
        )
    look = _parts(have)
    if ("*" in have) != ("*" in want):
        look = (
            "A pointer is an address: `pointer[index]` and `*pointer` are what is there, `pointer + index` "
            "is an address again."
        )
    if (vector := re.search(r"\w+[24]$", want)) and have.endswith("*"):
        look += f" `*reinterpret_cast<const {vector[0]}*>(pointer)` is the `{vector[0]}` that is there."
    return f"A `{have}` is given where a `{want}` is needed.", look


def _parts(kind: str) -> str:
    """How to get at the numbers of a vector type."""
    if not (vector := re.search(r"\b(?:float|uint|int)([24])$", kind)):
        return ""
    parts = [f".{part}" for part in "xyzw"[: int(vector[1])]]
    return f"Its numbers are {', '.join(parts[:-1])} and {parts[-1]}."


def _reference(match: re.Match) -> tuple[str, str]:
    """An argument that the function takes as its caller's own, most often to write to it."""
    want = re.sub(r" ?\(?&\)?", "", match[1]).replace("[", " [")
    if want.startswith("const "):
        what = f"A `{match[2]}` is given where a `{want.removeprefix('const ')}` is needed."
        return what, "Compare the arguments and their order with what is given."
    name = re.sub(r"(?=\s*\[)| *$", " name", want, count=1).replace(" [", "[")
    return (
        f"The function writes into a `{want}` of its caller, and this is a `{match[2]}`.",
        "Compare the arguments and their order with what is given. What a function writes into is declared "
        f"before, `{name};`, and handed over by its name alone.",
    )


def _void(match: re.Match) -> tuple[str, str]:
    return "What stands right of `=` gives nothing back: it is `void`.", (
        "Call it as a statement of its own: it writes into what it is handed, declared before, as `float "
        "v[8];` is."
    )


def _unknown(match: re.Match) -> Told:
    what = f"Nothing defines `{match[1]}` here."
    if match[2]:
        return Told(what, f"Did you mean `{match[2].removeprefix('nvcuda::')}`?", undefined=match[1])
    return Told(what, LOCAL, undefined=match[1])


LOCAL = (
    "A local needs its type before it. It lives only within the `{ }` around its declaration, and a `for` "
    "without braces governs one statement."
)
FRAGMENT = (
    "Of a sum it is `wmma::fragment<wmma::accumulator, 16, 16, 16, float>`, of an operand "
    "`wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major>`, or matrix_b, or col_major."
)


RULES: tuple[tuple[str, Rule], ...] = (
    (r"'use' is not a member of", lambda m: (
        "`mma_sync` multiplies fragments, and this is something else.",
        f"Declare fragments, load them from the pointers, then multiply. {WMMA['mma_sync']}")),
    (r"class template argument deduction failed|missing template arguments before", lambda m: (
        "A fragment is declared with its kind, its shape and its type.", FRAGMENT)),
    (r"static assertion failed(?: due to requirement '.*?')?: (.*)",
        lambda m: (f"A `static_assert` does not hold: {m[1]}.", "")),
    (r"expected .*? before 'if'", lambda m: (
        "`if` cannot stand within an expression.", "Python's `a if c else b` is `c ? a : b`.")),
    (r"expected .*? before '\.'", lambda m: (
        "What is before `.` is not a variable.",
        "A name from a namespace follows two colons: `wmma::`, `ptx::`.")),
    (r"expected .*? before ':'", lambda m: (
        "Something is missing before `:`, or the `:` is too much.",
        "A block is in braces, `if (...) { ... }`, and begins with no `:`; there are no slices, a loop "
        "takes element after element.")),
    (r"expected '(.)' before", _semicolon),
    (r"expected '(.)' (?:at end|after|in)", _semicolon),
    (r"expected (?:initializer|',' or ';'|';'.*) before '(.*?)'", lambda m: Told(
        f"A `;` is missing before `{m[1]}`.", "A statement ends with `;`.", missing=";")),
    (r"expected .*? before '(.*?)'", lambda m: (
        f"Something is missing before `{m[1]}`.", "Look at the brackets, the commas and the end of the "
        "line before.")),
    (r"'([\w:]+)' was not declared in this scope; did you mean '(.*?)'", _unknown),
    (r"use of undeclared identifier '(\w+)'; did you mean '(.*?)'", _unknown),
    (r"'([\w:]+)' was not declared in this scope()", _unknown),
    (r"use of undeclared identifier '(\w+)'()", _unknown),
    (r"no member named '(\w+)' in namespace '([\w:]+)'(?:; did you mean '(\w+)')?", lambda m: (
        f"There is no `{m[1]}` in `{m[2]}`.", f"Did you mean `{m[3]}`?" if m[3] else "")),
    (r"'(\w+)' is not a member of '(\w+)'(?:; did you mean '(\w+)')?", lambda m: (
        f"There is no `{m[1]}` in `{m[2]}`.", f"Did you mean `{m[3]}`?" if m[3] else "")),
    (r"no matching function for call to '(.*)'", _call),
    (r"too (?:few|many) arguments to function '(?:.*?[ :])??([\w]+)\(.*'", _call),
    (r"(?:redeclaration of|conflicting declaration|redefinition of) '(.*?)'", lambda m: (
        f"`{m[1]}` is declared a second time.", "One of the two is too much, or needs another name."
        + " A new value is assigned without the type." * (not m[1].startswith("const ")))),
    (r"invalid conversion from '(.*?)' to '(.*?)'", _converted),
    (r"conversion from '(.*?)' to non-scalar type '(.*?)' requested", _converted),
    (r"no viable conversion from '(.*?)' to '(.*?)'", _converted),
    (r"invalid initialization of (?:non-const )?reference of type '(.*?)' from (?:an rvalue|expression) of "
        r"type '(.*?)'", _reference),
    (r"assignment of 'void'|void value not ignored|declared void|incomplete type 'void'", _void),
    (r"array must be initialized with|array initializer must be|invalid array assignment|array type '.*?' is "
        r"not assignable|incompatible types in assignment of '.*?' to '.*?\[", lambda m: (
        "An array is not set as a whole.",
        "Declare it, `float v[8];`, and then let a loop set its elements, or a function that takes it; "
        "`float p[4] = {a, b, c, d};` declares and sets.")),
    (r"from (?:type )?'(.*?)' to (?:type )?'(.*?)' casts away", lambda m: (
        f"`{m[1]}` points at memory that may only be read.", f"Cast to `const {m[2]}`.")),
    (r"cannot be used as a function|called object type", lambda m: (
        "Only a function is called with `( )`.", "An element of an array is `o[c]`.")),
    (r"a function-definition is not allowed here", lambda m: (
        "No function is defined within another one.",
        "A small one is a variable: `auto name = [&](int t) { ... };`, with a semicolon after it.")),
    (r"'(\w+)' is not captured|variable '(\w+)' cannot be implicitly captured", lambda m: (
        f"The small function may not use `{m[1] or m[2]}`.",
        "`[&]` in front of its arguments lets it use all variables around it.")),
    (r"expected identifier before", lambda m: (
        "A name is missing or out of place here.",
        "The values of an array are in braces: `float p[4] = {a, b, c, d};`.")),
    (r"cannot convert '(.*?)' to '(.*?)'", _converted),
    (r"could not convert '.*?' from '(.*?)' to '(.*?)'", _converted),
    (r"assignment of read-only (?:variable|location|parameter|reference) '(.*?)'", lambda m: (
        f"`{m[1]}` is `const`: it may be read, not written.", "")),
    (r"lvalue required as (.*?) operand", lambda m: (
        "Only a variable or an element can be assigned to.", "`==` compares, `=` assigns.")),
    (r"invalid types '(.*?)\[(.*?)\]' for array subscript", lambda m: (
        f"`[...]` needs an array or a pointer, and this is a `{m[1]}`.",
        _parts(m[1]) or "An array in shared memory has one dimension here: `v_smem[key * LD + c]`.")),
    (r"no match for call to '\(.*<lambda\((.*?)\)>\) \((.*?)\)'", lambda m: (
        "This small function is called with other arguments than it takes.",
        f"It takes ({m[1]}), and here are ({m[2].replace('&', '')}).")),
    (r"no match for 'operator\[\]' \(operand types are '[^']*<lambda\((.*?)\)>'", lambda m: (
        "`[...]` follows a function.", f"Call it with round brackets: it takes ({m[1]}).")),
    (r"no match for 'operator(.*?)' \(operand types are '(.*?)' and '(.*?)'\)", lambda m: (
        f"`{m[1]}` is not defined between a `{_short(m[2])}` and a `{_short(m[3])}`.",
        _parts(m[2]) or "Fragments are multiplied by `wmma::mma_sync`, halves turned into floats by "
        "`__half2float`.")),
    (r"invalid operands of types '(.*?)' and '(.*?)' to binary '.*?(\W+)'", lambda m: (
        f"`{m[3]}` is not defined between a `{m[1]}` and a `{m[2]}`.",
        "A pointer is an address: `pointer[index]` is what is there." * ("*" in m[1] + m[2]))),
    (r"invalid type argument of unary '\*' \(have '(.*?)'\)", lambda m: (
        f"`*` follows a pointer, and this is a `{m[1]}`.", "C++ has no operator `**` for powers.")),
    (r"'(?:struct|class|union) (.*?)' has no member named '(\w+)'", lambda m: (
        f"A `{_short(m[1])}` has no `{m[2]}`.", "")),
    (r"request for member '(\w+)' in '(.*?)', which is of", lambda m: (
        f"`{m[2]}` has no members, so no `.{m[1]}`.", "")),
    (r"wrong number of template arguments", lambda m: (
        "What is between `<` and `>` is incomplete.",
        "A fragment is `wmma::fragment<use, 16, 16, 16, type, layout>`, an accumulator has no layout.")),
    (r"expected unqualified-id", lambda m: ("A name is missing or out of place here.", "")),
    (r"expected (?:primary-expression|'.*')", lambda m: ("A value is missing here.", "Look at the brackets "
        "and commas.")),
    (r"narrowing conversion", lambda m: ("A number does not fit its type.", "")),
)  # fmt: skip


def _short(name: str) -> str:
    return re.sub(r"\w+::", "", name.replace("nvcuda::wmma::", "")).replace(", 16, 16, 16", "")
