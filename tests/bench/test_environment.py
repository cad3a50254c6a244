import datetime
import re
import subprocess
import sys
from types import ModuleType

import pytest

from flashcore_numba.bench import environment, peers
from flashcore_numba.bench.sensors import Sensors


def test_the_commit_can_be_given(monkeypatch):
    monkeypatch.setenv("FLASHCORE_COMMIT", "abc123")
    assert environment.commit() == ("abc123", False)
    monkeypatch.setenv("FLASHCORE_COMMIT", "abc123+dirty")
    assert environment.commit() == ("abc123", True)


def test_the_commit_comes_from_git(monkeypatch, request):
    monkeypatch.delenv("FLASHCORE_COMMIT", raising=False)
    commit, dirty = environment.commit()
    root = request.config.rootpath
    if (root / ".git").exists():
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
        assert commit == done.stdout.strip()
        assert isinstance(dirty, bool)
    else:
        assert (commit, dirty) == ("unknown", None)


def test_no_git_program_means_unknown(monkeypatch):
    monkeypatch.delenv("FLASHCORE_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert environment.commit() == ("unknown", None)


def test_packages_and_date():
    found = environment.packages()
    assert re.fullmatch(r"3\.\d+\.\d+.*", found["python"])
    assert {"numba", "numba-cuda", "numpy"} <= set(found)
    then = datetime.datetime.strptime(environment.today(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    assert abs((datetime.datetime.now(datetime.UTC) - then).total_seconds()) < 60


def _nvml(**answers):
    """A stand-in for pynvml; an answer that is an exception is raised."""
    module = ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.NVML_CLOCK_SM = module.NVML_TEMPERATURE_GPU = 0
    defaults = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByPciBusId": 1,
        "nvmlDeviceGetClockInfo": 1500,
        "nvmlDeviceGetTemperature": 40,
        "nvmlDeviceGetPowerUsage": 250_000,
    }
    for name, answer in (defaults | answers).items():

        def call(*args, answer=answer):
            if answer == "error":
                raise module.NVMLError("not supported")
            return next(answer) if hasattr(answer, "__next__") else answer

        setattr(module, name, call)
    return module


def test_sensors_keep_what_they_saw(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlDeviceGetClockInfo=iter([1980, 1700, 1900])))
    sensors = Sensors("0000:00:00.0")
    for _ in range(3):
        sensors.read()
    seen = sensors.seen()
    assert seen["sm_mhz"] == {"min": 1700, "p50": 1900, "max": 1980}
    assert seen["power_w"] == {"min": 250.0, "p50": 250.0, "max": 250.0}


def test_a_figure_that_the_gpu_does_not_give_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlDeviceGetPowerUsage="error"))
    sensors = Sensors("0000:00:00.0")
    sensors.read()
    assert sensors.seen()["power_w"] is None
    assert sensors.seen()["sm_mhz"]["p50"] == 1500


@pytest.mark.parametrize("module", [None, _nvml(nvmlInit="error")])
def test_without_nvml_nothing_is_seen_and_it_says_why(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    sensors = Sensors("0000:00:00.0")
    sensors.read()
    assert sensors.why_not
    assert sensors.seen() == {"sm_mhz": None, "temperature_c": None, "power_w": None}


def test_without_pytorch_every_peer_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found, absent = peers.prepare(None, None)
    assert found == []
    assert list(absent) == list(peers.LABELS)
    assert all("PyTorch is not installed" in reason for reason in absent.values())
