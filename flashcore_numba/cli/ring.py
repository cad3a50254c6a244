"""`flashcore ring`: times of attention over several GPUs, or why there are none."""

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from cuda_reference.extras import MissingPackageError, explained
from cuda_reference.files import MachineError
from flashcore_numba.cli.output import console, give_json
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.records import artifact, layout, ring_timeline
from flashcore_numba.records.amounts import percent, short_us
from flashcore_numba.records.artifact import WITH_FORWARD
from flashcore_numba.report.pictures.ring_timeline import picture as timeline_picture

MODULE = "flashcore_numba.branches.ring.compare"
TIMELINE = "flashcore_numba.branches.ring.timeline"
PEERS_LIMIT = 120  # seconds, for what was seen to hang
WITHOUT_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # as all recorded times were taken
GRACE = 40  # in which torchrun stops its processes, which takes it up to 30


def run(args: Namespace) -> int:
    """Time the ways on so many GPUs of this machine. Returns 1 where a result is wrong.

    Raises MachineError where there are too few, and ArgumentError for a shape that cannot be shared.
    """
    if args.gpus < 2:
        raise ArgumentError(f"--gpus {args.gpus}: at least 2 are needed; flashcore compare times one")
    _refuse(args)
    count = gpu.device_count() if gpu.available() else 0
    if count < args.gpus:
        why = gpu.why_not() or f"this machine has {count}"
        raise MachineError(f"--gpus {args.gpus}: {why}; flashcore check ring needs no GPU")
    with explained():
        import torch  # noqa: F401
    if args.timeline:
        return run_timeline(args)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ring.json"
        why_not = ended(command(args, file), args.time_limit)
        if why_not is not None:
            raise MachineError(why_not)
        record = artifact.load(file)
        if not args.way and not args.full and not args.backward:
            limit, file = min(PEERS_LIMIT, args.time_limit), file.with_name("peers.json")
            why_not = ended([*command(args, file), "--captured-peers"], limit)
            add_peers(record, json.loads(file.read_text()) if why_not is None and file.exists() else why_not)
            record = layout.rounded(record)
    if args.save:
        artifact.save(record, args.save / artifact.file_name(record))
    if not give_json(args, lambda: record):
        for shape in record["shapes"]:
            console().print(table(record, shape))
    return 0 if all(e["error"]["right"] for shape in record["shapes"] for e in shape["entries"]) else 1


def _refuse(args: Namespace) -> None:
    """Fill in the default shape, and the way of a time line. Raises ArgumentError for what none can run."""
    from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD

    ways = BACKWARD if args.backward else FORWARD
    for way in args.way or ():
        if way not in ways:
            with_it = " with --backward" if args.backward else ""
            raise ArgumentError(f"--way {way}: accepted are {', '.join(ways)}{with_it}")
    args.shape = args.shape or ["1x32/8x16384x128"]
    for text in args.shape:
        shape = parse_any(text)
        if shape.shortest is not None or shape.value_dim != shape.head_dim:
            raise ArgumentError(f"--shape {text}: sequences of one length are accepted, with V as wide as K")
        if shape.seq < 2 * args.gpus:
            raise ArgumentError(f"--shape {text}: {args.gpus} GPUs need at least {2 * args.gpus} rows")
    if args.timeline:
        args.way = args.way or ["pull"]
        if len(args.way) > 1 or len(args.shape) > 1:
            raise ArgumentError("--timeline: one --way and one --shape are accepted")


