"""Numba's types for numbers: every operator on every pair of types, asked of Numba; and values that wrap."""

import builtins
import linecache
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, float32, int8, int32, int64, uint8, uint32, uint64
from numba.cuda import cudadecl, types
from numba.cuda.descriptor import cuda_target

from flashcore_numba.run.compiler import why_not
from flashcore_numba.simulator import Unsupported, simulate
from flashcore_numba.simulator.arithmetic import Arithmetic
from flashcore_numba.simulator.rules import char_of, convert
from flashcore_numba.simulator.vecmath import function

KINDS = {"bool": "?", "int": "8 16 32 64", "uint": "8 16 32 64", "float": "16 32 64"}
NUMBERS = ["bool", *(f"{kind}{bits}" for kind in list(KINDS)[1:] for bits in KINDS[kind].split())]
PAIRS = [(a, b) for a in NUMBERS for b in NUMBERS]
OPERATORS = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "divide",
    operator.floordiv: "floor_divide",
    operator.mod: "modulo",
    operator.and_: "bit_and",
    operator.or_: "bit_or",
    operator.xor: "bit_xor",
    operator.lshift: "left_shift",
    operator.rshift: "right_shift",
    operator.pow: "power",
    operator.lt: "lt",
    operator.eq: "eq",
}
FUNCTIONS = (builtins.min, builtins.max, math.fmod, math.copysign, math.atan2, math.hypot, builtins.divmod)
UNARY_OPERATORS = {operator.neg: "negative", operator.pos: "positive", operator.invert: "invert"}
UNARY_FUNCTIONS = (
    *(builtins.abs, builtins.int, builtins.float, builtins.bool, builtins.round, math.sqrt, math.exp),
    *(math.sin, math.tan, math.erf, math.floor, math.ceil, math.trunc, math.fabs, math.isnan, math.log2),
    *(math.gamma, math.degrees, np.exp, np.floor, np.abs, np.sqrt),
)


@pytest.fixture(scope="module")
def numba_type():
    """The type of a function's result for these types, as NumPy's character; None where Numba has none."""
    context = cuda_target.typing_context
    context.refresh()
    cuda_target.target_context.refresh()

    def ask(func, *names):
        kinds = [types.boolean if name == "bool" else getattr(types, name) for name in names]
        try:
            found = context.resolve_function_type(func, tuple(kinds), {}).return_type
        except Exception:
            return None
        found = getattr(found, "dtype", found)  # a tuple of two
        return np.dtype(str(found)).char

    return ask


def ours(compute, *names):
    try:
        value = compute(*(np.ones(2, name) for name in names))
    except TypeError:
        return None
    return char_of(value[0] if isinstance(value, tuple) else value)


@pytest.mark.parametrize("func", OPERATORS)
def test_result_types_of_operators(func, numba_type):
    lanes = object.__new__(Arithmetic)
    for a, b in PAIRS:
        if func is operator.pow and (a, b) == ("bool", "int32"):
            continue  # the one pair where Numba takes a float32 for the base
        assert ours(getattr(lanes, OPERATORS[func]), a, b) == numba_type(func, a, b), (a, b)


@pytest.mark.parametrize("func", FUNCTIONS)
def test_result_types_of_functions(func, numba_type):
    for a, b in PAIRS:
        if func in (min, max) and {a, b} == {"bool", "float16"}:
            continue  # Numba fails there
        assert ours(function(func), a, b) == numba_type(func, a, b), (a, b)


@pytest.mark.parametrize("func", [*UNARY_OPERATORS, *UNARY_FUNCTIONS])
def test_result_types_of_one_operand(func, numba_type):
    compute = getattr(Arithmetic, UNARY_OPERATORS[func]) if func in UNARY_OPERATORS else function(func)
    for name in NUMBERS:
        assert ours(compute, name) == numba_type(func, name), name


def test_what_two_branches_unify_to(numba_type):
    """min has the type that both fit in, and so has a variable with two assignments: NumPy's promotion."""
    for a, b in PAIRS:
        if {a, b} != {"bool", "float16"}:
            assert np.promote_types(a, b).char == numba_type(min, a, b)


EDGES = [
    0,
    1,
    2,
    3,
    7,
    31,
    100,
    -1,
    -2,
    -100,
    127,
    -128,
    255,
    2**15,
    2**31 - 1,
    -(2**31),
    2**63 - 1,
    -(2**63),
]


def machine(value: int, signed: bool) -> int:
    value %= 1 << 64
    return value - (1 << 64) if signed and value >> 63 else value


