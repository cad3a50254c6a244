"""SM clock, temperature and power of a GPU during a run, and what holds its clocks back, through nvidia-ml-py
where that is installed."""

import contextlib
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FIGURES = ("sm_mhz", "temperature_c", "power_w")
SLOW = 0.97  # of the run's median SM clock
# Bits of nvmlClocksEventReasons (NVML API reference). An idle GPU and clocks that somebody has set are none.
REASONS = {
    0x04: "the power limit",
    0x08: "a hardware slowdown",
    0x10: "sync boost with another GPU",
    0x20: "the temperature limit",
    0x40: "a hardware thermal slowdown",
    0x80: "the power brake",
}


@dataclass(frozen=True)
class Reading:
    """One look at the sensors: MHz, degrees Celsius, watts (None where this GPU does not tell), and `reasons`
    that hold the clocks back. NVML's power is a mean over up to a second, so it belongs to the
    neighbourhood of a turn."""

    sm_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()


class Sensors:
    """Reads one GPU, named by its PCI bus id; `why_not` says why there are no readings."""

    def __init__(self, pci_bus_id: str):
        self.why_not: str | None = None
        try:
            import pynvml
        except ImportError:
            self.why_not = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        except pynvml.NVMLError as error:
            self.why_not = f"NVML: {error}"

    def read(self) -> Reading | None:
        """What the sensors say now."""
        if self.why_not:
            return None
        nvml, gpu = self._nvml, self._handle
        found: dict[str, Any] = {}
        for name, ask in (
            ("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            ("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            ("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            ("reasons", lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))),
        ):
            with contextlib.suppress(nvml.NVMLError):
                found[name] = ask()
        return Reading(**found)


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(text for bit, text in REASONS.items() if bits & bit)


def seen(readings: Sequence[Reading]) -> dict[str, dict[str, float] | None]:
    """For each figure its smallest, median and largest reading, or None where none was taken."""
    spans = {}
    for name in FIGURES:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        spans[name] = (
            {"min": min(values), "p50": statistics.median(values), "max": max(values)} if values else None
        )
    return spans


def usual_mhz(readings: Sequence[Reading]) -> float | None:
    """The median SM clock of all readings of a run."""
    span = seen(readings)["sm_mhz"]
    return span["p50"] if span else None


def throttled(readings: Sequence[Reading], usual: float | None) -> list[str] | None:
    """What held an entry's clocks back, one sentence each; empty when nothing did, None without readings.

    usual: the run's median SM clock in MHz. Said is every reason that the driver named in any reading, and a
    median clock below 97 % of the usual one, for which there may be no reason.
    """
    if not readings:
        return None
    counted = Counter(reason for reading in readings for reason in reading.reasons)
    found = [f"{reason} in {count} of {len(readings)} readings" for reason, count in counted.items()]
    own = usual_mhz(readings)
    if own and usual and own < SLOW * usual:
        found.append(f"SM clock {own:.0f} MHz, {own / usual:.0%} of the run's median")
    return found
