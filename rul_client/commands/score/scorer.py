"""Answers the windows of one part, by the service's own checks, graph and answers.

Windows are cut, checked and read many at once, without requests. Only this module of `rul score` knows
service.core and service.drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from export.bundle import find_bundle
from model.domain import HEALTH_LABELS, IntArray
from rul_client.commands.predict.input_file import described_by
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.part_readings import Refusal, read_part
from rul_client.commands.score.part_table import ragged, schema_of, table_of, write_part
from rul_client.commands.score.places import Place
from rul_client.commands.score.plan import Part
from rul_client.commands.score.unit_windows import UnitWindows
from service.core.answers import STATES, Answers
from service.core.bundles import load_bundle
from service.core.queries import ModelName
from service.core.rules import WindowRules
from service.core.runtime import Asked, stacked
from service.core.window import Windows, check
from service.drift.counts import DriftCounts, Layout
from service.drift.monitor import Drift, drift_of
from service.settings import Settings

WINDOWS_AT_ONCE: Final = 512
"""Windows that are cut and checked at once; batches of the graph are smaller."""
ENDLESS: Final = 2**60
"""Windows that drift is counted over: all."""
_STATES: Final = np.array(STATES)
_HEALTH: Final = np.array(HEALTH_LABELS)
Watch = Callable[[int], None]
"""Hears of windows that are done."""


class Scorer:
    """A bundle, an input and an output, open in this process."""

    def __init__(self, job: Job) -> None:
        settings = Settings.read()
        self.job: Final = job
        runtime = load_bundle(find_bundle(job.bundle), settings)
        self.manifest: Final = runtime.manifest
        self.name: Final = ModelName(self.manifest.name, self.manifest.version, runtime.sha256)
        self.fleet: Final = described_by(self.manifest, job.fleet)
        self.optional: Final = self.fleet.sources if job.fleet is None else ()
        self.schema: Final = schema_of(self.manifest, self.name, job)
        self.source: Final = Place.of(job.source).folder()
        self.output: Final = Place.of(job.output)
        self._rules: Final = WindowRules.of(self.manifest, max_window_cycles=self.manifest.context)
        self.provider: Final = runtime.provider
        self.batch_windows: Final = settings.max_batch_windows
        self._graph: Final = runtime.run
        self._reference: Final = runtime.drift_reference
        self._layout: Final = Layout.of(runtime.drift_reference)

    def drift_counts(self) -> tuple[DriftCounts, Any]:
        """Return counts that never forget, and their first block, which takes them all."""
        storage = np.zeros(self._layout.size)
        return DriftCounts(storage, self._reference, windows=ENDLESS), storage[: self._layout.block]

    def drift_of(self, block: list[float]) -> Drift:
        """Compare counts with the bundle's reference."""
        storage = np.zeros(self._layout.size)
        storage[: self._layout.block] = block
        return drift_of(storage, self._reference, self._layout)

    def answers(
        self, windows: UnitWindows, refuse: Callable[[int, str | None, str], None]
    ) -> Iterator[tuple[IntArray, Answers]]:
        """Answer windows, short ones first, with their places.

        `refuse` takes the place, column and reason of each window that cannot be read.
        """
        for which in windows.by_length(WINDOWS_AT_ONCE):
            last_cycle = windows.last_cycle[which].astype(np.float64).tolist()
            checked, defects = check(
                windows.readings(which), windows.lengths[which].tolist(), last_cycle, self._rules
            )
            for defect in defects:
                column = None if defect.column is None else self._rules.names[defect.column]
                refuse(int(which[defect.window]), column, defect.detail)
            if defects:
                kept = np.setdiff1d(np.arange(len(which)), [defect.window for defect in defects])
                which, checked = which[kept], checked.only(kept.tolist())  # noqa: PLW2901 without the refused
            yield from self._answered(which, checked)

    def _answered(self, which: IntArray, windows: Windows) -> Iterator[tuple[IntArray, Answers]]:
        """Ask the graph in batches; answers of as many cycles are joined."""
        places = range(len(which))
        batches = [places[i : i + self.batch_windows] for i in places[:: self.batch_windows]]
        asked = [stacked([(windows, batch)]) for batch in batches]
        start = 0
        for _, same in groupby(asked, key=lambda each: each.readings.shape[1]):
            answers = Answers.joined([*map(self._answer, same)])
            count = len(answers.asked.lengths)
            yield which[start : start + count], answers
            start += count

    def _answer(self, asked: Asked) -> Answers:
        outputs = self._graph(asked.readings, asked.lengths, asked.last_cycle)
        return Answers(asked, outputs, self.manifest, self._rules)

    def columns(self, windows: UnitWindows, which: IntArray, answers: Answers) -> dict[str, Any]:
        """Return the columns of answers to windows at these places."""
        outputs, lengths = answers.outputs, windows.lengths[which]
        weights = outputs.attention if outputs.evidence is None else outputs.evidence
        columns: dict[str, Any] = {
            "unit": windows.names[windows.unit[which]],
            "last_cycle": windows.last_cycle[which],
            "rul": answers.reported.rul,
            "rul_state": _STATES[answers.state],
            "rul_lower": outputs.rul_interval[:, 0],
            "rul_upper": outputs.rul_interval[:, 1],
            "health_state": _HEALTH[answers.health_label],
            "entropy_ratio": answers.entropy_ratio,
            "top_cycle": windows.cycles_at(which, weights.argmax(axis=1)),
            "novelty": outputs.novelty,
        }
        for horizon, column in zip(self.manifest.horizons, outputs.failure_probability.T, strict=True):
            columns[f"failure_within_{horizon}"] = column
        if self.job.attention:
            columns["attention"] = ragged(outputs.attention, lengths)
        if self.job.contributions:
            columns["contributions"] = ragged(outputs.contribution, lengths)
        return columns | self._of_sensors(answers, lengths)

    def _of_sensors(self, answers: Answers, lengths: IntArray) -> dict[str, Any]:
        """Return the columns of models that explain readings."""
        of_columns, evidence = answers.of_columns, answers.outputs.evidence
        if of_columns is None or evidence is None:
            return {}
        sensors = np.array(self._rules.sensors)
        of_sensors = of_columns[:, sensors]
        most = np.argsort(-np.abs(of_sensors), axis=1, kind="stable")
        columns: dict[str, Any] = {}
        for name, first in zip(("top_sensor", "second_sensor"), most.T, strict=False):
            columns[name] = np.array(self._rules.names)[sensors[first]]
            columns[f"{name}_cycles"] = np.take_along_axis(of_sensors, first[:, None], axis=1)[:, 0]
        if self.job.attention:
            columns["evidence"] = ragged(evidence, lengths)
        if self.job.contributions:
            columns["sensor_contributions"] = ragged(of_sensors, np.full(len(lengths), len(sensors)))
        return columns


