"""Mistakes that the CPU executor must name with their line, whatever the order in which threads run."""

import re
from pathlib import Path

import numpy as np
import pytest
from matrix import first_of_each

from cuda_reference import TensorMap
from cuda_reference.cpu import KINDS, CpuModule

HERE = Path(__file__).resolve().parent
BUG = re.compile(r"// BUG (.*)")
KERNEL = re.compile(r'extern "C" __global__ .*?(\w+)\(float\* out', re.DOTALL)
SCHEDULES = ("forward", "reverse", "random:1", "random:2")
BLOCKS = {
    "blocks_write_one": 2, "last_block_without_fence": 2, "plain_read_of_a_counter": 2,
    "blocks_add_to_one": 2, "add_beside_a_store": 2, "last_block_with_a_fence_of_its_block": 2,
    "last_block_takes_with_a_fence_of_its_block": 2, "last_block_hands_on_within_itself": 2,
    "shared_atomics_order_no_blocks": 2, "global_atomics_order_blocks": 2, "shared_atomics_order_warps": 2,
    "volatile_reads_beside_reads": 2, "volatile_reads_beside_a_flag": 2, "volatile_read_of_another_block": 2,
}  # fmt: skip
FENCED = [kernel for kernel in BLOCKS if kernel.startswith("last_block_")]
SCRATCH = {"scratch_never_written", "add_to_what_was_never_written"}
CLUSTERED = re.compile(r"__cluster_dims__\(2, 1, 1\)\n(\w+)\(")
CLUSTERS = dict.fromkeys(CLUSTERED.findall((HERE / "bugs_sm90.cu").read_text()), 2)
MAPS = {  # what tensor maps take the array for, where that is not its own shape
    "tma_load_past_the_array": (128, 64), "tma_store_past_the_array": (128, 64),
    "tma_load_past_the_extents": (32, 64), "tma_store_past_the_extents": (32, 64),
}  # fmt: skip
THREADS = {"registers_do_not_suffice": 384, "registers_suffice": 384}


def bugs(file: str) -> list[tuple[str, str, int]]:
    """Kernel, kind and line of each marked mistake; a kernel without one has kind ""."""
    found, kernel = {}, ""
    lines = (HERE / file).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        declared = KERNEL.search(line) or re.match(r"(\w+)\(float\* out", line)
        if declared:
            kernel = declared[1]
            found[kernel] = ("", 0)
        if marked := BUG.search(line):
            found[kernel] = (marked[1], number)
    return [(kernel, *bug) for kernel, bug in found.items()]


ALL = [(file, *bug) for file in ("bugs.cu", "bugs_sm90.cu") for bug in bugs(file)]


def arguments(file: str, kernel: str, rng) -> tuple:
    out = np.zeros(64, np.float32)
    if file == "bugs_sm90.cu":
        array = rng.standard_normal((64, 64)).astype(np.float16)
        return out, TensorMap(array, (64, 64), shape=MAPS.get(kernel))
    extra = {
        "plain_read_of_a_counter": (np.zeros(2, np.float32), np.zeros(1, np.uint32)),
        **dict.fromkeys(FENCED, (np.zeros(2, np.float32), np.zeros(1, np.uint32))),
        "scratch_never_written": (np.zeros(64, np.float32),),
    }
    count = len(CpuModule(HERE / file).kernel(kernel).parameters)
    return out, *(extra.get(kernel) or (np.zeros(256, np.float32),) * (count - 1))


@pytest.mark.parametrize(
    ("file", "kernel", "kind", "line"),
    first_of_each(ALL, lambda file, kernel, kind, line: (file, kind)),
    ids=[bug[1] for bug in ALL],
)
def test_the_bug_is_named(file, kernel, kind, line, rng):
    for schedule in SCHEDULES:
        args = arguments(file, kernel, rng)
        scratch = [args[1]] if kernel in SCRATCH else []
        launch = CpuModule(HERE / file).kernel(kernel)(
            CLUSTERS.get(kernel) or BLOCKS.get(kernel, 1),
            THREADS.get(kernel, 64 if file == "bugs.cu" else 128),
            args,
            shared_mem=49152,
            scratch=scratch,
            schedule=schedule,
            time_limit=0.5 if kind == "time limit" else None,
        )
        named = {(p.kind, place) for p in launch.problems for place in (p.line, p.other_line)}
        if not kind:
            assert not launch.problems, f"{schedule}: {launch}"
            continue
        kinds = set(kind.split(" or "))
        assert any((each, line) in named for each in kinds), f"{schedule}: {launch}"
        assert all(problem.kind in KINDS and problem.file.endswith(file) for problem in launch.problems)
        also = {problem.kind for problem in launch.problems} - kinds - set(AND.get(kernel, ()))
        assert not also, f"{schedule}: {launch}"


# What else is true of a kernel, or follows from its mistake.
AND: dict[str, tuple[str, ...]] = {
    "plain_read_of_a_counter": ("race between blocks",),
    "cp_async_no_wait": ("race",),  # the copy, once waited for, follows readers that did not wait
    "cp_async_one_group_short": ("race",),
    "tma_overwrites_readers": ("deadlock",),  # a slow thread misses a phase
}


def test_every_kind_has_a_bug():
    assert {each for _, _, kind, _ in ALL if kind for each in kind.split(" or ")} == set(KINDS)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("past_a_local_array", r"index 4 of a `float \[4\]` is used by thread \d+"),
        ("misaligned_wide_copy", r"a multiple of 16 bytes and starts (?:4|8|12) past one, by thread \d+"),
        ("past_a_static_array", r"index 64 of a `float \[64\]` is used by thread 63"),
        ("past_the_end", r"4 bytes are written just past the end of out, by thread 63"),
        ("before_the_start", r"4 bytes are read 4 bytes before in, by thread 0"),
    ],
)
def test_what_an_access_lacks_is_told(kernel, says, rng):
    launch = CpuModule(HERE / "bugs.cu").kernel(kernel)(
        1, 64, arguments("bugs.cu", kernel, rng), shared_mem=49152
    )
    assert any(re.search(says, problem.text) for problem in launch.problems), launch


@pytest.mark.parametrize(
    ("index", "says"), [(64, "just past the end of out"), (67, "12 bytes past the end of out")]
)
def test_how_far_past_an_array_an_access_begins_is_told(index, says, tmp_path):
    source = tmp_path / "far.cu"
    source.write_text(f'extern "C" __global__ void far(float* out) {{ out[{index}] = 1; }}\n')
    launch = CpuModule(source).kernel("far")(1, 1, (np.zeros(64, np.float32),))
    assert [problem.text.split(",")[0] for problem in launch.problems] == [f"4 bytes are written {says}"]


def test_a_barrier_counts_arrivals_and_not_threads(tmp_path):
    """One warp arrives twice: 64 threads make 65 arrivals and more."""
    source = tmp_path / "twice.cu"
    source.write_text(
        '#include "ptx.cuh"\nextern "C" __global__ void twice(float* out) {\n'
        "    if (threadIdx.x < 32) ptx::bar_arrive(1, 64), ptx::bar_arrive(1, 64);\n"
        "    else ptx::bar_sync(1, 64);\n}\n"
    )
    launch = CpuModule(source).kernel("twice")(1, 64, (np.zeros(1, np.float32),))
    [problem] = launch.problems
    assert problem.kind == "bad instruction"
    assert problem.text.startswith("barrier 1, which waits for 64 threads, counts 65 arrivals")
