"""Readings as from the field, out of order and repeated, and the answers to whole windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from threading import Lock
from time import monotonic
from typing import Any, Final

import httpx
import numpy as np

from model.domain import Trajectory

WITHIN_CYCLES: Final = 5
"""Maximum cycles by which a reading is early or late."""
REPEATED: Final = 0.1
"""Share of the readings that are repeated, up to 2 * `WITHIN_CYCLES` cycles later."""


def disordered(cycles: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Shuffle cycles within `WITHIN_CYCLES`, and repeat some."""
    again = [cycle for cycle in cycles if rng.random() < REPEATED]
    late = [(cycle + WITHIN_CYCLES * rng.random(), cycle) for cycle in cycles]
    late += [(cycle + 2 * WITHIN_CYCLES * rng.random(), cycle) for cycle in again]
    return [cycle for _, cycle in sorted(late)]


def reading(unit: Trajectory, cycle: int, names: Sequence[str]) -> dict[str, Any]:
    """Return one reading of a unit as JSON."""
    row = unit.readings[int(np.searchsorted(unit.cycles, cycle))]
    return {"cycle": int(cycle), "columns": dict(zip(names, map(float, row), strict=True))}


def whole(unit: Trajectory, names: Sequence[str], known: Collection[int] = ()) -> dict[str, Any]:
    """Make one window of a unit's life for /v1/predict: all of it, or `known` cycles and their gaps."""
    shown = sorted(known) if known else unit.cycles.tolist()
    every = np.full((shown[-1] - shown[0] + 1, unit.readings.shape[1]), np.nan)
    every[np.array(shown) - shown[0]] = unit.readings[np.searchsorted(unit.cycles, shown)]
    columns = {
        name: [None if np.isnan(value) else float(value) for value in of]
        for name, of in zip(names, every.T, strict=True)
    }
    return {"unit": unit.unit, "last_cycle": shown[-1], "columns": columns}


def answers(http: httpx.Client, model: str, windows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of /v1/predict to these windows, without storing them."""
    body = {"model": model, "windows": windows, "explain": "none", "store": False}
    return http.post("/v1/predict", json=body).raise_for_status().json()["predictions"]


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference between two predictions, in cycles or probability."""
    assert one["rul_state"] == other["rul_state"], (one, other)
    pairs = [(one["rul"], other["rul"])]
    pairs += [(one["interval"][name], other["interval"][name]) for name in ("lower", "upper")]
    probabilities = one["failure_probability"], other["failure_probability"]
    pairs += [(probabilities[0][h], probabilities[1][h]) for h in probabilities[1]]
    return max(abs(a - b) for a, b in pairs)


PATIENCE_SECONDS: Final = 60
Append = Callable[[str, dict[str, Any]], object]
"""Sends a reading of a unit, and raises if it was not acknowledged."""


def settled(http: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Retry while the store opens, which on a busy machine takes longer than the start of the service."""
    give_up_at = monotonic() + PATIENCE_SECONDS
    while True:
        answer = http.request(method, path, **options)
        if answer.status_code != 503 or monotonic() > give_up_at:
            return answer.raise_for_status().json()


def by_http(http: httpx.Client, **fields: object) -> Append:
    """Append by HTTP, with these additional fields."""
    return lambda unit, given: settled(http, "POST", f"/v1/units/{unit}/cycles", json=given | fields)


class Devices:
    """Units that report readings out of order, some twice, and record acknowledgements.

    Attributes:
        left: Remaining cycles, by unit.
        acknowledged: Acknowledged cycles, by unit.
        sent: Number of acknowledged readings, including repetitions.
    """

    def __init__(self, units: Sequence[Trajectory], names: Sequence[str], *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.units, self.names = units, names
        self.left = {unit.unit: disordered(unit.cycles.tolist(), rng) for unit in units}
        self.acknowledged: dict[str, set[int]] = {unit.unit: set() for unit in units}
        self.sent = 0
        self._lock: Final = Lock()

    def report(
        self, threads: Executor, appends: Iterable[Append], *, share: float = 1.0
    ) -> list[Future[None]]:
        """Start reporting this share of the remaining cycles, each unit by one of `appends`."""
        return [
            threads.submit(self._send, unit, append, round(share * len(self.left[unit.unit])))
            for unit, append in zip(self.units, appends, strict=False)
        ]

    def _send(self, unit: Trajectory, append: Append, count: int) -> None:
        """Report a number of readings, or fewer if the service dies."""
        left = self.left[unit.unit]
        for _ in range(count):
            try:
                append(unit.unit, reading(unit, left[0], self.names))
            except httpx.TransportError:
                return
            self.acknowledged[unit.unit].add(left.pop(0))
            with self._lock:
                self.sent += 1

    def lost(self, http: httpx.Client, model: str) -> int:
        """Count acknowledged readings that are not stored."""
        return sum(
            len(cycles - stored(http, unit, model)) for unit, cycles in self.acknowledged.items() if cycles
        )

    def worst(self, http: httpx.Client, **fields: object) -> float:
        """Repeat each unit's last reading; return the largest difference to its whole window's answer."""
        append = by_http(http, **fields)
        last: list[Any] = [append(u.unit, reading(u, u.cycles[-1], self.names)) for u in self.units]
        assert {(answer["stored"], answer["repeated"]) for answer in last} == {(0, 1)}
        model = last[0]["model"]["name"]
        expected = answers(http, model, [whole(unit, self.names) for unit in self.units])
        return max(distance(a["prediction"], of_whole) for a, of_whole in zip(last, expected, strict=True))


def stored(http: httpx.Client, unit: str, model: str) -> set[int]:
    """Read the cycles of a unit's stored readings, page by page."""
    found: set[int] = set()
    params: dict[str, Any] = {"model": model, "limit": 1000}
    while True:
        body = settled(http, "GET", f"/v1/units/{unit}", params=params)
        found |= {*body["readings"]["cycles"]}
        if body["next"] is None:
            return found
        params["before"] = body["next"]
