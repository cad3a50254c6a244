"""Each reason why there is no GPU to run on has its own sentence, which says what to do."""

import importlib.util
import subprocess
import sys
import types

import pytest

from flashcore_numba.core import gpu


@pytest.fixture
def machine(monkeypatch):
    """A machine made up for the test: its driver's version, its devices, whether CuPy is there."""

    def make(
        version=None,
        devices=0,
        cupy=False,
        has_numba=True,
        numba_file="/site-packages/numba_cuda/numba/cuda/__init__.py",
    ):
        monkeypatch.setattr(gpu, "driver_version", lambda: version)
        monkeypatch.setattr(gpu, "device_count", lambda: devices)
        find_spec, installed = importlib.util.find_spec, {"cupy": cupy, "numba": has_numba}
        monkeypatch.setattr(
            gpu.importlib.util,
            "find_spec",
            lambda name: installed[name] or None if name in installed else find_spec(name),
        )
        fake = types.ModuleType("numba.cuda")
        fake.__file__ = numba_file
        monkeypatch.setitem(sys.modules, "numba.cuda", fake)
        import numba

        monkeypatch.setattr(numba, "cuda", fake, raising=False)
        gpu.why_not.cache_clear()
        return gpu.why_not()

    yield make
    gpu.why_not.cache_clear()


def test_no_driver(machine):
    reason = machine()
    assert "no NVIDIA driver" in reason
    assert "libcuda.so.1" in reason


def test_driver_without_device(machine):
    reason = machine(version=(13, 0))
    assert "no device" in reason
    assert "CUDA_VISIBLE_DEVICES" in reason


@pytest.mark.parametrize(
    "version, capability, extra",
    [
        ((12, 4), (9, 0), "cuda12"),
        ((13, 0), (7, 5), "cuda13"),
        ((13, 2), (9, 0), "cuda13"),
        ((13, 0), (7, 0), "cuda12"),
    ],
)
def test_cupy_missing_names_the_extra(machine, monkeypatch, version, capability, extra):
    monkeypatch.setattr(gpu, "compute_capability", lambda: capability)
    reason = machine(version=version, devices=1)
    assert "CuPy" in reason
    assert f"flashcore-numba[{extra}]" in reason


def test_numba_missing_names_the_command(machine):
    reason = machine(version=(13, 0), devices=1, cupy=True, has_numba=False)
    assert reason == "Numba is not installed: pip install flashcore-numba"


def test_builtin_numba_target(machine):
    reason = machine(version=(13, 0), devices=1, cupy=True, numba_file="/lib/numba/cuda/__init__.py")
    assert "redirector" in reason
    assert "/lib/numba/cuda/__init__.py" in reason


def test_all_there(machine):
    assert machine(version=(13, 0), devices=1, cupy=True) is None
    assert gpu.available()


def test_the_answers_agree():
    """Whatever this machine is: no device means no name, no capability and a reason."""
    assert gpu.available() == (gpu.why_not() is None)
    if gpu.device_count() == 0:
        assert gpu.name() is None
        assert gpu.compute_capability() is None
        assert not gpu.available()
    else:
        assert gpu.name()
        assert gpu.compute_capability() >= (3, 0)
        assert gpu.driver_version() >= (10, 0)
    assert gpu.name(gpu.device_count()) is None


def test_detection_and_the_package_import_neither_numba_nor_cupy():
    code = (
        "import sys, flashcore_numba.core.gpu as gpu; gpu.device_count(); gpu.driver_version(); "
        "print([m for m in ('numba', 'cupy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
