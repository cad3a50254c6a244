"""Times of configurations, each run in a process of its own that is stopped where a kernel does not end."""

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from cuda_reference.files import MachineError
from flashcore_numba.core.workload import Workload
from flashcore_numba.run.pool import begin, interrupts_held
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages.runs import Run
from flashcore_numba.tune.funnel import stand_in
from flashcore_numba.tune.spaces import SPACES, Config, name_of

SECONDS_EACH, SECONDS_BESIDE = 4.0, 60.0  # of one configuration, and of inputs and their right answer


def timing(
    key: int | str, workload: Workload, configs: Sequence[Config], rounds: int
) -> list[dict[str, dict[str, Any]]]:
    """Of each run, by name: `time` in milliseconds, `rounds_us`, and whether the timed output was `right`, or
    `failed`.

    All take turns in one run. Where that does not end in time, halves of them run apart, so that the one at
    fault is alone in the end. The last configuration, which the others are compared with, is in every run,
    with its times there.
    """
    found = _apart(key, workload, configs, rounds)
    if found is not None:
        return [found]
    *others, yardstick = configs
    failed = {"failed": f"it did not end in {_seconds(configs):.0f} seconds, or took its process down"}
    if not others:
        return [{name_of(yardstick): failed}]
    if len(others) == 1:
        (alone,) = timing(key, workload, [yardstick], rounds)
        return [{name_of(others[0]): failed} | alone]
    half = len(others) // 2
    halves = ([*some, yardstick] for some in (others[:half], others[half:]))
    return [run for some in halves for run in timing(key, workload, some, rounds)]


def _seconds(configs: Sequence[Config]) -> float:
    return SECONDS_BESIDE + SECONDS_EACH * len(configs)


def _apart(
    key: int | str, workload: Workload, configs: Sequence[Config], rounds: int
) -> dict[str, dict[str, Any]] | None:
    return apart(measured, (key, workload, list(configs), rounds), _seconds(configs))


def apart(function: Callable[..., Any], arguments: tuple, seconds: float) -> Any:
    """`function(*arguments)` in another process; None where it has not ended in time, or has ended without a
    result. The process is gone when this returns. Raises the function's MachineError: no kernel is to blame.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="flashcore-timing-", ignore_cleanup_errors=True) as folder:
        process = context.Process(target=_send, args=(theirs, function, arguments, folder))
        try:
            with interrupts_held():
                process.start()
            theirs.close()
            found = mine.recv() if mine.poll(seconds) else None
        except EOFError:  # a fault took the process with it
            return None
        finally:
            process.kill()
            process.join()
    if isinstance(found, MachineError):
        raise found
    return found


def _send(pipe: Any, function: Callable[..., Any], arguments: tuple, folder: str) -> None:
    begin(folder)
    try:
        pipe.send(function(*arguments))
    except MachineError as error:
        pipe.send(error)


def measured(
    key: int | str, workload: Workload, configs: Sequence[Config], rounds: int
) -> dict[str, dict[str, Any]]:
    """`timing` in this process, by the clock of `flashcore compare`. Needs a GPU."""
    from flashcore_numba.measure.compare import timed

    space = SPACES[key]
    problem = stand_in(space, workload)
    stages = {name_of(config): space.configured(config, problem) for config in configs}
    quiet = Progress(Console(quiet=True))
    runs = [Run(stage, None) for stage in stages.values()]
    shape = timed([([workload], runs)], rounds, quiet, alone=True)["shapes"][0]
    by_label = {entry["label"]: entry for entry in shape["entries"]}
    found: dict[str, dict[str, Any]] = {}
    for name, stage in stages.items():
        entry = by_label.get(stage.label)
        if entry is None:
            found[name] = {"failed": shape["absent"].get(stage.label, "it did not run")}
            continue
        found[name] = {
            "time": entry["gpu_us"]["p50"] / 1000,
            "rounds_us": entry["gpu_us"]["rounds_us"],
            "right": entry["error"]["right"],
        }
    return found
