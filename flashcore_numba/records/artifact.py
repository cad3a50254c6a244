"""The record of one run of `flashcore compare`: a JSON document, its schema, and what follows from it.

`data/artifact.schema.json` says which fields there are and of what type; here is what they mean.

schema      2
date        UTC, 2026-01-31T12:00:00Z
commit      of the source that ran, and `dirty`: whether tracked files differed (null: unknown)
operation   what the stages and peers compute: "forward" where it is missing, or "backward"
label       what the run is for, where it is not the ladder ("lengths", "long"); part of the file's name
gpu         name, compute_capability, sm_count, max_sm_mhz, bandwidth_gbs, l2_bytes, driver, cuda, ...
topology    of a run on several GPUs of one host: gpus, and peer_access, whether each reads the others'
            memory; its times are those of the slowest GPU
packages    name -> version
rounds      interleaved rounds;  l2: "warm", in gpu_us and caller_us;  seed: of the random inputs
clocks      sm_mhz, temperature_c, power_w: {min, p50, max} seen during the rounds, or null
ceilings    what this GPU reached in micro-benchmarks of the same run: fp32_tflops, tensor_tflops and
            mma_sync_tflops, exp_gops (10^9 ex2 a second), l1_gbs (shared memory, all SMs), l2_gbs, dram_gbs
            (read plus written), read_gbs (device memory, read only), launch_us (an empty kernel in a graph);
            or null
shapes      a list: shape (B x H x S x D), causal, element (of q, k, v and out; float16 where it is missing;
            those of one shape and mask were interleaved), limits_us {fp32, tensor, exp, memory}, entries,
            absent {label: reason}. In the shape, 32/8 are H and H_kv, 192/128 D and D_v, and 128-8192 the
            shortest and the longest that a sequence of a ragged batch could be. Where something is on beside
            the mask or the shape says more than BxHxSxD: features {window, softcap, sinks, alibi_slopes,
            gate, head_norm, seqused_k: how many keys count; lengths: of the sequences; tokens: query rows of
            each sequence, where missing as many as keys, or 1 in decode; of decode also page: keys of a
            page, 16 where it is missing, or "contiguous"; cache: its type, where that is not q's;
            batch_invariant}, flops, and equal_lengths, the shape of as many tokens in equal lengths that was
            interleaved with a ragged batch. flops is there for every shape of an operation other than the
            forward pass, and kv_bytes, of K and V that tokens see, for every shape of decode
entries     label, kind ("stage" or "peer"), stage (number; null off the spine), variant, default (false: a
            variant that must be named), unit ("fp32" or "tensor"), launches a graph, rounds, gpu_us (a launch
            in a graph, L2 warm), gpu_cold_us (the same, L2 flushed; null for variants, for launches of more
            than 4 ms, and where the flush alone once took longer than with the launch) and caller_us (null
            for variants): statistics as `stats.of_rounds` makes them; clocks as above, of this entry's turns;
            throttled: sentences on what held its clocks back (null: not read); error, resources (one item a
            kernel), and what `derive` computes: speed_up {stage_01, best_peer}, share_of_limit
"""

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from flashcore_numba.core import lean, workload
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.predict.limits import share_of_limit
from flashcore_numba.records import layout

RESOURCES = "resources.json"  # beside the artifacts, and none of them: see resource_table
SCHEMA = 2
SCHEMA_FILE = "artifact.schema.json"
# What else is in the folder of recorded runs.
FORWARD = "forward"  # the operation of an artifact that names none
WITH_FORWARD = ", with forward"  # ends the labels of what is timed forward and backward together
EXPERIMENTS = "experiments"  # the label of kernels that are no run of the ladder, see course.experiments
TIMELINES = "ring-timeline-*.json"  # see ring_timeline
OTHERS = (RESOURCES, "*.schema.json", "nsight-*.json", "stamps-*.json", TIMELINES, f"*-{EXPERIMENTS}.json")


Key = tuple[str, bool, str, str]


