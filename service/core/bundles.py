"""Open the bundles to serve, and warn of settings without effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from service.core.providers import Placement
from service.core.runtime import OnnxRuntime
from service.settings import Settings, unknown_variables


def load_bundles(settings: Settings) -> list[OnnxRuntime]:
    """Load and prove every bundle that the settings name, on the provider that they ask for.

    Raises:
        InvalidBundle: there is none, one cannot be trusted, or two have one name.
    """
    folders = [find_bundle(name) for name in settings.bundle_names()]
    if not folders:
        raise InvalidBundle("no bundle to serve: none is shipped with this copy; name one in RUL_BUNDLES")
    loaded: dict[str, tuple[BundleFolder, OnnxRuntime]] = {}
    for folder in folders:
        runtime = load_bundle(folder, settings)
        name = runtime.manifest.name
        if name in loaded:
            raise InvalidBundle(
                f"{loaded[name][0].path} and {folder.path}: both are named {name}: serve one of them, or "
                "export one with another name"
            )
        loaded[name] = folder, runtime
    return [runtime for _, runtime in loaded.values()]


def load_bundle(folder: BundleFolder, settings: Settings) -> OnnxRuntime:
    """Load and prove one bundle as the settings ask.

    Raises:
        InvalidBundle: it is damaged, altered, not signed as demanded, or answers otherwise on this machine.
    """
    return OnnxRuntime.load(
        folder,
        provider=settings.provider,
        max_batch_windows=settings.max_batch_windows,
        public_key=Path(settings.bundle_public_key) if settings.bundle_public_key else None,
    )


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
