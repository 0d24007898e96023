"""Open the bundles to serve, and warn of settings without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from structlog.typing import FilteringBoundLogger

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from export.seal import read_bundle
from model.decision import read_costs
from service.core.providers import Placement
from service.core.runtime import OnnxRuntime
from service.settings import Settings, unknown_variables


def load_bundles(settings: Settings, paths: Sequence[str] = ()) -> list[tuple[BundleFolder, OnnxRuntime]]:
    """Load and check the bundles at these paths, else those of the settings, on the settings' provider.

    Raises:
        InvalidBundle: there is none, one cannot be trusted, or two have one name.
    """
    folders = [find_bundle(name) for name in paths or settings.bundle_names()]
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
    return [*loaded.values()]


def load_bundle(folder: BundleFolder, settings: Settings) -> OnnxRuntime:
    """Load and check one bundle, as the settings demand.

    Raises:
        InvalidBundle: it is damaged, altered, not signed as required, or answers differently on this machine.
    """
    return OnnxRuntime.load(
        folder,
        provider=settings.provider,
        max_batch_windows=settings.max_batch_windows,
        public_key=settings.bundle_public_key,
    )


def open_candidate(folder: BundleFolder, settings: Settings) -> OnnxRuntime:
    """Load a bundle at run time: also check its promises and warm it up.

    Raises:
        InvalidBundle: as `load_bundle`, or it breaks a promise, or changed meanwhile.
    """
    from export.promises import measure_promises  # noqa: PLC0415 only a change of the models needs it
    from export.session import open_contents  # noqa: PLC0415 as above

    runtime = load_bundle(folder, settings)
    contents = read_bundle(folder, public_key=settings.bundle_public_key)
    if contents.sha256 != runtime.sha256:
        raise InvalidBundle(f"{folder.path}: it changed while it was read, try again")
    session, manifest, golden = open_contents(folder, contents)
    for finding in measure_promises(session, manifest):
        if not finding.kept:
            raise InvalidBundle(f"{folder.path}: {finding}: export the model again")
    for windows in {1, 2, settings.max_batch_windows}:
        rows = np.arange(windows) % len(golden.lengths)
        runtime.run(golden.readings[rows], golden.lengths[rows], golden.last_cycle[rows])
    return runtime


def warn(log: FilteringBoundLogger, settings: Settings, placements: Mapping[str, Placement]) -> None:
    """Log settings without effect, and each provider fallback once; `placements` are by model name."""
    for name in unknown_variables():
        log.warning("unknown setting", variable=name)
    if unused := sorted({*read_costs(settings.costs)} - {"", *placements}):
        log.warning("costs unused", models=unused, reason="RUL_COSTS names models that are not loaded")
    if settings.bundles_watch is not None and not settings.bundles_watch.is_dir():
        log.warning("watched folder missing", folder=str(settings.bundles_watch))
    elsewhere: dict[tuple[str, str], list[str]] = {}
    for model, placed in placements.items():
        if placed.fallback is not None:
            elsewhere.setdefault((placed.providers[0], placed.fallback), []).append(model)
    asked = settings.provider.value
    for (provider, reason), models in elsewhere.items():
        log.warning("provider fallback", asked=asked, provider=provider, reason=reason, models=models)
