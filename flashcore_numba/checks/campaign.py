"""Random edits of the stages in CUDA C, on the CPU executor and on a GPU: does the executor miss one?

    python -m flashcore_numba.checks draw FILE      # edits, and what the executor says of them
    python -m flashcore_numba.checks cpu FILE       # what it says of the same edits now
    python -m flashcore_numba.checks gpu FILE       # what a GPU makes of them
    python -m flashcore_numba.checks sanitize FILE  # what compute-sanitizer says where the GPU was right
    python -m flashcore_numba.checks record FILE    # the campaign becomes the package's record of one

Every edit runs in a process of its own, which may hang or crash without harm.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from cuda_reference import Source
from cuda_reference.files import MachineError
from flashcore_numba.checks.bounds import Reference, judge, judge_lse, reference
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.edits import RandomEdit, random_edits
from flashcore_numba.checks.mutation import loaded
from flashcore_numba.checks.trial import Failed, Inputs, Trial
from flashcore_numba.core import gpu
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.wrapping import Idle
from flashcore_numba.records import layout
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.pool import run as processes
from flashcore_numba.stages import LADDER, Stage, files
from flashcore_numba.stages.edited import Edit
from flashcore_numba.stages.find import find

STAGES = tuple(stage for stage in LADDER if stage.language == "CUDA C")
REJECTED = ("does not compile", "same machine code")
LAUNCH_SECONDS = {"cpu": 100, "gpu": 30, "sanitizer": 100}  # that one launch may take, with its compilation
EDIT_SECONDS = 400  # that all launches of an edit may take
FIELDS = {"cpu": "executor", "gpu": "gpu"}  # of an edit in a campaign's file
RECORD = Path(__file__).parents[1] / "records/data/trust/edits.json"
TOOLS = ("racecheck", "memcheck", "synccheck")
SMALL_LAUNCHES, LARGE_LAUNCHES = 3, 4  # of each run on a GPU, with inputs of their own


@dataclass(frozen=True)
class Run:
    """One problem for a variant: shape is B, H, H_kv, S_q, S_k, D.

    rising: scores rise by about 50. far: they are above 1e9 or, from row 16 on, below -1e9. sm_count: what a
    launcher is told of, on the executor.
    """

    name: str
    shape: tuple[int, int, int, int, int, int]
    causal: bool = False
    scale: float | None = None
    rising: bool = False
    far: bool = False
    variant: str | None = None
    sm_count: int = EXAMPLE_SM_COUNT
    large: bool = False
    layout: str = "inside"

    def inputs(self, seed: int) -> Inputs:
        batch, heads, kv_heads, seq_q, seq_k, head_dim = self.shape
        rng = np.random.default_rng([seed, *self.shape, self.causal])
        x = normal(rng, batch, heads, seq_q, seq_k, head_dim, kv_heads, causal=self.causal, scale=self.scale)
        if self.far:
            q, k = (rng.uniform(2.5e4, 6.5e4, each.shape) for each in (x.q, x.k))
            q[:, :, 16:] *= -1  # whole warps of both kinds
            return x.but(q=FLOAT16.round(q), k=FLOAT16.round(k))
        if not self.rising:
            return x
        direction = rng.standard_normal(head_dim)
        direction *= 20 / np.linalg.norm(direction)
        k = 0.1 * x.k + np.outer(1 - np.abs(np.linspace(-1, 1, seq_k)), direction)
        return x.but(q=FLOAT16.round(0.1 * x.q + direction), k=FLOAT16.round(k))

    @property
    def seeds(self) -> int:
        """How many different inputs: the references of large ones take longer than launches."""
        return 2 if self.large else SMALL_LAUNCHES

    @property
    def label(self) -> str:
        return self.name if self.variant is None else f"{self.name} ({self.variant})"


def _run(name: str, variant: str | None = None, sm_count: int = EXAMPLE_SM_COUNT) -> Run:
    shape, options = SHAPES[name]
    return Run(name, shape, variant=variant, sm_count=sm_count, **options)


# Several tiles of every stage; whole tiles, and one row or key more; grouped queries; rows that see no key;
# arrays whose strides are all different. Few enough to be quick.
SHAPES: dict[str, tuple[tuple[int, int, int, int, int, int], dict[str, Any]]] = {
    "plain": ((1, 2, 1, 65, 385, 64), {}),
    "causal": ((2, 4, 2, 97, 219, 64), {"causal": True, "layout": "mixed"}),
    "rising": ((1, 1, 1, 40, 768, 64), {"rising": True}),
    "blind": ((1, 1, 1, 70, 33, 64), {"causal": True, "scale": -0.3}),
    "far": ((1, 1, 1, 40, 70, 64), {"far": True}),
    "zero": ((1, 1, 1, 20, 70, 64), {"scale": 0.0}),
    "wide": ((1, 2, 1, 50, 193, 128), {"causal": True}),
    "long": ((1, 1, 1, 20, 1100, 64), {}),
    "large": ((1, 16, 4, 1037, 1089, 64), {"large": True}),
    "large causal": ((2, 12, 12, 1300, 1300, 64), {"large": True, "causal": True, "layout": "mixed"}),
    "large wide": ((1, 8, 2, 700, 900, 128), {"large": True, "causal": True}),
}


FEW = (_run("plain"), _run("causal"), _run("rising"), _run("blind"), _run("far"))
PLANS: dict[int, tuple[Run, ...]] = {
    7: FEW,
    8: FEW,
    9: (*FEW, _run("wide")),
    10: (
        _run("plain", "2"),
        _run("causal", "3"),
        _run("rising", "2"),
        _run("blind", "1"),
        _run("wide", "2"),
        _run("far", "2"),
    ),
    11: (
        _run("plain", "5"),
        _run("causal", "3"),
        _run("rising", "5"),
        _run("blind", "0"),
        _run("wide", "5"),
        _run("far", "5"),
    ),
    12: (
        *(_run("plain", "large"), _run("causal", "medium"), _run("rising", "large"), _run("blind")),
        *(_run("plain", "small"), _run("wide", "large"), _run("far", "large"), _run("zero")),
    ),
    13: (
        *(_run("plain", "two_splits"), _run("causal", "unsplit", 1), _run("rising", "two_splits")),
        *(_run("blind"), _run("causal", "persistent", 1), _run("wide"), _run("far"), _run("zero")),
    ),
    14: (*FEW, _run("wide"), _run("zero")),
    15: (
        *(_run("plain", "ping_pong"), _run("causal", "ping_pong", 1), _run("rising", "ping_pong")),
        *(_run("blind", "in_sequence"), _run("wide", "ping_pong"), _run("far", "ping_pong")),
        _run("zero", "ping_pong"),
    ),
    16: (
        *(_run("long", "two_blocks"), _run("plain", "one_block"), _run("causal"), _run("long", "one_block")),
        *(_run("blind", "overlapped"), _run("rising", "two_blocks"), _run("wide", "two_blocks")),
        *(_run("far"), _run("zero")),
    ),
}
"""What each stage runs, the most telling first."""


def runs(stage: Stage, large: bool = False) -> list[Run]:
    """The runs of a stage; `large`: and those of thousands of rows, for each variant once."""
    small = list(PLANS[stage.place])
    if not large:
        return small
    variants = list(dict.fromkeys(run.variant for run in small))
    names = ["large", "large causal", *(["large wide"] if 128 in stage.head_dims else [])]
    return small + [_run(name, variant) for variant in variants for name in names]


# One process and one edit: what `_one` writes, a line of JSON for each thing it has found out.


def _executor_says(edit: RandomEdit, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Runs an edit on the CPU executor under three schedules, up to the first run that says something."""
    with loaded(edit.mutant) as stage:
        for run in runs(stage):
            for order in ("lockstep", "reverse", f"random:{seed}"):
                yield {"run": run.label, "order": order, **_verdict(stage, run, seed, "simulator", order)}