def score_part(part: Part, scorer: Scorer, watch: Watch = lambda _: None) -> Tally:
    """Answer the windows of a part, and write its files; the same part always gives the same files."""
    read = read_part(scorer.source, part, scorer.fleet, optional=scorer.optional)
    refused, tables, order = [*read.refused], [scorer.schema.empty_table()], [np.array([], np.int64)]
    counts, drift = scorer.drift_counts()
    states, health = Counter[str](), Counter[str]()
    if read.units:
        windows = UnitWindows(read.units, context=scorer.manifest.context, every=scorer.job.every)

        def refuse(place: int, column: str | None, reason: str) -> None:
            unit = read.units[windows.unit[place]].unit
            cycle = float(windows.last_cycle[place])
            refused.append(Refusal(read.file_of_unit[unit], None, unit, cycle, column, reason))

        for which, answers in scorer.answers(windows, refuse):
            columns = scorer.columns(windows, which, answers)
            tables.append(table_of(columns, scorer.schema))
            order.append(which)
            counts.count(answers.bare(), columns["unit"])
            states.update(columns["rul_state"].tolist())
            health.update(columns["health_state"].tolist())
            watch(len(which))
    table = pa.concat_tables(tables).take(np.argsort(np.concatenate(order)))
    tally = Tally(
        readings=read.readings,
        units=len(read.units),
        windows=table.num_rows,
        refused_readings=len(read.refused),
        refused_windows=len(refused) - len(read.refused),
        infinite=read.infinite,
        rul_states=dict(sorted(states.items())),
        health_states=dict(sorted(health.items())),
        drift=drift.tolist(),
    )
    write_part(scorer.output, part, table, refused, tally)
    return tally
