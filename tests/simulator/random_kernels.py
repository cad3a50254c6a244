"""Random Numba CUDA kernels as source text: well defined by construction, each in two spellings.

`kernel(seed)` writes one. Its `source` leaves the types to Numba; its `explicit` text says the same with each
conversion written out, asked of Numba's own typing, so that a simulator with NumPy's scalars computes the
same. No thread races with another, every index is within its array, every collective gets the lanes that its
mask names, and an element of floating point is either exact whatever the compiler fuses or never decides
anything (`rough`: compared with a tolerance).
"""

import ast
import functools
import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, types
from numba.cuda.descriptor import cuda_target

__all__ = ["INPUTS", "Kernel", "Mutant", "kernel", "mutants"]

WARP, LENGTH, ROWS, COLUMNS, BINS = 32, 64, 8, 16, 16
FULL = 0xFFFFFFFF
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = {"float16": 11, "float32": 24, "float64": 53}  # bits of the significand
LIMIT = {"float16": 3e4, "float32": 1e30, "float64": 1e30}
LARGEST_INT = 2.0**62  # a float below it may become an int64

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

HEAD = """import math

from numba import cuda
from numba.cuda.types import bool_, float16, float32, float64
from numba.cuda.types import int8, int16, int32, int64, uint8, uint16, uint32, uint64

"""


@functools.cache
def typed(function: Callable, *names: str) -> tuple[tuple[str, ...], str] | None:
    """What Numba converts operands of these types to, and the type of the result; None where it refuses."""
    context = cuda_target.typing_context
    context.refresh()
    try:
        found = context.resolve_function_type(function, tuple(getattr(types, name) for name in names), {})
    except Exception:
        return None
    if found is None:
        return None
    return tuple(_name(arg) for arg in found.args), _name(found.return_type)


@functools.cache
def unified(a: str, b: str) -> str:
    """The type of a variable that gets values of both types."""
    found = cuda_target.typing_context.unify_pairs(getattr(types, a), getattr(types, b))
    return _name(found)


def _name(kind) -> str:
    return "boolean" if kind == types.boolean else str(kind)


def _cast_name(kind: str) -> str:
    return "bool_" if kind == "boolean" else kind


def _bits(kind: str) -> int:
    return int(kind.lstrip("uint"))


def _range(kind: str) -> float:
    """A bound of the absolute values of an integer type."""
    if kind == "boolean":
        return 1.0
    return 2.0 ** (_bits(kind) - kind.startswith("int"))


class Value(NamedTuple):
    """An expression: its two texts, Numba's type, and what is known of its values.

    Floats are multiples of 2**-grain (None: of nothing known), at most `bound`. `product`: rounded from a
    multiplication, which the compiler may fuse with a sum; such a value enters no sum. `rough`: the last
    bits differ between machines; such a value is at most 1 and decides nothing.
    """

    text: str
    explicit: str
    type: str
    bound: float
    grain: int | None = 0
    product: bool = False
    rough: str = ""  # the widest type whose rounding it carries

    @property
    def is_int(self) -> bool:
        return self.type in INTS

    @property
    def is_float(self) -> bool:
        return self.type in FLOATS


@dataclass
class Line:
    indent: int
    text: str
    explicit: str


@dataclass(frozen=True)
class Kernel:
    """One kernel: texts, launch and what it may be compared on."""

    seed: int
    source: str
    explicit: str
    grid: int
    block: tuple[int, ...]
    threads: int
    arrays: tuple[str, ...]
    features: frozenset[str]

    def arguments(self) -> dict[str, np.ndarray]:
        """Fresh arguments by name, in the order of the parameters."""
        rng = np.random.default_rng(self.seed)
        made = {name: make(rng, self.grid * self.threads) for name, make in ARRAYS.items()}
        return {name: made[name] for name in self.arrays}


@dataclass(frozen=True)
class Mutant:
    """A kernel with one fault planted: what was changed, and where."""

    kernel: Kernel
    original: Kernel
    kind: str  # "barrier", "syncwarp" or "index"
    change: str


def _integers(name: str):
    info = np.iinfo(name)

    def make(rng, _):
        wide = rng.integers(info.min, info.max, LENGTH, dtype=name, endpoint=True)
        small = rng.integers(max(info.min, -20), 21, LENGTH).astype(name)
        edge = rng.choice(np.array([info.min, info.min + 1, info.max, info.max - 1], name), LENGTH)
        return np.choose(rng.choice(3, LENGTH, p=[0.35, 0.5, 0.15]), [wide, small, edge]).astype(name)

    return make


def _dyadic(name: str, bound: int, grain: int):
    return lambda rng, _: (
        rng.integers(-bound * 2**grain, bound * 2**grain, LENGTH, endpoint=True) / 2.0**grain
    ).astype(name)


def _zeros(name: str, *shape: int):
    return lambda _, n: np.zeros((n, *shape), name)


EXACT = {"float16": (32, 2), "float32": (64, 4), "float64": (1024, 8)}
"""Variables and arrays of a float type hold multiples of 2**-grain up to a bound: (bound, grain)."""

ARRAYS: dict[str, Callable] = {
    **{f"x_{name}": _integers(name) for name in INTS},
    **{f"x_{name}": _dyadic(name, *EXACT[name]) for name in FLOATS},
    "x_boolean": lambda rng, _: rng.random(LENGTH) < 0.5,
    "r_float32": lambda rng, _: rng.uniform(-1, 1, LENGTH).astype(np.float32),
    "r_float64": lambda rng, _: rng.uniform(-1, 1, LENGTH),
    "a_int64": lambda rng, _: rng.integers(-99, 100, (ROWS, COLUMNS)),
    "a_float32": lambda rng, _: (rng.integers(-1024, 1025, (ROWS, COLUMNS)) / 16).astype(np.float32),
    "y_int64": _zeros("int64", 6),
    "y_uint64": _zeros("uint64", 4),
    "y_float64": _zeros("float64", 5),
    "y_float32": _zeros("float32", 3),
    "y_int16": _zeros("int16", 3),
    "y_uint8": _zeros("uint8", 3),
    "z_float32": _zeros("float32", 3),
    "z_float64": _zeros("float64", 3),
    **{f"h_{name}": lambda _, n, name=name: np.zeros(BINS, name) for name in INTS if _bits(name) > 16},
    "h_float64": lambda _, n: np.zeros(BINS),
}
SLOTS = {"y_int64": 6, "y_uint64": 4, "y_float64": 5, "y_float32": 3, "y_int16": 3, "y_uint8": 3}
INPUTS = frozenset(name for name in ARRAYS if name[0] in "xra")


