"""The command `flashcore`. Heavy modules are imported by the commands that need them."""

import argparse
import errno
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_reference.extras import MissingPackageError, explained
from cuda_reference.files import MachineError, write
from flashcore_numba import __version__
from flashcore_numba.core.problem import ArgumentError

STAGE_HELP = "a number, a range such as 2-5, or a name; all stages when none is given"
FEWEST_ROUNDS = 5
COUNT_SHAPE = "1x1x128x64"
SHAPE_HELP = "BxHxSxD, or small, medium, mission, large, multi_batch"
COUNT_LEGEND = (
    "sec/req: 32-byte sectors a warp's request touches; used: share of their bytes that it needs; waves: "
    "shared-memory wavefronts; deg: waves over the fewest possible, 1.0 without bank conflicts; worst: the "
    "most wavefronts of one request."
)
PIPE_WIDTH = 160  # columns of a table that goes to a file or a pipe


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 when what was run is wrong or cannot run; 2 for a bad argument; 130 for
    Ctrl-C, 143 for SIGTERM: then no process that it started is left."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or pipe that cannot show a character gets a "?"
            stream.reconfigure(errors="replace")
    args = build_parser().parse_args(argv)
    try:
        with explained():
            status = args.run(args)
        sys.stdout.flush()
        return status
    except ArgumentError as error:
        print(f"flashcore {args.command}: {error}", file=sys.stderr)
        return 2
    except (MachineError, MissingPackageError) as error:
        print(f"flashcore {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except MemoryError as error:
        print(f"flashcore {args.command}: out of memory; choose a smaller shape ({error})", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None:
            print(f"flashcore {args.command}: {error.filename!r}: {error.strerror}", file=sys.stderr)
            return 1
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python writes once more at exit
        if error.errno == errno.EPIPE:  # the reader of a pipe has seen enough
            return 0
        print(f"flashcore {args.command}: the output cannot be written ({error.strerror})", file=sys.stderr)
        return 1


def _end(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signal.SIGTERM)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="flashcore", description="A ladder of fused attention kernels: checked, counted, measured."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[Any], int], what: str, stages: str | None = "*"
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        command.set_defaults(run=run)
        if stages:
            command.add_argument("stages", metavar="STAGE", nargs=stages, help=STAGE_HELP)
        command.add_argument(
            "--json",
            nargs="?",
            const="-",
            type=_json_file,
            metavar="FILE.json",
            help="the result as JSON, on stdout or in a file",
        )
        return command

    add("stages", _stages, "list the ladder: every stage, its idea and its limits", stages=None)
    dispatch = add(
        "dispatch",
        _dispatch,
        "show which stage attention() runs when none is named, by problem and GPU",
        stages=None,
    )
    dispatch.add_argument(
        "--save", action="store_true", help="after new recorded runs: make the table from them again"
    )
    check = add(
        "check",
        _check,
        "check stages against float64, with properties and poisoned memory, on the GPU if there is one; with "
        "--lesson, judge the file of an exercise",
    )
    check.add_argument("--lesson", metavar="N", help="the lesson whose exercise the file answers")
    check.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="S",
        help="seconds for everything, up to 3600; what is left then counts as failed. None by default; with "
        "--lesson 60",
    )
    starter = add(
        "starter",
        _starter,
        "write the file of a lesson's exercise with the region empty, for flashcore check --lesson",
        stages=None,
    )
    starter.add_argument("lesson", metavar="LESSON", help="the number of a lesson")
    starter.add_argument(
        "file", nargs="?", metavar="FILE", help="lessonNN.py, or lessonNN.cu, by default; never overwritten"
    )
    mutants = add("mutants", _mutants, "check wrong versions of the stages: each of them must be caught")
    mutants.add_argument(
        "--save", action="store_true", help="of all stages: write the record that docs/trust.md quotes"
    )
    count = add("count", _count, "count what one stage moves, by source line, on the simulator", stages=None)
    count.add_argument("stages", metavar="STAGE", help="a number or a name")
    count.add_argument("--shape", default=COUNT_SHAPE, help=f"{SHAPE_HELP}; {COUNT_SHAPE} by default")
    count.add_argument("--causal", action="store_true", help="with the causal mask")
    count.add_argument("--variant", help="of a stage that has variants (see flashcore stages)")
    compare = add(
        "compare",
        _compare,
        "time stages and peers on a GPU; without one, check and count stages and show recorded times; given "
        "two files that compare has saved, A.json B.json, say what B does faster and slower than A",
    )
    compare.add_argument(
        "--shape", action="append", help=f"{SHAPE_HELP}; mission by default; may be repeated"
    )
    compare.add_argument("--causal", action="store_true", help="with the causal mask")
    compare.add_argument(
        "--label", type=_label, help="what the run is for, lengths for example: part of the artifact's name"
    )
    compare.add_argument("--rounds", type=_rounds, help="interleaved rounds, 20 by default")
    compare.add_argument(
        "--save", type=_folder, metavar="DIR", help="write the artifact and the ladder's picture into DIR"
    )
    resources = add(
        "resources", _resources, "compile stages and list registers, spills and shared memory; needs no GPU"
    )
    resources.add_argument(
        "--cc", type=_capability, help="compute capability; this GPU's, or 9.0 without one"
    )
    resources.add_argument("--head-dim", type=int, default=64, help="64 by default")
    resources.add_argument(
        "--save",
        action="store_true",
        help="for those who change kernels: compile all CUDA C and write the table that a test holds",
    )
    profile = add(
        "profile",
        _profile,
        "profile one stage with Nsight Compute and explain a dozen of its metrics; without it, show the "
        "recorded ones",
        stages=None,
    )
    profile.add_argument("stages", metavar="STAGE", help="a number or a name")
    profile.add_argument("--shape", default="mission", help=f"{SHAPE_HELP}; mission by default")
    profile.add_argument("--causal", action="store_true", help="with the causal mask")
    profile.add_argument("--variant", help="of a stage that has variants (see flashcore stages)")
    profile.add_argument(
        "--save", type=_folder, metavar="DIR", help="the folder of the reports, profiles/ by default"
    )
    reconcile = add(
        "reconcile",
        _reconcile,
        "hold against each other what stages move as predicted, counted and measured; exit 1 where a "
        "difference has no reason",
    )
    reconcile.add_argument("--shape", help=f"{SHAPE_HELP}; {COUNT_SHAPE} by default")
    reconcile.add_argument("--causal", action="store_true", help="with the causal mask")
    reconcile.add_argument(
        "--measure", action="store_true", help="measure now, with Nsight Compute, not as recorded"
    )
    reconcile.add_argument(
        "--save",
        type=_folder,
        metavar="DIR",
        help="measure at the recorded shapes, or at a --shape, and write or renew the extracts in DIR",
    )
    roofline = add(
        "roofline",
        _roofline,
        "show how long each unit of a GPU needs for each stage, which limits it, and its share of the time",
    )
    roofline.add_argument("--shape", default="mission", help=f"{SHAPE_HELP}; mission by default")
    roofline.add_argument("--causal", action="store_true", help="with the causal mask")
    roofline.add_argument(
        "--gpu",
        metavar="NAME",
        help="a recorded GPU, or one by its data sheet: L4, H100, A100, 4090; this machine's by default, or "
        "the recorded one",
    )
    roofline.add_argument(
        "--save", type=_folder, metavar="DIR", help="write the pictures, and what was measured, into DIR"
    )
    pictures = add(
        "pictures",
        _pictures,
        "draw what artifacts of compare show: ladder, errors, roofline, time budget, lengths, share of peers",
        stages=None,
    )
    pictures.add_argument(
        "files", nargs="*", type=Path, metavar="FILE.json", help="the recorded artifacts when none is given"
    )
    pictures.add_argument(
        "--save", type=_folder, default=Path("pictures"), metavar="DIR", help="where; pictures/ by default"
    )
    readme = add(
        "readme",
        _readme,
        "write the ladder in README.md and draw the pictures there and in the lessons from the recorded runs",
        stages=None,
    )
    readme.add_argument("file", nargs="?", type=Path, default=Path("README.md"), help="README.md by default")
    readme.add_argument("--check", action="store_true", help="change nothing; exit 1 and say what differs")
    add("course", _course, "show the lessons and what is done of them", stages=None)
    what = "open JupyterLab at a lesson, in your own copy under workspace/"
    lab = commands.add_parser(
        "lab",
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        usage="flashcore lab [-h] [--again] [N] [-- ARGUMENT ...]",
    )
    lab.add_argument(
        "rest",
        nargs="*",
        metavar="N",
        help="the lesson, the first that you have not passed by default; behind -- what JupyterLab takes",
    )
    lab.add_argument("--again", action="store_true", help="begin anew; your former copy is kept beside it")
    lab.set_defaults(run=_lab)
    lessons = add(
        "lessons",
        _lessons,
        "write the numbers in lessons/*.md and make the notebooks; for those who write lessons",
        stages=None,
    )
    lessons.add_argument("--check", action="store_true", help="change nothing; exit 1 and say what differs")
    lessons.add_argument(
        "numbers", nargs="*", type=_number, metavar="N", help="these lessons; all by default"
    )
    lessons.add_argument(
        "--execute", action="store_true", help="also run the notebooks and store their outputs"
    )
    return parser


