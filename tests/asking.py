"""Questions that both transports can ask, so that what they answer can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from export.golden import Golden
from model.domain import FloatArray
from service.proto import rul_v1_pb2 as pb


@dataclass(frozen=True, eq=False)
class Asked:
    """A window, not yet in the words of a transport."""

    readings: FloatArray  # [T, F]
    last_cycle: float | None = None
    unit: str | None = None

    def json(self) -> dict[str, Any]:
        """As HTTP has it."""
        rows = [[None if np.isnan(x) else float(x) for x in row] for row in self.readings]
        return {"unit": self.unit, "last_cycle": self.last_cycle, "readings": rows}

    def message(self) -> pb.Window:
        """As gRPC has it."""
        values = pb.Readings(values=self.readings.ravel().tolist())
        return pb.Window(unit=self.unit, last_cycle=self.last_cycle, readings=values)


def golden_windows(golden: Golden) -> list[Asked]:
    """The golden windows of a bundle, as a client would send them."""
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
