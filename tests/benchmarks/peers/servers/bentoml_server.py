"""BentoML as its tutorial on batching has it. A batchable method has one argument: no unit says its age."""

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
        """Readings [B, T, F] to one object a window."""
        return rows(self.graph.run(readings))