def _json_file(text: str) -> str:
    if text != "-" and not text.endswith(".json"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a file name that ends in .json (stages go before --json)"
        )
    if text != "-":
        _refuse_unwritable(Path(text).parent, text)  # now, not after the minutes that the result takes
    return text


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least {FEWEST_ROUNDS} is accepted")
    return int(text)


def _label(text: str) -> str:
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", text) or "causal" in text.split("-"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: small letters, digits and single hyphens are accepted, but not the word causal, "
            "which --causal adds"
        )
    return text


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a lesson's number is accepted, for example 5")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: seconds above 0 and up to 3600 are accepted")
    return seconds


def _folder(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; the name of a folder is accepted")
    path = path.absolute()
    _refuse_unwritable(next(folder for folder in (path, *path.parents) if folder.exists()), text)
    return Path(text)


def _refuse_unwritable(folder: Path, text: str) -> None:
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {folder} is read-only")
    try:  # the administrator may write everywhere, says os.access
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: {folder} takes no file ({error.strerror})"
        ) from None


def _capability(text: str) -> tuple[int, int]:
    major, dot, minor = text.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: major.minor is accepted, for example 9.0")
    return int(major), int(minor)


def _console(to_stderr: bool = False):
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False)  # `file.cu:100:` is no emoji


