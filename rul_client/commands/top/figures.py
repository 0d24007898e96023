"""What lies between two scrapes: rates, means, quantiles. Pure functions of the two.

A counter that went far back belongs to a service that was started again: it counts from 0. NaN stands
for what cannot be said, such as the mean of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rul_client.commands.top.scrape import Model, Samples, Scrape
from service.labels import CLIENT_GONE, SUCCESS, Route, Side, Stage

NOT_ASKED: Final = frozenset(
    {
        Route.LIVEZ, Route.READYZ, Route.METRICS, Route.V2_LIVE, Route.V2_READY, Route.MODELS,
        Route.GRPC_STREAM, Route.GRPC_HEALTH, "/v1/units",
    }
)  # fmt: skip
"""Routes that whoever watches asks itself, and streams, whose readings are counted one by one."""

MOST_DRIFTING: Final = 3
OUTSIDE_LIMIT: Final = 0.1
"""Share of windows outside one side of the entropy band, of which it holds 99 %, that is worth a mark."""


class Between:
    """Two scrapes of a service, the second later."""

    def __init__(self, before: Samples, now: Samples, *, seconds: float) -> None:
        self._before: Final = before
        self.now: Final = now
        self._seconds: Final = seconds

    @classmethod
    def of(cls, before: Scrape, now: Scrape) -> Between:
        """The figures that lie between two scrapes."""
        return cls(before.samples, now.samples, seconds=now.at - before.at)

    def since_start(self) -> Between:
        """The same from the start of the service on."""
        return Between(Samples(""), self.now, seconds=math.inf)

    def per_second(self, count: float) -> float:
        """A count as a rate."""
        return count / self._seconds if self._seconds > 0 else 0.0

    def increases(self, name: str, *keys: str, **labels: str) -> dict[tuple[str, ...], float]:
        """How much counters have grown, by the values of the labels `keys`."""
        before = self._before.by(name, *keys, **labels)
        now = self.now.by(name, *keys, **labels)
        return {key: grown(before.get(key, 0.0), value) for key, value in now.items()}

    def increase(self, name: str, **labels: str) -> float:
        """How much a counter has grown."""
        return self.increases(name, **labels).get((), 0.0)

    def histogram(self, name: str, **labels: str) -> Distribution:
        """What a histogram has seen in the meantime."""
        buckets = self.increases(f"{name}_bucket", "le", **labels)
        total = self.increase(f"{name}_sum", **labels)
        return Distribution({bound: count for (bound,), count in buckets.items()}, total)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Cumulative counts by their upper bounds, and the sum."""

    buckets: Mapping[str, float]
    total: float

    @property
    def count(self) -> float:
        """How many values."""
        return self.buckets.get("+Inf", 0.0)

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """A quantile, even within a bucket, as Prometheus has it; the last bound where it is beyond."""
        if not self.count:
            return math.nan
        ordered = sorted((float(bound), count) for bound, count in self.buckets.items())
        rank = q * self.count
        low, below = 0.0, 0.0
        for bound, count in ordered:
            if count >= rank:
                if math.isinf(bound):
                    return low
                inside = count - below
                return low + (bound - low) * ((rank - below) / inside if inside else 1.0)
            low, below = bound, count
        return low


@dataclass(frozen=True, slots=True)
class Traffic:
    """One protocol; seconds."""

    protocol: str
    requests_per_second: float
    errors_per_second: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class StageTime:
    """One part of a request's time; seconds."""

    stage: str
    mean: float
    p99: float


@dataclass(frozen=True, slots=True)
class Quality:
    """What one model answers.

    Attributes:
        since_start: True where nothing was asked between the scrapes: the figures are of all time.
        collapsed, uniform: Whether the attention lies too narrow or too wide, by the reference band.
        drifting: The columns furthest from training, the furthest first; none where that is not known.
        coverage, outcomes: Of the failures that happened, the share that the interval held, and how many.
        error_cycles: How far predictions were off, on average.
    """

    model: Model
    windows_per_second: float
    since_start: bool
    rul: float
    width: float
    states: Mapping[str, float]
    entropy: float
    collapsed: bool
    uniform: bool
    novelty: float
    drifting: Mapping[str, float]
    coverage: float
    outcomes: float
    error_cycles: float


