"""Open the bundles to serve, and warn of settings without effect."""

from __future__ import annotations

from collections.abc import Mapping

from structlog.typing import FilteringBoundLogger

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from service.core.providers import Placement
from service.core.runtime import OnnxRuntime
from service.settings import Settings, unknown_variables


def load_bundles(settings: Settings) -> list[tuple[BundleFolder, OnnxRuntime]]:
    """Every bundle that the settings name, on the provider that they ask for.

    Raises:
        InvalidBundle: there is none, or one is damaged or does not fit.
    """
    folders = [find_bundle(name) for name in settings.bundle_names()]
    if not folders:
        raise InvalidBundle("no bundle to serve: none is shipped with this copy; name one in RUL_BUNDLES")
    provider, most = settings.provider, settings.max_batch_windows
    return [
        (folder, OnnxRuntime.load(folder, provider=provider, max_batch_windows=most)) for folder in folders
    ]


def warn(log: FilteringBoundLogger, settings: Settings, placements: Mapping[str, Placement]) -> None:
    """Log unknown variables, and each provider fallback once; `placements` are by model name."""
    for name in unknown_variables():
        log.warning("unknown setting", variable=name)
    elsewhere: dict[tuple[str, str], list[str]] = {}
    for model, placed in placements.items():
        if placed.fallback is not None:
            elsewhere.setdefault((placed.providers[0], placed.fallback), []).append(model)
    asked = settings.provider.value
    for (provider, reason), models in elsewhere.items():
        log.warning("provider fallback", asked=asked, provider=provider, reason=reason, models=models)