def _give_json(args, data: Callable[[], Any]) -> bool:
    """Write `data()` as JSON where asked to. True when that is stdout: then nothing else may go there."""
    if not args.json:
        return False
    text = json.dumps(data(), indent=1, allow_nan=False)
    if args.json == "-":
        print(text)
        return True
    try:
        write(Path(args.json), text + "\n")
    except OSError as error:
        raise ArgumentError(f"--json {args.json!r}: cannot be written ({error.strerror})") from None
    return False


def _selected(args) -> list:
    from flashcore_numba.stages.find import select

    return select(*args.stages)


def _runnable(args) -> tuple[list, list[str]]:
    """The selected stages that run here, and sentences, told on stderr, about those that do not."""
    from flashcore_numba.core import gpu
    from flashcore_numba.run.executor import simulated

    stages = _selected(args)
    if gpu.available():
        return stages, []
    able, not_run = simulated(stages)
    for sentence in not_run:
        print(f"flashcore {args.command}: {sentence}", file=sys.stderr)
    return able, not_run


def _stages(args) -> int:
    from rich.table import Table

    from flashcore_numba.records.amounts import NARROW
    from flashcore_numba.stages import LADDER

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
    if _give_json(args, lambda: data):
        return 0
    console = _console()
    table = Table(title="The ladder", title_justify="left")
    columns = ["stage", "idea", "language", "D", "causal", "GQA", "LSE", "needs"]
    if console.width < NARROW:
        del columns[2:]
    for name in columns:
        table.add_column(name, no_wrap=name != "idea")
    for stage in LADDER:
        able = ["yes" if x else "-" for x in (stage.causal, stage.grouped_queries, stage.returns_lse)]
        needs = "sm_{}{}".format(*stage.compute_capability) + ("a" if stage.no_other_gpu else "")
        dims = ", ".join(map(str, stage.head_dims))
        cells = (stage.label, stage.idea, stage.language, dims, *able, needs)
        table.add_row(*cells[: len(columns)])
        for name, sentence in stage.variants.items():
            table.add_row(f"   {name}", sentence, style="dim")
    console.print(table)
    return 0


def _dispatch(args) -> int:
    from rich.table import Table

    from flashcore_numba.records.amounts import NARROW
    from flashcore_numba.stages.find import find
    from flashcore_numba.stages.tuning import dispatch

    rules = dispatch.TABLE
    if args.save:
        from flashcore_numba.report import dispatch_table

        rules, path = dispatch_table.save()
    if _give_json(args, lambda: [rule._asdict() for rule in rules]):
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
    if (console := _console()).width < NARROW:
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
    console.print(table)
    return 0


def _check(args) -> int:
    if args.lesson is not None:
        return _check_answer(args)
    if files := [name for name in args.stages if name.endswith((".py", ".cu"))]:
        raise ArgumentError(f"{files[0]!r} is a file: name the lesson whose exercise it answers, --lesson N")

    from flashcore_numba.checks import check
    from flashcore_numba.checks.report import render

    stages, not_run = _runnable(args)
    reports = []
    if stages:
        with _progress() as progress:
            reports = check(stages, time_limit=args.time_limit, progress=_parts(progress, "checking"))
    if not _give_json(args, lambda: [report.as_dict() for report in reports]) and reports:
        render(reports, _console())
    return 0 if not not_run and all(report.passed for report in reports) else 1


