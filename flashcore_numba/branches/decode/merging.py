"""`merge()`: attention over two parts of the keys made one, by NumPy on the host, by a kernel on a GPU."""

from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.calls import executor_for
from flashcore_numba.core.arrays import adopt, empty_like, same_kind
from flashcore_numba.core.element import FLOAT32, of
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.executor import Executor
from flashcore_numba.core.problem import check_rows, check_starts, with_aligned
from flashcore_numba.stages.parts.cuda_arguments import strides

THREADS = 256  # of a block at most, as in merge_parts.cu


def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """The output and LSE over the keys of two parts, of the outputs and LSEs of each.

    out_a, out_b: [B, H, S, D], float16 or bfloat16. lse_a, lse_b: float32 [B, H, S], natural logarithm,
    C-contiguous. They are what `attention` and `attention_paged` return with `return_lse=True`, for the same
    queries and different keys: a prefix that requests share, and the rest. All are of one kind in one place.
    A sink must be in one of the two alone.

    Returns (out, lse), of these shapes and types, of the caller's kind and on its device. Weights are
    float32, and out is rounded once more than in one call over all keys. Where the LSE of a part is -inf, the
    part has seen no key, and what its output holds there, NaN too, does not matter; where neither part sees
    a key, out is 0 and LSE -inf. Streams and capture are as for `attention`.

    Raises ArgumentError for a bad argument.
    """
    given = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    arrays = {name: adopt(array, name) for name, array in given.items()}
    same_kind(**arrays)
    a, of_a, b, of_b = views = [each.view for each in arrays.values()]
    _check_parts(*views)
    like = arrays["out_a"]
    out, lse = empty_like(like, a.shape, a.dtype), empty_like(like, a.shape[:3], FLOAT32.dtype)
    if isinstance(a, np.ndarray):
        with np.errstate(invalid="ignore"):  # of an LSE that is NaN, which makes the row NaN
            out.view[...], lse.view[...] = merged(_seen(a, of_a), of_a, _seen(b, of_b), of_b)
        return out.source, lse.source
    with executor_for(like, views, None) as executor:
        parts = with_aligned(a), with_aligned(b)
        launch(parts[0], of_a, parts[1], of_b, out.view, lse.view, executor)
        made = () if like.kind == "PyTorch" else (out.view, lse.view)  # its graphs have own memory
        executor.done(*parts, *made)
    return out.source, lse.source


def merged(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, module: Any = np) -> tuple[Any, Any]:
    """(out, lse) of arrays [..., D] and [...], in the types of the outputs and of the LSEs. An output
    whose LSE is -inf is multiplied by 0, so it must be finite.

    module: NumPy, or PyTorch for its tensors.
    """
    lse = module.logaddexp(lse_a, lse_b)
    base = module.where(module.isneginf(lse), 0, lse)  # -inf - -inf would be NaN
    weight_a, weight_b = (module.exp(each - base)[..., None] for each in (lse_a, lse_b))
    return weight_a * out_a + weight_b * out_b, lse


def _seen(out: Any, lse: Any) -> Any:
    """An output as float32, 0 where it has seen no key."""
    return np.where(np.isneginf(lse)[..., None], np.float32(0), out.astype(np.float32))


def launch(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any, lse: Any, executor: Executor) -> None:
    """Queue the kernel on arrays whose rows start at multiples of 16 bytes."""
    batch, heads, rows, columns = out.shape
    kernel = source("merge_parts", ELEMENT=of(out.dtype).name)
    chunks, all_rows = columns // 8, batch * heads * rows
    block = (chunks, THREADS // chunks)
    steps = (step for array in (out_a, out_b, out) for step in strides(array))
    arrays = (out_a, lse_a, out_b, lse_b, out, lse)
    sizes = np.uint32(all_rows), *divisor(heads), *divisor(rows)
    executor.launch(kernel, -(-all_rows // block[1]), block, *arrays, *steps, *sizes)


def divisor(d: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """d, and the inverse and shift by which the kernel divides: n // d is (2 n * inverse >> 32) >> shift.

    inverse is 2^(31 + shift) / d, at least 2^31, rounded up: for n below 2^31 that adds less than 1 / d.
    """
    shift = (d - 1).bit_length()
    return np.uint32(d), np.uint32(-(-(1 << 31 + shift) // d)), np.uint32(shift)


def _check_parts(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> None:
    check_rows("out_a", out_a)
    check_rows("out_b", out_b)
    shape = tuple(out_a.shape)
    if out_b.dtype != out_a.dtype:
        raise ArgumentError(f"out_b has dtype {out_b.dtype}: out_a has {out_a.dtype}, and they must be equal")
    if tuple(out_b.shape) != shape:
        raise ArgumentError(
            f"out_b has shape {tuple(out_b.shape)}: out_a has {shape}, and they must be equal"
        )
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if lse.dtype != FLOAT32.dtype:
            raise ArgumentError(f"{name} has dtype {str(lse.dtype)[:100]}: only float32 is accepted")
        if tuple(lse.shape) != shape[:3]:
            raise ArgumentError(
                f"{name} has shape {tuple(lse.shape)}: it must be {shape[:3]}, a number per row"
            )
        if not lse.flags.c_contiguous:
            raise ArgumentError(f"{name} has strides {lse.strides} bytes: it must be C-contiguous")
        check_starts(name, lse)
