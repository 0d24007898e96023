"""Latency of a full explanation of one window without other load: the figures of docs/explanations.md.

    python -m tests.benchmarks.explain [--bundle fd001] [--requests 300]

One caller sends full windows of simulated units to a service on all cores.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import httpx
import msgspec
import numpy as np
import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.simulation import simulate
from tests.benchmarks.front_ends import serving


def bodies(bundle: str, count: int) -> list[bytes]:
    """Write a request for the last window of each of `count` units that has a full one."""
    _, manifest = open_bundle(find_bundle(bundle))
    units = simulate(manifest, manifest.schema_of_columns, units=count, seed=0)
    long = [unit for unit in units if len(unit) >= manifest.context]
    windows = [unit.readings[-manifest.context :].tolist() for unit in long]
    return [
        msgspec.json.encode({"windows": [{"last_cycle": float(unit.cycles[-1]), "readings": rows}]})
        for unit, rows in zip(long, windows, strict=True)
    ]


def main(*, bundle: str = "fd001", requests: int = 300, server: str = "envoy") -> None:
    """Print latency quantiles of each path, in milliseconds."""
    sent = bodies(bundle, 40)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(server, bundle, Path(folder)) as served,
        httpx.Client(base_url=served.http, trust_env=False) as client,
    ):
        for path in ("/v1/predict", "/v1/explain"):
            taken: list[float] = []
            for n in range(requests + len(sent)):
                start = time.perf_counter()
                response = client.post(
                    path, content=sent[n % len(sent)], headers={"content-type": "application/json"}
                )
                taken.append(1000 * (time.perf_counter() - start))
                assert response.status_code == 200, response.text
            low, middle, high = np.quantile(taken[len(sent) :], (0.05, 0.5, 0.99))
            print(f"{path}: p5 {low:.1f} ms, p50 {middle:.1f} ms, p99 {high:.1f} ms")


if __name__ == "__main__":
    typer.run(main)
