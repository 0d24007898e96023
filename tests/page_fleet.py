"""A fleet of pumps for the tests of the web page, predicted by a running service."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx
import numpy as np

from tests.tiny_bundle import FLEET, pumps
from tests.waiting import wait_until

SECONDS: Final = 120
SEED: Final = 7
A_REQUEST: Final = 500
EARLIER: Final = (12, 8, 4, 0)
"""Cycles from each prediction of a unit to its last one."""
STRANGE: Final = "pump-0003"
"""The unit with readings unlike the training data."""
HEARD: Final = """async (name) => {
    const { follow } = await import("/page/api.js");
    const { signal } = new AbortController();
    let heard;
    await new Promise((live) => {
        heard = new Promise((resolve) => follow({
            signal, onState: live,
            onEvent: (_, units) => units.some(({ unit }) => unit === name) && setTimeout(resolve),
        }));
    });
    return { heard };
}"""
"""A promise of the next event of a unit, on a stream beside the page's own."""


def fill(base: str, *, units: int, earlier: tuple[int, ...] = EARLIER) -> None:
    """Predict `units` pumps, each at a random cycle of its life and at some earlier cycles."""
    rng = np.random.default_rng(SEED)
    lives = pumps(units=units, seed=SEED)
    ends = [int(rng.integers(20, len(life.cycles) + 1)) for life in lives]
    with httpx.Client(base_url=base, timeout=SECONDS, trust_env=False) as client:
        for back in earlier:
            windows = [
                window(i, life, end - back) for i, (life, end) in enumerate(zip(lives, ends, strict=True))
            ]
            for start in range(0, units, A_REQUEST):
                predict(client, windows[start : start + A_REQUEST])
        # A later one would change the fleet while a test looks at it, or be judged too late.
        wait_until(lambda: written(client) == units * len(earlier), SECONDS, what="stored predictions")


def written(client: httpx.Client) -> int:
    """Return the number of predictions that all workers have written."""
    found = re.search(r'^rul_store_rows_total\{kind="prediction"\} (\S+)$', client.get("/metrics").text, re.M)
    return int(float(found[1])) if found else 0


def window(number: int, life: Any, end: int) -> dict[str, Any]:
    """Return the window of a pump that ends at this cycle."""
    name = f"pump-{number:04d}"
    readings = life.readings[max(0, end - FLEET.context) : end] * (8 if name == STRANGE else 1)
    return {"unit": name, "last_cycle": end, "readings": readings.tolist()}


def predict(client: httpx.Client, windows: list[dict[str, Any]]) -> None:
    """Request predictions, which the service stores."""
    reply = client.post("/v1/predict", json={"model": "tiny", "explain": "none", "windows": windows})
    assert reply.is_success, reply.text
