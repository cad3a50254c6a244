"""Random statements that any thread may execute for itself: assignments, branches, loops, arrays, calls."""

from collections.abc import Callable

from .random_values import (
    COLUMNS,
    FLOATS,
    INTS,
    LENGTH,
    OPERATORS,
    ROWS,
    STORED_INT64,
    Expressions,
    Line,
    Value,
    cast_name,
    range_of,
    typed,
    unified,
)

__all__ = ["SLOTS", "Statements"]

SLOTS = {"y_int64": 6, "y_uint64": 4, "y_float64": 5, "y_float32": 3, "y_int16": 3, "y_uint8": 3}


class Statements(Expressions):
    """Writes statements."""

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

    def assign(self):
        name = self.random.choice(list(self.variables))
        old = self.variables[name]
        if old.rough:
            value = self.rough(0, old.rough == "float64")
            self.emit(f"{name} = {old.type}({value.text})", f"{name} = {old.type}({value.explicit})")
            return
        if old.type == "int64" and self.chance(0.3):
            value, op = self.number(1), self.random.choice("+-*")
            value = self.tame(value, 2.0**20) if value.is_int else value
            found = self.binary(op, old, value)
            if found is not None and found.type == "int64":
                self.emit(f"{name} {op}= {value.text}", f"{name} = {found.explicit}")
                self.emit(f"{name} %= 1000003", f"{name} = int64({name} % int64(1000003))")
                return
        value = self.fit(self.number(0), old.type)
        self.emit(f"{name} = {value.text}", f"{name} = {value.explicit}")

    def swap(self):
        """A tuple on both sides."""
        names = [name for name, value in self.variables.items() if not value.rough]
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
        now = Value(name, name, kind, bound if kind in FLOATS else range_of(kind), None)
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
        if kind == "int64" and value.is_int:
            value = self.tame(value, STORED_INT64)
        place = f"{self.array(name)}[i, {slot}]"
        explicit_place = f"{name}[i, int64({slot})]"
        plus = self.chance(0.3) and value.is_int and (kind == "int64" or kind[0] == value.type[0] == "u")
        plus = plus and kind in ("int64", "uint64")
        if plus:
            self.emit(
                f"{place} += {value.text}",
                f"{explicit_place} = {kind}({explicit_place} + {kind}({value.explicit}))",
            )
            return
        given = self.whole(value) if kind in INTS else value.explicit
        self.emit(f"{place} = {value.text}", f"{explicit_place} = {kind}({given})")

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
        self.emit(f"{name} = cuda.local.array({length}, {cast_name(kind)})")
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
        condition, name, how = self.condition(1), self.name("b"), self.random.random()
        if how < 0.3:
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
