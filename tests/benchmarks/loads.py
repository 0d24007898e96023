"""Loads on a server under test, made by wrk for HTTP and by h2load for gRPC.

Both tools run on the server's cores. `payloads` has the calls that they send.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import typer

from export.bundle import Manifest, find_bundle
from export.probes import simulated_windows
from service.core.runtime import OnnxRuntime

LAST_CYCLE = 200
SIMULATED = 256
FRAME_BYTES = 5
"""Prefix of a gRPC message."""
ID = "00000000000000000000000000000000"
"""Placeholder of a request's id; as long as the ids that replace it."""
SCRIPT = """
local threads, asked = 0, 0
function setup(thread) threads = threads + 1; thread:set("number", threads) end
function init()
  texts = {}
  for i = 1, COUNT do
    local file, pieces, from = io.open(FOLDER .. "/request-" .. i, "rb"), {}, 1
    local text = file:read("*a")
    file:close()  -- wrk cannot use a socket whose descriptor is high
    repeat
      local first, last = text:find(ID, from, true)
      pieces[#pieces + 1] = text:sub(from, (first or 0) - 1)
      from = (last or 0) + 1
    until not first
    texts[i] = pieces
  end
end
function request()
  asked = asked + 1
  return table.concat(texts[asked % COUNT + 1], string.format("%08x%08x%016x", RUN, number, asked))
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("asked %d failed %d p50 %f p99 %f p999 %f\\n", summary.requests,
    e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency:percentile(99.9) / 1000))
end
"""
"""Script of wrk: send the requests in turn, and report."""


@dataclass(frozen=True)
class Load:
    """A number of callers on one protocol, with calls of equal size.

    Attributes:
        protocol: Protocol of the calls.
        callers: Number of callers; each waits for its answer before the next call.
        windows: Windows per call.
        realistic: Whether calls differ, as those of clients do; otherwise one call is repeated.
    """

    protocol: str
    callers: int
    windows: int = 1
    realistic: bool = False

    def __str__(self) -> str:
        return (
            f"{'realistic ' * self.realistic}{self.protocol}, {self.windows} a call, {self.callers} callers"
        )


@dataclass(frozen=True)
class Measured:
    """Outcome of a load: answered windows, failed calls, milliseconds."""

    windows: int
    failed: int
    p50: float
    p99: float
    p999: float

    @classmethod
    def of(cls, waits: Sequence[float], windows: int, failed: int) -> Measured:
        """Compute the quantiles of the milliseconds of all calls; NaN if none was answered."""
        return cls(windows, failed, *np.quantile(waits or [np.nan], (0.5, 0.99, 0.999)).tolist())


@dataclass(frozen=True)
class HttpCall:
    """A request over HTTP."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    def raw(self, http: str) -> bytes:
        """Return the bytes of the request."""
        headers = {"host": http.removeprefix("http://"), "content-length": len(self.body), **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass(frozen=True)
class GrpcCall:
    """A unary gRPC call."""

    method: str
    message: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)


LOADS = tuple(
    Load(protocol, *shape)
    for protocol in ("json", "binary", "grpc")
    for shape in ((1, 1), (16, 1), (64, 1), (256, 1), (512, 1), (8, 64), (2, 1024))
    if shape[0] < 512 or protocol == "json"
)


CallsFor = Callable[[Load], Sequence[Any]]
"""Returns the calls of a load: all over HTTP, or all over gRPC."""


def require_generators() -> None:
    """Check that the load generators are installed.

    Raises:
        typer.BadParameter: programs are missing; the message names them.
    """
    if missing := [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]:
        raise typer.BadParameter(f"{' and '.join(missing)} missing (Debian: wrk, nghttp2-client)")


def simulated(bundle: str) -> tuple[Manifest, np.ndarray]:
    """Simulate plausible windows of full context, [W, T, F]."""
    manifest = OnnxRuntime.load(find_bundle(bundle)).manifest
    windows = simulated_windows(manifest, count=SIMULATED, seed=1)
    return manifest, windows.readings[windows.lengths == windows.lengths.max()]


def window_of(bundle: str) -> np.ndarray:
    """Return the first window of `simulated`, [T, F]."""
    return simulated(bundle)[1][0]


def batch_of(window: np.ndarray, size: int, *, last_cycle: float = LAST_CYCLE) -> tuple[np.ndarray, ...]:
    """Repeat a window as inputs of a graph: readings [B, T, F], lengths, last cycles."""
    lengths, last = np.full(size, len(window), np.int64), np.full(size, last_cycle, np.float32)
    return np.repeat(window[None], size, axis=0), lengths, last


def put_under(load: Load, calls: Sequence[Any], http: str, target: str, seconds: float) -> Measured:
    """Load a server with these calls for a time: HTTP at `http`, gRPC at `target`."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(calls[0], GrpcCall):
            return by_grpc(calls, load, target, seconds, Path(folder))
        return by_http(calls, load, http, seconds, Path(folder))


