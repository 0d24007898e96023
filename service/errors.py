"""What can go wrong while serving, and what a client is told of it.

    RulError
    ├── FrontEndFailed          the process could not serve at all; no client to tell
    └── ServiceError
        ├── InvalidRequest      what was sent cannot be answered; `problems` point at it
        │   ├── MalformedBody
        │   ├── InvalidTensor   of the Open Inference Protocol
        │   ├── InvalidWindow   one window, pointers relative to it
        │   └── InvalidWindows  a whole request, pointers from its root
        ├── Unauthenticated
        ├── Forbidden
        ├── UnknownModel
        ├── UnknownUnit         nothing was predicted of it
        ├── NoStore             predictions are not kept
        ├── StoreUnavailable    retry_after_seconds
        ├── CycleConflict       a reading of a recorded cycle
        ├── OutcomeConflict     another outcome of the unit is known
        ├── StreamIdle
        ├── UnknownRoute
        ├── MethodNotAllowed
        ├── TooLarge
        ├── UnsupportedMedia
        ├── Overloaded          retry_after_seconds
        ├── NotReady            retry_after_seconds
        ├── DeadlineExceeded
        └── RuntimeFailed       our fault: its text stays in our log

Code below the transports raises these and knows no status; `STATUS` is the one table that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from grpc import StatusCode

from model.domain import RulError

MAX_PROBLEMS: Final = 100
"""More than these are counted, not listed: an answer must not outgrow the request it refuses."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request, and where (an RFC 6901 JSON pointer)."""

    pointer: str
    code: str
    detail: str

    def below(self, pointer: str) -> Problem:
        """The same problem, seen from further up."""
        return Problem(pointer + self.pointer, self.code, self.detail)


class Disconnected(Exception):
    """The caller has left: nobody waits for an answer."""


class FrontEndFailed(RulError):
    """The server in front of the service cannot be started, or stopped by itself."""


class ServiceError(RulError):
    """The root of what a caller of the service may be answered."""

    retry_after_seconds: float | None = None

    @property
    def detail(self) -> str:
        """What was expected, what came, and where."""
        return str(self)


