"""What asking a server has in common, whatever the protocol: which model, how much at once, how patiently.

Whatever a server refuses becomes one `RemoteFailed` with one clear line. What passes (a full queue,
a server that starts, a connection that breaks) is asked again, a bounded number of times.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import ValidationError

from export.bundle import Manifest
from model.domain import RulError
from service.core.queries import ModelName

AT_ONCE: Final = 64
IN_FLIGHT: Final = 4
REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Half of what a server reads by default: wide or long windows go fewer at a time."""
ATTEMPTS: Final = 6
LONGEST_PAUSE_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 60.0

KEY_HINT: Final = " (--api-key, or RUL_API_KEY)"

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[None]]


class RemoteFailed(RulError):
    """A server that cannot be reached, or that refused to answer."""


class ComeBack(Exception):
    """It may go better later: after these seconds, or after a pause of our own choice."""

    def __init__(self, failure: RemoteFailed, after_seconds: float | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.after_seconds = after_seconds


async def patiently(call: Callable[[], Awaitable[Result]], *, sleep: Sleep) -> Result:
    """Call until it does not ask to come back, `ATTEMPTS` times at most.

    Raises:
        RemoteFailed: it will not get better, or has not.
    """
    for attempt in range(ATTEMPTS):
        try:
            return await call()
        except ComeBack as come_back:
            if attempt == ATTEMPTS - 1:
                raise RemoteFailed(f"{come_back.failure}; asked {ATTEMPTS} times") from come_back
            wanted = come_back.after_seconds
            await sleep(min(LONGEST_PAUSE_SECONDS, 0.5 * 2.0**attempt if wanted is None else wanted))
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What a server says of a model: by which name to ask for it, and its manifest."""

    name: ModelName
    manifest: Manifest


def at_once(manifest: Manifest, *, bytes_a_reading: int) -> int:
    """How many windows fit in a request."""
    window_bytes = manifest.context * len(manifest.columns) * bytes_a_reading
    return max(1, min(AT_ONCE, REQUEST_BYTES // window_bytes))


def chosen(models: Sequence[RemoteModel], wanted: str | None, url: str) -> RemoteModel:
    """The model to ask: the one that was named, or the only one.

    Raises:
        RemoteFailed: there is no such model, or there are several and none was named.
    """
    names = ", ".join(sorted(model.name.name for model in models)) or "none"
    if wanted is None and len(models) == 1:
        return models[0]
    if wanted is None:
        raise RemoteFailed(f"{url} serves several models ({names}): choose one with --model")
    for model in models:
        if model.name.name == wanted:
            return model
    raise RemoteFailed(f"{url} serves no model {wanted!r}, only {names}")


def manifest_of(text: str | bytes, url: str) -> Manifest:
    """A manifest as a server sent it.

    Raises:
        RemoteFailed: this version of the project cannot read it.
    """
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise RemoteFailed(
            f"{url}: its manifest cannot be read here: another version of rulserve? {error.error_count()} "
            f"problems, the first: {error.errors()[0]['msg']}"
        ) from error


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, to which no proxy leads."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
