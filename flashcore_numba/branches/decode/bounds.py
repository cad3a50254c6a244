"""What decoding must give, and how wrong it may be: each request is an input of the forward pass of its own.

The bound is that of `checks.bounds`, of a request's own keys. What a merge of parts adds is in the room that
its factor 2 leaves: a part is weighted by exp(LSE_i - max), with |LSE_i| <= A + log(S_k) for scores of at
most A, which a float32 LSE knows to u |LSE_i|; two of these and the exponential lose 2 u (A + log(S_k)) + 4 u
of a weight that is already off by (D + 8) u A + 4 u, and of a sum that is off by 4 S_k u.
"""

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs
from flashcore_numba.checks import bounds


def reference(x: DecodeInputs) -> bounds.Reference:
    """The float64 answer and the bounds, of all requests."""
    found = []
    for number in range(len(x.lengths)):
        one = x.request(number)
        found.append(bounds.reference(one.q, one.k, one.v, one.causal, one.scale, one.features))
    return bounds.Reference(
        *(
            np.concatenate([getattr(each, name) for each in found])
            for name in ("out", "allowed", "lse", "lse_allowed")
        )
    )
