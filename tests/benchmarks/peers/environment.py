"""One environment per peer, made at its first use, because their requirements conflict."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil

from tests.benchmarks.front_ends import Served
from tests.benchmarks.loads import HttpCall, Load
from tests.benchmarks.peers.peer import SERVERS, Peer, Place
from tests.integration.conftest import free_port
from tests.waiting import wait_until

ENVIRONMENTS: Final = Path(__file__).parents[3] / ".venv" / "peers"
INSTALL_SECONDS: Final = 1200
START_SECONDS: Final = 180


class PeerFailed(Exception):
    """The peer cannot be installed, does not start, or answers wrongly; the message is one line."""


def installed(name: str, peer: Peer) -> Path:
    """Return the folder of a peer's programs; install it if it is missing or has other requirements.

    Raises:
        PeerFailed: pip fails.
    """
    folder = ENVIRONMENTS / name
    stamp, wanted = folder / ".made", "\n".join(peer.requirements)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "pip"), "install", "--quiet", *peer.requirements])
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"not installed within {INSTALL_SECONDS / 60:.0f} minutes") from error
    except subprocess.CalledProcessError as error:
        raise PeerFailed(f"cannot be installed: {last_line(error.stderr)}") from error


@contextmanager
def serving_peer(peer: Peer, place: Place, bundle: str, rul: float) -> Iterator[Served]:
    """Run a peer, and wait until its answer is right.

    Raises:
        PeerFailed: it does not start, or its answer differs from the graph's.
    """
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("RUL_", "BENTOML_"))
    }
    environment |= {
        "PEER_MODEL": str(place.graph), "PEER_PORT": str(place.port), "PEER_GRPC_PORT": str(place.grpc_port),
        "PYTHONPATH": str(SERVERS), "BENTOML_HOME": str(place.folder / "bentoml"),
        "PATH": f"{place.programs}{os.pathsep}{os.environ['PATH']}", **peer.environment,
    }  # fmt: skip
    environment.pop("VIRTUAL_ENV", None)
    command, log = peer.command(place), place.folder / "server.log"
    start, http = time.perf_counter(), f"http://127.0.0.1:{place.port}"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, env=environment, stdout=sink, stderr=subprocess.STDOUT, cwd=place.folder
        )
    try:
        try:
            got = wait_until(
                lambda: _answer(process, peer, http, bundle, log), START_SECONDS, what="answer", pause=0.1
            )
        except TimeoutError as error:
            raise PeerFailed(
                f"does not answer within {START_SECONDS} s: {last_line(log.read_text())}"
            ) from error
        ready = time.perf_counter() - start
        if abs(got - rul) > 0.05:
            raise PeerFailed(f"answers {got:.2f} cycles where the graph answers {rul:.2f}")
        children = psutil.Process(process.pid).children(recursive=True)
        pids = [process.pid, *(child.pid for child in children)]
        yield Served(http, f"127.0.0.1:{place.grpc_port}", pids, ready)
    finally:
        if process.poll() is None:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and its children; kill it if it does not end."""
    parent = psutil.Process(process.pid)
    family = [parent, *parent.children(recursive=True)]
    process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, 20)
    for member in alive:
        member.kill()
    process.wait()


def _answer(process: subprocess.Popen[bytes], peer: Peer, http: str, bundle: str, log: Path) -> float | None:
    if process.poll() is not None:
        raise PeerFailed(f"ended by itself: {last_line(log.read_text(errors='replace'))}")
    call = peer.call(bundle, Load("json", 1))
    assert isinstance(call, HttpCall)
    reply = httpx.post(http + call.path, content=call.body, headers=call.headers, trust_env=False, timeout=10)
    return max(float(peer.rul(reply.json())), 1e-9) if reply.is_success else None


def place_for(name: str, peer: Peer, folder: Path, graph: Path) -> Place:
    """Make a fresh folder and find free ports for a peer."""
    mine = folder / f"{name}-{time.monotonic_ns()}"
    mine.mkdir(parents=True)
    return Place(installed(name, peer), mine, free_port(), free_port(), graph)


def last_line(text: str) -> str:
    """Return the last line that is not empty, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "it said nothing"
