"""The record of one run of `flashcore compare`: a JSON document, its schema, and what follows from it.

schema      1
date        UTC, 2026-01-31T12:00:00Z
commit      of the source that ran, and `dirty`: whether tracked files differed (null: unknown)
gpu         name, compute_capability, sm_count, max_sm_mhz, bandwidth_gbs, driver, driver_cuda, cuda, ...
packages    name -> version
rounds      interleaved rounds;  l2: "warm";  seed: of the random inputs
clocks      sm_mhz, temperature_c, power_w: {min, p50, max} seen during the rounds, or null
shapes      a list: shape (B x H x S x D), causal, limits_us {fp32, tensor, exp, memory}, entries,
            absent {label: reason}
entries     label, kind ("stage" or "peer"), stage (number), variant, default (false: a variant that must
            be named), unit ("fp32" or "tensor"), launches a graph, rounds, gpu_us and caller_us (statistics;
            caller_us may be null), error, resources (one item a kernel),
            and what `derive` computes: speed_up {stage_01, best_peer}, share_of_limit
"""

import hashlib
import json
import math
import os
import re
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard

from flashcore_numba.problem import ArgumentError

from .limits import share_of_limit
from .stats import FIELDS

__all__ = [
    "RESOURCES",
    "SCHEMA",
    "ArtifactError",
    "derive",
    "file_name",
    "find_shape",
    "load",
    "recorded",
    "recorded_dir",
    "save",
    "sha256",
    "validate",
]

RESOURCES = "resources.json"  # beside the artifacts, and none of them: see resource_table
SCHEMA = 1


class ArtifactError(ArgumentError):
    """An artifact that breaks the schema: the message names the file, the place and what is expected."""


def derive(shape: dict[str, Any]) -> None:
    """Set speed_up and share_of_limit of every entry of one shape, from p50 of the GPU times."""
    times = {entry["label"]: entry["gpu_us"]["p50"] for entry in shape["entries"]}
    first = next((e["gpu_us"]["p50"] for e in shape["entries"] if e["stage"] == 1), None)
    peers = [times[e["label"]] for e in shape["entries"] if e["kind"] == "peer" and e["error"]["right"]]
    for entry in shape["entries"]:
        own = times[entry["label"]]
        entry["speed_up"] = {
            "stage_01": first / own if first else None,
            "best_peer": min(peers) / own if peers else None,
        }
        entry["share_of_limit"] = share_of_limit(shape["limits_us"], entry["unit"], own)


def find_shape(artifact: dict[str, Any], shape: str, causal: bool = False) -> dict[str, Any] | None:
    """The results of one shape ("1x8x512x64"), or None where it was not measured."""
    found = (s for s in artifact["shapes"] if (s["shape"], s["causal"]) == (shape, causal))
    return next(found, None)


