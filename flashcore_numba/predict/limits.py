"""What the hardware allows: the shortest time each unit of a GPU needs for one problem.

A unit's rate is (results per clock per SM) x SMs x clock. SMs and clocks are read from the device; the rates
per clock and SM are in the table below, by compute capability. The units work side by side, so the limit of a
kernel is the largest of its units' times, never their sum.

`Ceilings` are the rates of a whole GPU: measured on it, by these tables, or from its data sheet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashcore_numba.core.operation import Work


@dataclass(frozen=True)
class Rate:
    """Operations per clock and SM: float32 (an FMA counts 2), dense fp16 tensor core, ex2 results."""

    fp32: int
    tensor: int
    exp: int


# fp32 and exp: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" (32-bit add,
# multiply, multiply-add; and 32-bit reciprocal, exp2, log2). tensor: NVIDIA's architecture white papers, fp16
# in, fp32 sums, dense, data-centre parts (V100, T4, A100, A10, L4, H100, B200, RTX PRO); GeForce parts sum in
# fp32 at half rate.
RATES = {
    (7, 0): Rate(128, 1024, 16),
    (7, 5): Rate(128, 1024, 16),
    (8, 0): Rate(128, 2048, 16),
    (8, 6): Rate(256, 1024, 16),
    (8, 9): Rate(256, 1024, 16),
    (9, 0): Rate(256, 4096, 16),
    (10, 0): Rate(256, 8192, 16),
    (12, 0): Rate(256, 1024, 16),
}


@dataclass(frozen=True)
class Device:
    """The figures of a GPU that set its limits; `bandwidth_gbs` of device memory in 10^9 bytes per second."""

    compute_capability: tuple[int, int]
    sm_count: int
    max_sm_mhz: float
    bandwidth_gbs: float | None


def limits_us(problem: Work, device: Device) -> dict[str, float | None]:
    """The time in microseconds that each unit alone would need for `problem`, at the highest clock.

    `fp32` and `tensor`: all multiply-adds of the problem on the CUDA cores, or on the tensor cores; `exp`:
    the exponentials; `memory`: every input read once and every output written once. None where the rate of
    this GPU is not in the table.

    >>> from types import SimpleNamespace
    >>> pairs, row_bytes = 8 * 512 * 512, 64 * 2
    >>> mission = SimpleNamespace(flops=4 * pairs * 64, exponentials=pairs, min_bytes=4 * 8 * 512 * row_bytes)
    >>> h200 = Device((9, 0), 132, 1980.0, 4917.0)
    >>> {unit: round(us, 2) for unit, us in limits_us(mission, h200).items()}
    {'fp32': 8.02, 'tensor': 0.5, 'exp': 0.5, 'memory': 0.43}
    """
    rate = RATES.get(device.compute_capability)
    per_us = device.sm_count * device.max_sm_mhz  # SM clocks per microsecond
    return {
        "fp32": problem.flops / (rate.fp32 * per_us) if rate else None,
        "tensor": _tensor_flops(problem) / (rate.tensor * per_us) if rate else None,
        "exp": problem.exponentials / (rate.exp * per_us) if rate else None,
        "memory": problem.min_bytes / (device.bandwidth_gbs * 1e3) if device.bandwidth_gbs else None,
    }


def _tensor_flops(problem: Work) -> float:
    """Operations in 16 bits that take the tensor cores as long: those in 8 bits count half."""
    return problem.flops / getattr(problem, "tensor_speed", 1)


@dataclass(frozen=True)
class Ceilings:
    """What the units of one GPU reach at best: 10^12 operations, 10^9 results or 10^9 bytes per second, and
    the microseconds of an empty launch; None where that is not known. `source` says where they are from.
    `mma_sync_tflops`: of the tensor cores through mma.sync, where that was measured.
    """

    fp32_tflops: float | None
    tensor_tflops: float | None
    exp_gops: float | None
    l1_gbs: float | None
    l2_gbs: float | None
    dram_gbs: float | None
    launch_us: float | None
    source: str
    measured: bool
    mma_sync_tflops: float | None = None


@dataclass(frozen=True)
class DataSheet:
    """A GPU as NVIDIA describes it: clock in MHz, fp32 and dense fp16 tensor-core rates (float32 sums) in
    10^12 operations per second, device memory in 10^9 bytes per second.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    boost_mhz: float
    fp32_tflops: float
    tensor_tflops: float
    dram_gbs: float
    l2_mib: int

    def ceilings(self) -> Ceilings:
        """By the data sheet, which says nothing of the L2's rate or of a launch."""
        per_ns = self.sm_count * self.boost_mhz / 1e3  # SM clocks
        return Ceilings(
            self.fp32_tflops,
            self.tensor_tflops,
            RATES[self.compute_capability].exp * per_ns,
            L1_BYTES * per_ns,
            None,
            self.dram_gbs,
            None,
            f"{self.name}, from data sheets, not measured",
            False,
        )


