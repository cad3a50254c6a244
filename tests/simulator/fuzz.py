"""Random kernels in the simulator and in others: Numba's own, a plain one of greenlets, and a GPU.

    python -m tests.simulator.fuzz --count 5000 --seed 7      without a GPU; writes the record
    python -m tests.simulator.fuzz --gpu --count 5000         with one; prints a summary and the differences
    python -m tests.simulator.fuzz --against fuzz-h200.json   the GPU's values of that record, without a GPU

`check` says of one kernel, `check_mutant` of one planted fault, whether all agree.
"""

import argparse
import ast
import collections
import functools
import hashlib
import json
import linecache
import os
import pickle
import re
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
from numba.core.errors import NumbaError

from flashcore_numba.core import gpu
from flashcore_numba.records import environment, layout
from flashcore_numba.simulator import Launch, Unsupported, simulate

from .greenlet_oracle import Oracle
from .random_kernels import INPUTS, Kernel, Mutant, mutants
from .random_kernels import kernel as make

__all__ = ["Verdict", "agree", "check", "check_all", "check_mutant", "faults"]

TOLERANCE = {"float32": 2e-4, "float64": 1e-11}
"""Of rough outputs, whose values are at most 1: a thousand operations of some last bits each."""


@functools.lru_cache(maxsize=64)
def function(text: str):
    """The kernel of a source text; its lines can be read as if there were a file."""
    file = f"<fuzz {hashlib.sha1(text.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict = {"__name__": "fuzz"}
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"]


def run(kernel: Kernel, text: str, **options) -> tuple[Launch, dict[str, np.ndarray]]:
    """The simulator's launch, and the arguments after it by name."""
    args = kernel.arguments()
    return simulate(function(text), kernel.grid, kernel.block, *args.values(), **options), args


@functools.lru_cache(maxsize=64)
def run_oracle(kernel: Kernel) -> tuple[Oracle, dict[str, np.ndarray]]:
    """The oracle, and the arguments after it by name."""
    args = kernel.arguments()
    for name in INPUTS & args.keys():
        args[name].flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # integers that wrap
        return Oracle(function(kernel.explicit), kernel.grid, kernel.block, list(args.values())), args


def orders(kernel: Kernel) -> list[dict]:
    return [{"order": "forward"}, {"order": "reverse"}, {"order": f"random:{kernel.seed}"}, {"max_lanes": 1}]


