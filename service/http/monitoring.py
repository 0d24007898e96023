"""Route `/v1/models/{name}/monitoring`: drift, attention entropy and coverage of a model as it serves."""

from __future__ import annotations

import msgspec

from service.core.answers import STATES
from service.core.predictor import LoadedModel
from service.core.queries import ModelName
from service.drift.monitor import ENOUGH, UNSEEN_LIMIT, Drift, DriftIndex
from service.edge.keys import KeyScope
from service.http.shell import Call, Endpoint, Operation, Reply, json_reply
from service.labels import Route
from service.metrics.metrics import Metrics
from service.metrics.models import ENTROPY, STATE
from service.metrics.store import ERRORS, SIDES, VERDICTS


class EntropyBody(msgspec.Struct, frozen=True):
    """Attention entropy ratio of a head, or the mean over heads.

    Attributes:
        mean: Over all windows since the service started; null without any.
        low, high: Reference band: holds 99 % of the full windows of training.
        below, above: Shares of recent windows outside the band for their length.
    """

    head: str
    mean: float | None
    low: float
    high: float
    below: float
    above: float
    drift: DriftIndex


class CoverageBody(msgspec.Struct, frozen=True):
    """Predictions that outcomes have judged since the service started; errors in cycles.

    Attributes:
        predictions: Predictions of units that failed.
        covered: Those whose interval held the true RUL.
        removed: Predictions of units that were removed while they ran.
        contradicted: Those whose upper bound the unit outlived.
    """

    nominal: float
    predictions: int
    covered: int
    coverage: float | None
    mean_absolute_error: float | None
    bias: float | None
    removed: int
    contradicted: int


class MonitoringBody(msgspec.Struct, frozen=True):
    """A model as it serves, all workers together.

    Attributes:
        windows: Number of recent windows; below `enough` there are no drift figures.
        columns: Drift of each column, in its worst operating regime.
        unseen: Share of last readings far from every operating regime.
        states: Answers by RUL state since the service started.
    """

    model: ModelName
    windows: int
    enough: int
    columns: dict[str, DriftIndex]
    prediction: DriftIndex
    unseen: float
    unseen_limit: float
    entropy: list[EntropyBody]
    states: dict[str, int]
    coverage: CoverageBody


def endpoints() -> list[Endpoint]:
    """List the endpoints."""
    summary = "Drift, attention entropy and coverage of a model as it serves, all workers together"
    doc, route = Operation("getMonitoring", summary, MonitoringBody), Route.MONITORING
    return [Endpoint("GET", route.value, route, _show, KeyScope.METRICS, doc=doc)]


async def _show(call: Call) -> Reply:
    model = call.desk.predictor.model(call.path["name"])
    metrics, name = call.desk.metrics, model.name.name
    metrics.publish()  # includes what this worker has not counted yet
    drift = metrics.drift.models[name].read()
    answers = metrics.shared.counters[STATE]
    states = {state.value: int(answers.labels(name, state.value).total()) for state in STATES}
    body = MonitoringBody(
        model=model.name,
        windows=drift.windows,
        enough=ENOUGH,
        columns=drift.columns,
        prediction=drift.prediction,
        unseen=drift.unseen,
        unseen_limit=UNSEEN_LIMIT,
        entropy=_entropy(metrics, model, drift),
        states=states,
        coverage=_coverage(model.manifest.nominal_coverage, name, metrics),
    )
    return json_reply(body)


def _entropy(metrics: Metrics, model: LoadedModel, drift: Drift) -> list[EntropyBody]:
    found: list[EntropyBody] = []
    for reference in model.manifest.entropy:
        low, high = reference.limits(model.manifest.context)
        total = metrics.shared.histograms[ENTROPY].labels(model.name.name, reference.head).total()
        count = float(total[:-1].sum())
        mean = float(total[-1]) / count if count else None
        below, _, above = drift.entropy_shares[reference.head]
        band = float(low[-1]), float(high[-1])
        found.append(EntropyBody(reference.head, mean, *band, below, above, drift.entropy[reference.head]))
    return found


def _coverage(nominal: float, model: str, metrics: Metrics) -> CoverageBody:
    def total(counter: str, *labels: str) -> float:
        return metrics.shared.counters[counter].labels(model, *labels).total()

    trials, hits = (total(f"rul_coverage_{what}_total") for what in ("trials", "hits"))
    contradicted, still_open = (total("rul_removed_predictions_total", verdict) for verdict in VERDICTS)
    late, early = (total("rul_outcome_error_cycles_total", side) for side in SIDES)
    absolute = float(metrics.shared.histograms[ERRORS].labels(model).total()[-1])
    shares = (hits / trials, absolute / trials, (late - early) / trials) if trials else (None, None, None)
    removed = int(contradicted + still_open)
    return CoverageBody(nominal, int(trials), int(hits), *shares, removed, int(contradicted))