class ArtifactError(ArgumentError):
    """An artifact that breaks the schema: the message names the file, the place and what is expected."""


def derive(shape: dict[str, Any]) -> None:
    """Set speed_up and share_of_limit of every entry of one shape, from p50 of the GPU times. What is timed
    with its forward pass is compared with such peers alone, and the others with the others.
    """
    times = {entry["label"]: entry["gpu_us"]["p50"] for entry in shape["entries"]}
    first = next((e["gpu_us"]["p50"] for e in shape["entries"] if e["stage"] == 1), None)
    right = [e["label"] for e in shape["entries"] if e["kind"] == "peer" and e["error"]["right"]]
    for entry in shape["entries"]:
        own, both = times[entry["label"]], entry["label"].endswith(WITH_FORWARD)
        peers = [times[label] for label in right if label.endswith(WITH_FORWARD) == both]
        entry["speed_up"] = {
            "stage_01": first / own if first else None,
            "best_peer": min(peers) / own if peers else None,
        }
        entry["share_of_limit"] = share_of_limit(shape["limits_us"], entry["unit"], own)


def operation_of(artifact: dict[str, Any]) -> str:
    """What its stages and peers compute, by name."""
    return artifact.get("operation", FORWARD)


def shape_key(shape: dict[str, Any]) -> Key:
    """What tells the results of a shape from the others of its run: shape, causal, element, features."""
    features = json.dumps(shape.get("features", {}), sort_keys=True)
    return shape["shape"], shape["causal"], shape.get("element", FLOAT16.name), features


def is_plain(shape: dict[str, Any]) -> bool:
    """Whether it is BxHxSxD, perhaps with the causal mask: what tables, pictures and lessons are about."""
    return "features" not in shape


def shape_title(shape: dict[str, Any], operation: str = FORWARD) -> str:
    """`1x8x512x64`, or `backward, 1x8x512x64, causal, window=127,0, bfloat16`."""
    name, causal, element, _ = shape_key(shape)
    words = ["" if operation == FORWARD else operation, name, "causal" if causal else ""]
    words += [workload.label(shape.get("features", {})), "" if element == FLOAT16.name else element]
    return ", ".join(filter(None, words))


def find_shape(artifact: dict[str, Any], shape: str, causal: bool = False) -> dict[str, Any] | None:
    """The results of one plain shape ("1x8x512x64") in float16, or None where it was not measured."""
    wanted = shape_key({"shape": shape, "causal": causal})
    return next((s for s in artifact["shapes"] if is_plain(s) and shape_key(s) == wanted), None)


