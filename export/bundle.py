"""Bundle: the folder that hands a trained network over to serving.

A bundle `NAME/` holds `model.onnx` (its metadata carries the manifest, so that model and
metadata cannot part), `golden.npz` (windows and expected answers), `MODEL_CARD.md`, and the digests
of the three in `SHA256SUMS` (`export.seal`). This module must not know torch, onnx or ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from export.arrays import one_line
from model.domain import (
    LARGEST_CYCLE,
    LONGEST_CONTEXT,
    MODEL_NAME,
    Column,
    FloatArray,
    RulError,
    Schema,
    printable,
)
from model.reference import DECILES, ColumnReference, Degradation, Frozen, Line, Regime

METADATA_KEY: Final = "rul_manifest"
FORMAT: Final = 3

LEAST_LIFE: Final = 2
"""Minimum cycles of the longest life: one of a single cycle shows no ageing."""

BUNDLED: Final = Path(__file__).parent / "bundles"
CARD: Final = "MODEL_CARD.md"
GOLDEN: Final = "golden.npz"
MODEL: Final = "model.onnx"
ENTROPY_ROUNDING: Final = 1e-5
"""Margin at both ends of an entropy band. A head that weighs by lag alone has one entropy for each length, up
to rounding, which depends on the batch."""


class InvalidBundle(RulError):
    """The bundle is damaged, incomplete, or made for another version of this project."""


class EntropyBand(Frozen):
    """Quantiles of the attention entropy ratio of windows of similar length."""

    shortest: int = Field(ge=2, description="cycles; the band reaches up to the next one")
    low: float = Field(description="0.5 % quantile")
    high: float = Field(description="99.5 % quantile")


class EntropyReference(Frozen):
    """Quantiles of the attention entropy ratio on calibration windows of two cycles or more.

    The ratio depends on the window's length, so each window is compared with the band of its length.
    """

    head: Line = Field(description="`mean` for the attention itself, else the head's number")
    low: float = Field(description="0.5 % quantile: lower values mean attention collapsed onto few cycles")
    median: float
    high: float = Field(description="99.5 % quantile: higher values mean attention is nearly uniform")
    bands: list[EntropyBand] = Field(
        default=[],
        exclude_if=not_,
        description="by length, ascending; without them `low` and `high` serve all lengths",
    )

    def limits(self, context: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and highest usual ratio by cycles of the window, [context + 1] each."""
        low, high = np.full(context + 1, self.low), np.full(context + 1, self.high)
        for band in self.bands:
            low[band.shortest :], high[band.shortest :] = band.low, band.high
        return low - ENTROPY_ROUNDING, high + ENTROPY_ROUNDING


class HealthBounds(Frozen):
    """RUL bounds of the health states, in cycles."""

    critical_below: PositiveFloat
    degrading_below: PositiveFloat


class Training(Frozen):
    """Provenance of the weights."""

    data_sha256: Line
    data_name: Line
    seed: int
    code_version: Line
    units: int = Field(ge=1, description="units with a known failure; all of them trained the network")
    censored: int = Field(default=0, ge=0, description="units without a known failure")
    folds: int = Field(ge=2, description="folds of cross-validation, for the interval and the metrics")
    config: dict[str, Any]


class Parity(Frozen):
    """Largest differences between PyTorch and ONNX Runtime over batches 1, 2 and 64."""

    rul_cycles: float = Field(ge=0)
    attention: float = Field(ge=0)


class _Header(BaseModel):
    """Format of any manifest, read before the rest."""

    format: Annotated[int, Field(ge=1)]


