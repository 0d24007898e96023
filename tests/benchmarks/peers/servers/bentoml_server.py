"""BentoML as in its tutorial on batching. A batchable method has one argument, so units have no age."""

from typing import Any

import bentoml
import numpy as np
from graph import CORES, Graph, rows


@bentoml.service(workers=CORES, traffic={"timeout": 60})
class Peer:
    """One method."""

    def __init__(self) -> None:
        self.graph = Graph()

    # A call of 64 windows must fit into a batch; `max_latency_ms` is a limit above which calls are refused.
    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=60_000)
    def predict(self, readings: np.ndarray) -> list[dict[str, Any]]:
        """Answer readings [B, T, F] with one object per window."""
        return rows(self.graph.run(readings))
