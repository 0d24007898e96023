"""Units of fd001 for the tests of the web page's unit view, stored by a running service."""

from __future__ import annotations

from urllib.parse import quote

import httpx
from playwright.sync_api import Page

from tests.browser import Visit
from tests.ingesting import settled


def lives(client: httpx.Client, unit: str, *, seed: int, share: float) -> None:
    """Store the readings of a share of a simulated life for a unit, with predictions along it."""
    life = client.get(f"/v1/models/fd001/simulated?seed={seed}").json()
    cycles = life["cycles"][: int(share * len(life["cycles"]))]
    columns = {name: values[: len(cycles)] for name, values in life["columns"].items()}
    windows = [
        {
            "unit": unit,
            "last_cycle": end,
            "columns": {name: values[max(0, end - 60) : end] for name, values in columns.items()},
        }
        for end in range(10, len(cycles), 6)
    ]
    asked = {"model": "fd001", "windows": windows, "explain": "none"}
    client.post("/v1/predict", json=asked).raise_for_status()
    body = {"model": "fd001", "cycles": cycles, "columns": columns}
    settled(client, "POST", f"/v1/units/{quote(unit, safe='')}/cycles", json=body)


def show(opened: Visit, unit: str, *, query: str = "") -> Page:
    """Open the view of a unit, and wait for its charts."""
    opened.go(f"#/unit/fd001/{quote(unit, safe='')}{query}")
    opened.page.locator(".life").wait_for()
    return opened.page


def falls_silent(client: httpx.Client, unit: str, *, seed: int, share: float, refused: int) -> int:
    """Store a life for a unit, then readings of one sensor only, whose windows are refused."""
    lives(client, unit, seed=seed, share=share)
    return refused_readings(client, unit, refused=refused)


def refused_readings(client: httpx.Client, unit: str, *, refused: int) -> int:
    """Store readings of one sensor only, whose windows are refused; return the last cycle before them."""
    last: int = client.get(f"/v1/units/{unit}?model=fd001&limit=1").json()["readings"]["cycles"][-1]
    cycles = [*range(last + 1, last + 1 + refused)]
    body = {"cycles": cycles, "columns": {"sensor_2": [642.0] * refused}}
    answer = client.post(f"/v1/units/{unit}/cycles", json=body).json()
    assert answer["refusal"] is not None
    return last


def read_on(client: httpx.Client, unit: str, *, seed: int) -> None:
    """Store the next reading of a unit's simulated life."""
    life = client.get(f"/v1/models/fd001/simulated?seed={seed}").json()
    last: int = client.get(f"/v1/units/{unit}?model=fd001&limit=1").json()["readings"]["cycles"][-1]
    columns = {name: values[last] for name, values in life["columns"].items()}
    client.post(f"/v1/units/{unit}/cycles", json={"columns": columns}).raise_for_status()
