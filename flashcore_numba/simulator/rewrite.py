"""Turn the source of a kernel into a function that runs many lanes at once.

The kernel's file is not changed: its syntax tree is rewritten in memory. `if` becomes two masked branches,
`return` takes lanes out until the end, a barrier becomes a `yield` when warps take turns. Line numbers are
kept, so tracebacks point into the kernel.
"""

import ast
import functools
import linecache
import threading
from collections.abc import Callable

from .control import UNDEFINED
from .expressions import Expressions, Rewritten
from .names import call, load_name, python_function
from .problems import Site, Unsupported

__all__ = ["Program", "program", "python_function"]


_REWRITING = threading.RLock()  # threads share programs, and one rewrites while the others wait


class Program:
    """All functions reachable from one kernel, rewritten once; and the sites: every access and call in them.

    `yields` makes barriers yield, for warps that take turns; `ops` counts arithmetic; `calls` rewrites a
    device function once for each of its calls, so that its sites know their caller.
    """

    def __init__(self, yields: bool, ops: bool, calls: bool = False):
        self.yields, self.ops, self.calls = yields, ops, calls
        self.sites: list[Site] = []
        self.array_names: dict[int, str] = {}  # site of cuda.shared.array(...) -> the variable's name
        self.functions: dict[tuple[Callable, Site | None], Callable] = {}
        self.entry: Callable | None = None  # the kernel itself
        self.callers: list[tuple[Callable, Site | None]] = []  # functions being rewritten, and who calls them

    def add_site(self, file: str, line: int, text: str) -> int:
        self.sites.append(Site(file, line, text, self.callers[-1][1] if self.callers else None))
        return len(self.sites) - 1

    def name_of(self, site: int) -> str:
        return self.array_names.get(site, f"shared array of line {self.sites[site].line}")

    @staticmethod
    def source_line(file: str, line: int) -> str:
        return linecache.getline(file, line).strip()

    def function(self, function: Callable, caller: Site | None = None) -> Callable:
        """The rewritten function, as `caller` calls it."""
        with _REWRITING:
            return self._rewritten(function, caller)

    def _rewritten(self, function: Callable, caller: Site | None) -> Callable:
        key = function, caller if self.calls else None
        if not self.callers:
            self.entry = function
        under_way = any(function is other for other, _ in self.callers)
        if key not in self.functions and not under_way:
            self.callers.append(key)
            try:
                self.functions[key] = Rewriter(function, self).compile()
            finally:
                self.callers.pop()
        rewritten = self.functions.get(key)
        if rewritten is None or under_way:
            code = function.__code__
            place = f"{code.co_filename}:{code.co_firstlineno}"
            raise Unsupported(f"{place}: the simulator does not know recursion: {function.__name__}")
        return rewritten


@functools.lru_cache(maxsize=512)
def program(function: Callable, yields: bool, ops: bool, calls: bool = False) -> Program:
    """The program of a kernel's Python function."""
    return Program(yields, ops, calls)


def _let(name: str, value) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _leaves(node, in_loop: bool = False) -> bool:
    """Can this statement end the rest of its block early, by return, break or continue?"""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, ast.For | ast.While)
    return any(_leaves(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def _literals(tree) -> set[str]:
    """Local names that are assigned once, and a literal."""
    stores = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if all(isinstance(value, ast.Constant) for value in values):
                found.add(node.targets[0].id)
    return {name for name in found if stores.count(name) == 1}


def _private_loop_variables(tree) -> set[str]:
    """Variables that are used only inside the for loops that set them: they need no masked assignment."""
    uses: dict[str, int] = {}
    inside: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] = uses.get(node.id, 0) + 1
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            name = node.target.id
            here = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))
            inside[name] = inside.get(name, 0) + here
    return {name for name, count in inside.items() if count == uses[name]}


