"""A look at an answer in Python before it runs: is it there, is it Python, does it keep to the exercise?"""

import ast
import builtins
import difflib
import re
from collections.abc import Iterator
from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.verdict import Refusal
from flashcore_numba.course.spec import Lesson
from flashcore_numba.stages import files

MODULES = {"math", "numpy", "numba", "numba.cuda", "functools", "flashcore_numba.wide"}
BUILTINS = {
    *("range", "min", "max", "abs", "len", "float", "int", "bool", "sum", "round", "pow", "divmod"),
    *(
        "enumerate",
        "zip",
        "tuple",
        "list",
        "dict",
        "set",
        "sorted",
        "reversed",
        "map",
        "filter",
        "any",
        "all",
    ),
    *("print", "slice", "complex", "str", "isinstance", "True", "False", "None", "Ellipsis", "staticmethod"),
    *("Exception", "ValueError", "TypeError", "KeyboardInterrupt", "SystemExit", "BaseException"),
}
ATTRIBUTES = {
    *("os", "sys", "ctypes", "ctypeslib", "builtins", "subprocess", "importlib", "inspect", "threading"),
    *("f2py", "testing", "lib", "core", "system", "objmode", "util", "config", "misc", "distutils", "rec"),
    *(
        "load",
        "loads",
        "loadtxt",
        "genfromtxt",
        "fromfile",
        "fromregex",
        "memmap",
        "open_memmap",
        "DataSource",
    ),
    *("save", "savez", "savez_compressed", "savetxt", "tofile", "dump", "dumps", "setflags", "ctypes"),
    *("f_globals", "f_locals", "f_builtins", "f_back", "gi_frame", "gi_code", "cr_frame", "tb_frame"),
    *("func_globals", "errstate", "seterr", "seterrcall", "set_printoptions", "setbufsize"),
    *("update_wrapper", "wraps", "cached_property", "partialmethod", "total_ordering", "singledispatch"),
    *("extending", "simulator", "cudadrv", "codegen", "compiler", "pycc", "cfunc", "experimental", "runtime"),
    *("recfromtxt", "recfromcsv", "fromstring", "frombuffer", "from_dlpack", "declare_device", "format_map"),
    # Parts of NumPy whose modules lead to Python's own, and what one launch could leave there for the next.
    *("char", "dtypes", "emath", "exceptions", "fft", "linalg", "ma", "matlib", "polynomial", "strings"),
    *("typing", "version", "array_api", "compat", "operator", "sctypeDict", "typecodes", "c_", "r_", "s_"),
    *("checks", "course", "measure", "evidence", "records", "report", "cli", "run", "executor"),
}
# A method of NumPy's generators, and a module of NumPy, from which an exercise may use two names.
RANDOM, OF_RANDOM = "random", ("Generator", "default_rng")
NOT_ON_A_GPU: dict[type, str] = {
    ast.ListComp: "a list",
    ast.List: "a list",
    ast.Dict: "a dict",
    ast.DictComp: "a dict",
    ast.Set: "a set",
    ast.SetComp: "a set",
    ast.GeneratorExp: "a generator",
    ast.JoinedStr: "an f-string",
    ast.Try: "try",
    ast.With: "with",
    ast.Raise: "raise",
    ast.Lambda: "a lambda",
    ast.ClassDef: "a class",
    ast.FunctionDef: "a function inside a function",
    ast.Yield: "yield",
    ast.MatMult: "the operator @",
}


def screen(lesson: Lesson, answer: Answer) -> Refusal | None:
    """The first thing that keeps an answer from being run, or None.

    Raises ArgumentError for a whole file that is not one of this lesson.
    """
    try:
        tree = ast.parse(answer.text)
    except SyntaxError as error:
        return syntax(answer, error)
    except (RecursionError, MemoryError):
        return Refusal("refused", "The answer nests too deeply for Python's own parser.")
    if not answer.is_cell and (finding := _whole_file(lesson, answer, tree)) is not None:
        return finding
    function = _enclosing(tree, answer, lesson)
    if answer.is_cell or answer.first is not None:
        statements = list(_statements(tree, answer))
    else:
        statements = list(function.body) if function else tree.body
    if is_empty(statements, answer):
        return Refusal("empty", "The region is still empty.", answer.first, "Write the lines of the task.")
    scope: list[Any] = list(statements) if answer.is_cell else [tree]
    if (refusal := forbidden(lesson, scope) or _not_on_a_gpu(lesson, statements)) is not None:
        return refusal
    if function is None or answer.first is None:
        return None
    return _names(lesson, answer, tree, function, statements)


