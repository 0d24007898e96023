"""`POST /v1/units/{unit}/cycles`: readings as JSON, one by one or by columns, or as CSV."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Callable, Mapping
from functools import partial
from io import StringIO
from time import perf_counter
from typing import Any, Final

import msgspec
import orjson

from model.cells import MOST_SHOWN, delimiter_of, number_of
from model.decision import Costs, InvalidCosts
from service.core.predictor import LoadedModel
from service.core.queries import Explain
from service.core.rules import WindowRules
from service.core.turns import LARGE_BYTES
from service.errors import MalformedBody, Problem, TooLarge, escaped, listed, short
from service.http.problem import UNREADABLE, read_number, unreadable, wrong
from service.http.shell import JSON, Call, Parameter, Reply, json_reply, media_type_of
from service.http.units_bodies import Cycle
from service.labels import Stage
from service.store.rows import Given
from service.streams.window import refusal
from service.units import given_columns, given_rows

CSV: Final = b"text/csv"
CYCLE: Final = "cycle"
"""CSV column of the cycle numbers."""
MOST_BYTES: Final = 4 * LARGE_BYTES
"""Some thousands of readings; larger bodies would delay other requests."""
MEDIA_TYPES: Final = (JSON, CSV)
COSTS: Final = ("planned", "failure")
"""Query parameters of both costs."""
OPTIONS: Final = ("model", "explain", "store")
"""Query parameters of CSV."""
_COST: Final = {"type": "number", "exclusiveMinimum": 0}
COST_PARAMETERS: Final = (
    Parameter("planned", "Cost of a planned stop.", _COST),
    Parameter("failure", "Cost of a failure, above that of a planned stop.", _COST),
)
PARAMETERS: Final = (
    Parameter("model", "For CSV: a loaded model. With JSON, all parameters are fields of the body."),
    Parameter(
        "explain", "For CSV: how much explanation the prediction has; none by default.", {"enum": [*Explain]}
    ),
    Parameter("store", "For CSV: whether to store the prediction; true by default.", {"type": "boolean"}),
    *COST_PARAMETERS,
)

IN_COLUMNS: Final = re.compile(r"`\$(?:\.readings\[(\d+)\])?\.columns\[\.\.\.\]")
"""Path of a column in msgspec's errors, with the index of its reading."""

Values = list[float | None]
with_infinities: Final = msgspec.json.Decoder(float_hook=float).decode


class Reading(msgspec.Struct, forbid_unknown_fields=True):
    """One reading: values by column; omitted or null values are missing.

    The default of `cycle` is the one after the unit's last, 1 for a new unit.
    """

    columns: dict[str, float | None]
    cycle: Cycle | None = None


class CyclesOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of the prediction, which every body may have."""

    model: str | None = None
    explain: Explain = Explain.NONE
    store: bool = True
    costs: Costs | None = None


class OneReading(CyclesOptions, kw_only=True):
    """One reading: values by column; omitted or null values are missing.

    The default of `cycle` is the one after the unit's last, 1 for a new unit.
    """

    columns: dict[str, float | None]
    cycle: Cycle | None = None


class ReadingsByColumn(CyclesOptions, kw_only=True):
    """Several readings: a list of values for each column; null, or an empty list, is missing.

    `cycles` has one number per value; by default the readings follow the unit's last.
    """

    columns: dict[str, Values | None]
    cycles: list[Cycle] | None = None


class SeveralReadings(CyclesOptions, kw_only=True):
    """Several readings, one after the other."""

    readings: list[Reading]


class CyclesQuery(CyclesOptions, kw_only=True):
    """Readings of a unit, in one of `FORMS`.

    Msgspec cannot decode a union of these; `given` refuses a mixture.
    """

    readings: list[Reading] | None = None
    cycle: Cycle | None = None
    cycles: list[Cycle] | None = None
    columns: dict[str, float | Values | None] | None = None

    def given(self, rules: WindowRules) -> Given:
        """Lay out the readings for a model.

        Raises:
            MalformedBody: the body has none, or mixes forms.
            InvalidWindow: with every problem found.
        """
        forms = (self.readings is not None, self.columns is not None)
        if forms == (True, False) and self.cycle is None and self.cycles is None:
            rows = [(reading.cycle, (), reading.columns) for reading in self.readings or ()]
            return given_rows(rows, rules, "/readings/{}".format)
        columns = self.columns or {}
        lists = [values for values in columns.values() if isinstance(values, list)]
        numbers = {name: value for name, value in columns.items() if not isinstance(value, list)}
        if forms == (False, True) and self.cycles is None and not lists:
            return given_rows([(self.cycle, (), numbers)], rules, lambda _: "")
        if forms == (False, True) and self.cycle is None and not any(v is not None for v in numbers.values()):
            count = max((len(values) for values in lists if values), default=len(self.cycles or ()))
            missing: Values = [None] * count
            whole = {name: of if isinstance(of, list) and of else missing for name, of in columns.items()}
            return given_columns(self.cycles, whole, rules)
        detail = (
            "expected `readings`, or `cycle` and `columns` with a number each, or `cycles` and `columns` "
            "with a list each; got a mixture or none"
        )
        raise MalformedBody(detail, [Problem("", "shape", detail)])


FORMS: Final = (OneReading, ReadingsByColumn, SeveralReadings)
"""The bodies that a `CyclesQuery` may have."""


async def append(call: Call) -> Reply:
    """Answer `POST /v1/units/{unit}/cycles`: store readings of one unit and predict for it."""
    exchange, predictor, size = call.exchange, call.desk.predictor, len(call.body)
    if size > MOST_BYTES:
        raise TooLarge(f"expected a body of at most {MOST_BYTES} bytes, got {size}; send readings in parts")

    is_csv = media_type_of(call.headers) == CSV
    read = partial(decoded, call.body, call.query, model_of_csv=predictor.model if is_csv else None)
    if size > LARGE_BYTES:  # lets other requests run: no stage
        async with call.desk.large_requests:
            query = await asyncio.to_thread(read)
            model = predictor.model(query.model)
            given = await asyncio.to_thread(query.given, model.rules)
    else:
        start = perf_counter()
        query = read()
        model = predictor.model(query.model)
        given = query.given(model.rules)
        exchange.stages.append((Stage.DECODE, start, perf_counter()))
    exchange.windows = 1
    reply = await call.desk.units.append(
        model,
        call.path["unit"],
        given,
        explain=query.explain,
        store=query.store,
        costs=query.costs,
        stages=exchange.stages,
        tenant=exchange.caller.tenant,
    )
    start = perf_counter()
    body = json_reply(reply)
    exchange.stages.append((Stage.ENCODE, start, perf_counter()))
    return body


def decoded(
    body: bytes, options: Mapping[str, str], *, model_of_csv: Callable[[str | None], LoadedModel] | None
) -> CyclesQuery:
    """Decode a body; CSV has its options and costs in the query parameters.

    `model_of_csv` finds the model whose columns CSV has; None: the body is JSON.

    Raises:
        MalformedBody: the body has another shape, or an option is unknown.
        InvalidRequest: the costs are invalid, or several models are loaded and none is named.
        InvalidWindow, UnknownModel: CSV has columns that the model lacks, or there is no such model.
    """
    known = () if model_of_csv is None else (*OPTIONS, *COSTS)
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        wanted = ", ".join(known) or "no parameters; the body has the options"
        detail = f"expected {wanted}, got {short(unknown)}"
        raise MalformedBody(detail, [Problem(f"/{unknown[:32]}", "unknown_parameter", detail)])
    try:
        if model_of_csv is None:
            return _converted(_loaded(body))
        cycles, columns = read_csv(body.decode("utf-8-sig"), model_of_csv(options.get("model")).rules)
        given = {name: options[name] for name in OPTIONS if name in options}
        costs = costs_of_address(options)
        query = {**given, "costs": costs, "cycles": cycles, "columns": columns}
        return msgspec.convert(query, CyclesQuery, strict=False)
    except UNREADABLE as error:
        raise unreadable(error) from error


def _loaded(body: bytes) -> Any:  # noqa: ANN401 JSON
    """Decode JSON; a number beyond float64 becomes infinite, which the check of readings refuses."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return with_infinities(body)


