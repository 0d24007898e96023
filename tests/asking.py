"""Requests for both transports, to compare their answers."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from export.golden import Golden
from model.domain import FloatArray
from service.proto import rul_v1_pb2 as pb


@dataclass(frozen=True, eq=False)
class Asked:
    """A window, independent of a transport."""

    readings: FloatArray  # [T, F]
    last_cycle: float | None = None
    unit: str | None = None

    def json(self) -> dict[str, Any]:
        """Return the window as HTTP's JSON."""
        rows = [[None if np.isnan(x) else float(x) for x in row] for row in self.readings]
        return {"unit": self.unit, "last_cycle": self.last_cycle, "readings": rows}

    def message(self) -> pb.Window:
        """Return the window as gRPC's message."""
        values = pb.Readings(values=self.readings.ravel().tolist())
        return pb.Window(unit=self.unit, last_cycle=self.last_cycle, readings=values)


class Stream:
    """An open `PredictStream`, one reading at a time; a context manager that ends the stream."""

    def __init__(self, stub: Any, *, timeout: float = 60, **options: Any) -> None:
        self._asked: queue.Queue[pb.StreamRequest | None] = queue.Queue()
        self.call = stub.PredictStream(iter(self._asked.get, None), timeout=timeout)
        self._asked.put(pb.StreamRequest(open=pb.StreamOpen(**options)))
        try:
            assert next(self.call).HasField("opened")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def send(self, values: list[float], **options: Any) -> None:
        """Send a reading."""
        self._asked.put(pb.StreamRequest(reading=pb.Reading(values=values, **options)))

    def ask(self, values: list[float], **options: Any) -> pb.StreamReply:
        """Send a reading and wait for its reply."""
        self.send(values, **options)
        return next(self.call)

    def end(self) -> None:
        """End the client's side."""
        self._asked.put(None)

    def close(self) -> None:
        """End the client's side; no further reply may come."""
        self.end()
        assert list(self.call) == []


def golden_windows(golden: Golden) -> list[Asked]:
    """Return the golden windows of a bundle, as a client would send them."""
    return [
        Asked(
            readings[:length],
            None if np.isnan(last_cycle) else float(last_cycle),
            f"unit-{i}",
        )
        for i, (readings, length, last_cycle) in enumerate(
            zip(golden.readings, golden.lengths, golden.last_cycle, strict=True)
        )
    ]
