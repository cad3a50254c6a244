"""Two artifacts side by side: is an entry faster, slower, or is the difference noise?

The ratio of an entry is its time in B over its time in A. Within a run, rounds tell how far a median can be
trusted, and the bootstrap interval of the ratio follows from them. Between runs more changes than that: where
arrays and code are in memory, temperature, the host. So a difference counts only beyond a floor: 1 %, or what
the peers moved by if that is more, where both runs timed the same version of the same library and it was
right. Such a peer ran the same code twice, and what it shows is the measurement alone.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from flashcore_numba.measure import stats
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import SMALL, provenance, short_us

SMALLEST_FLOOR = 0.01
CLOCKS_DIFFER = 0.01
PEER_PACKAGES = {  # a peer whose label begins so is these packages' code
    "SDPA cuDNN": ("torch", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "SDPA": ("torch",),
    "FlexAttention": ("torch", "triton"),
    "FA4": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "FA3": ("FA3",),
    "FlashInfer": ("flashinfer-python",),
}


def compare_artifacts(a: Path, b: Path) -> dict[str, Any]:
    """Read two artifacts and compare every entry that both timed.

    Returns `a` and `b` (file, gpu, date, commit, label); `warnings`, sentences on what makes them hard to
    compare; `shapes`, one item a workload: operation, shape, causal, element, features (where the artifact
    has them), floor, floor_from (the peer that set it, or None), entries with label, kind, a_us, b_us, ratio,
    ci {low, high} (None where an artifact has no rounds) and verdict ("faster", "slower" or "noise", of B;
    "wrong" where a result is); `only_a` and `only_b`, what one of them alone has. Raises ArtifactError, for
    artifacts of different operations too.
    """
    of_a, of_b = artifact.load(a), artifact.load(b)
    of, other = artifact.operation_of(of_a), artifact.operation_of(of_b)
    if of != other:
        raise artifact.ArtifactError(
            f"{a} times the operation {of} and {b} {other}: artifacts of one operation are accepted"
        )
    shapes_a, shapes_b = ({artifact.shape_key(s): s for s in x["shapes"]} for x in (of_a, of_b))
    both = [key for key in shapes_a if key in shapes_b]
    same = _unchanged(of_a, of_b)
    return {
        "a": _about(a, of_a),
        "b": _about(b, of_b),
        "warnings": [*_warnings(of_a, of_b), *_doubtful("A", of_a, both), *_doubtful("B", of_b, both)],
        "shapes": [{"operation": of} | _compared(shapes_a[key], shapes_b[key], same) for key in both],
        "only_a": list(_only(of, shapes_a, shapes_b)),
        "only_b": list(_only(of, shapes_b, shapes_a)),
    }


def table(shape: dict[str, Any], width: int) -> Table:
    """One shape of `compare_artifacts`' result."""
    source = f", as {shape['floor_from']} moved by" if shape["floor_from"] else ""
    shown = Table(
        title=artifact.shape_title(shape, shape["operation"]),
        caption=f"GPU time of a launch, median, in microseconds. Noise: the 95% interval of B/A holds 1, or "
        f"they differ by at most {shape['floor']:.1%}{source}.",
        title_justify="left",
        caption_justify="left",
    )
    columns = ["A", "B", "B/A", "95%", "B is"]
    if width < SMALL:
        columns.remove("95%")
    shown.add_column("", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="left" if name == "B is" else "right", no_wrap=True)
    for entry in shape["entries"]:
        ci = entry["ci"]
        row = {
            "A": short_us(entry["a_us"]),
            "B": short_us(entry["b_us"]),
            "B/A": f"{entry['ratio']:.3f}",
            "95%": f"{ci['low']:.3f} to {ci['high']:.3f}" if ci else "-",
            "B is": entry["verdict"],
        }
        style = {"faster": "green", "slower": "red", "wrong": "red"}.get(entry["verdict"], "dim")
        shown.add_row(entry["label"], *(row[name] for name in columns), style=style)
    return shown


