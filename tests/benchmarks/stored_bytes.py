"""Bytes of a stored reading in SQLite: `python -m tests.benchmarks.stored_bytes`.

Units report in turn, one cycle per request, as in `POST /v1/units/{unit}/cycles`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.simulation import simulate
from service.store.rows import Append, Given, UnitKey
from service.store.store import Store


def main(*, bundle: str = "fd001", units: int = 200, cycles: int = 100) -> None:
    """Store readings of simulated units; print the bytes that each adds to the file."""
    manifest = open_bundle(find_bundle(bundle))[1]
    names = manifest.schema_of_columns.names
    lives = simulate(manifest, manifest.schema_of_columns, units=units, seed=1)
    alive = [[life for life in lives if len(life) > cycle] for cycle in range(cycles)]
    with tempfile.TemporaryDirectory() as folder:
        empty, full = (
            stored(Path(folder) / name, turns, names) for name, turns in (("empty", []), ("full", alive))
        )
    readings = sum(map(len, alive))
    print(f"{readings} readings of {len(names)} columns: {(full - empty) / readings:.0f} bytes each")


def stored(file: Path, turns: Sequence[Sequence[Trajectory]], names: tuple[str, ...]) -> int:
    """Store a reading of each unit in each turn; return the bytes of the closed database."""
    store = Store.open(f"sqlite:///{file}")
    for cycle, lives in enumerate(turns):
        rows = [(UnitKey("", "bench", life.unit), life.readings[cycle : cycle + 1]) for life in lives]
        requests = [
            Append(key, names, 1, Given([cycle], row, lambda i, name: f"/{i}/{name}")) for key, row in rows
        ]
        store.readings.append(requests, at=float(cycle))
    store.close()
    return file.stat().st_size


if __name__ == "__main__":
    typer.run(main)
