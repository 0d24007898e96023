"""Open the bundles to serve, and warn of settings without effect."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from structlog.typing import FilteringBoundLogger

from export.bundle import BundleFolder, Golden, InvalidBundle, find_bundle
from service.core.providers import Placement
from service.core.runtime import OnnxRuntime, replay_golden
from service.settings import Settings, unknown_variables


def load_bundles(settings: Settings) -> list[tuple[BundleFolder, OnnxRuntime]]:
    """Every bundle that the settings name, on the provider that they ask for.

    Raises:
        InvalidBundle: there is none, or one is damaged or does not fit.
    """
    folders = [find_bundle(name) for name in settings.bundle_names()]
    if not folders:
        raise InvalidBundle("no bundle to serve: none is shipped with this copy; name one in RUL_BUNDLES")
    return [(folder, load_bundle(folder, settings)) for folder in folders]


def load_bundle(folder: BundleFolder, settings: Settings) -> OnnxRuntime:
    """Load one bundle as the settings ask.

    Raises:
        InvalidBundle: it is damaged or does not fit.
    """
    return OnnxRuntime.load(folder, provider=settings.provider, max_batch_windows=settings.max_batch_windows)


def open_candidate(settings: Settings, folder: BundleFolder) -> OnnxRuntime:
    """Open a bundle that is to serve beside others: its promises and golden windows hold, and it is warm.

    Raises:
        InvalidBundle: it is damaged, does not fit, or breaks a promise.
    """
    from export.promises import measure_promises  # noqa: PLC0415 only a change of the models needs it
    from export.session import open_bundle  # noqa: PLC0415 as above

    runtime, golden = load_bundle(folder, settings), Golden.load(folder.golden)
    replay_golden(runtime, golden)
    for finding in measure_promises(*open_bundle(folder)):
        if not finding.kept:
            raise InvalidBundle(
                f"{folder.path}: {finding.promise}: {finding.worst:.3g}, at most {finding.allowed:.3g} is "
                "promised: export the model again"
            )
    for windows in {1, 2, settings.max_batch_windows}:
        rows = np.arange(windows) % len(golden.lengths)
        runtime.run(golden.readings[rows], golden.lengths[rows], golden.last_cycle[rows])
    return runtime


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
