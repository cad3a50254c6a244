"""SM clock, temperature and power of a GPU during a run, through nvidia-ml-py where that is installed."""

import contextlib
import statistics

__all__ = ["Sensors"]


class Sensors:
    """Collects readings of one GPU, named by its PCI bus id; `why_not` says why there are none."""

    def __init__(self, pci_bus_id: str):
        self.readings: dict[str, list[float]] = {"sm_mhz": [], "temperature_c": [], "power_w": []}
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

    def read(self) -> None:
        """Take one reading; a figure that this GPU does not give is left out."""
        if self.why_not:
            return
        nvml, gpu = self._nvml, self._handle
        for name, ask, scale in (
            ("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM), 1),
            ("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU), 1),
            ("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(gpu), 1e-3),
        ):
            with contextlib.suppress(nvml.NVMLError):
                self.readings[name].append(ask() * scale)

    def seen(self) -> dict[str, dict[str, float] | None]:
        """For each figure its smallest, median and largest reading, or None where none was taken."""
        return {
            name: {"min": min(values), "p50": statistics.median(values), "max": max(values)}
            if values
            else None
            for name, values in self.readings.items()
        }
