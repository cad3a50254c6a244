"""What features, ragged batches and bf16 cost, in Markdown, from the recorded runs that have them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flashcore_numba.core import workload
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.mask import Mask
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.measure.peers import TWO_LAUNCHES
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import markdown, percent, provenance, short_us
from flashcore_numba.report.pictures.records import defaults
from flashcore_numba.report.tables import equal_lengths, rates

Results = dict[str, Any]  # of one workload
PEERS = ("FA3", "FA4", "FlexAttention", "SDPA cuDNN")


def costs(folder: Path | None = None) -> str | None:
    """A row per recorded workload with features, grouped heads or a head dimension of its own: the fastest
    stage, its time beside the same without features, and how many times faster than each of `PEERS` it is;
    where a norm or a gate was timed, also than two launches.

    folder: of the recorded runs; the package's own by default.
    """
    head = ["GPU", "shape", "with", "stage", "GPU time, µs", "TFLOP/s", "of the same without"]
    entries = (entry for record in _runs(folder) for each in record["shapes"] for entry in each["entries"])
    others = (*PEERS, *(label for label in (TWO_LAUNCHES,) if any(e["label"] == label for e in entries)))
    head += [f"against {label}" for label in others]
    lines, sources = [], []
    for record in _runs(folder):
        own = [each for each in record["shapes"] if _is_of_its_own(record, each)]
        rows = [[gpu_name(record), *_cost(record, each, others)] for each in own]
        lines += rows
        sources += [provenance(record)] if rows else []
    if not lines:
        return None
    head, lines = of_several_gpus(head, lines)
    return markdown(head, lines, len(head) - 3 - len(others)) + (
        f"\n\n{'; '.join(dict.fromkeys(sources))}. GPU time is that of one launch in a CUDA graph. TFLOP/s "
        "counts the keys that rows see. Of the same without: beside the time of the same shape without "
        "features, in the same run; of packed sequences, the rate beside that of as many tokens in equal "
        "lengths. Against a library: its time over ours, in the same run; - where it lacks the feature or "
        "was not timed."
    )


def elements(folder: Path | None = None) -> str | None:
    """A row per stage and plain shape that one run timed in float16 and in bfloat16, interleaved."""
    lines, sources = [], []
    for record in _runs(folder):
        for of_half, of_brain in _pairs(record):
            for entry in defaults(of_half):
                other = next((e for e in defaults(of_brain) if e["label"] == entry["label"]), None)
                if other is not None:
                    one, two = (each["gpu_us"]["p50"] for each in (entry, other))
                    share = f"{two / one - 1:+.1%}"
                    lines.append([_name(of_half), entry["label"], short_us(one), short_us(two), share])
                    sources.append(provenance(record))
    if not lines:
        return None
    head = ["shape", "stage", "fp16, µs", "bf16, µs", "bf16 takes more"]
    return markdown(head, lines, 2) + f"\n\n{'; '.join(dict.fromkeys(sources))}, interleaved."


def sentence(folder: Path | None = None) -> str | None:
    """What a reader of the README should know of all that: the first window and the first ragged batch."""
    windows: list[str] = []
    ragged: list[str] = []
    names: list[str] = []
    for record in _runs(folder):
        for shape in record["shapes"]:
            found = _window(record, shape), _ragged(record, shape)
            for text, texts in zip(found, (windows, ragged), strict=True):
                texts += [text] if text else []
            names += [record["gpu"]["name"]] if any(found) else []
    parts = [*windows[:1], *ragged[:1]]
    return f"On an {names[0]}, {'; '.join(parts)}." if parts else None


TABLES: dict[str, Callable[[Path | None], str | None]] = {"feature-costs": costs, "elements": elements}
TEXTS: dict[str, Callable[[Path | None], str | None]] = {"feature-costs": sentence}


def gpu_name(record: dict[str, Any]) -> str:
    """`H200`, of "NVIDIA H200"."""
    return record["gpu"]["name"].removeprefix("NVIDIA ").split()[0]


def of_several_gpus(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without its first column where all rows name one GPU there."""
    if len({row[0] for row in rows}) > 1:
        return head, rows
    return head[1:], [row[1:] for row in rows]


def _runs(folder: Path | None) -> Iterator[dict[str, Any]]:
    """The recorded runs of the forward pass."""
    for _, record in artifact.recorded_whole(folder):
        if artifact.operation_of(record) == artifact.FORWARD:
            yield record


def _is_of_its_own(record: dict[str, Any], shape: Results) -> bool:
    """Whether it is neither what the ladder is timed at nor there only to be compared with a ragged batch."""
    if artifact.is_plain(shape):
        return shape["shape"].rpartition("x")[2] not in ("64", "128")
    yardsticks = {each["equal_lengths"] for each in record["shapes"] if "equal_lengths" in each}
    return bool(shape["features"]) or shape["shape"] not in yardsticks


