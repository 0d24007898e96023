"""Errors of the service, and what clients see of them.

    RulError
    ├── FrontEndFailed            the process cannot serve; no client is involved
    └── ServiceError              errors that a caller may receive: the keys of `STATUS`
        └── InvalidRequest        the request is wrong; `problems` point at each place
            ├── MalformedBody, InvalidTensor, InvalidWindow, InvalidWindows
            └── OutcomeConflict, CycleConflict, UnitConflict

Code below the transports raises these errors; only the table `STATUS` knows their statuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from google.rpc.code_pb2 import Code

from model.domain import RulError

MAX_PROBLEMS: Final = 100
"""Maximum problems in an answer; the check of a request stops soon after."""


LONGEST_NAME: Final = 256
"""Maximum characters of a unit's name, and of a column's name in an error."""
NAME: Final = re.compile(f"[^\0]{{1,{LONGEST_NAME}}}")
"""Matches a whole unit name; databases do not store NUL."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request, and where (an RFC 6901 JSON pointer)."""

    pointer: str
    code: str
    detail: str

    def below(self, pointer: str) -> Problem:
        """Return the problem with a longer pointer."""
        return Problem(pointer + self.pointer, self.code, self.detail)


class Disconnected(Exception):
    """The caller disconnected before the answer."""


class FrontEndFailed(RulError):
    """The server in front of the service cannot be started, or stopped unexpectedly."""


class ServiceError(RulError):
    """The root of the errors that a caller may receive.

    Its text says what was expected, what came, and where.

    Attributes:
        retry_after_seconds: When to retry a temporary error.
        problems: Places where the request is wrong.
    """

    retry_after_seconds: float | None = None
    problems: tuple[Problem, ...] = ()


