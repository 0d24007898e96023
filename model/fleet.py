"""Fleet: the files of one kind of machine and the defaults of its model.

A small TOML file (see `configs/`) describes a fleet, so a new kind of machine needs no code. This
module must not know how data files are parsed (`model.readers`) or what is learnt from them.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Final, Literal, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from model.domain import LARGEST_CYCLE, LONGEST_CONTEXT, Column, InvalidData, Schema
from model.fleet_keys import check_keys, plain_error

Format = Literal["cmapss", "csv", "parquet", "feather", "xlsx"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
CONFIGS: Final = Path(__file__).parent / "configs"
ONE_FILE_A_UNIT: Final = "file"
SHORTEST_CONTEXT: Final = 2
"""Minimum of the context, in cycles: attention over one cycle says nothing."""
WITHIN_CAP: Final = 0.9
"""Maximum of horizons and bounds, as a share of the cap. Labels end at the cap, so nothing is known of
failures beyond it."""


@dataclass(frozen=True, slots=True)
class FailureRule:
    """Rule that a unit has failed: a column crosses a bound and stays beyond it to the last reading.

    Raises:
        InvalidData: there is not exactly one bound, or it is not finite.
    """

    column: str  # Name in the file; the model need not read it
    at_most: float | None = None  # Upper bound of the values of failed units, or None
    at_least: float | None = None  # Lower bound of the values of failed units, or None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.at_most, self.at_least) if bound is not None]
        if len(bounds) != 1 or not math.isfinite(bounds[0]):
            raise InvalidData(
                f"failure rule on {self.column!r}: expected one of at_most and at_least, a finite number, "
                f"got at_most={self.at_most} and at_least={self.at_least}"
            )

    def failed(self, last_value: float) -> bool:
        """Return whether a unit with this last value has failed; False for a missing value."""
        if self.at_most is not None:
            return last_value <= self.at_most
        return self.at_least is not None and last_value >= self.at_least

    def failure_row(self, values: Sequence[float]) -> int | None:
        """Find the first row from which every known value is at or beyond the bound.

        None if the unit has not failed.

        >>> FailureRule("capacity", at_most=0.8).failure_row([1.0, 0.79, 0.85, 0.8, 0.7])
        3
        >>> FailureRule("capacity", at_most=0.8).failure_row([1.0, 0.8, math.nan])
        1
        """
        known = [value for value in values if not math.isnan(value)]
        if not known or not self.failed(known[-1]):
            return None
        rows = range(len(values))
        within = [row for row in rows if not (self.failed(values[row]) or values[row] != values[row])]
        return next(row for row in rows[max(within, default=-1) + 1 :] if self.failed(values[row]))


FAILED: Final = FailureRule("failed", at_least=1.0)
"""The rule of files that `rul trajectories` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """Fields of a fleet that a TOML file may omit."""

    cap: float = 125.0  # RUL in cycles above which an answer is "at least"
    context: int = 60  # Maximum cycles that the model reads
    shortest: int = 1  # Minimum cycles of an evaluated window
    horizons: tuple[int, ...] = (10, 30, 60)  # Horizons of the failure probabilities, in cycles
    nominal_coverage: float = 0.9  # Coverage of the interval, 0..1
    critical_below: float = 30.0  # RUL in cycles below which a unit is critical
    degrading_below: float = 100.0  # RUL in cycles below which a unit is degrading, above critical
    max_missing_fraction: float = 0.5  # Maximum share of missing readings in a window


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(ModelDefaults):
    """One kind of machine: its files, its columns, and the defaults of its model.

    Raises:
        InvalidData: a field is invalid.
    """

    name: str  # Short name, such as `cmapss`
    schema: Schema  # Columns that the model reads, settings first
    sources: tuple[str, ...]  # Name of each column in a file, in schema order
    format: Format = "csv"  # Format of files in a folder, and of a file with an unknown suffix
    unit_column: str = "unit"  # Column with the unit's name; `file` if each file is one unit
    cycle_column: str | None = "cycle"  # Column with the cycle number; None: the row's number, from 1
    group_column: str | None = None  # Column whose units stay together in the folds; None: each unit alone
    failure: FailureRule | None = None  # Rule for failed units; None: every unit ran to failure

    def __post_init__(self) -> None:
        names = (self.name, *self.schema.names)
        texts = [text for column in self.schema.columns for text in (column.unit, column.description)]
        odd = [name for name in names if not name.strip()]
        odd += [text for text in (*names, *texts) if not text.isprintable()]
        twice = sorted({source for source in self.sources if self.sources.count(source) > 1})
        highest = WITHIN_CAP * self.cap
        positive_rising = all(a < b for a, b in zip((0, *self.horizons), self.horizons, strict=False))
        wants = {
            f"format must be one of {', '.join(FORMATS)}, got {self.format!r}": self.format in FORMATS,
            f"names must not be blank, and texts printable on one line, got {''.join(odd[:1])!r}": not odd,
            f"each source must be given once, got {', '.join(twice)} more than once": not twice,
            f"a source for each column, got {len(self.sources)} for {len(self.schema)} columns": (
                len(self.sources) == len(self.schema)
            ),
            f"cap must be above 0 and at most {LARGEST_CYCLE}, got {self.cap}": (
                0 < self.cap <= LARGEST_CYCLE
            ),
            f"1 <= shortest <= context and {SHORTEST_CONTEXT} <= context <= {LONGEST_CONTEXT}, "
            f"got shortest {self.shortest}, context {self.context}": (
                1 <= self.shortest <= self.context and SHORTEST_CONTEXT <= self.context <= LONGEST_CONTEXT
            ),
            f"horizons must be positive and rise, got {list(self.horizons)}": (
                bool(self.horizons) and positive_rising
            ),
            f"horizons must not exceed {highest:g}, {WITHIN_CAP:g} of the cap, got {list(self.horizons)}": (
                all(horizon <= highest for horizon in self.horizons)
            ),
            f"nominal_coverage must be between 0 and 1, got {self.nominal_coverage}": (
                0 < self.nominal_coverage < 1
            ),
            f"0 < critical_below < degrading_below <= {highest:g}, {WITHIN_CAP:g} of the cap, got "
            f"{self.critical_below:g} and {self.degrading_below:g}": (
                0 < self.critical_below < self.degrading_below <= highest
            ),
            f"max_missing_fraction must be in 0..1, above 0, got {self.max_missing_fraction}": (
                0 < self.max_missing_fraction <= 1
            ),
        }
        for want, holds in wants.items():
            if not holds:
                raise InvalidData(f"fleet {self.name!r}: {want}")

    @property
    def failure_column(self) -> int | None:
        """Return the index of the failure rule's column among those that the model reads, or None."""
        column = None if self.failure is None else self.failure.column
        return self.sources.index(column) if column in self.sources else None


