"""Label values: closed sets, so that no request can create a new time series."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from google.rpc.code_pb2 import Code

from service.errors import (
    STATUS,
    BodyTimeout,
    CycleConflict,
    DeadlineExceeded,
    Forbidden,
    IntakeFull,
    InvalidRequest,
    NotReady,
    OutcomeConflict,
    Overloaded,
    ServiceError,
    Status,
    TooLarge,
    Unauthenticated,
    UnitConflict,
)


class Transport(StrEnum):
    """The transport of a request."""

    HTTP = "http"
    GRPC = "grpc"


class Route(StrEnum):
    """The route of a request: a pattern, never a path."""

    PREDICT = "/v1/predict"
    EXPLAIN = "/v1/explain"
    MODELS = "/v1/models"
    MODEL = "/v1/models/{name}"
    SHADOW = "/v1/models/{name}/shadow"
    SIMULATED = "/v1/models/{name}/simulated"
    CANARY = "/v1/models/{name}/canary"
    MONITORING = "/v1/models/{name}/monitoring"
    LIVEZ = "/livez"
    READYZ = "/readyz"
    METRICS = "/metrics"
    OUTCOMES = "/v1/units/{unit}/outcomes"
    CYCLES = "/v1/units/{unit}/cycles"
    EXPLANATION = "/v1/units/{unit}/explanation"
    RENAME = "/v1/units/{unit}/rename"
    DECISION = "/v1/units/{unit}/decision"
    UNIT = "/v1/units/{unit}"
    UNITS = "/v1/units"
    OPENAPI = "/openapi.json"
    DOCS = "/docs"
    PAGE = "/page/{name}"
    EVENTS = "/v1/events"
    V2 = "/v2"
    V2_LIVE = "/v2/health/live"
    V2_READY = "/v2/health/ready"
    V2_MODEL = "/v2/models/{name}"
    V2_MODEL_READY = "/v2/models/{name}/ready"
    V2_INFER = "/v2/models/{name}/infer"
    V2_INDEX = "/v2/repository/index"
    GRPC_PREDICT = "rul.v1.RulService/Predict"
    GRPC_APPEND = "rul.v1.RulService/AppendCycles"
    GRPC_STREAM = "rul.v1.RulService/PredictStream"
    GRPC_READING = "rul.v1.RulService/PredictStream/reading"
    GRPC_LIST_MODELS = "rul.v1.RulService/ListModels"
    GRPC_GET_MODEL = "rul.v1.RulService/GetModel"
    GRPC_INFER = "inference.GRPCInferenceService/ModelInfer"
    GRPC_INFERENCE = "inference.GRPCInferenceService"
    OTHER = "other"

    @property
    def transport(self) -> Transport | None:
        """Return the route's transport; None for both."""
        if self is Route.OTHER:
            return None
        return Transport.HTTP if self.startswith("/") else Transport.GRPC


PREDICTS: Final = frozenset(
    {
        Route.PREDICT, Route.EXPLAIN, Route.GRPC_PREDICT, Route.V2_INFER, Route.GRPC_INFER, Route.GRPC_STREAM,
        Route.GRPC_READING, Route.CYCLES, Route.GRPC_APPEND,
    }
)  # fmt: skip


class Stage(StrEnum):
    """A stage of a request."""

    DECODE = "decode"
    STORE = "store"
    QUEUE = "queue"
    INFERENCE = "inference"
    EXPLAIN = "explain"
    ENCODE = "encode"


class Side(StrEnum):
    """Side on which attention left its reference band."""

    LOW = "low"
    HIGH = "high"


REJECTED: Final[dict[type[ServiceError], str]] = {
    Overloaded: "queue_full",
    BodyTimeout: "body_timeout",
    IntakeFull: "intake_full",
    NotReady: "not_ready",
    DeadlineExceeded: "deadline",
    TooLarge: "too_large",
    InvalidRequest: "invalid",
    CycleConflict: "conflict",
    OutcomeConflict: "conflict",
    UnitConflict: "conflict",
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
}

REFUSED_BY_ENVOY: Final = {
    "downstream_global_cx_overflow": "connections",
    "downstream_cx_protocol_error": "protocol_error",
    "downstream_rq_header_timeout": "head_timeout",
    "downstream_rq_timeout": "body_timeout",
    "denied": "invalid",
}
"""Reasons of what Envoy refuses by itself, by its counter."""

CLIENT_GONE: Final = {Transport.HTTP: "499", Transport.GRPC: Code.Name(Code.CANCELLED)}
"""Status label of a request whose caller disconnected before the response."""

SUCCESS: Final = {Transport.HTTP: "200", Transport.GRPC: Code.Name(Code.OK)}


def code_of(transport: Transport, status: Status) -> str:
    """Return the code label of a status."""
    return str(status.http) if transport is Transport.HTTP else Code.Name(status.grpc)


def codes(transport: Transport) -> list[str]:
    """Return every code label that a request may have."""
    errors = {code_of(transport, status) for status in STATUS.values()}
    return [SUCCESS[transport], *sorted(errors | {CLIENT_GONE[transport]})]
