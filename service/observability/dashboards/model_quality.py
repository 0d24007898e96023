"""The dashboard "model quality": what do the models answer, on what does it rest, and did it come true?"""

from __future__ import annotations

from typing import Final

from service.observability.dashboards.answer_rows import ANSWERS, ATTENTION
from service.observability.dashboards.drift_rows import DRIFT
from service.observability.dashboards.outcome_rows import OUTCOMES
from service.observability.dashboards.panels import Dashboard
from service.observability.dashboards.variables import VARIABLES

MODEL_QUALITY: Final = Dashboard(
    uid="rul-model-quality",
    title="rulserve / model quality",
    description="Answers, attention, drift, and what real failures say of the predictions before them. "
    "Generated: edit service/observability/dashboards.",
    variables=VARIABLES,
    rows=(ANSWERS, ATTENTION, DRIFT, OUTCOMES),
)