def _gpu_says(edit: RandomEdit, folder: Path) -> Iterator[dict[str, Any]]:
    """Runs an edit on a GPU beside other work, up to the first launch that goes wrong."""
    disturbance = _Disturbance()
    with loaded(edit.mutant) as stage:
        for run in runs(stage, large=True):
            for number in range(LARGE_LAUNCHES if run.large else SMALL_LAUNCHES):
                disturbance.begin(number)
                yield {"run": run.label, **_verdict(stage, run, number % run.seeds, "gpu", folder=folder)}


def _sanitizer_says(edit: RandomEdit, folder: Path) -> Iterator[dict[str, Any]]:
    """Runs an edit once on each of its small problems, under compute-sanitizer."""
    with loaded(edit.mutant) as stage:
        for run in runs(stage):
            yield {"run": run.label, **_verdict(stage, run, 0, "gpu", folder=folder)}


def _verdict(
    stage: Stage, run: Run, seed: int, backend: str, order: str = "lockstep", folder: Path | None = None
) -> dict[str, str]:
    inputs = run.inputs(seed)
    try:
        answer = Trial(stage, run.variant, backend)(inputs, run.layout, order, run.sm_count)
    except Failed as failure:
        values = failure.kind in ("unwritten", "guard")
        return {"verdict": "wrong" if values else "reported", "kind": failure.kind, "said": failure.text}
    except Exception as error:
        return {"verdict": _of_exception(error), "kind": type(error).__name__, "said": str(error)}
    ref = _reference(run, inputs, seed, folder)
    verdicts = {"out": judge(answer.out, ref)}
    if stage.returns_lse:
        verdicts["LSE"] = judge_lse(answer.lse, ref)
    for what, found in verdicts.items():
        if not found.passed:
            said = f"{what}{list(found.where)}: {found.reason}, off by {found.error:.3g}"
            return {"verdict": "wrong", "kind": "value", "said": said}
    return {"verdict": "right"}


