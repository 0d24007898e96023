"""The graph as a model of Triton's Python back end, which passes the calls of a batch one by one."""

from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from graph import Graph


class TritonPythonModel:
    """One instance, in its own process."""

    def initialize(self, args: dict[str, str]) -> None:
        self.graph = Graph()

    def execute(self, requests: list[Any]) -> list[Any]:
        given = [
            [triton.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in ("readings", "last_cycle")
        ]
        outputs = self.graph.run(*map(np.concatenate, given))
        stops = np.cumsum([len(readings) for readings in given[0]])[:-1]
        parts = {name: np.split(values.reshape(len(values), -1), stops) for name, values in outputs.items()}
        return [
            triton.InferenceResponse([triton.Tensor(name, part[i]) for name, part in parts.items()])
            for i in range(len(requests))
        ]