def exact(symbol, a: int, b: int, signed: bool):
    """The operation on Python's integers, wrapped to 64 bits at the end; None where it has no value."""
    if symbol in ("//", "%") and (b == 0 or (a, b) == (-(2**63), -1)):
        return None
    if symbol in ("<<", ">>") and not 0 <= b < 64:
        return None
    return machine(eval(f"a {symbol} b", {"a": a, "b": b}), signed)


SYMBOLS = {"+": "add", "-": "subtract", "*": "multiply", "//": "floor_divide", "%": "modulo"}
SYMBOLS |= {"&": "bit_and", "|": "bit_or", "^": "bit_xor", "<<": "left_shift", ">>": "right_shift"}


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_integers_wrap_as_the_machine_does(symbol):
    """In vectors and in scalars that all lanes share, for every pair of integer types."""
    lanes = object.__new__(Arithmetic)
    compute = getattr(lanes, SYMBOLS[symbol])
    for left, right in [(a, b) for a, b in PAIRS if "int" in a and "int" in b]:
        one, two = np.meshgrid(np.array(EDGES).astype(left), np.array(EDGES).astype(right))
        one, two = one.ravel(), two.ravel()
        unsigned = left.startswith("u") if symbol in ("<<", ">>") else left[0] == right[0] == "u"
        kept = [
            (k, want)
            for k, (a, b) in enumerate(zip(one.tolist(), two.tolist(), strict=True))
            if (want := exact(symbol, machine(a, not unsigned), machine(b, not unsigned), not unsigned))
            is not None
        ]
        rows = [k for k, _ in kept]
        want = [value for _, value in kept]
        assert compute(one[rows], two[rows]).tolist() == want
        for k, value in kept[::17]:
            with np.errstate(over="ignore"):
                scalar = compute(convert(one[k], one.dtype.char), convert(two[k], two.dtype.char))
            assert int(scalar) == value
            assert type(scalar) in (int, np.uint64)


@cuda.jit
def mixed(a, b, out, real):
    i = cuda.threadIdx.x
    difference = a[i] - b[i]
    out[i, 0] = difference
    out[i, 1] = a[i] * b[i] + a[i]
    out[i, 2] = ~a[i]
    out[i, 3] = -a[i]
    out[i, 4] = int8(a[i]) + uint8(300)
    out[i, 5] = uint32(a[i]) << 31
    out[i, 6] = int32(2147483647) + i
    out[i, 7] = uint64(1) - i
    a[i] -= 3
    out[i, 8] = a[i]
    real[i, 0] = a[i] * float32(0.1)
    real[i, 1] = i * float32(0.1)
    real[i, 2] = difference / 3


def test_kernel_with_unsigned_bytes():
    """The kernel of the report: uint8 - uint8 is a uint64."""
    a, b = np.arange(32, dtype=np.uint8), np.full(32, 5, np.uint8)
    out, real = np.zeros((32, 9), np.uint64), np.zeros((32, 3))
    simulate(mixed, 1, 32, a.copy(), b, out, real).check()
    wide, i = a.astype(np.uint64), np.arange(32)
    assert out[3, 0] == 18446744073709551614
    np.testing.assert_array_equal(out[:, 0], wide - b)
    np.testing.assert_array_equal(out[:, 1], wide * b + a)
    np.testing.assert_array_equal(out[:, 2], 255 - wide)
    np.testing.assert_array_equal(out[:, 3], (256 - wide) % 256)
    np.testing.assert_array_equal(out[:, 4], wide + 44)
    np.testing.assert_array_equal(out[:, 5], wide << np.uint64(31))
    np.testing.assert_array_equal(out[:, 6], 2147483647 + i)
    np.testing.assert_array_equal(out[:, 7], np.uint64(1) - i.astype(np.uint64))
    stored = a - np.uint8(3)
    np.testing.assert_array_equal(out[:, 8], stored)
    assert (real[:, 0] == stored.astype(np.float32) * np.float32(0.1)).all()  # a byte fits a float32
    assert (real[:, 1] == i * np.float64(np.float32(0.1))).all()  # an int32 does not
    assert (real[:, 2] == out[:, 0].astype(np.float64) / 3).all()


@cuda.jit
def float_index(x):
    x[cuda.threadIdx.x / 2] = 1


@cuda.jit
def float_bits(x):
    x[0] = x[1] & 1


@cuda.jit
def unsigned_shuffle(x):
    x[0] = cuda.shfl_sync(0xFFFFFFFF, uint32(1), 0)


