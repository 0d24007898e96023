"""Load the service for hours, and check growth of memory, descriptors, threads and latency.

    .venv/dev/bin/python -m tests.hostile.soak --requests 500000

Mixed requests by HTTP, gRPC, Open Inference and streams, with disconnects and the store, each answer checked.
Prints the slope of memory with its 95 % confidence interval, and ends with status 1 if anything was wrong.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import typer

from model.domain import FloatArray
from tests.benchmarks.tables import table
from tests.hostile.callers import BUNDLE, Ledger, asking, cases
from tests.integration.conftest import running

SAMPLES: Final = 200
WARM_SHARE: Final = 0.2
"""Share of the run to ignore at its start, while pools, caches and pages of SQLite fill."""
BLOCKS: Final = 10
Z95: Final = 2.262
"""Student's t with nine degrees of freedom: successive samples are correlated, ten blocks hardly are."""
GROWTH: Final = 0.05
"""Maximum growth within the run, as a share of what all processes together had after the warm-up.

Below it is what pools still open when the load is high for the first time: one or two threads of 31.
"""


@dataclass(frozen=True)
class Sample:
    """State of the supervisor and all workers together, after a number of requests."""

    requests: int
    memory: int
    descriptors: int
    threads: int


MEASURES: Final = (("memory", " MiB", 2**20), ("descriptors", "", 1), ("threads", "", 1))
"""Fields of `Sample` that must not grow, each with its unit and the size of the unit."""


def sample(pid: int, ledger: Ledger) -> Sample:
    """Measure the supervisor and its workers."""
    family = [psutil.Process(pid), *psutil.Process(pid).children()]
    return Sample(
        sum(ledger.ends.values()),
        sum(one.memory_info().rss for one in family),
        sum(one.num_fds() for one in family),
        sum(one.num_threads() for one in family),
    )


def slope_of(samples: list[Sample], measure: str) -> tuple[float, float]:
    """Fit a measure over requests: its slope per 1,000 requests, and half the width of the 95 % interval.

    The interval comes from the slopes between means of consecutive blocks.
    """
    x = np.array([one.requests for one in samples], float)
    y = np.array([getattr(one, measure) for one in samples], float)
    blocks = [part for part in np.array_split(np.arange(len(x)), BLOCKS) if len(part)]
    bx: FloatArray = np.array([x[part].mean() for part in blocks])
    by: FloatArray = np.array([y[part].mean() for part in blocks])
    slope, intercept = np.polyfit(bx, by, 1)
    residual = by - (slope * bx + intercept)
    error = np.sqrt((residual**2).sum() / max(1, len(bx) - 2) / ((bx - bx.mean()) ** 2).sum())
    return float(slope * 1000), float(Z95 * error * 1000)


def growth_of(samples: list[Sample]) -> list[str]:
    """Name each measure whose growth is above `GROWTH` at the lower end of its interval."""
    first, last = samples[0], samples[-1]
    found = list[str]()
    for measure, unit, size in MEASURES:
        slope, width = slope_of(samples, measure)
        before = getattr(first, measure)
        grown = (slope - width) * (last.requests - first.requests) / 1000
        if grown > GROWTH * before:
            found.append(
                f"{measure} grew by at least {grown / size:.1f}{unit}, from {before / size:.0f}{unit}"
            )
    return found


def findings_of(samples: list[Sample], ledger: Ledger) -> list[str]:
    """Judge the run."""
    lost = [f"connections lost: {len(ledger.losses)}"] if ledger.losses else []
    return [*ledger.findings, *lost, *growth_of(samples)]


def report(samples: list[Sample], ledger: Ledger) -> str:
    """Write the measurements, as Markdown."""
    first, last = samples[0], samples[-1]
    tenth = max(1, len(ledger.seconds) // 10)
    p99 = [np.quantile(part, 0.99) * 1000 for part in (ledger.seconds[:tenth], ledger.seconds[-tenth:])]
    middle, width = (one / 1024 for one in slope_of(samples, "memory"))
    rows = {
        "requests": f"{last.requests:,}",
        "memory after the warm-up": f"{first.memory / 2**20:.1f} MiB",
        "memory at the end": f"{last.memory / 2**20:.1f} MiB",
        "slope of memory, 95 % interval": f"{middle:.2f} ± {width:.2f} KiB per 1,000 requests",
        "descriptors": f"{first.descriptors} and {last.descriptors}",
        "threads": f"{first.threads} and {last.threads}",
        "p99 in the first and the last tenth": f"{p99[0]:.0f} and {p99[1]:.0f} ms",
    }
    ends = ", ".join(f"{count} {of} {status}" for (of, status), count in sorted(ledger.ends.items()))
    return f"{table(['measure', 'value'], rows.items(), texts=2)}\n\n{ends}"


def main(*, requests: int = 3000, workers: int = 2) -> None:
    """Load, measure and judge."""
    given, ledger, samples = cases(), Ledger(), list[Sample]()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        settings = {"workers": str(workers), "store_url": f"sqlite:///{folder}/rul.db"}
        with (
            running(Path(folder), BUNDLE, **settings) as server,
            asking(server.http, server.grpc, ledger, given),
        ):
            step, due = requests / SAMPLES, WARM_SHARE * requests
            while sum(ledger.ends.values()) < requests:
                if server.process.poll() is not None:
                    raise RuntimeError(server.output()[-3000:])
                if sum(ledger.ends.values()) >= due:
                    samples.append(sample(server.process.pid, ledger))
                    due += step
                threading.Event().wait(0.05)
    print(report(samples, ledger))
    findings = findings_of(samples, ledger)
    print(f"{len(findings)} findings.", *findings[:50], sep="\n")
    raise typer.Exit(bool(findings))


if __name__ == "__main__":
    typer.run(main)
