"""docs/metrics.md: made from the code, current, and with every metric that was promised."""

from __future__ import annotations

import re

import pytest

from observability.reference import page
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
# The names and labels that users rely on: what is written here does not change within a major version.
PROMISED = """
rul_requests_total{protocol,route,code}
rul_request_duration_seconds{protocol,route}
rul_stage_duration_seconds{stage}
rul_inference_duration_seconds{model,provider}
rul_batch_windows
rul_pending_windows
rul_inflight_requests
rul_rejected_total{reason}
rul_cancelled_total
rul_attention_entropy_ratio{model,head}
rul_attention_peak_weight{model}
rul_attention_out_of_band_total{model,side}
rul_prediction_cycles{model}
rul_interval_width_cycles{model}
rul_state_total{model,state}
rul_novelty_ratio{model}
rul_imputed_fraction
rul_column_drift_psi{model,column}
rul_outcomes_total{kind}
rul_coverage_hits_total{model}
rul_coverage_trials_total{model}
rul_outcome_absolute_error_cycles{model}
rul_model_info{model,version,sha256,provider}
"""


def section(name: str) -> str:
    """What the page says of one metric."""
    _, found, rest = PAGE.partition(f"\n## {name}\n")
    assert found, f"{name} has no section"
    return rest.partition("\n## ")[0]


def sections() -> list[str]:
    return re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)


def test_the_page_is_generated_from_the_code():
    assert page() == PAGE, "run python -m observability.reference"


@pytest.mark.parametrize("promised", PROMISED.split())
def test_a_promised_metric_is_there_with_its_labels(promised):
    name, _, labels = promised.rstrip("}").partition("{")

    described = re.findall(r"^- `(\w+)`: \S", section(name), re.MULTILINE)

    assert set(labels.split(",")) - {""} <= set(described)


def test_entropy_is_counted_in_steps_of_a_twentieth():
    (bounds,) = re.findall(r"^- buckets up to (.+)$", section("rul_attention_entropy_ratio"), re.MULTILINE)

    assert [float(bound) for bound in bounds.split(",")] == [round(step / 20, 2) for step in range(1, 21)]


@pytest.mark.parametrize("name", sections())
def test_a_metric_is_described_with_type_unit_and_values_of_its_labels(name):
    text = section(name).strip()

    assert re.match(r"[A-Z0-9].*\.$", text.splitlines()[0])
    assert re.search(r"^- (counter|gauge|histogram), unit: \S", text, re.MULTILINE)
    assert not re.search(r"^- `\w+`: *$", text, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in sections() if "- histogram" in section(name)])
def test_a_histogram_says_why_its_buckets_are_where_they_are(name):
    assert re.search(r"^- buckets up to \d", section(name), re.MULTILINE)
    assert re.search(r"^- why these: \w.+\.$", section(name), re.MULTILINE)


def test_every_metric_of_the_table_has_its_section():
    assert re.findall(r"^\| \[`(\w+)`\]\(#\1\) ", PAGE, re.MULTILINE) == sections()
