"""Feed damaged and forged files to each file parser; each is read, or refused with an error of this project.

    python -m tests.hostile.files                     # short
    python -m tests.hostile.files --examples 100000   # long: new inputs, 100,000 a parser

A traceback of a library, or an input over a second of CPU, is a failure; hypothesis prints the shrunk input.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyarrow.feather import write_feather
from pyarrow.parquet import read_table

from export.ageing import drift_reference
from export.bundle import GOLDEN, METADATA_KEY, MODEL, InvalidBundle, Manifest
from export.drift_reference import REFERENCE_KEY, DriftReference
from export.golden import Golden
from export.outputs import output_shapes
from export.seal import COVERED, SUMS, read_digests
from model.domain import RulError
from model.files import SUFFIXES
from model.fleet import Fleet, fleet_named
from model.readers import read_with_report
from model.tables import read_columns
from model.writers import csv_text, write_parquet
from service.core.rules import WindowRules
from tests.examples import json_values
from tests.fakes import make_manifest
from tests.fleets import PUMPS, numbered_unit
from tests.spreadsheets import write_xlsx

SECONDS = 1.0
ORIGIN = Path("bundle") / MODEL
MANIFEST = make_manifest()
TEXT = MANIFEST.to_metadata()[METADATA_KEY]
"""Text of the manifest, to be altered."""

JSON = st.just(10**400) | json_values("name", "")
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), min_size=1, max_size=4
)
TOKENS = st.sampled_from(
    [*",;\t|\n\r \"'.-+eE_0123456789", "\r\n", "\0", '""', "nan", "NaN", "inf", "-inf", "1e999", "NA",
     "null", "unit", "cycle", "load", "\u2028", "\ufeff", "é", "1" * 400, "0x10", "1_000", "=1+1", "9" * 20,
     "\x1b[2J"]
)  # fmt: skip
DTYPES = st.sampled_from(
    ["float32", ">f4", "float64", "int64", "int8", "bool", "complex64", "U3", "S2", "M8[s]"]
)


@st.composite
def edited(draw: st.DrawFn, stored: bytes) -> bytes:
    """Replace some parts of bytes."""
    for place, length, by in draw(EDITS):
        at = int(place * len(stored))
        stored = stored[:at] + by + stored[at + length :]
    return stored


@st.composite
def altered(draw: st.DrawFn, text: str) -> str:
    """Replace, remove, repeat or exchange one part of JSON."""
    whole: Any = json.loads(text)
    holder, key = {"whole": whole}, "whole"
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 5)):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    match draw(st.sampled_from(["value", "remove", "twice", "scale"])):
        case "value":
            holder[key] = draw(JSON)
        case "remove":
            del holder[key]
        case "twice" if isinstance(holder, list):
            holder.append(holder[key])
        case _ if isinstance(holder[key], int | float):
            holder[key] = holder[key] * draw(st.sampled_from([-1, 0, 1e-300, 1e38, 1e300]))
        case _:
            pass
    return json.dumps(whole)


@st.composite
def rearranged(draw: st.DrawFn, arrays: dict[str, Any]) -> bytes:
    """Change type, shape, value or name of one array of an `npz`."""
    changed = dict(arrays)
    name = draw(st.sampled_from(sorted(changed)))
    array = changed.pop(name)
    match draw(st.sampled_from(["dtype", "shape", "value", "name", "gone"])):
        case "dtype":
            array = np.zeros(array.shape, draw(DTYPES))
        case "shape":
            array = np.zeros(draw(st.lists(st.integers(0, 5), max_size=4)), array.dtype)
        case "value" if array.size and array.dtype.kind in "fi":
            array = array.copy()
            array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from([0, -1, 127, 2**31 - 1]))
        case "name":
            name = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9))
        case "gone":
            return _packed(changed)
        case _:
            pass
    return _packed(changed | {name: array})


def _packed(arrays: dict[str, Any]) -> bytes:
    named = {f"_{name}" if name in {"file", "args"} else name: array for name, array in arrays.items()}
    stored = io.BytesIO()
    np.savez(stored, **named)
    return stored.getvalue()


@cache
def golden_arrays() -> dict[str, Any]:
    """Make golden windows that fit the manifest."""
    shapes = output_shapes(MANIFEST, windows=2, cycles=4)
    return {
        "readings": np.full((2, 4, len(MANIFEST.columns)), 50, np.float32),
        "lengths": np.array([4, 2]),
        "last_cycle": np.array([4, np.nan], np.float32),
        **{f"expected_{name}": np.ones(shape, np.float32) for name, shape in shapes.items()},
    }


@cache
def reference_arrays() -> dict[str, Any]:
    """Make the drift reference that fits the manifest."""
    text = drift_reference(MANIFEST).to_metadata()[REFERENCE_KEY]
    with np.load(io.BytesIO(base64.b85decode(text))) as stored:
        return {name: stored[name] for name in stored.files}


def read_manifest(text: str) -> None:
    manifest = Manifest.from_metadata({METADATA_KEY: text}, origin=ORIGIN)
    WindowRules.of(manifest, max_window_cycles=10_000)
    assert Manifest.from_metadata(manifest.to_metadata(), origin=ORIGIN) == manifest


def read_golden(stored: bytes) -> None:
    Golden.parse(stored, origin=ORIGIN.with_name(GOLDEN)).check(MANIFEST, origin=ORIGIN)


def read_reference(stored: bytes) -> None:
    text = base64.b85encode(stored).decode()
    DriftReference.from_metadata({REFERENCE_KEY: text}, MANIFEST, origin=ORIGIN)


def reader(suffix: str, fleet: Fleet) -> Callable[[bytes], None]:
    """Read a file as `rul predict` does without a fleet, and as `rul fleet` does."""

    def read(stored: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"file{suffix}"
            file.write_bytes(stored)
            for each in (
                lambda: read_with_report(file, fleet, run_to_failure=False, allow_absent=True),
                lambda: read_columns(file, form=SUFFIXES[suffix.removesuffix(".gz")]),
            ):
                check(each)

    return read


def digests(stored: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SUMS).write_bytes(stored)
        read_digests(Path(folder))


def check(read: Callable[[], object]) -> None:
    """Check that an input is read or refused in time; the error of a bundle is one printable line.

    Slow inputs are tried again, because a pause of the garbage collector is slow only once.
    """
    assert any(_seconds(read) < SECONDS for _ in range(3))


def _seconds(read: Callable[[], object]) -> float:
    began = time.thread_time()
    try:
        read()
    except InvalidBundle as refusal:
        assert str(refusal).isprintable(), refusal  # noqa: PT017 a property, not a test
    except RulError:
        pass
    return time.thread_time() - began


@cache
def table_bytes(suffix: str) -> bytes:
    """Make a small valid table."""
    units = [numbered_unit(3, columns=3, unit=name) for name in ("a", "b")]
    if suffix == ".csv":
        return csv_text(units, PUMPS.schema)
    if suffix in {".parquet", ".feather", ".xlsx"}:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            if suffix == ".xlsx":
                write_xlsx(
                    file.name, [("unit", "cycle", *PUMPS.sources), ("a", 1, 2.5, None, date(2026, 3, 1))]
                )
                return Path(file.name).read_bytes()
            write_parquet(Path(file.name), units, PUMPS.schema)
            if suffix == ".feather":
                write_feather(read_table(file.name), file.name)
            return Path(file.name).read_bytes()
    return b"".join(b" ".join(b"%d" % (row + i) for i in range(26)) + b"\n" for row in range(3))


TOKENED = st.lists(TOKENS, max_size=60).map(lambda parts: "".join(parts).encode())
SUM_LINES = "".join(f"{'0' * 64}  {name}\n" for name in COVERED).encode()
CMAPSS = fleet_named("cmapss")
ROWS = TOKENED.map(lambda rows: b"unit,cycle,load\n" + rows)
GOLDENS = st.deferred(lambda: rearranged(golden_arrays()) | edited(_packed(golden_arrays())))
REFERENCES = st.deferred(lambda: rearranged(reference_arrays()) | edited(_packed(reference_arrays())))
MANIFESTS = altered(TEXT) | edited(TEXT.encode()).map(lambda stored: stored.decode("utf-8", "replace"))


def table(suffix: str) -> st.SearchStrategy[bytes]:
    return st.deferred(lambda: edited(table_bytes(suffix)))


@st.composite
def sheet(draw: st.DrawFn) -> bytes:
    """Edit one part of a spreadsheet."""
    with zipfile.ZipFile(io.BytesIO(table_bytes(".xlsx"))) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    name = draw(st.sampled_from(sorted(parts)))
    parts[name] = draw(edited(parts[name]))
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as whole:
        for name, part in parts.items():
            whole.writestr(name, part)
    return stored.getvalue()


PARSERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "manifest": (MANIFESTS, read_manifest),
    "golden windows": (GOLDENS, read_golden),
    "drift reference": (REFERENCES, read_reference),
    "digests": (edited(SUM_LINES) | st.binary(max_size=200), digests),
    "CSV": (table(".csv") | TOKENED | ROWS, reader(".csv", PUMPS)),
    "Parquet": (table(".parquet"), reader(".parquet", PUMPS)),
    "Feather": (table(".feather"), reader(".feather", PUMPS)),
    "spreadsheet": (table(".xlsx") | sheet(), reader(".xlsx", PUMPS)),
    "packed": (table(".csv").map(gzip.compress) | table(".csv"), reader(".csv.gz", PUMPS)),
    "C-MAPSS text": (table(".txt") | TOKENED, reader(".txt", CMAPSS)),
}


def fuzz(name: str, *, examples: int, repeatable: bool) -> None:
    """Feed a number of inputs to one parser."""
    inputs, read = PARSERS[name]

    @settings(
        max_examples=examples, derandomize=repeatable, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(given_input=inputs)
    def each(given_input: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(lambda: read(given_input))

    each()


def main(
    examples: Annotated[int, typer.Option(help="Inputs a parser.")] = 300,
    parser: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
) -> None:
    """Fuzz parsers, and print the time of each."""
    for name in parser or PARSERS:
        began = time.monotonic()
        fuzz(name, examples=examples, repeatable=False)
        print(f"{name}: {examples:,} inputs, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