class Manifest(Frozen):
    """All facts about a model for servers, clients and readers."""

    format: Annotated[int, Field(ge=1)] = FORMAT
    name: str = Field(pattern=MODEL_NAME.pattern)
    version: Line
    network: Line
    columns: list[ColumnReference] = Field(min_length=1)
    context: PositiveInt = Field(
        le=LONGEST_CONTEXT, description="maximum cycles that the model reads; earlier ones are ignored"
    )
    min_cycles: PositiveInt = Field(
        description="a window of fewer cycles is insufficient history, unless its last_cycle shows that it "
        "holds the unit's whole life"
    )
    max_missing_fraction: float = Field(
        gt=0, le=1, description="maximum share of missing readings in a window"
    )
    cap: PositiveFloat = Field(
        le=LARGEST_CYCLE, description="RUL in cycles above which an answer is `at least`"
    )
    baseline: float = Field(
        description="cycles; baseline + sum of contributions = unclipped RUL, with `window_contribution` in "
        "the sum where the graph has it"
    )
    heads: int = Field(
        ge=0, description="attention heads in `head_attention`; 0 where there is no such output"
    )
    explains_readings: bool = Field(
        default=False,
        exclude_if=not_,
        description="whether the graph has `sensor_contribution`, `window_contribution` and `evidence`",
    )
    reads_settings: bool = Field(
        default=False, exclude_if=not_, description="whether settings contribute beyond telling the regime"
    )
    horizons: list[Annotated[int, Field(ge=1, le=LARGEST_CYCLE)]] = Field(
        min_length=1, description="cycles, of `failure_probability`"
    )
    nominal_coverage: float = Field(gt=0, lt=1)
    health_bounds: HealthBounds
    regimes: list[Regime] = Field(min_length=1)
    degradation: Degradation
    entropy: list[EntropyReference] = Field(min_length=1)
    training: Training
    metrics: dict[str, float]
    parity: Parity

    @model_validator(mode="after")
    def _fits_itself(self) -> Manifest:
        """Check that names differ and that every list has one entry per column, setting or RUL."""
        names = [column.name for column in self.columns]
        heads = [each.head for each in self.entropy]
        if len({*names}) < len(names) or len({*heads}) < len(heads):
            raise ValueError("expected different names of columns and of attention heads, got one twice")
        columns, settings = len(names), sum(column.role == "setting" for column in self.columns)
        aged, grid = self.degradation, len(self.degradation.rul)
        sizes = [(len(aged.life_quantiles), 11), (len(aged.noise), columns)]
        for rows in (aged.z, aged.spread):
            sizes += [(len(rows), grid), *((len(row), columns) for row in rows)]
        for unit in aged.units:
            sizes += [(len(unit.z[grid:]), 0), *((len(row), columns) for row in unit.z)]
        for regime in self.regimes:
            sizes += [
                (len(regime.centre), settings),
                *((len(row), len(DECILES)) for row in regime.histogram_edges),
            ]
            each = (regime.mean, regime.standard_deviation, regime.histogram_edges)
            sizes += [(len(values), columns) for values in each]
        if any(got != expected for got, expected in sizes):
            raise ValueError("lists of regimes or degradation do not fit the columns")
        return self

    @model_validator(mode="after")
    def _is_in_order(self) -> Manifest:
        """Check the order of numbers that must not fall."""
        aged, health = self.degradation, self.health_bounds
        if not (_rises(aged.rul) and _rises(self.horizons)):
            raise ValueError("expected degradation.rul and horizons in ascending order")
        if aged.life_quantiles != sorted(aged.life_quantiles) or aged.life_quantiles[-1] < LEAST_LIFE:
            raise ValueError(
                f"expected degradation.life_quantiles in ascending order, up to {LEAST_LIFE} cycles or more"
            )
        if not all(_rises([band.shortest for band in each.bands]) for each in self.entropy):
            raise ValueError("expected bands of entropy in ascending order of their lengths")
        if health.critical_below >= health.degrading_below or self.min_cycles > self.context:
            raise ValueError("expected critical_below < degrading_below and min_cycles <= context")
        return self

    @cached_property
    def schema_of_columns(self) -> Schema:
        """Return the columns as a domain schema."""
        return Schema(tuple(Column(c.name, c.role, c.unit, c.description) for c in self.columns))

    @cached_property
    def contributing(self) -> tuple[int, ...]:
        """Return the indices of contributing columns: the sensors, and settings if they are read."""
        return tuple(i for i, c in enumerate(self.columns) if c.role == "sensor" or self.reads_settings)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], *, origin: Path) -> Manifest:
        """Read the manifest out of an ONNX file's metadata.

        Raises:
            InvalidBundle: the manifest is missing, invalid or of another format.
        """
        text = metadata.get(METADATA_KEY)
        if text is None:
            raise InvalidBundle(
                f"{origin}: no {METADATA_KEY!r} in the ONNX metadata: not a rulserve model, export it again"
            )
        try:
            found = _Header.model_validate_json(text).format
            if found != FORMAT:
                remedy = f"run `rul convert {origin.parent}`" if found < FORMAT else "export it again"
                raise InvalidBundle(f"{origin}: bundle format {found}, this version reads {FORMAT}: {remedy}")
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            at = printable(".".join(map(str, first["loc"])), 100) or "as a whole"
            raise InvalidBundle(
                f"{origin}: the manifest is not valid ({at}: {one_line(ValueError(first['msg']))}), "
                "export the model again"
            ) from error

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata that `from_metadata` reads."""
        return {METADATA_KEY: self.model_dump_json()}


@dataclass(frozen=True, slots=True)
class BundleFolder:
    """A bundle on disk, not yet opened.

    Raises:
        InvalidBundle: the folder lacks one of its files.
    """

    path: Path

    def __post_init__(self) -> None:
        try:
            missing = [file.name for file in (self.model, self.golden) if not file.is_file()]
        except OSError as error:
            raise InvalidBundle(f"{self.path}: cannot be read: {error.strerror}") from error
        if missing:
            raise InvalidBundle(
                f"{self.path}: not a bundle, {' and '.join(missing)} missing: export the model again"
            )

    @property
    def model(self) -> Path:
        """Return the path of the ONNX file."""
        return self.path / MODEL

    @property
    def golden(self) -> Path:
        """Return the path of the golden windows."""
        return self.path / GOLDEN


def find_bundle(name_or_path: str) -> BundleFolder:
    """Find a bundle by its folder or by the name of a shipped bundle.

    Raises:
        InvalidBundle: there is no such bundle, or its folder is incomplete.
    """
    for path in (Path(name_or_path), BUNDLED / name_or_path):
        try:
            found = path.is_dir()
        except OSError as error:
            raise InvalidBundle(f"{path}: cannot be read: {error.strerror}") from error
        if found:
            return BundleFolder(path)
    shipped = ", ".join(sorted(folder.name for folder in BUNDLED.iterdir() if folder.is_dir())) or "none"
    raise InvalidBundle(
        f"no bundle {name_or_path!r}: neither a folder nor one of the shipped ones ({shipped})"
    )


def _rises(values: Sequence[float]) -> bool:
    return all(low < high for low, high in pairwise(values))
