"""The cache of compiled kernels: shared by processes, damaged, removed, unwritable, full."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from cuda_reference import files
from cuda_reference.cpu import CompileError, CpuModule, MachineError, build, find_compiler

ROOT = Path(__file__).resolve().parents[2]
# A warp reads what the other wrote, without a barrier: the report names lines 5 and 6.
RACING = """\
extern "C" __global__ void racing(float* y) {
    __shared__ float all[64];
    // one line
    // another
    all[threadIdx.x] = threadIdx.x + ADDED;
    y[threadIdx.x] = all[63 - threadIdx.x];
}
"""
RUN = """
import numpy as np, shutil, sys
from cuda_reference.cpu import CpuModule, build

def run(added, source):
    y = np.zeros(64, np.float32)
    return CpuModule(source, {"ADDED": added}).racing(1, 64, (y,)), y

def told(launch, y, added):
    assert y[63] == added, y
    races = [p for p in launch.problems if p.kind == "race"]
    found = {(site.line, site.text) for race in races for site in (race.site, race.other)}
    assert found == {
        (5, "all[threadIdx.x] = threadIdx.x + ADDED;"), (6, "y[threadIdx.x] = all[63 - threadIdx.x];")
    }, found
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with the executor's own library and header: they take ten seconds to compile, once in all."""
    folder = tmp_path_factory.mktemp("cache")
    runtime = build.build_runtime(find_compiler()).path
    (folder / "cpu").mkdir()
    shutil.copy(runtime, folder / "cpu")
    source = folder / "warm" / "racing.cu"
    source.parent.mkdir()
    source.write_text(RACING)
    done = python(RUN + f"run(0, {str(source)!r})", FLASHCORE_CACHE=folder)
    assert done.returncode == 0, done.stderr
    for kernel in (folder / "cpu").glob("racing-*.so"):
        kernel.unlink()
    return folder


@pytest.fixture
def cache(filled, tmp_path):
    return shutil.copytree(filled, tmp_path / "cache")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "racing.cu"
    path.write_text(RACING)
    return path


def start(program, **environment):
    """A Python process; None removes a variable of its environment."""
    values = {name: str(value) for name, value in environment.items() if value is not None}
    kept = {name: value for name, value in os.environ.items() if name not in environment}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, "PYTHONPATH": paths, **values},
    )


def ended(process):
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def python(program, **environment):
    return ended(start(program, **environment))


def wrapped_compiler(folder, before='exec {compiler} "$@"'):
    """A compiler that notes each call in `folder/calls`, and what it then does."""
    script, calls = folder / "compiler", folder / "calls"
    body = before.format(compiler=find_compiler().command)
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{body}\n')
    script.chmod(0o755)
    calls.touch()
    return script, calls


@pytest.mark.long
def test_processes_build_run_and_evict_at_once(cache, source):
    """Every process keeps one library: whatever it compiles removes all that nobody holds."""
    program = (
        RUN
        + f"""
build.KEPT = build.KEPT_HEADERS = 1
launches = []
for turn in range(3):
    for added in np.random.default_rng(SEED).permutation(3).tolist():
        launches.append((*run(added, {str(source)!r}), added))
for launch in launches:
    told(*launch)
"""
    )
    running = [start(program.replace("SEED", str(i)), FLASHCORE_CACHE=cache) for i in range(4)]
    for done in [ended(process) for process in running]:
        assert done.returncode == 0, done.stderr
    left = [path.name for path in (cache / "cpu").glob("racing-*.so")]
    assert 1 <= len(left) <= 3, left
    assert not list(cache.rglob("making-*"))


@pytest.mark.long
def test_who_wants_the_same_kernel_waits_for_the_one_that_builds_it(tmp_path, source):
    compiler, calls = wrapped_compiler(tmp_path)
    program = RUN + f"told(*run(1, {str(source)!r}), 1)"
    running = [start(program, FLASHCORE_CACHE=tmp_path / "new", CXX=compiler) for _ in range(4)]
    for done in [ended(process) for process in running]:
        assert done.returncode == 0, done.stderr
    linked = [line for line in calls.read_text().splitlines() if "-shared" in line]
    assert len(linked) == 2, linked  # the runtime and the kernel


