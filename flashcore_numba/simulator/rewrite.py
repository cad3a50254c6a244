"""Turn the source of a kernel into a function that runs many lanes at once.

The kernel's file is not changed: its syntax tree is rewritten in memory. `if` becomes two masked branches,
`return` takes lanes out until the end, a barrier becomes a `yield` when warps take turns. Line numbers are
kept, so tracebacks point into the kernel.
"""

import ast
import functools
import linecache
import threading
from collections import Counter
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Protocol

from flashcore_numba.simulator.control import UNDEFINED
from flashcore_numba.simulator.expressions import Expressions, Rewritten
from flashcore_numba.simulator.names import call, load_name
from flashcore_numba.simulator.problems import Site, Unsupported

_REWRITING = threading.RLock()  # threads share programs, and one rewrites while the others wait


class VectorFunction(Protocol):
    """A rewritten function, of the machine (`Lanes`) and the arguments."""

    is_generator: bool  # it yields at barriers
    is_sure: bool  # it returns a value by every path, or by none

    def __call__(self, machine: Any, *args: Any) -> Any: ...


class Program:
    """All functions reachable from one kernel, rewritten once; and the sites: every access and call in them.

    `yields` makes barriers yield, for warps that take turns; `ops` counts arithmetic; `calls` rewrites a
    device function once for each of its calls, so that its sites know their caller.
    """

    def __init__(self, yields: bool, ops: bool, calls: bool = False) -> None:
        self.yields, self.ops, self.calls = yields, ops, calls
        self.sites: list[Site] = []
        self.points = 0
        self.shuffles = False  # has a warp shuffle
        self.collectives = False  # has an instruction of a whole warp
        self.waits = False  # has a loop that may wait for other threads
        self.types: dict[tuple, Any] = {}  # by the arguments' types: what typist.infer found
        self.array_names: dict[int, str] = {}  # site of cuda.shared.array(...) -> the variable's name
        self.shared_arrays: dict[int, tuple] = {}  # the same site -> the function and which of its arrays
        self.functions: dict[tuple[FunctionType, Site | None], VectorFunction] = {}
        self.entry: FunctionType | None = None  # the kernel itself
        # Functions being rewritten, and who calls them.
        self.callers: list[tuple[FunctionType, Site | None]] = []

    def add_site(self, file: str, line: int, text: str) -> int:
        self.sites.append(Site(file, line, text, self.callers[-1][1] if self.callers else None))
        return len(self.sites) - 1

    def add_point(self) -> int:
        """A number for a place where the values of different paths meet."""
        self.points += 1
        return self.points

    def name_of(self, site: int) -> str:
        return self.array_names.get(site, f"shared array of line {self.sites[site].line}")

    @staticmethod
    def source_line(file: str, line: int) -> str:
        return linecache.getline(file, line).strip()

    def function(self, function: FunctionType, caller: Site | None = None) -> VectorFunction:
        """The rewritten function, as `caller` calls it."""
        with _REWRITING:
            return self._rewritten(function, caller)

    def _rewritten(self, function: FunctionType, caller: Site | None) -> VectorFunction:
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
            unknown = f"recursion: {function.__name__}"
            message = f"the simulator does not know {unknown}"
            raise Unsupported(code.co_filename, code.co_firstlineno, message, unknown=unknown)
        return rewritten


@functools.lru_cache(maxsize=512)
def program(function: FunctionType, yields: bool, ops: bool, calls: bool = False) -> Program:
    """The program of a kernel's Python function."""
    return Program(yields, ops, calls)