def _check_answer(args) -> int:
    from flashcore_numba.course.judge import process
    from flashcore_numba.course.judge.verdict import CheckResult, no_result
    from flashcore_numba.course.lessons import find

    lesson = find(args.lesson)
    if len(args.stages) != 1:
        raise ArgumentError(f"--lesson {args.lesson}: one file is accepted, not {len(args.stages)}")
    path = Path(args.stages[0])
    job = {"job": "check", "lesson": lesson.number, "file": {"name": path.name, "text": _source(path)}}
    limit = args.time_limit or process.DEFAULT_TIME_LIMIT
    with _progress() as progress:
        reply = process.run(job, limit, _parts(progress, f"checking {path.name}"))
    result = CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(lesson.number, reply)
    if not _give_json(args, result.as_dict):
        result.render(_console())
    return 0 if result.passed else 1


def _source(path: Path) -> str:
    """The text of a source file that somebody names."""
    try:
        if path.exists() and not path.is_file():
            raise ArgumentError(f"{str(path)!r}: no file; a source file is accepted")
        data = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be read ({error.strerror})") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ArgumentError(f"{str(path)!r}: no text in UTF-8; a source file is accepted") from None


def _starter(args) -> int:
    from flashcore_numba.course.exercise import is_cuda, starter
    from flashcore_numba.course.lessons import find

    lesson = find(args.lesson)
    ending = "cu" if is_cuda(lesson.exercise.file) else "py"
    path = Path(args.file or f"lesson{lesson.number:02d}.{ending}")
    text = starter(lesson)
    try:
        write(path, text, new=True)
    except FileExistsError:
        raise ArgumentError(f"{str(path)!r} exists already and stays as it is: choose another name") from None
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be written ({error.strerror})") from None
    if not _give_json(args, lambda: {"lesson": lesson.number, "file": str(path)}):
        print(f"Wrote {path}. Fill in its region, then: flashcore check {path} --lesson {lesson.number}")
    return 0


def _mutants(args) -> int:
    from flashcore_numba.checks.deletions import deletions
    from flashcore_numba.checks.library import MUTANTS
    from flashcore_numba.checks.mutation import kill
    from flashcore_numba.checks.report import render_kills

    stages, not_run = _runnable(args)
    if args.save and (args.stages or not_run):
        raise ArgumentError("--save: takes all stages of the ladder, on a machine that can run them")
    written = [mutant for stage in stages for mutant in MUTANTS if mutant.stage == stage.number]
    chosen = [*written, *(mutant for stage in stages for mutant in deletions(stage))]
    with _progress() as progress:
        kills = kill(chosen, progress=_parts(progress, "mutants"))
    if args.save:
        from flashcore_numba.report.trust_tables import save_mutants

        print(f"Wrote {save_mutants(kills[: len(written)], kills[len(written) :])}")
    if not _give_json(args, lambda: [item.as_dict() for item in kills]) and kills:
        render_kills(kills, _console())
    return 1 if not_run or any(item.status == "survived" for item in kills) else 0


def _count(args) -> int:
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence.counts import count
    from flashcore_numba.report.tables import moved_line
    from flashcore_numba.run.executor import simulated
    from flashcore_numba.stages.find import find
    from flashcore_numba.stages.runs import Run

    stage = find(args.stages)
    variant = _variant(args, stage)
    shape = parse(args.shape)
    if not (able := simulated([stage]))[0]:
        print(f"flashcore count: {able[1][0]}", file=sys.stderr)
        return 1
    with _progress() as progress:
        run = Run(stage, variant)
        progress.step(f"counting {run.label} at {shape}{', causal' if args.causal else ''}")
        counted = count(run, shape, args.causal)
    if not _give_json(args, counted.as_dict):
        console = _console()
        for launch in counted.launches:
            console.print(str(launch), markup=False, soft_wrap=True)
        console.print(COUNT_LEGEND, markup=False, soft_wrap=True)
        console.print(moved_line(counted.moved()), soft_wrap=True)
        if not counted.error["right"]:
            console.print(f"WRONG output: {counted.error['reason']}")
    return 0 if counted.right else 1


def _variant(args, stage) -> str | None:
    if args.variant is not None and args.variant not in stage.variants:
        accepted = ", ".join(stage.variants) or "none, this stage has no variants"
        raise ArgumentError(f"--variant {args.variant!r} of stage {stage.label}: accepted are {accepted}")
    return args.variant or stage.default_variant


def _compare(args) -> int:
    from flashcore_numba.core import gpu
    from flashcore_numba.core.shapes import parse

    if any(name.endswith(".json") for name in args.stages):
        return _compare_files(args)
    stages = _selected(args)
    shapes = [(parse(text), args.causal) for text in args.shape or ["mission"]]
    why_not = gpu.why_not()
    if why_not is None:
        return _compare_on_gpu(args, stages, shapes)
    for option in ("save", "rounds", "label"):
        if getattr(args, option):
            raise ArgumentError(
                f"--{option} {str(getattr(args, option))!r}: needs a measurement on a GPU; {why_not}"
            )
    return _compare_without_gpu(args, stages, shapes, why_not)