def save(artifact: dict[str, Any], path: Path) -> None:
    """Validate and write; the file appears whole or not at all."""
    validate(artifact, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(artifact, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def load(path: Path) -> dict[str, Any]:
    """Read and validate. Raises ArtifactError."""
    try:
        artifact = json.loads(path.read_text())
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ArtifactError(f"{path}: is not JSON ({error})") from None
    validate(artifact, str(path))
    return artifact


def file_name(artifact: dict[str, Any]) -> str:
    """`nvidia-h200.json`, or `nvidia-h200-causal.json` where every shape is causal."""
    gpu = re.sub("[^a-z0-9]+", "-", artifact["gpu"]["name"].lower()).strip("-")
    causal = all(shape["causal"] for shape in artifact["shapes"])
    return f"{gpu}{'-causal' if causal else ''}.json"


def recorded_dir() -> Path:
    """Where the repository keeps its recorded runs."""
    return Path(str(resources.files("flashcore_numba"))) / "recorded"


def recorded(folder: Path | None = None) -> list[tuple[Path, dict[str, Any]]]:
    """The recorded runs, the newest first. Raises ArtifactError when one of them is damaged."""
    paths = sorted((folder or recorded_dir()).glob("*.json"))
    found = [(path, load(path)) for path in paths if path.name != RESOURCES]
    return sorted(found, key=lambda pair: pair[1]["date"], reverse=True)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def validate(artifact: Any, where: str = "artifact") -> None:
    """Raise ArtifactError unless `artifact` follows the schema and its derived numbers its times."""
    top = _Place(artifact, where)
    schema = top.get("schema", int)
    if schema != SCHEMA:
        raise ArtifactError(f"{where}: schema is {schema}; this version reads {SCHEMA}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", date := top.get("date", str)):
        raise ArtifactError(f"{where}: date is {date!r}; expected UTC as 2026-01-31T12:00:00Z")
    top.get("commit", str)
    top.get("dirty", bool, None)
    top.get("rounds", int)
    top.get("packages", dict)
    gpu = top.inside("gpu")
    gpu.get("name", str)
    gpu.get("sm_count", int)
    gpu.get("driver", str, None)
    gpu.get("cuda", str)
    gpu.number("max_sm_mhz")
    clocks = top.inside("clocks")
    for name in ("sm_mhz", "temperature_c", "power_w"):
        if clocks.get(name, dict, None):
            for field in ("min", "p50", "max"):
                clocks.inside(name).number(field)
    for shape in top.each("shapes"):
        _validate_shape(shape)


def _validate_shape(shape: "_Place") -> None:
    name = shape.get("shape", str)
    if not re.fullmatch(r"\d+x[\d/]+x[\d/]+x\d+", name):
        raise ArtifactError(f"{shape.where}.shape is {name!r}; expected BxHxSxD, for example 1x8x512x64")
    shape.get("causal", bool)
    shape.get("absent", dict)
    for unit in ("fp32", "tensor", "exp", "memory"):
        shape.inside("limits_us").number(unit, optional=True)
    labels = set()
    for entry in shape.each("entries"):
        label = entry.get("label", str)
        if label in labels:
            raise ArtifactError(f"{entry.where}.label {label!r} is there twice; each entry needs its own")
        labels.add(label)
        _validate_entry(entry)
    _validate_derived(shape)


def _validate_entry(entry: "_Place") -> None:
    kind = entry.get("kind", str)
    if kind not in ("stage", "peer"):
        raise ArtifactError(f"{entry.where}.kind is {kind!r}; expected 'stage' or 'peer'")
    entry.get("stage", *((int,) if kind == "stage" else (None,)))
    entry.get("variant", str, None)
    entry.get("default", bool)
    if (unit := entry.get("unit", str)) not in ("fp32", "tensor"):
        raise ArtifactError(f"{entry.where}.unit is {unit!r}; expected 'fp32' or 'tensor'")
    entry.get("launches", int)
    entry.get("rounds", int)
    entry.get("resources", list, None)
    for clock in ("gpu_us", "caller_us"):
        if clock == "gpu_us" or entry.get(clock, dict, None) is not None:
            times = entry.inside(clock)
            for field in FIELDS:
                times.number(field, smallest=0)
            times.get("n", int)
    error = entry.inside("error")
    right = error.get("right", bool)
    for field in ("max", "mean", "relative"):
        error.number(field, optional=not right, smallest=0)


def _validate_derived(shape: "_Place") -> None:
    fresh = json.loads(json.dumps(shape.value))
    derive(fresh)
    for k, (has, needs) in enumerate(zip(shape.value["entries"], fresh["entries"], strict=True)):
        flat = [(x.get("speed_up") or {}) | {"share_of_limit": x.get("share_of_limit")} for x in (has, needs)]
        for field, value in flat[1].items():
            seen = flat[0].get(field)
            close = _is_number(seen) and _is_number(value) and math.isclose(seen, value, rel_tol=1e-6)
            if not (close or seen is value is None):
                raise ArtifactError(
                    f"{shape.where}.entries[{k}]: {field} is {seen!r}; its own times give {value!r}"
                )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Place:
    """A part of the document together with its path, so that every message can name the place."""

    def __init__(self, value: Any, where: str):
        if not isinstance(value, dict):
            raise ArtifactError(f"{where} is {_show(value)}; expected an object")
        self.value, self.where = value, where

    def get(self, key: str, *kinds: type | None) -> Any:
        if key not in self.value:
            raise ArtifactError(f"{self.where}.{key} is missing")
        value = self.value[key]
        for kind in kinds:
            if value is None if kind is None else type(value) is kind:
                return value
        expected = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise ArtifactError(f"{self.where}.{key} is {_show(value)}; expected {expected}")

    def number(self, key: str, optional: bool = False, smallest: float = -math.inf) -> None:
        value = self.get(key, int, float, *((None,) if optional else ()))
        if value is not None and not (math.isfinite(value) and value >= smallest):
            at_least = f" of at least {smallest:g}" if math.isfinite(smallest) else ""
            raise ArtifactError(f"{self.where}.{key} is {value!r}; expected a finite number{at_least}")

    def inside(self, key: str) -> "_Place":
        return _Place(self.get(key, dict), f"{self.where}.{key}")

    def each(self, key: str) -> list["_Place"]:
        parts = self.get(key, list)
        if not parts:
            raise ArtifactError(f"{self.where}.{key} is empty; expected at least one")
        return [_Place(part, f"{self.where}.{key}[{k}]") for k, part in enumerate(parts)]


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
