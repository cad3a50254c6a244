"""Random expressions of Numba CUDA kernels, each in two spellings.

`text` leaves the types to Numba; `explicit` says the same with each conversion written out, asked of Numba's
own typing, so that a simulator with NumPy's scalars computes the same. A float is either exact, whatever the
compiler fuses, or `rough`: its last bits are compared with a tolerance and decide nothing.
"""

import functools
import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import cuda, types
from numba.cuda.descriptor import cuda_target

__all__ = [
    "COLUMNS",
    "EXACT",
    "FLOATS",
    "INTS",
    "LENGTH",
    "OPERATORS",
    "ROWS",
    "STORED_INT64",
    "Expressions",
    "Line",
    "Value",
    "bits",
    "cast_name",
    "range_of",
    "typed",
    "unified",
]

LENGTH, ROWS, COLUMNS = 64, 8, 16  # of the input arrays
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = {"float16": 11, "float32": 24, "float64": 53}  # bits of the significand
LIMIT = {"float16": 3e4, "float32": 1e30, "float64": 1e30}
LARGEST_INT = 2.0**62  # a float below it may become an int64; no signed sum or product reaches it
STORED_INT64 = 2.0**40  # variables and arrays of int64 hold no more

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


def cast_name(kind: str) -> str:
    return "bool_" if kind == "boolean" else kind


def bits(kind: str) -> int:
    return int(kind.lstrip("uint"))


def range_of(kind: str) -> float:
    """A bound of the absolute values of an integer type."""
    if kind == "boolean":
        return 1.0
    return 2.0 ** (bits(kind) - kind.startswith("int"))


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
    constant: bool = False  # Python folds operations on such, without a limit of 64 bits

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


EXACT = {"float16": (32, 2), "float32": (64, 4), "float64": (1024, 8)}
"""Variables and arrays of a float type hold multiples of 2**-grain up to a bound: (bound, grain)."""


