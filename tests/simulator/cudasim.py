"""Runs kernels in Numba's own CUDA simulator; a process of its own, started by `fuzz.py` with
NUMBA_ENABLE_CUDASIM=1.

Reads a pickled list of (name, source text, grid, block, arguments) from the file given first, writes the
arguments after each launch, or the exception's text, to the file given second. The number types of a kernel
are NumPy's, so that what it casts has the type that it says.
"""

import linecache
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np

NAMES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES = {name: getattr(np, name) for name in (*NAMES, "float16", "float32", "float64", "bool_")}


def run(name: str, text: str, grid: int, block: tuple[int, ...], args: list[np.ndarray]):
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict = {"__name__": name}
    exec(compile(text, file, "exec"), scope)
    scope.update(TYPES)
    scope["kernel"][grid, block](*args)
    return args


def main(given: str, taken: str) -> None:
    from numba import config

    if not config.ENABLE_CUDASIM:
        sys.exit("NUMBA_ENABLE_CUDASIM=1 is not set")
    warnings.simplefilter("ignore")  # integers that wrap
    with Path(given).open("rb") as source:
        kernels = pickle.load(source)
    results = []
    for kernel in kernels:
        try:
            results.append(run(*kernel))
        except BaseException as error:
            results.append(f"{type(error).__name__}: {error}")
    with Path(taken).open("wb") as target:
        pickle.dump(results, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
