"""Expressions of a kernel, rewritten: `a[i]` becomes `_M.load(a, i, site)`, `a and b` a masked choice."""

import ast
import inspect
from typing import Any, TypeGuard

import numpy as np

from flashcore_numba.simulator import vecmath
from flashcore_numba.simulator.intrinsics import BARRIERS
from flashcore_numba.simulator.memory import FromEnd
from flashcore_numba.simulator.names import Names, Node, WideAccess, call, load_name
from flashcore_numba.simulator.probe import probe
from flashcore_numba.simulator.problems import Site

BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "modulo",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.BitAnd: "bit_and",
    ast.BitOr: "bit_or",
    ast.BitXor: "bit_xor",
}

UNARY = {ast.USub: "negative", ast.UAdd: "positive", ast.Invert: "invert", ast.Not: "not_"}

COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}

COUNTED = {"add", "subtract", "multiply", "divide"}

PURE = {*BINARY.values(), *UNARY.values(), *COMPARE.values(), "logic", "attribute"}
"""Methods that neither touch memory nor report; with a site the first of them count and may report."""


def _is_simple(node: ast.AST) -> bool:
    """May both operands be computed for all lanes? Not when that would touch memory, count or report."""
    for n in ast.walk(node):
        if isinstance(n, ast.Subscript | ast.Lambda):
            return False
        if isinstance(n, ast.Call):
            method = n.func.attr if isinstance(n.func, ast.Attribute) else ""
            if method not in PURE or (method in COUNTED | DIVISIONS and len(n.args) > 2):
                return False
    return True


DIVISIONS = {"floor_divide", "modulo"}


def _is_divisor(node: ast.AST) -> bool:
    """Is this a literal that nothing can be wrong with as a divisor?"""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value != 0


