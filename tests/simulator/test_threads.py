"""Many threads that simulate at once: kernels that nobody has rewritten yet, and others."""

import importlib.util
import threading

import numpy as np

from flashcore_numba.simulator import simulate

SOURCE = """from numba import cuda


@cuda.jit(device=True)
def once(v):
    return v + 1


@cuda.jit(device=True)
def twice(v):
    return once(once(v))


@cuda.jit
def kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = twice(x[i]) + once(x[i])
"""


def test_cold_kernels_in_many_threads(tmp_path):
    """All threads meet each kernel for the first time together."""
    kernels = []
    for number in range(8):
        path = tmp_path / f"cold_{number}.py"
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernels.append(module.kernel)
    start, failures, counts = threading.Barrier(16), [], set()

    def work():
        try:
            for kernel in kernels:
                start.wait()
                x = np.arange(64.0)
                result = simulate(kernel, 2, 32, x).check()
                np.testing.assert_array_equal(x, 2 * np.arange(64.0) + 3)
                counts.add(str(result.totals()))
        except BaseException as error:
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(counts) == 1