def load_fleet(path: Path) -> Fleet:
    """Read a fleet's TOML file.

    Raises:
        InvalidData: the file cannot be read, or a field is missing, unknown or invalid.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        check_keys(table)
        return msgspec.convert(table, _FleetTable).fleet()
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from error
    except msgspec.ValidationError as error:
        raise InvalidData(f"{path}: {plain_error(str(error))}") from error
    except (OSError, ValueError, RecursionError) as error:  # TOML and UTF-8
        raise InvalidData(f"{path}: the fleet file cannot be read: {error}") from error


def fleet_named(name_or_path: str | Path) -> Fleet:
    """Find a fleet by its TOML file or by the name of a shipped fleet.

    Raises:
        InvalidData: there is no such fleet, or its file is invalid.
    """
    path = Path(name_or_path)
    if path.is_file():
        return load_fleet(path)
    if path.name == str(name_or_path) and (CONFIGS / f"{path.name}.toml").is_file():
        return load_fleet(CONFIGS / f"{path.name}.toml")
    shipped = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.toml"))) or "none"
    raise InvalidData(
        f"no fleet {str(name_or_path)!r}: neither a TOML file nor one of the shipped ones ({shipped})"
    )


def fleet_of_schema(name: str, schema: Schema) -> Fleet:
    """Build the fleet whose files name their columns as the schema does."""
    return Fleet(name=name, schema=schema, sources=schema.names)


def fleet_toml(fleet: Fleet) -> str:
    """Write the TOML text of a fleet."""
    lines = [
        f"name = {toml_string(fleet.name)}",
        f"format = {toml_string(fleet.format)}",
        f"unit = {toml_string(fleet.unit_column)}",
        *([] if fleet.cycle_column is None else [f"cycle = {toml_string(fleet.cycle_column)}"]),
        *([] if fleet.group_column is None else [f"group = {toml_string(fleet.group_column)}"]),
        *(f"{name} = {_value(getattr(fleet, name))}" for name in _DEFAULTS),
        "",
        "[failure]",
        *failure_lines(fleet.failure),
    ]
    for column, source in zip(fleet.schema.columns, fleet.sources, strict=True):
        lines += column_lines(column, source)
    return "\n".join(lines) + "\n"


def column_lines(column: Column, source: str) -> list[str]:
    """Write the table of a column; `source` is its name in files."""
    own = "" if source == column.name else source
    given = {"source": own, "unit": column.unit, "description": column.description}
    optional = [f"{key} = {toml_string(value)}" for key, value in given.items() if value]
    return ["", f"[[{column.role}s]]", f"name = {toml_string(column.name)}", *optional]


_DEFAULTS: Final = tuple(field.name for field in fields(ModelDefaults))
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _ColumnTable(msgspec.Struct):
    name: _Name
    source: _Name | UnsetType = UNSET
    unit: str = ""
    description: str = ""


class _FailureTable(msgspec.Struct):
    run_to_failure: bool = False
    column: _Name | UnsetType = UNSET
    at_most: float | UnsetType = UNSET
    at_least: float | UnsetType = UNSET

    def rule(self) -> FailureRule | None:
        bounds = {"at_most": self.at_most, "at_least": self.at_least}
        given = {name: bound for name, bound in bounds.items() if bound is not UNSET}
        if self.run_to_failure and self.column is UNSET and not given:
            return None
        if self.run_to_failure or self.column is UNSET:
            raise InvalidData("[failure]: expected either `run_to_failure = true` or a column and a bound")
        return FailureRule(self.column, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetTable(ModelDefaults):
    """Fleet file as parsed, after `check_keys`."""

    name: _Name
    format: _Name
    unit: _Name
    failure: _FailureTable
    cycle: _Name | None = None
    group: _Name | None = None
    settings: list[_ColumnTable] = field(default_factory=list[_ColumnTable])
    sensors: list[_ColumnTable] = field(default_factory=list[_ColumnTable])

    def fleet(self) -> Fleet:
        settings = tuple(Column(c.name, "setting", c.unit, c.description) for c in self.settings)
        sensors = tuple(Column(c.name, "sensor", c.unit, c.description) for c in self.sensors)
        return Fleet(
            name=self.name,
            schema=Schema(settings + sensors),
            sources=tuple(c.source or c.name for c in (*self.settings, *self.sensors)),
            format=cast("Format", self.format),  # checked by `Fleet`
            unit_column=self.unit,
            cycle_column=self.cycle,
            group_column=self.group,
            failure=self.failure.rule(),
            **{name: getattr(self, name) for name in _DEFAULTS},
        )


def failure_lines(rule: FailureRule | None) -> Iterable[str]:
    """Write the lines of the table [failure]."""
    if rule is None:
        return ["run_to_failure = true"]
    bound = "at_most" if rule.at_most is not None else "at_least"
    return [f"column = {toml_string(rule.column)}", f"{bound} = {getattr(rule, bound)!r}"]


def toml_string(value: str) -> str:
    """Write a string as TOML."""
    # A JSON string is a TOML basic string, except that TOML also escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    return repr(list(cast("tuple[int, ...]", value))) if isinstance(value, tuple) else repr(value)