class Writer:
    """Writes one kernel."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[Line] = []
        self.indent = 1
        self.variables: dict[str, Value] = {}
        self.fixed: list[Value] = []  # thread and loop numbers: read only
        self.names = 0
        self.features: set[str] = set()
        self.functions: list[list[Line]] = []
        self.device: dict[str, Any] = {}
        self.shared: dict[str, str] = {}  # name -> element type
        self.dirty: set[str] = set()  # shared arrays touched since the last barrier
        self.readable: list[tuple[str, str, int]] = []  # arrays that may be read here: name, type, length
        self.used: set[str] = set()
        self.in_function = False
        self.block: tuple[int, ...] = self.random.choice(
            [(32,), (64,), (64,), (96,), (48,), (40,), (8, 8), (16, 6)]
        )
        self.threads = math.prod(self.block)
        self.grid = self.random.choice([1, 1, 2, 3])

    # Small things

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def emit(self, text: str, explicit: str | None = None):
        self.lines.append(Line(self.indent, text, text if explicit is None else explicit))

    def nested(self, write: Callable[[], None]):
        """A suite; what is assigned inside stays known only if it was known before."""
        known = dict(self.variables)
        self.indent += 1
        before = len(self.lines)
        write()
        if len(self.lines) == before:
            self.emit("pass")
        self.indent -= 1
        self.variables = known

    def array(self, name: str) -> str:
        self.used.add(name)
        return name

    # Values

    def literal(self) -> Value:
        r = self.random
        if self.chance(0.3):
            grain = r.choice([0, 1, 2])
            number = r.randint(-40, 40) / 2**grain
            return Value(repr(number), f"float64({number!r})", "float64", abs(number), grain)
        number = r.choice([r.randint(0, 9), r.randint(-9, 300), r.randint(-(2**40), 2**40), 2**31, -(2**31)])
        if self.chance(0.8):
            number = r.randint(-9, 20)
        text = str(number) if number >= 0 else f"({number})"
        return Value(text, f"int64({number})", "int64", float(abs(number)))

    def cast(self, value: Value, kind: str) -> Value | None:
        """`kind(value)`, None where that is undefined or overflows."""
        text, explicit = f"{_cast_name(kind)}({value.text})", f"{_cast_name(kind)}({value.explicit})"
        if value.type == kind:
            return value._replace(text=text, explicit=explicit)
        if kind == "boolean" or value.rough:
            return None
        if kind in INTS:
            if value.is_float:
                if value.bound >= LARGEST_INT:
                    return None
                if value.bound >= 2 ** (_bits(kind) - 1) - 1 or kind.startswith("u") or self.chance(0.3):
                    text, explicit = f"{kind}(int64({value.text}))", f"{kind}(int64({value.explicit}))"
            return Value(
                text, explicit, kind, min(value.bound, _range(kind)) if kind[0] == "i" else _range(kind)
            )
        if value.bound >= LIMIT[kind]:
            return None
        grain = value.grain
        if grain is not None and value.bound * 2.0**grain > 2.0 ** FLOATS[kind]:
            grain = None
        return Value(text, explicit, kind, value.bound * 1.001, grain, value.product)

    def fit(self, value: Value, kind: str) -> Value:
        """The value as a variable or an array of the type holds it."""
        if kind == "boolean":
            if value.type == "boolean":
                return value
            return Value(f"({value.text} != 0)", f"({value.explicit} != 0)", "boolean", 1)
        if kind in INTS:
            found = self.cast(value, kind)
            if found is None:
                small = self.binary("%", value, self.number_literal(1000))
                found = small and self.cast(small, kind)
            return found or self.cast(self.number_literal(3), kind)
        bound, grain = EXACT[kind]
        if not (value.product or value.bound > bound or value.grain is None or value.grain > grain):
            found = self.cast(value, kind)
            if found is not None and found.grain is not None:
                return found._replace(bound=bound, grain=grain)
        whole = self.cast(value, "int64") if value.type != "int64" else value
        rest = whole and self.binary("%", whole, self.number_literal(31))
        return self.cast(rest or self.number_literal(7), kind)._replace(bound=bound, grain=grain)

    def number_literal(self, number: int) -> Value:
        return Value(str(number), f"int64({number})", "int64", float(number))

    def binary(self, op: str, a: Value, b: Value) -> Value | None:
        """`a op b` with Numba's types; None where Numba refuses it or the value would not be defined."""
        found = typed(OPERATORS[op], a.type, b.type)
        if found is None or a.rough or b.rough:
            return None
        (left, right), kind = found
        text = f"({a.text} {op} {b.text})"
        if op in ("<", "<=", "==", "!=", ">", ">="):
            return Value(
                text,
                f"({_cast_name(left)}({a.explicit}) {op} {_cast_name(right)}({b.explicit}))",
                "boolean",
                1,
            )
        to = _cast_name(kind)
        if op == "/" and not a.is_float and not b.is_float and left != right:
            return None
        explicit = f"{to}({to}({a.explicit}) {op} {to}({b.explicit}))"
        if kind in INTS or kind == "boolean":
            bound = {"+": a.bound + b.bound, "-": a.bound + b.bound, "*": a.bound * b.bound}.get(
                op, _range(kind)
            )
            if op == "%":
                bound = b.bound
            if kind[0] == "u" and op in "+-*" and bound:
                bound = _range(kind)
            return Value(text, explicit, kind, min(bound, _range(kind)))
        a, b = self.cast(a, kind), self.cast(b, kind)
        if a is None or b is None or (kind == "float16" and op in ("/", "//", "%", "**")):
            return None
        return self.float_result(op, a, b, text, explicit, kind)

    def float_result(self, op, a, b, text, explicit, kind) -> Value | None:
        significand = 2.0 ** FLOATS[kind]
        product, grain = False, None
        if op in "+-":
            if a.product or b.product:
                return None
            bound = a.bound + b.bound
            if a.grain is not None and b.grain is not None:
                grain = max(a.grain, b.grain)
        elif op == "*":
            bound = a.bound * b.bound
            if a.grain is not None and b.grain is not None:
                grain = a.grain + b.grain
            product = grain is None or bound * 2.0**grain > significand
        elif op == "/":
            bound = a.bound * 2**12  # divisors are multiples of no less
        elif op == "//":
            bound, grain = a.bound * 2**12 + 1, 0
        elif op == "%":
            bound = b.bound
        else:
            return None
        if bound >= LIMIT[kind]:
            return None
        if grain is not None and bound * 2.0**grain > significand:
            grain = None
        return Value(text, explicit, kind, bound * 1.001, grain, product)

    def call(self, function: Callable, name: str, *values: Value) -> Value | None:
        """A call with Numba's types; floats of the result keep what the first operand's are known for."""
        found = typed(function, *(value.type for value in values))
        if found is None or any(value.rough for value in values):
            return None
        arguments, kind = found
        if kind not in INTS and kind not in FLOATS:
            return None
        text = f"{name}({', '.join(value.text for value in values)})"
        wide = ", ".join(f"{to}({value.explicit})" for to, value in zip(arguments, values, strict=True))
        return Value(text, f"{kind}({name}({wide}))", kind, _range(kind) if kind in INTS else 0)

    # Leaves

    def index(self, n: int, depth: int) -> Value:
        """An index of 0 to n - 1."""
        if self.chance(0.15):
            return self.number_literal(self.random.randrange(n))
        value = self.integer(depth + 1)
        while (rest := self.binary("%", value, self.number_literal(n))) is None or rest.type not in INTS:
            value = self.fixed[0]
        return rest

    def load(self, depth: int) -> Value:
        kind = self.random.choice((*INTS, *INTS, *FLOATS, "boolean"))
        choices = [(self.array(f"x_{kind}"), kind, LENGTH)] if not self.in_function else []
        choices += self.readable * 3
        if not choices:
            return self.leaf(depth)
        name, kind, length = self.random.choice(choices)
        index = self.index(length, depth)
        text = f"{name}[{index.text}]", f"{name}[{index.explicit}]"
        return self.element(text, kind)

    def element(self, text: tuple[str, str], kind: str) -> Value:
        if kind == "boolean":
            return Value(*text, kind, 1)
        if kind in INTS:
            return Value(*text, kind, _range(kind))
        bound, grain = EXACT[kind]
        return Value(*text, kind, bound, grain)

    def table(self, depth: int) -> Value:
        """An element of a two-dimensional input, at once or through its row."""
        kind = self.random.choice(["int64", "float32"])
        name = self.array(f"a_{kind}")
        row, column = self.index(ROWS, depth), self.index(COLUMNS, depth)
        if self.chance(0.4):
            text = f"{name}[{row.text}][{column.text}]", f"{name}[{row.explicit}][{column.explicit}]"
        else:
            text = f"{name}[{row.text}, {column.text}]", f"{name}[{row.explicit}, {column.explicit}]"
        return Value(*text, kind, 99 if kind == "int64" else 64, 0 if kind == "int64" else 4)

    def leaf(self, depth: int) -> Value:
        known = [value for value in self.variables.values() if not value.rough]
        if known and self.chance(0.55):
            return self.random.choice(known)
        if self.chance(0.35):
            return self.random.choice(self.fixed)
        return self.literal()

    # Expressions

    def number(self, depth: int = 0) -> Value:
        """Any value but a rough one."""
        for _ in range(20):
            found = self._number(depth)
            if found is not None:
                return found
        return self.leaf(depth)

    def _number(self, depth: int) -> Value | None:
        if depth >= 3 or self.chance(0.12):
            return self.leaf(depth)
        r = self.random
        kind = r.random()
        if kind < 0.14:
            return self.load(depth)
        if kind < 0.18 and not self.in_function:
            return self.table(depth)
        if kind < 0.46:
            op = r.choice("+-*")
            return self.binary(op, self.number(depth + 1), self.number(depth + 1))
        if kind < 0.54:
            return self.binary(r.choice("&|^"), self.number(depth + 1), self.number(depth + 1))
        if kind < 0.60:
            return self.shift(depth)
        if kind < 0.68:
            return self.division(depth)
        if kind < 0.76:
            to = r.choice((*INTS, *FLOATS))
            return self.cast(self.number(depth + 1), to)
        if kind < 0.84:
            return self.choice_expression(depth)
        if kind < 0.88:
            return self.extreme(depth)
        if kind < 0.93:
            return self.function_of_one(depth)
        if kind < 0.96:
            return self.unary(depth)
        if kind < 0.98:
            return self.condition(depth + 1)
        return self.device_call(depth)

    def integer(self, depth: int) -> Value:
        for _ in range(20):
            value = self.number(depth)
            if value.is_int:
                return value
        return self.random.choice(self.fixed)

    def shift(self, depth: int) -> Value | None:
        value, op = self.integer(depth + 1), self.random.choice(["<<", ">>"])
        amount = self.number_literal(self.random.randrange(20))
        if self.chance(0.4):
            amount = self.binary("&", self.integer(depth + 1), self.number_literal(7)) or amount
        return self.binary(op, value, amount)

    def division(self, depth: int) -> Value | None:
        op = self.random.choice(["//", "%", "/", "%", "//"])
        value = self.number(depth + 1)
        divisor = self.number_literal(self.random.choice([2, 3, 5, 7, 10, 16, 100]))
        kind = self.random.random()
        if kind < 0.2:
            divisor = divisor._replace(text=f"(-{divisor.text})", explicit=f"int64(-{divisor.text})")
        elif kind < 0.45:
            rest = self.binary("&", self.integer(depth + 1), self.number_literal(15))
            divisor = rest and self.binary("+", rest, self.number_literal(1))
        elif kind < 0.65:
            to = self.random.choice(("float32", "float64", *INTS))
            divisor = self.cast(divisor, to)
        if divisor is None or (value.type == "boolean" and op == "/"):
            return None
        return self.binary(op, value, divisor)

    def choice_expression(self, depth: int) -> Value | None:
        a, b = self.number(depth + 1), self.number(depth + 1)
        condition = self.condition(depth + 1)
        return self.chosen(a, b, condition)

    def joined(self, a: Value, b: Value) -> tuple[str, Value, Value] | None:
        """The type of a variable that gets a or b, and both converted to it."""
        kind = unified(a.type, b.type)
        if a.product or b.product or kind not in (*INTS, *FLOATS, "boolean"):
            return None
        one, two = (value if value.type == kind else self.cast(value, kind) for value in (a, b))
        if one is None or two is None:
            return None
        return kind, one, two

    def chosen(self, a: Value, b: Value, condition: Value) -> Value | None:
        found = self.joined(a, b)
        if found is None:
            return None
        kind, one, two = found
        text = f"({a.text} if {condition.text} else {b.text})"
        explicit = f"({one.explicit} if {condition.explicit} else {two.explicit})"
        return self.either(text, explicit, kind, one, two)

    @staticmethod
    def either(text: str, explicit: str, kind: str, a: Value, b: Value) -> Value:
        grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
        bound = max(a.bound, b.bound)
        if kind in FLOATS and grain is not None and bound * 2.0**grain > 2.0 ** FLOATS[kind]:
            grain = None
        return Value(text, explicit, kind, bound, grain)

    def extreme(self, depth: int) -> Value | None:
        which = self.random.choice([min, max])
        a, b = self.number(depth + 1), self.number(depth + 1)
        if "boolean" in (a.type, b.type) or a.product or b.product:
            return None
        found = typed(which, a.type, b.type)
        if found is None:
            return None
        kind = found[1]
        one, two = self.cast(a, kind), self.cast(b, kind)
        if one is None or two is None:
            return None
        name = which.__name__
        return self.either(
            f"{name}({a.text}, {b.text})", f"{kind}({name}({one.explicit}, {two.explicit}))", kind, one, two
        )

    def function_of_one(self, depth: int) -> Value | None:
        which = self.random.randrange(9)
        value = self.number(depth + 1)
        if value.type in ("boolean", "float16") or (which < 6 and value.bound > 2.0**52):
            return None
        if which == 0:
            inner = self.call(abs, "abs", value)
            if inner is None or inner.type == "float16":
                return None
            inner = inner._replace(bound=value.bound)
            if inner.is_int and inner.type[0] == "i":
                inner = self.binary("&", inner, self.number_literal(2**20 - 1))
            found = inner and self.call(math.sqrt, "math.sqrt", inner)
            return found and found._replace(bound=inner.bound + 1, grain=None)
        if which in (1, 2):
            name = ["floor", "ceil"][which - 1]
            found = self.call(getattr(math, name), f"math.{name}", value)
            if found is None or not value.is_float:
                return None
            return found._replace(bound=value.bound + 1, grain=0)
        if which == 3:
            found = self.call(math.fabs, "math.fabs", value)
            return found and found._replace(bound=value.bound, grain=value.grain, product=value.product)
        if which == 4:
            found = self.call(round, "round", value)
            return found if value.is_float else None
        if which == 5:
            sign = self.number(depth + 1)
            if sign.type in ("boolean", "float16") or sign.is_int or value.is_int:
                return None
            found = self.call(math.copysign, "math.copysign", value, sign)
            return found and found._replace(bound=value.bound, grain=value.grain, product=True)
        if which == 6:
            found = self.call(abs, "abs", value)
            return found and found._replace(bound=value.bound, grain=value.grain, product=value.product)
        if which == 7:
            name = self.random.choice(["int", "float"])
            if value.bound >= LARGEST_INT and name == "int":
                return None
            found = self.call({"int": int, "float": float}[name], name, value)
            if found is None or found.is_int:
                return found
            return self.cast(value, "float64")._replace(text=found.text, explicit=found.explicit)
        return self.bit_function(value)

    def bit_function(self, value: Value) -> Value | None:
        name = self.random.choice(["popc", "clz", "ffs", "brev"])
        if not value.is_int or _bits(value.type) < 32:
            return None
        found = typed(getattr(cuda, name), value.type)
        if found is None or found[0][0] != value.type and name != "brev":
            return None
        if _bits(found[0][0]) == 64 and name != "popc":
            self.features.add(f"{name} of 64 bits")
        kind = found[1]
        given = found[0][0].replace("uint", "int").replace("int", "uint")
        return Value(
            f"cuda.{name}({value.text})",
            f"{kind}(cuda.{name}({given}({value.explicit})))",
            kind,
            _range(kind),
        )

    def unary(self, depth: int) -> Value | None:
        value = self.number(depth + 1)
        op = "~" if value.type != "boolean" and self.chance(0.4) else "-"
        found = typed(operator.invert if op == "~" else operator.neg, value.type)
        if found is None:
            return None
        kind = found[1]
        text, explicit = f"({op}{value.text})", f"{kind}({op}{kind}({value.explicit}))"
        return Value(
            text, explicit, kind, _range(kind) if kind in INTS else value.bound, value.grain, value.product
        )

    def condition(self, depth: int = 0) -> Value:
        chance = self.random.random()
        if depth < 2 and chance < 0.18:
            word = self.random.choice(["and", "or"])
            a, b = self.condition(depth + 1), self.condition(depth + 1)
            return Value(f"({a.text} {word} {b.text})", f"({a.explicit} {word} {b.explicit})", "boolean", 1)
        if depth < 3 and chance < 0.25:
            a = self.condition(depth + 1)
            return Value(f"(not {a.text})", f"(not {a.explicit})", "boolean", 1)
        if chance < 0.35:
            a = self.leaf(depth)
            low, high = sorted((self.random.randint(-9, 9), self.random.randint(0, 40)))
            if a.type != "boolean":
                found = self.binary("<", self.number_literal(low) if low >= 0 else self.number_literal(0), a)
                upper = self.binary("<=", a, self.number_literal(high))
                if found and upper:
                    low = max(low, 0)
                    explicit = f"({found.explicit} and {upper.explicit})"
                    return Value(f"({low} < {a.text} <= {high})", explicit, "boolean", 1)
        for _ in range(5):
            a, b = self.number(depth + 1), self.number(depth + 1)
            if self.chance(0.5) and a.is_int:
                a = self.binary("%", a, self.number_literal(self.random.randint(2, 7))) or a
                b = self.number_literal(self.random.randint(0, 3))
            if "boolean" in (a.type, b.type):
                continue
            found = self.binary(self.random.choice(["<", "<=", "==", "!=", ">", ">="]), a, b)
            if found is not None:
                return found
        return self.binary("<", self.fixed[0], self.number_literal(self.random.randrange(1, self.threads)))

    def uniform_condition(self) -> Value:
        """The same for all threads of a block."""
        n = self.random.randrange(LENGTH)
        name = self.array("x_int32")
        value = Value(f"{name}[{n}]", f"{name}[int64({n})]", "int32", 2.0**31)
        if self.chance(0.4):
            value = Value("cuda.blockIdx.x", "int32(cuda.blockIdx.x)", "int32", 3)
        rest = self.binary("%", value, self.number_literal(3))
        return self.binary(
            self.random.choice(["<", "!=", "=="]), rest, self.number_literal(self.random.randint(0, 2))
        )

    # Rough values: at most 1; no operation enlarges an error

    def rough(self, depth: int, only64: bool) -> Value:
        r = self.random
        kinds = ["float64"] if only64 else ["float32", "float64", "float32"]
        if depth >= 3 or self.chance(0.2):
            known = [v for v in self.variables.values() if v.rough and not (only64 and v.rough == "float32")]
            if known and self.chance(0.6):
                return r.choice(known)
            kind = r.choice(kinds)
            index = self.index(LENGTH, 2)
            name = self.array(f"r_{kind}")
            return Value(f"{name}[{index.text}]", f"{name}[{index.explicit}]", kind, 1, None, False, kind)
        a = self.rough(depth + 1, only64)
        if self.chance(0.5):
            b = self.rough(depth + 1, only64)
            half = r.choice([Value("0.5", "float64(0.5)", "float64", 1), self.half()])
            pattern = r.choice(["({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} / ({two} + {b}))"])
            return self.rough_formula(f"({pattern} * {{h}})", a=a, b=b, h=half)
        pattern = r.choice(
            [
                "math.sin({a})",
                "math.cos({a})",
                "math.tanh({a})",
                "math.atan({a})",
                "math.exp(-abs({a}))",
                "(math.log({two} + {a}) * {h})",
                "(math.sqrt({two} + {a}) * {h})",
                "(math.erf({a}) * {h})",
                "math.fabs({a})",
            ]
        )
        if "atan" in pattern:
            pattern = f"({pattern} * {{h}})"
        return self.rough_formula(pattern, a=a, h=self.half())

    def half(self) -> Value:
        kind = self.random.choice(["float32", "float64"])
        return Value(f"{kind}(0.5)", f"{kind}(0.5)", kind, 1)

    def rough_formula(self, pattern: str, **values: Value) -> Value:
        """Formulas are over floats only; their type is the widest, and NumPy's is the same."""
        two = f"{values['a'].type}(2)"
        text = pattern.format(two=two, **{key: value.text for key, value in values.items()})
        kind = (
            "float64"
            if any(v.type == "float64" and f"{{{k}}}" in pattern for k, v in values.items())
            else "float32"
        )
        kinds = {value.rough for value in values.values()}
        explicit = pattern.format(
            two=f"{kind}(2)", **{key: f"{kind}({v.explicit})" for key, v in values.items()}
        )
        return Value(
            text, f"{kind}({explicit})", kind, 1, None, False, "float32" if "float32" in kinds else "float64"
        )

    # Statements that any lane may execute for itself

    def declare(self, kind: str, rough: bool = False):
        name = self.name("v")
        if rough:
            value = self.rough(1, kind == "float64")
            text = f"{name} = {kind}({value.text})", f"{name} = {kind}({value.explicit})"
            self.emit(*text)
            self.variables[name] = Value(name, name, kind, 1, None, False, kind)
            return
        value = self.fit(self.number(1), kind)
        self.emit(f"{name} = {value.text}", f"{name} = {value.explicit}")
        self.variables[name] = self.element((name, name), kind)

    def targets(self) -> list[str]:
        return list(self.variables)

    def assign(self):
        name = self.random.choice(self.targets())
        old = self.variables[name]
        if old.rough:
            value = self.rough(0, old.rough == "float64")
            self.emit(f"{name} = {old.type}({value.text})", f"{name} = {old.type}({value.explicit})")
            return
        if old.type == "int64" and self.chance(0.3):
            value, op = self.number(1), self.random.choice("+-*")
            found = self.binary(op, old, value)
            if found is not None and found.type == "int64":
                self.emit(f"{name} {op}= {value.text}", f"{name} = {found.explicit}")
                return
        value = self.fit(self.number(0), old.type)
        self.emit(f"{name} = {value.text}", f"{name} = {value.explicit}")

    def swap(self):
        """A tuple on both sides."""
        names = [name for name in self.targets() if not self.variables[name].rough]
        if len(names) < 2:
            return
        one, two = self.random.sample(names, 2)
        first = self.fit(self.number(1), self.variables[one].type)
        second = self.fit(self.number(1), self.variables[two].type)
        if self.chance(0.5):
            self.emit(
                f"{one}, {two} = {first.text}, {second.text}",
                f"{one}, {two} = {first.explicit}, {second.explicit}",
            )
            return
        pair = self.name("p")
        self.emit(
            f"{pair} = ({first.text}, {second.text})", f"{pair} = ({first.explicit}, {second.explicit})"
        )
        self.emit(f"{one} = {pair}[0]")
        self.emit(f"{two} = {pair}[1]")

    def loose(self):
        """A variable that gets values of two types in two branches, and is used after them."""
        a, b = self.number(1), self.number(1)
        found = self.joined(a, b)
        if found is None:
            return
        kind, one, two = found
        name, condition = self.name("u"), self.condition(1)
        self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
        self.indent += 1
        self.emit(f"{name} = {a.text}", f"{name} = {one.explicit}")
        self.indent -= 1
        self.emit("else:")
        self.indent += 1
        self.emit(f"{name} = {b.text}", f"{name} = {two.explicit}")
        self.indent -= 1
        self.use(self.either(name, name, kind, one, two))

    def accumulate(self):
        """A variable that starts with one type and is widened by the loop that changes it."""
        start, step = self.number(2), self.number(1)
        op = self.random.choice(["+", "-", "^", "|"])
        kind = start.type
        for _ in range(3):
            found = typed(OPERATORS[op], kind, step.type)
            if found is None:
                return
            wider = unified(kind, found[1])
            if wider == kind:
                break
            kind = wider
        first = self.cast(start, kind) if start.type != kind else start
        turns = self.random.randint(1, 4)
        if kind not in (*INTS, *FLOATS) or first is None or first.product or step.product:
            return
        name, turn = self.name("u"), self.name("k")
        bound = first.bound + turns * step.bound
        now = Value(name, name, kind, bound if kind in FLOATS else _range(kind), None)
        change = self.binary(op, now, step)
        back = change and self.cast(change, kind)
        if back is None or back.product or (kind in FLOATS and (step.grain is None or first.grain is None)):
            return
        self.emit(f"{name} = {start.text}", f"{name} = {first.explicit}")
        self.emit(f"for {turn} in range({turns}):")
        self.indent += 1
        self.emit(f"{name} = {change.text}", f"{name} = {back.explicit}")
        self.indent -= 1
        self.use(now)

    def use(self, value: Value):
        """Put a value where it can be seen."""
        if value.type == "boolean":
            value = self.cast(value, "int64")
        other = self.number(2)
        found = self.binary(self.random.choice("+-*"), value, other) or value
        self.output(found)

    def output(self, value: Value):
        """Store a value in the thread's own row of an output array."""
        if self.in_function:
            return
        r = self.random
        if value.is_float:
            narrow = value.bound < 2**14
            name = r.choice(["y_float64", "y_float64", "y_float32", *(["y_int16"] if narrow else [])])
            if value.bound >= 1e30:
                return
        else:
            name = r.choice(["y_int64", "y_int64", "y_uint64", "y_float64", "y_int16", "y_uint8"])
        kind, slot = name[2:], r.randrange(SLOTS[name])
        place = f"{self.array(name)}[i, {slot}]"
        explicit_place = f"{name}[i, int64({slot})]"
        plus = self.chance(0.3) and kind in ("int64", "uint64") and value.is_int
        if plus:
            self.emit(
                f"{place} += {value.text}",
                f"{explicit_place} = {kind}({explicit_place} + {kind}({value.explicit}))",
            )
            return
        self.emit(f"{place} = {value.text}", f"{explicit_place} = {kind}({value.explicit})")

    def branch(self, deep: int):
        condition = self.condition()
        self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
        self.nested(lambda: self.suite(deep + 1))
        if self.chance(0.3):
            condition = self.condition(1)
            self.emit(f"elif {condition.text}:", f"elif {condition.explicit}:")
            self.nested(lambda: self.suite(deep + 1))
        if self.chance(0.5):
            self.emit("else:")
            self.nested(lambda: self.suite(deep + 1))

    def for_loop(self, deep: int):
        name = self.name("k")
        fixed = str(self.random.randint(1, 4))
        own = self.binary("&", self.integer(2), self.number_literal(3))
        bounds = [(fixed, fixed), ("0, 5, 2", "0, 5, 2"), ("4, -1, -2", "4, -1, -2")]
        if own is not None and own.type == "int64":
            bounds += [
                (own.text, own.explicit),
                (f"{own.text}, 5", f"{own.explicit}, 5"),
                (f"4, {own.text}, -1", f"4, {own.explicit}, -1"),
                (f"0, 6, {own.text} + 1", f"0, 6, {own.explicit} + 1"),
            ]
        text, explicit = self.random.choice(bounds)
        self.emit(f"for {name} in range({text}):", f"for {name} in range({explicit}):")
        self.loop_body(deep, Value(name, f"int64({name})", "int64", 8))

    def while_loop(self, deep: int):
        name = self.name("w")
        start = self.binary("&", self.integer(2), self.number_literal(3))
        if start is None or start.type != "int64":
            start = self.number_literal(2)
        self.emit(f"{name} = {start.text}", f"{name} = {start.explicit}")
        self.emit(f"while {name} > 0:")
        self.indent += 1
        self.emit(f"{name} = {name} - 1", f"{name} = int64({name} - int64(1))")
        self.indent -= 1
        self.loop_body(deep, Value(name, name, "int64", 8))

    def tuple_loop(self, deep: int):
        """Over a tuple of numbers of one type."""
        kind = self.random.choice(["int64", "float32", "uint8"])
        values = [self.fit(self.number(2), kind) for _ in range(2)]
        name = self.name("k")
        texts = (f"({', '.join(side)})" for side in zip(*((v.text, v.explicit) for v in values), strict=True))
        self.emit(*(f"for {name} in {text}:" for text in texts))
        self.loop_body(deep, self.element((name, name), kind))

    def loop_body(self, deep: int, variable: Value):
        def body():
            self.suite(deep + 1)
            if self.chance(0.4):
                condition = self.condition(1)
                self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
                self.indent += 1
                self.emit(self.random.choice(["break", "continue"]))
                self.indent -= 1
                self.suite(deep + 1, 1)

        self.fixed.append(variable)
        self.nested(body)
        self.fixed.pop()

    def local_array(self):
        """Every thread its own: written in whole, changed at any place, read."""
        kind = self.random.choice(["int64", "float32", "int16", "uint8", "float64", "boolean", "uint64"])
        name, length, turn = self.name("l"), self.random.randint(2, 5), self.name("k")
        self.emit(f"{name} = cuda.local.array({length}, {_cast_name(kind)})")
        self.emit(f"for {turn} in range({length}):")
        self.fixed.append(Value(turn, f"int64({turn})", "int64", 8))
        value = self.fit(self.number(1), kind)
        self.indent += 1
        self.emit(f"{name}[{turn}] = {value.text}", f"{name}[{turn}] = {value.explicit}")
        self.indent -= 1
        self.fixed.pop()
        index, value = self.index(length, 1), self.fit(self.number(1), kind)
        self.emit(f"{name}[{index.text}] = {value.text}", f"{name}[{index.explicit}] = {value.explicit}")
        self.readable.append((name, kind, length))
        for _ in range(2):
            self.assign()
        self.use(self.load_of(name, kind, length))
        self.readable.pop()

    def load_of(self, name: str, kind: str, length: int) -> Value:
        index = self.index(length, 1)
        return self.element((f"{name}[{index.text}]", f"{name}[{index.explicit}]"), kind)

    def chosen_array(self):
        """An array of the thread's own choice."""
        kind = self.random.choice([*INTS, *FLOATS])
        pairs = [(f"x_{kind}", f"x_{kind}[3:]", LENGTH - 3)] if self.chance(0.2) else []
        condition, name, how = self.condition(1), self.name("b"), self.random.random()
        if how < 0.3 or pairs:
            kind = self.random.choice(["int64", "float32"])
            table, row = self.array(f"a_{kind}"), self.index(ROWS, 1)
            self.emit(f"{name} = {table}[{row.text}]", f"{name} = {table}[{row.explicit}]")
            length = COLUMNS
            if self.chance(0.5):
                other = self.index(ROWS, 1)
                self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
                self.indent += 1
                self.emit(f"{name} = {table}[{other.text}]", f"{name} = {table}[{other.explicit}]")
                self.indent -= 1
        else:
            local = [self.name("l"), self.name("l")]
            length = self.random.randint(2, 4)
            for array in local:
                turn = self.name("k")
                self.emit(f"{array} = cuda.local.array({length}, {kind})")
                self.emit(f"for {turn} in range({length}):")
                self.fixed.append(Value(turn, f"int64({turn})", "int64", 8))
                value = self.fit(self.number(1), kind)
                self.indent += 1
                self.emit(f"{array}[{turn}] = {value.text}", f"{array}[{turn}] = {value.explicit}")
                self.indent -= 1
                self.fixed.pop()
            one, two = local
            if self.chance(0.4):
                two, length = self.array(f"x_{kind}"), min(length, LENGTH)
            if how < 0.55:
                self.emit(
                    f"{name} = {one} if {condition.text} else {two}",
                    f"{name} = {one} if {condition.explicit} else {two}",
                )
            elif how < 0.8:
                self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
                self.nested(lambda: self.emit(f"{name} = {one}"))
                self.emit("else:")
                self.nested(lambda: self.emit(f"{name} = {two}"))
            else:
                self.pick_function()
                self.emit(
                    f"{name} = pick({one}, {two}, {condition.text})",
                    f"{name} = pick({one}, {two}, {condition.explicit})",
                )
            if two != f"x_{kind}" and self.chance(0.6):
                index, value = self.index(length, 1), self.fit(self.number(1), kind)
                self.emit(
                    f"{name}[{index.text}] = {value.text}", f"{name}[{index.explicit}] = {value.explicit}"
                )
                self.use(self.load_of(one, kind, length))
        self.features.add("chosen array")
        self.use(self.load_of(name, kind, length))
        self.readable.append((name, kind, length))
        self.assign()
        self.readable.pop()

    def suite(self, deep: int, most: int = 3):
        for _ in range(self.random.randint(1, most)):
            self.statement(deep)

    def statement(self, deep: int):
        chance = self.random.random()
        if chance < 0.36 or deep >= 3:
            self.assign()
        elif chance < 0.44:
            self.output(self.number(0))
        elif chance < 0.49:
            self.swap()
        elif chance < 0.55:
            self.loose()
        elif chance < 0.60:
            self.accumulate()
        elif chance < 0.72:
            self.branch(deep)
        elif chance < 0.79:
            self.for_loop(deep)
        elif chance < 0.84:
            self.while_loop(deep)
        elif chance < 0.87:
            self.tuple_loop(deep)
        elif chance < 0.91 and not self.in_function:
            self.local_array()
        elif chance < 0.95 and not self.in_function:
            self.chosen_array()
        elif not self.in_function:
            self.unpack_call()

    # Device functions

    def pick_function(self):
        if "pick" in self.device:
            return
        self.device["pick"] = True
        body = ["if c:", "    return a", "return b"]
        lines = [
            Line(0, "@cuda.jit(device=True)", "@cuda.jit(device=True)"),
            Line(0, *["def pick(a, b, c):"] * 2),
        ]
        self.functions.append(lines + [Line(1, text, text) for text in body])

    def device_function(self, result: tuple[str, ...]) -> tuple[str, tuple[str, str]]:
        """A function of two numbers with early returns; its name and its parameters' types."""
        key = f"f{len(self.functions)}"
        parameters = (self.random.choice(INTS), self.random.choice(["int64", "float32", "float64", "uint8"]))
        state = self.lines, self.indent, self.variables, self.fixed, self.readable, self.in_function
        self.lines, self.indent, self.readable, self.in_function = [], 1, [], True
        self.variables = {
            name: self.element((name, name), kind) for name, kind in zip("ab", parameters, strict=True)
        }
        self.fixed = [self.variables["a"] if parameters[0] in INTS else self.number_literal(3)]

        def give():
            values = [self.fit(self.number(1), kind) for kind in result]
            self.emit(
                *(
                    f"return {', '.join(side)}"
                    for side in zip(*((v.text, v.explicit) for v in values), strict=True)
                )
            )

        self.suite(2, 2)
        if self.chance(0.7):
            condition = self.condition(1)
            self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
            self.nested(give)
        if self.chance(0.5):
            turn = self.name("k")
            self.emit(f"for {turn} in range(3):")
            self.fixed.append(Value(turn, f"int64({turn})", "int64", 8))
            self.nested(lambda: (self.suite(3, 2), self.early(give)))
            self.fixed.pop()
        give()
        head = [Line(0, *["@cuda.jit(device=True)"] * 2), Line(0, *[f"def {key}(a, b):"] * 2)]
        self.functions.append(head + self.lines)
        self.lines, self.indent, self.variables, self.fixed, self.readable, self.in_function = state
        return key, parameters

    def early(self, give: Callable[[], None]):
        condition = self.condition(1)
        self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
        self.nested(give)

    def call_text(self, key: str, parameters: tuple[str, str], depth: int) -> tuple[str, str]:
        values = [self.fit(self.number(depth + 1), kind) for kind in parameters]
        texts = zip(*((value.text, value.explicit) for value in values), strict=True)
        one, two = (f"{key}({', '.join(side)})" for side in texts)
        return one, two

    def device_call(self, depth: int) -> Value | None:
        if self.in_function:
            return None
        if "one" not in self.device:
            kind = self.random.choice([*INTS, "float32", "float64"])
            self.device["one"] = (*self.device_function((kind,)), kind)
        key, parameters, kind = self.device["one"]
        return self.element(self.call_text(key, parameters, depth), kind)

    def unpack_call(self):
        if "two" not in self.device:
            result = (self.random.choice(INTS), self.random.choice(["float32", "int64", "boolean"]))
            self.device["two"] = (*self.device_function(result), result)
        key, parameters, result = self.device["two"]
        one, two = self.name("u"), self.name("u")
        text, explicit = self.call_text(key, parameters, 1)
        self.emit(f"{one}, {two} = {text}", f"{one}, {two} = {explicit}")
        self.use(self.element((one, one), result[0]))
        self.use(self.element((two, two), result[1]))

    # Threads together: only where all threads of the block come

    def barrier(self):
        if self.chance(0.15):
            which = self.random.choice(["count", "and", "or"])
            condition, name = self.condition(1), self.name("n")
            self.emit(
                f"{name} = cuda.syncthreads_{which}(int32({condition.text}))",
                f"{name} = int32(cuda.syncthreads_{which}(int32({condition.explicit})))",
            )
            self.dirty.clear()
            value = Value(name, name, "int32", 2.0**31)
            if which != "count":
                value = Value(f"({name} != 0)", f"({name} != 0)", "boolean", 1)
            self.use(value)
            return
        self.emit("cuda.syncthreads()")
        self.dirty.clear()

    def shared_array(self, kind: str | None = None) -> str:
        """A shared array that nobody touches now."""
        fitting = [name for name, other in self.shared.items() if kind in (None, other)]
        if fitting and (self.chance(0.6) or len(self.shared) >= 3):
            name = self.random.choice(fitting)
        else:
            name = self.name("s")
            kind = kind or self.random.choice([*INTS, "float32", "float64", "float32", "float16", "boolean"])
            self.shared[name] = kind
        if name in self.dirty:
            self.barrier()
        self.dirty.add(name)
        return name

    def own_place(self) -> tuple[str, str]:
        """An index that every thread has for itself."""
        n = self.threads
        shift = self.random.randrange(1, n)
        forms = [
            ("t", "t"),
            (f"({n - 1} - t)", f"int64(int64({n - 1}) - int64(t))"),
            (f"(t + {shift}) % {n}", f"int64(int64(int64(t) + int64({shift})) % int64({n}))"),
        ]
        if n % 2 == 0:
            forms.append(("(t ^ 1)", "int64(int64(t) ^ int64(1))"))
        return self.random.choice(forms)

    def exchange(self):
        """Every thread writes its place, a barrier, every thread reads any place, a barrier."""
        turns = self.random.choice(["2", "cuda.blockIdx.x + 1", None, None])
        if turns:
            turn = self.name("k")
            name = self.shared_array()
            self.emit(f"for {turn} in range({turns}):")
            self.fixed.append(Value(turn, f"int64({turn})", "int64", 8))
            self.nested(lambda: self.exchange_body(name, True))
            self.fixed.pop()
        elif self.chance(0.25):
            name, condition = self.shared_array(), self.uniform_condition()
            self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
            self.nested(lambda: self.exchange_body(name, True))
        else:
            self.exchange_body(self.shared_array(), self.chance(0.5))

    def exchange_body(self, name: str, closed: bool):
        kind = self.shared[name]
        (place, explicit), value = self.own_place(), self.fit(self.number(1), kind)
        self.emit(f"{name}[{place}] = {value.text}", f"{name}[{explicit}] = {value.explicit}")
        self.barrier()
        self.dirty.add(name)
        self.readable.append((name, kind, self.threads))
        for _ in range(self.random.randint(1, 3)):
            self.random.choice(
                [self.assign, self.assign, lambda: self.output(self.number(0)), lambda: self.branch(2)]
            )()
        self.use(self.load_of(name, kind, self.threads))
        others = [
            other
            for other, k in self.shared.items()
            if k == kind and other != name and other not in self.dirty
        ]
        if others and self.chance(0.5) and name in self.dirty:
            pass
        self.readable.pop()
        if closed:
            self.barrier()

    def two_buffers(self):
        """Two shared arrays, and every thread reads the one it chooses."""
        kind = self.random.choice([*INTS, "float32", "float64"])
        one, two = self.name("s"), self.name("s")
        self.shared[one] = self.shared[two] = kind
        for name in (one, two):
            (place, explicit), value = self.own_place(), self.fit(self.number(1), kind)
            self.emit(f"{name}[{place}] = {value.text}", f"{name}[{explicit}] = {value.explicit}")
        self.barrier()
        self.dirty |= {one, two}
        condition, chosen = self.condition(1), self.name("b")
        if self.chance(0.5):
            self.emit(
                f"{chosen} = {one} if {condition.text} else {two}",
                f"{chosen} = {one} if {condition.explicit} else {two}",
            )
        else:
            self.pick_function()
            self.emit(
                f"{chosen} = pick({one}, {two}, {condition.text})",
                f"{chosen} = pick({one}, {two}, {condition.explicit})",
            )
        self.features.add("chosen array")
        self.readable.append((chosen, kind, self.threads))
        self.use(self.load_of(chosen, kind, self.threads))
        self.assign()
        self.readable.pop()
        if self.chance(0.5):
            self.barrier()
            (place, explicit), value = self.own_place(), self.fit(self.number(1), kind)
            self.emit(f"{chosen}[{place}] = {value.text}", f"{chosen}[{explicit}] = {value.explicit}")
            self.barrier()
            self.dirty |= {one, two}
            self.use(self.load_of(one, kind, self.threads))

    def tree(self):
        """A reduction by halves; integers, so that the order of the sum does not matter."""
        kind = self.random.choice(["int32", "int64", "uint32", "uint64", "int16", "uint8"])
        name, value = self.shared_array(kind), self.fit(self.number(1), kind)
        half = self.name("d")
        n = 1 << (self.threads.bit_length() - 1)
        self.emit(f"{name}[t] = {value.text}", f"{name}[t] = {value.explicit}")
        self.barrier()
        self.emit(f"{half} = {n // 2}", f"{half} = int64({n // 2})")
        self.emit(f"while {half} > 0:")
        self.indent += 1
        self.emit(f"if t < {half}:")
        self.indent += 1
        op = self.random.choice(["+", "^", "+"])
        explicit = f"{name}[t] = {kind}({name}[t] {op} {name}[int64(int64(t) + {half})])"
        self.emit(f"{name}[t] {op}= {name}[t + {half}]", explicit)
        self.indent -= 1
        self.emit("cuda.syncthreads()")
        self.emit(f"{half} //= 2", f"{half} = int64({half} // int64(2))")
        self.indent -= 1
        self.dirty.add(name)
        self.use(self.load_of(name, kind, n))

    def shared_atomics(self):
        """A histogram: order-independent atomics on a shared array between barriers."""
        kind = self.random.choice(["int32", "int64", "uint32", "uint64", "float64"])
        name = self.shared_array(kind)
        start = self.cast(self.number_literal(self.random.randint(0, 5)), kind)
        self.emit(f"{name}[t] = {start.text}", f"{name}[t] = {start.explicit}")
        self.barrier()
        self.atomic(name, kind, min(BINS, self.threads), False)
        self.barrier()
        self.dirty.add(name)
        bound = (float("inf"), None) if kind == "float64" else None
        value = self.load_of(name, kind, min(BINS, self.threads))
        if bound:
            value = value._replace(bound=EXACT[kind][0] * self.threads * 2.0)
        self.use(value)

    def global_atomics(self):
        kind = self.random.choice(["int32", "int64", "uint32", "uint64", "float64"])
        if self.chance(0.5):
            condition = self.condition(1)
            self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
            self.nested(lambda: self.atomic(self.array(f"h_{kind}"), kind, BINS, True))
        else:
            self.atomic(self.array(f"h_{kind}"), kind, BINS, True)

    def atomic(self, name: str, kind: str, length: int, across: bool):
        """Operations whose order does not matter; one operation for one array of the kernel."""
        names = ["add"] if kind == "float64" else ["add", "max", "min", "and_", "or_", "xor"]
        if kind in ("int32", "uint32"):
            names.append("sub")
        if across:
            names = [self.device.setdefault(("atomic", name), self.random.choice(names))]
        operation = self.random.choice(names)
        self.features.add(f"atomic {operation}")
        for _ in range(self.random.randint(1, 2)):
            index, value = self.index(length, 1), self.fit(self.number(1), kind)
            text = f"cuda.atomic.{operation}({name}, {{}}, {{}})"
            self.emit(text.format(index.text, value.text), text.format(index.explicit, value.explicit))

    def tickets(self):
        """exch and cas whose old values do not depend on the order: each cell belongs to one thread, or one
        of many wins and all are counted."""
        kind = self.random.choice(["int32", "int64", "uint32", "uint64"])
        name = self.shared_array(kind)
        zero = f"{kind}(0)"
        self.emit(f"{name}[t] = {zero}")
        self.barrier()
        value, old = self.fit(self.number(1), kind), self.name("u")
        if self.chance(0.5):
            (place, explicit) = self.own_place()
            operation = self.random.choice(["exch", "add", "max", "xor"])
            self.emit(
                f"{old} = cuda.atomic.{operation}({name}, {place}, {value.text})",
                f"{old} = {kind}(cuda.atomic.{operation}({name}, {explicit}, {value.explicit}))",
            )
            self.use(Value(old, old, kind, _range(kind)))
            self.features.add(f"atomic {operation}")
            self.barrier()
            self.dirty.add(name)
            self.use(self.load_of(name, kind, self.threads))
            return
        index, won, count = self.index(BINS, 1), self.name("u"), self.array("h_int32")
        if self.device.setdefault(("atomic", "h_int32"), "add") != "add":
            return
        one = f"{kind}(1)"
        self.emit(
            f"{won} = cuda.atomic.cas({name}, {index.text}, {zero}, {one})",
            f"{won} = {kind}(cuda.atomic.cas({name}, {index.explicit}, {zero}, {one}))",
        )
        self.features.add("atomic cas")
        self.emit(f"if {won} == 0:")
        self.indent += 1
        self.emit(
            f"cuda.atomic.add({count}, {index.text}, int32(1))",
            f"cuda.atomic.add({count}, {index.explicit}, int32(1))",
        )
        self.indent -= 1
        self.dirty.add(name)

    # Warps: only where all lanes of the warp come

    def shuffled_variable(self) -> tuple[str, Value]:
        fitting = [n for n, v in self.variables.items() if v.type in ("int32", "int64", "float32", "float64")]
        if not fitting:
            self.declare("int64")
            fitting = [list(self.variables)[-1]]
        name = self.random.choice(fitting)
        return name, self.variables[name]

    def shuffle(self):
        """With all lanes."""
        self.features.add("warp")
        name, value = self.shuffled_variable()
        kind = self.random.choice(["sync", "xor_sync", "up_sync", "down_sync"])
        if kind == "sync":
            source = self.index(WARP, 1)
        else:
            distance = self.random.choice([1, 2, 4, 8, 16, 3, 5])
            source = self.number_literal(distance)
        mask = self.random.choice(["0xFFFFFFFF", "-1", "0xFFFFFFFF"])
        got = self.name("u")
        self.emit(
            f"{got} = cuda.shfl_{kind}({mask}, {name}, {source.text})",
            f"{got} = {value.type}(cuda.shfl_{kind}({mask}, {name}, {source.explicit}))",
        )
        self.give_back(name, value, value._replace(text=got, explicit=got))

    def give_back(self, name: str, old: Value, got: Value):
        """What a shuffle brought enters the variable that it came from."""
        if old.rough:
            found = self.rough_formula("(({a} + {b}) * {h})", a=old, b=got, h=self.half())
            self.emit(f"{name} = {old.type}({found.text})", f"{name} = {old.type}({found.explicit})")
            return
        found = self.binary(self.random.choice("+-"), old, got)
        self.output(found)
        found = self.fit(found, old.type)
        self.emit(f"{name} = {found.text}", f"{name} = {found.explicit}")

    def vote(self):
        self.features.add("warp")
        which, condition, name = (
            self.random.choice(["all", "any", "eq", "ballot"]),
            self.condition(1),
            self.name("u"),
        )
        kind = "int32" if which == "ballot" else "boolean"
        self.emit(
            f"{name} = cuda.{which}_sync(0xFFFFFFFF, {condition.text})",
            f"{name} = {_cast_name(kind)}(cuda.{which}_sync(0xFFFFFFFF, {condition.explicit}))",
        )
        self.use(Value(name, name, kind, _range(kind)))

    def partial(self):
        """Some lanes go their own way, with the mask that names them."""
        self.features.add("warp")
        n = self.random.randrange(2, WARP)
        forms = [
            (f"lane < {n}", (1 << n) - 1, lambda e: f"({e}) % {n}", FULL ^ ((1 << n) - 1)),
            ("lane % 2 == 0", 0x55555555, lambda e: f"({e}) % 16 * 2", 0xAAAAAAAA),
            ("lane >= 16", 0xFFFF0000, lambda e: f"16 + ({e}) % 16", 0x0000FFFF),
        ]
        condition, mask, source, rest = self.random.choice(forms)
        if self.chance(0.3):
            self.partial_by_ballot()
            return
        self.emit(f"if {condition}:")
        self.nested(lambda: self.partial_body(mask, source, n if "<" in condition else 0))
        if self.chance(0.5):
            self.emit("else:")
            self.nested(lambda: self.vote_of(rest))

    def partial_body(self, mask: int, source: Callable[[str], str], prefix: int):
        name, value = self.shuffled_variable()
        got, index = self.name("u"), self.integer(2)
        if prefix and self.chance(0.4):
            which, distance = self.random.choice(["up", "down"]), self.random.randint(1, prefix - 1)
            self.emit(
                f"{got} = cuda.shfl_{which}_sync({mask:#x}, {name}, {distance})",
                f"{got} = {value.type}(cuda.shfl_{which}_sync({mask:#x}, {name}, {distance}))",
            )
            inside = f"lane + {distance} < {prefix}" if which == "down" else f"lane >= {distance}"
            self.emit(f"{got} = {got} if {inside} else {name}")
        else:
            index = self.binary("&", index, self.number_literal(1023))
            index = index if index is not None and index.type == "int64" else self.number_literal(5)
            self.emit(
                f"{got} = cuda.shfl_sync({mask:#x}, {name}, {source(index.text)})",
                f"{got} = {value.type}(cuda.shfl_sync({mask:#x}, {name}, {source(index.explicit)}))",
            )
        self.give_back(name, value, value._replace(text=got, explicit=got))
        if self.chance(0.3):
            self.vote_of(mask)

    def vote_of(self, mask: int):
        which, condition, name = (
            self.random.choice(["all", "any", "ballot"]),
            self.condition(1),
            self.name("u"),
        )
        kind = "int32" if which == "ballot" else "boolean"
        self.emit(
            f"{name} = cuda.{which}_sync({mask:#x}, {condition.text})",
            f"{name} = {_cast_name(kind)}(cuda.{which}_sync({mask:#x}, {condition.explicit}))",
        )
        self.use(Value(name, name, kind, _range(kind)))

    def partial_by_ballot(self):
        """The lanes for which a condition holds take the value of the first of them."""
        condition, go, mask, got = self.condition(1), self.name("c"), self.name("m"), self.name("u")
        self.emit(f"{go} = {condition.text}", f"{go} = {condition.explicit}")
        self.emit(
            f"{mask} = cuda.ballot_sync(0xFFFFFFFF, {go})",
            f"{mask} = int32(cuda.ballot_sync(0xFFFFFFFF, {go}))",
        )
        self.emit(f"if {go}:")

        def body():
            name, value = self.shuffled_variable()
            self.emit(
                f"{got} = cuda.shfl_sync({mask}, {name}, cuda.ffs({mask}) - 1)",
                f"{got} = {value.type}(cuda.shfl_sync({mask}, {name}, int64(cuda.ffs(uint32({mask}))) - int64(1)))",
            )
            self.give_back(name, value, value._replace(text=got, explicit=got))

        self.nested(body)

    def warp_exchange(self):
        """Lanes of one warp, or of half a warp, through shared memory with syncwarp instead of a barrier."""
        self.features.add("warp")
        name = self.shared_array()
        if self.chance(0.5):
            self.warp_exchange_body(name, WARP, 0, "cuda.syncwarp()")
            return
        self.emit("if lane < 16:")
        self.nested(lambda: self.warp_exchange_body(name, 16, 0, "cuda.syncwarp(0xFFFF)"))
        if self.chance(0.6):
            self.emit("else:")
            self.nested(lambda: self.warp_exchange_body(name, 16, 16, "cuda.syncwarp(0xFFFF0000)"))

    def warp_exchange_body(self, name: str, lanes: int, first: int, meet: str):
        kind = self.shared[name]
        for again in range(self.random.randint(1, 2)):
            if again:
                self.emit(meet)
            value = self.fit(self.number(1), kind)
            self.emit(f"{name}[t] = {value.text}", f"{name}[t] = {value.explicit}")
            self.emit(meet)
            index = self.index(lanes, 1)
            base = f"t // 32 * 32 + {first}"
            text = f"{name}[{base} + {index.text}]", f"{name}[{base} + {index.explicit}]"
            got = self.name("u")
            self.emit(f"{got} = {text[0]}", f"{got} = {text[1]}")
            self.use(self.element((got, got), kind))

    # The whole

    def phase(self):
        r = self.random
        choices = [self.exchange] * 4 + [self.tree, self.shared_atomics, self.tickets, self.two_buffers]
        choices += [self.global_atomics] * 2 + [lambda: self.suite(0, 3)] * 3
        if self.threads % WARP == 0:
            choices += [self.shuffle] * 2 + [
                self.vote,
                self.partial,
                self.partial,
                self.warp_exchange,
                self.warp_exchange,
            ]
        r.choice(choices)()

    def tail(self):
        """After the last barrier, where threads may leave."""
        self.suite(0, 2)
        if self.chance(0.4):
            condition = self.condition()
            self.emit(f"if {condition.text}:", f"if {condition.explicit}:")
            self.nested(lambda: (self.statement(3), self.emit("return")))
            self.suite(0, 2)

    def kernel(self, seed: int) -> Kernel:
        bx = self.block[0]
        if len(self.block) == 2:
            self.emit(
                f"t = cuda.threadIdx.x + cuda.threadIdx.y * {bx}",
                f"t = int64(int64(cuda.threadIdx.x) + int64(cuda.threadIdx.y) * int64({bx}))",
            )
            thread = Value("t", "t", "int64", self.threads)
        else:
            self.emit("t = cuda.threadIdx.x", "t = int32(cuda.threadIdx.x)")
            thread = Value("t", "t", "int32", self.threads)
        whole = f"cuda.blockIdx.x * {self.threads} + t"
        if len(self.block) == 1 and self.chance(0.5):
            whole = "cuda.grid(1)"
        self.emit(f"i = {whole}", f"i = int64({whole})")
        self.emit("lane = t % 32", "lane = int64(int64(t) % int64(32))")
        number = Value("i", "i", "int64", self.threads * self.grid)
        self.fixed = [thread, number, Value("lane", "lane", "int64", WARP)]
        for kind in self.random.sample([*INTS, *FLOATS, "boolean", "int64"], self.random.randint(3, 5)):
            self.declare(kind)
        for kind in self.random.sample(["float32", "float64"], self.random.randint(0, 2)):
            self.declare(kind, rough=True)
        for _ in range(self.random.randint(1, 2)):
            self.phase()
        self.tail()
        self.store_variables()
        return self.finished(seed)

    def store_variables(self):
        """Every variable at the end; one slot for one variable, or a sum of several."""
        slots: dict[str, int] = {}
        for name, value in self.variables.items():
            if value.rough:
                target = f"z_{value.type}"
            elif value.is_float:
                target = "y_float64"
            else:
                target = "y_uint64" if value.type[0] == "u" else "y_int64"
            slot = slots.get(target, 0)
            slots[target] = slot + 1
            if slot < {"z_float32": 3, "z_float64": 3, **SLOTS}[target]:
                place, kind = f"{self.array(target)}[i, {{}}]", target[2:]
                self.emit(
                    f"{place.format(slot)} = {name}", f"{place.format(f'int64({slot})')} = {kind}({name})"
                )

    def finished(self, seed: int) -> Kernel:
        arrays = tuple(name for name in ARRAYS if name in self.used)
        shared = [
            Line(1, *[f"{name} = cuda.shared.array({self.threads}, {_cast_name(kind)})"] * 2)
            for name, kind in self.shared.items()
        ]
        lines = [
            line for function in self.functions for line in [*function, Line(0, "", ""), Line(0, "", "")]
        ]
        lines += [
            Line(0, *["@cuda.jit"] * 2),
            Line(0, *[f"def kernel({', '.join(arrays)}):"] * 2),
            *shared,
            *self.lines,
        ]

        def text(side: str) -> str:
            return HEAD + "".join(
                ("    " * line.indent + getattr(line, side)).rstrip() + "\n" for line in lines
            )

        return Kernel(
            seed,
            text("text"),
            text("explicit"),
            self.grid,
            self.block,
            self.threads,
            arrays,
            frozenset(self.features),
        )