def _converted(given: Any) -> CyclesQuery:  # noqa: ANN401 JSON
    """Convert decoded JSON; name the column in errors, because msgspec does not."""
    try:
        return msgspec.convert(given, CyclesQuery)
    except msgspec.ValidationError as error:
        place = IN_COLUMNS.search(str(error))
        if place is None:
            raise
        i = place[1]
        at, one = ("", given) if i is None else (f"/readings/{i}", given["readings"][int(i)])
        for name, value in one["columns"].items():
            try:
                msgspec.convert(value, float | None if i else float | Values | None)
            except msgspec.ValidationError as of_column:
                raise unreadable(of_column, below=f"{at}/columns/{escaped(name)}") from error
        raise


def costs_of_address(query: Mapping[str, str]) -> Costs | None:
    """Read both costs from the query parameters; return None if neither is given.

    Raises:
        InvalidRequest: a cost is missing or not above 0, or a failure costs no more than a stop.
    """
    if not any(name in query for name in COSTS):
        return None
    given: list[float] = []
    for name in COSTS:
        text = query.get(name, "")
        try:
            given.append(read_number(text))
        except ValueError:
            raise wrong(f"/{name}", f"expected a number above 0, got {text[:32]!r}") from None
    try:
        return Costs(*given)
    except InvalidCosts as error:
        name, _, detail = str(error).partition(": ")
        raise wrong(f"/{name}", detail) from None


def read_csv(text: str, rules: WindowRules) -> tuple[list[int] | None, dict[str, Values]]:
    """Read a table of readings with a header, as `model.cells` does; `cycle` is optional.

    Decimal commas are read if the separator is not a comma.

    Raises:
        MalformedBody: a field is not a number, or a row has another number of fields.
        InvalidWindow: the model has no such column.
    """
    table = StringIO(text, newline=None)  # a CR ends a line too
    delimiter = delimiter_of(table.readline())
    decimal = "," if delimiter != "," and "," in table.read() else "."
    table.seek(0)
    rows = csv.reader(table, strict=True, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) < len(header) or not header:
            raise _malformed(1, "expected a header with each column once")
        if unknown := list(rules.unknown_columns({*header} - {CYCLE})):
            raise refusal(listed(unknown))
        columns: dict[str, list[float | None]] = {name: [] for name in header}
        for row in rows:
            if row:
                _add_row(columns, row, decimal, rows.line_num)
    except csv.Error as error:
        raise _malformed(rows.line_num, str(error)) from error
    cycles = columns.pop(CYCLE, None)
    return cycles, columns  # pyrefly: ignore[bad-return] `_add_row` makes whole numbers


def _add_row(columns: Mapping[str, list[float | None]], row: list[str], decimal: str, line: int) -> None:
    if len(row) != len(columns):
        raise _malformed(line, f"expected {len(columns)} fields, as the header has, got {len(row)}")
    for (name, values), field in zip(columns.items(), row, strict=True):
        try:
            number = number_of(field.strip(), decimal=decimal)
            values.append(_whole(number, field) if name == CYCLE else number)
        except ValueError as error:
            raise _malformed(line, str(error), f", column {name[:MOST_SHOWN]!r}") from None


def _whole(number: float | None, field: str) -> int:
    if number is None or not number.is_integer():
        raise ValueError(f"expected a whole number, got {field.strip()[:MOST_SHOWN]!r}")
    return int(number)


def _malformed(line: int, detail: str, column: str = "") -> MalformedBody:
    return MalformedBody(f"line {line}{column}: {detail}", [Problem(f"/lines/{line}", "shape", detail)])
