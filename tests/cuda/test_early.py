"""Kernels that begin under the end of the one before: the CPU executor finds who does not wait for it."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule

FILE = Path(__file__).with_name("early.cu")
RIGHT = ("each_waits", "one_waits_and_all_meet", "shared_memory_needs_no_wait", "all_wait_and_one_arrives")
WRONG = (
    "nobody_waits", "reads_before", "one_waits_and_none_meet", "copies_before",
    "one_waits_and_another_arrives",
)  # fmt: skip
SCHEDULES = ("forward", "reverse", "random:3")


def run(kernel, schedule="forward", early=1, **options):
    module = CpuModule(FILE, {"EARLY": early}, schedule=schedule, **options)
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    return module.kernel(kernel)(2, 128, (x, out))


def line_of(kernel):
    """The number of the line that is marked in a kernel."""
    lines = FILE.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if f" {kernel}(" in line)
    return next(n for n, line in enumerate(lines[start:], start + 1) if "// EARLY" in line)


def found(launch):
    return [problem for problem in launch.problems if problem.about == "kernels before"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", RIGHT)
def test_who_has_waited_or_met_one_who_has_may_go_on(kernel, schedule):
    assert not found(run(kernel, schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", WRONG)
def test_who_has_not_is_named_with_the_line(kernel, schedule):
    problems = found(run(kernel, schedule))
    assert {(p.kind, p.line) for p in problems} == {("missing wait", line_of(kernel))}, problems
    assert "which nobody told that the kernels before have ended" in problems[0].text


@pytest.mark.parametrize("kernel", WRONG)
def test_others_need_not_wait(kernel):
    """The launch itself waits then, and nothing is looked for without checks."""
    assert not found(run(kernel, early=0))
    assert not found(run(kernel, checks=False))