def _compare_files(args) -> int:
    from flashcore_numba.report.compare_artifacts import compare_artifacts, table

    if others := [name for name in args.stages if not name.endswith(".json")]:
        raise ArgumentError(f"{others[0]!r} beside a file: either stages or two artifacts are accepted")
    if len(args.stages) != 2:
        raise ArgumentError(f"artifacts: two files are accepted, not {len(args.stages)}")
    if given := [name for name in ("shape", "causal", "rounds", "label", "save") if getattr(args, name)]:
        raise ArgumentError(f"--{given[0]}: is for a measurement, and does not go with two artifacts")
    result = compare_artifacts(*map(Path, args.stages))
    status = 0 if result["shapes"] else 1
    if _give_json(args, lambda: result):
        return status
    console = _console()
    for letter in "ab":
        about = result[letter]
        console.print(
            f"{letter.upper()}: {about['file']}: {about['provenance']}", markup=False, soft_wrap=True
        )
    for sentence in result["warnings"]:
        console.print(f"Careful: {sentence}", markup=False, soft_wrap=True)
    for shape in result["shapes"]:
        console.print()
        console.print(table(shape, console.width))
    if not result["shapes"]:
        console.print("No shape and mask is in both, so nothing can be compared.")
    for letter in "ab":
        if only := result[f"only_{letter}"]:
            console.print(f"Only in {letter.upper()}: {'; '.join(only)}.", markup=False, soft_wrap=True)
    return status


def _compare_on_gpu(args, stages, shapes) -> int:
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence.counts import count_all
    from flashcore_numba.measure.compare import ROUNDS, compare
    from flashcore_numba.records import artifact
    from flashcore_numba.report import pictures
    from flashcore_numba.report.tables import clocks_seen, counted_table
    from flashcore_numba.run.executor import simulated
    from flashcore_numba.stages.runs import runs

    with _progress() as progress:
        record = compare(stages, shapes, args.rounds or ROUNDS, progress, args.label)
        if args.save:
            file = args.save / artifact.file_name(record)
            artifact.save(record, file)
            drawn = pictures.ladder_beside((file, record), artifact.recorded()).draw(args.save)
        # What is saved is times: counts need no GPU, and whoever records pays for it by the minute.
        able, not_run = ([], []) if args.save else simulated(stages)
        counted = count_all(runs(able), parse(COUNT_SHAPE), progress, args.causal)
    console = _console(to_stderr=args.json == "-")
    for shape in record["shapes"]:
        _print_times(console, record, shape)
    console.print(clocks_seen(record), markup=False, soft_wrap=True)
    if counted:
        console.print()
        rows = [{"label": item.run.label, "right": item.right, "moved": item.moved()} for item in counted]
        console.print(counted_table(rows, _counted_at(args), console.width))
    for sentence in not_run:
        console.print(sentence, markup=False, soft_wrap=True)
    if args.save:
        console.print(f"Saved {file}, {', '.join(map(str, drawn))}", markup=False, soft_wrap=True)
    _give_json(args, lambda: record)
    timed = [entry["error"]["right"] for shape in record["shapes"] for entry in shape["entries"]]
    return 0 if all(timed) and all(item.right for item in counted) else 1


def _compare_without_gpu(args, stages, shapes, why_not) -> int:
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence import rehearse
    from flashcore_numba.report.tables import counted_table

    with _progress() as progress:
        result = rehearse.rehearse(stages, shapes, parse(COUNT_SHAPE), progress)
    if not _give_json(args, lambda: {"backend": "simulator", "why_not_gpu": why_not, **result.as_dict()}):
        console = _console()
        console.print(f"No GPU ({why_not}).", markup=False, soft_wrap=True)
        result.explain(console)
        console.print(
            counted_table(result.rows, _counted_at(args), console.width, next(iter(result.recorded), None))
        )
        for record, shape in result.recorded:
            _print_times(console, record, shape)
        for sentence in result.not_recorded + result.not_run:
            console.print(sentence, markup=False, soft_wrap=True)
    return 0 if result.right else 1


def _counted_at(args) -> str:
    return f"{COUNT_SHAPE}{', causal' if args.causal else ''}"


def _print_times(console, record, shape) -> None:
    from flashcore_numba.report.tables import latency_table, limits_line, not_timed, throttled_lines

    console.print()
    console.print(latency_table(record, shape, console.width))
    console.print(f"Limits: {limits_line(shape)}.", markup=False, soft_wrap=True)
    for sentence in throttled_lines(shape) + not_timed(shape):
        console.print(sentence, markup=False, soft_wrap=True)


