"""Random kernels with divergent control flow, as source text."""

import random

__all__ = ["source"]

HEAD = """from numba import cuda, int64


@cuda.jit(device=True)
def helper(p, q, r=2):
    if p % 3 == 0:
        return q + 1
    for t in range(p % 4):
        q += t
        if q % 5 == 0:
            return p - q
    return p + q * r


@cuda.jit(device=True)
def pair(p, q):
    if p % 2:
        return p, q
    return q % 11, p


@cuda.jit
def kernel(x, y):
    i = cuda.grid(1)
    a = x[i]
    b = i * 3
    c = 1
    s = cuda.shared.array(48, int64)
    t = cuda.threadIdx.x
    for r in range(2 * cuda.blockIdx.x + 1):
        s[(t + r) % 48] = a
        cuda.syncthreads()
        b = (b + s[(5 * t + r) % 48]) % 1000
        cuda.syncthreads()
"""
TAIL = """    y[i, 0] += a
    y[i, 1] += b
    y[i, 2] += c
"""


class Writer:
    """Writes statements over the variables a, b, c of thread i; x is read, row i of y is written."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0

    def expression(self, depth: int = 0) -> str:
        def deeper():
            return self.expression(depth + 1)

        choices = [lambda: self.random.choice("abc")] * 3
        choices += [lambda: str(self.random.randint(0, 7)), lambda: "i"]
        if depth < 3:
            choices += [
                lambda: f"x[({deeper()}) % 16]",
                lambda: f"min({deeper()}, {deeper()})",
                lambda: f"(({deeper()} {self.random.choice('+-*')} {deeper()}) % 1000)",
                lambda: f"(({deeper()} {self.random.choice('+-*')} {deeper()}) % 1000)",
            ]
        if depth < 2:
            choices += [
                lambda: f"({deeper()} if {self.condition(depth + 1)} else {deeper()})",
                lambda: f"helper({deeper()}, {deeper()}) % 1000",
                lambda: f"helper({deeper()}, {deeper()}, r=3) % 1000",
            ]
        return self.random.choice(choices)()

    def condition(self, depth: int = 0) -> str:
        chance = self.random.random()
        if depth < 2 and chance < 0.15:
            word = self.random.choice(["and", "or"])
            return f"({self.condition(depth + 1)} {word} {self.condition(depth + 1)})"
        if depth < 2 and chance < 0.2:
            return f"not {self.condition(depth + 1)}"
        if chance < 0.27:
            return "0 < a < 500"
        modulus, sign = self.random.randint(2, 5), self.random.choice(["<", "==", "!=", ">"])
        return f"{self.expression(depth + 1)} % {modulus} {sign} {self.random.randint(0, 2)}"

    def write(self, indent: int, text: str):
        self.lines.append("    " * indent + text)

    def suite(self, indent: int, in_loop: bool):
        before = len(self.lines)
        for _ in range(self.random.randint(1, 4)):
            self.statement(indent, in_loop)
        if len(self.lines) == before:
            self.write(indent, "pass")

    def statement(self, indent: int, in_loop: bool):
        chance = self.random.random()
        if chance < 0.3:
            self.write(indent, f"{self.random.choice('abc')} = {self.expression()}")
        elif chance < 0.42:
            self.write(indent, f"{self.random.choice('abc')} += {self.expression()}")
        elif chance < 0.5:
            self.write(indent, f"y[i, ({self.expression()}) % 4] += {self.expression()}")
        elif chance < 0.54:
            self.write(indent, f"a, b = {self.expression()}, {self.expression()}")
        elif chance < 0.57:
            self.write(indent, f"b, c = pair({self.expression()}, {self.expression()})")
        elif chance < 0.7 and indent < 5:
            self.write(indent, f"if {self.condition()}:")
            self.suite(indent + 1, in_loop)
            if self.random.random() < 0.5:
                self.write(indent, "else:")
                self.suite(indent + 1, in_loop)
        elif chance < 0.82 and indent < 4:
            self.for_loop(indent)
        elif chance < 0.87 and indent < 4:
            self.while_loop(indent)
        elif chance < 0.94 and in_loop:
            self.write(indent, f"if {self.condition()}:")
            self.write(indent + 1, self.random.choice(["break", "continue"]))
        elif chance < 0.96 and indent > 1:
            self.write(indent, f"if {self.condition()}:")
            self.write(indent + 1, "return")

    def for_loop(self, indent: int):
        variable, self.loops = f"k{self.loops % 3}", self.loops + 1
        fixed, own = str(self.random.randint(1, 4)), f"{self.expression(2)} % 4"
        bounds = self.random.choice([fixed, own, "i % 3, 5", "4, i % 4, -1", "0, 6, i % 2 + 1"])
        self.write(indent, f"for {variable} in range({bounds}):")
        self.suite(indent + 1, True)
        self.write(indent + 1, f"c = (c + {variable}) % 100")

    def while_loop(self, indent: int):
        variable, self.loops = f"w{self.loops}", self.loops + 1
        self.write(indent, f"{variable} = ({self.expression(2)}) % 5")
        self.write(indent, f"while {variable} > 0:")
        self.write(indent + 1, f"{variable} -= 1")
        self.suite(indent + 1, True)


def source(seed: int) -> str:
    """A module with a kernel(x, y): x is int64 [96], y int64 [96, 4], 96 threads."""
    writer = Writer(seed)
    writer.suite(1, False)
    writer.suite(1, False)
    return HEAD + "".join(line + "\n" for line in writer.lines) + TAIL
