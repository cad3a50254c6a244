"""Decoding in Markdown: the faster stage of each workload beside libraries, from the recorded runs of it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.core import shapes, workload
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import markdown, percent, provenance, short_us
from flashcore_numba.report.feature_tables import Results, fastest, gpu_name, how_much_faster, of_several_gpus
from flashcore_numba.report.tables import equal_lengths, rates

PEERS = ("FA3", "SDPA cuDNN", "SDPA flash")
PLANNED = "FlashInfer"  # whose plan of the work is made on the host, from lengths that it knows
COMMON = "Medians of interleaved rounds, GPU time of one launch in a CUDA graph, of the stage that is fastest"


def one_token(folder: Path | None = None) -> str | None:
    """A row per workload of one token for each request, all of one length: the fastest stage, its time with a
    warm and a cold L2, its rate, and how many times faster than each of `PEERS` it is.

    folder: of the recorded runs; the package's own by default.
    """
    lines, sources = {}, []
    for record, shape in _workloads(folder):
        features = shape.get("features", {})
        left_out = "tokens" in features or "lengths" in features or _is_yardstick(record, shape)
        if not left_out and not _planned(shape):
            words = [workload.label({k: v for k, v in features.items() if k != "page"})]
            words += ["" if shape["element"] == FLOAT16.name else shape["element"]]
            page, others = str(features.get("page", workload.PAGE)), " ".join(filter(None, words)) or "-"
            if (row := (gpu_name(record), shape["shape"], page, others)) not in lines:
                lines[row] = _cells(record, shape)
                sources.append(provenance(record))
    if not lines:
        return None
    head = [
        "GPU",
        "shape",
        "page",
        "with",
        "stage",
        "warm, µs",
        "cold, µs",
        "TB/s",
        "of reading",
        *_against(),
    ]
    head, rows = of_several_gpus(head, [[*row, *cells] for row, cells in lines.items()])
    return markdown(head, rows, len(head) - 5 - len(PEERS) + 1) + (
        f"\n\n{_listed(sources)}. {COMMON}. TB/s of K and V alone with a cold L2; of "
        "reading: beside a kernel that only reads, in the same run. Against a library: its time over ours, "
        "both warm; - where it lacks something or was not timed."
    )


def tokens(folder: Path | None = None) -> str | None:
    """A row per shape and number of tokens, where a run has several."""
    lines, sources = {}, []
    for record, shape in _workloads(folder):
        features = shape.get("features", {})
        if "tokens" not in features or (row := (shape["shape"], str(features["tokens"]))) in lines:
            continue
        one = next((s for s in record["shapes"] if _is_same(s, shape, tokens=1)), None)
        own, first = fastest(shape), fastest(one) if one else None
        beside = percent(own["gpu_us"]["p50"] / first["gpu_us"]["p50"]) if own and first else "-"
        stage, warm, cold, *_, fa3, cudnn, flash = _cells(record, shape)
        lines[row] = [stage, warm, cold, beside, fa3, cudnn, flash]
        sources.append(provenance(record))
    if not lines:
        return None
    head = ["shape", "tokens", "stage", "warm, µs", "cold, µs", "of one token's", *_against()]
    return markdown(head, ([*row, *cells] for row, cells in lines.items()), 3) + (
        f"\n\n{_listed(sources)}. {COMMON}. Pages of 16 keys. Of one token's: beside the "
        "time of one token, warm, in the same run."
    )


def lengths(folder: Path | None = None) -> str | None:
    """A row per batch of different lengths: of each stage and library its time, and its rate beside that at
    equal lengths.
    """
    lines: list[tuple[list[str], dict[str, str]]] = []
    sources, known = [], set()
    for record, shape in _workloads(folder):
        equal = equal_lengths(record, shape)
        options = {k: v for k, v in shape.get("features", {}).items() if k not in ("page", "lengths")}
        others = workload.label(options) or "-"
        if equal is None or (shape["shape"], others) in known:
            continue
        known.add((shape["shape"], others))
        reached = rates(equal)
        cells = {}
        for label, rate in rates(shape).items():
            (entry,) = (each for each in shape["entries"] if each["label"] == label)
            share = percent(rate / reached[label]) if label in reached else "-"
            cells[label] = f"{_us(entry, 'gpu_us')} ({share})"
        lines.append(([shape["shape"], others], cells))
        sources.append(provenance(record))
    if not lines:
        return None
    labels = dict.fromkeys(label for _, cells in lines for label in cells)
    rows = ([*first, *(cells.get(label, "-") for label in labels)] for first, cells in lines)
    return markdown(["shape", "with", *labels], rows, 2) + (
        f"\n\n{_listed(sources)}. Lengths are drawn between the two that the shape names. "
        "Microseconds with a warm L2; in brackets, of the rate at equal lengths: as many keys in all, in the "
        "same run."
    )


def planned(folder: Path | None = None) -> str | None:
    """A row per workload of one length that was timed beside FlashInfer: the fastest stage, both times."""
    lines, sources = [], []
    for record, shape in _workloads(folder):
        peer, best = _planned(shape), fastest(shape)
        if not peer or not best or "lengths" in shape["features"] or _is_yardstick(record, shape):
            continue
        times = [_us(entry, clock) for clock in ("gpu_us", "gpu_cold_us") for entry in (best, peer)]
        faster = [how_much_faster(shape, best, PLANNED, clock) for clock in ("gpu_us", "gpu_cold_us")]
        lines.append([shape["shape"], best["label"], *times, *faster, how_much_faster(shape, best, "FA3")])
        sources.append(provenance(record))
    if not lines:
        return None
    against = [f"against {PLANNED}", "cold", "against FA3"]
    head = ["shape", "stage", "warm, µs", PLANNED, "cold, µs", PLANNED, *against]
    return markdown(head, lines, 2) + (
        f"\n\n{_listed(sources)}. {COMMON}. Pages of 16 keys. Against {PLANNED}: its time "
        "over ours, warm and cold. Its plan is made before the graph is captured, and is not timed."
    )


def sentence(folder: Path | None = None) -> str | None:
    """What a reader of the README should know: the largest cache of D = 128 beside FA3, and the smallest."""
    found = []
    for record, shape in artifact.workloads(DECODE.name, folder):
        best = fastest(shape)
        plain = {*shape.get("features", {})} == {"page"} and _size(shape)[0] == 128 and not _planned(shape)
        if best and plain and (faster := how_much_faster(shape, best, "FA3")) != "-":
            found.append((shape["kv_bytes"], record, shape, best, faster))
    if not found:
        return None
    _, record, large, best, faster = max(found, key=lambda each: each[0])
    _, _, small, fast, much_faster = min(found, key=lambda each: each[0])
    return (
        f"On an {record['gpu']['name']}, decoding at {large['shape']} reads keys and values at "
        f"{_of_reading(record, large, best)} of the rate of a kernel that only reads, and is {faster} times "
        f"as fast as FlashAttention-3; at {small['shape']} it takes {_us(fast, 'gpu_us')} µs and is "
        f"{much_faster} times as fast."
    )


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "decode": one_token,
    "decode-tokens": tokens,
    "decode-lengths": lengths,
    "decode-flashinfer": planned,
}
TEXTS: dict[str, Callable[[Path | None], str | None]] = {"decode": sentence}


def _workloads(folder: Path | None) -> list[tuple[dict[str, Any], Results]]:
    """Every workload with its run, in the order of the rows."""
    return sorted(artifact.workloads(DECODE.name, folder), key=lambda each: _size(each[1]))


def _listed(sources: Iterable[str]) -> str:
    """The runs that rows are from, each once."""
    return "; ".join(dict.fromkeys(sources))


def _size(shape: Results) -> tuple[int, int, int]:
    of = shapes.parse_any(shape["shape"])
    return of.head_dim, of.batch, of.seq


def _planned(shape: Results) -> Results | None:
    """What FlashInfer took, whose runs have a table of their own."""
    return next((each for each in shape["entries"] if each["label"] == PLANNED), None)


def _is_yardstick(record: dict[str, Any], shape: Results) -> bool:
    return any(each.get("equal_lengths") == shape["shape"] for each in record["shapes"])


def _is_same(one: Results, other: Results, **features: Any) -> bool:
    """Whether a workload is another one with these features."""
    wanted = artifact.shape_key(other | {"features": other["features"] | features})
    return artifact.shape_key(one) == wanted


def _cells(record: dict[str, Any], shape: Results) -> list[str]:
    """Stage, both times, the rate, its share of that of reading, and the factors."""
    best = fastest(shape)
    if best is None:
        return ["wrong", *["-"] * (4 + len(PEERS))]
    cold = best["gpu_cold_us"]
    rate = f"{shape['kv_bytes'] / cold['p50'] / 1e6:.2f}" if cold else "-"
    times = [_us(best, "gpu_us"), _us(best, "gpu_cold_us")]
    against = [how_much_faster(shape, best, label) for label in PEERS]
    return [best["label"], *times, rate, _of_reading(record, shape, best), *against]


def _us(entry: dict[str, Any], clock: str) -> str:
    return short_us((entry[clock] or {}).get("p50"))


def _of_reading(record: dict[str, Any], shape: Results, entry: dict[str, Any]) -> str:
    """K and V per time with a cold L2, as a share of what a kernel that only reads reached in that run."""
    read, cold = (record["ceilings"] or {}).get("read_gbs"), entry["gpu_cold_us"]
    return percent(shape["kv_bytes"] / cold["p50"] / 1e3 / read) if read and cold else "-"


def _against() -> list[str]:
    return [f"against {label}" for label in PEERS]
