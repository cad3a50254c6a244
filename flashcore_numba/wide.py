"""Wide loads and stores for Numba kernels: 4 or 16 bytes in one instruction.

Numba has no vector load of its own. Each intrinsic here becomes one LLVM vector access, aligned to its size,
which ptxas turns into a single LDG, LDS or their stores, up to 128 bits wide (PTX ISA, "ld", ".v4").

All take an array that is contiguous in its last dimension and the index of the first element: an integer for
one dimension, a tuple for more. Its address must be a multiple of the size of the access. Unlike
`array[index]` they do not wrap negative indices, which spares a compare and a select for every dimension.
`load2`, `load8` and `store8` convert: a kernel holds float16 in memory and float32 in registers. The
simulator runs the same names (`flashcore_numba.simulator`), counts one access of that size and checks bounds
and alignment.
"""

from typing import Any

from flashcore_numba.simulator.names import WideAccess

try:
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic
except ImportError:  # without Numba the simulator alone runs kernels, and it knows these names

    def intrinsic(function: Any) -> Any:
        return function

else:
    _FLOAT, _HALF, _INT = ir.FloatType(), ir.HalfType(), ir.IntType(32)


def _address(context, builder, array_type, array, index_type, index, vector):
    """The address of the element at `index`, as a pointer to `vector`."""
    struct = context.make_array(array_type)(context, builder, value=array)
    if isinstance(index_type, types.BaseTuple):
        indices = zip(index_type, cgutils.unpack_tuple(builder, index), strict=True)
    else:
        indices = [(index_type, index)]
    strides = cgutils.unpack_tuple(builder, struct.strides)
    place = builder.bitcast(struct.data, ir.IntType(8).as_pointer())
    for (kind, value), stride in zip(indices, strides, strict=True):
        place = builder.gep(place, [builder.mul(context.cast(builder, value, kind, types.intp), stride)])
    return builder.bitcast(place, vector.as_pointer())


def _load(array, index, element, count):
    """The typed signature and code of a load of `count` neighbours, returned as float32."""

    def generate(context, builder, signature, args):
        vector = ir.VectorType(element, count)
        place = _address(context, builder, array, args[0], index, args[1], vector)
        value = builder.load(place, align=count * (2 if element is _HALF else 4))
        lanes = [builder.extract_element(value, ir.Constant(_INT, lane)) for lane in range(count)]
        if element is _HALF:
            lanes = [builder.fpext(lane, _FLOAT) for lane in lanes]
        return cgutils.pack_array(builder, lanes)

    return types.UniTuple(types.float32, count)(array, index), generate


def _store(array, index, values, element, count):
    """The typed signature and code of a store of `count` float32 values."""

    def generate(context, builder, signature, args):
        vector = ir.VectorType(element, count)
        value = ir.Constant(vector, ir.Undefined)
        for lane in range(count):
            item = context.cast(builder, args[2 + lane], values[lane], types.float32)
            if element is _HALF:
                item = builder.fptrunc(item, _HALF)
            value = builder.insert_element(value, item, ir.Constant(_INT, lane))
        place = _address(context, builder, array, args[0], index, args[1], vector)
        builder.store(value, place, align=16)
        return context.get_dummy_value()

    return types.void(array, index, *values), generate


@WideAccess("wide_load", 2, "float16")
@intrinsic
def load2(typingctx, array, index):
    """Two neighbours of a float16 array from `index` on, as two float32: 4 bytes."""
    return _load(array, index, _HALF, 2)


@WideAccess("wide_load", 4, "float32")
@intrinsic
def load4(typingctx, array, index):
    """Four neighbours of a float32 array from `index` on, as four float32: 16 bytes."""
    return _load(array, index, _FLOAT, 4)


@WideAccess("wide_load", 8, "float16")
@intrinsic
def load8(typingctx, array, index):
    """Eight neighbours of a float16 array from `index` on, as eight float32: 16 bytes."""
    return _load(array, index, _HALF, 8)


@WideAccess("wide_store", 4, "float32")
@intrinsic
def store4(typingctx, array, index, a, b, c, d):
    """Write four neighbours of a float32 array from `index` on."""
    return _store(array, index, (a, b, c, d), _FLOAT, 4)


@WideAccess("wide_store", 8, "float16")
@intrinsic
def store8(typingctx, array, index, a, b, c, d, e, f, g, h):
    """Write eight neighbours of a float16 array from `index` on, each rounded to nearest even."""
    return _store(array, index, (a, b, c, d, e, f, g, h), _HALF, 8)