class Expressions:
    """Writes expressions over what is known at a place of a kernel."""

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
            return Value(repr(number), f"float64({number!r})", "float64", abs(number), grain, constant=True)
        number = r.choice([r.randint(0, 9), r.randint(-9, 300), r.randint(-(2**40), 2**40), 2**31, -(2**31)])
        if self.chance(0.8):
            number = r.randint(-9, 20)
        text = str(number) if number >= 0 else f"({number})"
        return Value(text, f"int64({number})", "int64", float(abs(number)), constant=True)

    def cast(self, value: Value, kind: str) -> Value | None:
        """`kind(value)`, None where that is undefined or overflows."""
        text, explicit = f"{cast_name(kind)}({value.text})", f"{cast_name(kind)}({value.explicit})"
        if value.type == kind:
            return value._replace(text=text, explicit=explicit, constant=False)
        if kind == "boolean" or value.rough:
            return None
        if kind in INTS:
            if value.is_float:
                if value.bound >= LARGEST_INT:
                    return None
                whole = self.whole(value)
                explicit = f"{kind}({whole})"
                if value.bound >= 2 ** (bits(kind) - 1) - 1 or kind.startswith("u") or self.chance(0.3):
                    text, explicit = f"{kind}(int64({value.text}))", f"{kind}(int64({whole}))"
            elif kind == "int16" and value.text.startswith("(-") and not value.constant:
                return None  # the assembler does not wrap a negative int16
            return Value(
                text, explicit, kind, min(value.bound, range_of(kind)) if kind[0] == "i" else range_of(kind)
            )
        if value.bound >= LIMIT[kind]:
            return None
        grain = value.grain
        if grain is not None and value.bound * 2.0**grain > 2.0 ** FLOATS[kind]:
            grain = None
        return Value(text, explicit, kind, value.bound * 1.001, grain, value.product)

    @staticmethod
    def whole(value: Value) -> str:
        """The explicit text of a number that becomes an integer: Numba rounds a float16 to the nearest."""
        if value.type == "float16":
            return f"int64(round(float32({value.explicit})))"
        return value.explicit

    def tame(self, value: Value, limit: float = 2.0**30) -> Value:
        """An integer that fits, or its rest."""
        if value.bound <= limit:
            return value
        divisor = self.number_literal(self.random.choice([1000, 65537, 1000003]))
        return self._binary("%", value, divisor)

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
            if found and kind == "int64":
                found = self.tame(found, STORED_INT64)
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
        return Value(str(number), f"int64({number})", "int64", float(number), constant=True)

    def binary(self, op: str, a: Value, b: Value) -> Value | None:
        """`a op b` with Numba's types; None where Numba refuses it or the value would not be defined."""
        found = self._binary(op, a, b)
        if found is None or not (a.constant and b.constant) or found.type == "boolean":
            return found
        bound = found.bound
        if op == "<<":
            bound = a.bound * 2.0 ** min(b.bound, 64)
        elif op in ("&", "|", "^", ">>", "//"):
            bound = 2 * max(a.bound, b.bound)
        return found._replace(constant=True, bound=bound) if bound < LARGEST_INT else None

    def _binary(self, op: str, a: Value, b: Value) -> Value | None:
        found = typed(OPERATORS[op], a.type, b.type)
        if found is None or a.rough or b.rough:
            return None
        (left, right), kind = found
        text = f"({a.text} {op} {b.text})"
        if op in ("<", "<=", "==", "!=", ">", ">="):
            return Value(
                text,
                f"({cast_name(left)}({a.explicit}) {op} {cast_name(right)}({b.explicit}))",
                "boolean",
                1,
            )
        to = cast_name(kind)
        if op == "/" and not a.is_float and not b.is_float and left != right:
            return None
        explicit = f"{to}({to}({a.explicit}) {op} {to}({b.explicit}))"
        if kind == "boolean":
            return Value(text, explicit, kind, 1)
        if kind in INTS:
            bound = self.bound_of_integers(op, a, b) if kind[0] == "i" or op == "%" else range_of(kind)
            if kind[0] == "i" and op in "+-*" and bound >= LARGEST_INT:  # signed overflow is undefined
                return self._binary(op, self.tame(a), self.tame(b))
            return Value(text, explicit, kind, min(bound, range_of(kind)))
        a, b = self.cast(a, kind), self.cast(b, kind)
        if a is None or b is None or (kind == "float16" and op in ("/", "//", "%", "**")):
            return None
        return self.float_result(op, a, b, text, explicit, kind)

    @staticmethod
    def bound_of_integers(op: str, a: Value, b: Value) -> float:
        if op in "+-":
            return a.bound + b.bound
        if op == "*":
            return a.bound * b.bound
        if op == "%":
            return b.bound
        if op in ("//", ">>"):
            return a.bound + 1
        if op == "&" and b.constant and not b.text.startswith("(-"):
            return b.bound
        if op in "&|^":
            return 2 * max(a.bound, b.bound)
        return a.bound * 2.0**b.bound if op == "<<" and b.bound < 20 else 2.0**63

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
        elif op in ("//", "%"):
            if a.grain is None or b.grain is None:
                return None  # a GPU rounds the quotient, and the compiler counts on the sign of the rest
            grain = max(a.grain, b.grain)
            if 4 * max(a.bound, b.bound) * 2.0**grain > significand:
                return None
            bound, grain = (b.bound, grain) if op == "%" else (a.bound * 2**12 + 1, 0)
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
        return Value(text, f"{kind}({name}({wide}))", kind, range_of(kind) if kind in INTS else 0)

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
            return Value(*text, kind, STORED_INT64 if kind == "int64" else range_of(kind))
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
            inner = self.call(abs, "abs", value) if value.type != "int16" else None
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
            return found._replace(bound=value.bound + 1) if found and value.is_float else None
        if which == 5:
            sign = self.number(depth + 1)
            if sign.type in ("boolean", "float16") or sign.is_int or value.is_int:
                return None
            found = self.call(math.copysign, "math.copysign", value, sign)
            return found and found._replace(bound=value.bound, grain=value.grain, product=True)
        if which == 6:
            if value.type == "int16":
                return None  # as a negative one
            found = self.call(abs, "abs", value)
            return found and found._replace(bound=value.bound, grain=value.grain, product=value.product)
        if which == 7:
            name = self.random.choice(["int", "float"])
            if value.bound >= LARGEST_INT and name == "int":
                return None
            found = self.call({"int": int, "float": float}[name], name, value)
            if found is None:
                return None
            if found.is_int:
                return found._replace(bound=min(value.bound + 1, found.bound))
            return self.cast(value, "float64")._replace(text=found.text, explicit=found.explicit)
        return self.bit_function(value)

    def bit_function(self, value: Value) -> Value | None:
        name = self.random.choice(["popc", "clz", "ffs", "brev"])
        if not value.is_int or bits(value.type) < 32:
            return None
        found = typed(getattr(cuda, name), value.type)
        if found is None or (found[0][0] != value.type and name != "brev"):
            return None
        if bits(found[0][0]) == 64 and name != "popc":
            self.features.add(f"{name} of 64 bits")
        kind = found[1]
        given = found[0][0].replace("uint", "int").replace("int", "uint")
        return Value(
            f"cuda.{name}({value.text})",
            f"{kind}(cuda.{name}({given}({value.explicit})))",
            kind,
            range_of(kind),
        )

    def unary(self, depth: int) -> Value | None:
        value = self.number(depth + 1)
        op = "~" if value.type != "boolean" and self.chance(0.4) else "-"
        found = typed(operator.invert if op == "~" else operator.neg, value.type)
        if found is None:
            return None
        kind = found[1]
        if value.type == "int16" and op == "-" and value.bound >= 2**15:
            return None  # the assembler keeps -(-32768) in more than 16 bits
        own = kind if value.type == "boolean" else value.type  # an integer changes before it is widened
        text, explicit = f"({op}{value.text})", f"{kind}({op}{own}({value.explicit}))"
        bound = range_of(kind) if kind[0] == "u" else value.bound + 1
        return Value(text, explicit, kind, bound, value.grain, value.product, constant=value.constant)

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
            a = self.unknown(self.leaf(depth))
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
            if b.constant:
                a = self.unknown(a)
            found = self.binary(self.random.choice(["<", "<=", "==", "!=", ">", ">="]), a, b)
            if found is not None:
                return found
        return self.binary("<", self.fixed[0], self.number_literal(self.random.randrange(1, self.threads)))

    def unknown(self, value: Value) -> Value:
        """A value that Numba does not know when it compiles: where it does, it types only one side."""
        if not value.constant:
            return value
        known = [
            other for other in (*self.variables.values(), *self.fixed) if not (other.rough or other.constant)
        ]
        return self.random.choice(known)

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

    def device_call(self, depth: int) -> Value | None:
        """A call of a device function, where there is one."""
        raise NotImplementedError
