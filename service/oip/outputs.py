"""From the batches that answered a request back to its tensors: each window's row to its own place.

The numbers are those of `POST /v1/predict`. This module must not know how tensors travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from model.domain import FloatArray, IntArray
from service.core.answers import Answers, WindowOutputs
from service.oip.tensors import Tensor, TensorSpec
from service.oip.windows import Group

Source = Callable[[Answers], Any]
"""A batch's values of one output: an array, or lists of numbers."""

SOURCES: Final[dict[str, Source]] = {
    "rul": lambda answers: answers.rul,  # the cap where the state is "at least the cap", as everywhere
    "rul_interval": lambda answers: answers.outputs.rul_interval,
    "failure_probability": lambda answers: answers.outputs.failure_probability,
    "health_state": lambda answers: answers.outputs.health_state,
    "attention": lambda answers: answers.outputs.attention,
    "contribution": lambda answers: answers.outputs.contribution,
    "head_attention": lambda answers: answers.outputs.head_attention,
    "novelty": lambda answers: answers.outputs.novelty,
}
PER_CYCLE: Final = frozenset({"attention", "contribution", "head_attention"})


class Gathering:
    """Where each window of a request was answered: some rows of some batches."""

    def __init__(self, outputs: Sequence[WindowOutputs], group: Group) -> None:
        self._group: Final = group
        batches: dict[int, tuple[Answers, list[int], list[int]]] = {}
        for place, output in enumerate(outputs):
            batch = batches.setdefault(id(output.answers), (output.answers, [], []))
            batch[1].append(place)
            batch[2].append(output.row)
        self._batches: Final[list[tuple[Answers, IntArray, IntArray]]] = [
            (answers, np.array(places), np.array(rows)) for answers, places, rows in batches.values()
        ]
        width = self._batches[0][0].outputs.attention.shape[1]
        self._whole: Final[bool] = width == group.cycles and not group.starts.any()

    def tensor(self, spec: TensorSpec) -> Tensor:
        """One output, float32, of the shape that the request's readings ask for."""
        if len(self._batches) == 1 and (spec.name not in PER_CYCLE or self._whole):
            answers, _, rows = self._batches[0]  # all places, in order
            return Tensor(spec.name, spec.datatype, values_of(spec, answers)[rows])
        shape = spec.sized(windows=len(self._group.windows), cycles=self._group.cycles)
        values: FloatArray = np.zeros(shape, dtype=np.float32)
        for answers, places, rows in self._batches:
            batch = values_of(spec, answers)
            if spec.name in PER_CYCLE:
                self._place_cycles(values, places, batch[rows])
            else:
                values[places] = batch[rows]
        return Tensor(spec.name, spec.datatype, values)

    def _place_cycles(self, values: FloatArray, places: IntArray, answered: FloatArray) -> None:
        """Cycles that the model did not read weigh nothing, and add nothing."""
        starts, stops = self._group.starts[places], self._group.stops[places]
        if not starts.any():
            width = min(values.shape[-1], answered.shape[-1])
            values[places, ..., :width] = answered[..., :width]
            return
        for place, row, start, stop in zip(
            places.tolist(), answered, starts.tolist(), stops.tolist(), strict=True
        ):
            values[place, ..., start:stop] = row[..., : stop - start]


def values_of(spec: TensorSpec, answers: Answers) -> FloatArray:
    """What a batch answered of one output, float32 [B, ...]."""
    return np.asarray(SOURCES[spec.name](answers), dtype=np.float32)