@cuda.jit
def truth_shuffle(x):
    x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0] > 0, 0)


@cuda.jit
def mixed_choice(x):
    x[0] = cuda.selp(x[0] > 0, x[0], 0.0)


@cuda.jit
def number_with_an_index(x):
    x[1] = x[cuda.threadIdx.x][0]


@cuda.jit
def number_with_a_length(x):
    x[1] = len(x[cuda.threadIdx.x])


@cuda.jit
def number_with_a_shape(x):
    x[1] = x[cuda.threadIdx.x].shape[0]


@cuda.jit
def number_with_a_size(x):
    x[1] = x[cuda.threadIdx.x].size


NUMBERS_AS_ARRAYS = [number_with_an_index, number_with_a_length, number_with_a_shape, number_with_a_size]


@pytest.mark.parametrize(
    "kernel",
    [float_index, float_bits, unsigned_shuffle, truth_shuffle, mixed_choice, *NUMBERS_AS_ARRAYS],
)
def test_types_that_numba_refuses(kernel):
    line = kernel.py_func.__code__.co_firstlineno + 2
    with pytest.raises(Unsupported, match=rf"test_types\.py:{line}: the simulator cannot run this line"):
        simulate(kernel, 1, 32, np.ones(32, np.float32))


OF_A_KIND = {
    "vote": "x[0] = cuda.any_sync(0xFFFFFFFF, y[0])",
    "mask of a vote": "x[0] = cuda.all_sync(y[0], x[0] > 0)",
    "mask of a shuffle": "x[0] = cuda.shfl_sync(y[0], x[0], 0)",
    "distance": "x[0] = cuda.shfl_xor_sync(0xFFFFFFFF, x[0], y[0])",
    "lane": "x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], y[0])",
    "condition": "x[0] = cuda.selp(y[0], x[0], x[1])",
    "choice": "x[0] = cuda.selp(x[0] > 0, y[0], y[1])",
    "array as a condition": "x[0] = 1 if y else 2",
    "array in a condition": "x[0] = x[0] > 0 or not y",
    "tuple of one index": "cuda.atomic.add(x, (0,), y[0])",
    "dimensions": "x[0] = cuda.grid(y[0])",
}


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("case", OF_A_KIND)
def test_what_numba_compiles_for_a_kind_of_number(case):
    """Numba's own compiler, which needs no GPU, says what it takes; the simulator takes the same."""
    text = f"def kernel(x, y):\n    {OF_A_KIND[case]}\n"
    file = f"<{case}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"cuda": cuda}
    exec(compile(text, file, "exec"), scope)
    kernel = scope["kernel"]
    for kind in ("bool", "int8", "int32", "uint64", "float32"):
        element = types.boolean if kind == "bool" else getattr(types, kind)
        try:
            cuda.compile_ptx(kernel, (types.float32[:], element[:]), cc=(9, 0))
            compiled = True
        except Exception:
            compiled = False
        try:
            simulate(kernel, 1, 32, np.ones(2, np.float32), np.ones(2, kind), races=False)
            assert compiled, kind
        except Unsupported:
            assert not compiled, kind


def make_atomic(operation):
    @cuda.jit
    def atomic(x):
        operation(x, 0, x[1])

    return atomic


ATOMICS = ["add", "sub", "max", "min", "nanmax", "nanmin", "and_", "or_", "xor", "exch", "inc", "dec"]


@pytest.mark.parametrize("name", ATOMICS)
def test_arrays_that_numba_has_an_atomic_for(name, numba_type):
    kernel = make_atomic(getattr(cuda.atomic, name))
    template = getattr(cudadecl.CudaAtomicTemplate, f"resolve_{name}")(None, None)
    for kind in NUMBERS:
        element = types.boolean if kind == "bool" else getattr(types, kind)
        operands = types.Array(element, 1, "C"), types.intp, element
        try:
            known = cuda_target.typing_context.resolve_function_type(template, operands, {}) is not None
        except Exception:
            known = False
        x = np.ones(2, kind)
        if known:
            simulate(kernel, 1, 1, x).check()
        else:
            with pytest.raises(Unsupported, match=rf"Numba has no atomic\.{name} for {kind}"):
                simulate(kernel, 1, 1, x)


@cuda.jit
def swaps(x):
    cuda.atomic.cas(x, 0, 0, 1)


def test_compare_and_swap_is_for_integers():
    simulate(swaps, 1, 32, np.zeros(1, np.uint64)).check()
    for kind in ("float32", "int8"):
        with pytest.raises(Unsupported, match=f"Numba has no atomic.cas for {kind}"):
            simulate(swaps, 1, 32, np.zeros(1, kind))


