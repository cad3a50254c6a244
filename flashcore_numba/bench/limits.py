"""What the hardware allows: the shortest time each unit of a GPU needs for one attention problem.

A unit's rate is (results per clock per SM) x SMs x clock. SMs and clocks are read from the device; the rates
per clock and SM are in the table below, by compute capability. The units work side by side, so the limit of a
kernel is the largest of its units' times, never their sum.
"""

from dataclasses import dataclass
from typing import Any

__all__ = ["RATES", "Device", "Rate", "limits_us", "share_of_limit"]


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
    """The figures of a GPU that set its limits; `bandwidth_gbs` of device memory in 10^9 bytes a second."""

    compute_capability: tuple[int, int]
    sm_count: int
    max_sm_mhz: float
    bandwidth_gbs: float | None


def limits_us(problem: Any, device: Device) -> dict[str, float | None]:
    """The time in microseconds that each unit alone would need for `problem`, at the highest clock.

    `fp32` and `tensor`: all multiply-adds of Q.K^T and P.V on the CUDA cores, or on the tensor cores; `exp`:
    one ex2 a visible pair; `memory`: every input read once and the output written once. None where the rate
    of this GPU is not in the table.

    >>> from types import SimpleNamespace
    >>> mission = SimpleNamespace(flops=4 * 8 * 512 * 512 * 64, head_dim=64, min_bytes=4 * 8 * 512 * 64 * 2)
    >>> h200 = Device((9, 0), 132, 1980.0, 4917.0)
    >>> {unit: round(us, 2) for unit, us in limits_us(mission, h200).items()}
    {'fp32': 8.02, 'tensor': 0.5, 'exp': 0.5, 'memory': 0.43}
    """
    rate = RATES.get(device.compute_capability)
    per_us = device.sm_count * device.max_sm_mhz  # SM clocks a microsecond
    pairs = problem.flops / (4 * problem.head_dim)
    return {
        "fp32": problem.flops / (rate.fp32 * per_us) if rate else None,
        "tensor": problem.flops / (rate.tensor * per_us) if rate else None,
        "exp": pairs / (rate.exp * per_us) if rate else None,
        "memory": problem.min_bytes / (device.bandwidth_gbs * 1e3) if device.bandwidth_gbs else None,
    }


def share_of_limit(limits: dict[str, float | None], unit: str, gpu_us: float) -> float | None:
    """The limit over the measured time, 1.0 at best; `unit` ("fp32" or "tensor") does the multiply-adds."""
    if limits[unit] is None:
        return None
    return max(us for us in (limits[unit], limits["exp"], limits["memory"]) if us is not None) / gpu_us
