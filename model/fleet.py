"""A fleet: what the files of one kind of machine look like, and how its model should answer.

A fleet is described by a small TOML file (see `configs/`), so that a new kind of machine needs
no code. This module knows names, units and rules; it must not know how a file is parsed
(`model.readers`) or what is learnt from it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from model.domain import Column, InvalidData, Role, Schema

Format = Literal["cmapss", "csv", "parquet"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
CONFIGS: Final = Path(__file__).parent / "configs"
ONE_FILE_A_UNIT: Final = "file"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """A unit has failed when the last value of this column is beyond a bound.

    Attributes:
        column: As the file names it; it need not be one that the model reads.
        at_most: The unit has failed at this value or below; None for no such bound.
        at_least: The unit has failed at this value or above; None for no such bound.

    Raises:
        InvalidData: there is not exactly one bound.
    """

    column: str
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise InvalidData(
                f"failure rule on {self.column!r}: expected one of at_most and at_least, "
                f"got at_most={self.at_most} and at_least={self.at_least}"
            )

    def failed(self, last_value: float) -> bool:
        """Whether a unit whose record ends with this value has failed; a missing value says no."""
        if self.at_most is not None:
            return last_value <= self.at_most
        return self.at_least is not None and last_value >= self.at_least


@dataclass(frozen=True, slots=True)
class Fleet:
    """One kind of machine: its files, its columns, and the defaults of its model.

    Attributes:
        name: Short name, such as `cmapss`.
        schema: The columns that the model reads, settings first.
        sources: What a file calls each column of the schema, in schema order.
        format: What a file is whose suffix does not say (`.csv`, `.parquet`, `.txt` do).
        unit_column: The column that names the unit; `file` where each file is one unit.
        cycle_column: The column that numbers the cycles; None: the row's number, from 1.
        failure: When a unit has failed; None: every unit ran to failure.
        cap: RUL in cycles above which an answer is "at least".
        context: Most cycles that the model reads.
        shortest: Fewest cycles that the model answers for.
        horizons: In cycles, of the failure probabilities.
        nominal_coverage: Of the interval, 0..1.
        critical_below: RUL in cycles below which a unit is critical.
        degrading_below: RUL in cycles below which a unit is degrading, above critical.
        max_missing_fraction: Of a window's readings; more is refused.

    Raises:
        InvalidData: a number cannot be what it claims to be.
    """

    name: str
    schema: Schema
    sources: tuple[str, ...]
    format: Format = "csv"
    unit_column: str = "unit"
    cycle_column: str | None = "cycle"
    failure: FailureRule | None = None
    cap: float = 125.0
    context: int = 60
    shortest: int = 1
    horizons: tuple[int, ...] = (10, 30, 60)
    nominal_coverage: float = 0.9
    critical_below: float = 30.0
    degrading_below: float = 125.0
    max_missing_fraction: float = 0.5

    def __post_init__(self) -> None:
        positive_rising = all(a < b for a, b in zip((0, *self.horizons), self.horizons, strict=False))
        wants = {
            f"format must be one of {', '.join(FORMATS)}, got {self.format!r}": self.format in FORMATS,
            f"a source for each column, got {len(self.sources)} for {len(self.schema)} columns": (
                len(self.sources) == len(self.schema)
            ),
            f"cap must be above 0, got {self.cap}": self.cap > 0,
            f"1 <= shortest <= context, got shortest {self.shortest}, context {self.context}": (
                1 <= self.shortest <= self.context
            ),
            f"horizons must be positive and rise, got {list(self.horizons)}": (
                bool(self.horizons) and positive_rising
            ),
            f"nominal_coverage must be between 0 and 1, got {self.nominal_coverage}": (
                0 < self.nominal_coverage < 1
            ),
            "0 < critical_below < degrading_below <= cap, got "
            f"{self.critical_below}, {self.degrading_below}, {self.cap}": (
                0 < self.critical_below < self.degrading_below <= self.cap
            ),
            f"max_missing_fraction must be in 0..1, above 0, got {self.max_missing_fraction}": (
                0 < self.max_missing_fraction <= 1
            ),
        }
        for want, holds in wants.items():
            if not holds:
                raise InvalidData(f"fleet {self.name!r}: {want}")


def load_fleet(path: Path) -> Fleet:
    """Read a fleet's TOML file.

    Raises:
        InvalidData: the file cannot be read, lacks a field, or has one that nobody reads.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidData(f"{path}: the fleet file cannot be read: {error}") from error
    try:
        return _fleet(table)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from error