def syntax(answer: Answer, error: SyntaxError) -> Refusal:
    """The refusal of what is no Python."""
    line = error.lineno or 1
    first, last = answer.first, answer.last
    if answer.is_cell and first is not None and last is not None and not first <= line <= last:
        line = min(max(line, first), last)
    text = answer.source(line)
    what = (error.msg or "invalid syntax").rstrip(".")
    look = {
        "expected an indented block": "The lines under a `:` are indented by four spaces more.",
        "unexpected indent": "Lines of one block start in one column; indent four spaces under a `:` only.",
        "unindent does not match": "Lines of one block start in one column.",
        "was never closed": "Every bracket that opens closes again.",
    }
    advice = next((sentence for key, sentence in look.items() if key in what), "")
    return Refusal("refused", f"This is not Python yet: {what}, in `{text}`.", line, advice)


def _statements(tree: ast.Module, answer: Answer) -> Iterator[ast.stmt]:
    """The outermost statements that begin in the region."""

    def walk(node: ast.AST) -> Iterator[ast.stmt]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and answer.inside(child.lineno):
                yield child
            else:
                yield from walk(child)

    yield from walk(tree)


def is_empty(statements: list[ast.stmt], answer: Answer) -> bool:
    """Do the statements of the region say nothing?"""

    def says_nothing(node: ast.stmt) -> bool:
        return isinstance(node, ast.Pass) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )

    if answer.first is None:  # no markers: the starter's own `...` still stands somewhere
        return any(
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
            for statement in statements
            for node in ast.walk(statement)
        )
    return all(map(says_nothing, statements))


def _enclosing(tree: ast.Module, answer: Answer, lesson: Lesson) -> ast.FunctionDef | None:
    """The innermost function around the region; without markers, the one named like the stage's."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if answer.first is None or answer.last is None:
        name = _solution_function(lesson).name
        return next((node for node in functions if node.name == name), None)
    around = [f for f in functions if f.lineno < answer.first and (f.end_lineno or 0) >= answer.first - 1]
    return max(around, key=lambda f: f.lineno, default=None)


def _solution_function(lesson: Lesson) -> ast.FunctionDef:
    file = lesson.exercise.file
    found = exercise.region(lesson.exercise)
    tree = ast.parse(exercise.source_text(file))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno < found.first_line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda f: f.lineno)


def forbidden(lesson: Lesson, scope: list) -> Refusal | None:
    """Imports, names and attributes that no exercise needs and that reach out of it."""
    modules, own = MODULES | _stage_modules(lesson), _own_imports(lesson)
    nodes = [n for statement in scope for n in ast.walk(statement)]
    harmless = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    harmless |= {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in OF_RANDOM}
    for node in nodes:
        line = getattr(node, "lineno", None)
        if isinstance(node, ast.Import | ast.ImportFrom):
            if (name := _foreign_import(node, modules, own)) is not None:
                look = f"It may import from {', '.join(sorted(modules))}."
                return Refusal("refused", f"An exercise may not import {name}.", line, look)
        elif isinstance(node, ast.Name) and _is_reserved(node.id):
            return Refusal("refused", f"An exercise may not use `{node.id}`.", line)
        elif isinstance(node, ast.Attribute):
            is_module = node.attr == RANDOM and id(node) not in harmless
            if node.attr.startswith("_") or node.attr in ATTRIBUTES or is_module:
                return Refusal("refused", f"An exercise may not use `.{node.attr}`.", line)
            if isinstance(node.ctx, ast.Store | ast.Del):
                what = f"An exercise may not assign to `{ast.unparse(node)}`."
                return Refusal("refused", what, line, "Assign to a name or to an element of an array.")
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith("__"):
            return Refusal("refused", f"An exercise may not define `{node.name}`.", line)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            return Refusal("refused", "An exercise may not change names outside its function.", line)
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            return Refusal("refused", "An exercise may not use async.", line)
    return None


def _is_reserved(name: str) -> bool:
    if name == "_":  # among the builtins as soon as an interpreter has shown a value
        return False
    return (name.startswith("__") and name != "__all__") or (hasattr(builtins, name) and name not in BUILTINS)


def _stage_modules(lesson: Lesson) -> set[str]:
    """The modules of stages that the lesson's own file imports from."""
    tree = ast.parse(exercise.source_text(lesson.exercise.file))
    found = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module)
    return {str(node.module) for node in found if str(node.module).startswith(f"{files.PACKAGE}.")}


