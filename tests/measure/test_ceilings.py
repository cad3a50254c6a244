"""The micro-benchmarks compute what they say, move what they say, and their rates follow from the clock."""

import numpy as np
import pytest
from turing import T4

from flashcore_numba.measure import ceilings
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Simulator

SMALL = {
    "fp32": ceilings.fma(2, 3),
    "exp": ceilings.ex2(2, 3),
    "mma": ceilings.mma(2, 2, 3),
    "wgmma": ceilings.wgmma(2, 2),
    "l1": ceilings.shared(2, 35),
    "l2": ceilings.l2(2, 8, 3),
    "copy": ceilings.copy(2),
    "read": ceilings.read(2, 3),
    "empty": ceilings.empty(),
}


def run(make):
    work, executor = make(np), Simulator()
    work.launch(executor)
    (launch,) = executor.launches
    launch.check()
    return work, launch.totals()


@pytest.mark.parametrize("name", [name for name in SMALL if name != "empty"])
def test_it_computes_what_the_host_expects(name):
    work, _ = run(SMALL[name])
    assert work.amount > 0
    assert work.right()
    work.found[-1] += 0.01 * abs(work.expected).max()
    assert not work.right(), "a wrong sum must be seen"


def test_mma_computes_the_same_on_sm_75():
    work, executor = SMALL["mma"](np), Simulator()
    work.launch(T4(executor))
    executor.check()
    assert work.right()


@pytest.mark.long
def test_sm_75_compiles_every_benchmark():
    compiler = Compiler((7, 5))
    for makes in ceilings.benchmarks((7, 5), 1, 2**20).values():
        for make in makes:
            make(np).launch(compiler)
    assert len(compiler.kernels) >= 7
    assert not any(kernel.spill_bytes for kernel in compiler.kernels)


@pytest.mark.parametrize("make", [ceilings.fma, ceilings.ex2, ceilings.shared, ceilings.read])
def test_one_round_less_is_wrong(make):
    """The very number of rounds that is timed: the host's sum tells it from one less in a thousand."""
    work = make(1, 1000)(np)
    less = make(1, 999)(np)
    assert abs(less.expected - work.expected).max() > ceilings.CLOSE * abs(work.expected).max()


def test_shared_memory_is_read_without_conflicts():
    work, totals = run(SMALL["l1"])
    assert totals["shared_load_wavefronts"] * 128 == work.amount
    assert totals["shared_load_conflicts"] == 0


@pytest.mark.parametrize("name", ["l2", "copy", "read"])
def test_global_bytes_are_whole_sectors(name):
    work, totals = run(SMALL[name])
    stores = totals["global_store_sectors"] if name == "copy" else 0
    assert (totals["global_load_sectors"] + stores) * 32 == work.amount
    assert totals["global_load_sectors"] == 16 * totals["global_load_requests"]


def test_an_empty_kernel_moves_nothing():
    _, totals = run(SMALL["empty"])
    assert not any(value for name, value in totals.items() if name.endswith(("requests", "sectors")))


class FakeEntry:
    launches, launch_us = 1, 0.0

    def __init__(self, make, us, wrong=False):
        self.work, self.us, self.wrong = make(np), us, wrong

    def capture(self, launches):
        self.launches = launches

    def right(self):
        return not self.wrong


class FakeClock:
    def replays(self, entry, count):
        return [entry.us * (1 + 0.01 * k) for k in range(count)]


def test_rates_follow_from_amounts_and_times():
    made = {
        "fp32_tflops": (ceilings.fma(2, 100),),
        "mma_sync_tflops": (ceilings.mma(2, 2, 100), ceilings.mma(2, 4, 100)),
        "exp_gops": (ceilings.ex2(2, 100),),
        "l1_gbs": (ceilings.shared(2, 100),),
        "launch_us": (ceilings.empty(),),
    }
    got = ceilings.rates(made, FakeClock(), lambda name, make: FakeEntry(make, 10.0))
    threads = 2 * 1024
    assert got == pytest.approx(
        {
            "fp32_tflops": 2 * 8 * 100 * threads / 10e-6 / 1e12,
            "mma_sync_tflops": 4096 * 8 * 100 * 2 * 4 / 10e-6 / 1e12,
            "exp_gops": 8 * 100 * threads / 10e-6 / 1e9,
            "l1_gbs": 16 * 8 * 100 * threads / 10e-6 / 1e9,
            "launch_us": 10.0,
        }
    )


def test_what_is_wrong_or_fails_has_no_rate_and_a_reason():
    def prepare(name, make):
        if name == "l1_gbs":
            raise MemoryError("none left")
        return FakeEntry(make, 10.0, wrong=name == "exp_gops")

    made = {"l1_gbs": (ceilings.shared(1, 9),), "exp_gops": (ceilings.ex2(1, 9),)}
    told = []
    got = ceilings.rates(made | {"launch_us": (ceilings.empty(),)}, FakeClock(), prepare, told.append)
    assert got == {"l1_gbs": None, "exp_gops": None, "launch_us": 10.0}
    assert told == [
        "l1_gbs was not measured: MemoryError: none left",
        "exp_gops was not measured: ArithmeticError: ex2_chains computed wrong sums",
    ]


@pytest.mark.parametrize(
    ("l2_bytes", "chunks"), [(4 << 20, 128), (6 << 20, 128), (40 << 20, 1024), (50 << 20, 1024)]
)
def test_the_l2_buffer_fits_twice_and_the_copy_does_not(l2_bytes, chunks):
    found = ceilings.benchmarks((8, 6), 2, l2_bytes)
    assert set(found) == set(ceilings.NAMES)
    (read,) = found["l2_gbs"]
    data = read(np).args[0]
    assert data.nbytes == chunks << 14
    assert l2_bytes / 4 <= data.nbytes <= l2_bytes / 2


@pytest.mark.parametrize("sm_count, l2_bytes", [(1, 2**20), (2, 3 * 2**19)])
def test_what_only_reads_goes_through_more_than_the_l2(sm_count, l2_bytes):
    for make in ceilings.benchmarks((9, 0), sm_count, l2_bytes)["read_gbs"]:
        work = make(np)
        data, out, rounds = work.args
        assert work.amount == data.nbytes == rounds * work.grid * 2**16 >= 32 * l2_bytes
        assert data.nbytes - 32 * l2_bytes < work.grid * 2**16 and out.nbytes * 100 < data.nbytes


def test_hopper_alone_has_wgmma():
    def kernels(capability):
        return {
            make(np).kernel.entry for make in ceilings.benchmarks(capability, 1, 1 << 20)["tensor_tflops"]
        }

    assert kernels((9, 0)) == {"wgmma_chains"}
    assert kernels((8, 9)) == kernels((10, 0)) == {"mma_chains"}