def _of_exception(error: Exception) -> str:
    name = type(error).__name__
    if name == "CompileError":
        return "does not compile"
    if name in ("ValueError", "SourceError", "UnsupportedError", "SharedMemoryError"):
        return "refused"
    return "faults" if name.startswith("CUDA") else "crash"


def _reference(run: Run, inputs: Inputs, seed: int, folder: Path | None) -> Reference:
    """Kept in `folder`, where there is one: those of large runs take seconds."""
    arguments = (inputs.q, inputs.k, inputs.v, inputs.causal, inputs.scale)
    if folder is None:
        return reference(*arguments)
    path = folder / f"{sha256(repr((run.name, run.shape, seed)).encode()).hexdigest()[:16]}.npz"
    if not path.exists():
        found = reference(*arguments)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npz", delete=False) as file:
            np.savez(file, **vars(found))
        Path(file.name).replace(path)
    with np.load(path) as arrays:
        return Reference(**arrays)


class _Disturbance:
    """What makes races and missing initialisations show on a GPU: NaN in shared memory, registers and fresh
    allocations, and other kernels that run beside.
    """

    CODE = r"""
    extern "C" __global__ void poison(unsigned* sink, int bytes) {
        extern __shared__ unsigned words[];
        unsigned registers[160];
        for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) words[i] = 0x7fff7fffu;
        __syncthreads();  // every word is poisoned before registers are filled from it
    #pragma unroll
        for (int i = 0; i < 160; i++) registers[i] = words[(threadIdx.x + i) % (bytes / 4)];
        unsigned sum = 0;
    #pragma unroll
        for (int i = 0; i < 160; i++) sum ^= registers[i] * (i + threadIdx.x);
        if (sum == 12345u) *sink = sum;
    }
    extern "C" __global__ void busy(unsigned* sink, long long cycles) {
        const long long end = clock64() + cycles;
        unsigned x = threadIdx.x;
        while (clock64() < end) {
            for (int i = 0; i < 32; i++) x = x * 1664525u + sink[(x >> 8) % 4096];
        }
        if (x == 12345u) *sink = x;
    }
    """

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        module = cupy.RawModule(code=self.CODE)
        self.poison, self.busy = module.get_function("poison"), module.get_function("busy")
        self.bytes = 200 * 1024
        self.poison.max_dynamic_shared_size_bytes = self.bytes
        self.sink = cupy.zeros(4096, np.uint32)
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        pool = cupy.cuda.MemoryPool()

        def poisoned(size: int) -> Any:
            memory = pool.malloc(size)
            memory.memset(0xFF, size)
            return memory

        cupy.cuda.set_allocator(poisoned)

    def begin(self, number: int) -> None:
        multiprocessors = self.cupy.cuda.Device().attributes["MultiProcessorCount"]
        self.poison((2 * multiprocessors,), (256,), (self.sink, np.int32(self.bytes)), shared_mem=self.bytes)
        self.cupy.cuda.Device().synchronize()
        for stream in self.streams[: number % 3]:
            with stream:
                cycles = np.int64(10 ** (5 + number % 3))
                self.busy((multiprocessors // (2 + number % 2),), (128,), (self.sink, cycles))


def _one(edit: RandomEdit, backend: str, folder: Path, target: str, seconds: int) -> None:
    """Judges an edit and ends the process; each thing found out becomes a line of file `target`, the first
    of them that a GPU's compiler has ended.
    """
    signal.alarm(seconds)  # what it kills has hung
    if backend != "sanitizer":  # who judges removes it, however this ends
        tempfile.tempdir = os.environ["TMPDIR"] = str(Path(target).parent)
    with Path(target).open("a") as file:
        if backend == "cpu":
            refused = None if edit.kind == "none" else _not_worth_it(edit)
            said = iter([refused]) if refused else _executor_says(edit)
        else:
            said = (_gpu_says if backend == "gpu" else _sanitizer_says)(edit, folder)
        print(json.dumps({"compiles": True}), file=file, flush=True)
        signal.alarm(seconds)
        for line in said:
            print(json.dumps(line), file=file, flush=True)
            signal.alarm(seconds)
            if line["verdict"] != "right" and backend != "sanitizer":
                break
    os._exit(0)  # a context that a kernel broke cannot be torn down in order


def _not_worth_it(edit: RandomEdit) -> dict[str, str] | None:
    """Whether an edit does not compile for a GPU, or becomes the machine code of the stage as it is."""
    from cuda_reference.compile import CompileError, compile, why_not

    if why_not():
        return None
    with loaded(edit.mutant) as stage:
        own, edited = _sources(find(edit.stage)), _sources(stage)
        if len(own) != len(edited):
            return None
        for before, after in zip(own, edited, strict=True):
            try:
                code = _machine_code(compile(after, (9, 0)).cubin)
            except CompileError as error:
                return {"verdict": "does not compile", "kind": "NVRTC", "said": str(error)}
            if code != _machine_code(compile(before, (9, 0)).cubin):
                return None
    return {"verdict": "same machine code"}


def _sources(stage: Stage) -> list[Source]:
    """What the stage's runs launch."""
    kernels: dict[Source, None] = {}

    class Launched(Idle):
        def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
            kernels[kernel] = None

    for run in runs(stage):
        x = run.inputs(0)
        executor = Launched(run.sm_count)
        stage.run(x.problem(x.arrays), executor, run.variant, np.empty)
    return list(kernels)


def _machine_code(cubin: Path) -> dict[str, bytes]:
    """The instructions of each function in an ELF file, without names of files and numbers of lines."""
    data = cubin.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]

    def name(header: tuple) -> str:
        start = headers[names][4] + header[0]
        return data[start : data.index(b"\0", start)].decode()

    code = {name(header): data[header[4] : header[4] + header[5]] for header in headers}
    return {name: bytes_ for name, bytes_ in code.items() if name.startswith(".text.")}


# The campaign: many such processes.


def judged(
    edit: RandomEdit, backend: str = "cpu", folder: Path = Path(), seconds: int | None = None
) -> dict[str, Any]:
    """What became of an edit in a process of its own.

    backend: "cpu" or "gpu". folder: where references are kept, for "gpu". seconds: that a launch may take, or
    a GPU's compiler before them; LAUNCH_SECONDS by default. `verdict` is "reported", "refused", "wrong" or
    "right", as its runs said; "faults", a GPU's error; "hangs" or "crash", as the process ended; "does not
    compile" or "same machine code", where it is no edit worth running. `kind` and `said` tell more.
    Raises MachineError where the process failed before the edit could.
    """
    # What a forked process need not import again saves two seconds; CUDA does not outlive a fork.
    forked, fresh = multiprocessing.get_context("forkserver"), multiprocessing.get_context("spawn")
    start = forked.Process if backend == "cpu" else fresh.Process
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashcore-edit-", ignore_cleanup_errors=True) as place:
        seconds, target = seconds or LAUNCH_SECONDS[backend], Path(place) / "said"
        target.touch()
        process = start(target=_one, args=(edit, backend, folder, str(target), seconds))
        process.start()
        process.join(EDIT_SECONDS)
        if stopped := process.is_alive():
            process.kill()
            process.join()
        compiles, *lines = [json.loads(line) for line in target.read_text().splitlines()] or [None]
    last = lines[-1] if lines else {}
    found: dict[str, Any] = {"launches": len(lines), "seconds": round(time.monotonic() - started, 1)}
    if last.get("verdict", "right") != "right" or (process.exitcode == 0 and lines):
        found |= last
    elif process.exitcode == -signal.SIGALRM and not compiles:
        found |= {"verdict": "does not compile", "kind": "NVRTC", "said": f"it takes more than {seconds} s"}
    elif (process.exitcode or 0) < 0 and not compiles and not stopped:
        # ptxas of CUDA 13 does that where an mbarrier has 0 arrivals.
        found |= {"verdict": "does not compile", "kind": "NVRTC", "said": "the compiler crashed"}
    elif process.exitcode in (-signal.SIGALRM, -signal.SIGKILL):
        found |= {"verdict": "hangs", "said": f"after the run {last.get('run')}"}
    elif process.exitcode is not None and process.exitcode > 0:  # an exception of ours, not of the edit
        raise MachineError(f"{edit.mutant.mistake}: not judged, its process failed")
    else:
        found |= {
            "verdict": "crash",
            "said": f"exit status {process.exitcode} after the run {last.get('run')}",
        }
    return found | {"said": found["said"][:300]} if "said" in found else found


class _Store:
    """The file of a campaign, written whole after every verdict: a campaign can go on where it was.

    new: there may be no such file yet. Raises ArgumentError for a file without edits.
    """

    def __init__(self, path: Path, new: bool = False) -> None:
        self.path, self.lock = path, threading.Lock()
        self.data: dict[str, Any] = {"seed": None, "edits": [], "rejected": {}}
        try:
            if path.exists() or not new:
                self.data = json.loads(path.read_text())
            holds_edits = bool(self.data["edits"]) or new
        except OSError as error:
            raise ArgumentError(f"{str(path)!r}: cannot be read ({error.strerror})") from None
        except (ValueError, TypeError, KeyError):
            holds_edits = False
        if not holds_edits:
            raise ArgumentError(f"{str(path)!r}: holds no edits; a file that `draw` has written is accepted")
        if not path.absolute().parent.is_dir():
            raise ArgumentError(f"{str(path)!r}: cannot be written, there is no such folder")

    def change(self, say: str = "") -> contextlib.AbstractContextManager:
        @contextlib.contextmanager
        def changing() -> Iterator[dict[str, Any]]:
            with self.lock:
                yield self.data
                layout.save(self.data, self.path, "controls", "edits")
                if say:
                    print(say, flush=True)

        return changing()


def _key(edit: dict[str, Any]) -> str:
    return sha256(json.dumps([edit["stage"], edit["edit"]]).encode()).hexdigest()[:16]


def _draw(store: _Store, seed: int, count: int, jobs: int, end: float) -> None:
    """`count` edits of each stage that compile to something new, and what the executor says of each."""
    with store.change(f"seed {seed}") as data:
        if data["seed"] not in (None, seed):
            raise ArgumentError(f"--seed {seed}: {str(store.path)!r} was drawn from seed {data['seed']}")
        data["seed"] = seed

    def fill(stage: Stage) -> None:
        # A class that often does not compile gets as many chances as it needs.
        got: dict[str, int] = {}
        for item in store.data["edits"]:
            if item["stage"] == stage.place:
                got[item["kind"]] = got.get(item["kind"], 0) + 1
        known = {_key(item) for item in store.data["edits"]} | set(store.data["rejected"])
        most = math.ceil(count / 14)
        for edit in random_edits(stage, np.random.default_rng([seed, stage.place])):
            if sum(got.values()) >= count or time.monotonic() > end:
                break
            item = edit.as_dict()
            if _key(item) in known or got.get(edit.kind, 0) >= most:
                continue
            found = judged(edit)
            with store.change(
                f"{found['verdict']:18} {found['seconds']:5} s  {edit.mutant.mistake[:150]}"
            ) as data:
                if found["verdict"] in REJECTED:
                    data["rejected"][_key(item)] = found["verdict"]
                else:
                    got[edit.kind] = got.get(edit.kind, 0) + 1
                    data["edits"].append(item | {"executor": found})

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(fill, STAGES))


