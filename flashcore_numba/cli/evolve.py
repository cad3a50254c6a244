"""`flashcore evolve`: proposals for the region of a lesson that its judge lets live, and what killed whom."""

import secrets
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cuda_reference.files import MachineError
from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.spec import Lesson, called
from flashcore_numba.evolve import lineage, source
from flashcore_numba.evolve.lineage import Candidate, Record

if TYPE_CHECKING:
    from flashcore_numba.evolve.proposers import Proposer
    from flashcore_numba.run.progress import Progress

ITERATIONS, ISLANDS, ELITE = 20, 2, 3
LIST_WIDTH = 72  # characters of a message in the tree
RECORDED = "recorded:"
NO_TIME = (
    "Fitness is made of counters: what the kernel asks memory for and waits for, counted on the CPU. No time "
    "was measured, and a kernel that counts less need not be faster."
)


def run(args: Namespace) -> int:
    """Search, or show a search. Returns 0. A search that an endpoint has ended is shown first."""
    if args.show is not None:
        return _show(args)
    if args.lesson is None:
        raise ArgumentError("LESSON: name a lesson to search, or --show DIR")
    record, stopped = _search(args)
    if not give_json(args, record.as_dict):
        show(record, console(), args.elite or ELITE)
        if args.save is not None:
            print(f"wrote {args.save / lineage.FILE}")
    if stopped is not None:
        raise stopped
    return 0


def _show(args: Namespace) -> int:
    others = ("lesson", "proposer", "iterations", "islands", "seed", "start", "url", "model", "save")
    for name in others:
        if getattr(args, name) is not None:
            named = f"{args.lesson!r}" if name == "lesson" else f"--{name}"
            raise ArgumentError(f"{named}: is for a search, and does not go with --show")
    record = lineage.load(args.show)
    if not give_json(args, record.as_dict):
        show(record, console(), args.elite or ELITE)
    return 0


def _search(args: Namespace) -> tuple[Record, MachineError | None]:
    from flashcore_numba.evolve import clock, engine
    from flashcore_numba.evolve.proposers import UnreachableError

    lesson = source.of_kernel(args.lesson)
    who = args.proposer or "edits"
    for name in ("url", "model"):
        if getattr(args, name) is not None and who != "llm":
            raise ArgumentError(f"--{name}: is for --proposer llm")
    kept = args.save is not None and (args.save / lineage.FILE).exists()
    seed = args.seed
    if seed is None:
        seed = lineage.load(args.save).seed if kept else secrets.randbelow(1 << 31)
    with progress_bar() as progress:
        proposer = _proposer(args, who, seed, progress)
        try:
            record = engine.evolve(
                lesson,
                proposer,
                _iterations(args, proposer),
                progress,
                islands=args.islands or ISLANDS,
                elite=args.elite or ELITE,
                seed=seed,
                start=None if args.start is None else _start(lesson, args.start),
                folder=args.save,
                clock=clock.clock(lesson) if gpu.available() else None,
            )
        except UnreachableError as error:
            return error.record, error
    return record, None


def _proposer(args: Namespace, who: str, seed: int, progress: "Progress") -> "Proposer":
    from flashcore_numba.evolve import proposers

    if who == "edits":
        return proposers.Edits(seed)
    if who.startswith(RECORDED):
        return proposers.Recorded(Path(who.removeprefix(RECORDED)))
    if who == "llm":
        return proposers.Model(args.url, args.model)
    if who == "file":
        if args.save is None:
            raise ArgumentError("--proposer file: needs --save DIR, where prompts and answers are")
        return proposers.Answers(args.save / "prompts", progress.step)
    raise ArgumentError(f"--proposer {who!r}: accepted are edits, recorded:FILE, llm and file")


def _iterations(args: Namespace, proposer: "Proposer") -> int:
    replies = getattr(proposer, "replies", None)
    if replies is None:
        return args.iterations or ITERATIONS
    return min(args.iterations or len(replies), len(replies))


def _start(lesson: Lesson, path: Path) -> str:
    """The region of somebody's answer."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--start {str(path)!r}: cannot be read ({error})") from None
    answer = exercise.answer_in_file(lesson, text, path.name)
    if answer.first is None:
        raise ArgumentError(f"--start {str(path)!r}: is no file of {called(lesson.key)} with its region")
    return "\n".join(answer.lines)


def show(record: Record, out: Console, elite: int) -> None:
    """The lineage with verdicts, what each operator came to, and the elite."""
    candidates = record.candidates
    proposed = len(candidates) - 1
    valid = sum(each.valid for each in candidates if each.parent is not None)
    out.print(
        f"{called(record.lesson)}, proposals by {record.proposer}, seed {record.seed}: {proposed} judged, "
        f"{valid} valid",
        markup=False,
        soft_wrap=True,
    )
    _print_tree(candidates, out)
    table = Table(title="What the operators came to", title_justify="left")
    for name in ("operator", "proposed", "valid", "fitter than its parent", "rejected by"):
        table.add_column(name, justify="left" if name in ("operator", "rejected by") else "right")
    for operator, *counts, killed in lineage.by_operator(candidates):
        table.add_row(operator, *map(str, counts), killed)
    out.print(table)
    best = Table(title="Elite", title_justify="left")
    for name in ("candidate", "fitness", "registers", "made by", "from"):
        best.add_column(name, justify="right" if name in ("candidate", "fitness", "registers") else "left")
    for each in lineage.elite(candidates, elite):
        registers = str((each.cubin or {}).get("registers", "-"))
        parent = "" if each.parent is None else str(each.parent)
        best.add_row(str(each.number), f"{each.fitness:.3f}", registers, each.operator, parent)
    out.print(best)
    if any(each.times is not None for each in candidates):
        out.print(f"Fitness: {candidates[0].basis}.", markup=False, soft_wrap=True)
    else:
        out.print(NO_TIME, markup=False, soft_wrap=True)


def _print_tree(candidates: list[Candidate], out: Console) -> None:
    start, *_ = candidates
    root = Tree(Text(f"0 start, fitness {start.fitness:.3f}"), guide_style="dim")
    branches = {0: root}
    for _, each in lineage.tree(candidates):
        if each.parent is not None:
            branches[each.number] = branches[each.parent].add(_line(each))
    out.print(root)


def _line(each: Candidate) -> Text:
    line = Text(f"{each.number} {each.operator}, island {each.island}, ")
    if each.valid:
        return line.append(f"valid, fitness {each.fitness:.3f}", "green")
    line.append(f"{each.layer}", "red")
    said = " ".join(each.message.split())
    return line.append(f": {said[:LIST_WIDTH]}{'...' if len(said) > LIST_WIDTH else ''}")
