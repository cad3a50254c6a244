"""The output of two parts of the keys as one: what `merge` computes, with NumPy or CuPy."""

from typing import Any


def merged(numpy: Any, out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """(out, lse): each output [..., D] is weighted by exp(its LSE - LSE), LSE = log(exp(a) + exp(b)).

    numpy: the module that the arrays are of, NumPy or CuPy. out has the type that out_a and lse_a make
    together. Where neither part sees a key, out is 0 and LSE -inf.
    """
    lse = numpy.logaddexp(lse_a, lse_b)
    base = numpy.where(numpy.isneginf(lse), 0, lse)  # -inf - -inf would be NaN
    out = 0
    for each_out, each_lse in ((out_a, lse_a), (out_b, lse_b)):
        out = out + numpy.exp(each_lse - base)[..., None] * each_out
    return out, lse
