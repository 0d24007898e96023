"""Rows about what answers: the workers, the models on their providers, and the store beside them."""

from __future__ import annotations

from typing import Final

from observability.dashboards.panels import Kind, Panel, Query, Row
from observability.dashboards.promql import MODEL, gauge, rates

# Prometheus' own process has the same metrics, without a worker.
WORKER: Final = 'instance=~"$instance", worker=~".+"'

WORKERS: Final = Row(
    "Workers",
    (
        Panel(
            title="Workers ready",
            unit="short",
            shows="Processes that are ready to answer, by instance. They share one port.",
            act="fewer than RUL_WORKERS (by default one a core) for minutes: a worker dies again and again "
            "or never gets ready; see the runbook under RulWorkersMissing.",
            queries=(gauge("rul_workers", "instance"),),
            width=6,
        ),
        Panel(
            title="CPU of each worker",
            unit="short",
            shows="Cores that each worker keeps busy.",
            act="one worker far above the others: long-lived connections keep it busy, balance by request. "
            "All at one core with windows waiting: add cores or instances. Much CPU without traffic: a loop; "
            "keep the log, restart the instance.",
            queries=(rates("process_cpu_seconds_total", "instance, worker", where=WORKER),),
            width=6,
        ),
        Panel(
            title="Memory of each worker",
            unit="bytes",
            shows="Resident memory of each worker; pages that workers share count in each.",
            act="climbing for hours at level traffic: a leak; note the versions, restart, report it. A step "
            "at a deployment: other bundles or more of them.",
            queries=(gauge("process_resident_memory_bytes", "instance, worker", where=WORKER),),
            width=6,
        ),
        Panel(
            title="Workers started again",
            unit="short",
            shows="How often each worker was replaced within an hour.",
            act="above 0 outside deployments: a worker died. Its last lines are in the log of the instance, "
            "and the kernel's log says whether it was killed for memory.",
            queries=(
                Query(
                    f"sum by (instance, worker) (changes(process_start_time_seconds{{{WORKER}}}[1h]))",
                    "{{instance}} {{worker}}",
                ),
            ),
            limit=1,
            width=6,
        ),
    ),
)

LOADED: Final = Panel(
    title="Models",
    unit="none",
    shows="Which weights each instance serves, and on which provider.",
    act="instances differ in version or sha256 outside a rollout: redeploy those that lag. A GPU machine "
    "says CPUExecutionProvider: the driver or the `gpu` extra is missing, RUL_PROVIDER=cuda says which.",
    queries=(
        Query(f"max by (instance, model, version, sha256, provider, providers) (rul_model_info{{{MODEL}}})"),
    ),
    kind=Kind.TABLE,
    width=12,
)

FLEET_MODELS: Final = Row(
    "Models",
    (
        LOADED,
        Panel(
            title="Windows by version",
            unit="suffix:windows/s",
            shows="Windows that got a prediction, a second, by the version of the model that answered.",
            act="two versions of one model outside a rollout: units are judged by two measures; finish the "
            "rollout or roll it back.",
            queries=(
                Query(
                    f"sum by (model, version) (sum by (instance, model) "
                    f"(rate(rul_state_total{{{MODEL}}}[$__rate_interval])) * on (instance, model) "
                    f"group_left (version) max by (instance, model, version) (rul_model_info{{{MODEL}}}))",
                    "{{model}} {{version}}",
                ),
            ),
            kind=Kind.STACK,
            width=12,
        ),
    ),
)

MODELS: Final = Row(
    "Models and providers",
    (
        LOADED,
        Panel(
            title="Models by provider",
            unit="short",
            shows="How many models run on the CPU and how many on a GPU, counted once an instance.",
            act="a model moved from CUDA to the CPU: its instance started without a GPU. Everything still "
            "works, many times slower; restart it where the GPU is.",
            queries=(gauge("rul_model_info", "provider", of="count", where=MODEL),),
            width=6,
        ),
        Panel(
            title="Time in the network",
            unit="short",
            shows="Inference threads that are busy, by provider: seconds of inference a second.",
            act="at the number of cores (RUL_INFERENCE_THREADS) the machine can do no more: add instances, "
            "or move the model to a GPU. On a GPU near 1 a thread: larger RUL_MAX_BATCH_WINDOWS helps.",
            queries=(rates("rul_inference_duration_seconds_sum", "provider", where=MODEL),),
            width=6,
        ),
    ),
)

STORE: Final = Row(
    "Store of predictions and outcomes",
    (
        Panel(
            title="Store answers",
            unit="short",
            shows="1 while the database answers every worker of an instance; 1 also where nothing is stored.",
            act="0: predictions go on, and wait in memory up to RUL_STORE_QUEUE_ROWS. See the runbook under "
            "RulStoreDown before they are dropped.",
            queries=(gauge("rul_store_up", "instance", of="min"),),
            most=1,
            width=6,
        ),
        Panel(
            title="Rows written",
            unit="suffix:rows/s",
            shows="Predictions and outcomes committed, a second. A unit asked again at the same cycle is one "
            "row.",
            act="zero with traffic: callers send no unit or no last_cycle, so that nothing can be kept, or "
            "the store is away.",
            queries=(rates("rul_store_rows_total", "kind"),),
            width=6,
        ),
        Panel(
            title="Rows waiting",
            unit="short",
            shows="Predictions that wait to be written, by instance.",
            act="climbing: the database is slower than the traffic, or away. Above "
            "RUL_STORE_QUEUE_ROWS in a worker, predictions are dropped.",
            queries=(gauge("rul_store_pending_rows", "instance"),),
            width=6,
        ),
        Panel(
            title="Predictions not stored",
            unit="suffix:rows/s",
            shows="Predictions that were answered and will never be stored, by reason.",
            act="anything above 0: coverage and errors miss these predictions. See the runbook under "
            "RulStoreDrops.",
            queries=(rates("rul_store_dropped_total", "reason"),),
            width=6,
        ),
    ),
)
