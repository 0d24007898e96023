"""The three dashboards: "service", "model quality" and "fleet", each a list of rows.

- service: is it up, is it fast, does it refuse, and on what does it run?
- model quality: what do the models answer, on what does it rest, and did it come true?
- fleet: how urgent is it, and can the answers be believed?
"""

from __future__ import annotations

from typing import Final

from observability.dashboards.answer_rows import ANSWERS, ATTENTION
from observability.dashboards.drift_rows import DRIFT, DRIFTING, DRIFTING_COLUMNS, UNSEEN
from observability.dashboards.outcome_rows import BIAS, COVERAGE, ENDS, ERROR, OUTCOMES
from observability.dashboards.panels import Dashboard, Row, Variable
from observability.dashboards.request_rows import BATCHING, ERRORS, GLANCE, LATENCY, SATURATION, TRAFFIC
from observability.dashboards.urgency_rows import STATES, URGENCY
from observability.dashboards.worker_rows import FLEET_MODELS, MODELS, STORE, WORKERS

VARIABLES: Final = (
    Variable(
        "instance",
        "Instance",
        "label_values(rul_model_info, instance)",
        "Running services, as Prometheus names them.",
    ),
    Variable("model", "Model", "label_values(rul_model_info, model)", "Bundles that are loaded."),
)

SERVICE: Final = Dashboard(
    uid="rul-service",
    title="rulserve / service",
    description="Requests, errors, latency, batching, saturation, workers, models and the store. "
    "Generated: edit observability/dashboards.",
    variables=VARIABLES,
    rows=(GLANCE, TRAFFIC, ERRORS, LATENCY, BATCHING, SATURATION, WORKERS, MODELS, STORE),
)

MODEL_QUALITY: Final = Dashboard(
    uid="rul-model-quality",
    title="rulserve / model quality",
    description="Answers, attention, drift, and what real failures say of the predictions before them. "
    "Generated: edit observability/dashboards.",
    variables=VARIABLES,
    rows=(ANSWERS, ATTENTION, DRIFT, OUTCOMES),
)

FLEET: Final = Dashboard(
    uid="rul-fleet",
    title="rulserve / fleet",
    description="Urgency, states, the most drifting columns, outcomes, models and versions. "
    "Generated: edit observability/dashboards.",
    variables=VARIABLES,
    rows=(
        URGENCY,
        STATES,
        Row("Readings", (DRIFTING_COLUMNS, DRIFTING, UNSEEN)),
        Row("What then happened", (ENDS, ERROR, BIAS, COVERAGE)),
        FLEET_MODELS,
    ),
)

DASHBOARDS: Final = (SERVICE, MODEL_QUALITY, FLEET)