def _roofline(args) -> int:
    from flashcore_numba.core import gpu
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence import roofline
    from flashcore_numba.predict.limits import DataSheet
    from flashcore_numba.stages.runs import runs

    stages, shape = _selected(args), parse(args.shape)
    here = gpu.name() if gpu.available() else None
    target = roofline.source(args.gpu, here)
    if args.save and isinstance(target, DataSheet):
        raise ArgumentError(f"--save {str(args.save)!r}: pictures show measured times, not {target.name}")
    at = runs(stages), shape, args.causal
    with _progress() as progress:
        if isinstance(target, DataSheet):
            found = roofline.of_data_sheet(target, *at, progress)
        elif target == here and not roofline.is_recorded(target, shape, args.causal):
            from flashcore_numba.measure.compare import compare

            record = compare(stages, [(shape, args.causal)], FEWEST_ROUNDS, progress)
            found = roofline.of_record(target, *at, record)
        else:
            found = roofline.of_record(target, *at)
    saved = _save_roofline(args.save, found) if args.save else []
    if not _give_json(args, found.as_dict):
        console = _console()
        if found.rows:
            console.print(found.table(console.width))
        timed = [row for row in found.rows if row.gpu_us]
        for line in ["Parts of the time:", *map(roofline.budget, timed)] if timed else []:
            console.print(line, markup=False, soft_wrap=True)
        for sentence in [*found.refused, *saved]:
            console.print(sentence, markup=False, soft_wrap=True)
    return 0 if found.rows else 1


def _save_roofline(folder: Path, found) -> list[str]:
    """The artifact with this shape alone, and the pictures that it allows; sentences about them."""
    from flashcore_numba.records import artifact
    from flashcore_numba.report import pictures

    shape = artifact.find_shape(found.record, str(found.shape), found.causal)
    if shape is None:
        raise ArgumentError(f"--save {str(folder)!r}: {found.about}")
    record = found.record | {"shapes": [shape]}
    path = folder / f"roofline-{artifact.file_name(record)}"
    artifact.save(record, path)
    drawn, lacking = pictures.drawable([(path, record)])
    wanted = ("roofline", "time-budget")
    files = [file for picture in drawn if picture.name in wanted for file in picture.draw(folder)]
    return [
        f"Saved {', '.join(map(str, [path, *files]))}",
        *(f"Not drawn: {name}: {why}" for name, why in lacking.items() if name in wanted),
    ]


def _resources(args) -> int:
    from rich.table import Table

    from flashcore_numba.core import gpu
    from flashcore_numba.core.problem import HEAD_DIMS
    from flashcore_numba.predict.occupancy import MULTIPROCESSORS, of_kernel
    from flashcore_numba.records.amounts import SMALL
    from flashcore_numba.run.compiler import supported_capabilities
    from flashcore_numba.run.registers import examples, registers, why_not
    from flashcore_numba.stages.runs import runs

    if args.head_dim not in HEAD_DIMS:
        raise ArgumentError(f"--head-dim {args.head_dim}: accepted are {', '.join(map(str, HEAD_DIMS))}")
    stages = _selected(args)
    if (reason := next(filter(None, map(why_not, stages)), None)) is not None:
        print(f"flashcore resources: {reason}", file=sys.stderr)
        return 1
    if args.cc and args.cc not in (served := supported_capabilities()):
        raise ArgumentError(
            f"--cc {'.'.join(map(str, args.cc))}: this CUDA compiler accepts "
            + ", ".join(f"{major}.{minor}" for major, minor in served)
        )
    if args.save:
        return _save_resources(args)
    capability = args.cc or gpu.compute_capability() or (9, 0)
    chosen = [run for run in runs(stages) if args.head_dim in run.stage.head_dims]
    found = {}
    with _progress() as progress:
        for run in chosen:
            progress.step(f"compiling {run.label}")
            found[run.label] = registers(run, examples(run.stage, args.head_dim), capability)
    if _give_json(
        args, lambda: {"compute_capability": list(capability), "head_dim": args.head_dim, "kernels": found}
    ):
        return 0
    target = f"sm_{capability[0]}{capability[1]}"
    console = _console()
    table = Table(
        title=f"Compiled for {target}, D = {args.head_dim}",
        caption="Registers, and bytes spilled and of local memory, a thread; bytes of shared memory, and "
        "threads, a block. An SM holds: blocks (their share of its warps), and what allows no more.",
        title_justify="left",
        caption_justify="left",
    )
    columns = {"kernel": "kernel", "registers": "regs", "spill_bytes": "spill", "stack_bytes": "local"}
    columns |= {"shared_bytes": "shared", "threads": "threads"}
    wide = console.width >= SMALL
    if not wide:
        del columns["kernel"], columns["threads"]
    table.add_column("stage", no_wrap=True)
    for field, name in columns.items():
        text = field == "kernel"
        table.add_column(name, no_wrap=not text, justify="left" if text else "right")
    if wide and capability in MULTIPROCESSORS:
        table.add_column("an SM holds", no_wrap=True)
    for label, kernels in found.items():
        for kernel in kernels or []:
            cells = ["?" if kernel[field] is None else str(kernel[field]) for field in columns]
            if wide and (held := of_kernel(capability, kernel)):
                cells.append(str(held))
            table.add_row(label, *cells)
    console.print(table)
    return 0


