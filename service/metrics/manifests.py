"""What the loaded bundles say of themselves, as gauges: answers are held against it.

Each worker has loaded the same bundles, so any of them tells for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from service.core.runtime import Runtime
from service.labels import Side


def declare_manifests(registry: CollectorRegistry, models: Sequence[Runtime]) -> None:
    """One sample for each model, and for each of its heads whose band it knows."""
    info = Gauge(
        "rul_model_info",
        "1 for each loaded model: its version, file digest, the provider that serves and their whole order.",
        ["model", "version", "sha256", "provider", "providers"],
        registry=registry,
    )
    coverage = Gauge(
        "rul_nominal_coverage_ratio",
        "Share of outcomes that the model's intervals are made to hold.",
        ["model"],
        registry=registry,
    )
    band = Gauge(
        "rul_attention_entropy_band_ratio",
        "Ends of the reference band of the attention entropy ratio; 0.5 % of windows are beyond each.",
        ["model", "head", "side"],
        registry=registry,
    )
    for model in models:
        manifest = model.manifest
        order = ">".join(model.placement.providers)
        info.labels(manifest.name, manifest.version, model.sha256, model.provider, order).set(1)
        coverage.labels(manifest.name).set(manifest.nominal_coverage)
        for reference in manifest.entropy:
            band.labels(manifest.name, reference.head, Side.LOW.value).set(reference.low)
            band.labels(manifest.name, reference.head, Side.HIGH.value).set(reference.high)
