"""A search for kernels: what became of its children, which launch shows which cheat, and where it ends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    VERMILION,
    lettered,
    paper,
    png,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.search import bench, hunt, survey
from flashcore_numba.course.search.cheats import CHEATS, RIGHT, candidate
from flashcore_numba.course.search.lineage import Hunt, Tried, barriers, padded, search, values_only
from flashcore_numba.stages import Stage

COLOURS = {"import": GREY, "report": VERMILION, "value": ORANGE, "lives": GREEN}
WORDS = {
    "import": "no Python",
    "report": "reported by the simulator",
    "value": "off by more than allowed",
    "lives": "lives",
}
OWN = Hunt(hunt.mutate, hunt.evaluate)
SEED = 7  # of what the matrix of cheats draws


def _hunt(stage: Any, whose: str) -> tuple[Hunt, str]:
    """The functions to draw, and whose they are: without an answer the lesson's own."""
    return (stage, whose) if isinstance(stage, Hunt) else (OWN, "the lesson's own")


@lettered
def draw_funnel(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The children of the lesson's search, and how many are left after each layer."""
    tried = survey.by_everything()
    most = max(each.launches for each in tried if each.layer == "lives")
    rows = [("children", len(tried), "0 launches")]
    python = [each for each in tried if each.layer != "import"]
    rows.append(("that are Python", len(python), "0 launches"))
    spent = 0
    for n in range(1, most + 1):
        left = [each for each in python if each.launches > n or each.layer == "lives"]
        spent += sum(each.launches >= n for each in python)
        rows.append((f"left after launch {n}", len(left), f"{spent} launches"))
    figure = paper(9.4, 4.4)
    figure.text(0.012, 0.945, "A search, by layers and their price", fontsize=10.5, fontweight="bold")
    axes = figure.add_axes((0.17, 0.36, 0.62, 0.54))
    for row, (_, count, price) in enumerate(rows):
        axes.broken_barh([((len(tried) - count) / 2, count)], (row + 0.12, 0.76), fc=SKY, ec=INK, lw=0.6)
        axes.text(len(tried) / 2, row + 0.52, str(count), ha="center", va="center")
        axes.text(len(tried) + 0.6, row + 0.52, price, va="center")
    axes.set_xlim(0, len(tried))
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], [name for name, *_ in rows])
    axes.set_xticks([])
    _children(figure, (0.17, 0.17, 0.62, 0.09), tried)
    _legend(figure, 0.05, [layer for layer in COLOURS if any(each.layer == layer for each in tried)])
    for each in (axes,):
        each.tick_params(length=0)
        each.spines[["top", "right", "bottom", "left"]].set_visible(False)
    better = ", ".join(str(each.number + 1) for each in tried if each.better)
    caption = (
        f"{len(tried)} children of {len(padded())} lines of stage 04, each one edit from the best so far. "
        f"The start has {barriers(padded())} arrivals at barriers, the end {survey.fewest(tried)}: child "
        f"{better}, framed, took its parent's place."
    )
    told = "; ".join(f"{count} {name}, {price}" for name, count, price in rows)
    listed = ", ".join(f"{each.number + 1} {WORDS[each.layer]}" for each in tried)
    return Figure(
        "What becomes of the children",
        (Frame(png(figure), caption, f"{caption} {told}. Children: {listed}."),),
    )


def _children(figure: Any, place: tuple[float, float, float, float], tried: Sequence[Tried]) -> None:
    axes = figure.add_axes(place)
    for each in tried:
        axes.broken_barh(
            [(each.number + 0.1, 0.8)],
            (0.1, 0.8),
            fc=COLOURS[each.layer],
            ec=BLUE if each.better else INK,
            lw=3 if each.better else 0.4,
        )
    axes.set_xlim(0, len(tried))
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5], ["child"])
    axes.set_xticks([n + 0.5 for n in range(3, len(tried), 4)], [str(n + 1) for n in range(3, len(tried), 4)])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)


def _legend(figure: Any, y: float, layers: Sequence[str]) -> None:
    for n, layer in enumerate(layers):
        box = figure.add_axes((0.17 + 0.24 * n, y, 0.02, 0.04))
        box.set_facecolor(COLOURS[layer])
        box.set_xticks([])
        box.set_yticks([])
        figure.text(0.197 + 0.24 * n, y + 0.02, WORDS[layer], va="center")


# Cheats


def shown_by(of: Hunt) -> tuple[list[str], dict[str, tuple[list[str], bool]]]:
    """The inputs that an evaluation launches on; by cheat what each of these launches shows, "", "report",
    "number" or "both", and whether the evaluator refuses it.
    """

    def evaluated(kernel: bench.Candidate, seed: int) -> tuple[bench.Log, str]:
        with bench.watched() as log:
            reason = of.evaluate(kernel, np.random.default_rng([SEED, seed]))
        return log, reason

    stage = RIGHT["stage 04 itself"]()
    known = [each.after for each in evaluated(stage, 1)[0].launches]
    evaluated(stage, 2)
    log, _ = evaluated(stage, 2)  # in memory that the same evaluation left
    found = {}
    for cheat in CHEATS:
        if cheat.edits:
            kernel = candidate(cheat)
            shown = [_shown(kernel, each) for each in log.launches]
        else:
            kernel = bench.Candidate(stage.text, tuple(known))
            pairs = zip(known, log.launches, strict=False)
            shown = ["" if _same(out, each) else "number" for out, each in pairs]
        if log.taken:  # memory as a parent leaves it
            evaluated(stage, 3)
        found[cheat.name] = shown, bool(evaluated(kernel, 3)[1])
    return [_label(each.inputs) for each in log.launches], found


