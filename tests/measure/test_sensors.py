"""Sensors, with a driver's library that says what the test wants."""

import sys
from types import SimpleNamespace

import pytest

from flashcore_numba.measure.sensors import Reading, Sensors, seen, throttled, usual_mhz


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetClockInfo=lambda gpu, which: 1980,
        nvmlDeviceGetTemperature=lambda gpu, which: 45,
        nvmlDeviceGetPowerUsage=lambda gpu: 350_500,
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: 0x4 | 0x1,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_reading(nvml):
    assert Sensors("0").read() == Reading(1980, 45, 350.5, ("the power limit",))


def test_what_a_gpu_does_not_tell_is_left_out(nvml):
    def refuse(*args):
        raise NVMLError("not supported")

    nvml.nvmlDeviceGetPowerUsage = nvml.nvmlDeviceGetCurrentClocksEventReasons = refuse
    reading = Sensors("0").read()
    assert reading == Reading(1980, 45, None, ())
    assert seen([reading]) == {
        "sm_mhz": {"min": 1980, "p50": 1980, "max": 1980},
        "temperature_c": {"min": 45, "p50": 45, "max": 45},
        "power_w": None,
    }


def test_without_the_library_there_are_no_readings(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sensors = Sensors("0")
    assert sensors.why_not == "nvidia-ml-py is not installed"
    assert sensors.read() is None
    assert throttled([], 1980.0) is None
    assert seen([]) == {"sm_mhz": None, "temperature_c": None, "power_w": None}


def test_without_a_driver_there_are_no_readings(nvml):
    def refuse():
        raise NVMLError("driver not loaded")

    nvml.nvmlInit = refuse
    sensors = Sensors("0")
    assert sensors.why_not == "NVML: driver not loaded"
    assert sensors.read() is None


def test_slow_clocks_and_the_drivers_reasons_are_told():
    readings = [Reading(1500.0, reasons=("the power limit", "the temperature limit")), Reading(1520.0)]
    usual = usual_mhz([Reading(1980.0)] * 5 + readings)
    assert throttled(readings, usual) == [
        "the power limit in 1 of 2 readings",
        "the temperature limit in 1 of 2 readings",
        "SM clock 1510 MHz, 76% of the run's median",
    ]
    assert throttled([Reading(1930.0)], 1980.0) == [], "97 % is usual"
    assert throttled([Reading(None)], None) == []
