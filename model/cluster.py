"""One function over many inputs: in this process, or as tasks of a Ray cluster.

Only this module imports Ray. It must not know what the function computes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import typer

from model.domain import RulError
from model.version import VERSION

Item = TypeVar("Item")
Result = TypeVar("Result")

RayAddress = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Ray cluster: HOST:PORT, or auto on a node.")
]
ANSWER_SECONDS: Final = 10.0
"""Maximum seconds to wait for the cluster's port; Ray itself waits for minutes."""


class ClusterFailed(RulError):
    """The Ray cluster does not answer, runs another version, or lost a task too often."""


class Cluster:
    """A connected Ray cluster."""

    def __init__(self, *, threads: int, gpus: int, start: Callable[[], object]) -> None:
        """Set CPU threads and GPUs per task; `start` runs before each task, in its process."""
        self._threads = threads
        self._gpus = gpus
        self._start = start

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Submit all tasks; yield their results in the order of the items.

        Ray repeats the tasks of a lost node. Tasks that are not needed any more are cancelled.

        Raises:
            ClusterFailed: the cluster lost a task more than three times, or a node has another version.
        """
        import ray  # noqa: PLC0415 an extra
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

        # max_calls=0: a process runs many tasks, also on a GPU, and keeps what it has loaded.
        task: Any = ray.remote(num_cpus=self._threads, num_gpus=self._gpus, max_calls=0)(_call)
        shared = ray.put((VERSION, self._start, work))
        running = [task.remote(shared, item) for item in items]
        try:
            for result in running:
                yield ray.get(result)
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise ClusterFailed(f"the Ray cluster lost a task: {error}") from None
        finally:
            unneeded = ray.wait(running, num_returns=len(running), timeout=0)[1] if running else []
            for result in unneeded:
                ray.cancel(result, force=True)


def mapped(
    work: Callable[[Item], Result], items: Iterable[Item], cluster: Cluster | None
) -> Iterator[Result]:
    """Yield the result of each item in order: in this process, one at a time, or by tasks of the cluster."""
    return map(work, items) if cluster is None else cluster.map(work, items)


@contextmanager
def connected(
    address: str | None, *, threads: int, start: Callable[[], object], use_gpus: bool = False
) -> Generator[Cluster | None]:
    """Connect to the cluster at HOST:PORT, or `auto` on one of its nodes; None without an address.

    `threads` and `start` as in `Cluster`. With `use_gpus` each task has a GPU, if the cluster has any.

    Raises:
        ClusterFailed: no cluster answers.
    """
    if address is None:
        yield None
        return
    import ray  # noqa: PLC0415 an extra

    try:
        place = urlsplit(address if "//" in address else f"//{address}")
        if place.port is not None:
            socket.create_connection((place.hostname or "", place.port), timeout=ANSWER_SECONDS).close()
        ray.init(address, configure_logging=False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, SystemExit) as error:  # SystemExit: the port is not Ray's
        raise ClusterFailed(f"--ray {address}: expected a running Ray cluster: {error}") from None
    try:
        gpus = int(use_gpus and "GPU" in ray.cluster_resources())
        yield Cluster(threads=threads, gpus=gpus, start=start)
    finally:
        ray.shutdown()


def _call(shared: tuple[str, Callable[[], object], Callable[[Item], Result]], item: Item) -> Result:
    """Run one task on its node."""
    version, start, work = shared
    if version != VERSION:
        raise ClusterFailed(
            f"a node has rulserve {VERSION}, this command is of {version}: install one version"
        )
    start()
    return work(item)
