"""`flashcore stages`: the ladder, with ideas and limits."""

from argparse import Namespace

from rich.table import Table

from flashcore_numba.cli.output import console, give_json
from flashcore_numba.records.amounts import WIDE, fit
from flashcore_numba.stages import LADDER


def run(args: Namespace) -> int:
    """Print the ladder. Returns 0."""
    data = [
        {
            "number": stage.number,
            "name": stage.name,
            "title": stage.title,
            "idea": stage.idea,
            "language": stage.language,
            "compute_capability": list(stage.compute_capability),
            "head_dims": list(stage.head_dims),
            "causal": stage.causal,
            "grouped_queries": stage.grouped_queries,
            "returns_lse": stage.returns_lse,
            "variants": dict(stage.variants),
        }
        for stage in LADDER
    ]
    if give_json(args, lambda: data):
        return 0
    out = console()
    table = Table(title="The ladder", title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("idea", min_width=min(out.width // 3, 40))
    table.add_column("language", no_wrap=True)
    table.add_column("D", width=None if out.width >= WIDE else 16)
    for name in ("causal", "GQA", "LSE", "needs"):
        table.add_column(name, no_wrap=True)
    for stage in LADDER:
        able = ["yes" if x else "-" for x in (stage.causal, stage.grouped_queries, stage.returns_lse)]
        needs = "sm_{}{}".format(*stage.compute_capability) + ("a" if stage.no_other_gpu else "")
        dims = ", ".join(map(str, stage.head_dims))
        table.add_row(stage.label, stage.idea, stage.language, dims, *able, needs)
        for name, sentence in stage.variants.items():
            table.add_row(f"   {name}", sentence, style="dim")
    fit(table, out.width, "language", "LSE", "GQA", "causal", "D", "idea")
    out.print(table)
    return 0
