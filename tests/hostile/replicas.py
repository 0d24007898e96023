"""Two replicas with one PostgreSQL behind HAProxy: one is drained, then one is killed, while units report.

    .venv/dev/bin/python -m tests.hostile.replicas [--units 12] [--cycles 120] [--callers 4] [--bundle fd001]

Callers predict by HTTP and gRPC; all callers of a protocol share connections, and none repeats a request.
Devices send readings out of order, some twice: half of the devices with `rul_client` by HTTP, the others by
gRPC with its retry policy. HAProxy repeats a request only if it could not connect. Exit status: 0 if every
promise of docs/reliability.md holds, 1 otherwise.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import typer

from export.bundle import find_bundle
from export.session import open_bundle
from model.domain import Trajectory
from model.simulation import simulate
from rul_client.api import Client
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.databases import postgresql
from tests.hostile.balancer import PATIENCE_SECONDS, Load, Pair, answered, asks_of, balanced
from tests.ingesting import Devices, whole
from tests.waiting import wait_until

RETRIES: Final = 3
LAME_DUCK_SECONDS: Final = 3
MOST_LOST: Final = 2
"""Maximum failed requests per caller of a killed replica: one in flight, and one sent while it ends."""
PHASES: Final = {"shared": 1 / 3, "drained": 1 / 2, "killed": 1.0}
"""Share of the remaining readings that devices report in each phase."""
SHARED_REQUESTS: Final = 200
"""Minimum requests of each protocol for a comparison of shares."""
MOST_SHARE: Final = 1.1
"""Maximum ratio of predictions, the busier replica over the other."""
TOLERANCE: Final = 1e-4
RETRY_POLICY: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "rul.v1.RulService"}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""Retry policy, as for any gRPC client."""


def devices_of(bundle: str, *, units: int, cycles: int) -> Devices:
    """Simulate the units that report."""
    _, manifest = open_bundle(find_bundle(bundle))
    lives = simulate(manifest, manifest.schema_of_columns, units=units, seed=16)
    cut = [
        Trajectory(f"unit {life.unit}", life.cycles[-cycles:], life.readings[-cycles:], failed=True)
        for life in lives
    ]
    return Devices(cut, [column.name for column in manifest.columns], seed=16)


@contextmanager
def reporting(devices: Devices, pair: Pair, share: float) -> Generator[None]:
    """Report through HAProxy, half of the units by gRPC; half of the readings before the block."""
    half = devices.sent + share * sum(map(len, devices.left.values())) / 2
    with ExitStack() as opened:
        client = opened.enter_context(Client(f"http://127.0.0.1:{pair.http}"))
        options = [("grpc.service_config", RETRY_POLICY)]
        channel = opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{pair.grpc}", options=options))
        stub = rul_v1_pb2_grpc.RulServiceStub(channel)

        def by_http(unit: str, given: dict[str, Any]) -> None:
            client.append(unit, given["columns"], cycle=given["cycle"])

        def by_grpc(unit: str, given: dict[str, Any]) -> None:
            request = pb.AppendCyclesRequest(unit=unit, readings=[pb.Reading(**given)])
            stub.AppendCycles(request, timeout=PATIENCE_SECONDS)

        threads = opened.enter_context(ThreadPoolExecutor(len(devices.units)))
        sent = devices.report(threads, cycle([by_http, by_grpc]), share=share)
        wait_until(lambda: devices.sent >= half or any(s.done() for s in sent), PATIENCE_SECONDS)
        yield
        for each in sent:
            each.result()


@dataclass
class Result:
    """Observations of callers and devices.

    Attributes:
        loads: Outcomes of the callers' requests, by phase.
        shares: Predictions of the busier replica over those of the other, by protocol.
        acknowledged: Number of acknowledged readings.
        worst: Largest difference of a unit's answer, by each replica, to that of its whole window.
    """

    callers: int
    loads: dict[str, Load] = field(default_factory=dict[str, Load])
    shares: dict[str, float] = field(default_factory=dict[str, float])
    acknowledged: int = 0
    worst: list[float] = field(default_factory=list[float])

    def is_right(self) -> bool:
        """Return whether every promise holds."""
        return (
            max(self.shares.values()) <= MOST_SHARE
            and self.loads["shared"].failed == self.loads["drained"].failed == 0
            and self.loads["killed"].failed <= MOST_LOST * self.callers
            and max(self.worst) <= TOLERANCE
        )


def run(pair: Pair, devices: Devices, callers: int, *, pace: float = 0.0) -> Result:
    """Run callers and devices while both replicas serve, one is drained, and one is killed."""

    def share() -> None:
        load = result.loads["shared"]
        enough = SHARED_REQUESTS * len(before[0])
        wait_until(lambda: load.outcomes.total() >= enough, PATIENCE_SECONDS, what="requests")

    def drain() -> None:
        assert pair.stop(0) == 0
        pair.start(0)

    def kill() -> None:
        pair.kill(1)
        pair.start(1)

    result = Result(callers=2 * callers)
    window = whole(devices.units[0], devices.names) | {"unit": None}
    with ExitStack() as opened:
        asks = asks_of(window, pair, 1, opened) * callers
        before = [answered(server) for server in pair.servers]
        faults: Sequence[Callable[[], None]] = (share, drain, kill)
        for (phase, part), fault in zip(PHASES.items(), faults, strict=True):
            result.loads[phase] = load = Load(pace=pace)
            with load.running(asks), reporting(devices, pair, part):
                fault()
            if fault is share:
                result.shares = _shares(before, [answered(server) for server in pair.servers])
    result.acknowledged = devices.sent
    for server in pair.servers:
        with httpx.Client(base_url=server.http, trust_env=False, timeout=PATIENCE_SECONDS) as http:
            result.worst.append(devices.worst(http))
    return result


def _shares(before: list[dict[str, float]], after: list[dict[str, float]]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for protocol in before[0]:
        each = [late[protocol] - early[protocol] for early, late in zip(before, after, strict=True)]
        shares[protocol] = max(each) / min(each)
    return shares


@contextmanager
def replicas(folder: Path, bundle: str) -> Iterator[Pair]:
    """Start two replicas at once on an empty database, behind HAProxy."""
    settings: dict[str, Any] = {"lame_duck_seconds": str(LAME_DUCK_SECONDS)}
    with (
        postgresql() as database,
        balanced(
            folder, bundle, retries=RETRIES, store_url=database.database("replicas"), **settings
        ) as pair,
    ):
        yield pair


def main(*, units: int = 12, cycles: int = 120, callers: int = 4, bundle: str = "fd001") -> None:
    """Run, and print the table."""
    with tempfile.TemporaryDirectory() as folder, replicas(Path(folder), bundle) as pair:
        result = run(pair, devices_of(bundle, units=units, cycles=cycles), callers)
    for phase, load in result.loads.items():
        print(f"{phase}:")
        load.show()
    shares = ", ".join(f"{protocol} {share:.3f}" for protocol, share in result.shares.items())
    print(f"busier replica over the other: {shares}")
    print(f"{result.acknowledged} readings; largest distance to whole windows {max(result.worst):.1e}")
    raise typer.Exit(not result.is_right())


if __name__ == "__main__":
    typer.run(main)
