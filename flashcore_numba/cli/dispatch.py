"""`flashcore dispatch`: which stage `attention()` and `attention_backward()` run when none is named."""

from argparse import Namespace
from collections.abc import Sequence

from rich.table import Table

from flashcore_numba.branches.decode import few_rows
from flashcore_numba.cli.output import console, give_json
from flashcore_numba.records.amounts import fit
from flashcore_numba.report import dispatch_table
from flashcore_numba.stages.find import find
from flashcore_numba.stages.tuning import dispatch
from flashcore_numba.stages.tuning.dispatch import Rule

CALLS = {"TABLE": "attention()", "BACKWARD": "attention_backward()"}


def run(args: Namespace) -> int:
    """Print the rules, or make them anew. Returns 0."""
    tables = {name: getattr(dispatch, name) for name in CALLS}
    if args.save:
        tables, path = dispatch_table.save()
    names = dispatch_table.TABLES
    if give_json(
        args, lambda: {names[name]: [rule._asdict() for rule in table] for name, table in tables.items()}
    ):
        return 0
    if args.save:
        print(f"wrote {path}")
        return 0
    out = console()
    for name, table in tables.items():
        out.print(_shown(CALLS[name], table, out.width))
    out.print(
        "The first rule that fits counts, and of its stages the first that serves the problem on this "
        "machine. Another GPU goes by the nearest compute capability, host arrays by the newest. The rules "
        "are made from the recorded runs. A stage of the forward pass that has no recorded time runs only "
        "when it is named. "
        f"On a GPU up to {few_rows.MOST_TOKENS} query rows of a head over {few_rows.FEWEST_KEYS} keys or "
        "more go to the stages of decoding first, where those serve the problem.",
        markup=False,
        soft_wrap=True,
    )
    return 0


def _shown(call: str, rules: Sequence[Rule], width: int) -> Table:
    table = Table(title=f"The stage that {call} runs when none is named", title_justify="left")
    for name in ("cc", "mask", "D", "B x H x S_q", "S_k", "stage"):
        table.add_column(name, no_wrap=True)
    table.add_column("where it cannot", min_width=24)
    for rule in rules:
        first, *others = rule.stages
        table.add_row(
            "{}.{}".format(*rule.capability),
            {None: "any", False: "full", True: "causal"}[rule.causal],
            "any" if rule.head_dim is None else str(rule.head_dim),
            *("any" if most is None else f"up to {most}" for most in (rule.rows, rule.keys)),
            find(first).label if isinstance(first, int) else f"backward/{first}",
            ", ".join(f"{key:02d}" if isinstance(key, int) else key for key in others),
        )
    fit(table, width, "where it cannot", "mask", "D")
    return table
