"""An artifact of a GPU that does not exist, for everything that reads artifacts."""

import pytest

from flashcore_numba.core.shapes import Shape
from flashcore_numba.measure.stats import of_rounds
from flashcore_numba.predict.limits import Device, limits_us
from flashcore_numba.records import artifact


class _Work:
    """What `limits_us` asks of a problem."""

    def __init__(self, shape: Shape):
        self.flops = 4 * shape.batch * shape.heads * shape.seq**2 * shape.head_dim
        self.min_bytes = 8 * shape.batch * shape.heads * shape.seq * shape.head_dim
        self.exponentials = shape.batch * shape.heads * shape.seq**2
        self.on_gpu = False


def _entry(label, kind, us, stage=None, variant=None, default=True, caller=True):
    return {
        "label": label,
        "kind": kind,
        "stage": stage,
        "variant": variant,
        "default": default,
        "unit": "fp32" if kind == "stage" else "tensor",
        "launches": 10,
        "rounds": 5,
        "gpu_us": of_rounds([[us, 1.1 * us, 1.2 * us]] * 5),
        "gpu_cold_us": of_rounds([[us + 1, us + 2]] * 5) if caller else None,
        "caller_us": of_rounds([[us + 30, us + 31]] * 5) if caller else None,
        "clocks": {"sm_mhz": {"min": 1900, "p50": 1950, "max": 1980}, "temperature_c": None, "power_w": None},
        "throttled": [],
        "error": {"max": 2e-4, "mean": 1e-5, "relative": 3e-4, "margin": 4.0, "right": True, "reason": ""},
        "resources": [
            {"kernel": "kernel", "registers": 40, "spill_bytes": 8, "stack_bytes": 0, "shared_bytes": 0}
        ]
        if kind == "stage"
        else None,
    }


MISSION = Shape(1, 8, 512, 64)


def make_artifact(shape: Shape = MISSION, date: str = "2001-02-03T04:05:06Z", **changes):
    device = Device((9, 0), 132, 1980.0, 4917.0)
    result = {
        "shape": str(shape),
        "causal": False,
        "scale": 0.125,
        "limits_us": limits_us(_Work(shape), device),
        "entries": [
            _entry("01 scalar", "stage", 2000.0, stage=1),
            _entry("05 online_softmax", "stage", 125.0, stage=5),
            _entry("06 q_outer", "stage", 100.0, stage=6, variant="q_outer", default=False, caller=False),
            _entry("06 register_tiles", "stage", 50.0, stage=6, variant="register_tiles"),
            _entry("SDPA flash", "peer", 10.0),
            _entry("SDPA math", "peer", 80.0),
        ],
        "absent": {"FA4": "ImportError: not there"},
    }
    artifact.derive(result)
    record = {
        "schema": artifact.SCHEMA,
        "date": date,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "label": None,
        "gpu": {
            "name": "Imaginary GPU",
            "compute_capability": [9, 0],
            "sm_count": 132,
            "max_sm_mhz": 1980.0,
            "bandwidth_gbs": 4917.0,
            "l2_bytes": 2**20,
            "memory_bytes": 2**30,
            "driver": "1.2.3",
            "driver_cuda": "13.0",
            "cuda": "13.0",
        },
        "packages": {"python": "3.11.0", "torch": "2.0"},
        "rounds": 5,
        "l2": "warm",
        "seed": 1,
        "clocks": {"sm_mhz": {"min": 1900, "p50": 1950, "max": 1980}, "temperature_c": None, "power_w": None},
        "clocks_why_not": None,
        "ceilings": None,
        "shapes": [result],
    }
    record.update(changes)
    return record


def results(name, us, causal=False, **more):
    """What a run has of a workload; us: medians of the GPU time by label, of stages and of other libraries.

    Not what a schedule of rounds gives, so such an artifact is written and read without being validated.
    """
    shape = make_artifact()["shapes"][0]
    entries = []
    for label, time in us.items():
        number = label.partition(" ")[0]
        stage = int(number) if number.isdigit() else None
        kind = "peer" if stage is None and "/" not in label else "stage"
        entries.append(_entry(label, kind, time, stage=stage))
        entries[-1]["gpu_us"]["p50"] = time
    return shape | {"shape": name, "causal": causal, "entries": entries} | more


@pytest.fixture
def fake():
    """`fake(**changes)` makes a valid artifact of an imaginary GPU."""
    return make_artifact


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A folder that takes the place of the recorded runs, empty at first."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    monkeypatch.setattr(artifact, "recorded_dir", lambda: folder)
    return folder
