"""Arithmetic of a random kernel that Numba or LLVM leaves undefined, found by running its explicit text."""

import ast
import linecache
import operator
import warnings

import numpy as np

from .greenlet_oracle import Oracle
from .random_kernels import Kernel

__all__ = ["undefined"]

COMPUTE = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
NAMES = {compute.__name__: compute for compute in COMPUTE.values()}


class _Watched(ast.NodeTransformer):
    """Every operator as a call that looks at its operands."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        compute = COMPUTE.get(type(node.op))
        if compute is None:
            return node
        name, line = ast.Constant(compute.__name__), ast.Constant(node.lineno)
        return ast.Call(ast.Name("watched", ast.Load()), [name, line, node.left, node.right], [])

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.USub) or isinstance(node.operand, ast.Constant):
            return node
        return ast.Call(ast.Name("negated", ast.Load()), [ast.Constant(node.lineno), node.operand], [])


def undefined(kernel: Kernel) -> list[str]:
    """The operations of a thread that overflow 64 signed bits, divide floats inexactly, or negate -32768."""
    found = set()

    def watched(name, line, a, b):
        compute = NAMES[name]
        signed = isinstance(a, np.signedinteger | int) and isinstance(b, np.signedinteger | int)
        if signed and not -(2**63) <= compute(int(a), int(b) or 1) < 2**63:
            found.add(f"line {line}: {name} of {a} and {b}")
        if isinstance(a, np.floating) and compute in (operator.mod, operator.floordiv):
            limit = 2.0 ** (np.finfo(a.dtype).nmant - 1)
            if abs(float(a)) > limit:
                found.add(f"line {line}: {name} of {a} and {b}")
        return compute(a, b)

    def negated(line, a):
        if isinstance(a, np.int16) and a == -(2**15):
            found.add(f"line {line}: - of {a}")
        return -a

    text = ast.unparse(ast.fix_missing_locations(_Watched().visit(ast.parse(kernel.explicit))))
    file = f"<watched {kernel.seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"__name__": "watched", "watched": watched, "negated": negated}
    exec(compile(text, file, "exec"), scope)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # integers that wrap
        Oracle(scope["kernel"], kernel.grid, kernel.block, list(kernel.arguments().values()))
    return sorted(found)
