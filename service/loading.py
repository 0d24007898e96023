"""Which bundles to serve, opened: what start-up does first, and what is tried before a server starts."""

from __future__ import annotations

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from service.runtime import OnnxRuntime
from service.settings import Settings


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
