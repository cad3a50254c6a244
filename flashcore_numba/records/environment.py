"""Where a measurement was made: GPU, driver, packages, commit, date."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from flashcore_numba.records.artifact import sha256

PACKAGES = (
    *("flashcore-numba", "numba", "numba-cuda", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton"),
    *(
        "cuda-core",
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-cudnn-cu13",
        "nvidia-cudnn-cu12",
        "flash-attn-4",
        "flashinfer-python",
        "nvidia-cutlass-dsl",
    ),
)
FA3_VARIABLE = "FLASHCORE_FA3"  # names the compiled library of FlashAttention-3, which no package brings
# cudaDeviceAttr of the CUDA runtime; cudaDeviceProp lost the two clocks in CUDA 13.
ATTRIBUTES = {
    "sm_khz": 13,
    "sm_count": 16,
    "memory_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
}


def packages() -> dict[str, str]:
    """The versions of the installed packages that take part in a measurement; of FA3's library the digest."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    library = Path(os.environ.get(FA3_VARIABLE, ""))
    if library.is_file():
        found["FA3"] = f"sha256 {sha256(library)[:16]}"
    return found


def commit() -> tuple[str, bool | None]:
    """(commit of the source, whether tracked files differ): from FLASHCORE_COMMIT, else git, else "unknown".

    FLASHCORE_COMMIT is for a copy without its .git; "+dirty" at its end says that the copy differs.
    """
    given = os.environ.get("FLASHCORE_COMMIT", "").strip()
    if given:
        return given.removesuffix("+dirty"), given.endswith("+dirty")
    root = Path(__file__).resolve().parents[2]
    if not (
        root / ".git"
    ).exists():  # an installed package inside somebody else's repository is not that commit
        return "unknown", None
    try:
        return _git(root, "rev-parse", "HEAD"), bool(
            _git(root, "status", "--porcelain", "--untracked-files=no")
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown", None


def _git(root: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def today() -> str:
    """The date and time in UTC, as 2026-01-31T12:00:00Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def gpu() -> dict[str, Any]:
    """The current GPU as the artifact records it. Needs CuPy and a GPU."""
    import cupy

    from flashcore_numba.core import gpu as driver

    device = cupy.cuda.Device()
    of = {
        name: cupy.cuda.runtime.deviceGetAttribute(number, device.id) for name, number in ATTRIBUTES.items()
    }
    # Device memory moves data on both edges of its clock, over the whole bus; clocks are in kHz.
    bandwidth = 2 * of["memory_khz"] * 1e3 * of["bus_bits"] / 8 / 1e9
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return {
        "name": driver.name(device.id),
        "compute_capability": [of["major"], of["minor"]],
        "sm_count": of["sm_count"],
        "max_sm_mhz": of["sm_khz"] / 1e3,
        "bandwidth_gbs": round(bandwidth, 1) or None,
        "l2_bytes": of["l2_bytes"],
        "memory_bytes": device.mem_info[1],
        "driver": _driver_release(),
        "driver_cuda": ".".join(map(str, driver.driver_version() or ())) or None,
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
    }


def _driver_release() -> str | None:
    """The driver's release (580.95.05), which CUDA itself does not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else None