class Rewriter(Expressions):
    """Rewrites one function: the statement part."""

    def __init__(self, function, program: Program):
        super().__init__(function, program)
        self.private = _private_loop_variables(self.tree)
        self.given: set[str] = set()
        self.loops: list[str] = []  # the variables that hold the loops around this statement

    def compile(self) -> Callable:
        """The function `name(_M, *parameters)`, with an attribute `is_generator`."""
        tree = self.tree
        arguments = tree.args
        if arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.kwonlyargs:
            self.error(tree, "parameters other than plain ones")
        names = [argument.arg for argument in arguments.args]
        stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.given = set(names) - stored  # parameters that keep their value
        self.literals = _literals(tree)
        code = self.function.__code__
        if (tree.name, *names) != (code.co_name, *code.co_varnames[: code.co_argcount]):
            self.error(tree, "this source: the file has changed since it was imported")
        body = self.block(tree.body)
        undefined = self.bind(UNDEFINED)
        variables = [_let(name, undefined) for name in sorted(self.locals - set(names))]
        start = [_let("_f", call("frame")), *variables]
        end = [ast.Return(call("end_frame", load_name("_f")))]
        defaults = [self.constant(tree, value) for value in self.function.__defaults__ or ()]
        parameters = ast.arguments([], [ast.arg("_M"), *map(ast.arg, names)], None, [], [], None, defaults)
        place = {"lineno": tree.lineno, "end_lineno": tree.lineno, "col_offset": 0, "end_col_offset": 0}
        new = ast.FunctionDef(tree.name, parameters, start + body + end, [], **place)
        if "type_params" in ast.FunctionDef._fields:  # Python 3.12
            setattr(new, "type_params", [])  # noqa: B010
        module = ast.fix_missing_locations(ast.Module([new], []))
        exec(compile(module, self.file, "exec"), self.environment)
        rewritten = self.environment[tree.name]
        rewritten.is_generator = self.is_generator
        return rewritten

    def block(self, statements: list) -> list:
        """A suite. After a statement that lanes may leave by, the rest runs only if any lane is left."""
        out = []
        for number, statement in enumerate(statements):
            new = self.visit(statement)
            for node in new if isinstance(new, list) else [new]:
                self._place(node, statement)
                out.append(node)
            rest = statements[number + 1 :]
            if rest and _leaves(statement):
                guarded = ast.If(call("some"), self.block(rest), [])
                self._place(guarded, rest[0])
                return [*out, guarded]
        return out

    @staticmethod
    def _place(new, statement):
        """New nodes get the line of the statement that they come from."""
        for node in ast.walk(new):
            if "lineno" in node._attributes and not hasattr(node, "lineno"):
                ast.copy_location(node, statement)

    # Assignments

    def assign(self, target, value, node) -> list:
        if isinstance(target, ast.Name):
            return [_let(target.id, call("select", load_name(target.id), value))]
        if isinstance(target, ast.Tuple | ast.List):
            name = self.temporary()
            out = [_let(name, call("unpack", value, len(target.elts)))]
            for position, element in enumerate(target.elts):
                item = ast.Subscript(load_name(name), ast.Constant(position), ast.Load())
                out += self.assign(element, item, node)
            return out
        if not isinstance(target, ast.Subscript):
            self.error(node, "this assignment")
        array, index = self.visit(target.value), self.index(target.slice)
        return [ast.Expr(call("store", array, index, value, self.site(target)))]

    def visit_Assign(self, node):
        first_site = len(self.program.sites)
        value = self.visit(node.value)
        has_site = isinstance(node.value, ast.Call) and len(self.program.sites) > first_site
        if has_site and isinstance(node.targets[0], ast.Name):
            self.program.array_names[first_site] = node.targets[0].id
        if len(node.targets) == 1:
            return self.assign(node.targets[0], value, node)
        name = self.temporary()
        out = [_let(name, value)]
        for target in node.targets:
            out += self.assign(target, load_name(name), node)
        return out

    def visit_AnnAssign(self, node):
        if node.value is None:
            return ast.Pass()
        return self.assign(node.target, self.visit(node.value), node)

    def visit_AugAssign(self, node):
        target = node.target
        if isinstance(target, ast.Name):
            value = self.arithmetic(node, node.op, Rewritten(load_name(target.id)), node.value)
            return self.assign(target, value, node)
        if not isinstance(target, ast.Subscript):
            self.error(node, "this assignment")
        array, index = self.temporary(), self.temporary()
        out = [_let(array, self.visit(target.value)), _let(index, self.index(target.slice))]
        element = call("load", load_name(array), load_name(index), self.site(target))
        value = self.arithmetic(node, node.op, Rewritten(element), node.value)
        store = call("store", load_name(array), load_name(index), value, self.site(target))
        return [*out, ast.Expr(store)]

    # Control flow

    def visit_If(self, node):
        name = self.temporary()
        branch = load_name(name)
        out = [_let(name, call("branch", self.visit(node.test), node.lineno))]
        out.append(ast.If(call("enter", branch, True), self.block(node.body), []))
        if node.orelse:
            out.append(ast.If(call("enter", branch, False), self.block(node.orelse), []))
        return [*out, ast.Expr(call("leave", branch))]

    def _loop_body(self, name: str, statements: list) -> list:
        self.loops.append(name)
        body = self.block(statements)
        self.loops.pop()
        return body

    def visit_For(self, node):
        is_call = isinstance(node.iter, ast.Call)
        found = self.resolve(node.iter.func) if is_call else None
        is_range = found is not None and found.value is range
        if node.orelse or not isinstance(node.target, ast.Name) or (is_call and not is_range):
            self.error(node, "this for loop (only `for name in range(...)` and in a tuple)")
        name = self.temporary()
        start = _let(name, call("loop", self.site(node, ast.unparse(node).splitlines()[0])))
        outside, self.in_index = self.in_index, True
        values = [self.visit(bound) for bound in node.iter.args] if is_range else [self.visit(node.iter)]
        self.in_index = outside
        body = self._loop_body(name, node.body)
        target = node.target.id
        if target not in self.private:
            target = self.temporary()
            value = call("select", load_name(node.target.id), load_name(target))
            body.insert(0, _let(node.target.id, value))
        leaves = any(map(_leaves, node.body))
        turns = call("each" if is_range else "items", load_name(name), leaves, *values)
        loop = ast.For(ast.Name(target, ast.Store()), turns, body, [])
        return [start, loop, ast.Expr(call("end_loop", load_name(name)))]

    def visit_While(self, node):
        if node.orelse:
            self.error(node, "else after a loop")
        name = self.temporary()
        loop = load_name(name)
        start = _let(name, call("loop", self.site(node, ast.unparse(node).splitlines()[0])))
        body = self._loop_body(name, node.body)
        test = ast.BoolOp(ast.And(), [call("again", loop), call("test", loop, self.visit(node.test))])
        return [start, ast.While(test, body, []), ast.Expr(call("end_loop", loop))]

    def visit_Break(self, node):
        return ast.Expr(call("break_", load_name(self.loops[-1])))

    def visit_Continue(self, node):
        return ast.Expr(call("continue_", load_name(self.loops[-1])))

    def visit_Return(self, node):
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return ast.Expr(call("return_", load_name("_f"), None))
        if self.function is self.program.entry:
            self.refuse(node, "a kernel that returns a value")
        given = isinstance(node.value, ast.Name) and node.value.id in self.given
        return ast.Expr(call("return_", load_name("_f"), self.visit(node.value), given))

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Constant):  # a docstring
            return ast.Pass()
        return ast.Expr(self.visit(node.value))

    def visit_Pass(self, node):
        return node
