"""Scores parts in processes of this machine, one a core."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, Final

import pyarrow as pa

from model.domain import RulError
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.plan import Part
from rul_client.commands.score.scorer import Scorer, Watch, score_part

POLL_SECONDS: Final = 0.25


class WorkerDied(RulError):
    """A process ended without an answer."""


class Processes:
    """Scores parts in some processes; `score` calls it as its runner."""

    def __init__(self, count: int) -> None:
        self._count: Final = count

    def __call__(self, job: Job, parts: Sequence[Part], watch: Watch) -> None:
        """Score parts.

        Raises:
            WorkerDied: a process died; finished parts are kept.
            RulError: as `score_part` says, for the first part that fails.
        """
        # Spawned, not forked: ONNX Runtime and pyarrow have threads, and a fork has none of them.
        context = multiprocessing.get_context("spawn")
        done: Any = context.Value("q", 0)
        pool = ProcessPoolExecutor(min(self._count, len(parts)), context, _begin, (done,))
        running: set[Future[Tally]] = {pool.submit(_score, job, part) for part in parts}
        told = 0
        try:
            while running:
                ended, running = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                count = int(done.value)
                watch(count - told)
                told = count
                for each in ended:
                    each.result()
        except BrokenProcessPool as error:
            raise WorkerDied(
                "a process of this run was killed, perhaps for its memory: run the same command again, "
                "finished parts are kept; fewer --workers need less memory"
            ) from error
        finally:
            pool.shutdown(wait=not running, cancel_futures=True)
            if running:  # a failure or Ctrl+C: what runs now would end up unread
                for process in multiprocessing.active_children():
                    process.terminate()


_done: Any = None


def _begin(done: Any) -> None:  # noqa: ANN401 a shared number, untyped
    """Prepare a process: it ends with its parent, which alone hears Ctrl+C."""
    global _done  # noqa: PLW0603 set once, before any part
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def scorer_of(job: Job) -> Scorer:
    """Open a job once in this process."""
    return Scorer(job)


def _score(job: Job, part: Part) -> Tally:
    return score_part(part, scorer_of(job), _add)


def _add(windows: int) -> None:
    with _done.get_lock():
        _done.value += windows