def _save_resources(args) -> int:
    from flashcore_numba.evidence import resource_table
    from flashcore_numba.stages import LADDER

    if args.cc or args.stages:
        raise ArgumentError("--save: writes the whole table, for every GPU, so nothing else goes with it")
    with _progress() as progress:
        path = resource_table.save(LADDER, _parts(progress, "compiling"))
    if not _give_json(args, resource_table.read):
        print(f"wrote {path}")
    return 0


def _profile(args) -> int:
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence import extracts, nsight
    from flashcore_numba.evidence import profile as profiling
    from flashcore_numba.stages.find import find
    from flashcore_numba.stages.runs import Run

    stage, shape = find(args.stages), parse(args.shape)
    run = Run(stage, _variant(args, stage))
    profiling.refuse(run, shape, args.causal)
    if (why_not := nsight.why_not()) is not None:
        if args.save:
            raise ArgumentError(f"--save {str(args.save)!r}: needs a measurement on a GPU; {why_not}")
        return _show_recorded_profile(args, run, shape, why_not)
    with _progress() as progress:
        progress.step(f"ncu: {run.label} at {shape}{', causal' if args.causal else ''}")
        try:
            measured, *reports = profiling.profile(run, shape, args.causal, args.save or profiling.FOLDER)
        except nsight.NsightError as error:
            print(f"flashcore profile: {error}", file=sys.stderr)
            return 1
    extract = extracts.extract(shape, args.causal, [measured])
    _print_profile(args, run, extract, {"reports": [str(path) for path in reports]})
    if args.json != "-":
        print("\n".join(f"Saved {path}" for path in reports))
    return 0 if measured.error["right"] else 1


def _show_recorded_profile(args, run, shape, why_not) -> int:
    from flashcore_numba.evidence import extracts
    from flashcore_numba.evidence import profile as profiling

    print(f"flashcore profile: nothing is measured here, {why_not}", file=sys.stderr)
    extract = extracts.find(shape, args.causal)
    if profiling.find(run, extract) is None:
        shapes = ", ".join(profiling.which(run)) or "none"
        at = f"{shape}{' causal' if args.causal else ''}"
        message = f"{run.label} has no recorded profile at {at}; recorded are: {shapes}"
        print(f"flashcore profile: {message}", file=sys.stderr)
        return 1
    _print_profile(args, run, extract, {"why_not_measured": why_not})
    return 0


def _print_profile(args, run, extract, more) -> None:
    from flashcore_numba.evidence import profile as profiling

    found = profiling.find(run, extract) or {}
    about = {name: value for name, value in extract.items() if name != "runs"}
    if not _give_json(args, lambda: {"stage": run.label, **about, "measured": found, **more}):
        _console().print(profiling.table(run, found, extract))


def _reconcile(args) -> int:
    from flashcore_numba.core.shapes import parse
    from flashcore_numba.evidence import extracts, nsight, reconcile
    from flashcore_numba.run.executor import simulated

    stages, shape = _selected(args), parse(args.shape or COUNT_SHAPE)
    if (args.save or args.measure) and (why_not := nsight.why_not()) is not None:
        option = "--save" if args.save else "--measure"
        raise ArgumentError(f"{option}: needs a measurement on a GPU; {why_not}")
    if args.save:
        return _save_extracts(args, stages, shape)
    stages, not_run = simulated(stages)
    chosen = reconcile.served(stages, shape, args.causal)
    with _progress() as progress:
        extract = extracts.find(shape, args.causal)
        if args.measure:
            progress.step(f"ncu: {len(chosen)} runs at {shape}{' causal' if args.causal else ''}")
            try:
                extract = reconcile.measure(chosen, shape, args.causal)
            except nsight.NsightError as error:
                print(f"flashcore reconcile: {error}", file=sys.stderr)
                return 1
        found = reconcile.blocks(chosen, shape, args.causal, extract, progress)
    at = f"{shape}{', causal' if args.causal else ''}"
    where = reconcile.where(extract, shape, args.causal)
    if not _give_json(args, lambda: {"at": at, "measured": where, "runs": [b.as_dict() for b in found]}):
        console = _console()
        shown, notes = reconcile.table(found, f"Predicted, counted, measured at {at}", console.width)
        console.print(shown)
        for line in (*notes, f"Measured: {where}.", reconcile.LEGEND, *not_run):
            console.print(line, markup=False, soft_wrap=True)
    return 1 if not_run or any(block.unexplained for block in found) else 0