def _compared(a: dict[str, Any], b: dict[str, Any], same: set[str]) -> dict[str, Any]:
    others = {entry["label"]: entry for entry in b["entries"]}
    pairs = [(entry, others[entry["label"]]) for entry in a["entries"] if entry["label"] in others]
    moved = {
        x["label"]: abs(_ratio(x, y) - 1)
        for x, y in pairs
        if x["kind"] == "peer" and x["label"] in same and x["error"]["right"] and y["error"]["right"]
    }
    floor_from = max(moved, key=moved.__getitem__, default=None)
    if floor_from is None or moved[floor_from] <= SMALLEST_FLOOR:
        floor_from, floor = None, SMALLEST_FLOOR
    else:
        floor = moved[floor_from]
    entries = []
    for x, y in pairs:
        rounds = x["gpu_us"]["rounds_us"], y["gpu_us"]["rounds_us"]
        ci = stats.ratio_interval(rounds[1], rounds[0]) if None not in rounds else None
        ratio = _ratio(x, y)
        within = abs(ratio - 1) <= floor or (ci is not None and ci["low"] <= 1 <= ci["high"])
        verdict = "noise" if within else "faster" if ratio < 1 else "slower"
        entries.append(
            {
                "label": x["label"],
                "kind": x["kind"],
                "a_us": x["gpu_us"]["p50"],
                "b_us": y["gpu_us"]["p50"],
                "ratio": ratio,
                "ci": ci,
                "verdict": verdict if x["error"]["right"] and y["error"]["right"] else "wrong",
            }
        )
    return {
        "shape": a["shape"],
        "causal": a["causal"],
        "element": artifact.shape_key(a)[2],
        **({} if artifact.is_plain(a) else {"features": a["features"]}),
        "floor": floor,
        "floor_from": floor_from,
        "entries": entries,
    }


def _ratio(a: dict[str, Any], b: dict[str, Any]) -> float:
    """B's time over A's: of the medians of the rounds, which the interval is about, where both are known."""
    rounds = a["gpu_us"]["rounds_us"], b["gpu_us"]["rounds_us"]
    if None in rounds:
        return b["gpu_us"]["p50"] / a["gpu_us"]["p50"]
    return statistics.median(rounds[1]) / statistics.median(rounds[0])


def _unchanged(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    """Labels of the peers that ran the same code on the same kind of GPU in both."""
    if any(a["gpu"][name] != b["gpu"][name] for name in ("name", "driver")):
        return set()
    labels = {e["label"] for s in a["shapes"] for e in s["entries"] if e["kind"] == "peer"}
    return {
        label
        for label in labels
        for packages in [next((PEER_PACKAGES[x] for x in PEER_PACKAGES if label.startswith(x)), None)]
        if packages and all(a["packages"].get(x) == b["packages"].get(x) for x in packages)
    }


def _warnings(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    for name, what in (("name", "GPU"), ("driver", "driver"), ("cuda", "CUDA")):
        if a["gpu"][name] != b["gpu"][name]:
            yield f"The {what} differs: {a['gpu'][name]} in A, {b['gpu'][name]} in B."
    clocks = [record["clocks"]["sm_mhz"] for record in (a, b)]
    if None in clocks:
        yield "The clocks of at least one run were not read."
    elif abs(clocks[1]["p50"] / clocks[0]["p50"] - 1) > CLOCKS_DIFFER:
        in_a, in_b = (f"{span['p50']:.0f} MHz" for span in clocks)
        yield f"The SM clocks differ: median {in_a} in A, {in_b} in B."
    versions = a["packages"].keys() | b["packages"].keys()
    changed = [
        f"{name} {a['packages'].get(name, 'absent')} and {b['packages'].get(name, 'absent')}"
        for name in sorted(versions - {"flashcore-numba"})
        if a["packages"].get(name) != b["packages"].get(name)
    ]
    if changed:
        yield f"Library versions differ (A and B): {', '.join(changed)}."
    for letter, record in (("A", a), ("B", b)):
        if record["dirty"]:
            yield f"{letter} was measured with uncommitted changes, so its commit does not say what ran."
    same_code = a["commit"] == b["commit"] and a["commit"] and a["dirty"] is b["dirty"] is False
    if same_code and a["gpu"]["name"] == b["gpu"]["name"]:
        yield (
            f"Both ran commit {a['commit'][:10]}, so no difference is the stages' own: they show how far two "
            "runs of the same code differ."
        )


def _doubtful(letter: str, record: dict[str, Any], shapes: list[artifact.Key]) -> Iterator[str]:
    """Entries of the shared shapes whose times mean less than they seem to."""
    for shape in record["shapes"]:
        if artifact.shape_key(shape) not in shapes:
            continue
        where = artifact.shape_title(shape, artifact.operation_of(record))
        wrong = [entry["label"] for entry in shape["entries"] if not entry["error"]["right"]]
        slow = [entry["label"] for entry in shape["entries"] if entry["throttled"]]
        if wrong:
            yield f"{letter}, {where}: wrong results, whose times mean nothing: {', '.join(wrong)}."
        if slow:
            yield f"{letter}, {where}: throttled: {', '.join(slow)}."


def _only(operation: str, shapes: dict[tuple, Any], others: dict[tuple, Any]) -> Iterator[str]:
    for key, shape in shapes.items():
        where = artifact.shape_title(shape, operation)
        if key not in others:
            yield where
            continue
        there = {entry["label"] for entry in others[key]["entries"]}
        for entry in shape["entries"]:
            if entry["label"] not in there:
                yield f"{entry['label']} at {where}"


def _about(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": str(path),
        "gpu": record["gpu"]["name"],
        "date": record["date"],
        "commit": record["commit"],
        "label": record["label"],
        "provenance": provenance(record),
    }