def _cost(record: dict[str, Any], shape: Results, others: Sequence[str]) -> list[str]:
    words = [workload.label(shape.get("features", {})), "packed" if "equal_lengths" in shape else ""]
    words += ["" if shape["element"] == FLOAT16.name else shape["element"]]
    best, equal, bare = fastest(shape), equal_lengths(record, shape), _without(record, shape)
    if best is None:
        return [_name(shape), " ".join(filter(None, words)), "wrong", *["-"] * (3 + len(others))]
    rate, us = rates(shape | {"flops": _flops(shape)})[best["label"]], best["gpu_us"]["p50"]
    beside = "-"
    if equal and best["label"] in rates(equal):
        beside = f"{percent(rate / rates(equal)[best['label']])} of the rate"
    elif bare and (same := fastest(bare)):
        beside = percent(us / same["gpu_us"]["p50"])
    against = [how_much_faster(shape, best, label) for label in others]
    return [
        *(_name(shape), " ".join(filter(None, words)) or "-", best["label"].partition(" ")[0]),
        *(short_us(us), f"{rate:.0f}", beside, *against),
    ]


def _flops(shape: Results) -> int:
    """Of a workload; a plain one does not record them."""
    if "flops" in shape:
        return shape["flops"]
    size = parse_any(shape["shape"])
    pairs = Mask(size.seq, size.seq, right=0 if shape["causal"] else -1).pairs
    return 2 * size.batch * size.heads * pairs * (size.head_dim + size.value_dim)


def _name(shape: Results) -> str:
    return shape["shape"] + (", causal" if shape["causal"] else "")


def _mask_named(shape: Results) -> str:
    return shape["shape"] + (" with a causal mask" if shape["causal"] else "")


def fastest(shape: Results) -> Results | None:
    """The fastest stage, as it runs when no variant is named, whose output is right."""
    right = [entry for entry in defaults(shape) if entry["error"]["right"]]
    return min(right, key=lambda entry: entry["gpu_us"]["p50"], default=None)


def _without(record: dict[str, Any], shape: Results) -> Results | None:
    """The results of the same arrays without features, from the same run."""
    if not shape.get("features") or "equal_lengths" in shape:
        return None
    fields = ("shape", "causal", "element")
    wanted = [shape[field] for field in fields]
    return next(
        (
            each
            for each in record["shapes"]
            if [each.get(field) for field in fields] == wanted and not each.get("features")
        ),
        None,
    )


def _window(record: dict[str, Any], shape: Results) -> str | None:
    best, bare = fastest(shape), _without(record, shape)
    whole = fastest(bare) if bare else None
    features = shape.get("features", {})
    window = features.get("window")
    if not (window and best and whole) or len(features) > 1:
        return None
    share = percent(best["gpu_us"]["p50"] / whole["gpu_us"]["p50"])
    keys, seen = shape["shape"].split("x")[2], sum(window) + 1
    return f"a window of {seen} keys takes {share} of the time of all {keys} at {_mask_named(shape)}"


def _ragged(record: dict[str, Any], shape: Results) -> str | None:
    best, equal = fastest(shape), equal_lengths(record, shape)
    if not (best and equal and best["label"] in rates(equal)):
        return None
    share = percent(rates(shape)[best["label"]] / rates(equal)[best["label"]])
    faster = how_much_faster(shape, best, "FA3")
    beside = "" if faster == "-" else f" and is {faster} times as fast as FlashAttention-3"
    return f"a ragged batch of {_mask_named(shape)} reaches {share} of the rate of equal lengths{beside}"


def how_much_faster(shape: Results, best: Results, label: str, clock: str = "gpu_us") -> str:
    """How many times as long a peer takes as the best stage; - where one of them has no such time."""
    for entry in shape["entries"]:
        if entry["label"] == label and entry["error"]["right"] and entry[clock] and best[clock]:
            return f"{entry[clock]['p50'] / best[clock]['p50']:.2f}"
    return "-"


def _pairs(record: dict[str, Any]) -> Iterator[tuple[Results, Results]]:
    """The results of each plain shape in float16 and in bfloat16, where a run has both."""
    for one in record["shapes"]:
        for two in record["shapes"]:
            same = (one["shape"], one["causal"]) == (two["shape"], two["causal"])
            types = [each.get("element", FLOAT16.name) for each in (one, two)]
            plain = artifact.is_plain(one) and artifact.is_plain(two)
            if same and plain and types == [FLOAT16.name, BFLOAT16.name]:
                yield one, two
