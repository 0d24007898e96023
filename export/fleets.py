"""Fleets of bundles: fleet files that train a model with a bundle's columns and bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from export.bundle import Manifest
from model.fleet import FailureRule, Fleet, Format, fleet_of_schema, fleet_toml
from model.outputs import whole_file, writing


def write_fleet_of(
    manifest: Manifest, path: Path, *, form: Format = "csv", failure: FailureRule | None = None
) -> None:
    """Write the TOML file of a bundle's fleet.

    `form` and `failure` are those of the data; None: every unit ran to failure.

    Raises:
        CannotWrite: the file system refuses.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_text(fleet_toml(fleet_of_bundle(manifest, form, failure)), encoding="utf-8")


def fleet_of_bundle(manifest: Manifest, form: Format, failure: FailureRule | None) -> Fleet:
    """Build the fleet whose files name their columns as the bundle does, with the defaults of its model."""
    return replace(
        fleet_of_schema(manifest.name, manifest.schema_of_columns),
        format=form,
        failure=failure,
        cap=manifest.cap,
        context=manifest.context,
        horizons=tuple(manifest.horizons),
        nominal_coverage=manifest.nominal_coverage,
        critical_below=manifest.health_bounds.critical_below,
        degrading_below=manifest.health_bounds.degrading_below,
        max_missing_fraction=manifest.max_missing_fraction,
    )