# One type for a variable over all paths, also over those that no thread takes


@cuda.jit
def choice_of_types(u8, i64, flag, out):
    i = cuda.threadIdx.x
    out[i, 0] = ~(u8[i] if flag else i64[i])
    out[i, 1] = (i64[i] if flag else 0.5) * 3037000500 * 3037000500


@cuda.jit
def branch_of_types(u8, i64, flag, out):
    i = cuda.threadIdx.x
    v = 2.5
    if flag:
        v = u8[i]
        w = v - u8[0]  # of uint8 here, whatever v is afterwards
    else:
        v = i64[i]
        w = v
    out[i, 0] = ~v
    out[i, 1] = w > 0


@cuda.jit
def loop_of_types(u8, i64, flag, out):
    i = cuda.threadIdx.x
    u, v = uint8(3), 1
    for k in range(flag):
        u = u - i64[k]
        v = v * 1.5
    out[i, 0] = ~u
    out[i, 1] = v * 3037000500 * 3037000500
    first = uint8(200)
    for k in range(2):
        shifted = first << 60  # of int64, as `first` is in a loop; `shifted` is a float64 to Numba
        out[i, 2] = shifted
        out[i, 3] = shifted / 3
        first = i64[k]


@cuda.jit(device=True)
def either(flag, a, b):
    if flag:
        return a
    return b


@cuda.jit
def function_of_types(u8, i64, flag, out):
    i = cuda.threadIdx.x
    out[i, 0] = ~either(flag, u8[i], i64[i])
    out[i, 1] = ~either(flag, u8[i], u8[0])


@cuda.jit
def not_constant(u8, i64, flag, out):
    """Numba knows that a literal is true, but not what a conversion or a sum makes of it."""
    i = cuda.threadIdx.x
    limit = float32(29)
    out[i, 0] = ~(u8[i] if limit > 3 else i64[i])
    out[i, 1] = ~(u8[i] if SIZE + 1 > 3 else i64[i])
    out[i, 2] = ~(u8[i] if SIZE > 3 else i64[i])


SIZE = 4


@cuda.jit(device=True)
def after_return(v, flag):
    """What a side that returns did to a variable counts for nothing after it."""
    w = v
    if flag:
        w = 0.5
        return w > 1
    return (w & 1) == 1


@cuda.jit
def returned_side(u8, i64, flag, out):
    out[cuda.threadIdx.x, 0] = after_return(i64[cuda.threadIdx.x], flag)


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
@pytest.mark.parametrize("flag", [0, 1])
def test_paths_that_are_not_taken_give_types_too(order, flag):
    u8, i64 = np.arange(1, 65, dtype=np.uint8), np.arange(5, 69)

    def run(kernel, dtype):
        out = np.zeros((64, 4), dtype)
        totals = simulate(kernel, 1, 64, u8, i64, flag, out, order=order).check().totals()
        assert totals == simulate(kernel, 1, 64, u8, i64, flag, out.copy()).totals()
        return out

    chosen, big = u8 if flag else i64, 3037000500.0
    out = run(choice_of_types, np.float64)
    np.testing.assert_array_equal(out[:, 0], ~chosen.astype(np.int64))
    np.testing.assert_array_equal(out[:, 1], (i64 if flag else 0.5) * big * big)
    out = run(branch_of_types, np.float64)
    np.testing.assert_array_equal(out[:, 0], ~chosen.astype(np.int64))
    np.testing.assert_array_equal(out[:, 1], u8 > 1 if flag else True)
    out = run(loop_of_types, np.float64)
    np.testing.assert_array_equal(out[:, 0], ~np.int64(3 - 5 * flag))
    np.testing.assert_array_equal(out[:, 1], 1.5**flag * big * big)
    np.testing.assert_array_equal(out[:, 2], float(np.int64(5) << np.int64(60)))
    np.testing.assert_array_equal(out[:, 3], float(np.int64(5) << np.int64(60)) / 3)
    out = run(function_of_types, np.float64)
    np.testing.assert_array_equal(out[:, 0], ~chosen.astype(np.int64))
    same = (u8 if flag else np.full(64, u8[0])).astype(np.uint64)
    np.testing.assert_array_equal(out[:, 1], 255 - same)
    out = run(not_constant, np.float64)
    np.testing.assert_array_equal(out[:, 0], ~u8.astype(np.int64))
    np.testing.assert_array_equal(out[:, 1], ~u8.astype(np.int64))
    np.testing.assert_array_equal(out[:, 2], 255 - u8)
    out = run(returned_side, np.float64)
    np.testing.assert_array_equal(out[:, 0], False if flag else i64 % 2)


