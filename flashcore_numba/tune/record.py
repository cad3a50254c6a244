"""What a search found, in the cache format of Kernel Tuner (van Werkhoven 2019), so that it can be replayed.

Beside what that format has, `workload`, `funnel`, `elite`, the rounds of all `finalists`, and where the run
was made; and for each configuration what the compiler and the GPU said of it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.workload import Workload
from flashcore_numba.records import environment, layout
from flashcore_numba.tune.spaces import Config, Space

FAILED = "CompilationFailedConfig", "RuntimeFailedConfig"
"""What stands for the time of a configuration that has none: dropped before it ran, or while it ran."""


CAPABILITY, SM_COUNT = (9, 0), 132  # of an H200, for what a stage chooses where there is no GPU


class Device(NamedTuple):
    """The GPU of a search."""

    name: str
    capability: tuple[int, int] = CAPABILITY
    sm_count: int = SM_COUNT


NONE = Device("none")
"""Where nothing is timed."""


def new(
    space: Space, workload: Workload, device: Device = NONE, changes: int | None = None
) -> dict[str, Any]:
    """A record without configurations. changes: None for a search of the whole space."""
    commit, dirty = environment.commit()
    shape = workload.shape
    return {
        "device_name": device.name,
        "compute_capability": list(device.capability),
        "sm_count": device.sm_count,
        "kernel_name": space.stage.key,
        "problem_size": [shape.batch, shape.heads, shape.kv_heads, shape.seq, shape.head_dim],
        "workload": {"shape": str(shape), "causal": workload.causal, "element": workload.element.name},
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
        "packages": environment.packages(),
        "tune_params_keys": list(space.values),
        "tune_params": {name: list(values) for name, values in space.values.items()},
        "changes": changes,
        "objective": "time",
        "funnel": {},
        "elite": [],
        "cache": {},
    }


def entry(config: Config, **found: Any) -> dict[str, Any]:
    """A configuration and what was found of it; `time` is in milliseconds, or one of `FAILED`."""
    return {name: int(value) for name, value in config.items()} | found


def load(path: Path) -> dict[str, Any]:
    """Raises ArgumentError for a file that is no record."""
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise ArgumentError(
            f"{str(path)!r} is not JSON: a record that flashcore tune wrote is accepted"
        ) from None
    needed = ("kernel_name", "tune_params_keys", "tune_params", "workload", "cache")
    if not isinstance(record, dict) or any(name not in record for name in needed):
        raise ArgumentError(f"{str(path)!r} is no record of flashcore tune: it has no {', '.join(needed)}")
    return record


def whole(path: Path) -> dict[str, Any]:
    """A record of which every part is there. Raises ArgumentError, which names what is damaged."""
    record = load(path)
    kinds = {"tune_params_keys": list, "tune_params": dict, "funnel": dict, "elite": list, "cache": dict}
    damaged = [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]
    if not damaged:
        names, entries = record["tune_params_keys"], record["cache"].values()
        damaged += [] if names == list(record["tune_params"]) else ["tune_params"]
        damaged += [] if all(_is_entry(each, names) for each in entries) else ["cache"]
    if damaged:
        raise ArgumentError(
            f"{str(path)!r} is no whole record of flashcore tune: its {damaged[0]} is damaged"
        )
    return record


def _is_entry(each: Any, names: list[str]) -> bool:
    return isinstance(each, dict) and all(isinstance(each.get(name), int) for name in names)


def resumed(path: Path, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """The record at `path` to be gone on with, or `fresh`. Raises ArgumentError for one of something else."""
    if not path.exists():
        return dict(fresh)
    record = whole(path)
    for name in ("kernel_name", "workload", "tune_params", "changes", "device_name", "commit"):
        if record.get(name) != fresh[name]:
            raise ArgumentError(
                f"{str(path)!r} holds another search: its {name} is {record.get(name)!r}, this one's "
                f"{fresh[name]!r}; choose another folder"
            )
    return record


def save(path: Path | None, record: Mapping[str, Any]) -> None:
    """Write it whole, in place of what was there; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        layout.save(dict(record), path, "cache", "finalists")


def file_name(space: Space, workload: Workload) -> str:
    """`tune-15-4x16x577x64-causal.json`, `tune-backward_wgmma-4x32x4096x64.json`."""
    causal = "-causal" if workload.causal else ""
    shape = str(workload.shape).replace("/", "_")
    return f"tune-{str(space.key).replace('/', '_')}-{shape}{causal}.json"


def timed(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configurations with a time, fastest first."""
    found = [each for each in record["cache"].values() if isinstance(each.get("time"), float)]
    return sorted(found, key=lambda each: each["time"])


def config_of(record: Mapping[str, Any], each: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an entry."""
    return {name: each[name] for name in record["tune_params_keys"]}
