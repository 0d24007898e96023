"""Break the running service under load, and check every answer, every acknowledged write and every recovery.

    .venv/dev/bin/python -m tests.hostile.chaos --minutes 10 --faults 200 [--store postgresql]

Needs Linux; a full disk needs the right to mount a tmpfs. Prints the table of faults, and ends with
status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import httpx
import psutil
from sqlalchemy import select

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from service.store.database import Database, engine_of
from service.store.schema import OUTCOMES, PREDICTIONS
from service.store.url import store_url
from tests.benchmarks.tables import table
from tests.databases import PostgreSql, postgresql
from tests.hostile.callers import BUNDLE, PACE_SECONDS, Case, Ledger, asking, cases, leave_within
from tests.integration.conftest import Server, metric, running, workers_of

GIVE_UP_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 1.0
"""Seconds after a recovery in which calls that the fault hit may still end."""
PROBES: Final = 6
DISK_MEGABYTES: Final = 64
LEAVERS: Final = 40
PYVOY: Final = "<Handle Future.set_exception>"
"""Log line of the event loop when pyvoy reports a disconnect to a cancelled call; harmless."""


@dataclass
class Fault:
    """One fault: times of its begin, its end and the recovery.

    `waited` is the time that the recovery waited for a core: in this program, or in the supervisor until it
    noticed and then in the new worker, whichever is longer.
    """

    kind: str
    begun: float
    lifted: float = 0.0
    recovered: float = 0.0
    waited: float = 0.0

    @property
    def recovery_seconds(self) -> float:
        """Return the time from the fault's end to the recovery; a killed worker's fault ends at once."""
        return self.recovered - self.lifted

    @property
    def own_seconds(self) -> float:
        """Return the recovery time minus the wait for cores held by other programs."""
        return max(0.0, self.recovery_seconds - self.waited)


@dataclass
class Chaos:
    """A running service and the ways to break it."""

    server: Server
    workers: int
    folder: Path
    given: list[Case]
    database: PostgreSql | None
    disk: Path | None
    random: random.Random
    faults: list[Fault] = field(default_factory=list)

    def kinds(self) -> dict[str, tuple[int, Callable[[], list[psutil.Process] | None]]]:
        """Return each fault with its weight; a fault returns the processes that must end, if any."""
        found = {
            "kill a worker (SIGKILL)": (3, self.kill),
            "kill every worker": (1, self.kill_all),
            "hang a worker (SIGSTOP)": (3, self.hang),
            "pause a worker (SIGSTOP, SIGCONT)": (4, self.pause),
            "drop connections mid-request": (7, self.drop),
            "cancel calls and streams": (7, self.cancel),
        }
        if self.database is None:
            found["lock the database (SQLite)"] = (3, self.lock)
        else:
            found["kill and restart PostgreSQL"] = (4, self.lose)
        if self.disk is not None:
            found["fill the store's disk"] = (3, self.fill)
        return found

    def kill(self) -> list[psutil.Process]:
        victim = self.random.choice(workers_of(self.server))
        victim.kill()
        return [victim]

    def kill_all(self) -> list[psutil.Process]:
        victims = workers_of(self.server)
        for victim in victims:
            victim.kill()
        return victims

    def hang(self) -> list[psutil.Process]:
        victim = self.random.choice(workers_of(self.server))
        victim.suspend()
        return [victim]

    def pause(self) -> None:
        victim = self.random.choice(workers_of(self.server))
        victim.suspend()
        time.sleep(self.random.uniform(0.2, 1.0))
        victim.resume()

    def drop(self) -> None:
        for turn in range(LEAVERS):
            leave_within(self.server.http, self.given, turn)

    def cancel(self) -> None:
        with grpc.insecure_channel(
            self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub = rul_v1_pb2_grpc.RulServiceStub(channel)
            opening = pb.StreamRequest(open=pb.StreamOpen(model=BUNDLE))
            request = pb.PredictRequest(model=BUNDLE, windows=[case.window.message() for case in self.given])
            calls = [stub.Predict.future(request) for _ in range(LEAVERS)]
            calls += [stub.PredictStream(iter([opening])) for _ in range(LEAVERS)]
            for call in calls:
                call.cancel()

    def lock(self) -> None:
        with sqlite3.connect(self.folder / "store" / "rul.db", timeout=10) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(self.random.uniform(0.5, 3.0))
            connection.rollback()
        connection.close()

    def lose(self) -> None:
        assert self.database is not None
        self.database.stop()
        time.sleep(self.random.uniform(0.5, 3.0))
        self.database.start()

    def fill(self) -> None:
        assert self.disk is not None
        filler = self.disk / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                while file.write(b"\0" * 65536):
                    pass
        except OSError:
            time.sleep(self.random.uniform(0.5, 3.0))
        finally:
            filler.unlink()

    def break_once(self, kind: str, fault: Callable[[], list[psutil.Process] | None]) -> Fault:
        """Inject a fault, wait for the recovery, and record both."""
        made, before, waited = (
            Fault(kind, time.monotonic()),
            workers_of(self.server),
            waited_seconds(os.getpid()),
        )
        victims = fault() or []
        # A process fault counts from its begin, others from their end.
        made.lifted = made.begun if victims else time.monotonic()
        noticed, supervisor = 0.0, self.server.process.pid
        waited_before = waited_seconds(supervisor)
        while time.monotonic() - made.lifted < GIVE_UP_SECONDS and self.server.process.poll() is None:
            if not any(victim.is_running() for victim in victims):
                noticed = noticed or waited_seconds(supervisor) - waited_before
                if self.recovered():
                    break
            time.sleep(0.05)
        made.recovered = time.monotonic()
        assert self.server.process.poll() is None, self.server.output()[-3000:]
        started = [waited_seconds(one.pid) for one in workers_of(self.server) if one not in before]
        made.waited = max(waited_seconds(os.getpid()) - waited, noticed + max(started, default=0.0))
        self.faults.append(made)
        return made

    def recovered(self) -> bool:
        """Check over new connections that every worker and the store serve."""
        try:
            if metric(self.server, "rul_workers") < self.workers:
                return False
            window = self.given[-1].window.json()
            asked = [
                self.server.ask("POST", "/v1/predict", json={"windows": [window]}, timeout=2)
                for _ in range(PROBES)
            ]
            asked += [self.server.ask("GET", "/v1/units?limit=1", timeout=2)] * 2
        except (httpx.TransportError, ValueError):
            return False
        return all(answer.status_code == 200 for answer in asked)


def waited_seconds(pid: int) -> float:
    """Read how long the main thread of this program, or the slowest thread of another, waited for a core."""
    if pid == os.getpid():
        return _waited(Path(f"/proc/{pid}/schedstat"))
    return max(map(_waited, Path(f"/proc/{pid}/task").glob("*/schedstat")))


def _waited(account: Path) -> float:
    try:
        return int(account.read_text().split()[1]) / 1e9
    except ProcessLookupError:  # the thread has just ended
        return 0.0


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a small tmpfs for the store; None if that is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def lost_writes(url: str, ledger: Ledger) -> list[str]:
    """Compare acknowledged writes with the database."""
    database = Database(engine_of(store_url(url)))
    with database.reading() as connection:
        columns = (PREDICTIONS.c.unit, PREDICTIONS.c.last_cycle, PREDICTIONS.c.rul)
        predictions = {(unit, cycle): rul for unit, cycle, rul in connection.execute(select(*columns))}
        rows = connection.execute(select(OUTCOMES.c.unit, OUTCOMES.c.cycle))
        outcomes = {row.unit: row.cycle for row in rows}
    database.close()
    named = [key for key in predictions if key[0].startswith(("north", "south"))]
    print(f"predictions answered {ledger.answered}, stored {len(named)}")
    lost = [
        f"prediction {key}"
        for key, rul in ledger.predictions.items()
        if key not in predictions or abs(predictions[key] - rul) > 1e-3
    ]
    return lost + [
        f"outcome {unit}" for unit, cycle in ledger.outcomes.items() if outcomes.get(unit) != cycle
    ]


def unexplained(ledger: Ledger, faults: list[Fault]) -> list[str]:
    """Return lost connections that no fault explains."""
    spans = [(fault.begun, fault.recovered + GRACE_SECONDS) for fault in faults]
    return [
        f"connection lost without a fault at {start:.1f}"
        for start, end in ledger.losses
        if not any(end >= first and start <= last for first, last in spans)
    ]


def fault_table(faults: list[Fault]) -> str:
    """Write the table of faults, as Markdown."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    rows = []
    for kind, of in sorted(by_kind.items()):
        seen, own = [one.recovery_seconds for one in of], [one.own_seconds for one in of]
        cells = (statistics.median(seen), max(seen), statistics.median(own), max(own))
        rows.append([kind, len(of), *(f"{cell:.1f} s" for cell in cells)])
    heads = ["fault", "times", "recovery, median", "longest", "less waits for a core, median", "longest"]
    return table(heads, rows)


