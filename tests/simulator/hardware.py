"""Measures with Nsight Compute what the simulator counts, on the test kernels; the ladder's stages are
measured by `flashcore reconcile --save`.

    python -m tests.simulator.hardware OUT_DIR         writes OUT_DIR/nsight_h200.json; needs a GPU and ncu
    python -m tests.simulator.hardware --compare FILE  prints where the simulator and that file differ

There is a time limit, and what was measured until then is written. `test_nsight.py` compares the file kept
beside it with the simulator.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from flashcore_numba.evidence import nsight
from flashcore_numba.records import environment, layout

from .cases import cases, expected

LIMIT = 100  # seconds

COUNTERS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_requests": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__inst_executed_op_shared_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "fma32": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "add32": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "mul32": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "fp64": "smsp__sass_thread_inst_executed_ops_dadd_dmul_dfma_pred_on.sum",
}
"""The simulator's counters (fp64: fma64 + add64 + mul64) and the hardware metrics that measure them."""


def child(path: Path) -> None:
    """What runs under ncu: launches the test kernels once each, in order."""
    from numba import cuda

    record = nsight.Record(path)
    for name, case in cases().items():
        args = case.copy_args()
        device = [cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        case.kernel[case.grid, case.block, 0, case.shared_bytes](*device)
        got = device[case.result].copy_to_host()
        error = float(np.abs(got - expected(name, case.args)).max())
        record.add([case.kernel.py_func.__name__], name=name, error=error)


def counters(kernel: nsight.Kernel) -> dict[str, int]:
    """The measured counters of one launch, by the simulator's names."""
    return {name: int(kernel.row[metric]) for name, metric in COUNTERS.items() if metric in kernel.row}


def measure(out: Path) -> None:
    gpu, (commit, _) = environment.gpu(), environment.commit()
    packages = {name: environment.packages()[name] for name in ("numba", "numba-cuda", "numpy")}
    document = {
        "gpu": gpu["name"],
        "driver": gpu["driver"],
        "date": environment.today()[:10],
        "commit": commit,
        **packages,
        "ncu": nsight.version(),
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record.json")
        command = [sys.executable, "-m", __spec__.name, "--child", str(record)]
        try:
            for step, (kernel,) in nsight.collect(command, record, LIMIT, COUNTERS.values(), sections=()):
                document["cases"][step["name"]] = {
                    "kernels": step["kernels"],
                    "error": step["error"],
                    "counters": counters(kernel),
                }
        except nsight.NsightError as error:
            print(error)
    out.mkdir(parents=True, exist_ok=True)
    layout.save(document, out / "nsight_h200.json", "cases")
    print(f"measured {len(document['cases'])} of {len(cases())} cases", flush=True)
    compare(out / "nsight_h200.json")


def simulated(name: str) -> dict[str, int]:
    """The simulator's counters of one case, by the names of `COUNTERS`."""
    from flashcore_numba.simulator import simulate

    case = cases()[name]
    args = case.copy_args()
    launch = simulate(case.kernel, case.grid, case.block, *args, shared_bytes=case.shared_bytes)
    totals = launch.check().totals()
    totals["fp64"] = sum(totals.get(f"{kind}64", 0) for kind in ("fma", "add", "mul"))
    return {counter: totals.get(counter, 0) for counter in COUNTERS}


def compare(path: Path) -> None:
    """Print, by counter, how many cases agree and which do not."""
    measured = json.loads(path.read_text())["cases"]
    everything = {name: simulated(name) for name in measured}
    for counter in COUNTERS:
        pairs = {
            name: (everything[name][counter], entry["counters"][counter])
            for name, entry in measured.items()
            if counter in entry["counters"] and (everything[name][counter] or entry["counters"][counter])
        }
        differ = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        print(f"{counter}: {len(pairs) - len(differ)} of {len(pairs)} equal")
        for name, (ours, theirs) in differ.items():
            print(f"    {name}: simulated {ours}, measured {theirs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
    elif args.compare:
        compare(args.compare)
    elif args.out:
        measure(args.out)
    else:
        parser.error("OUT_DIR is missing")


if __name__ == "__main__":
    main()
