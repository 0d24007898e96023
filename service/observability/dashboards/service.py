"""The dashboard "service": is it up, is it fast, does it refuse, and what do the models answer?"""

from __future__ import annotations

from typing import Final

from service.observability.dashboards.answer_rows import ANSWERS, ATTENTION
from service.observability.dashboards.panels import Dashboard, Variable
from service.observability.dashboards.request_rows import (
    BATCHING,
    ERRORS,
    GLANCE,
    LATENCY,
    SATURATION,
    TRAFFIC,
)

SERVICE: Final = Dashboard(
    uid="rul-service",
    title="rulserve / service",
    description="Requests, errors, latency, batching, saturation, and what the models answer. "
    "Generated: edit service/observability/dashboards.",
    variables=(
        Variable(
            "instance",
            "Instance",
            "label_values(rul_model_info, instance)",
            "Running services, as Prometheus names them.",
        ),
        Variable("model", "Model", "label_values(rul_model_info, model)", "Bundles that are loaded."),
    ),
    rows=(GLANCE, TRAFFIC, ERRORS, LATENCY, BATCHING, SATURATION, ATTENTION, ANSWERS),
)