def report(chaos: Chaos, ledger: Ledger, findings: list[str]) -> str:
    """Write the observations."""
    by_end: dict[str, int] = defaultdict(int)
    for (_, status), count in ledger.ends.items():
        by_end[status] += count
    ends = ", ".join(f"{count} {status}" for status, count in sorted(by_end.items()))
    return "\n".join(
        [
            fault_table(chaos.faults),
            "",
            f"{len(chaos.faults)} faults; calls: {ends}.",
            f"Acknowledged: {len(ledger.predictions)} stored predictions, {len(ledger.outcomes)} outcomes.",
            f"{len(findings)} findings.",
            *findings[:50],
        ]
    )


def run(options: argparse.Namespace, stack: ExitStack) -> int:
    """Run the service, the callers and the faults."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
    disk = stack.enter_context(small_disk(folder / "store"))
    database = stack.enter_context(postgresql()) if options.store == "postgresql" else None
    url = database.database("chaos") if database else f"sqlite:///{folder}/store/rul.db"
    settings = {"workers": str(options.workers), "store_url": url, "log_format": "json"}
    server = stack.enter_context(running(folder, BUNDLE, **settings))
    ledger, given = Ledger(), cases()
    disk = None if database else disk
    chaos = Chaos(
        server, options.workers, folder, given, database, disk, random.Random(options.seed)
    )  # fmt: skip
    chaos.break_once("none (start)", list)
    chaos.faults.clear()
    kinds = chaos.kinds()
    deck: list[str] = []
    end = time.monotonic() + 60 * options.minutes
    with asking(server.http, server.grpc, ledger, given, pace=options.pace):
        while time.monotonic() < end or len(chaos.faults) < options.faults:
            if not deck:
                deck = [kind for kind, (weight, _) in kinds.items() for _ in range(weight)]
                chaos.random.shuffle(deck)
            kind = deck.pop()
            made = chaos.break_once(kind, kinds[kind][1])
            seconds = f"{made.recovery_seconds:6.2f} s {made.own_seconds:6.2f} s"
            print(f"{len(chaos.faults):4d} {kind:36s} {seconds}", flush=True)
            time.sleep(chaos.random.uniform(0.0, 0.5))
    assert server.stop() == 0
    output = server.output()
    findings = ledger.findings + unexplained(ledger, chaos.faults)
    findings += [f"lost: {row}" for row in lost_writes(url, ledger)]
    findings += [
        f"{fault.kind}: recovery took {fault.own_seconds:.1f} s"
        for fault in chaos.faults
        if fault.own_seconds > options.recovery
    ]
    traces = [line for line in output.splitlines() if "Traceback" in line and PYVOY not in line]
    findings += [f"in the log: {line}" for line in traces]
    print(report(chaos, ledger, findings))
    return 1 if findings else 0


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--faults", type=int, default=15, help="at least so many, however long it takes")
    parser.add_argument("--recovery", type=float, default=5.0, help="most seconds, less waits for a core")
    parser.add_argument("--pace", type=float, default=PACE_SECONDS, help="pause of each caller, in seconds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        return run(parser.parse_args(), stack)


if __name__ == "__main__":
    sys.exit(main())
