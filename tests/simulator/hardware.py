"""Measures with Nsight Compute what the simulator counts, on the test kernels and the ladder's stages.

    python -m tests.simulator.hardware OUT_DIR         writes OUT_DIR/nsight_h200.json; needs a GPU and ncu
    python -m tests.simulator.hardware --compare FILE  prints where the simulator and that file differ

Every step has a time limit, and what was measured until then is written. `test_nsight.py` compares the file
kept beside it with the simulator.
"""

import argparse
import csv
import datetime
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from glob import glob
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .cases import cases, expected

STAGE_SHAPE = (1, 1, 128, 64)  # B, H, S, D
LIMIT = 140  # seconds for everything

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


# On the GPU, under ncu


def stage_inputs():
    """q, k, v of the stages, float16, the same for the GPU and for the simulator."""
    rng = np.random.default_rng(2026)
    return [rng.standard_normal(STAGE_SHAPE).astype(np.float16) for _ in range(3)]


def stage_names() -> dict[str, tuple]:
    """Every stage and variant: name -> (stage, variant)."""
    from flashcore_numba.stages import LADDER

    names = {}
    for stage in LADDER:
        if stage.language != "Numba":
            continue
        for variant in stage.variants or (None,):
            names[f"stage {stage.label}" + (f" {variant}" if variant else "")] = (stage, variant)
    return names


