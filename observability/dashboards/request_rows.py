"""Rows about requests: is it up, is it fast, does it fail, does it refuse?"""

from __future__ import annotations

from functools import partial
from typing import Final

from observability.dashboards.panels import Kind, Panel, Query, Row
from observability.dashboards.promql import (
    FAULT,
    INSTANCE,
    MODEL,
    WORK,
    cells,
    gauge,
    mean,
    quantile,
    quantiles,
    rate,
    rates,
    share,
)

_number: Final = partial(Panel, kind=Kind.NUMBER, width=4, height=4)

GLANCE: Final = Row(
    "At a glance",
    (
        _number(
            title="Models loaded",
            unit="none",
            shows="Models that the chosen instances serve, counted once an instance.",
            act="fewer than expected: an instance is down or was started with another RUL_BUNDLES. "
            "See the table under Models and providers, then the runbook under RulServiceDown.",
            queries=(Query(f"count(rul_model_info{{{MODEL}}})"),),
        ),
        _number(
            title="Windows answered",
            unit="suffix:windows/s",
            shows="Windows that got a prediction, a second.",
            act="zero with callers about: see Errors below. Far below normal: ask who stopped calling.",
            queries=(Query(f"sum(rate(rul_state_total{{{MODEL}}}[$__rate_interval]))"),),
        ),
        _number(
            title="Failed requests",
            unit="percentunit",
            shows="Share of requests that failed through our fault (5xx, or the gRPC statuses like it).",
            act="see Answers by code for which, and the log lines of level error for why.",
            queries=(
                Query(
                    share(
                        f"(sum(rate(rul_requests_total{{{WORK}, {FAULT}}}[$__rate_interval])) or vector(0))",
                        f"sum(rate(rul_requests_total{{{WORK}}}[$__rate_interval]))",
                    )
                ),
            ),
            limit=0.001,
        ),
        _number(
            title="Latency p99",
            unit="s",
            shows="99 % of all requests were answered within this time.",
            act="compare queue with inference under Latency of stages: queue means too little capacity, "
            "inference a slower machine or larger windows.",
            queries=(Query(quantile(0.99, "rul_request_duration_seconds", where=WORK)),),
            limit=0.5,
        ),
        _number(
            title="Windows waiting",
            unit="short",
            shows="Windows accepted and not yet in a batch, over all chosen instances.",
            act="growing steadily: demand exceeds capacity. Add instances or cores.",
            queries=(Query(f"sum(rul_pending_windows{{{INSTANCE}}})"),),
            limit=1024,
        ),
        _number(
            title="Median attention entropy",
            unit="percentunit",
            shows="Entropy of the attention over its largest possible value, median window.",
            act="near 0 attention has collapsed onto single cycles, near 1 it says nothing. "
            "See the row Attention on the dashboard model quality.",
            queries=(Query(quantile(0.5, "rul_attention_entropy_ratio", where=f'{MODEL}, head="mean"')),),
            most=1,
        ),
    ),
)

TRAFFIC: Final = Row(
    "Traffic",
    (
        Panel(
            title="Requests by protocol",
            unit="reqps",
            shows="Requests answered a second, whatever the answer.",
            act="a sudden fall with instances up is usually the caller or the load balancer: "
            "send one request by hand.",
            queries=(rates("rul_requests_total", "protocol"),),
            kind=Kind.STACK,
        ),
        Panel(
            title="Requests by route",
            unit="reqps",
            shows="Requests a second by route. Unknown URLs share one route.",
            act="much traffic on the unknown route: a client has a wrong URL, or someone scans the port.",
            queries=(
                Query(f"{rate('rul_requests_total', 'protocol, route')} > 0", "{{protocol}} {{route}}"),
            ),
            kind=Kind.STACK,
        ),
        Panel(
            title="Windows answered by model",
            unit="suffix:windows/s",
            shows="Windows that got a prediction, a second, by model.",
            act="one model silent: check that its callers name it rightly (404 under Errors).",
            queries=(rates("rul_state_total", "model", where=MODEL),),
            kind=Kind.STACK,
        ),
    ),
)

ERRORS: Final = Row(
    "Errors",
    (
        Panel(
            title="Answers by code",
            unit="reqps",
            shows="Answers a second by HTTP status or gRPC status.",
            act="5xx, INTERNAL or UNAVAILABLE are ours: search the log for their request ids. 4xx and "
            "INVALID_ARGUMENT are the caller's: the body of the answer points at the fault.",
            queries=(Query(f"{rate('rul_requests_total', 'protocol, code')} > 0", "{{protocol}} {{code}}"),),
            kind=Kind.STACK,
        ),
        Panel(
            title="Failures",
            unit="percentunit",
            shows="Share of requests that failed through our fault, by protocol.",
            act="one protocol only: its transport. Both: runtime, batcher or machine; "
            "see the runbook under RulErrorBudgetBurnsFast.",
            queries=(
                Query(
                    share(
                        f"({rate('rul_requests_total', 'protocol', where=f'{WORK}, {FAULT}')} "
                        f"or 0 * {rate('rul_requests_total', 'protocol', where=WORK)})",
                        rate("rul_requests_total", "protocol", where=WORK),
                    ),
                    "{{protocol}}",
                ),
            ),
            limit=0.001,
        ),
        Panel(
            title="Error budget burn",
            unit="none",
            shows="How many times faster than planned the error budget (0.1 % of requests in 30 days) is "
            "used, over five minutes, an hour and six hours. 1 uses it up in exactly 30 days.",
            act="above 14.4 for an hour a page goes out: follow the runbook under RulErrorBudgetBurnsFast.",
            queries=(
                Query("job:rul_request_failures:ratio_rate5m / 0.001", "5 minutes"),
                Query("job:rul_request_failures:ratio_rate1h / 0.001", "1 hour"),
                Query("job:rul_request_failures:ratio_rate6h / 0.001", "6 hours"),
            ),
            limit=1,
        ),
    ),
)