class InvalidRequest(ServiceError):
    """A request that is well-formed and cannot be answered."""

    def __init__(self, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.problems: Final = tuple(problems)


class MalformedBody(InvalidRequest):
    """A body that is not what its media type says, or not the shape that the route reads."""


class InvalidTensor(InvalidRequest):
    """A tensor that the protocol or the model cannot read: its name, datatype, shape or a value is wrong."""


class InvalidWindow(InvalidRequest):
    """One window that the model cannot read."""


class InvalidWindows(InvalidRequest):
    """A request with windows that the model cannot read."""


class Unauthenticated(ServiceError):
    """No API key where one is asked for."""


class Forbidden(ServiceError):
    """An API key that is not one of ours."""


class UnknownModel(ServiceError):
    """A model that is not loaded."""


class UnknownUnit(ServiceError):
    """A unit of which no prediction is stored."""


class NoStore(ServiceError):
    """The service keeps no predictions: RUL_STORE is off."""


class StoreUnavailable(ServiceError):
    """The database of predictions is away; predictions themselves go on."""

    retry_after_seconds = 5.0


class OutcomeConflict(InvalidRequest):
    """An outcome of a unit of which another one is known."""


class CycleConflict(ServiceError):
    """A reading whose cycle is not after the unit's last one."""


class StreamIdle(ServiceError):
    """A stream on which nothing came for too long."""


class UnknownRoute(ServiceError):
    """A path that nothing answers."""


class MethodNotAllowed(ServiceError):
    """A path that answers other methods."""


class TooLarge(ServiceError):
    """A body, a request or a window above a limit of the settings."""


class UnsupportedMedia(ServiceError):
    """A media type that the route does not read."""


class Overloaded(ServiceError):
    """The queue is full: this request was not begun."""

    retry_after_seconds = 1.0


class NotReady(ServiceError):
    """The service is starting or shutting down."""

    retry_after_seconds = 5.0


class DeadlineExceeded(ServiceError):
    """The answer did not come in the time that the caller, or the settings, gave it."""


class RuntimeFailed(ServiceError):
    """Inference failed. The cause is chained and logged; clients never see it."""


@dataclass(frozen=True, slots=True)
class Status:
    """How an error looks from outside.

    Attributes:
        http: The status code.
        grpc: The same in gRPC.
        title: The same for every occurrence of the error (RFC 9457).
        code: The same for programs: the last part of the problem's `type`, and a metric label.
    """

    http: int
    grpc: StatusCode
    title: str
    code: str


_INVALID: Final = StatusCode.INVALID_ARGUMENT

STATUS: Final[dict[type[ServiceError], Status]] = {
    InvalidRequest: Status(422, _INVALID, "The request cannot be answered", "invalid_request"),
    MalformedBody: Status(400, _INVALID, "The body is malformed", "malformed_body"),
    InvalidTensor: Status(400, _INVALID, "A tensor cannot be read", "invalid_tensor"),
    InvalidWindow: Status(422, _INVALID, "The window cannot be read", "invalid_window"),
    InvalidWindows: Status(422, _INVALID, "A window cannot be read", "invalid_windows"),
    Unauthenticated: Status(401, StatusCode.UNAUTHENTICATED, "An API key is needed", "unauthenticated"),
    Forbidden: Status(403, StatusCode.PERMISSION_DENIED, "The API key is not accepted", "forbidden"),
    UnknownModel: Status(404, StatusCode.NOT_FOUND, "The model is not loaded", "unknown_model"),
    UnknownUnit: Status(404, StatusCode.NOT_FOUND, "The unit is not known", "unknown_unit"),
    NoStore: Status(404, StatusCode.UNIMPLEMENTED, "Predictions are not kept", "no_store"),
    StoreUnavailable: Status(503, StatusCode.UNAVAILABLE, "The store is away", "store_unavailable"),
    OutcomeConflict: Status(409, StatusCode.ABORTED, "Another outcome is known", "outcome_conflict"),
    CycleConflict: Status(409, StatusCode.ABORTED, "The cycle has been already", "cycle_conflict"),
    # Not DEADLINE_EXCEEDED: it is the caller that was late.
    StreamIdle: Status(408, StatusCode.ABORTED, "The stream was idle", "stream_idle"),
    UnknownRoute: Status(404, StatusCode.UNIMPLEMENTED, "Nothing answers here", "unknown_route"),
    MethodNotAllowed: Status(
        405, StatusCode.UNIMPLEMENTED, "The method is not allowed here", "method_not_allowed"
    ),
    TooLarge: Status(413, StatusCode.RESOURCE_EXHAUSTED, "The request is too large", "too_large"),
    UnsupportedMedia: Status(415, _INVALID, "The media type is not supported", "unsupported_media"),
    Overloaded: Status(429, StatusCode.RESOURCE_EXHAUSTED, "The queue is full", "overloaded"),
    NotReady: Status(503, StatusCode.UNAVAILABLE, "The service is not ready", "not_ready"),
    DeadlineExceeded: Status(504, StatusCode.DEADLINE_EXCEEDED, "The deadline passed", "deadline_exceeded"),
    RuntimeFailed: Status(500, StatusCode.INTERNAL, "The service failed", "internal"),
}


def status_of(error: BaseException) -> Status:
    """The status of any error: what is not ours is our fault all the same.

    >>> status_of(KeyError("secret")).http
    500
    """
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return STATUS[RuntimeFailed]


def public_detail(error: BaseException) -> str:
    """What a client may read of an error: nothing of what is inside, where the fault is ours."""
    if isinstance(error, ServiceError) and status_of(error).http != STATUS[RuntimeFailed].http:
        return error.detail
    return "the service failed to answer; its log says why, under this request's id"


def problems_of(error: BaseException) -> tuple[Problem, ...]:
    """Where a request is wrong; nothing for errors that do not lie in the request."""
    return error.problems if isinstance(error, InvalidRequest) else ()


def retry_after_seconds(error: BaseException) -> float | None:
    """When to come back, for errors that pass."""
    return error.retry_after_seconds if isinstance(error, ServiceError) else None


def listed(problems: Sequence[Problem], most: int = MAX_PROBLEMS) -> list[Problem]:
    """The first problems, and how many more there are."""
    if len(problems) <= most:
        return list(problems)
    left_out = len(problems) - most
    more = Problem("", "more_problems", f"{left_out} more problems are not listed")
    return [*problems[:most], more]


def escaped(name: str) -> str:
    """A name as one part of a JSON pointer.

    >>> escaped("bleed/air")
    'bleed~1air'
    """
    return name.replace("~", "~0").replace("/", "~1")