class InvalidRequest(ServiceError):
    """A request that cannot be answered as it was sent."""

    def __init__(self, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.problems = tuple(problems)


class MalformedBody(InvalidRequest):
    """The body does not fit its media type or the schema of its route."""


class InvalidTensor(InvalidRequest):
    """A tensor that the protocol or the model cannot read: its name, datatype, shape or a value is wrong."""


class InvalidWindow(InvalidRequest):
    """One window that the model cannot read; pointers are relative to the window."""


class InvalidWindows(InvalidRequest):
    """A request with windows that the model cannot read; pointers begin at the body's root."""


class Unauthenticated(ServiceError):
    """The request needs a valid API key; `basic`: a browser may ask its user for one."""

    def __init__(self, detail: str, *, basic: bool = False) -> None:
        super().__init__(detail)
        self.basic: Final = basic


class Forbidden(ServiceError):
    """The API key does not have the scope of the route; `key` is its name, for the log."""

    def __init__(self, detail: str, *, key: str) -> None:
        super().__init__(detail)
        self.key: Final = key


class ForeignSite(ServiceError):
    """A web page of another site sent the request."""


class UnknownModel(ServiceError):
    """A model that is not loaded."""


class ModelConflict(ServiceError):
    """A change that conflicts with the loaded models."""


class InvalidCandidate(ServiceError):
    """A bundle that is damaged or fails its checks; the loaded models stay."""


class UnknownUnit(ServiceError):
    """The store has no such unit, or not the requested part of it."""


class NoStore(ServiceError):
    """The service stores no predictions: RUL_STORE is false."""


class StoreUnavailable(ServiceError):
    """The database does not answer; predictions continue."""

    retry_after_seconds = 5.0


class OutcomeConflict(InvalidRequest):
    """The unit has a different outcome in the store."""


class CycleConflict(InvalidRequest):
    """The cycle has another stored reading, or is not after the last one of its stream."""


class UnitConflict(InvalidRequest):
    """Another unit already has the new name."""


class StreamIdle(ServiceError):
    """The stream was silent for too long."""


class UnknownRoute(ServiceError):
    """The path does not exist."""


class MethodNotAllowed(ServiceError):
    """The path answers other methods only."""


class TooLarge(ServiceError):
    """A body, a message or a request above a limit."""


class UnsupportedMedia(ServiceError):
    """The route does not read this media type, or the service not this compression."""


class BodyTimeout(ServiceError):
    """The body of the request did not arrive in time."""


class IntakeFull(ServiceError):
    """Unfinished request bodies use all of their memory budget; this body was not read."""

    retry_after_seconds = 1.0


class Overloaded(ServiceError):
    """A queue is full, or the maximum of open streams or queries is reached."""

    retry_after_seconds = 1.0


class NotReady(ServiceError):
    """The service is starting or shutting down."""

    retry_after_seconds = 5.0


class DeadlineExceeded(ServiceError):
    """The answer took longer than the caller or a setting allows."""


class RuntimeFailed(ServiceError):
    """Inference failed. The cause is chained and logged; clients never see it."""


@dataclass(frozen=True, slots=True)
class Status:
    """The public form of an error.

    Attributes:
        http: The status code.
        grpc: The same in gRPC.
        title: For people; the same for every occurrence of the error (RFC 9457).
        code: For programs: the last part of the problem's `type`, and a metric label.
    """

    http: int
    grpc: Code
    title: str
    code: str


_INVALID: Final = Code.INVALID_ARGUMENT

STATUS: Final[dict[type[ServiceError], Status]] = {
    InvalidRequest: Status(422, _INVALID, "The request cannot be answered", "invalid_request"),
    MalformedBody: Status(400, _INVALID, "The body is malformed", "malformed_body"),
    InvalidTensor: Status(400, _INVALID, "A tensor cannot be read", "invalid_tensor"),
    InvalidWindow: Status(422, _INVALID, "The window cannot be read", "invalid_window"),
    InvalidWindows: Status(422, _INVALID, "A window cannot be read", "invalid_windows"),
    Unauthenticated: Status(401, Code.UNAUTHENTICATED, "A valid API key is required", "unauthenticated"),
    Forbidden: Status(403, Code.PERMISSION_DENIED, "The API key lacks a scope", "forbidden"),
    ForeignSite: Status(403, Code.PERMISSION_DENIED, "The request is of another site", "foreign_site"),
    UnknownModel: Status(404, Code.NOT_FOUND, "The model is not loaded", "unknown_model"),
    ModelConflict: Status(409, Code.ABORTED, "The change does not fit the loaded models", "model_conflict"),
    InvalidCandidate: Status(422, _INVALID, "The bundle cannot serve", "invalid_candidate"),
    UnknownUnit: Status(404, Code.NOT_FOUND, "The unit is unknown", "unknown_unit"),
    NoStore: Status(404, Code.UNIMPLEMENTED, "Predictions are not stored", "no_store"),
    StoreUnavailable: Status(503, Code.UNAVAILABLE, "The store is unavailable", "store_unavailable"),
    OutcomeConflict: Status(409, Code.ABORTED, "A different outcome is stored", "outcome_conflict"),
    CycleConflict: Status(409, Code.ABORTED, "The cycle is already recorded", "cycle_conflict"),
    UnitConflict: Status(409, Code.ABORTED, "Another unit has the name", "unit_conflict"),
    # Not DEADLINE_EXCEEDED: the caller was late, not the service.
    StreamIdle: Status(408, Code.ABORTED, "The stream was idle", "stream_idle"),
    UnknownRoute: Status(404, Code.UNIMPLEMENTED, "The path does not exist", "unknown_route"),
    MethodNotAllowed: Status(405, Code.UNIMPLEMENTED, "The method is not allowed", "method_not_allowed"),
    TooLarge: Status(413, Code.RESOURCE_EXHAUSTED, "The request is too large", "too_large"),
    UnsupportedMedia: Status(415, Code.UNIMPLEMENTED, "The media type is not supported", "unsupported_media"),
    BodyTimeout: Status(408, Code.DEADLINE_EXCEEDED, "The body came too slowly", "body_timeout"),
    IntakeFull: Status(429, Code.RESOURCE_EXHAUSTED, "Too many bytes are being received", "intake_full"),
    Overloaded: Status(429, Code.RESOURCE_EXHAUSTED, "The queue is full", "overloaded"),
    NotReady: Status(503, Code.UNAVAILABLE, "The service is not ready", "not_ready"),
    DeadlineExceeded: Status(504, Code.DEADLINE_EXCEEDED, "The deadline passed", "deadline_exceeded"),
    RuntimeFailed: Status(500, Code.INTERNAL, "The service failed", "internal"),
}


def status_of(error: BaseException) -> Status:
    """Return the status of an error; an unexpected error is a fault of the service.

    >>> status_of(KeyError("secret")).http
    500
    """
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return STATUS[RuntimeFailed]


def public(error: BaseException) -> ServiceError:
    """Return the error that a client may see; faults of the service become `RuntimeFailed`."""
    if isinstance(error, ServiceError) and status_of(error) is not STATUS[RuntimeFailed]:
        return error
    return RuntimeFailed("the service failed; its log has the cause under this request id")


def listed(problems: Sequence[Problem], most: int = MAX_PROBLEMS) -> list[Problem]:
    """Return the first problems, and a last one if there are more."""
    if len(problems) <= most:
        return list(problems)
    return [*problems[:most], Problem("", "more_problems", "more problems are not listed")]


def room(found: int) -> int:
    """Return how many more problems to look for after `found` of them: at least one."""
    return max(1, MAX_PROBLEMS + 1 - found)


def bad_name(unit: str, pointer: str = "/unit") -> Problem:
    """Describe a unit name that does not match `NAME`."""
    wanted = f"expected a name of 1 to {LONGEST_NAME} characters without NUL"
    return Problem(pointer, "bad_name", f"{wanted}, got {len(unit)}: {short(unit)}")


def escaped(name: str) -> str:
    """Escape a name for a JSON pointer; cut it at the maximum length.

    >>> escaped("bleed/air")
    'bleed~1air'
    """
    return name[:LONGEST_NAME].replace("~", "~0").replace("/", "~1")


def short(value: object) -> str:
    """Shorten a client's value for an error message."""
    text = repr(value[:80] if isinstance(value, (str, bytes, list, tuple)) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def release_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error: their frames keep the request and its body until the next GC."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