def _shown(kernel: bench.Candidate, each: bench.Launch) -> str:
    out = each.before.copy()
    reports = bench.launch(kernel, each.inputs, out)
    wrong = not bench.within(out, each.inputs)
    return "both" if reports and wrong else "report" if reports else "number" if wrong else ""


def _same(out: np.ndarray, each: bench.Launch) -> bool:
    return out.shape == each.after.shape and bench.within(out, each.inputs)


def _label(x: Any) -> str:
    return f"{x.q.shape[1]} x {x.q.shape[2]} x {x.k.shape[2]}" + ("\ncausal" if x.causal else "")


@lettered
def draw_kills(lesson: Any, stage: Any, whose: str) -> Figure:
    """Cheats against the launches of an evaluation."""
    of, whose = _hunt(stage, whose)
    labels, found = shown_by(of)
    figure = paper(9.4, 5.2)
    axes = figure.add_axes((0.24, 0.06, 0.6, 0.76))
    colours = {"report": VERMILION, "number": ORANGE, "both": VERMILION}
    for row, (shown, refused) in enumerate(found.values()):
        for column, what in enumerate(shown):
            axes.broken_barh(
                [(column + 0.04, 0.92)],
                (row + 0.08, 0.84),
                fc=colours.get(what, "white"),
                ec=INK if what else "#BBBBBB",
                lw=0.5,
                hatch="///" if what == "both" else "",
            )
            text = {"both": "report, number"}.get(what, what)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            if text:
                axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", fontsize=8.5, bbox=box)
        end = {"color": INK} if refused else {"color": VERMILION, "fontweight": "bold"}
        axes.text(len(labels) + 0.15, row + 0.52, "dies" if refused else "lives", va="center", **end)
    axes.set_xlim(0, max(1, len(labels)))
    axes.set_ylim(len(found), 0)
    axes.set_yticks([n + 0.5 for n in range(len(found))], list(found))
    axes.xaxis.tick_top()
    axes.set_xticks([n + 0.5 for n in range(len(labels))], labels)
    axes.set_title("heads x rows x keys", fontsize=9.5)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    alive = [name for name, (_, refused) in found.items() if not refused]
    unseen = [name for name, (shown, _) in found.items() if not any(shown)]
    dead = len(found) - len(alive)
    caption = f"A cell says what the launch shows of the cheat. {dead} of {len(found)} cheats die."
    caption += f" Alive: {', '.join(alive)}." if alive else ""
    caption += f" No launch shows: {', '.join(unseen)}." if unseen else ""
    words = {"": "nothing", "both": "report and number"}
    told = "; ".join(
        f"{name}: {', '.join(words.get(what, what) for what in shown)}" for name, (shown, _) in found.items()
    )
    heads = ", ".join(label.replace("\n", " ") for label in labels)
    title = f"Which launch shows which cheat: {whose}"
    return Figure(title, (Frame(png(figure), caption, f"{caption} Launches: {heads}. {told}."),))


# Two searches


@lettered
def draw_lineages(lesson: Any, stage: Any, whose: str) -> Figure:
    """Where a search by numbers alone ends, and where the same search with an evaluator ends."""
    of, whose = _hunt(stage, whose)
    if of is OWN:
        runs = survey.by_numbers(), survey.by_everything()
    else:
        first = tuple(search(padded(), of.mutate, values_only))
        runs = first, tuple(search(padded(), of.mutate, of.evaluate))
    start = barriers(padded())
    right = start - _needless()
    figure = paper(9.4, 4.6)
    told = []
    for n, (name, tried) in enumerate(
        zip(("numbers alone, one shape", f"the evaluator: {whose}"), runs, strict=True)
    ):
        axes = figure.add_axes((0.08 + 0.49 * n, 0.26, 0.42, 0.6))
        axes.set_title(name)
        best, steps = start, []
        for each in tried:
            false = each.layer == "lives" and survey.wrong(each.lines)
            best = each.barriers if each.better else best
            steps.append(best)
            y = each.barriers if each.layer == "lives" else 4
            colour = VERMILION if false else GREEN if each.layer == "lives" else GREY
            axes.plot([each.number + 1], [y], "o", ms=5, mfc=colour, mec=INK, mew=0.4)
        axes.step(range(1, len(tried) + 1), steps, where="post", color=BLUE, lw=1.6, zorder=0)
        axes.axhline(right, color="#888888", lw=0.8, ls="--")
        axes.set_ylim(0, start + 24)
        axes.set_xlabel("child")
        axes.set_ylabel("arrivals at barriers" if n == 0 else "")
        lived = [each for each in tried if each.layer == "lives"]
        wrong = sum(survey.wrong(each.lines) for each in lived)
        told.append(
            f"{name.capitalize()}: {len(lived)} of {len(tried)} children live, {wrong} of them wrong; it "
            f"ends at {best}"
        )
    for n, (colour, text) in enumerate(
        ((GREEN, "lives, and is right"), (VERMILION, "lives, and is wrong"), (GREY, "died"))
    ):
        figure.text(0.08 + 0.24 * n, 0.08, "\u25cf", color=colour, fontsize=13, va="center")
        figure.text(0.10 + 0.24 * n, 0.08, text, va="center")
    figure.text(0.70, 0.08, "dashed: stage 04's own", va="center")
    caption = f"The best so far, blue, begins at {start} arrivals. {'. '.join(told)}."
    return Figure("One operator, two evaluators", (Frame(png(figure), caption, caption),))


def _needless() -> int:
    """What the barrier costs that the searches' start has and stage 04 has not."""
    return barriers(padded()) - barriers(bench.region_lines())
