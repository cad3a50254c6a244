"""`flashcore check`: stages, or with `--lesson` the file of an exercise."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from flashcore_numba.cli.output import console, give_json, parts, progress_bar
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import CheckResult, no_result
from flashcore_numba.course.lessons import find
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session
from flashcore_numba.evolve import source


def run(args: Namespace) -> int:
    """Check what was named. Returns 1 where anything is wrong or did not run."""
    if args.lesson is not None:
        return _check_answer(args)
    if args.no_record:
        raise ArgumentError("--no-record: only goes with --lesson N; a check of stages records nothing")
    if files := [name for name in args.stages if name.endswith((".py", ".cu"))]:
        raise ArgumentError(f"{files[0]!r} is a file: name the lesson whose exercise it answers, --lesson N")
    if ways := [name.partition("/")[2] for name in args.stages if name.partition("/")[0] == "ring"]:
        return _check_ring(args, ways)
    return _check_stages(args)


def _check_ring(args: Namespace, ways: list[str]) -> int:
    """The ring is no ladder of kernels: its ways are checked by ranks in one process."""
    from flashcore_numba.branches.ring.checking import check
    from flashcore_numba.checks.render import render

    if len(ways) != len(args.stages):
        raise ArgumentError("ring is checked by itself: name no other stage beside it")
    with progress_bar() as progress:
        named = () if "" in ways else ways
        reports = check(named, time_limit=args.time_limit, progress=parts(progress, "checking"))
    if not give_json(args, lambda: [report.as_dict() for report in reports]):
        render(reports, console())
    return 0 if all(report.passed for report in reports) else 1


def _check_stages(args: Namespace) -> int:
    # Here, because an answer is judged in another process and this one needs no Numba for it.
    from flashcore_numba.checks import check
    from flashcore_numba.checks.render import render
    from flashcore_numba.cli.selection import runnable

    stages, not_run = runnable(args)
    if gpu.available():
        stages, not_run = _on_this_gpu(stages)
    reports = []
    if stages:
        with progress_bar() as progress:
            reports = check(stages, time_limit=args.time_limit, progress=parts(progress, "checking"))
    if not give_json(args, lambda: [report.as_dict() for report in reports]) and reports:
        render(reports, console())
    return 0 if not not_run and all(report.passed for report in reports) else 1


def _on_this_gpu(stages: list[Any]) -> tuple[list[Any], list[str]]:
    """Those of the stages that the GPU runs, and sentences, told on stderr, about the others."""
    lacks = {stage: stage.why_not_on(gpu.compute_capability() or (0, 0)) for stage in stages}
    not_run = [f"{stage.label}: not run, {reason}" for stage, reason in lacks.items() if reason]
    for sentence in not_run:
        print(f"flashcore check: {sentence}", file=sys.stderr)
    return [stage for stage in stages if lacks[stage] is None], not_run


def _check_answer(args: Namespace) -> int:
    lesson = find(args.lesson)
    if len(args.stages) != 1:
        raise ArgumentError(f"--lesson {args.lesson}: one file is accepted, not {len(args.stages)}")
    path = Path(args.stages[0])
    job = {"job": "check", "lesson": lesson.key, "file": {"name": path.name, "text": source.read(path)}}
    limit = args.time_limit or process.DEFAULT_TIME_LIMIT
    with progress_bar() as progress:
        reply = process.run(job, limit, parts(progress, f"checking {path.name}"))
    result = CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(lesson.key, reply)
    if not args.no_record:
        session = Session(lesson, Journal())
        result = session.note(result, session.next_command())
    if not give_json(args, result.as_dict):
        result.render(console())
    return 0 if result.passed else 1