def _save_extracts(args, stages, shape) -> int:
    from flashcore_numba.evidence import extracts, reconcile

    if args.measure or (args.causal and not args.shape):
        raise ArgumentError("--save: measures what is recorded; of the options only --shape goes with it")
    jobs = reconcile.jobs(stages, shape, args.causal) if args.shape else reconcile.jobs_to_save(stages)
    with _progress() as progress:
        path, failed = reconcile.save(args.save, progress, jobs)
    for sentence in failed:
        print(f"flashcore reconcile: {sentence}", file=sys.stderr)
    if not _give_json(args, lambda: {"failed": failed, "extracts": extracts.recorded(args.save)}) and path:
        print(f"Saved {path}")
    return 1 if failed else 0


def _pictures(args) -> int:
    from flashcore_numba.records import artifact
    from flashcore_numba.report import pictures

    records = [(path, artifact.load(path)) for path in args.files] or artifact.recorded()
    drawable, lacking = pictures.drawable(records)
    data = []
    with _progress() as progress:
        for done, picture in enumerate(drawable, 1):
            files = [str(path) for path in picture.draw(args.save)]
            data.append({"name": picture.name, "files": files, "alt": picture.alt})
            progress.count("drawing", done, len(drawable), picture.name)
    if not _give_json(args, lambda: {"pictures": data, "lacking": lacking}):
        for each in data:
            print(f"wrote {' and '.join(each['files'])}: {each['alt']}")
        for name, reason in lacking.items():
            print(f"not drawn: {name}: {reason}")
    return 0 if data else 1


def _readme(args) -> int:
    from flashcore_numba.report import readme

    if args.check:
        found = readme.differences(args.file)
        if not _give_json(args, lambda: {"up_to_date": not found, "differences": found}):
            for sentence in found or [f"{args.file} agrees with the record"]:
                print(sentence)
        return 1 if found else 0
    changed = readme.update(args.file)
    if not _give_json(args, lambda: {"changed": [str(path) for path in changed]}):
        print("\n".join(f"wrote {path}" for path in changed) or f"{args.file} agrees with the record already")
    return 0


def _course(args) -> int:
    from flashcore_numba.course.session.session import overview

    shown = overview()
    if not _give_json(args, shown.as_dict):
        print(shown)
    return 0


def _lab(args) -> int:
    from importlib.util import find_spec

    from flashcore_numba.course import lessons
    from flashcore_numba.course.book import notebooks
    from flashcore_numba.course.session import lab
    from flashcore_numba.course.session.session import overview

    folder = notebooks.root()
    if missing := [name for name in ("jupyterlab", "nbformat") if find_spec(name) is None]:
        print(
            f"flashcore lab: {missing[0]} is not installed: run make lab-env, "
            "or pip install -e '.[notebooks]' in the clone",
            file=sys.stderr,
        )
        return 1
    given = args.rest[:1] if args.rest and args.rest[0].isdecimal() else []
    number = given[0] if given else overview().data["next"]
    chosen = lessons.find(max(lessons.LESSONS) if number is None else number)
    notebook, sentence = lab.working_copy(folder, chosen.number, args.again)
    print(f"flashcore lab: {sentence}", flush=True)
    return lab.start(lab.command(folder, notebook, args.rest[len(given) :]))


def _lessons(args) -> int:
    from flashcore_numba.course.book import notebooks

    if args.check and (args.execute or args.numbers):
        raise ArgumentError("--check: looks at all lessons and changes none, so nothing else goes with it")
    folder = notebooks.root()
    if args.check:
        found = notebooks.notebook_differences(folder)
        if not _give_json(args, lambda: {"up_to_date": not found, "differences": found}):
            print("\n".join(found or ["lessons and notebooks agree with their sources"]))
        return 1 if found else 0
    with _progress() as progress:
        progress.step("writing numbers and notebooks")
        changed = [str(path.relative_to(folder)) for path in notebooks.update(folder, args.numbers)]
        seconds: Mapping[str, float] = {}
        if args.execute:
            seconds = notebooks.execute_files(
                folder,
                args.numbers,
                lambda name, done, total: progress.count("executing", done, total, name),
            )
    if not _give_json(args, lambda: {"changed": changed, "seconds": seconds}):
        lines = [f"wrote {name}" for name in changed]
        lines += [f"executed {name} in {each:.0f} s" for name, each in seconds.items()]
        print("\n".join(lines) or "lessons and notebooks agree with their sources already")
    return 0


def _progress():
    from flashcore_numba.run.progress import Progress

    return Progress(_console(to_stderr=True))


def _parts(progress, what: str) -> Callable[[int, int, str], None]:
    """What `checks` calls after each of its parts."""
    return lambda done, total, label: progress.count(what, done, total, label)


if __name__ == "__main__":
    sys.exit(main())
