"""The command line: every command with its arguments. It imports nothing heavy."""

import argparse
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from flashcore_numba.core.version import VERSION

if TYPE_CHECKING:
    from flashcore_numba.core.element import Element

T = TypeVar("T")
OPERATIONS = "backward, decode, dropout, dropout_backward, epilogue, fp8 or prepare"
STAGE_HELP = (
    f"a number, a range such as 2-5, or a name; {OPERATIONS}, the ladder of that operation, or one of its "
    "stages as backward/NAME; all stages of the forward pass when none is given"
)
ADDED = dict.fromkeys(re.split("_|, | or ", OPERATIONS), "--operation") | {
    "causal": "--causal",
    "ring": "flashcore ring",
    "experiments": "flashcore_numba.course.experiments",
}
"""Words of an artifact's name beside its label, and what adds them: with one of them in a label, two runs
could have one name. A type of elements, which --element adds, is another.
"""
FEWEST_ROUNDS = 5
COUNT_SHAPE = "1x1x128x64"
LESSON_HELP = "the number of a lesson; or warm-up, the exercise before that of lesson 7"
SHAPE_HELP = "BxHxSxD, or small, medium, mission, large, multi_batch"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """A command itself refuses what it does not know, by its own name."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and " " in self.prog:
            one = isinstance(getattr(found, "stages", None), str) and not unknown[0].startswith("-")
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{'; one STAGE is accepted' if one else ''}"
            )
        return found, unknown


def parsed(words: list[str]) -> argparse.Namespace:
    """The arguments of a command line. What follows -- in that of lab is JupyterLab's: `after`."""
    split = words.index("--") if words[:1] == ["lab"] and "--" in words else len(words)
    args = build_parser().parse_args(words[:split])
    args.after = words[split + 1 :]
    return args