def agree(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> list[str]:
    """Where two runs differ: bit for bit, and within the tolerance for what is rough."""
    different = []
    for name, array in want.items():
        if name[0] == "z":
            same = np.allclose(got[name], array, rtol=0, atol=TOLERANCE[name[2:]], equal_nan=True)
            where = np.abs(got[name] - array) > TOLERANCE[name[2:]]
        else:
            where = ~((got[name] == array) | ((got[name] != got[name]) & (array != array)))
            same = not where.any()
        if not same:
            place = tuple(int(n) for n in np.argwhere(where)[0])
            different.append(
                f"{name}{list(place)}: {got[name][place]} for {array[place]}; {int(where.sum())} differ"
            )
    return different


@dataclass
class Verdict:
    """What was found of one kernel: "equal", or what kind of fault, and its details."""

    seed: int
    kind: str
    details: list[str] = field(default_factory=list)

    def __str__(self):
        return f"seed {self.seed}: {self.kind}: {'; '.join(self.details)}"


def check(kernel: Kernel) -> Verdict:
    """One kernel in the simulator under each order, in both spellings, and in the oracle."""
    oracle, want = run_oracle(kernel)
    if oracle.fault or oracle.races or oracle.uninitialised:
        return Verdict(
            kernel.seed, "not well defined", [str(oracle.fault), str(oracle.races), str(oracle.uninitialised)]
        )
    runs = [(kernel.source, {}), (kernel.explicit, {})]
    runs += [(kernel.source, options) for options in orders(kernel)]
    totals = None
    for text, options in runs:
        side = "explicit" if text is kernel.explicit else "source"
        try:
            launch, got = run(kernel, text, **options)
        except Unsupported as error:
            return Verdict(kernel.seed, "refused", [f"{side} {options}", str(error)])
        except Exception as error:
            return Verdict(kernel.seed, "crash", [f"{side} {options}", f"{type(error).__name__}: {error}"])
        if launch.problems:
            return Verdict(kernel.seed, "false alarm", [f"{side} {options}", *map(str, launch.problems)])
        different = agree(got, want)
        if different:
            return Verdict(kernel.seed, "wrong value", [f"{side} {options}", *different])
        now = launch.totals()
        if side == "explicit":
            wrong = counts_differ(now, oracle)
            if wrong:
                return Verdict(kernel.seed, "wrong count", wrong)
        elif totals is None:
            totals = now
        elif "atomic cas" in kernel.features:  # which thread wins, and so which warp goes on, is the order's
            continue
        elif now != totals:
            wrong = [
                f"{key}: {now.get(key)} for {totals.get(key)}"
                for key in totals
                if now.get(key) != totals[key]
            ]
            return Verdict(kernel.seed, "totals by order", [f"{options}", *wrong])
    return Verdict(kernel.seed, "equal")


def counts_differ(totals: dict, oracle: Oracle) -> list[str]:
    """The counters that do not depend on how a diverged warp is put together again."""
    wrong = []
    expected = {"barriers": oracle.barriers}
    for (space, op), count in oracle.counts.items():
        expected[f"{space}_{op}_lanes"] = count["lanes"]
    for key, value in expected.items():
        if totals.get(key, 0) != value:
            wrong.append(f"{key}: {totals.get(key, 0)} for {value}")
    return wrong


def check_mutant(mutant: Mutant) -> Verdict:
    """Is the planted fault reported, or is it none?

    "reported": in the default order, and the oracle finds a fault too; "harmless": neither finds one, and all
    orders and the oracle compute the same; "another kernel": likewise, but not what the original computes, or
    a fault that only the winner of a compare-and-swap comes to, who is another thread in the oracle's order.
    Everything else is a fault of the simulator (or of the oracle): "silent", "false alarm", "wrong value".
    """
    kernel = mutant.kernel
    oracle, want = run_oracle(kernel)
    kinds = {"race": oracle.races, "uninitialised read": oracle.uninitialised}
    faults = [f"{name} of {sorted(found)[:3]}" for name, found in kinds.items() if found]
    if oracle.fault:
        faults.append(oracle.fault)
    details = [f"{mutant.kind}: {mutant.change}", f"oracle: {faults}"]
    for options in ({}, *orders(kernel)):
        try:
            launch, got = run(kernel, kernel.source, **options)
        except Exception as error:
            return Verdict(kernel.seed, "crash", [*details, f"{options} {type(error).__name__}: {error}"])
        if launch.problems and not faults:
            if options and "atomic cas" in kernel.features:  # which thread wins, and comes to the fault
                return Verdict(kernel.seed, "another kernel", details)
            return Verdict(kernel.seed, "false alarm", [*details, str(options), *map(str, launch.problems)])
        if faults and not options:
            return Verdict(kernel.seed, "reported" if launch.problems else "silent", details)
        if different := agree(got, want):
            return Verdict(kernel.seed, "wrong value", [*details, str(options), *different])
    same = not agree(want, run_oracle(mutant.original)[1])
    return Verdict(kernel.seed, "harmless" if same else "another kernel", details)


def reduced(kernel: Kernel, kind: str) -> Kernel:
    """The kernel without the statements that a verdict of this kind does not need."""
    at = 0
    while True:
        nodes = [node for node in ast.walk(ast.parse(kernel.source)) if isinstance(node, ast.stmt)]
        nodes = [node for node in nodes if not isinstance(node, ast.Pass | ast.Import | ast.ImportFrom)]
        nodes.sort(key=lambda node: node.lineno - 1000 * (node.end_lineno - node.lineno))
        for at in range(at, len(nodes)):  # noqa: B020
            smaller = _without(kernel, nodes[at])
            try:
                fits = check(smaller).kind == kind
            except Exception:
                fits = False
            if fits:
                kernel = smaller
                break
        else:
            return kernel


def _without(kernel: Kernel, node: ast.stmt) -> Kernel:
    """The kernel with one statement replaced by `pass`; the lines of both texts correspond."""
    texts = []
    for text in (kernel.source, kernel.explicit):
        lines = text.splitlines()
        indent = len(lines[node.lineno - 1]) - len(lines[node.lineno - 1].lstrip())
        lines[node.lineno - 1 : node.end_lineno] = [" " * indent + "pass"]
        texts.append("\n".join(lines) + "\n")
    return replace(kernel, source=texts[0], explicit=texts[1])


# Numba's own simulator


def cudasim_lacks(kernel: Kernel) -> str | None:
    """Why Numba's simulator cannot run a kernel; None when it can."""
    if "warp" in kernel.features:
        return "has no shuffles, votes and syncwarp"
    wide = [feature for feature in kernel.features if feature.endswith("of 64 bits")]
    return f"counts 32 bits: {wide[0]}" if wide else None


def run_cudasim(kernels: list[Kernel], timeout: float = 240) -> list[dict[str, np.ndarray] | str]:
    """The arguments after a launch in Numba's own simulator, or what went wrong there, for each kernel."""
    arguments = [kernel.arguments() for kernel in kernels]
    jobs = [
        (f"fuzz_{kernel.seed}", kernel.explicit, kernel.grid, kernel.block, list(args.values()))
        for kernel, args in zip(kernels, arguments, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder, "given"), Path(folder, "taken")
        given.write_bytes(pickle.dumps(jobs))
        program = Path(__file__).with_name("cudasim.py")
        done = subprocess.run(
            [sys.executable, str(program), str(given), str(taken)],
            env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
            timeout=timeout,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"Numba's simulator ended with {done.returncode}: {done.stderr[-2000:]}")
        results = pickle.loads(taken.read_bytes())
    return [
        result if isinstance(result, str) else dict(zip(args, result, strict=True))
        for args, result in zip(arguments, results, strict=True)
    ]


# On a GPU


def run_gpu(kernel: Kernel) -> dict[str, np.ndarray]:
    """The arguments after a launch on the GPU; raises what Numba raises for a kernel that it refuses."""
    from numba import cuda

    args = kernel.arguments()
    device = {name: cuda.to_device(array) for name, array in args.items()}
    function(kernel.source)[kernel.grid, kernel.block](*device.values())
    cuda.synchronize()
    return {name: array.copy_to_host() for name, array in device.items()}


def compare_on_gpu(seed: int) -> dict:
    """One kernel on the GPU, in the simulator and in the oracle: what became of it, without the arrays."""
    kernel = make(seed)
    found: dict = {"seed": seed, "kernel": fingerprint(kernel.source), "features": sorted(kernel.features)}
    try:
        want = run_gpu(kernel)
    except NumbaError as error:
        want, found["gpu"] = None, "refused: " + " ".join(str(error).split())[-300:]
    for name, compute in (
        ("simulator", lambda: run(kernel, kernel.source)),
        ("oracle", lambda: run_oracle(kernel)),
    ):
        try:
            result, got = compute()
        except Exception as error:
            found[name] = [f"{type(error).__name__}: {error}"[:400]]
            continue
        problems = [str(problem)[:400] for problem in getattr(result, "problems", [])]
        different = [] if want is None else agree(got, want)
        if problems or different:
            found[name] = problems + different[:4]
    return found


def fingerprint(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:12]


DIFFERENCE = re.compile(r"(\w+)(\[[\d, ]*\]): \S+ for (\S+); \d+ differ")
"""As `agree` writes it: the array, the place, and after `for` what the other machine computed."""


def compare_with_record(path: Path) -> list[str]:
    """What the simulator computes otherwise than the GPU, of the differences in a record of `--gpu`."""
    wrong = []
    for result in json.loads(path.read_text())["differences"]:
        kernel = make(result["seed"])
        if result.get("kernel") != fingerprint(kernel.source):
            wrong.append(f"seed {kernel.seed}: the generator writes another kernel now")
            continue
        if "simulator" not in result:
            continue
        try:
            launch, got = run(kernel, kernel.source)
        except Unsupported as error:
            wrong.append(f"seed {kernel.seed}: {error}")
            continue
        wrong += [f"seed {kernel.seed}: {problem}" for problem in launch.problems]
        for text in result["simulator"]:
            if not (match := DIFFERENCE.fullmatch(text)):
                continue  # a problem, which is asked for anew
            name, place, value = match.groups()
            here = tuple(json.loads(place))
            want = np.array([value]).astype(got[name].dtype)
            wrong += [
                f"seed {kernel.seed}: {text}" for text in agree({name: got[name][here][None]}, {name: want})
            ]
    return wrong


COMPARED = ("simulator", "oracle")
"""With the GPU: the keys of a result under which a difference stands."""


def gpu_worker(seeds: range, until: float) -> None:
    """One line of JSON for each seed, until the time is over."""
    warnings.simplefilter("ignore")
    for seed in seeds:
        if time.time() > until:
            return
        print(json.dumps(compare_on_gpu(seed)), flush=True)


class Worker:
    """A process that works through seeds; one that is silent for too long is ended, and goes on after it."""

    def __init__(self, seeds: range, until: float, silence: float):
        self.seeds, self.until, self.silence = seeds, until, silence
        self.results: list[dict] = []
        self.start()

    def start(self):
        rest = self.seeds[len(self.results) :]
        command = [sys.executable, "-m", __spec__.name, "--worker", f"{rest.start}:{rest.stop}:{rest.step}"]
        self.said, self.errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--until", str(self.until)], stdout=self.said, stderr=self.errors
        )
        self.heard, self.read = time.time(), 0

    def poll(self) -> bool:
        """Collect what it has said; False when it has ended."""
        over = self.process.poll() is not None
        self.said.seek(0)
        lines = self.said.read().split("\n")[self.read : -1]
        self.read += len(lines)
        for line in lines:
            self.results.append(json.loads(line))
            self.heard = time.time()
        if over and self.process.returncode == 0:
            return False
        silent = time.time() - self.heard > self.silence
        if not (over or silent):
            return True
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        why = "no word for too long" if silent else f"ended with {self.process.returncode}"
        seed = self.seeds[len(self.results)]
        self.results.append({"seed": seed, "gpu": f"{why}: {self.errors.read()[-500:]}"})
        if len(self.results) < len(self.seeds) and time.time() < self.until:
            self.start()
            return True
        return False


def gpu_main(first: int, count: int, jobs: int, seconds: float, out: Path) -> int:
    began = time.time()
    until = began + seconds
    workers = [Worker(range(first + n, first + count, jobs), until, 60) for n in range(min(jobs, count))]
    running = workers
    while running:
        time.sleep(0.2)
        running = [worker for worker in running if worker.poll()]
    results = sorted((result for worker in workers for result in worker.results), key=lambda r: r["seed"])
    ran = [result for result in results if "gpu" not in result]
    odd = [result for result in results if result.keys() & {"gpu", *COMPARED}]
    record = {
        **header(first),
        "gpu": gpu.name(),
        "kernels": len(results),
        "seconds": round(time.time() - began),
        "ran on the GPU": len(ran),
        "refused or broken there": len(results) - len(ran),
        **{
            name: dict(collections.Counter("differs" if name in result else "equal" for result in ran))
            for name in COMPARED
        },
        "features": dict(collections.Counter(f for result in ran for f in result["features"])),
    }
    print(json.dumps(record, indent=1))
    for result in odd[:40]:
        print(json.dumps(result)[:700])
    layout.save({**record, "differences": odd}, out, "differences")
    return bool(odd)


# Many kernels without a GPU


RIGHT = {
    "simulator": {"equal"},
    "Numba's simulator": {"equal", "not run"},
    "mutants": {"reported", "harmless", "another kernel"},
}
"""The verdicts that are no fault."""


def check_all(seeds: Sequence[int]) -> dict[str, list[Verdict]]:
    """Kernels in the simulator, in the oracle and in Numba's simulator, and their mutants: all verdicts."""
    kernels = [make(seed) for seed in seeds]
    can = [kernel for kernel in kernels if cudasim_lacks(kernel) is None]
    theirs = [
        Verdict(kernel.seed, f"not run: it {lacks}")
        for kernel in kernels
        if (lacks := cudasim_lacks(kernel)) is not None
    ]
    for kernel, want in zip(can, run_cudasim(can), strict=True):
        if isinstance(want, str):
            theirs.append(Verdict(kernel.seed, "broken there", [want]))
            continue
        different = agree(run_oracle(kernel)[1], want)
        theirs.append(Verdict(kernel.seed, "differs" if different else "equal", different))
    verdicts = {"simulator": [check(kernel) for kernel in kernels], "Numba's simulator": theirs}
    for mutant in (mutant for kernel in kernels for mutant in mutants(kernel)):
        verdicts.setdefault(f"mutants, {mutant.kind}", []).append(check_mutant(mutant))
    return verdicts


def faults(verdicts: dict[str, list[Verdict]]) -> list[str]:
    """Those verdicts that are faults, as text."""
    return [
        f"{who}: {verdict}"
        for who, found in verdicts.items()
        for verdict in found
        if verdict.kind.split(":")[0] not in RIGHT[who.split(",")[0]]
    ]


def cpu_main(first: int, count: int, jobs: int, seconds: float, out: Path) -> int:
    """Check kernels in batches, several at a time; the record is written after each."""
    began, batch = time.time(), 20
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    wrong: list[str] = []
    with ProcessPoolExecutor(jobs) as pool:
        starts = iter(range(first, first + count, batch))
        running = {
            pool.submit(check_all, range(s, min(s + batch, first + count))) for s in islice(starts, jobs)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                verdicts = future.result()
                for who, found in verdicts.items():
                    counts[who].update(verdict.kind for verdict in found)
                new = faults(verdicts)
                wrong += new
                for text in new:
                    print(text[:800], flush=True)
                if time.time() - began < seconds:
                    running |= {
                        pool.submit(check_all, range(s, min(s + batch, first + count)))
                        for s in islice(starts, 1)
                    }
            record = {
                **header(first),
                "kernels": sum(counts["simulator"].values()),
                "seconds": round(time.time() - began),
                **{who: dict(sorted(counter.items())) for who, counter in sorted(counts.items())},
                "faults": wrong,
            }
            layout.save(record, out, "faults")
            print({who: dict(counter) for who, counter in counts.items()}, flush=True)
    return bool(wrong)


NOT_GENERATED = {
    "signed + - * past 64 bits": "Numba marks them nsw: LLVM takes it that they do not overflow",
    "// and % of floats whose quotient is rounded": "LLVM computes with the sign of an exact remainder, the "
    "GPU's has another where the quotient was rounded up; the simulator takes the GPU's steps as they are",
    "- and abs of int16": "the assembler leaves 32768 for -(-32768)",
    "conditions of literals alone": "Numba leaves the other side out, and its types",
}
"""What no random kernel does, and why; an H200 showed each."""


def header(first: int) -> dict:
    """When and with what a record was made."""
    return {
        "date": environment.today(),
        "commit": environment.commit()[0],
        "versions": {name: version(name) for name in ("numba", "numba-cuda", "numpy")},
        "first_seed": first,
        "not_generated": NOT_GENERATED,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="compare with the GPU")
    parser.add_argument("--count", type=int, default=1000, help="kernels")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; a fresh one without it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"), help="where the result goes")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--against", type=Path, help="compare with the record of a run with a GPU")
    parser.add_argument("--reduce", type=int, help="print what is left of the kernel of this seed")
    options = parser.parse_args()
    if options.reduce is not None:
        kernel = make(options.reduce)
        verdict = check(kernel)
        small = reduced(kernel, verdict.kind)
        print(small.source, small.explicit, check(small), sep="\n")
        return 0
    if options.against:
        wrong = compare_with_record(options.against)
        print(*wrong, f"{len(wrong)} differences left", sep="\n")
        return bool(wrong)
    if options.worker:
        gpu_worker(range(*map(int, options.worker.split(":"))), options.until)
        return 0
    if options.gpu and not gpu.available():
        sys.exit(f"no GPU: {gpu.why_not()}")
    first = secrets.randbits(31) if options.seed is None else options.seed
    print(f"seeds from {first}", flush=True)
    job = gpu_main if options.gpu else cpu_main
    return job(first, options.count, options.jobs, options.seconds, options.out)


if __name__ == "__main__":
    sys.exit(main())