def _own_imports(lesson: Lesson) -> set[tuple[str, str]]:
    """(module, name) of what the lesson's own file imports: a launcher's types, for example."""
    tree = ast.parse(exercise.source_text(lesson.exercise.file))
    found = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level)
    return {(str(node.module), alias.name) for node in found for alias in node.names}


def _foreign_import(
    node: ast.Import | ast.ImportFrom, modules: set[str], own: set[tuple[str, str]]
) -> str | None:
    """The name of what may not be imported, or None."""
    if isinstance(node, ast.Import):
        bad = (a.name for a in node.names if a.name not in MODULES or a.name.startswith("flashcore"))
        return next(bad, None)
    name = node.module or ""
    if not node.level and all((name, alias.name) in own for alias in node.names):
        return None
    if node.level or name not in modules:
        return "." * node.level + name
    bad = (
        a.name
        for a in node.names
        if a.name in {*ATTRIBUTES, RANDOM} or a.name.startswith("_") or a.name == "*"
    )
    return next((f"{alias} from {name}" for alias in bad), None)


def _not_on_a_gpu(lesson: Lesson, statements: list[ast.stmt]) -> Refusal | None:
    """Python that Numba does not compile for a GPU."""
    if lesson.number == 0:
        return None
    for node in (n for statement in statements for n in ast.walk(statement)):
        line = getattr(node, "lineno", None)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return Refusal(
                "refused", "A GPU kernel does not know the operator @.", line, "Loop over the components."
            )
        for kind, name in NOT_ON_A_GPU.items():
            if isinstance(node, kind) and not isinstance(getattr(node, "ctx", None), ast.Store):
                return Refusal("refused", f"A GPU kernel does not know {name}.", line, _instead(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            return Refusal("refused", "A kernel of this course does not print.", line,
                           "`check()` says which value is wrong and where.")  # fmt: skip
    return None


def _instead(node: ast.AST) -> str:
    if isinstance(node, ast.List | ast.ListComp):
        return (
            "A loop may run over a tuple, `for offset in (16, 8):`; an array of a thread's own is "
            "`cuda.local.array(n, float32)`."
        )
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return "Write the lines where they are used."
    return "Numbers, tuples, arrays, `if`, `for` over `range` and `while` are what there is."


def _whole_file(lesson: Lesson, answer: Answer, tree: ast.Module) -> Refusal | None:
    """Is a file handed in one of this lesson, and is its launch the stage's?"""
    own = ast.parse(exercise.source_text(lesson.exercise.file))

    def named(module: ast.Module) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for node in module.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                found |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
        return found

    theirs, ours = named(tree), named(own)
    if missing := [name for name in ours if name not in theirs]:
        raise ArgumentError(
            f"{answer.file}: no file of lesson {lesson.number}, it does not define {', '.join(missing)}; "
            f"`flashcore starter {lesson.number}` writes one to start from"
        )
    look = "Only the region between the markers, and helpers of your own, may change."
    for name in ("launch", "STAGE"):
        if name in ours and name in theirs and ast.dump(ours[name]) != ast.dump(theirs[name]):
            return Refusal(
                "refused", f"`{name}` is not that of lesson {lesson.number}.", theirs[name].lineno, look
            )
    for name in sorted({"launch", "STAGE"} & set(ours) | {n for n, how, _ in _bindings(own) if how}):
        known = {how for n, how, _ in _bindings(own) if n == name}
        lines = [line for n, how, line in _bindings(tree) if n == name and how not in known]
        lines += [line for n, how, line in _bindings(tree) if n == name and not how][1:]
        if lines:
            return Refusal("refused", f"`{name}` is given another value.", lines[0], look)
    return None


def _bindings(tree: ast.Module) -> list[tuple[str, str, int]]:
    """What gives a name of the module a value: the name, what is imported or "", and the line."""
    found, nodes = [], list[ast.AST](tree.body)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (getattr(node, "module", None) or "").rpartition(".")[2]
            found += [(a.asname or a.name, f"{module}.{a.name}", node.lineno) for a in node.names]
            continue
        found += [(name, "", node.lineno) for name in stored_by(node)]  # type: ignore[attr-defined]
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


# Names


def _stored(nodes: list) -> set[str]:
    """Names that are given a value."""
    found = set()
    for node in (n for start in nodes for n in ast.walk(start)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _names(
    lesson: Lesson, answer: Answer, tree: ast.Module, function: ast.FunctionDef, statements: list
) -> Refusal | None:
    """Names that nothing defines, names read too early, names that later lines need."""
    first = answer.first or 0
    mine = {id(n) for statement in statements for n in ast.walk(statement)}
    outside = [n for n in ast.walk(tree) if id(n) not in mine]
    given = {
        name for key in lesson.exercise.given for name in re.split(r"\s*,\s*", key) if name.isidentifier()
    }
    defined = {n for node in outside for n in stored_by(node)} | BUILTINS
    answered = _stored(statements)
    reads = [
        node
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    reads.sort(key=lambda node: (node.lineno, node.col_offset))
    for node in reads:
        if node.id in defined | answered:
            continue
        near = difflib.get_close_matches(node.id, sorted((defined | answered | given) - BUILTINS), 1, 0.7)
        hint = f"Did you mean `{near[0]}`?" if near else _known(given)
        if node.id == "float32":
            hint = "This file does not import it. An element takes its array's type, also from a plain 0."
        if node.id in ("np", "numpy") and lesson.number:
            hint = "A kernel calls `math.exp` and its like; it has no NumPy."
        return Refusal("refused", f"`{node.id}` is not defined.", node.lineno, hint)
    before = {
        name
        for node in ast.walk(function)
        if id(node) not in mine and getattr(node, "lineno", first) < first
        for name in stored_by(node)
    }
    early = _read_early(answer, statements, answered - before - (defined - _stored([function])))
    if early is not None:
        return early
    needed = _needed(lesson)
    for name, (line, text) in needed.items():
        if name not in answered and name not in before:
            where = f"`{text}` after the region reads it"
            look = f"Line {line} of {lesson.exercise.file}.py: what it needs, the region leaves."
            return Refusal("refused", f"Your answer never sets `{name}`: {where}.", None, look)
    return None


def _known(given: set[str]) -> str:
    return f"Given are {', '.join(sorted(given))}." if given else ""


def stored_by(node: ast.AST) -> set[str]:
    """The names that a node gives a value."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).partition(".")[0]}
    return set()


def _read_early(answer: Answer, statements: list, names: set[str]) -> Refusal | None:
    """A name of the answer's own that is read on an earlier line than the first that sets it."""
    first: dict[str, int] = {}
    for node in (n for statement in statements for n in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            first[node.name] = min(first.get(node.name, node.lineno), node.lineno)
    conditional = {
        id(n)
        for statement in statements
        for outer in ast.walk(statement)
        if isinstance(
            outer, ast.If | ast.IfExp | ast.Lambda | ast.FunctionDef | ast.ListComp | ast.GeneratorExp
        )
        for n in ast.walk(outer)
    }
    for node in (n for statement in statements for n in ast.walk(statement)):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name, line = node.target.id, node.lineno
            if name in names and first.get(name) == line:
                look = f"Give `{name}` its first value on an earlier line."
                return Refusal("refused", f"`{name}` is changed before it has a value.", line, look)
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store) or id(node) in conditional:
            continue
        if node.id in names and node.lineno < first.get(node.id, 0):
            look = f"It gets its first value only in {answer.place(first[node.id])}."
            return Refusal("refused", f"`{node.id}` is read before it has a value.", node.lineno, look)
    return None


def _needed(lesson: Lesson) -> dict[str, tuple[int, str]]:
    """Names that the solution's region sets and a later line reads: name -> that line and its text."""
    text = exercise.source_text(lesson.exercise.file)
    found = exercise.region(lesson.exercise)
    function = _solution_function(lesson)
    inside = [
        node
        for node in ast.walk(function)
        if found.first_line <= getattr(node, "lineno", 0) <= found.last_line
    ]
    names = {name for node in inside for name in stored_by(node)}
    needed: dict[str, tuple[int, str]] = {}
    later = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.lineno > found.last_line]
    for node in sorted(later, key=lambda n: n.lineno):
        if isinstance(node.ctx, ast.Load) and node.id in names:
            needed.setdefault(node.id, (node.lineno, text.splitlines()[node.lineno - 1].strip()))
    resets = _reset_after(function, found.last_line)
    return {name: where for name, where in needed.items() if resets.get(name, where[0] + 1) >= where[0]}


def _reset_after(function: ast.FunctionDef, line: int) -> dict[str, int]:
    """Names that are set again after a line, and where first."""
    again: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno > line:
            again[node.id] = min(again.get(node.id, node.lineno), node.lineno)
    return again