def control(stage: Stage) -> RandomEdit:
    """No edit at all: what is judged right has to be this."""
    (kernel,) = files.kernels_of(stage.place)
    first = kernel.read_text().partition("\n")[0]
    return RandomEdit(stage.place, "none", kernel.name, 1, "", "", Edit(first, first, kernel.name))


def _with_controls(store: _Store) -> list[dict[str, Any]]:
    """The file's edits, and before them every stage as it is."""
    known = {item["stage"] for item in store.data.setdefault("controls", [])}
    store.data["controls"] += [control(stage).as_dict() for stage in STAGES if stage.place not in known]
    return [*store.data["controls"], *store.data["edits"]]


def _silent_first(item: dict[str, Any]) -> tuple[bool, bool]:
    """A campaign that runs out of time has then judged what matters most."""
    return item["kind"] != "none", item.get("executor", {}).get("verdict") != "right"


def _edit_of(item: dict[str, Any]) -> RandomEdit:
    return RandomEdit.of({key: item[key] for key in RandomEdit.__dataclass_fields__})


def _again(store: _Store, backend: str, jobs: int, keep: bool, end: float) -> bool:
    """Every edit of the file on the executor or on a GPU; keep: those that have a verdict keep it. Returns
    whether the controls are right.
    """
    field = FIELDS[backend]
    wanted = [item for item in _with_controls(store) if not (keep and field in item)]
    wanted.sort(key=_silent_first)

    with (
        tempfile.TemporaryDirectory(prefix="flashcore-references-") as name,
        ThreadPoolExecutor(jobs) as pool,
    ):
        folder = Path(name)
        if backend == "gpu":
            stages = {item["stage"] for item in wanted}
            known = {run.name: run for number in stages for run in runs(find(number), large=True)}
            references = [(run, seed, folder) for run in known.values() for seed in range(run.seeds)]
            processes(_keep_reference, references, jobs)

        def judge_one(item: dict[str, Any]) -> None:
            if time.monotonic() > end:
                return
            edit = _edit_of(item)
            found = judged(edit, backend, folder)
            with store.change(f"{found['verdict']:18} {found['seconds']:5} s  {edit.mutant.mistake[:150]}"):
                item[field] = found

        list(pool.map(judge_one, wanted))
    print("\n".join(summary([item for item in store.data["edits"] if "executor" in item])))
    wrong = [item for item in store.data["controls"] if not _is_right(item, field)]
    for item in wrong:
        print(f"not right without an edit: {item['file']}: {item.get(field, 'not run')}")
    return not wrong