def _let(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _names(names: list[str]) -> ast.Tuple:
    return ast.Tuple([load_name(name) for name in names], ast.Load())


class _Occurrences:
    """How often names occur in each statement of a function, and how often they are assigned there.

    Every node is visited once; a question about each variable of each loop would visit it at every depth.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.names: dict[ast.AST, Counter[str]] = {}
        self.stored: dict[ast.AST, Counter[str]] = {}
        self._count(tree)

    def _count(self, node: ast.AST) -> None:
        names, stored = Counter[str](), Counter[str]()
        rest = [node]
        for inner in rest:
            if isinstance(inner, ast.Name):
                names[inner.id] += 1
                if isinstance(inner.ctx, ast.Store):
                    stored[inner.id] += 1
            for child in ast.iter_child_nodes(inner):
                if isinstance(child, ast.stmt):
                    self._count(child)
                    names.update(self.names[child])
                    stored.update(self.stored[child])
                else:
                    rest.append(child)
        self.names[node], self.stored[node] = names, stored

    def set_first(self, body: list, name: str) -> bool:
        """Is a variable assigned in every turn before anything reads it?"""
        for statement in body:
            if name in self.names[statement]:
                is_plain = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
                return is_plain and not _occurs(statement.value, name)
            if _leaves(statement):
                return False
        return False


def _occurs(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def _touches(node: ast.AST) -> bool:
    """Does it read an element or perform an atomic operation?"""
    return any(
        (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load))
        or (isinstance(n, ast.Attribute) and n.attr == "atomic")
        for n in ast.walk(node)
    )


def _waits(node: ast.While) -> bool:
    """May this loop wait for what another thread writes? Then memory decides when it ends."""
    if _touches(node.test) or isinstance(node.test, ast.Constant):
        return True
    deciding = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Assign | ast.AugAssign)
            and inner.value is not None
            and _touches(inner.value)
        ):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            if deciding & {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
                return True
    return False


def _polls(node: ast.While) -> bool:
    """Does an atomic operation in this loop tell what others have written? One that adds hands out work."""
    dropped = {n.value for n in ast.walk(node) if isinstance(n, ast.Expr)}
    return any(_atomic(n) and n not in dropped and not _adds(n) for n in ast.walk(node))


def _atomic(node: ast.AST) -> bool:
    """Is it a call of `cuda.atomic.something`?"""
    function = node.func if isinstance(node, ast.Call) else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Attribute) and owner.attr == "atomic"


def _adds(call: Any) -> bool:
    """Does this atomic operation change its element by a number other than 0, whatever it holds?"""
    step = call.args[-1] if call.args else None
    return call.func.attr in ("add", "sub", "inc") and isinstance(step, ast.Constant) and bool(step.value)


class _Unsure(ast.NodeVisitor):
    """Finds the variables that are read where not every path has assigned them."""

    def __init__(self, variables: set[str]) -> None:
        self.variables, self.known, self.found = variables, set[str](), set[str]()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.known.add(node.id)
        elif node.id in self.variables - self.known:
            self.found.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self.variables - self.known:
            self.found.add(node.target.id)
        self.generic_visit(node)

    def _suite(self, statements: list) -> set[str]:
        """What is assigned at the end of a suite, by all paths that come there."""
        before = set(self.known)
        for statement in statements:
            self.visit(statement)
        after, self.known = self.known, before
        gone = any(isinstance(s, ast.Return | ast.Break | ast.Continue) for s in statements)
        return after | self.variables if gone else after

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        body, orelse = self._suite(node.body), self._suite(node.orelse)
        self.known = body & orelse

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = set(self.known)
        self.visit(node.target)
        self._suite(node.body)
        self.known = before

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._suite(node.body)


def _leaves(node: ast.AST, in_loop: bool = False) -> bool:
    """Can this statement end the rest of its block early, by return, break or continue?"""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, ast.For | ast.While)
    return any(_leaves(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _returns(statements: list) -> bool:
    """Does every path through a suite return?"""
    last = statements[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _returns(last.body) and _returns(last.orelse)
    return isinstance(last, ast.Return)


def _literals(stored: Mapping[ast.AST, Counter[str]], tree: ast.FunctionDef) -> set[str]:
    """Local names that are assigned once, and a literal."""
    found = set()
    for node in stored:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if all(isinstance(value, ast.Constant) for value in values):
                found.add(node.targets[0].id)
    return {name for name in found if stored[tree][name] == 1}


def _private_loop_variables(names: Mapping[ast.AST, Counter[str]], tree: ast.FunctionDef) -> set[str]:
    """Variables that are used only inside the for loops that set them: they need no masked assignment."""
    inside = Counter[str]()
    for node in names:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            inside[node.target.id] += names[node][node.target.id]
    return {name for name, count in inside.items() if count == names[tree][name]}


class Rewriter(Expressions):
    """Rewrites one function: the statement part."""

    def __init__(self, function: FunctionType, program: Program) -> None:
        super().__init__(function, program)
        self.occurrences = _Occurrences(self.tree)
        self.uses = self.occurrences.names[self.tree]
        self.private = _private_loop_variables(self.occurrences.names, self.tree)
        self.given: set[str] = set()
        self.loops: list[str] = []  # the variables that hold the loops around this statement

    def compile(self) -> VectorFunction:
        """The function `name(_M, *parameters)`."""
        tree = self.tree
        arguments = tree.args
        if arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.kwonlyargs:
            self.error(tree, "parameters other than plain ones")
        names = [argument.arg for argument in arguments.args]
        self.given = set(names) - self.stores(tree)  # parameters that keep their value
        self.literals = _literals(self.occurrences.stored, tree)
        code = self.function.__code__
        if (tree.name, *names) != (code.co_name, *code.co_varnames[: code.co_argcount]):
            self.error(tree, "this source: the file has changed since it was imported")
        unsure = _Unsure(self.locals - set(names))
        for statement in tree.body:
            unsure.visit(statement)
        self.unsure = unsure.found
        body = self.block(tree.body)
        undefined = self.bind(UNDEFINED)
        variables = [_let(name, undefined) for name in sorted(self.locals - set(names))]
        variables += [_let(f"_has_{name}", ast.Constant(None)) for name in sorted(self.unsure)]
        start = [_let("_f", call("frame", self.program.add_point(), _names(names))), *variables]
        end = [ast.Return(call("end_frame", load_name("_f")))]
        defaults = [self.constant(tree, value) for value in self.function.__defaults__ or ()]
        parameters = ast.arguments([], [ast.arg("_M"), *map(ast.arg, names)], None, [], [], None, defaults)
        new = ast.FunctionDef(tree.name, parameters, start + body + end, [])
        new.lineno = new.end_lineno = tree.lineno
        new.col_offset = new.end_col_offset = 0
        if "type_params" in ast.FunctionDef._fields:  # Python 3.12
            setattr(new, "type_params", [])  # noqa: B010
        module = ast.fix_missing_locations(ast.Module([new], []))
        exec(compile(module, self.file, "exec"), self.environment)
        rewritten = self.environment[tree.name]
        rewritten.is_generator = self.is_generator
        found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
        returns = [value is not None and not _is_none(value) for value in found]
        rewritten.is_sure = not any(returns) or (all(returns) and _returns(tree.body))
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
                body = self.block(rest)
                if not self.loops:  # who has returned needs no variable any more
                    body.insert(0, ast.Expr(call("narrow")))
                guarded = ast.If(call("some"), body, [])
                self._place(guarded, rest[0])
                return [*out, guarded]
        return out

    @staticmethod
    def _place(new: ast.AST, statement: ast.stmt) -> None:
        """New nodes get the line of the statement that they come from; those of a suite have theirs."""
        rest = [new]
        for node in rest:
            if "lineno" in node._attributes and not hasattr(node, "lineno"):
                ast.copy_location(node, statement)
            elif isinstance(node, ast.stmt) and node is not new:
                continue
            rest.extend(ast.iter_child_nodes(node))

    # Assignments

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> list:
        if isinstance(target, ast.Name):
            return self._assign_name(target.id, value)
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

    def _assign_name(self, name: str, value: ast.expr) -> list:
        out = [_let(name, call("select", load_name(name), value, self.program.add_point()))]
        if name in self.unsure:
            out.append(_let(f"_has_{name}", call("assigned", load_name(f"_has_{name}"))))
        return out

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        first_site = len(self.program.sites)
        value = self.visit(node.value)
        has_site = isinstance(node.value, ast.Call) and len(self.program.sites) > first_site
        if has_site and isinstance(node.targets[0], ast.Name):
            self.program.array_names[first_site] = node.targets[0].id
        if len(node.targets) == 1:
            return self.assign(node.targets[0], value, node)
        name = self.temporary()
        out: list[ast.stmt] = [_let(name, value)]
        for target in node.targets:
            out += self.assign(target, load_name(name), node)
        return out

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        if node.value is None:
            return ast.Pass()
        return self.assign(node.target, self.visit(node.value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        target = node.target
        if isinstance(target, ast.Name):
            value = self.arithmetic(node, node.op, Rewritten(self.read(target)), node.value)
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

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        name = self.temporary()
        branch = load_name(name)
        out: list[ast.stmt] = [_let(name, call("branch", self.visit(node.test), node.lineno))]
        joined = sorted(name for name in self.stores(node) - self.private if self._leaves_if(node, name))
        before, after = self.temporary(), self.temporary()
        if joined:
            out.append(_let(before, _names(joined)))
        out.append(ast.If(call("enter", branch, True), self.block(node.body), []))
        if joined:
            out += [_let(after, _names(joined)), self._restore(joined, load_name(before))]
        if node.orelse:
            out.append(ast.If(call("enter", branch, False), self.block(node.orelse), []))
        if joined:
            point = self.program.add_point()
            values = call("join", branch, point, load_name(before), load_name(after), _names(joined))
            out.append(self._restore(joined, values))
        return [*out, ast.Expr(call("leave", branch))]

    @staticmethod
    def _restore(names: list[str], values: ast.expr) -> ast.Assign:
        return ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], values)

    def stores(self, node: ast.AST) -> set[str]:
        """The variables that a statement assigns to."""
        return set(self.occurrences.stored[node])

    def _leaves_if(self, node: ast.If, name: str) -> bool:
        """May another suite, what follows or a later turn read what an if assigned to this variable?"""
        names = self.occurrences.names
        if names[node][name] < self.uses[name]:
            return True
        suites = [suite for suite in (node.body, node.orelse) if any(name in names[s] for s in suite)]
        again = self.loops or len(suites) > 1
        return bool(again) and not all(self.occurrences.set_first(suite, name) for suite in suites)

    def _carried(self, node: ast.For | ast.While) -> list[str]:
        """The variables that a loop's body assigns to and that a later turn, or what follows, may read."""
        found = self.stores(node) - self.private
        outside = {name for name in found if self.occurrences.names[node][name] < self.uses[name]}
        first = self.occurrences.set_first
        return sorted(name for name in found if name in outside or not first(node.body, name))

    def _loop(
        self, node: ast.For | ast.While, name: str, body: list, carried: list[str]
    ) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """The statements before a loop, and its body with what a turn hands to the next."""
        if not carried:
            return [], body
        point, before = self.program.add_point(), self.temporary()
        start = self._restore(carried, call("head", load_name(name), point, _names(carried)))
        end = self._restore(carried, call("turn", load_name(name), point, load_name(before), _names(carried)))
        return [start], [_let(before, _names(carried)), *body, end]

    def _loop_body(self, name: str, statements: list) -> list:
        self.loops.append(name)
        body = self.block(statements)
        self.loops.pop()
        return body

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        bounds = None  # of a range
        if isinstance(node.iter, ast.Call):
            found = self.resolve(node.iter.func)
            bounds = node.iter.args if found is not None and found.value is range else None
        other_call = isinstance(node.iter, ast.Call) and bounds is None
        if node.orelse or not isinstance(node.target, ast.Name) or other_call:
            self.error(
                node, "this for loop (the simulator knows `for name in range(...)` and loops over a tuple)"
            )
        name = self.temporary()
        start = _let(name, call("loop", self.site(node, ast.unparse(node).splitlines()[0])))
        outside, self.in_index = self.in_index, True
        values = [self.visit(value) for value in ([node.iter] if bounds is None else bounds)]
        self.in_index = outside
        body = self._loop_body(name, node.body)
        target = node.target.id
        if target not in self.private:
            target = self.temporary()
            body[:0] = self._assign_name(node.target.id, load_name(target))
        head, body = self._loop(node, name, body, self._carried(node))
        leaves = any(map(_leaves, node.body))
        turns = call("items" if bounds is None else "each", load_name(name), leaves, *values)
        loop = ast.For(ast.Name(target, ast.Store()), turns, body, [])
        return [start, *head, loop, ast.Expr(call("end_loop", load_name(name)))]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        if node.orelse:
            self.error(node, "else after a loop")
        name = self.temporary()
        loop = load_name(name)
        start = _let(name, call("loop", self.site(node, ast.unparse(node).splitlines()[0])))
        carried = self._carried(node)
        head, body = self._loop(node, name, self._loop_body(name, node.body), carried)
        after: list = []
        if _waits(node):
            self.program.waits = True
            idle = call("idle", loop, _names(carried))
            if self.program.yields:
                self.is_generator = True
                body.append(ast.If(idle, [ast.Expr(ast.Yield(call("waiting", loop)))], []))
            else:
                body.append(ast.Expr(call("check_idle", loop, idle)))
            if _polls(node):
                after = [ast.Expr(call("acquire"))]
        test = ast.BoolOp(ast.And(), [call("again", loop), call("test", loop, self.visit(node.test))])
        return [start, *head, ast.While(test, body, []), ast.Expr(call("end_loop", loop)), *after]

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return ast.Expr(call("break_", load_name(self.loops[-1])))

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return ast.Expr(call("continue_", load_name(self.loops[-1])))

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.value is None or _is_none(node.value):
            return ast.Expr(call("return_", load_name("_f"), None))
        if self.function is self.program.entry:
            self.refuse(node, "a kernel that returns a value")
        given = isinstance(node.value, ast.Name) and node.value.id in self.given
        return ast.Expr(call("return_", load_name("_f"), self.visit(node.value), given))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Constant):  # a docstring
            return ast.Pass()
        self.discarded = node.value
        return ast.Expr(self.visit(node.value))

    def visit_Pass(self, node: ast.Pass) -> ast.stmt:
        return node