def save(artifact: dict[str, Any], path: Path) -> None:
    """Validate and write; the file appears whole or not at all. Raises ArtifactError and OSError."""
    validate(artifact, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    layout.save(artifact, path, "entries")


_valid: set[bytes] = set()  # digests of the texts that this process found valid


def load(path: Path) -> dict[str, Any]:
    """Read and validate. Raises ArtifactError."""
    artifact, digest = _read(path)
    if digest not in _valid:  # validating takes several times as long as reading
        validate(artifact, str(path))
        _valid.add(digest)
    return artifact


def read(path: Path) -> dict[str, Any]:
    """A JSON document. Raises ArtifactError."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """A JSON document, and the digest of its text."""
    try:
        text = path.read_text()
        return json.loads(text), hashlib.sha256(text.encode()).digest()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not JSON that can be read ({error})") from None


def file_name(artifact: dict[str, Any]) -> str:
    """`nvidia-h200.json`, `nvidia-h200-lengths.json` with a label, and `...-causal.json` where every shape is
    causal, `...-bfloat16.json` where none is in float16, `nvidia-h200-backward...` for another operation.
    """
    gpu = gpu_in_a_name(artifact)
    causal = "causal" if all(shape["causal"] for shape in artifact["shapes"]) else None
    others = {shape_key(shape)[2] for shape in artifact["shapes"]}
    element = None if FLOAT16.name in others else "-".join(sorted(others))
    of = operation_of(artifact).replace("_", "-")
    other = None if of == FORWARD else of
    return "-".join(filter(None, (gpu, other, artifact["label"], element, causal))) + ".json"


def gpu_in_a_name(record: dict[str, Any]) -> str:
    """The GPU of a record as names of files have it: `nvidia-h200`."""
    return re.sub("[^a-z0-9]+", "-", record["gpu"]["name"].lower()).strip("-")


def recorded_dir() -> Path:
    """Where the repository keeps its recorded runs."""
    return Path(str(resources.files("flashcore_numba"))) / "records" / "data"


def other(name: str, folder: Path | None = None) -> dict[str, Any] | None:
    """The record NAME.json, such as `trust/fuzz`, that is of no run of `flashcore compare`; None where there
    is none.

    folder: of the recorded runs; the package's own by default.
    """
    path = (folder or recorded_dir()) / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def recorded(
    folder: Path | None = None, element: Element = FLOAT16, operation: str = FORWARD
) -> list[tuple[Path, dict[str, Any]]]:
    """The recorded runs of an operation, each with its plain shapes in one element type, ordered as by
    `recorded_whole`, which says what is raised.
    """
    return in_type(recorded_whole(folder), element, operation)


def recorded_whole(folder: Path | None = None) -> list[tuple[Path, dict[str, Any]]]:
    """All recorded runs with all their workloads: those without a label first, the newest first among equals.

    Those of another folder are validated: raises ArtifactError when one is damaged. The repository's own were
    validated when they were saved and by a test: every command and every exercise reads them.
    """
    paths = sorted((folder or recorded_dir()).glob("*.json"))
    taken = read if folder is None else load
    found = [(path, taken(path)) for path in paths if not any(map(path.match, OTHERS))]
    found.sort(key=lambda pair: (pair[1]["label"] is None, pair[1]["date"]), reverse=True)
    return found


def workloads(operation: str, folder: Path | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every workload of every recorded run of an operation, and its run, ordered as by `recorded_whole`."""
    for _, record in recorded_whole(folder):
        if operation_of(record) == operation:
            yield from ((record, shape) for shape in record["shapes"])


def in_type(
    records: Iterable[tuple[Path, dict[str, Any]]], element: Element = FLOAT16, operation: str = FORWARD
) -> list[tuple[Path, dict[str, Any]]]:
    """Those of this operation that have results of plain shapes in this element type, and of them these
    results alone; none of a run that compares types, which has a table of its own, and none that are there
    to be compared with the same shape with features.
    """
    found = []
    for path, record in records:
        types = {shape_key(s)[2] for s in record["shapes"] if is_plain(s)}
        if operation_of(record) != operation or len(types) > 1:
            continue
        yardsticks = {shape_key(s)[:3] for s in record["shapes"] if not is_plain(s)}
        shapes = [s for s in record["shapes"] if is_plain(s) and shape_key(s)[:3] not in yardsticks]
        shapes = [s for s in shapes if shape_key(s)[2] == element.name]
        found += [(path, record | {"shapes": shapes})] if shapes else []
    return found


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def validate(artifact: Any, where: str = "artifact") -> None:
    """Raise ArtifactError unless `artifact` follows the schema and its derived numbers its times."""
    if isinstance(artifact, dict) and "schema" not in artifact:
        raise ArtifactError(f"{where}: has no field schema, so it is no artifact of flashcore compare --save")
    if isinstance(artifact, dict) and artifact["schema"] != SCHEMA:
        raise ArtifactError(
            f"{where}: schema is {_show(artifact['schema'])}; this version reads {SCHEMA}, which "
            "flashcore compare --save writes"
        )
    follow_schema(artifact, SCHEMA_FILE, where)
    for k, shape in enumerate(artifact["shapes"]):
        _validate_shape(shape, f"{where}.shapes[{k}]")


def follow_schema(document: Any, file: str, where: str) -> None:
    """Raise ArtifactError unless a document follows the schema of this file, and all its numbers are finite.
    where: what messages call the document.
    """
    error = next(_validator(file).iter_errors(document), None)
    if error is not None:
        raise ArtifactError(f"{where}{_place(error.absolute_path)}{_complaint(error)}")
    for path, value in _numbers(document):
        if not math.isfinite(value):
            raise ArtifactError(f"{where}{_place(path)} is {value!r}; expected a finite number")


@functools.cache
def _validator(file: str) -> Any:
    with lean.no_iri_grammars():
        import jsonschema

    text = (Path(str(resources.files("flashcore_numba"))) / "records" / "data" / file).read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def _complaint(error: Any) -> str:
    """What follows the name of the place in the message about an error that jsonschema found."""
    value, needs = error.instance, error.validator_value
    if error.validator == "required":
        return f".{next(key for key in needs if key not in value)} is missing"
    if error.validator == "additionalProperties":
        unknown = sorted(set(value) - set(error.schema["properties"]))
        return f".{unknown[0]} is unknown; expected are {', '.join(error.schema['properties'])}"
    expected = error.schema.get("description")
    if error.validator == "type":
        expected = " or ".join([needs] if isinstance(needs, str) else needs)
    elif error.validator == "const":
        expected = repr(needs)
    elif error.validator == "enum":
        expected = " or ".join(map(repr, needs))
    elif error.validator == "minimum":
        expected = f"at least {needs}"
    elif error.validator == "minItems":
        expected = f"at least {needs} items"
    return f" is {_show(value)}; expected {expected or error.message}"


def _place(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Every float in a document, with its path."""
    if isinstance(value, float):
        yield path, value
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _numbers(part, (*path, key))
    for key, part in enumerate(value) if isinstance(value, list) else ():
        yield from _numbers(part, (*path, key))


def _validate_shape(shape: dict[str, Any], where: str) -> None:
    """What no schema says: labels that differ, times in order, and derived numbers that follow from times."""
    labels: list[str] = [entry["label"] for entry in shape["entries"]]
    for k, label in enumerate(labels):
        if label in labels[:k]:
            raise ArtifactError(
                f"{where}.entries[{k}].label {label!r} is there twice; each entry needs its own"
            )
    fresh = json.loads(json.dumps(shape))
    derive(fresh)
    for k, (entry, needs) in enumerate(zip(shape["entries"], fresh["entries"], strict=True)):
        at = f"{where}.entries[{k}]"
        for clock in ("gpu_us", "gpu_cold_us", "caller_us"):
            if entry[clock] is not None:
                _validate_times(entry[clock], f"{at}.{clock}")
        for field, value in (needs["speed_up"] | {"share_of_limit": needs["share_of_limit"]}).items():
            seen = (entry["speed_up"] | {"share_of_limit": entry["share_of_limit"]})[field]
            if not (seen is value is None or (None not in (seen, value) and _agree(seen, value))):
                raise ArtifactError(f"{at}: {field} is {seen!r}; its own times give {value!r}")


def _agree(ratio: float, again: float) -> bool:
    """Whether a ratio is that of its times, all three of them as `layout` rounds them."""
    return math.isclose(ratio, again, rel_tol=3 * layout.ROUNDING)


def _validate_times(times: dict[str, Any], where: str) -> None:
    ordered = [times[name] for name in ("min", "p50", "p90", "p99", "max")]
    # p50 has more digits than its neighbours, which rounding may put on its other side.
    if any(late < early * (1 - 2 * layout.ROUNDING) for early, late in itertools.pairwise(ordered)):
        raise ArtifactError(f"{where}: min, p50, p90, p99 and max are {ordered}; expected in rising order")
    rounds, interval = times["rounds_us"], times["ci"]
    if rounds is interval is None:
        return
    if (
        rounds is None
        or interval is None
        or not (min(rounds) <= interval["low"] <= interval["high"] <= max(rounds))
    ):
        raise ArtifactError(
            f"{where}.ci is {_show(interval)}; expected an interval between the smallest and the largest of "
            "rounds_us"
        )


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