def by_http(calls: Sequence[HttpCall], load: Load, http: str, seconds: float, folder: Path) -> Measured:
    """Load a server over HTTP with these requests in turn; `ID` in them becomes a new id each time."""
    for number, call in enumerate(calls, start=1):
        (folder / f"request-{number}").write_bytes(call.raw(http))
    script, threads = folder / "post.lua", min(2, load.callers)
    given = f'COUNT, FOLDER, ID, RUN = {len(calls)}, "{folder}", "{ID}", {time.time_ns() // 1_000_000_000}\n'
    script.write_text(given + SCRIPT)
    command = ["wrk", f"-t{threads}", f"-c{load.callers}", f"-d{seconds:.0f}s", "-s", str(script), http]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"asked (\d+) failed (\d+) p50 ([\d.]+) p99 ([\d.]+) p999 ([\d.]+)", text)
    if found is None:
        raise RuntimeError(f"{load}: wrk's report has changed:\n{text}")
    asked, failed = int(found[1]), int(found[2])
    return Measured((asked - failed) * load.windows, failed, *map(float, found.groups()[2:]))


def by_grpc(calls: Sequence[GrpcCall], load: Load, target: str, seconds: float, folder: Path) -> Measured:
    """Load a server over gRPC, one h2load for each call: h2load repeats one message."""
    calls = calls[: load.callers]
    with grpc.insecure_channel(target) as channel:  # h2load does not see a status in trailers
        sizes = [len(channel.unary_unary(f"/{call.method}")(call.message, timeout=30)) for call in calls]
    started = [
        _start_h2load(call, load.callers // len(calls), target, seconds, folder / f"h2load-{number}")
        for number, call in enumerate(calls)
    ]
    waits: list[float] = []
    answered = 0
    for (process, log), size in zip(started, sizes, strict=True):
        text, _ = process.communicate()
        data = re.search(r"\((\d+)\) data", text)
        if data is None or process.returncode:
            raise RuntimeError(f"{load}: h2load's report has changed:\n{text}")
        mine = [int(line.split("\t")[2]) / 1000 for line in log.read_text().splitlines()]
        answered += min(len(mine), round(int(data[1]) / (size + FRAME_BYTES)))
        waits += mine
    return Measured.of(waits, answered * load.windows, len(waits) - answered)


def _start_h2load(
    call: GrpcCall, callers: int, target: str, seconds: float, folder: Path
) -> tuple[subprocess.Popen[str], Path]:
    folder.mkdir(exist_ok=True)
    framed, log = folder / "request", folder / "log"
    framed.write_bytes(b"\0" + len(call.message).to_bytes(4, "big") + call.message)
    log.unlink(missing_ok=True)
    threads = 1 if callers < 16 else 2
    command = ["h2load", f"-t{threads}", f"-c{callers}", "-m1", f"-D{seconds:.0f}", "-d", str(framed)]
    for name, value in {"content-type": "application/grpc", "te": "trailers", **call.metadata}.items():
        command += ["-H", f"{name}: {value}"]
    command += [f"--log-file={log}", f"http://{target}/{call.method}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), log
