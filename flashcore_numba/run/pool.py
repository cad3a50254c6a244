"""Run independent jobs in worker processes, with progress."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

from cuda_reference.files import MachineError, cache_folder


def run(
    function: Callable[..., Any],
    jobs: Sequence[tuple],
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    label: Callable[[tuple], str] = str,
) -> list[Any]:
    """`[function(*job) for job in jobs]`, spread over processes.

    workers: how many; None is one a core, 1 is this process. progress(done, total, label) follows each job.
    Raises what a job raises, and MachineError where a worker is killed, as where no memory is left.
    """
    workers = min(len(jobs), workers or _cores())
    results: list[Any] = [None] * len(jobs)
    done = 0
    if workers <= 1:
        for i, job in enumerate(jobs):
            results[i] = function(*job)
            done += 1
            if progress:
                progress(done, len(jobs), label(job))
        return results
    # Spawned, not forked: a fork of a process with threads (progress bars, CUDA) may hang.
    cache_folder("cpu")  # what it says of a folder that cannot be written is said once, not by each worker
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="flashcore-workers-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(workers, context, initializer=begin, initargs=(folder,)) as executor,
    ):
        futures: dict[Future, int] = {}
        try:
            with interrupts_held():  # workers start here
                futures |= {executor.submit(function, *job): i for i, job in enumerate(jobs)}
            for future in as_completed(futures):
                i = futures[future]
                results[i] = future.result()
                done += 1
                if progress:
                    progress(done, len(jobs), label(jobs[i]))
        except BaseException as error:
            for worker in list((executor._processes or {}).values()):  # they would finish their part first
                worker.kill()
            executor.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise MachineError(
                    f"a worker process was killed when {done} of {len(jobs)} parts were done: "
                    f"the machine may have too little memory for {workers} at a time"
                ) from None
            raise
    return results


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """A process that starts here never sees Ctrl-C, also while Python imports its own modules; this thread
    sees it at the end.
    """
    resource_tracker.ensure_running()  # it lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(folder: str) -> None:
    """What a worker does first: it leaves Ctrl-C to the process that started it, and goes when that goes.

    Its temporary files are in `folder`, which that process removes, however the worker ends.
    """
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
