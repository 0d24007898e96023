"""Answers the windows of one part, by the service's own checks, graph and answers.

Windows are cut, checked and read many at once, without requests. Only this module of `rul score` knows
service.core and service.drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np

from export.bundle import find_bundle
from model.domain import HEALTH_LABELS, IntArray
from rul_client.commands.predict.input_file import described_by
from rul_client.commands.score.job import Job, Tally
from rul_client.commands.score.locations import Location
from rul_client.commands.score.part_readings import Refusal, read_part
from rul_client.commands.score.part_table import (
    BY_CYCLE,
    Columns,
    labelled,
    lists,
    schema_of,
    table_of,
    write_part,
)
from rul_client.commands.score.plan import Part
from rul_client.unit_windows import UnitWindows
from service.core.answers import STATES, Answers
from service.core.bundles import load_bundle
from service.core.providers import ON_GPU
from service.core.queries import ModelName
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs, stacked
from service.core.window import check
from service.drift.counts import DriftCounts, block_size
from service.drift.monitor import ENOUGH, SHORT, drift_of
from service.settings import Settings

TOGETHER: Final = 512
"""Windows that are cut, checked and read together: NumPy costs less a window. A GPU runs all at once."""
BATCH_WINDOWS: Final = 64
"""Windows that a CPU runs at once: more do not fit into its caches."""
DRIFT_CYCLES: Final = 8
"""Cycles between windows of a unit that drift counts: nearer ones repeat each other."""
ENDLESS: Final = 2**60
"""Windows that drift is counted over: all."""


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
        self.source: Final = Location.of(job.source).folder()
        self.output: Final = Location.of(job.output)
        self._rules: Final = WindowRules.of(self.manifest, max_window_cycles=self.manifest.context)
        self.provider: Final = runtime.provider
        most = TOGETHER if runtime.provider in ON_GPU else BATCH_WINDOWS
        self.batch_windows: Final = max(settings.max_batch_windows, most)
        self._graph: Final = runtime.run
        self._reference: Final = runtime.drift_reference

    def drift_counts(self) -> tuple[DriftCounts, Any]:
        """Return counts that never forget, and the block that takes them all."""
        block = np.zeros(block_size(self._reference))
        return DriftCounts(block, self._reference, windows=ENDLESS), block

    def drift_of(self, block: list[float]) -> dict[str, Any]:
        """Compare counts with the bundle's reference, as the summary has it."""
        drift = drift_of(np.array(block), self._reference)
        found = {
            "columns": drift.columns,
            "prediction": drift.prediction,
            "unseen_regime_share": drift.unseen,
            "judged": any(index != SHORT for index in (*drift.columns.values(), drift.prediction)),
            "enough": ENOUGH,
        }
        return msgspec.to_builtins(found)

    def answers(
        self, windows: UnitWindows, refuse: Callable[[int, str | None, str], None]
    ) -> Iterator[tuple[IntArray, Answers]]:
        """Answer windows, short ones first, with their places.

        `refuse` takes the place, column and reason of each window that cannot be read.
        """
        for which in windows.by_length(max(TOGETHER, self.batch_windows)):
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
            if len(which):
                asked = stacked([(checked, range(len(which)))])
                yield which, Answers(asked, self._outputs(asked), self.manifest, self._rules)

    def _outputs(self, asked: Asked) -> Outputs:
        """Run the graph, batch by batch."""
        starts = range(0, len(asked.lengths), self.batch_windows)
        batches = [slice(start, start + self.batch_windows) for start in starts]
        return Outputs.joined(
            [self._graph(asked.readings[at], asked.lengths[at], asked.last_cycle[at]) for at in batches]
        )

    def numbers(self, answers: Answers) -> dict[str, Any]:
        """Return what the output says of each answer, [B] or [B, n]; labels and cycles by their places."""
        outputs = answers.outputs
        weights = outputs.attention if outputs.evidence is None else outputs.evidence
        numbers: dict[str, Any] = {
            "rul": answers.reported.rul,
            "rul_state": answers.state,
            "rul_lower": outputs.rul_interval[:, 0],
            "rul_upper": outputs.rul_interval[:, 1],
            "health_state": answers.health_label,
            "entropy_ratio": answers.entropy_ratio,
            "top_cycle": weights.argmax(axis=1),
            "novelty": outputs.novelty,
        }
        for horizon, column in zip(self.manifest.horizons, outputs.failure_probability.T, strict=True):
            numbers[f"failure_within_{horizon}"] = column
        if answers.of_columns is not None:
            numbers["sensor_contributions"] = answers.of_columns[:, self._rules.contributing]
        if self.job.attention:
            numbers["attention"] = outputs.attention
            numbers |= {} if outputs.evidence is None else {"evidence": outputs.evidence}
        if self.job.contributions:
            numbers["contributions"] = outputs.contribution
        return numbers

    def table(self, windows: UnitWindows, which: IntArray, numbers: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Make the output's table of windows at these places, from their `numbers`."""
        columns = dict(numbers)
        columns["unit"] = labelled([unit.unit for unit in windows.units], windows.unit[which])
        columns["last_cycle"] = windows.last_cycle[which]
        columns["top_cycle"] = windows.cycles_at(which, numbers["top_cycle"])
        columns["rul_state"] = labelled(STATES, numbers["rul_state"])
        columns["health_state"] = labelled(HEALTH_LABELS, numbers["health_state"])
        for name in columns.keys() & BY_CYCLE:
            columns[name] = lists(columns[name], windows.lengths[which])
        if "sensor_contributions" in columns:
            of_sensors = columns["sensor_contributions"]
            sensors = [self._rules.names[place] for place in self._rules.contributing]
            most = np.argsort(-np.abs(of_sensors), axis=1, kind="stable")
            for name, places in zip(("top_sensor", "second_sensor"), most.T, strict=False):
                columns[name] = labelled(sensors, places)
                columns[f"{name}_cycles"] = of_sensors[np.arange(len(which)), places]
            columns["sensor_contributions"] = lists(of_sensors, np.full(len(which), len(sensors)))
        return table_of(columns, self.schema)


def score_part(part: Part, scorer: Scorer) -> Tally:
    """Answer the windows of a part, and write its files; the same part always gives the same files."""
    read = read_part(scorer.source, part, scorer.fleet, optional=scorer.optional)
    refused, table = [*read.refused], scorer.schema.empty_table()
    counts, drift = scorer.drift_counts()
    if read.units:
        windows = UnitWindows(read.units, context=scorer.manifest.context, every=scorer.job.every)

        def refuse(place: int, column: str | None, reason: str) -> None:
            unit = read.units[windows.unit[place]].unit
            cycle = float(windows.last_cycle[place])
            refused.append(Refusal(read.file_of_unit[unit], None, unit, cycle, column, reason))

        found, is_answered = Columns(len(windows), scorer.manifest.context), np.zeros(len(windows), np.bool_)
        for_drift = windows.apart(DRIFT_CYCLES)
        seen: list[tuple[IntArray, Answers]] = []
        for which, answers in scorer.answers(windows, refuse):
            found.put(which, scorer.numbers(answers))
            is_answered[which] = True
            counted = np.flatnonzero(for_drift[which])
            if len(counted):
                seen.append((which[counted], answers.bare().only(counted.tolist())))
        for _, same in groupby(seen, key=lambda each: each[1].outputs.attention.shape[1]):
            places, parts = zip(*same, strict=True)
            counts.count(Answers.joined(parts), windows.names(np.concatenate(places)))
        places = np.flatnonzero(is_answered)
        table = scorer.table(windows, places, found.at(places)) if len(places) else table
    tally = Tally(
        readings=read.readings,
        units=len(read.units),
        windows=table.num_rows,
        refused_readings=len(read.refused),
        refused_windows=len(refused) - len(read.refused),
        infinite=read.infinite,
        missing=read.missing,
        rul_states=_counts(table["rul_state"]),
        health_states=_counts(table["health_state"]),
        drift=drift.tolist(),
    )
    write_part(scorer.output, part, table, refused, tally)
    return tally


def _counts(column: Any) -> dict[str, int]:  # noqa: ANN401 pyarrow is untyped
    counts = column.value_counts()
    return dict(sorted(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)))
