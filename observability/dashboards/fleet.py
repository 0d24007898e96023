"""The dashboard "fleet": how urgent is it, and can what is said of it be believed?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.drift_rows import DRIFTING, DRIFTING_COLUMNS, UNSEEN
from observability.dashboards.outcome_rows import BIAS, COVERAGE, ENDS, ERROR
from observability.dashboards.panels import Dashboard, Row
from observability.dashboards.urgency_rows import STATES, URGENCY
from observability.dashboards.variables import VARIABLES
from observability.dashboards.worker_rows import FLEET_MODELS

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