def launch_cases(names: list[str], note) -> None:
    """Launch the test kernels once each, in order; `note(name, kernels, error)` after each."""
    from numba import cuda

    known = cases()
    for name in names:
        case = known[name]
        args = case.copy_args()
        device = [cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        case.kernel[case.grid, case.block, 0, case.shared_bytes](*device)
        got = device[case.result].copy_to_host()
        error = float(np.abs(got - expected(name, case.args)).max())
        note(name, [case.kernel.py_func.__name__], error)


def launch_stages(names: list[str], note) -> None:
    import cupy

    from flashcore_numba import oracle
    from flashcore_numba.executor import Gpu
    from flashcore_numba.problem import Problem

    class Noting(Gpu):
        def __init__(self):
            super().__init__()
            self.kernels = []

        def launch(self, kernel, *args, **options):
            super().launch(kernel, *args, **options)
            self.kernels.append(kernel.py_func.__name__)

    host = stage_inputs()
    reference, _ = oracle.attention(*host, False, None)
    known = stage_names()
    for name in names:
        stage, variant = known[name]
        executor, problem = Noting(), Problem(*map(cupy.asarray, host))
        out = cupy.asarray(np.full(STAGE_SHAPE, np.nan, np.float16))
        stage.launch(problem, out, executor, variant=variant)
        error = float(np.abs(cupy.asnumpy(out) - reference).max())
        note(name, executor.kernels, error)


def child(launch, names: list[str], record: Path) -> None:
    """What runs under ncu: launches, and writes after each which kernels it launched."""
    done = []

    def note(name, kernels, error):
        done.append({"name": name, "kernels": kernels, "error": error})
        record.write_text(json.dumps(done))
        print(name, error, flush=True)

    launch(names, note)


# The measuring process


def find_ncu() -> str:
    found = shutil.which("ncu")
    places = sorted(glob("/usr/local/cuda*/bin/ncu") + glob("/opt/nvidia/nsight-compute/*/ncu"))
    if not found and not places:
        raise SystemExit("ncu (Nsight Compute) is not installed")
    return found or places[-1]


def run(command: list[str], limit: float) -> tuple[str, int | None]:
    """Output and exit status; status None when the limit ended the process and its children."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=max(1, limit))[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


def read_csv(text: str) -> list[dict[str, str]]:
    """ncu's `--page raw --csv`: one row a profiled kernel, in the order of launch."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = csv.DictReader(io.StringIO("\n".join(lines[first:])))
    return [row for row in rows if (row["ID"] or "").isdigit()]


def number(cell: str | None) -> int | None:
    found = re.match(r"\s*([\d,]+)", cell or "")
    return int(found[1].replace(",", "")) if found else None


def counters(row: dict[str, str]) -> dict[str, int]:
    """The measured counters of one kernel, by the simulator's names."""
    out = {name: number(row.get(metric)) for name, metric in COUNTERS.items()}
    return {name: count for name, count in out.items() if count is not None}


def profile(ncu: str, kind: str, names: list[str], scratch: Path, deadline: float) -> dict[str, dict]:
    """Launch these cases under ncu: name -> kernels, error and counters."""
    metrics = [*COUNTERS.values()]
    log, record = scratch / f"{kind}.csv", scratch / f"{kind}.json"
    for _ in range(2):
        command = [ncu, "--clock-control", "none", "--target-processes", "all", "--csv", "--page", "raw"]
        command += ["--log-file", str(log), "--metrics", ",".join(metrics)]
        command += [sys.executable, "-m", "tests.simulator.hardware", "--child", kind, str(record), *names]
        begun = time.monotonic()
        said, status = run(command, deadline - time.monotonic())
        text = log.read_text(errors="replace") if log.exists() else ""
        print(f"{kind}: exit status {status} after {time.monotonic() - begun:.0f} s", flush=True)
        rows = read_csv(text)
        if rows:
            break
        missing = re.findall(r"(?i)failed to find.*", text + said)
        unknown = [m for m in metrics if any(m.split(".")[0] in line for line in missing)]
        print(said[-1500:], text[-1500:], sep="\n", flush=True)
        if not unknown or deadline - time.monotonic() < 30:
            break
        metrics = [m for m in metrics if m not in unknown]
    done = json.loads(record.read_text()) if record.exists() else []
    out, position = {}, 0
    for entry in done:
        mine = rows[position : position + len(entry["kernels"])]
        position += len(entry["kernels"])
        if len(mine) < len(entry["kernels"]):
            break
        for kernel, row in zip(entry["kernels"], mine, strict=True):
            if kernel not in row.get("Kernel Name", ""):
                seen = row.get("Kernel Name")
                raise SystemExit(f"{entry['name']}: ncu saw {seen} where {kernel} was launched")
        measured = [counters(row) for row in mine]
        total = {name: sum(m.get(name, 0) for m in measured) for name in measured[0]}
        out[entry["name"]] = {"kernels": entry["kernels"], "error": entry["error"], "counters": total}
    return out


def describe() -> dict[str, str]:
    """GPU, driver, date and versions of a measurement."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = (part.strip() for part in run(query, 20)[0].splitlines()[0].split(","))
    commit, status = os.environ.get("FLASHCORE_COMMIT"), 0
    if not commit:
        commit, status = run(["git", "rev-parse", "HEAD"], 10)
    return {
        "gpu": gpu,
        "driver": driver,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit.strip() if status == 0 else "unknown",
        **{package: version(package) for package in ("numba", "numba-cuda", "numpy")},
    }


def measure(out: Path) -> None:
    ncu, deadline = find_ncu(), time.monotonic() + LIMIT
    out.mkdir(parents=True, exist_ok=True)
    document = {**describe(), "stage_shape": STAGE_SHAPE, "cases": {}}
    ncu_version = re.search(r"Version ([\d.]+)", run([ncu, "--version"], 20)[0])
    document["ncu"] = ncu_version[1] if ncu_version else "unknown"
    with tempfile.TemporaryDirectory() as scratch:
        first = time.monotonic() + 0.55 * (deadline - time.monotonic())
        steps = (("cases", list(cases()), first), ("stages", list(stage_names()), deadline))
        for kind, names, limit in steps:
            document["cases"].update(profile(ncu, kind, names, Path(scratch), limit))
            (out / "nsight_h200.json").write_text(json.dumps(document, indent=1) + "\n")
    asked = len(cases()) + len(stage_names())
    print(f"measured {len(document['cases'])} of {asked} cases", flush=True)
    compare(out / "nsight_h200.json")


# Comparing


def simulated(name: str) -> dict[str, int]:
    """The simulator's counters of one case, by the names of `COUNTERS`."""
    from flashcore_numba.executor import Simulator
    from flashcore_numba.problem import Problem
    from flashcore_numba.simulator import simulate

    if name.startswith("stage "):
        stage, variant = stage_names()[name]
        executor, out = Simulator(), np.full(STAGE_SHAPE, np.nan, np.float16)
        stage.launch(Problem(*stage_inputs()), out, executor, variant=variant)
        launches = executor.launches
    else:
        case = cases()[name]
        args = case.copy_args()
        launches = [simulate(case.kernel, case.grid, case.block, *args, shared_bytes=case.shared_bytes)]
    sums: dict[str, int] = {}
    for launch in launches:
        totals = launch.check().totals()
        totals["fp64"] = sum(totals.get(f"{kind}64", 0) for kind in ("fma", "add", "mul"))
        for counter in COUNTERS:
            sums[counter] = sums.get(counter, 0) + totals.get(counter, 0)
    return sums


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
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, record, *names = args.child
        child(launch_cases if kind == "cases" else launch_stages, names, Path(record))
    elif args.compare:
        compare(args.compare)
    elif args.out:
        measure(args.out)
    else:
        parser.error("OUT_DIR is missing")


if __name__ == "__main__":
    main()