def _literal(node: ast.expr) -> int | None:
    """The integer that an expression writes out, if it is one."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _has_yield(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node))


def _product(node: Any) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _folded(node) is None


def _folded(node: ast.expr) -> int | None:
    """The integer that Python makes of literals before Numba sees them: not cut to 64 bits."""
    if not all(
        isinstance(n, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        for n in ast.walk(node)
    ):
        return None
    found = compile(ast.Expression(node), "", "eval").co_consts
    return found[0] if len(found) == 1 and type(found[0]) is int else None


class Expressions(Names):
    """The expression part of the rewriter."""

    in_index = False  # index arithmetic is not floating-point work and is not counted

    @property
    def counts(self) -> bool:
        return self.program.ops and not self.in_index

    def deferred(self, node: Node, rewritten: ast.expr) -> ast.Lambda:
        """An operand that only some lanes may evaluate, as a function."""
        if _has_yield(rewritten):
            self.error(node, "a barrier inside a conditional expression")
        no_arguments = ast.arguments([], [], None, [], [], None, [])
        return ast.Lambda(no_arguments, rewritten)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) in (float, complex):
            return self.bind(np.array(node.value)[()])
        if not isinstance(node.value, int | str | type(None)):
            self.error(node, f"a {type(node.value).__name__} constant")
        return self.constant(node, node.value) if type(node.value) is int else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            self.error(node, "a starred element")
        return ast.Tuple([self.visit(element) for element in node.elts], ast.Load())

    # Calls

    def visit_Call(self, node: ast.Call) -> ast.expr:
        found = self.resolve(node.func)
        if found is None:
            for inner in ast.walk(node.func):  # cuda.cg.this_grid().sync()
                if isinstance(inner, ast.Call):
                    self.visit(inner)
            what = "a method" if isinstance(node.func, ast.Attribute) else "a call of a local value"
            self.error(node, what)
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            self.error(node, "starred arguments")
        if found.value is probe:
            return self._probe_call(node)
        text = ast.unparse(node)
        args = [self.visit(arg) for arg in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        if found.is_cuda:
            return self._cuda_call(node, text, found.value, args, keywords)
        if hasattr(found.value, "py_func"):
            new, is_sure = self._device_call(found.value, args, keywords, self.place(node, text))
            if is_sure or node is self.discarded:
                return new
            return call("given", new, found.value.py_func.__name__, self.site(node, text))
        if isinstance(wide := getattr(found.value, "simulated_as", None), WideAccess):
            return call(*wide, self.site(node, text), *args)
        twin = vecmath.function(found.value)
        if twin is None:
            owner = str(getattr(found.value, "__module__", "")).partition(".")[0]
            if owner in ("numba", "numba_cuda"):
                self.error(node, "this part of Numba's CUDA")
            plain = inspect.isfunction(found.value)
            hint = "a call of a plain Python function (decorate it with @cuda.jit(device=True))"
            self.error(node, hint if plain else "this function")
        new = ast.Call(self.bind(twin), args, keywords)
        operation = vecmath.operation(found.value)
        return call("count", operation, self.site(node, text), new) if self.counts and operation else new

    def _probe_call(self, node: ast.Call) -> ast.expr:
        if not (node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
            self.error(node, "a probe whose first argument is no label in quotes")
        outside, self.in_index = self.in_index, True  # what a probe computes is not the kernel's work
        values = [self.deferred(node, self.visit(value)) for value in node.args[1:]]
        self.in_index = outside
        return call("probe", node.args[0].value, *values)

    def _literal_extent(self, node: ast.expr) -> bool:
        """Is this a shape that Numba knows when it compiles: literals, and names that stand for them?"""
        if isinstance(node, ast.Tuple):
            return all(map(self._literal_extent, node.elts))
        if all(isinstance(n, ast.Constant | ast.BinOp | ast.operator) for n in ast.walk(node)):
            return True  # Python computes it before Numba sees it
        if isinstance(node, ast.Name) and node.id in self.locals:
            return node.id in self.literals
        found = self.resolve(node)
        return found is not None and not found.is_cuda

    def _cuda_call(
        self, node: ast.Call, text: str, path: str, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> ast.expr:
        if path in ("shared.array", "local.array"):
            shapes = [*(k.value for k in node.keywords if k.arg == "shape"), *node.args[:1]]
            if shapes and not self._literal_extent(shapes[0]):
                self.refuse(
                    node,
                    f"cuda.{path} whose shape is computed in the kernel (a literal or a global is right)",
                )
        self.program.shuffles |= path.startswith("shfl")
        self.program.collectives |= path.endswith("_sync") or path in ("syncwarp", "activemask")
        number = self.site(node, text)
        if path == "shared.array":
            self.shared_arrays += 1
            self.program.shared_arrays[number] = self.function, self.shared_arrays
            keywords = [*keywords, ast.keyword("frame", load_name("_f"))]
        new = ast.Call(self.cuda_path(node, path), [ast.Constant(number), *args], keywords)
        if self.program.yields and path in BARRIERS:
            self.is_generator = True
            return ast.Yield(new)
        return new

    def _device_call(
        self, function: Any, args: list[ast.expr], keywords: list[ast.keyword], caller: Site
    ) -> tuple[ast.expr, bool]:
        """The call, and whether it surely returns a value."""
        rewritten = self.program.function(function.py_func, caller)
        new = ast.Call(self.bind(rewritten), [load_name("_M"), *args], keywords)
        if rewritten.is_generator:
            self.is_generator = True
            return ast.YieldFrom(new), rewritten.is_sure
        return new, rewritten.is_sure

    # Arithmetic

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if (number := _folded(node)) is not None:
            return self.constant(node, number)
        return self.arithmetic(node, node.op, node.left, node.right)

    def arithmetic(
        self, node: Node, op: ast.operator, left: "ast.expr | Rewritten", right: ast.expr
    ) -> ast.expr:
        """An operation on two source expressions; the left one may be already rewritten."""
        if isinstance(op, ast.MatMult):
            self.error(node, "the operator @")
        method = BINARY[type(op)]
        if method in DIVISIONS and not _is_divisor(right):
            return call(method, self._operand(left), self.visit(right), self.site(node))
        if not self.counts or method not in COUNTED:
            return call(method, self._operand(left), self.visit(right))
        site = self.site(node)
        if isinstance(op, ast.Add | ast.Sub):
            # The compiler fuses a product and a sum into one instruction.
            if _product(right):
                method = "multiply_add" if isinstance(op, ast.Add) else "subtract_product"
                accumulator = self._operand(left)
                return call(method, self.visit(right.left), self.visit(right.right), accumulator, site)
            if _product(left):
                method = "multiply_add" if isinstance(op, ast.Add) else "multiply_subtract"
                return call(method, self.visit(left.left), self.visit(left.right), self.visit(right), site)
        return call(method, self._operand(left), self.visit(right), site)

    def _operand(self, node: "ast.expr | Rewritten") -> ast.expr:
        return node.node if isinstance(node, Rewritten) else self.visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.USub) and (number := _literal(node.operand)) is not None:
            return self.constant(node, -number)
        return call(UNARY[type(node.op)], self.visit(node.operand))

    # Conditions

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        yes, no = self.visit(node.body), self.visit(node.orelse)
        if not (_is_simple(yes) and _is_simple(no)):
            yes, no = self.deferred(node, yes), self.deferred(node, no)
        return call("if_exp", self.visit(node.test), yes, no, self.program.add_point())

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        is_and = isinstance(node.op, ast.And)
        new = self.visit(node.values[-1])
        for value in reversed(node.values[:-1]):
            second = new if _is_simple(new) else self.deferred(node, new)
            new = call("logic", is_and, self.visit(value), second, self.program.add_point())
        return new

    @staticmethod
    def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        if type(op) in COMPARE:
            return call(COMPARE[type(op)], left, right)
        return ast.Compare(left, [op], [right])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            self.error(node, "the operator in")
        if len(node.ops) == 1:
            return self._comparison(self.visit(node.left), node.ops[0], self.visit(node.comparators[0]))
        left, new, pairs = self.visit(node.left), None, []
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.visit(comparator)
            if comparator is not node.comparators[-1] and not _is_simple(right):  # evaluate it once
                name = self.temporary()
                once = ast.NamedExpr(ast.Name(name, ast.Store()), right)
                pairs.append(self._comparison(left, op, once))
                left = load_name(name)
                continue
            pairs.append(self._comparison(left, op, right))
            left = right
        new = pairs.pop()
        while pairs:
            second = new if _is_simple(new) else self.deferred(node, new)
            new = call("logic", True, pairs.pop(), second)
        return new

    # Subscripts

    def index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            bounds = [
                self.index(part) if part else ast.Constant(None)
                for part in (node.lower, node.upper, node.step)
            ]
            return ast.Call(self.bind(slice), bounds, [])
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.index(element) for element in node.elts], ast.Load())
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = _literal(node.operand)
            if number is not None:
                return self.bind(FromEnd(-number))
        outside, self.in_index = self.in_index, True
        new = self.visit(node)
        self.in_index = outside
        return new

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            return ast.Subscript(self.visit(node.value), self.index(node.slice), ast.Load())
        has_slice = any(isinstance(n, ast.Slice) for n in ast.walk(node.slice))
        method = "view" if has_slice else "load"
        return call(method, self.visit(node.value), self.index(node.slice), self.site(node))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Everything that has no method of its own is refused."""
        if isinstance(node, ast.expr | ast.stmt):
            self.error(node, f"{type(node).__name__}")
        return super().generic_visit(node)


class Rewritten:
    """Wraps an expression that is already rewritten, as an operand of `arithmetic`."""

    def __init__(self, node: ast.expr) -> None:
        self.node = node
