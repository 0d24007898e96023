"""The dashboard "model quality": what do the models answer, on what does it rest, and did it come true?"""

from __future__ import annotations

from typing import Final

from observability.dashboards.answer_rows import ANSWERS, ATTENTION
from observability.dashboards.drift_rows import DRIFT
from observability.dashboards.outcome_rows import OUTCOMES
from observability.dashboards.panels import Dashboard
from observability.dashboards.variables import VARIABLES

MODEL_QUALITY: Final = Dashboard(
    uid="rul-model-quality",
    title="rulserve / model quality",
    description="Answers, attention, drift, and what real failures say of the predictions before them. "
    "Generated: edit observability/dashboards.",
    variables=VARIABLES,
    rows=(ANSWERS, ATTENTION, DRIFT, OUTCOMES),
)
