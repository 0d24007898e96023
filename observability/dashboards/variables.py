"""What every dashboard can be narrowed to."""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Variable

VARIABLES: Final = (
    Variable(
        "instance",
        "Instance",
        "label_values(rul_model_info, instance)",
        "Running services, as Prometheus names them.",
    ),
    Variable("model", "Model", "label_values(rul_model_info, model)", "Bundles that are loaded."),
)
