"""`flashcore dispatch`: which stage `attention()` runs when none is named."""

from argparse import Namespace

from rich.table import Table

from flashcore_numba.cli.output import console, give_json
from flashcore_numba.records.amounts import NARROW
from flashcore_numba.report import dispatch_table
from flashcore_numba.stages.find import find
from flashcore_numba.stages.tuning import dispatch


def run(args: Namespace) -> int:
    """Print the rules, or make them anew. Returns 0."""
    rules = dispatch.TABLE
    if args.save:
        rules, path = dispatch_table.save()
    if give_json(args, lambda: [rule._asdict() for rule in rules]):
        return 0
    if args.save:
        print(f"wrote {path}")
        return 0
    table = Table(
        title="The stage that attention() runs when none is named",
        caption="The first rule that fits counts, and of its stages the first that serves the problem on "
        "this machine. Another GPU goes by the nearest compute capability, host arrays by the newest. The "
        "rules are made from the recorded runs; a stage without recorded times runs only when it is named.",
        title_justify="left",
        caption_justify="left",
    )
    columns = ["cc", "mask", "D", "B x H x S_q", "S_k", "stage", "where it cannot"]
    if (out := console()).width < NARROW:
        del columns[-1]
    for name in columns:
        table.add_column(name, no_wrap=True)
    for rule in rules:
        first, *others = rule.stages
        cells = (
            "{}.{}".format(*rule.capability),
            {None: "any", False: "full", True: "causal"}[rule.causal],
            "any" if rule.head_dim is None else str(rule.head_dim),
            *("any" if most is None else f"up to {most}" for most in (rule.rows, rule.keys)),
            find(first).label,
            ", ".join(f"{number:02d}" for number in others),
        )
        table.add_row(*cells[: len(columns)])
    out.print(table)
    return 0