# What an H200 computes otherwise than NumPy; the values are its own, found by `fuzz.py --gpu`


@cuda.jit
def small_integers(u8, i8, h, out):
    i = cuda.threadIdx.x
    out[i, 0] = -u8[i]
    out[i, 1] = ~u8[i]
    out[i, 2] = -i8[i]
    out[i, 3] = int64(h[i])
    out[i, 4] = int8(h[i])
    out[i, 5] = h[i]
    out[i, 6] = uint8(h[i])


def test_small_integers_change_before_they_are_widened_and_float16_is_rounded():
    u8, i8 = np.array([1, 0, 5, 255], np.uint8), np.array([1, -128, 127, 0], np.int8)
    h = np.array([49.6, -1.5, 2.5, 300], np.float16)
    out = np.zeros((4, 7), np.int64)
    simulate(small_integers, 1, 4, u8, i8, h, out).check()
    expected = [
        [255, 254, -1, 50, 50, 50, 50],
        [0, 255, -128, -2, -2, -2, 0],
        [251, 250, -127, 2, 2, 2, 2],
        [1, 0, 0, 300, 127, 300, 255],
    ]
    assert out.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_remainder_of_a_rounded_quotient(dtype, rng):
    """The rest of what the GPU takes for the quotient: exact, and negative where that was rounded up."""
    a = (rng.standard_normal(400) * 10.0 ** rng.integers(-3, 25, 400)).astype(dtype)
    b = (rng.standard_normal(400) * 10.0 ** rng.integers(-3, 4, 400)).astype(dtype)
    a[:3], b[:3] = (dtype(2.0**64), dtype(1e20), dtype(-7.5)), (1000, 7, 7)
    inexact = 0
    for x, y in zip(a, b, strict=True):
        whole = math.floor(np.abs(x) / np.abs(y))
        rest = abs(Fraction(float(x))) - whole * abs(Fraction(float(y)))
        inexact += rest != math.fmod(abs(x), abs(y))
        rest = -rest if x < 0 else rest
        if rest and (rest < 0) != (y < 0):
            rest = dtype(float(rest)) + y
        assert Arithmetic.modulo(None, x, y) == dtype(float(rest)), (x, y)
    assert inexact
    assert Arithmetic.modulo(None, np.float64(2**64), 1000) == 616  # -384 and 1000: its sign is looked at
    assert np.isnan(Arithmetic.modulo(None, dtype(1), dtype(0)))
    assert Arithmetic.floor_divide(None, dtype(-1), dtype(0)) == -np.inf
    assert Arithmetic.floor_divide(None, dtype(-7.5), dtype(2)) == -4


@cuda.jit
def too_large(x):
    x[0] = 2147483648 * (-191296946378)


@cuda.jit
def folded(x):
    x[0] = (2147483648 << 40) * 3 // (1 << 31) - (1 << 70 >> 8)


def test_python_computes_with_literals_before_numba_sees_them():
    with pytest.raises(Unsupported, match=r"the integer -410807064259087826944: it has more than 64 bits"):
        simulate(too_large, 1, 1, np.zeros(1, np.int64))
    x = np.zeros(1, np.int64)
    simulate(folded, 1, 1, x).check()
    assert x[0] == (2147483648 << 40) * 3 // (1 << 31) - (1 << 62)


@cuda.jit
def bits_of_truth(b, out):
    i = cuda.threadIdx.x
    out[i, 0] = cuda.popc(b[i])
    out[i, 1] = cuda.clz(b[i])
    out[i, 2] = cuda.ffs(b[i])
    out[i, 3] = cuda.brev(b[i])


def test_bits_of_a_truth_value(numba_type):
    """Of an int8, as Numba resolves them; of 32 bits for brev."""
    for bits, kind in ((cuda.popc, types.int8), (cuda.clz, types.int8), (cuda.ffs, types.uint32)):
        found = cuda_target.typing_context.resolve_function_type(bits, (types.boolean,), {})
        assert (found.args, found.return_type) == ((types.int8,), kind)
    out = np.zeros((2, 4), np.int64)
    simulate(bits_of_truth, 1, 2, np.array([False, True]), out).check()
    assert out.tolist() == [[0, 8, 0, 0], [1, 7, 1, 2**31]]