L1_BYTES = 128  # a clock and SM, from the L1 or shared memory; compute capability 7.0 and all but 7.5 since

# NVIDIA's data sheets of the parts, and the architecture white papers (A100, H100, Ada) for SMs, boost clocks
# and L2 sizes. Tensor rates there are often "with sparsity", twice these.
DATA_SHEETS = (
    DataSheet("NVIDIA L4", (8, 9), 58, 2040, 30.3, 121, 300, 48),
    DataSheet("NVIDIA H100 SXM", (9, 0), 132, 1830, 66.9, 989.4, 3350, 50),
    DataSheet("NVIDIA A100 SXM 80GB", (8, 0), 108, 1410, 19.5, 312, 2039, 40),
    DataSheet("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, 82.6, 165.2, 1008, 72),
)


def ceilings_of(artifact: Mapping[str, Any]) -> Ceilings:
    """Those measured in the run of an artifact; without any, those of the table at the highest clock."""
    gpu = artifact["gpu"]
    known = artifact.get("ceilings")
    if known:
        names = [name for name in Ceilings.__dataclass_fields__ if name.endswith(("ops", "gbs", "us"))]
        source = f"measured on {gpu['name']}, {artifact['date'][:10]}"
        return Ceilings(**{name: known.get(name) for name in names}, source=source, measured=True)
    capability = tuple(gpu["compute_capability"])
    rate = RATES.get(capability)
    per_ns = gpu["sm_count"] * gpu["max_sm_mhz"] / 1e3
    return Ceilings(
        rate.fp32 * per_ns / 1e3 if rate else None,
        rate.tensor * per_ns / 1e3 if rate else None,
        rate.exp * per_ns if rate else None,
        L1_BYTES * per_ns if rate and capability != (7, 5) else None,
        None,
        gpu["bandwidth_gbs"],
        None,
        f"by the table of rates at {gpu['max_sm_mhz']:.0f} MHz, not measured",
        False,
    )


def units_us(
    problem: Work,
    multiplies: Mapping[str, float],
    l1_bytes: float | None,
    l2_bytes: float | None,
    launches: int,
    ceilings: Ceilings,
) -> dict[str, float]:
    """The time in microseconds that each unit needs for one run, as far as it is known.

    `fp32`, `tensor`: the multiply-adds of the problem, of which `multiplies` gives each unit its share;
    `exp`: the exponentials; `l1`, `l2`: the bytes that pass through the L1 with shared memory, and
    through the L2; `dram`: every input read and every output written once; `launch`: so many empty kernels.
    """
    work = {
        "fp32": (problem.flops * multiplies.get("fp32", 0), ceilings.fp32_tflops, 1e6),
        "tensor": (_tensor_flops(problem) * multiplies.get("tensor", 0), ceilings.tensor_tflops, 1e6),
        "exp": (problem.exponentials, ceilings.exp_gops, 1e3),
        "l1": (l1_bytes, ceilings.l1_gbs, 1e3),
        "l2": (l2_bytes, ceilings.l2_gbs, 1e3),
        "dram": (problem.min_bytes, ceilings.dram_gbs, 1e3),
    }
    found = {unit: amount / rate / per_us for unit, (amount, rate, per_us) in work.items() if amount and rate}
    if ceilings.launch_us:
        found["launch"] = launches * ceilings.launch_us
    return found


def share_of_limit(limits: dict[str, float | None], unit: str, gpu_us: float) -> float | None:
    """The limit over the measured time, 1.0 at best; `unit` ("fp32" or "tensor") does the multiply-adds."""
    if limits[unit] is None:
        return None
    return max(us for us in (limits[unit], limits["exp"], limits["memory"]) if us is not None) / gpu_us
