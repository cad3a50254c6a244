"""`flashcore tune`: the fastest configuration of a stage for a problem, the table of what all searches found,
or how others would have searched.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.core import gpu
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.measure.stats import ratio_interval
from flashcore_numba.records import environment
from flashcore_numba.records.amounts import fit
from flashcore_numba.stages.tuning import recorded
from flashcore_numba.tune import funnel, record, table, timing
from flashcore_numba.tune.replay import replay

ELITE = 3
OF_A_SEARCH = ("shape", "causal", "element", "elite", "changes", "save")
SHARE_LOST = 0.02  # a shipped configuration this near the best is as good


def run(args: Namespace) -> int:
    """Search, make the table of all searches, or replay one. Returns 0."""
    if args.table:
        return _table(args)
    if args.replay is not None:
        return _replay(args)
    if args.stage is None:
        raise ArgumentError("STAGE: name a stage to search, or --table, or --replay FILE")
    for name in ("strategy", "evals"):
        if getattr(args, name) is not None:
            raise ArgumentError(f"--{name}: is for --replay, and does not go with a search")
    space = funnel.space_of(args.stage)
    workload = Workload(parse_any(args.shape or "mission"), bool(args.causal), args.element or FLOAT16)
    path = None if args.save is None else args.save / record.file_name(space, workload)
    timed, device = None, record.NONE
    if gpu.available():
        timed, found_gpu = timing.timing, environment.gpu()
        device = record.Device(
            found_gpu["name"], tuple(found_gpu["compute_capability"]), found_gpu["sm_count"]
        )
    with progress_bar() as progress:
        found = funnel.search(
            space, workload, progress, path, timed, device, args.elite or ELITE, args.changes
        )
    if not give_json(args, lambda: found):
        show(found, console())
        if timed is None:
            print(f"Times need a GPU; {gpu.why_not()}. What the compiler drops needs none.")
        if path is not None:
            print(f"wrote {path}")
    return 0


def show(found: dict[str, Any], out: Console) -> None:
    """The funnel, and the elite beside the shipped configuration."""
    counts = found["funnel"]
    near = "" if found.get("changes") is None else f", {_near(found)}"
    lines = [
        f"{counts['combinations']} combinations of {', '.join(found['tune_params_keys'])}{near}",
        f"{counts['legal']} keep the rules",
        *(f"  {count}: {says}" for says, count in counts["broken"].items()),
        f"{counts['compiled']} are worth a time",
        *(f"  {count}: {says}" for says, count in counts["dropped"].items()),
    ]
    if "timed" in counts:
        lines.append(f"{counts['timed']} have one, and ran right")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    if not found["elite"]:
        return
    table = Table(title=f"{found['kernel_name']} at {found['workload']['shape']}", title_justify="left")
    for name in ("configuration", "µs", "of the shipped", "95 %", "registers"):
        table.add_column(name, justify="left" if name == "configuration" else "right")
    for each in found["elite"]:
        table.add_row(each["config"], *_row(found, each))
    out.print(table)
    out.print(f"Shipped: {found['shipped']}. {_verdict(found)}", markup=False, soft_wrap=True)


def _row(found: dict[str, Any], each: dict[str, Any]) -> list[str]:
    interval = ratio_interval(each["rounds_us"], each["shipped_rounds_us"])
    registers = found["cache"][each["config"]].get("registers", "-")
    return [
        f"{1000 * each['time']:.2f}",
        f"{_share(each):.3f}",
        f"{interval['low']:.3f} to {interval['high']:.3f}",
        str(registers),
    ]


def _share(each: dict[str, Any]) -> float:
    shipped = sorted(each["shipped_rounds_us"])[len(each["shipped_rounds_us"]) // 2]
    return 1000 * each["time"] / shipped


def _verdict(found: dict[str, Any]) -> str:
    best = found["elite"][0]
    if best["config"] == found["shipped"] or _share(best) > 1 - SHARE_LOST:
        of = "of the whole space" if found.get("changes") is None else f"of those {_near(found)}"
        return f"It is within {SHARE_LOST:.0%} of the best {of}."
    return f"The best takes {1 - _share(best):.0%} less."


def _near(found: Mapping[str, Any]) -> str:
    values = "value that differs" if found["changes"] == 1 else "values that differ"
    return f"with at most {found['changes']} {values} from the shipped ones"


def _table(args: Namespace) -> int:
    for name in ("stage", *OF_A_SEARCH, "strategy", "evals", "replay"):
        if getattr(args, name) is not None:
            named = repr(args.stage) if name == "stage" else f"--{name}"
            raise ArgumentError(f"{named} beside --table: it is made from all records that are kept")
    entries = table.made()
    changed = table.save(entries)
    if give_json(args, lambda: entries):
        return 0
    out = console()
    out.print(_shown(entries, out.width))
    taken = sum(entry["taken"] for entry in entries)
    out.print(
        f"{taken} of {len(entries)} take the place of what the stage's rule says: those that took more than "
        f"{table.WORTH:.0%} less time, at the unfavourable end of the 95 % interval. For any other problem "
        "the rule counts.",
        markup=False,
        soft_wrap=True,
    )
    name = recorded.FILE.name
    if not changed:
        print(f"{name} says the same already")
        return 0
    print(f"wrote {name}; what else follows from it: flashcore resources --save, flashcore readme")
    return 0


def _shown(entries: Sequence[Mapping[str, Any]], width: int) -> Table:
    shown = Table(title="What searches found, and what the stages' rules say", title_justify="left")
    for name in ("stage", "problem", "rule", "best", "less time", "now", "record"):
        whole = name in ("stage", "problem", "less time")
        shown.add_column(name, no_wrap=whole, overflow="fold")
    for entry in entries:
        shown.add_row(*table.row(entry))
    fit(shown, width, "record", "less time", "now")
    return shown


def _replay(args: Namespace) -> int:
    if args.stage is not None:
        raise ArgumentError(f"{args.stage!r} beside --replay: the record says which stage it is of")
    for name in OF_A_SEARCH:
        if getattr(args, name) is not None:
            raise ArgumentError(f"--{name}: is for a search, and does not go with --replay")
    found = replay(args.replay, args.strategy or "random_sample", args.evals or 60)
    if give_json(args, lambda: found):
        return 0
    best = ", ".join(f"{name} {value}" for name, value in found["best"].items())
    print(f"{found['strategy']}: {found['evaluations']} configurations looked at, the best {best}")
    print(f"{1000 * found['time']:.2f} µs, {found['share']:.1%} of the speed of the record's fastest")
    return 0