def _is_right(item: dict[str, Any], field: str) -> bool:
    return item.get(field, {}).get("verdict") == "right"


def _refuse_wrong_controls(store: _Store) -> None:
    """Raises ArgumentError where edits have verdicts of something that does not find every stage right."""
    controls = store.data.get("controls", [])
    for action, field in FIELDS.items():
        right = {item["stage"] for item in controls if _is_right(item, field)}
        wrong = [stage.label for stage in STAGES if stage.place not in right]
        if wrong and any(field in item for item in store.data["edits"]):
            raise ArgumentError(
                f"{str(store.path)!r}: not right without an edit, or not run, on the {action}: "
                f"{', '.join(wrong)}"
            )


def _keep_reference(run: Run, seed: int, folder: Path) -> None:
    _reference(run, run.inputs(seed), seed, folder)


def _sanitize(store: _Store, program: str, jobs: int, end: float) -> None:
    """compute-sanitizer on what a GPU's values did not show, first what the executor says nothing of."""
    wanted = [item for item in _with_controls(store) if item.get("gpu", {}).get("verdict") == "right"]
    wanted.sort(key=_silent_first)

    with (
        tempfile.TemporaryDirectory(prefix="flashcore-references-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):

        def judge_one(job: tuple[dict[str, Any], str]) -> None:
            item, tool = job
            if time.monotonic() > end:
                return
            edit = _edit_of(item)
            command = (
                program,
                "--tool",
                tool,
                "--print-limit",
                "3",
                sys.executable,
                "-m",
                "flashcore_numba.checks",
            )
            try:
                done = subprocess.run(
                    [*command, "one", folder],
                    input=json.dumps(edit.as_dict()),
                    capture_output=True,
                    text=True,
                    timeout=150,
                )
            except subprocess.TimeoutExpired:
                done = subprocess.CompletedProcess(command, 124, "========= no answer in 150 s: Error", "")
            status, out = done.returncode, done.stdout
            told = [line.strip("= ") for line in out.splitlines() if line.startswith("=========")]
            words = ("Error", "Warning", "Invalid", "Barrier", "SUMMARY", "Internal", "not supported")
            said = "; ".join(line for line in told if any(word in line for word in words))
            with store.change(f"{tool:10} {said[:70]:70} {edit.mutant.mistake[:110]}"):
                item.setdefault("sanitizer", {})[tool] = said[:300] or f"exit status {status}"

        jobs_ = [(item, tool) for tool in TOOLS for item in wanted]
        list(pool.map(judge_one, jobs_))


CONCLUSIONS = {
    "reported": "the executor named a problem, or refused the launch",
    "wrong value": "only the comparison with float64 noticed",
    "missed": "the executor saw nothing wrong, and the GPU went wrong",
    "harmless": "neither saw anything wrong",
    "executor fault": "the executor itself crashed or hung",
}
"""What the two verdicts on an edit can say together."""

UNSEEN = "The block also walks over tiles that none of its rows sees, and masks all of their keys."
INDEPENDENT = "Neither of the two statements needs the other."
SAME_ROW = "The 8 lanes of a row have the same m and l: another one writes them."
# Why nothing goes wrong: (file, where `before` begins, where `after` begins) -> reason.
REASONS: dict[tuple[str, str, str], str] = {
    ("stage07_wmma_qk.cu", "const int last_row", ""): UNSEEN,
    ("stage10_pipeline.cu", "const int last_row", ""): UNSEEN,
    ("stage07_wmma_qk.cu", "tile::load_tile<ROWS", "twice"): "Each thread stores the same bytes again.",
    ("stage08_wmma_full.cu", "multiply_qk(", "twice"): "The same warp stores the same S again.",
    ("stage16_cluster_split.cu", "for (int i = 2 * r;", "twice"): "Each lane stores the same bytes again.",
    ("stage08_wmma_full.cu", "__syncthreads();", "twice"): "The second barrier has nothing to order.",
    ("stage13_split_kv.cu", "if (PERSISTENT)", "if (true)"): "One barrier more, after the last use.",
    ("tile.cuh", "if (CHUNKS % THREADS", ""): "The rest of the condition is false where it is not needed.",
    ("stage08_wmma_full.cu", "wmma::load_matrix_sync(q", "after"): INDEPENDENT,
    ("stage11_warp_specialized.cu", "if (multiplies)", "after"): INDEPENDENT,
    ("stage13_split_kv.cu", "const int end_step", "after"): INDEPENDENT,
    ("stage09_async_copy.cu", "const Interval row_keys", ""): "The minimum of two numbers has no order.",
    (
        "stage08_wmma_full.cu",
        "__shared__ __align__(32) element q_smem",
        "",
    ): "The array is one element longer.",
    ("stage08_wmma_full.cu", "if (lse != nullptr", ""): SAME_ROW,
    ("stage10_pipeline.cu", "if (lse != nullptr", ""): SAME_ROW,
    (
        "stage11_warp_specialized.cu",
        "ptx::cp_async_wait<",
        "",
    ): "The wait is stricter: nothing is in flight after it.",
    (
        "stage11_warp_specialized.cu",
        "if constexpr (ASYNC)",
        "",
    ): "A wait where nothing was copied waits for nothing.",
    ("stage13_split_kv.cu", "const int first_row", ""): "Every tile of rows has its block, in another order.",
    ("stage15_ping_pong.cu", "if (tile >= whole_tiles", ""): "Masks also where every key is seen.",
    ("stage16_cluster_split.cu", "ptx::mbarrier_arrive_expect(q_full", ""): (
        "The phase ends with this arrival, so the bytes may be counted down before they are counted up."
    ),
    ("stage16_cluster_split.cu", "if (CLUSTER > 1 && threadIdx.x == 32)", ""): (
        "One block alone makes mbarriers too that nothing uses; there is room for them."
    ),
    ("stage16_cluster_split.cu", "if (iteration > 0)", ""): "O and l, which are still 0, are multiplied.",
}


def conclusion(item: dict[str, Any]) -> str:
    """What the two verdicts on an edit say together, a key of `CONCLUSIONS`."""
    said, seen = item["executor"]["verdict"], item.get("gpu", {}).get("verdict", "right")
    if said in ("reported", "refused"):
        return "reported"
    if said == "wrong":
        return "wrong value"
    if said != "right":
        return "executor fault"
    return "harmless" if seen in ("right", "not run") else "missed"


def summary(items: list[dict[str, Any]]) -> list[str]:
    """A table of conclusions by verdict of the GPU, and every edit that was missed or broke the executor."""
    seen = sorted({item.get("gpu", {}).get("verdict", "not run") for item in items})
    rows: dict[str, dict[str, int]] = {}
    for item in items:
        row = rows.setdefault(conclusion(item), dict.fromkeys(seen, 0))
        row[item.get("gpu", {}).get("verdict", "not run")] += 1
    lines = ["executor | " + " | ".join(f"GPU: {name}" for name in seen)]
    lines += [
        f"{name} | " + " | ".join(str(row[each]) for each in seen) for name, row in sorted(rows.items())
    ]
    for item in items:
        if conclusion(item) in ("missed", "executor fault"):
            verdicts = [json.dumps(item[field]) for field in ("executor", "gpu") if field in item]
            lines.append(f"{conclusion(item)}: {_edit_of(item).mutant.mistake}: {'; '.join(verdicts)}")
    return lines


def record(data: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a campaign: of each edit where it was, what it did, the verdicts and the conclusion."""
    edits = []
    for item in sorted(
        data["edits"], key=lambda item: (item["stage"], item["file"], item["line"], item["kind"])
    ):
        kept = {name: item[name] for name in ("stage", "kind", "file", "line")}
        kept |= {name: item[name][:160] for name in ("before", "after")}
        for name in ("executor", "gpu"):
            found = item.get(name, {"verdict": "not run"})
            kept[name] = {key: found[key][:160] for key in ("verdict", "kind", "said") if key in found}
        kept |= {"sanitizer": item["sanitizer"]} if "sanitizer" in item else {}
        edits.append(kept | {"conclusion": conclusion(item)} | _reason(item))
    controls = [
        {"stage": item["stage"]} | {name: item[name]["verdict"] for name in FIELDS.values() if name in item}
        for item in data.get("controls", [])
    ]
    return {"seed": data["seed"], "controls": controls, "edits": edits}


def _reason(item: dict[str, Any]) -> dict[str, str]:
    found = [
        reason
        for (file, before, after), reason in REASONS.items()
        if item["file"] == file and item["before"].startswith(before) and item["after"].startswith(after)
    ]
    return {"reason": found[0]} if found and conclusion(item) == "harmless" else {}


def table(kept: dict[str, Any]) -> str:
    """A campaign's record as a table in Markdown: a line per stage, edits by conclusion."""
    lines = ["| stage | edits | " + " | ".join(CONCLUSIONS) + " |", "|---|--:|" + "--:|" * len(CONCLUSIONS)]
    for stage in [*STAGES, None]:
        edits = [edit for edit in kept["edits"] if stage is None or edit["stage"] == stage.place]
        counts = [sum(edit["conclusion"] == name for edit in edits) for name in CONCLUSIONS]
        label = "**all**" if stage is None else stage.label
        lines.append(f"| {label} | {len(edits)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def main() -> int:
    """The command line of the campaign. Returns 0; 1 where a stage without an edit is not right or there is
    no GPU; 2 for a bad argument.
    """
    parser = argparse.ArgumentParser(prog="python -m flashcore_numba.checks", description=__doc__)
    parser.add_argument("action", choices=("draw", "cpu", "gpu", "sanitize", "record", "one"))
    parser.add_argument("file", help="the campaign's file, JSON")
    parser.add_argument("--seed", type=int, default=None, help="of the edits; a fresh one without")
    parser.add_argument("--count", type=int, default=20, help="edits per stage")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", action="store_true", help="what has a verdict keeps it")
    parser.add_argument("--program", default="compute-sanitizer")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other edit begins")
    args = parser.parse_args()
    if args.action == "one":
        edit, seconds = RandomEdit.of(json.load(sys.stdin)), LAUNCH_SECONDS["sanitizer"]
        _one(edit, "sanitizer", Path(args.file), os.devnull, seconds)
    try:
        return _act(args)
    except ArgumentError as error:
        print(f"{parser.prog} {args.action}: {error}", file=sys.stderr)
        return 2
    except MachineError as error:
        print(f"{parser.prog} {args.action}: {error}", file=sys.stderr)
        return 1


def _act(args: argparse.Namespace) -> int:
    if args.action in ("gpu", "sanitize") and (reason := gpu.why_not()):
        raise MachineError(f"needs a GPU; {reason}")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    multiprocessing.set_forkserver_preload(["flashcore_numba.checks.campaign"])
    store = _Store(Path(args.file), new=args.action == "draw")
    end = time.monotonic() + args.seconds
    if args.action == "draw":
        seed = args.seed if args.seed is not None else store.data["seed"]
        _draw(store, secrets.randbits(32) if seed is None else seed, args.count, args.jobs, end)
    elif args.action == "record":
        _refuse_wrong_controls(store)
        RECORD.parent.mkdir(exist_ok=True)
        layout.save(record(store.data), RECORD, "controls", "edits")
        print(table(record(store.data)))
    elif args.action == "sanitize":
        _sanitize(store, args.program, args.jobs, end)
    else:
        return 0 if _again(store, args.action, args.jobs, args.keep, end) else 1
    return 0
