"""The dashboard "fleet": how urgent is it, and can what is said of it be believed?"""

from __future__ import annotations

from typing import Final

from service.observability.dashboards.drift_rows import DRIFTING, DRIFTING_COLUMNS, UNSEEN
from service.observability.dashboards.outcome_rows import BIAS, COVERAGE, ENDS, ERROR
from service.observability.dashboards.panels import Dashboard, Row
from service.observability.dashboards.urgency_rows import STATES, URGENCY
from service.observability.dashboards.variables import VARIABLES
from service.observability.dashboards.worker_rows import FLEET_MODELS

FLEET: Final = Dashboard(
    uid="rul-fleet",
    title="rulserve / fleet",
    description="Urgency, states, the most drifting columns, outcomes, models and versions. "
    "Generated: edit service/observability/dashboards.",
    variables=VARIABLES,
    rows=(
        URGENCY,
        STATES,
        Row("Readings", (DRIFTING_COLUMNS, DRIFTING, UNSEEN)),
        Row("What then happened", (ENDS, ERROR, BIAS, COVERAGE)),
        FLEET_MODELS,
    ),
)