@pytest.mark.long
def test_a_builder_that_was_killed_holds_up_nobody(cache, source, tmp_path):
    stuck = tmp_path / "stuck"
    stuck.mkdir()
    compiler, calls = wrapped_compiler(
        stuck,
        'case "$*" in *--version*) ;; *unit.cpp*) echo "PID $$ " >> CALLS; exec sleep 600;; esac\n'
        'exec {compiler} "$@"'.replace("CALLS", str(stuck / "calls")),
    )
    program = RUN + f"told(*run(1, {str(source)!r}), 1)"
    process = start(program, FLASHCORE_CACHE=cache, CXX=compiler)
    while not (compiling := re.search(r"PID (\d+) ", calls.read_text())):
        assert process.poll() is None
    process.kill()
    process.communicate()
    done = python(program, FLASHCORE_CACHE=cache)
    os.kill(int(compiling[1]), signal.SIGKILL)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_person_may_remove_the_folder_at_any_time(cache, source):
    program = (
        RUN
        + f"""
first = run(1, {str(source)!r})
shutil.rmtree({str(cache)!r})
told(*first, 1)
told(*run(2, {str(source)!r}), 2)
"""
    )
    done = python(program, FLASHCORE_CACHE=cache)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("libflashcore-*.so", "half"),
        ("racing-*.so", "half"),
        ("racing-*.so", "empty"),
        ("racing-*.so", "one byte"),
        ("headers-*/*.gch", "half"),
    ],
)
def test_what_is_damaged_is_made_again(cache, source, kind, damage):
    program = RUN + f"told(*run(1, {str(source)!r}), 1)"
    assert python(program, FLASHCORE_CACHE=cache).returncode == 0
    (file,) = (cache / "cpu").glob(kind)
    data = bytearray(file.read_bytes())
    if damage == "one byte":
        data[len(data) // 2] ^= 1
    file.write_bytes(data if damage == "one byte" else data[: len(data) // 2 if damage == "half" else 0])
    if kind.startswith("headers"):  # only a compilation reads it
        next((cache / "cpu").glob("racing-*.so")).unlink()
    done = python(program, FLASHCORE_CACHE=cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert files.written_wholly(file.read_bytes())


UNWRITABLE = {
    "no home": {"HOME": "/proc/nope"},
    "home unset": {"HOME": None},
    "a file in its place": {"HOME": "FILE"},
    "a folder of one's own": {"FLASHCORE_CACHE": "/proc/nope"},
}


@pytest.mark.parametrize("which", UNWRITABLE)
def test_an_unwritable_cache_is_replaced_and_named_once(which, filled, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.touch()
    environment = {"FLASHCORE_CACHE": None, "XDG_CACHE_HOME": None, "TMPDIR": tmp_path}
    environment |= {key: blocked if value == "FILE" else value for key, value in UNWRITABLE[which].items()}
    program = """
    import os, pwd, subprocess, sys
    def unknown(number): raise KeyError(number)
    if "HOME" not in os.environ: pwd.getpwuid = unknown
    from cuda_reference.files import cache_folder
    first = cache_folder("cpu")
    child = "from cuda_reference.files import cache_folder; print(cache_folder('cpu'))"
    second = subprocess.run([sys.executable, "-c", child], text=True, stdout=subprocess.PIPE).stdout.strip()
    assert str(first) == str(cache_folder("cpu")) == second, (first, second)
    (first / "x").touch()
    print(first)
    """
    done = python(program, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / f"flashcore-{os.getuid()}" / "cpu")
    (line,) = done.stderr.splitlines()  # nothing from the child
    assert re.fullmatch(r"flashcore: .* cannot be written \(.*\): .* set FLASHCORE_CACHE to .*", line)


def test_somebody_elses_temporary_folder_is_not_used(tmp_path):
    open_to_all = tmp_path / f"flashcore-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    program = "from cuda_reference.files import cache_folder; print(cache_folder('cpu'))"
    done = python(program, FLASHCORE_CACHE="/proc/nope", TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(open_to_all.iterdir())
    assert Path(done.stdout.strip()).parent.stat().st_mode & 0o777 == 0o700


def test_no_folder_at_all_is_one_error(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path / "mine"))
    monkeypatch.setattr(files, "_try", full)
    with pytest.raises(MachineError, match=r"mine \(No space.*temporary folder \(No space.*FLASHCORE_CACHE"):
        files.cache_folder("cpu")


@pytest.mark.long
@pytest.mark.parametrize("command", [["count", "12"], ["check", "12"]])
def test_commands_work_without_a_home(command, filled, tmp_path):
    folder = tmp_path / f"flashcore-{os.getuid()}"
    folder.mkdir(mode=0o700)
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    program = f"import sys; from flashcore_numba.cli import main; sys.exit(main({command!r}))"
    done = python(program, FLASHCORE_CACHE=None, XDG_CACHE_HOME=None, HOME="/proc/nope", TMPDIR=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("cannot be written") == 1


@pytest.mark.long
def test_a_full_disk_is_told_once(tmp_path):
    """Every call of the compiler fails: the check ends at the first, for each of its workers."""
    compiler, calls = wrapped_compiler(
        tmp_path,
        'case "$*" in *--version*) exec {compiler} "$@";; esac\n'
        'echo "unit.cpp:3:1: fatal error: error writing to x.s: No space left on device" >&2; exit 1',
    )
    program = "import sys; from flashcore_numba.cli import main; sys.exit(main(['check', '12']))"
    done = python(program, FLASHCORE_CACHE=tmp_path / "cache", CXX=compiler)
    assert done.returncode == 1
    assert done.stderr.count("the disk is full: free some space") == 1, done.stderr
    assert "Traceback" not in done.stderr and "stage12" not in done.stderr
    compiled = [line for line in calls.read_text().splitlines() if "--version" not in line]
    assert 1 <= len(compiled) <= len(os.sched_getaffinity(0)), compiled


def test_a_limit_on_files_is_named(cache, source):
    """A real limit of the system, which the compiler and the assembler meet as they would a full disk."""
    limited = (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    program = (
        RUN
        + f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, {limited})
run(1, {str(source)!r})
"""
    )
    done = python(program, FLASHCORE_CACHE=cache)
    last = done.stderr[done.stderr.index("MachineError") :]
    assert "the disk is full" in last or "cannot be written" in last, done.stderr
    assert "does not compile" not in done.stderr
    assert not list(cache.rglob("making-*"))


def test_a_disk_without_space_is_not_tried(cache, source, tmp_path, monkeypatch):
    compiler, calls = wrapped_compiler(tmp_path)
    monkeypatch.setenv("FLASHCORE_CACHE", str(cache))
    monkeypatch.setenv("CXX", str(compiler))
    build.find_compiler.cache_clear()
    build.build_runtime.cache_clear()
    monkeypatch.setattr(build, "LEAST_SPACE", 1 << 80)
    try:
        with pytest.raises(
            MachineError, match=r"No space left on device.*free some space or set FLASHCORE_CACHE"
        ):
            CpuModule(source, {"ADDED": 1})
    finally:
        build.find_compiler.cache_clear()
        build.build_runtime.cache_clear()
    assert [line for line in calls.read_text().splitlines() if "--version" not in line] == []


@pytest.mark.long
def test_a_file_edited_while_it_is_compiled_is_compiled_again(source, tmp_path, monkeypatch):
    """The key of a library is that of the text in it."""
    compiler, _ = wrapped_compiler(
        tmp_path,
        'case "$*" in *-shared*) sed -i "s/ADDED;/ADDED + 100;/" SOURCE;; esac\nexec {compiler} "$@"'.replace(
            "SOURCE", str(source)
        ),
    )
    done = python(RUN + f"launch, y = run(1, {str(source)!r}); assert y[63] == 101, y", CXX=compiler)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tool", ["addr2line", "nm"])
@pytest.mark.parametrize("how", ["fails", "is missing", "is silent", "is killed"])
def test_a_tool_that_fails_is_named(tool, how, source, tmp_path, monkeypatch):
    y = np.zeros(64, np.float32)
    launch = CpuModule(source, {"ADDED": 1}).racing(1, 64, (y,))
    bodies = {
        "fails": "echo 'no such section' >&2; exit 3",
        "is silent": "cat > /dev/null",
        "is killed": "kill -9 $$",
    }
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("addr2line", "nm", "sh", "cat", "kill"):
        if name != tool:
            (stubs / name).symlink_to(shutil.which(name))
    if how in bodies:
        (stubs / tool).write_text(f"#!/bin/sh\n{bodies[how]}\n")
        (stubs / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(stubs))
    words = {
        "fails": rf"exit status 3: {tool}.*\nno such section",
        "is missing": f"{tool} cannot be started: No such file",
        "is silent": "addr2line was asked for 2 places",
        "is killed": f"ended by signal 9: {tool}",
    }
    if (tool, how) == ("nm", "is silent"):
        assert {(p.memory.space, p.memory.array) for p in launch.problems} == {("static", "")}
        assert all("between two arrays" in p.text for p in launch.problems)
        return
    with pytest.raises(MachineError, match=words[how]):
        _ = launch.problems


@pytest.mark.long
def test_lines_are_those_that_were_compiled(source):
    launch = CpuModule(source, {"ADDED": 1}).racing(1, 64, (np.zeros(64, np.float32),))
    source.write_text("// a line before\n" * 3 + RACING)
    assert {problem.site.text for problem in launch.problems} <= set(map(str.strip, RACING.splitlines()))
    again = CpuModule(source, {"ADDED": 1}).racing(1, 64, (np.zeros(64, np.float32),))
    assert {p.line - 3 for p in again.problems} == {p.line for p in launch.problems}
    assert {p.site.text for p in again.problems} == {p.site.text for p in launch.problems}


def test_a_function_that_nobody_defines_is_the_sources_fault(source):
    source.write_text("__device__ float elsewhere(float);\n" + RACING.replace("+ ADDED", "+ elsewhere(1)"))
    with pytest.raises(CompileError, match=r"elsewhere.* is declared but defined nowhere"):
        CpuModule(source)


def test_a_library_in_use_is_not_evicted(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.so").write_bytes(b"x")
        build.seal(tmp_path / f"{i}.so")
        os.utime(tmp_path / f"{i}.so", (i, i))
    held = build._hold(tmp_path / "1.so")
    assert held is not None and build._hold(tmp_path / "7.so") is None
    os.utime(tmp_path / "1.so", (1, 1))
    build._forget_the_oldest(tmp_path, "*.so", 2)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["1", "3", "4"]
    del held
    build._forget_the_oldest(tmp_path, "*.so", 2)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["3", "4"]


def test_folders_of_other_builders_may_go_while_the_oldest_are_looked_for(tmp_path):
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            (tmp_path / "headers-1/making-2").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(tmp_path / "headers-1", ignore_errors=True)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(3000):
            build._forget_the_oldest(tmp_path, "headers-*/*.gch", 1)
    finally:
        stop.set()
        other.join()