def build_parser() -> argparse.ArgumentParser:
    """Its result names a command, for which `cli` has a module of that name, and its arguments."""
    parser = _Parser(
        prog="flashcore", description="A ladder of fused attention kernels: checked, counted, measured."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, what: str, stages: str | None = "*") -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
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

    add("stages", "list the ladder: every stage, its idea and its limits", stages=None)
    dispatch = add(
        "dispatch",
        "show which stage attention() and attention_backward() run when none is named, by problem and GPU",
        stages=None,
    )
    dispatch.add_argument(
        "--save", action="store_true", help="after new recorded runs: make the table from them again"
    )
    check = add(
        "check",
        "check stages against float64, with properties and poisoned memory, on the GPU if there is one; with "
        "--lesson, judge the file of an exercise; ring: attention over several ranks, in one process",
        stages=None,
    )
    check.add_argument(
        "stages",
        metavar="STAGE|FILE",
        nargs="*",
        help=f"{STAGE_HELP}; ring, or ring/WAY; with --lesson, one file",
    )
    check.add_argument(
        "--lesson", metavar="N", help="the lesson, or warm-up, whose exercise the file answers"
    )
    check.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="S",
        help="seconds for everything, up to 3600; what is left then counts as failed. None by default; with "
        "--lesson 60",
    )
    check.add_argument(
        "--no-record",
        action="store_true",
        help="with --lesson, for those who grade: leave your own progress as it is",
    )
    starter = add(
        "starter",
        "write the file of a lesson's exercise with the region empty, for flashcore check --lesson",
        stages=None,
    )
    starter.add_argument("lesson", metavar="LESSON", help=LESSON_HELP)
    starter.add_argument(
        "file", nargs="?", metavar="FILE", help="lessonNN.py, or lessonNN.cu, by default; never overwritten"
    )
    predict = add(
        "predict",
        "answer a lesson's questions before anything runs, then see how far off you were",
        stages=None,
    )
    predict.add_argument("lesson", metavar="LESSON", help=LESSON_HELP)
    predict.add_argument(
        "values",
        nargs="*",
        default=[],  # or argparse calls it required
        metavar="NAME=VALUE",
        help="your answers; without any, a terminal asks for those that are open",
    )
    predict.add_argument(
        "--values",
        dest="file",
        type=Path,
        metavar="FILE.json",
        help="your answers from a file: one JSON object of names and values",
    )
    hint = add("hint", "show the next hint of a lesson, one at a time", stages=None)
    hint.add_argument("lesson", metavar="LESSON", help=LESSON_HELP)
    hint.add_argument("--again", action="store_true", help="show those that you have seen, and no other")
    mutants = add("mutants", "check wrong versions of the stages, or of ring: each must be caught")
    mutants.add_argument(
        "--save", action="store_true", help="of all stages: write the record that docs/trust.md quotes"
    )
    count = add("count", "count what one stage moves, by source line, on the simulator", stages=None)
    count.add_argument("stages", metavar="STAGE", help="a number or a name, or OPERATION/NAME")
    count.add_argument("--shape", default=COUNT_SHAPE, help=f"{SHAPE_HELP}; {COUNT_SHAPE} by default")
    count.add_argument("--causal", action="store_true", help="with the causal mask")
    count.add_argument("--variant", help="of a stage that has variants (see flashcore stages)")
    compare = add(
        "compare",
        "time stages and peers on a GPU; without one, check and count stages and show recorded times; given "
        "two files that compare has saved, A.json B.json, say what B does faster and slower than A",
    )
    compare.add_argument(
        "--shape",
        action="append",
        help=f"{SHAPE_HELP}; also with grouped heads or D_v, 1x32/8x4096x192/128, or as a ragged batch, "
        "16x32x128-8192x64; mission by default; may be repeated",
    )
    compare.add_argument(
        "--operation",
        metavar="NAME",
        help=f"what the stages compute, forward by default: with {OPERATIONS} and no STAGE, its whole ladder",
    )
    compare.add_argument("--causal", action="store_true", help="with the causal mask")
    compare.add_argument(
        "--features",
        action="append",
        type=_features,
        metavar="WORDS",
        help='"window=1023,0 softcap=50 sinks alibi_slopes seqused_k head_norm gate", some of them, or none; '
        "repeated: interleaved",
    )
    compare.add_argument(
        "--element",
        action="append",
        type=_element,
        metavar="TYPE",
        help="of q, k, v and out, as attention() takes them, the first by default; repeated: interleaved",
    )
    compare.add_argument(
        "--tokens",
        action="append",
        type=_tokens,
        metavar="NUMBER",
        help="query rows of each sequence: by default all, or 1 in decoding; repeated: interleaved",
    )
    compare.add_argument(
        "--page",
        action="append",
        type=_page,
        metavar="KEYS",
        help="of decode: keys of a page, or contiguous, 16 by default; repeated: interleaved",
    )
    compare.add_argument(
        "--cache",
        action="append",
        type=_cache,
        metavar="TYPE",
        help="of decode: e4m3, or own for the type of q, which is the default; repeated: interleaved",
    )
    compare.add_argument(
        "--batch-invariant",
        action="append",
        type=_batch_invariant,
        metavar="YES",
        help="of decode: yes for the same bits whatever the batch, or no; repeated: interleaved",
    )
    compare.add_argument(
        "--peer",
        action="append",
        metavar="NAME",
        help='time this peer ("SDPA cuDNN", FA4, ..., or none), all by default; may be repeated',
    )
    compare.add_argument(
        "--label", type=_label, help="what the run is for, lengths for example: part of the artifact's name"
    )
    compare.add_argument("--rounds", type=_rounds, help="interleaved rounds, 20 by default")
    compare.add_argument(
        "--save", type=_folder, metavar="DIR", help="write the artifact and the ladder's picture into DIR"
    )
    tune = add(
        "tune",
        "search a stage's configurations: rules, compiler and, with a GPU, times beside the shipped one; or "
        "make the stages' table of all recorded searches, or replay one with another strategy",
        stages=None,
    )
    tune.add_argument(
        "stage",
        metavar="STAGE",
        nargs="?",
        help="12, 13, 15, 16, backward/mma_sync, backward/wgmma or decode/split",
    )
    tune.add_argument("--shape", help="BxHxSxD, or its name; mission by default")
    tune.add_argument("--causal", action="store_true", default=None, help="with the causal mask")
    tune.add_argument(
        "--element",
        type=_element,
        metavar="TYPE",
        help="of q, k, v and out: float16 by default",
    )
    tune.add_argument(
        "--elite",
        type=_number_of,
        metavar="K",
        help="so many of the best are checked; 3 by default",
    )
    tune.add_argument(
        "--changes",
        type=_number_of,
        metavar="N",
        help="of a large space only what differs from the shipped configuration in at most N values",
    )
    tune.add_argument(
        "--save",
        type=_folder,
        metavar="DIR",
        help="write the record into DIR as it grows, and go on with one",
    )
    tune.add_argument(
        "--table", action="store_true", help="make the table that stages look into from all kept records"
    )
    tune.add_argument(
        "--replay", type=Path, metavar="FILE.json", help="a record, searched again without a GPU"
    )
    tune.add_argument("--strategy", metavar="NAME", help="of Kernel Tuner; random_sample by default")
    tune.add_argument(
        "--evals", type=_number_of, metavar="N", help="configurations it may look at; 60 by default"
    )
    ring = add(
        "ring",
        "time attention over a sequence that several GPUs hold together, beside PyTorch's; flashcore check "
        "ring needs no GPU",
        stages=None,
    )
    ring.add_argument("--gpus", type=_number_of, default=2, metavar="N", help="of this machine; 2 by default")
    ring.add_argument(
        "--shape",
        action="append",
        help="BxHxSxD with the rows of all GPUs together, 1x32/8x16384x128 by default; may be repeated",
    )
    ring.add_argument("--full", action="store_true", help="without the causal mask")
    ring.add_argument(
        "--backward",
        action="store_true",
        help="the gradients: the backward pass alone, and together with the forward pass, as PyTorch's is",
    )
    ring.add_argument(
        "--way", action="append", metavar="WAY", help="only this way, and no peers; may be repeated"
    )
    ring.add_argument(
        "--timeline",
        action="store_true",
        help="stamp what each stream of each GPU does when, in a call of one way, pull by default; draw it",
    )
    ring.add_argument(
        "--time-limit",
        type=_number_of,
        default=600,
        metavar="S",
        help="seconds after which the processes are stopped; 600 by default, and 120 for graphs of PyTorch's",
    )
    ring.add_argument("--rounds", type=_rounds, default=9, help="interleaved rounds, 9 by default")
    ring.add_argument("--save", type=_folder, metavar="DIR", help="write the artifact or time line into DIR")
    evolve = add(
        "evolve",
        "search for a better region of a lesson's kernel, with its judge as the evaluator; or show a search "
        "that was saved",
        stages=None,
    )
    evolve.add_argument("lesson", metavar="LESSON", nargs="?", help=LESSON_HELP)
    evolve.add_argument(
        "--proposer",
        metavar="WHO",
        help="edits: small edits drawn from a seed, the default; recorded:FILE: replies of a file; llm: a "
        "model behind an endpoint; file: you, who are given a prompt and write an answer",
    )
    evolve.add_argument("--iterations", type=_number_of, metavar="N", help="proposals in all; 20 by default")
    evolve.add_argument(
        "--islands",
        type=_number_of,
        metavar="K",
        help="populations, with an idea each; 2 by default",
    )
    evolve.add_argument(
        "--elite", type=_number_of, metavar="K", help="so many of the best are kept and shown; 3 by default"
    )
    evolve.add_argument("--seed", type=_seed, metavar="S", help="repeats a search; drawn by default")
    evolve.add_argument(
        "--start",
        type=Path,
        metavar="FILE",
        help="an answer to begin with; the stage's own by default",
    )
    evolve.add_argument(
        "--url",
        metavar="URL",
        help="for llm: an endpoint that speaks chat/completions, or OPENAI_BASE_URL; "
        "its key is taken from OPENAI_API_KEY",
    )
    evolve.add_argument("--model", metavar="NAME", help="for llm: its name, or OPENAI_MODEL")
    evolve.add_argument(
        "--save",
        type=_folder,
        metavar="DIR",
        help="write the record into DIR as it grows, and go on with one",
    )
    evolve.add_argument("--show", type=Path, metavar="DIR", help="a saved search, as a tree")
    resources = add("resources", "compile stages and list registers, spills and shared memory; needs no GPU")
    resources.add_argument(
        "--cc", type=_capability, help="compute capability; this GPU's, or 9.0 without one"
    )
    resources.add_argument("--head-dim", type=int, metavar="D", help="64 by default")
    resources.add_argument(
        "--save",
        action="store_true",
        help="for those who change kernels: compile all CUDA C and write the table that a test holds",
    )
    profile = add(
        "profile",
        "profile one stage with Nsight Compute and explain a dozen of its metrics; without it, show the "
        "recorded ones",
        stages=None,
    )
    profile.add_argument("stages", metavar="STAGE", help="a number or a name, or OPERATION/NAME")
    profile.add_argument("--shape", default="mission", help=f"{SHAPE_HELP}; mission by default")
    profile.add_argument("--causal", action="store_true", help="with the causal mask")
    profile.add_argument("--variant", help="of a stage that has variants (see flashcore stages)")
    profile.add_argument(
        "--save", type=_folder, metavar="DIR", help="the folder of the reports, profiles/ by default"
    )
    reconcile = add(
        "reconcile",
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
        "show how long each unit of a GPU needs for each stage, which limits it, and its share of the time",
    )
    roofline.add_argument(
        "--shape",
        default="mission",
        help=f"{SHAPE_HELP}; also with grouped heads or D_v, 1x32/8x4096x192/128; mission by default",
    )
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
        "draw what artifacts show: ladder, roofline, time budget, lengths, share of peers, backward pass, "
        "time lines of a ring",
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
        "write what README.md and docs/ quote from the recorded runs: sentences, tables, pictures",
        stages=None,
    )
    readme.add_argument("file", nargs="?", type=Path, default=Path("README.md"), help="README.md by default")
    readme.add_argument("--check", action="store_true", help="change nothing; exit 1 and say what differs")
    add("course", "show the lessons, your attempts and passes, and what comes next", stages=None)
    what = "open JupyterLab at a lesson, in your own copy under workspace/"
    lab = commands.add_parser(
        "lab",
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        usage="flashcore lab [-h] [--again] [N] [-- ARGUMENT ...]",
    )
    lab.add_argument(
        "lesson",
        nargs="*",
        metavar="N",
        help="the lesson, the first that you have not passed by default; after -- what JupyterLab takes",
    )
    lab.add_argument("--again", action="store_true", help="begin anew; your former copy is kept beside it")
    lessons = add(
        "lessons",
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
    if text != "-" and Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; the name of a file is accepted")
    if text != "-":
        _refuse_unwritable(Path(text).parent, text)  # now, not after the minutes that the result takes
    return text


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least {FEWEST_ROUNDS} is accepted")
    return int(text)


def _element(text: str) -> "Element":
    from flashcore_numba.core.element import ACCEPTED, ACCEPTED_NAMES

    found = next((each for each in ACCEPTED if each.name == text), None)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are {ACCEPTED_NAMES}")
    return found


def _features(text: str) -> str:
    from flashcore_numba.core.workload import options

    try:
        options(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _tokens(text: str) -> int:
    from flashcore_numba.core.workload import tokens

    return _read(tokens, text)


def _page(text: str) -> int:
    from flashcore_numba.core.workload import page

    return _read(page, text)


def _cache(text: str) -> str | None:
    from flashcore_numba.core.workload import cache

    return _read(cache, text)


def _batch_invariant(text: str) -> bool | None:
    from flashcore_numba.core.workload import batch_invariant

    return _read(batch_invariant, text)


def _read(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _label(text: str) -> str:
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: small letters, digits and single hyphens are accepted")
    from flashcore_numba.core.element import ACCEPTED

    added = ADDED | {element.name: "--element" for element in ACCEPTED}
    if taken := [word for word in text.split("-") if word in added]:
        raise argparse.ArgumentTypeError(
            f"{text!r}: small letters, digits and single hyphens are accepted, but not the word {taken[0]}, "
            f"which {added[taken[0]]} adds"
        )
    return text


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a lesson's number is accepted, for example 5")
    return int(text)


def _number_of(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is accepted")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 0 to {(1 << 32) - 1} is accepted")
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
