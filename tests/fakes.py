"""Fakes for the edges of the process: a runtime and an executor that tests control.

`FakeRuntime` answers by arithmetic, so a test can tell whose answer it got. `StepExecutor` runs a
batch on demand, so a test can try any order of events without a thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import cache
from typing import Any

import numpy as np

from export.ageing import drift_reference
from export.bundle import EntropyReference, HealthBounds, Manifest, Parity, Training
from export.drift_reference import DriftReference
from model.domain import FloatArray, IntArray
from model.reference import ColumnReference, Degradation, Regime, UnitProfile
from service.core.answers import Answers
from service.core.ports import BatchReport
from service.core.providers import Placement
from service.core.rules import WindowRules
from service.core.runtime import Asked, Outputs
from service.core.window import WindowInput, Windows, join, lay_out
from service.errors import Problem
from service.store.judgement import Judgement, OutcomeKind, OutcomeResult

COLUMNS = ("setting_1", "sensor_1", "sensor_2")


def make_manifest(
    name: str = "fake",
    *,
    columns: Sequence[str] = COLUMNS,
    context: int = 8,
    heads: int = 0,
    cap: float = 125.0,
    min_cycles: int = 2,
    max_missing_fraction: float = 0.5,
    band: tuple[float, float] = (0.2, 1.0),
    explains_readings: bool = False,
    reads_settings: bool = False,
) -> Manifest:
    """Make a small manifest; its columns were between 0 and 100 in training."""
    f = len(columns)
    return Manifest(
        name=name,
        version="1",
        network="fake",
        columns=[
            ColumnReference(
                name=column,
                role="setting" if column.startswith("setting") else "sensor",
                unit="psia",
                low=0.0,
                high=100.0,
                missing_fraction=0.0,
            )
            for column in columns
        ],
        context=context,
        min_cycles=min_cycles,
        max_missing_fraction=max_missing_fraction,
        cap=cap,
        baseline=70.0,
        heads=heads,
        explains_readings=explains_readings,
        reads_settings=reads_settings,
        horizons=[10, 30],
        nominal_coverage=0.9,
        health_bounds=HealthBounds(critical_below=20, degrading_below=60),
        regimes=[
            Regime(
                centre=[0.0] * sum(column.startswith("setting") for column in columns),
                share=1.0,
                mean=[50.0] * f,
                standard_deviation=[20.0] * f,
                histogram_edges=[[10.0 * i for i in range(1, 10)]] * f,
            )
        ],
        degradation=Degradation(
            rul=[0.0, 100.0],
            z=[[-2.5] * f, [-5 / 6] * f],  # the RUL of `FakeRuntime` is the sum of three columns
            spread=[[1.0] * f, [1.0] * f],
            noise=[0.1] * f,
            units=[UnitProfile(life=105, z=[[-2.5] * f, [-5 / 6] * f])],
            life_quantiles=[100.0 + i for i in range(11)],
            regime_persistence=1.0,
        ),
        entropy=[EntropyReference(head="mean", low=band[0], median=0.9, high=band[1])],
        training=Training(
            data_sha256="0" * 64,
            data_name="none",
            seed=0,
            code_version="0",
            units=1,
            folds=2,
            config={},
        ),
        metrics={},
        parity=Parity(rul_cycles=0.0, attention=0.0),
    )


class FakeRuntime:
    """A runtime whose RUL is the sum of the last reading; missing values count 0.

    Attributes:
        batches: Number of windows of each call.
        lengths: The lengths of each call.
        failures: Number of further calls that fail; counts down.
        gate: Calls wait until it is set. It is set unless a test clears it.
        entered: Set when a call begins.
    """

    def __init__(self, manifest: Manifest | None = None, *, provider: str = "FakeProvider") -> None:
        self.manifest = manifest or make_manifest()
        self.drift_reference = _drift_reference(self.manifest.model_dump_json())
        self.sha256 = "f" * 64
        self.provider = provider
        self.placement = Placement((provider,))
        self.batches: list[int] = []
        self.lengths: list[list[int]] = []
        self.failures = 0
        self.novelty = 0.5
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Outputs:
        """Answer by arithmetic, each row separately and whatever its padding."""
        self.entered.set()
        self.gate.wait()
        self.batches.append(len(lengths))
        self.lengths.append(lengths.tolist())
        if self.failures:
            self.failures -= 1
            raise ValueError("secret of the runtime")
        return fake_outputs(readings, lengths, self.manifest, novelty=self.novelty)


@cache
def _drift_reference(manifest: str) -> DriftReference:
    """Cached for equal manifests, because hundreds of tests use that of `make_manifest`."""
    return drift_reference(Manifest.model_validate_json(manifest))


def fake_outputs(
    readings: FloatArray, lengths: IntArray, manifest: Manifest, *, novelty: float = 0.5
) -> Outputs:
    """Make outputs of the right shapes that keep the promises: attention and contributions add up."""
    b, t, _ = readings.shape
    total = np.nansum(readings[np.arange(b), lengths - 1], axis=1)
    rul = np.clip(total, 0, manifest.cap).astype(np.float32)
    valid = np.arange(t) < lengths[:, None]
    attention = (valid / lengths[:, None]).astype(np.float32)
    contribution = (attention * (total - manifest.baseline)[:, None]).astype(np.float32)
    share = (rul / manifest.cap)[:, None]
    explained: dict[str, FloatArray] = {}
    if manifest.explains_readings:  # only the last readings contribute
        of_reading, last = np.zeros_like(readings), np.arange(t) == lengths[:, None] - 1
        of_reading[last] = np.nan_to_num(readings[last])
        contribution = of_reading.sum(axis=2)
        explained["sensor_contribution"] = of_reading
        explained["window_contribution"] = np.full(b, -manifest.baseline, dtype=np.float32)
        explained["evidence"] = last.astype(np.float32)
    return Outputs(
        rul=rul,
        rul_interval=np.stack([np.maximum(rul - 5, 0), np.minimum(rul + 5, manifest.cap)], axis=1),
        failure_probability=np.repeat(1 - share, len(manifest.horizons), axis=1),
        health_state=np.concatenate([share, (1 - share) / 2, (1 - share) / 2], axis=1).astype(np.float32),
        attention=attention,
        contribution=contribution,
        novelty=np.full(b, novelty, dtype=np.float32),
        head_attention=np.repeat(attention[:, None], manifest.heads, axis=1) if manifest.heads else None,
        **explained,
    )


class FakeObserver:
    """Records the calls of a batcher."""

    def __init__(self) -> None:
        self.reports: list[BatchReport] = []

    @property
    def batches(self) -> list[int]:
        """Number of windows of each finished batch."""
        return [report.size for report in self.reports if report.answers is not None]

    def ran(self, report: BatchReport) -> None:
        self.reports.append(report)


class FakeKeepingObserver:
    """Records calls about the store and outcomes."""

    def __init__(self) -> None:
        self.written = 0
        self.readings = 0
        self.drops: Counter[str] = Counter()
        self.ups: list[bool] = []
        self.outcomes: list[tuple[OutcomeKind, OutcomeResult]] = []
        self.judged: list[tuple[str, Judgement]] = []

    def wrote(self, rows: int) -> None:
        self.written += rows

    def ingested(self, rows: int) -> None:
        self.readings += rows

    def dropped(self, reason: str, rows: int) -> None:
        self.drops[reason] += rows

    def up(self, *, up: bool) -> None:
        if self.ups[-1:] != [up]:
            self.ups.append(up)

    def taken(self, kind: OutcomeKind, result: OutcomeResult) -> None:
        self.outcomes.append((kind, result))

    def scored(self, model: str, judgement: Judgement, *, is_late: bool) -> None:
        self.judged.append((model, judgement))


class StepExecutor(Executor):
    """Holds submitted calls until a test runs them, in its own thread and in any order.

    Attributes:
        waiting: Submitted calls that have not run.
    """

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []
        self.refuse = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuse:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def step(self, which: int = 0) -> None:
        """Run a waiting call."""
        self.waiting.pop(which)()


def window_input(
    rul: float = 40.0, *, cycles: int = 4, unit: str | None = "1", last_cycle: float | None = 100
) -> WindowInput:
    """Make a window that `FakeRuntime` answers with this RUL."""
    columns: dict[str, list[float | None]] = {name: [0.0] * cycles for name in COLUMNS}
    columns["sensor_1"] = [rul] * cycles
    return WindowInput(unit=unit, last_cycle=last_cycle, columns=columns)


RULES = WindowRules.of(make_manifest(), max_window_cycles=1000)


def joined(
    *given: WindowInput, rules: WindowRules = RULES
) -> tuple[Windows | None, dict[int, Sequence[Problem]]]:
    """Check windows; return the valid ones, and the problems of the others by index."""
    return join(given, [lay_out(window, rules) for window in given], rules)


def make_windows(*ruls: float, cycles: int = 4, unit: str | None = "1") -> Windows:
    """Make checked windows that `FakeRuntime` answers with these RULs."""
    windows, problems = joined(*(window_input(rul, cycles=cycles, unit=unit) for rul in ruls or (40.0,)))
    assert windows is not None, problems
    return windows


def asked_of(windows: Windows) -> Asked:
    """Make a batch of only these windows."""
    return Asked(windows.readings, np.array(windows.lengths), np.array(windows.last_cycle, np.float32))


def fake_answers(asked: Asked, manifest: Manifest) -> Answers:
    """Derive the answers from the outputs of `FakeRuntime` for a batch."""
    outputs = fake_outputs(asked.readings, asked.lengths, manifest)
    return Answers(asked, outputs, manifest, WindowRules.of(manifest, max_window_cycles=1000))
