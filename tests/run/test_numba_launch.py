"""What Numba's kernels are given on a GPU: views of its arrays, also of those in tuples."""

from types import SimpleNamespace

import numpy as np

from flashcore_numba.run import numba_launch


class Array:
    """As much of a CuPy array as a view is made of."""

    def __init__(self, pointer, contiguous=True):
        self.data, self.device = SimpleNamespace(ptr=pointer), SimpleNamespace(id=0)
        self.flags = SimpleNamespace(c_contiguous=contiguous)
        self.shape, self.strides, self.dtype = (3,), (4,), np.dtype(np.float32)


def test_arrays_become_views(monkeypatch):
    monkeypatch.setattr(numba_launch, "_numba_view", lambda *told: (told, "type"))
    view = (64, (3,), None, "<f4", 0)
    assert numba_launch._place(Array(64), Array) == (view, "type")
    assert numba_launch._place(Array(64, contiguous=False), Array)[0][2] == (4,)
    assert numba_launch._place(5, Array) == (5, None)
    assert numba_launch._place((), Array) == ((), None)
    given = ((1, -1), Array(64), np.float32(2))
    assert numba_launch._place(given, Array) == (((1, -1), view, 2), None)
