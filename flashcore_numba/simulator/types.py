"""Numba's names for number types: `float32(x)` in a kernel, `void(float32[:], int32)` as a signature."""

from typing import Any

import numpy as np


class Type:
    """What a signature is made of. The simulator goes by the arguments of a launch, not by signatures."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *arguments: "Type") -> "Type":
        """The signature of a function that returns this type."""
        return Type(f"{self}({', '.join(map(str, arguments))})")


class Number(Type):
    """The type of a number; `dtype` is NumPy's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dtype = np.dtype(name)

    def __getitem__(self, axes: slice | tuple[slice, ...]) -> Type:
        """An array of these: `float32[:, ::1]` has two dimensions, the last of them contiguous."""
        steps = axes if isinstance(axes, tuple) else (axes,)
        if not all(isinstance(axis, slice) and axis.start is axis.stop is None for axis in steps):
            raise TypeError(f"{self}[{axes!r}]: an array's type has a : or ::1 for each dimension")
        return Type(f"{self}[{', '.join(':' if axis.step is None else '::1' for axis in steps)}]")

    def __call__(self, *values: Any) -> Any:
        """Of a number: the same number in this type. Of types: a signature."""
        if len(values) == 1 and not isinstance(values[0], Type):
            return self.dtype.type(values[0])
        return super().__call__(*values)


void = Type("void")
boolean = bool_ = Number("bool")
int8, int16, int32, int64 = Number("int8"), Number("int16"), Number("int32"), Number("int64")
uint8, uint16, uint32, uint64 = Number("uint8"), Number("uint16"), Number("uint32"), Number("uint64")
float16, float32, float64 = Number("float16"), Number("float32"), Number("float64")
complex64, complex128 = Number("complex64"), Number("complex128")
intp, uintp = int64, uint64