def run_timeline(args: Namespace) -> int:
    """Stamp calls of one way at one shape, and draw the one with the median time beside its record."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.json"
        why_not = ended(command(args, file, TIMELINE), args.time_limit)
        if why_not is not None:
            raise MachineError(why_not)
        record = ring_timeline.load(file)
    files, lacking = [], None
    if args.save:
        files.append(args.save / ring_timeline.file_name(record))
        ring_timeline.save(record, files[0])
        try:
            files += timeline_picture([(files[0], record)], record["backward"]).draw(args.save)
        except MissingPackageError as error:  # the stamps are not lost
            lacking = f"not drawn: {error}; flashcore pictures {files[0]} draws it anywhere"
    totals = ring_timeline.totals(record)
    if not give_json(args, lambda: record | {"totals": [each._asdict() for each in totals]}):
        console().print(timeline_table(record, totals))
        for sentence in (*(f"wrote {file}" for file in files), *filter(None, [lacking])):
            print(sentence)
    return 0 if record["right"] else 1


def ended(words: list[str], limit: float) -> str | None:
    """Run torchrun. Returns None, or why there is no result: its status, or that it did not end in time."""
    process = subprocess.Popen(words, env=WITHOUT_MULTICAST | os.environ)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its own processes
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return f"torchrun did not end within {limit:g} s"
    return f"torchrun ended with status {status}" if status else None


def add_peers(record: dict[str, Any], peers: "dict[str, Any] | str | None") -> None:
    """Add the graphs of PyTorch's calls, timed at the same shapes, or why there are none. They count
    as peers of every way, of plain calls too: `best_peer` of those is then less than of equal terms.
    """
    from flashcore_numba.branches.ring.compare import CAPTURED_PEERS

    for i, shape in enumerate(record["shapes"]):
        if isinstance(peers, dict):
            shape["entries"] += peers["shapes"][i]["entries"]
            shape["absent"] |= peers["shapes"][i]["absent"]
            artifact.derive(shape)
        else:
            shape["absent"] |= dict.fromkeys(CAPTURED_PEERS, peers or "its processes wrote nothing")


def command(args: Namespace, file: Path, module: str = MODULE) -> list[str]:
    """What starts a process per GPU."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={args.gpus}",
    ]
    shapes = [word for text in args.shape for word in ("--shape", text)]
    options = [word for way in args.way or () for word in ("--way", way)]
    options += [] if args.full else ["--causal"]
    options += ["--backward"] if args.backward else []
    return [*launcher, "-m", module, str(file), *shapes, *options, "--rounds", str(args.rounds)]


def table(record: dict[str, Any], shape: dict[str, Any]) -> Table:
    """Times of the slowest rank; the share is that of one GPU's rate on its own rows. What is timed with its
    forward pass has the operations of both, and the share of one GPU that does both.
    """
    from flashcore_numba.branches.ring.compare import BACKWARD_FLOPS, FORWARD_FLOPS, ONE_GPU

    count, backward = record["topology"]["gpus"], artifact.operation_of(record) == "ring_backward"
    name = ("backward, " if backward else "") + artifact.shape_title(shape)
    title = f"{name} on {count} x {record['gpu']['name']}, time of the slowest"
    found = Table(title=title)
    for heading in ("way", "us", "TFLOP/s per GPU", "of one GPU's rate", "best peer / this", "error"):
        found.add_column(heading, justify="left" if heading == "way" else "right")
    times = {entry["label"]: entry["gpu_us"]["p50"] for entry in shape["entries"]}
    for entry in shape["entries"]:
        own, both = entry["gpu_us"]["p50"], entry["label"].endswith(WITH_FORWARD)
        flops = shape["flops"] * (1 + FORWARD_FLOPS / BACKWARD_FLOPS if both else 1)
        alone = times.get(ONE_GPU + (WITH_FORWARD if both else ""))
        share = "-" if alone is None else f"{100 * count * alone / own:.0f} %"
        ratio = entry["speed_up"]["best_peer"]
        if entry["label"].startswith(ONE_GPU):
            found.add_row(entry["label"], f"{own:.1f}", "-", "-", "-", "-")
            continue
        error = f"{entry['error']['max']:.1e}" + ("" if entry["error"]["right"] else " WRONG")
        rate = f"{flops / own / count / 1e6:.0f}"
        found.add_row(
            entry["label"], f"{own:.1f}", rate, share, "-" if ratio is None else f"{ratio:.2f}", error
        )
    for label, reason in shape["absent"].items():
        found.add_row(label, json.dumps(reason), "", "", "", "")
    return found


def timeline_table(record: dict[str, Any], totals: Sequence[ring_timeline.Totals]) -> Table:
    """Per rank the parts of the call; below it what the stamps cost."""
    way = record["way"] + (", backward" if record["backward"] else "")
    name = record["shape"] + (", causal" if record["causal"] else "")
    found = Table(title=f"{way}, {name} on {record['topology']['gpus']} x {record['gpu']['name']}")
    headings = ("rank", "us", "main stream computes", "waits", "copies, us", "hidden", "exposed, us")
    for heading in headings:
        found.add_column(heading, justify="right")
    for rank, each in enumerate(totals):
        hidden = percent(each.hidden_us / each.moved_us) if each.moved_us else "-"
        found.add_row(
            str(rank), short_us(record["ranks"][rank]["us"]), percent(each.computed_us / each.us),
            percent(each.waited_us / each.us), short_us(each.moved_us), hidden, short_us(each.exposed_us),
        )  # fmt: skip
    stamped, plain = (ring_timeline.median(record[name]) for name in ("stamped_us", "plain_us"))
    found.caption = (
        f"median of {len(record['stamped_us'])} calls, slowest rank: {short_us(stamped)} us with stamps, "
        f"{short_us(plain)} us without"
        + ("" if record["ahead"] else "; the host was still queueing when a GPU began")
        + ("" if record["right"] else "; the results are WRONG")
    )
    return found