def kernel(seed: int) -> Kernel:
    """The random kernel of this seed."""
    return Writer(seed).kernel(seed)


def mutants(original: Kernel) -> list[Mutant]:
    """The kernel with one barrier or syncwarp removed, or with one index shifted by one: at most one each."""
    rng = random.Random(original.seed)
    found = []
    for kind, call in (("barrier", "cuda.syncthreads()"), ("syncwarp", "cuda.syncwarp(")):
        lines = original.source.splitlines()
        places = [number for number, line in enumerate(lines) if line.strip().startswith(call)]
        if not places:
            continue
        place = rng.choice(places)
        texts = []
        for text in (original.source, original.explicit):
            lines = text.splitlines()
            lines[place] = lines[place].replace(lines[place].strip(), "pass")
            texts.append("\n".join(lines) + "\n")
        change = f"line {place + 1} removed"
        found.append(Mutant(replace(original, source=texts[0], explicit=texts[1]), original, kind, change))
    shifted = _shifted(original, rng)
    return found + ([shifted] if shifted else [])


def _subscripts(tree: ast.Module) -> list[ast.Subscript]:
    """The subscripts of arrays in the order of the text; not those of tuples."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and not isinstance(n.slice, ast.Slice)]
    found = [n for n in found if not (isinstance(n.value, ast.Name) and n.value.id.startswith("p"))]
    return sorted(found, key=lambda n: (n.lineno, n.end_lineno, n.end_col_offset))


def _shifted(original: Kernel, rng: random.Random) -> Mutant | None:
    trees = [ast.parse(original.source), ast.parse(original.explicit)]
    lists = [_subscripts(tree) for tree in trees]
    if "+=" in original.source or not lists[0]:  # the explicit text repeats the place of an augmented store
        lists = [[n for n in found if n.lineno not in _augmented(trees[0])] for found in lists]
    if len(lists[0]) != len(lists[1]) or not lists[0]:
        return None
    place = rng.randrange(len(lists[0]))
    texts = []
    for tree, found in zip(trees, lists, strict=True):
        node = found[place]
        index = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
        moved = ast.BinOp(index, ast.Add(), ast.Constant(1))
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts[-1] = moved
        else:
            node.slice = moved
        texts.append(ast.unparse(ast.fix_missing_locations(tree)) + "\n")
    change = f"line {lists[0][place].lineno}: {ast.unparse(lists[0][place])}"
    return Mutant(replace(original, source=texts[0], explicit=texts[1]), original, "index", change)


def _augmented(tree: ast.Module) -> set[int]:
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