def fleet_named(name_or_path: str | Path) -> Fleet:
    """A fleet by its TOML file, or by its name among those that ship with the project.

    Raises:
        InvalidData: there is no such fleet, or its file is not valid.
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
    """The fleet whose files name unit, cycle and columns as the schema does: what a bundle reads."""
    return Fleet(name=name, schema=schema, sources=schema.names)


def fleet_toml(fleet: Fleet) -> str:
    """The TOML file that `load_fleet` reads back as this fleet."""
    lines = [
        f"name = {_text(fleet.name)}",
        f"format = {_text(fleet.format)}",
        f"unit = {_text(fleet.unit_column)}",
        *([] if fleet.cycle_column is None else [f"cycle = {_text(fleet.cycle_column)}"]),
        *(f"{name} = {_value(getattr(fleet, name))}" for name in _DEFAULTS),
        "",
        "[failure]",
        *_failure_lines(fleet.failure),
    ]
    for column, source in zip(fleet.schema.columns, fleet.sources, strict=True):
        lines += ["", f"[[{column.role}s]]", f"name = {_text(column.name)}"]
        lines += [f"source = {_text(source)}"] if source != column.name else []
        lines += [f"unit = {_text(column.unit)}"] if column.unit else []
        lines += [f"description = {_text(column.description)}"] if column.description else []
    return "\n".join(lines) + "\n"


# Fields that a TOML file may leave out: what the model does unless a command says otherwise.
_DEFAULTS: Final = (
    "cap",
    "context",
    "shortest",
    "horizons",
    "nominal_coverage",
    "critical_below",
    "degrading_below",
    "max_missing_fraction",
)
_KEYS: Final = ("name", "format", "unit", "cycle", "settings", "sensors", "failure", *_DEFAULTS)
_NUMBER: Final = "a number"


def _fleet(table: Mapping[str, Any]) -> Fleet:
    _refuse_unknown(table, _KEYS, where="fleet")
    columns: list[Column] = []
    sources: list[str] = []
    roles: tuple[Role, ...] = ("setting", "sensor")
    for role in roles:
        for place, entry in enumerate(_tables(table, f"{role}s")):
            where = f"{role}s[{place}]"
            _refuse_unknown(entry, ("name", "source", "unit", "description"), where=where)
            name = _string(entry, "name", where=where)
            columns.append(
                Column(
                    name,
                    role,
                    _string(entry, "unit", where=where, default=""),
                    _string(entry, "description", where=where, default=""),
                )
            )
            sources.append(_string(entry, "source", where=where, default=name))
    return Fleet(
        name=_string(table, "name", where="fleet"),
        schema=Schema(tuple(columns)),
        sources=tuple(sources),
        format=cast("Format", _string(table, "format", where="fleet")),
        unit_column=_string(table, "unit", where="fleet"),
        cycle_column=_string(table, "cycle", where="fleet") if "cycle" in table else None,
        failure=_failure(table.get("failure")),
        **_defaults(table),
    )


def _defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {field.name: field.type for field in fields(Fleet)}
    found: dict[str, Any] = {}
    for name in (name for name in _DEFAULTS if name in table):
        value = table[name]
        if name == "horizons":
            _require(isinstance(value, list) and all(_whole(h) for h in value), name, "whole numbers", value)
            found[name] = tuple(value)
        elif kinds[name] == "int":
            _require(_whole(value), name, "a whole number", value)
            found[name] = value
        else:
            _require(_whole(value) or isinstance(value, float), name, _NUMBER, value)
            found[name] = float(value)
    return found


def _failure(table: object) -> FailureRule | None:
    _require(isinstance(table, dict), "[failure]", "`run_to_failure = true` or a column and a bound", table)
    rule = cast("dict[str, Any]", table)
    if "run_to_failure" in rule:
        _refuse_unknown(rule, ("run_to_failure",), where="[failure]")
        _require(rule["run_to_failure"] is True, "run_to_failure", "true", rule["run_to_failure"])
        return None
    _refuse_unknown(rule, ("column", "at_most", "at_least"), where="[failure]")
    bounds: dict[str, float] = {}
    for name in ("at_most", "at_least"):
        if name in rule:
            _require(_whole(rule[name]) or isinstance(rule[name], float), name, _NUMBER, rule[name])
            bounds[name] = float(rule[name])
    return FailureRule(_string(rule, "column", where="[failure]"), **bounds)


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise InvalidData(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")


def _tables(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = table.get(name, [])
    _require(isinstance(value, list) and all(isinstance(e, dict) for e in value), name, "tables", value)
    return value


def _string(table: Mapping[str, Any], name: str, *, where: str, default: str | None = None) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise InvalidData(f"{where}: {name} must be a text, got {value!r}")
    return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, name: str, want: str, got: object) -> None:  # noqa: FBT001
    if not holds:
        raise InvalidData(f"{name} must be {want}, got {got!r}")


def _failure_lines(rule: FailureRule | None) -> Iterable[str]:
    if rule is None:
        return ["run_to_failure = true"]
    bound = "at_most" if rule.at_most is not None else "at_least"
    return [f"column = {_text(rule.column)}", f"{bound} = {getattr(rule, bound)!r}"]


def _text(value: str) -> str:
    # A JSON string is a TOML basic string, except that TOML also escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    return repr(list(cast("tuple[int, ...]", value))) if isinstance(value, tuple) else repr(value)