def grown(before: float, now: float) -> float:
    """How much a counter has grown, also where it began again in between.

    Workers tell each other of their observations a moment late: what is a little less than before was
    told by another worker, and has not grown.

    >>> grown(5.0, 7.0), grown(5.0, 2.0), grown(5.0, 4.0)
    (2.0, 2.0, 0.0)
    """
    if now >= before:
        return now - before
    return now if now < before / 2 else 0.0


def traffic(between: Between, protocol: str) -> Traffic:
    """What was asked by a protocol, and how long answers took."""
    well = {*SUCCESS.values(), *CLIENT_GONE.values()}
    ended = between.increases("rul_requests_total", "route", "code", protocol=protocol)
    asked = {key: count for key, count in ended.items() if key[0] not in NOT_ASKED}
    errors = sum(count for (_, code), count in asked.items() if code not in well)
    buckets: dict[str, float] = {}
    durations = between.increases("rul_request_duration_seconds_bucket", "route", "le", protocol=protocol)
    for (route, bound), count in durations.items():
        if route not in NOT_ASKED:
            buckets[bound] = buckets.get(bound, 0.0) + count
    took = Distribution(buckets, math.nan)
    return Traffic(
        protocol,
        between.per_second(sum(asked.values())),
        between.per_second(errors),
        took.quantile(0.5),
        took.quantile(0.99),
    )


def stage_times(between: Between) -> list[StageTime]:
    """Where the time of requests went."""
    seen = {stage: between.histogram("rul_stage_duration_seconds", stage=stage.value) for stage in Stage}
    return [StageTime(stage.value, took.mean, took.quantile(0.99)) for stage, took in seen.items()]


def quality(between: Between, model: Model) -> Quality:
    """What a model answered between the scrapes or, where that is nothing, since it was started."""
    name, lately = model.name, between
    answered = between.histogram("rul_prediction_cycles", model=name)
    since_start = not answered.count
    if since_start:
        between = between.since_start()
        answered = between.histogram("rul_prediction_cycles", model=name)
    entropy = between.histogram("rul_attention_entropy_ratio", model=name, head="mean").mean
    out = between.increases("rul_attention_out_of_band_total", "side", model=name)
    low, high = (out.get((side.value,), 0.0) / (answered.count or math.inf) for side in (Side.LOW, Side.HIGH))
    states = between.increases("rul_state_total", "state", model=name)
    asked = sum(states.values())
    now, band = lately.now, model.band
    hits, trials = (now.total(f"rul_coverage_{what}_total", model=name) for what in ("hits", "trials"))
    error_count = now.total("rul_outcome_absolute_error_cycles_count", model=name)
    error_sum = now.total("rul_outcome_absolute_error_cycles_sum", model=name)
    return Quality(
        model=model,
        windows_per_second=0.0 if since_start else lately.per_second(answered.count),
        since_start=since_start,
        rul=answered.mean,
        width=between.histogram("rul_interval_width_cycles", model=name).mean,
        states={state: count / asked for (state,), count in states.items()} if asked else {},
        entropy=entropy,
        collapsed=low > OUTSIDE_LIMIT or (band is not None and entropy < band.low),
        uniform=high > OUTSIDE_LIMIT or (band is not None and entropy > band.high),
        novelty=between.histogram("rul_novelty_ratio", model=name).mean,
        drifting=_most_drifting(now, name),
        coverage=hits / trials if trials else math.nan,
        outcomes=trials,
        error_cycles=error_sum / error_count if error_count else math.nan,
    )


def _most_drifting(now: Samples, name: str) -> dict[str, float]:
    drifts = {column: psi for (column,), psi in now.by("rul_column_drift_psi", "column", model=name).items()}
    most = sorted(drifts, key=lambda column: (-drifts[column], column))[:MOST_DRIFTING]
    return {column: drifts[column] for column in most if drifts[column] > 0}
