"""The dashboard "service": is it up, is it fast, does it refuse, and on what does it run?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Dashboard
from observability.dashboards.request_rows import (
    BATCHING,
    ERRORS,
    GLANCE,
    LATENCY,
    SATURATION,
    TRAFFIC,
)
from observability.dashboards.variables import VARIABLES
from observability.dashboards.worker_rows import MODELS, STORE, WORKERS

SERVICE: Final = Dashboard(
    uid="rul-service",
    title="rulserve / service",
    description="Requests, errors, latency, batching, saturation, workers, models and the store. "
    "Generated: edit observability/dashboards.",
    variables=VARIABLES,
    rows=(GLANCE, TRAFFIC, ERRORS, LATENCY, BATCHING, SATURATION, WORKERS, MODELS, STORE),
)
