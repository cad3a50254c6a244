"""Random Numba CUDA kernels as source text: well defined by construction, each in two spellings.

`kernel(seed)` writes one. Its `source` leaves the types to Numba; its `explicit` text says the same with each
conversion written out, asked of Numba's own typing, so that a simulator with NumPy's scalars computes the
same. No thread races with another, every index is within its array, every collective gets the lanes that its
mask names, and an element of floating point is either exact whatever the compiler fuses or never decides
anything (`rough`: compared with a tolerance).
"""

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .random_statements import SLOTS, Statements
from .random_values import (
    COLUMNS,
    EXACT,
    FLOATS,
    INTS,
    LENGTH,
    ROWS,
    STORED_INT64,
    Line,
    Value,
    bits,
    cast_name,
    range_of,
)

__all__ = ["INPUTS", "Kernel", "Mutant", "kernel", "mutants"]

WARP, BINS = 32, 16
FULL = 0xFFFFFFFF

HEAD = """import math

from numba import cuda
from numba.cuda.types import bool_, float16, float32, float64
from numba.cuda.types import int8, int16, int32, int64, uint8, uint16, uint32, uint64

"""


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

    low, high = (-int(STORED_INT64), int(STORED_INT64)) if name == "int64" else (info.min, info.max)

    def make(rng, _):
        wide = rng.integers(low, high, LENGTH, dtype=name, endpoint=True)
        small = rng.integers(max(info.min, -20), 21, LENGTH).astype(name)
        edge = rng.choice(np.array([low, low + 1, high, high - 1], name), LENGTH)
        return np.choose(rng.choice(3, LENGTH, p=[0.35, 0.5, 0.15]), [wide, small, edge]).astype(name)

    return make


def _dyadic(name: str, bound: int, grain: int):
    return lambda rng, _: (
        rng.integers(-bound * 2**grain, bound * 2**grain, LENGTH, endpoint=True) / 2.0**grain
    ).astype(name)


def _zeros(name: str, *shape: int):
    return lambda _, n: np.zeros((n, *shape), name)


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
    **{f"h_{name}": lambda _, n, name=name: np.zeros(BINS, name) for name in INTS if bits(name) > 16},
    "h_float64": lambda _, n: np.zeros(BINS),
}
INPUTS = frozenset(name for name in ARRAYS if name[0] in "xra")


class Writer(Statements):
    """Writes what threads do together, and the whole kernel."""

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
        value = self.load_of(name, kind, n)
        self.use(value._replace(bound=value.bound * n) if kind == "int64" else value)

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
        value = self.load_of(name, kind, min(BINS, self.threads))
        if kind == "float64":
            value = value._replace(bound=EXACT[kind][0] * self.threads * 2.0)
        if kind == "int64":
            value = value._replace(bound=STORED_INT64 * self.threads * 4)
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
            self.use(Value(old, old, kind, range_of(kind)))
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
            f"{name} = {cast_name(kind)}(cuda.{which}_sync(0xFFFFFFFF, {condition.explicit}))",
        )
        self.use(Value(name, name, kind, range_of(kind)))

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
            f"{name} = {cast_name(kind)}(cuda.{which}_sync({mask:#x}, {condition.explicit}))",
        )
        self.use(Value(name, name, kind, range_of(kind)))

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
            first = f"int64(cuda.ffs(uint32({mask}))) - int64(1)"
            self.emit(
                f"{got} = cuda.shfl_sync({mask}, {name}, cuda.ffs({mask}) - 1)",
                f"{got} = {value.type}(cuda.shfl_sync({mask}, {name}, {first}))",
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
            Line(1, *[f"{name} = cuda.shared.array({self.threads}, {cast_name(kind)})"] * 2)
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
