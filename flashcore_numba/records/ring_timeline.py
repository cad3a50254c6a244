"""The time line of a ring: a record of what every stream of every rank did during one call.

`data/ring-timeline.schema.json` says which fields there are; here is what they mean. Times are microseconds
after the rank left a barrier of all ranks, which precedes the call. So the clocks of two ranks agree within
the time that ranks take to leave a barrier.

schema      1
shape       BxHxSxD with the rows of all ranks; causal; way; backward: whether the backward pass was stamped
right       whether sampled rows of the stamped call's results were right on every rank
ahead       whether every rank had queued its whole call before the GPU began with it. Where it had not,
            an operation may have begun while the host was still at work on it
stamped_us  of each stamped call, when the slowest rank's main stream was through; plain_us: of the same calls
            without stamps, which took turns with them
shown       the stamped call of `ranks`, the one with the median time: its number in stamped_us
ranks       a list: us, when the main stream was through; pieces, in the order in which they were queued. A
            piece has stream, kind, what, step, begin_us, end_us, as `branches.ring.stamps.Piece` tells. On a
            stream a piece begins where the one before it ends
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flashcore_numba.records import artifact, environment, layout
from flashcore_numba.records.artifact import ArtifactError

SCHEMA = 1
SCHEMA_FILE = "ring-timeline.schema.json"
PATTERN = artifact.TIMELINES
MAIN = "main"
WAITS, TRANSFERS = ("wait", "barrier"), ("copy", "exchange")
CLOSE = 4 * layout.ROUNDING  # times that were equal before they were rounded


class Totals(NamedTuple):
    """What a rank did during a call. us: of the call, on the slowest rank.

    computed_us, waited_us: in which a kernel had the main stream, and in which it waited for an event or at a
    barrier. moved_us: of all copies and exchanges; hidden_us: of them the time in which a kernel had the main
    stream or the third one.
    """

    us: float
    computed_us: float
    waited_us: float
    moved_us: float
    hidden_us: float

    @property
    def exposed_us(self) -> float:
        """Of the copies and exchanges, under which no kernel ran."""
        return self.moved_us - self.hidden_us


def record(
    shape: str,
    causal: bool,
    way: str,
    backward: bool,
    calls: Sequence[Sequence[dict[str, Any]]],
    plain_us: Sequence[float],
    seed: int,
    gpu: dict[str, Any],
    topology: dict[str, Any],
    *,
    right: bool,
    ahead: bool,
) -> dict[str, Any]:
    """The record of a run. calls: by rank its stamped calls, as in `ranks`. Raises ArtifactError."""
    commit, dirty = environment.commit()
    stamped = [max(each["us"] for each in call) for call in zip(*calls, strict=True)]
    shown = stamped.index(median(stamped))
    made = {
        "schema": SCHEMA,
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
        "gpu": gpu,
        "topology": topology,
        "packages": environment.packages(),
        "shape": shape,
        "causal": causal,
        "way": way,
        "backward": backward,
        "seed": seed,
        "right": right,
        "ahead": ahead,
        "stamped_us": stamped,
        "plain_us": [*plain_us],
        "shown": shown,
        "ranks": [of_rank[shown] for of_rank in calls],
    }
    made = layout.rounded(made)
    validate(made, "the new time line")
    return made


def file_name(found: dict[str, Any]) -> str:
    """`ring-timeline-nvidia-h200-pull-gpus-2-causal.json`, with `pull-backward` for the backward pass."""
    words = [
        "ring-timeline", artifact.gpu_in_a_name(found), found["way"], "backward" if found["backward"] else "",
        f"gpus-{found['topology']['gpus']}", "causal" if found["causal"] else "",
    ]  # fmt: skip
    return "-".join(filter(None, words)) + ".json"


def save(found: dict[str, Any], path: Path) -> None:
    """Validate and write, a piece per line. Raises ArtifactError and OSError."""
    validate(found, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    layout.save(found, path, "pieces")


def load(path: Path) -> dict[str, Any]:
    """Read and validate. Raises ArtifactError."""
    found = artifact.read(path)
    validate(found, str(path))
    return found


def recorded(folder: Path | None = None) -> list[tuple[Path, dict[str, Any]]]:
    """The recorded time lines, the newest first. Raises ArtifactError."""
    found = [(path, load(path)) for path in sorted((folder or artifact.recorded_dir()).glob(PATTERN))]
    return sorted(found, key=lambda pair: pair[1]["date"], reverse=True)


def validate(found: Any, where: str = "the time line") -> None:
    """Raise ArtifactError unless it follows the schema, and its times one another."""
    artifact.follow_schema(found, SCHEMA_FILE, where)
    gpus = found["topology"]["gpus"]
    if len(found["ranks"]) != gpus:
        raise ArtifactError(f"{where}.ranks has {len(found['ranks'])} items; expected {gpus}, one per GPU")
    times, shown = found["stamped_us"], found["shown"]
    slowest = max(each["us"] for each in found["ranks"])
    if shown >= len(times) or not _close(times[shown], slowest):
        raise ArtifactError(f"{where}.shown is {shown}; expected the call of {slowest} us")
    for rank, each in enumerate(found["ranks"]):
        ends: dict[str, float] = {}
        for number, piece in enumerate(each["pieces"]):
            begin, end = piece["begin_us"], piece["end_us"]
            at = f"{where}.ranks[{rank}].pieces[{number}]"
            if end < begin and not _close(begin, end):
                raise ArtifactError(f"{at} ends at {end} us, before it begins at {begin} us")
            if not _close(ends.setdefault(piece["stream"], begin), begin):
                raise ArtifactError(
                    f"{at} begins at {begin} us; the one before it on the {piece['stream']} stream ends at "
                    f"{ends[piece['stream']]} us"
                )
            ends[piece["stream"]] = end


def median(times: Sequence[float]) -> float:
    """The middle one, of an even number the lower of the two: so it is the time of a call."""
    return sorted(times)[(len(times) - 1) // 2]


def totals(found: dict[str, Any]) -> list[Totals]:
    """Of each rank what it did, in microseconds."""
    whole = max(each["us"] for each in found["ranks"])
    return [_totals(each["pieces"], whole) for each in found["ranks"]]


def _totals(pieces: Iterable[dict[str, Any]], whole: float) -> Totals:
    main = [each for each in pieces if each["stream"] == MAIN]
    kernels = _joined([_span(each) for each in pieces if each["kind"] == "kernel"])
    moved = [_span(each) for each in pieces if each["kind"] in TRANSFERS]
    return Totals(
        whole,
        sum(_us(each) for each in main if each["kind"] == "kernel"),
        sum(_us(each) for each in main if each["kind"] in WAITS),
        sum(end - begin for begin, end in moved),
        sum(max(0.0, min(end, b) - max(begin, a)) for begin, end in moved for a, b in kernels),
    )


def _span(piece: dict[str, Any]) -> tuple[float, float]:
    return piece["begin_us"], piece["end_us"]


def _us(piece: dict[str, Any]) -> float:
    return piece["end_us"] - piece["begin_us"]


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time that some of the spans cover, in spans that do not overlap."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))
