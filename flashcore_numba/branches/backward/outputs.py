"""What the backward pass writes: the gradients of q, k and v."""

from flashcore_numba.core.output import Output


def _gradient(of: str, rows: str) -> Output:
    return Output(
        f"d{of}",
        lambda p: tuple(getattr(p, of).shape),
        lambda p: p.element.dtype,
        ("b", "h", rows, "col"),
        f"d{of.upper()}",
        described=f"that of {of}",
    )


DQ, DK, DV = _gradient("q", "row"), _gradient("k", "key"), _gradient("v", "key")
GRADIENTS = (DQ, DK, DV)
