"""Changes the models of all workers of a service, or of none.

Every worker first checks the candidate and warms it up. If all can serve it, all switch; if one refuses, none
does. A worker that starts later starts with the models of the last change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from export.bundle import InvalidBundle
from service import logs
from service.core.changes import Change, Changed
from service.errors import InvalidCandidate, ModelConflict, NotReady, ServiceError
from service.processes.control import Commands, Control, send
from service.processes.copies import Copies

if TYPE_CHECKING:  # it loads ONNX Runtime, which the supervisor does not need
    from service.models import Catalog

PREPARE_SECONDS: Final = 120.0
"""Maximum seconds for a worker to check a candidate."""
COMMIT_SECONDS: Final = 5.0
"""Maximum seconds for a worker to switch; everything is loaded by then."""


class Changes:
    """The supervisor's part of changes.

    Attributes:
        control: Listens for workers that received a request for a change.
        workers: Numbers of the workers that run.
        serving: Result of the last change, with copies of its bundles.
    """

    def __init__(self, socket: Callable[[int], Path], copies: Copies) -> None:
        """Ask workers at these sockets."""
        self._socket: Final = socket
        self._copies: Final = copies
        self.control: Final = Control({"change": self._change})
        self._quiet: Final = asyncio.Condition()
        self._starting = 0
        self.workers: Final[set[int]] = set()
        self.serving = Changed()

    @asynccontextmanager
    async def none_while_starting(self) -> AsyncGenerator[None]:
        """Start workers only between changes: during one, they would get the old models."""
        async with self._quiet:
            self._starting += 1
        try:
            yield
        finally:
            async with self._quiet:
                self._starting -= 1
                self._quiet.notify_all()

    async def _change(self, change: str) -> str:
        async with self._quiet:
            await self._quiet.wait_for(lambda: not self._starting)
            prepared = await self._all(f"prepare {change}", PREPARE_SECONDS)
            refused = next((changed for changed in prepared if changed.error), None)
            if not prepared:
                refused = Changed.refused(NotReady("no worker answers; try again later"))
            elif refused is None and any(_files(changed) != _files(prepared[0]) for changed in prepared):
                refused = Changed.refused(
                    InvalidCandidate("workers read different files: the bundle changed")
                )
            elif refused is None:
                try:
                    self.keep(prepared[0])
                except InvalidBundle as error:
                    refused = Changed.refused(InvalidCandidate(str(error)))
                except OSError as error:
                    reason = f"the bundle cannot be copied: {error}; free some room, or set TMPDIR"
                    refused = Changed.refused(ModelConflict(reason))
            if refused is not None:
                await self._all("abort", COMMIT_SECONDS)
                return _text(refused)
            for failed in await self._all("commit", COMMIT_SECONDS):
                if failed.error:
                    logs.logger().error("change of models failed in a worker", reason=failed.detail)
            return _text(prepared[0])

    def keep(self, changed: Changed) -> None:
        """Let workers that start from now on serve this, from copies of its bundles.

        Raises:
            InvalidBundle, OSError: a bundle has changed, or cannot be copied.
        """
        self.serving = self._copies.of(changed)
        self._copies.remove_others(self.serving)

    async def _all(self, command: str, seconds: float) -> list[Changed]:
        """Send a command to every worker; skip ended ones, which restart with the last change."""

        async def one(worker: int) -> Changed | None:
            try:
                async with asyncio.timeout(seconds):
                    return msgspec.json.decode(await send(self._socket(worker), command), type=Changed)
            except TimeoutError:
                return Changed.refused(NotReady(f"worker {worker} did not answer within {seconds:g} s"))
            except (OSError, EOFError):
                return None

        replies = await asyncio.gather(*(one(worker) for worker in self.workers))
        return [reply for reply in replies if reply is not None]


class WorkerChanges:
    """A worker's part of changes; a single process makes them by itself."""

    def __init__(self, catalog: Catalog, supervisor: Path | None) -> None:
        """Change this catalog on commands of the supervisor at this socket; None: no supervisor."""
        self._catalog: Final = catalog
        self._supervisor: Final = supervisor
        catalog.everywhere = self.change

    async def change(self, change: Change) -> Changed:
        """Change the serving models in every worker or in none.

        Raises:
            UnknownModel, ModelConflict, InvalidCandidate: it is refused, and nothing has changed.
            NotReady: the supervisor or a worker does not answer.
            RuntimeFailed: a worker failed to prepare it.
        """
        if self._supervisor is None:
            return await self._catalog.change(change)
        try:
            reply = await send(self._supervisor, f"change {_text(change)}")
        except (OSError, EOFError) as error:
            raise NotReady("the supervisor of the workers does not answer") from error
        return msgspec.json.decode(reply, type=Changed).checked()

    def commands(self) -> Commands:
        """Return the handlers of the supervisor's commands."""
        return {"prepare": self._prepare, "commit": self._commit, "abort": self._abort}

    async def _prepare(self, change: str) -> str:
        try:
            return _text(await self._catalog.prepare(msgspec.json.decode(change, type=Change)))
        except Exception as error:  # noqa: BLE001 without a reply it would count as a worker that has ended
            return _refusal(error)

    async def _commit(self) -> str:
        try:
            return _text(self._catalog.commit())
        except Exception as error:  # noqa: BLE001 likewise
            return _refusal(error)

    async def _abort(self) -> str:
        self._catalog.abort()
        return _text(Changed())


def _files(changed: Changed) -> tuple[object, ...]:
    return changed.model, changed.digests


def _refusal(error: Exception) -> str:
    if not isinstance(error, ServiceError):
        logs.logger().error("change of models failed", reason=str(error), exc_info=error)
    return _text(Changed.refused(error))


def _text(of: Change | Changed) -> str:
    return msgspec.json.encode(of).decode()
