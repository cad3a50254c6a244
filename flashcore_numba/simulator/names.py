"""What the names in a kernel's source stand for when its lanes run as vectors."""

import ast
import builtins
import functools
import inspect
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from flashcore_numba.simulator import vecmath
from flashcore_numba.simulator.intrinsics import SUPPORTED
from flashcore_numba.simulator.memory import constants
from flashcore_numba.simulator.problems import Site, Unsupported
from flashcore_numba.simulator.rules import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from flashcore_numba.simulator.rewrite import Program

Node = ast.expr | ast.stmt

CUDA_MODULES = ("numba.cuda", "flashcore_numba.simulator.cuda")
"""What a kernel may have imported as `cuda`; Numba may be absent."""

OF_ARRAYS = {"shape", "strides", "size", "ndim", "dtype"}
ATTRIBUTES = OF_ARRAYS | {"real", "imag", "x", "y", "z"}
"""What a kernel may ask of a value of its own."""


@functools.cache
def _paths(cuda: ModuleType) -> dict[int, str]:
    """The path below `cuda` of each object there that the simulator knows, by the object's id."""
    paths = {id(getattr(cuda, name)): name for name in SUPPORTED if hasattr(cuda, name)}
    for part in {"atomic", "shared", "local", "const"} & set(paths.values()):
        members = getattr(cuda, part)
        paths |= {
            id(getattr(members, name)): f"{part}.{name}" for name in vars(members) if not name.startswith("_")
        }
    return paths


class Found(NamedTuple):
    """What a global name is: a path below `numba.cuda`, empty for that module itself, or an object."""

    is_cuda: bool
    value: Any
    module: ModuleType | None = None


class WideAccess(NamedTuple):
    """Decorates a name that kernels call for neighbours of an element: what the simulator does for it.

    method: of `Accesses`. width: how many elements. dtype: of the array.
    """

    method: str
    width: int
    dtype: str

    def __call__(self, name: Any) -> Any:
        name.simulated_as = self
        return name


def python_function(kernel: Any) -> FunctionType:
    """The Python function of a kernel, a device function or itself."""
    function = getattr(kernel, "py_func", None) or kernel
    if not inspect.isfunction(function):
        raise TypeError(f"kernel: {kernel!r} is not a function decorated with @cuda.jit")
    return function


def call(method: str, *args: Any) -> ast.Call:
    """`_M.method(*args)`: a call of the machine."""
    nodes = [arg if isinstance(arg, ast.expr) else ast.Constant(arg) for arg in args]
    return ast.Call(ast.Attribute(load_name("_M"), method, ast.Load()), nodes, [])


def load_name(name: str) -> ast.Name:
    """A variable, to be read."""
    return ast.Name(name, ast.Load())