LATENCY: Final = Row(
    "Latency",
    (
        Panel(
            title="Latency of requests",
            unit="s",
            shows="Time from a whole request received to its answer encoded, by protocol. Probes left out.",
            act="p99 far above p50: queueing, see Saturation. Both up: see Latency of stages.",
            queries=quantiles("rul_request_duration_seconds", "protocol", (0.5, 0.9, 0.99), where=WORK),
            limit=0.5,
        ),
        Panel(
            title="Latency of stages",
            unit="s",
            shows="Where the time of a request goes: decode, queue, inference, explain, encode.",
            act="queue: add capacity or lower RUL_MAX_PENDING_WINDOWS. inference: machine or model. "
            "decode and encode: bodies have grown; callers may send fewer windows or use gRPC.",
            queries=quantiles("rul_stage_duration_seconds", "stage", (0.5, 0.99)),
        ),
        Panel(
            title="Latency of inference",
            unit="s",
            shows="One run of the network on one batch, by model and provider.",
            act="a provider other than expected: the GPU was not found at start, see the log. Otherwise "
            "compare with Windows in a batch, and look for another process on the same cores.",
            queries=quantiles("rul_inference_duration_seconds", "model, provider", (0.5, 0.99), where=MODEL),
        ),
        Panel(
            title="Requests by latency",
            unit="s",
            shows="How many requests fell into each latency bucket. Two bands mean two kinds of request.",
            act="a band that was not there before: compare its start with deployments and with "
            "Requests by route.",
            queries=cells("rul_request_duration_seconds", where=WORK),
            kind=Kind.HEATMAP,
            width=24,
        ),
    ),
)

BATCHING: Final = Row(
    "Batching",
    (
        Panel(
            title="Windows in a batch",
            unit="short",
            shows="How many windows the network reads at once: mean and quantiles.",
            act="always 1 under load: requests do not meet, so capacity is wasted; check that callers "
            "share instances. Always at RUL_MAX_BATCH_WINDOWS: the instance is full.",
            queries=(
                Query(mean("rul_batch_windows", "instance"), "{{instance}} mean"),
                *quantiles("rul_batch_windows", "instance", (0.5, 0.99)),
            ),
        ),
        Panel(
            title="Batches",
            unit="ops",
            shows="Runs of the network a second, by instance.",
            act="zero with windows waiting: the batcher has stopped; readiness should be false, "
            "restart the instance and keep its log.",
            queries=(rates("rul_batch_windows_count", "instance"),),
        ),
        Panel(
            title="Batches by size",
            unit="short",
            shows="How many batches had each size.",
            act="large batches beside long queues mean one caller sends very large requests: "
            "lower RUL_MAX_REQUEST_WINDOWS.",
            queries=cells("rul_batch_windows"),
            kind=Kind.HEATMAP,
        ),
    ),
)

SATURATION: Final = Row(
    "Saturation",
    (
        Panel(
            title="Windows waiting by instance",
            unit="short",
            shows="Windows accepted and not yet in a batch.",
            act="one instance only: the load balancer is uneven (gRPC connections are long-lived; balance "
            "by request). All: add capacity.",
            queries=(gauge("rul_pending_windows", "instance"),),
            limit=1024,
            width=6,
        ),
        Panel(
            title="Requests in flight",
            unit="short",
            shows="Requests being worked on, by instance.",
            act="climbing while traffic is level: answers are slow or callers never read them. "
            "Compare with Latency of requests.",
            queries=(gauge("rul_inflight_requests", "instance"),),
            width=6,
        ),
        Panel(
            title="Open streams",
            unit="short",
            shows="Streams of readings that are open, by instance. Their readings are requests of a route of "
            "their own.",
            act="near RUL_MAX_STREAMS new ones are refused: add an instance. Falling to nothing at once: an "
            "instance drained, and its callers open their streams elsewhere.",
            queries=(gauge("rul_open_streams", "instance"),),
            width=6,
        ),
        Panel(
            title="Requests refused",
            unit="reqps",
            shows="Requests refused, by reason.",
            act="queue_full: add capacity, and check that callers honour Retry-After. invalid or too_large: "
            "one client has changed; its answers say what is wrong. not_ready: an instance starts or drains.",
            queries=(rates("rul_rejected_total", "reason"),),
            kind=Kind.STACK,
            width=6,
        ),
        Panel(
            title="Windows given up",
            unit="suffix:windows/s",
            shows="Windows whose caller left before they were answered.",
            act="callers' time-outs are shorter than our latency: they ask again and make it worse. "
            "Raise theirs or add capacity.",
            queries=(rates("rul_cancelled_total", "instance"),),
            width=6,
        ),
    ),
)