class Names(ast.NodeTransformer):
    """The part of the rewriter that knows the function's scope."""

    def __init__(self, function: FunctionType, program: "Program") -> None:
        self.function, self.program = function, program
        self.file = function.__code__.co_filename
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError) as error:
            message = f"the source of {function.__name__} cannot be read: {error}"
            raise Unsupported(self.file, None, message) from error
        source = "".join(lines)
        nested = source[0].isspace()  # its comments and strings may start further left
        try:
            tree = ast.parse("if True:\n" + source if nested else source).body[0]
        except SyntaxError as error:
            message = "the simulator knows kernels that are def statements"
            raise Unsupported(self.file, first, message) from error
        if isinstance(tree, ast.If):
            tree = tree.body[0]
        ast.increment_lineno(tree, first - 1 - nested)
        if not isinstance(tree, ast.FunctionDef):
            self.error(tree, "a kernel that is not a def statement")
        self.tree = tree
        code = function.__code__
        self.locals = set(code.co_varnames) | set(code.co_cellvars)
        self.scope = {**vars(builtins), **function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.scope[name] = cell.cell_contents
        self.environment: dict[str, Any] = {}
        self.temporaries = self.shared_arrays = 0
        self.unsure: set[str] = set()  # local variables that are read where they may have no value
        self.literals: set[str] = set()  # local names that stand for a literal
        self.discarded: ast.expr | None = None  # a call whose result nobody takes
        self.is_generator = False

    def error(self, node: Node, what: str) -> NoReturn:
        text = ast.unparse(node).splitlines()[0]
        unknown = f"{what}: {text}"
        raise Unsupported(self.file, node.lineno, f"the simulator does not know {unknown}", unknown=unknown)

    def refuse(self, node: Node, what: str) -> NoReturn:
        text = ast.unparse(node).splitlines()[0]
        raise Unsupported(self.file, node.lineno, f"Numba refuses {what}: {text}")

    def site(self, node: Node, text: str | None = None) -> int:
        return self.program.add_site(self.file, node.lineno, text or ast.unparse(node))

    def place(self, node: Node, text: str) -> Site:
        """The site of a call, which is not counted."""
        callers = self.program.callers
        return Site(self.file, node.lineno, text, callers[-1][1] if callers else None)

    def temporary(self) -> str:
        self.temporaries += 1
        return f"_t{self.temporaries}"

    def bind(self, value: Any) -> ast.Name:
        """A name in the rewritten function for an object of the original's scope."""
        name = f"_g{len(self.environment)}"
        self.environment[name] = value
        return load_name(name)

    def constant(self, node: Node, value: Any) -> ast.expr:
        """A global object as the rewritten function uses it; floats are float64, as Numba types them."""
        if type(value) is int:
            return ast.Constant(value) if abs(value) <= INT64_MAX else self._large(node, value)
        if type(value) in (float, complex):
            return self.bind(np.array(value)[()])
        if isinstance(value, int | str | tuple | type(None) | np.ndarray | np.number | np.bool_ | np.dtype):
            return self.bind(constants(value))
        twin = vecmath.function(value)
        if twin is None:
            self.error(node, f"the {type(value).__name__} {ast.unparse(node)} as a value")
        return self.bind(twin)

    def _large(self, node: Node, value: int) -> ast.expr:
        if not INT64_MIN <= value < 2**64:
            self.error(node, f"the integer {value}: it has more than 64 bits")
        return self.bind(np.uint64(value) if value > 0 else value)

    def resolve(self, node: ast.expr) -> Found | None:
        """What a name or an attribute stands for; None for values of the kernel itself."""
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                return None
            if node.id not in self.scope:
                self.error(node, "a name that nothing assigns")
            return self._found(self.scope[node.id])
        if not isinstance(node, ast.Attribute):
            return None
        base = self.resolve(node.value)
        if base is None:
            return None
        path = f"{base.value}.{node.attr}".strip(".")
        if base.is_cuda and path.split(".")[0] in SUPPORTED:
            return Found(True, path)
        owner = base.module if base.is_cuda else base.value
        if base.is_cuda and base.value:
            self.error(node, "this part of Numba's CUDA")
        if not hasattr(owner, node.attr):
            numba = base.is_cuda and owner is sys.modules.get("numba.cuda")
            self.error(node, "this name, which Numba does not know either" if numba else "this name")
        return self._found(getattr(owner, node.attr))

    @staticmethod
    def _found(value: Any) -> Found:
        for module in map(sys.modules.get, CUDA_MODULES):
            if module is None:
                continue
            if value is module:
                return Found(True, "", module)
            if (path := _paths(module).get(id(value))) is not None:
                return Found(True, path)
        return Found(False, value)

    def cuda_path(self, node: Node, path: str) -> ast.expr:
        """`_M.cuda.path`, for a path that the simulator has."""
        if not path:
            self.error(node, "the module cuda as a value")
        out = ast.Attribute(load_name("_M"), "cuda", ast.Load())
        for part in path.split("."):
            out = ast.Attribute(out, part, ast.Load())
        return out

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.resolve(node)
        if found is None:
            return self.read(node)
        return self.cuda_path(node, found.value) if found.is_cuda else self.constant(node, found.value)

    def read(self, node: ast.Name) -> ast.expr:
        """A variable's value; where some path may not have assigned it, every lane that reads it is asked."""
        if node.id not in self.unsure:
            return load_name(node.id)
        has = load_name(f"_has_{node.id}")
        return call("defined", has, load_name(node.id), node.id, self.site(node, node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        found = self.resolve(node)
        if found is not None:
            return self.cuda_path(node, found.value) if found.is_cuda else self.constant(node, found.value)
        if node.attr not in ATTRIBUTES:
            self.error(node, f"the attribute .{node.attr}")
        value = self.visit(node.value)
        if node.attr in OF_ARRAYS:
            return call("attribute", value, node.attr)
        return ast.Attribute(value, node.attr, ast.Load())
