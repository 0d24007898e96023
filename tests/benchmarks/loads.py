"""What is asked of a server under test, and the tools that ask: wrk for HTTP, h2load for gRPC.

Every call holds the same window once or many times. Both tools run on the server's own cores, as
those did with which others measured theirs.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from export.bundle import find_bundle
from export.probes import simulated_windows
from service.core.runtime import OnnxRuntime
from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.oip import HEADER, binary_request

LAST_CYCLE = 200
METHOD = "rul.v1.RulService/Predict"
REPORT = (
    "done = function(summary, latency, requests) local e = summary.errors\n"
    'io.write(string.format("asked %d failed %d p50 %f p99 %f p999 %f\\n", summary.requests, '
    "e.status + e.connect + e.read + e.write + e.timeout, "
    "latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency:percentile(99.9) / 1000)) end\n"
)


@dataclass(frozen=True)
class Load:
    """So many windows a call, by so many callers, over one protocol; what it should reach of the ceiling."""

    protocol: str
    callers: int
    windows: int = 1
    goal: float | None = None

    def __str__(self) -> str:
        return f"{self.protocol}, {self.windows} a call, {self.callers} callers"


@dataclass(frozen=True)
class Measured:
    """What came of a load: windows answered, calls that failed, milliseconds."""

    windows: int
    failed: int
    p50: float
    p99: float
    p999: float


LOADS = (
    Load("json", 1),
    Load("json", 16),
    Load("json", 64, goal=0.57),
    Load("json", 256),
    Load("json", 512),
    Load("json", 8, 64, goal=0.80),
    Load("json", 2, 1024),
    Load("binary", 1),
    Load("binary", 16),
    Load("binary", 64, goal=0.68),
    Load("binary", 256),
    Load("binary", 8, 64, goal=0.95),
    Load("binary", 2, 1024),
    Load("grpc", 1),
    Load("grpc", 16),
    Load("grpc", 64, goal=0.60),
    Load("grpc", 256),
    Load("grpc", 8, 64, goal=0.95),
    Load("grpc", 2, 1024),
)


def window_of(bundle: str) -> np.ndarray:
    """A plausible window as long as the context, [T, F]."""
    manifest = OnnxRuntime.load(find_bundle(bundle)).manifest
    windows = simulated_windows(manifest, count=64, seed=1)
    return windows.readings[int(windows.lengths.argmax())]


class Asker:
    """Asks one server for answers to one bundle's window."""

    def __init__(self, bundle: str, folder: Path) -> None:
        """Write into `folder` what the tools send."""
        self._window = window_of(bundle)
        self._name = OnnxRuntime.load(find_bundle(bundle)).manifest.name
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def measure(self, load: Load, http: str, target: str, seconds: float) -> Measured:
        """Load a server for so long."""
        if load.protocol == "grpc":
            return self._by_grpc(load, target, seconds)
        return self._by_http(load, http, seconds)

    def _by_http(self, load: Load, http: str, seconds: float) -> Measured:
        path, headers, body = self._http_body(load)
        raw, script = self._folder / "body", self._folder / "post.lua"
        raw.write_bytes(body)
        lines = [f'wrk.headers["{name}"] = "{value}"\n' for name, value in headers.items()]
        read = f'wrk.method = "POST"\nwrk.body = io.open("{raw}", "rb"):read("*a")\n'
        script.write_text(read + "".join(lines) + REPORT)
        threads = min(2, load.callers)
        command = ["wrk", f"-t{threads}", f"-c{load.callers}", f"-d{seconds:.0f}s", "-s", str(script)]
        text = _said([*command, http + path])
        found = re.search(r"asked (\d+) failed (\d+) p50 ([\d.]+) p99 ([\d.]+) p999 ([\d.]+)", text)
        if found is None:
            raise RuntimeError(f"{load}: wrk's report has changed:\n{text}")
        asked, failed = int(found[1]), int(found[2])
        return Measured((asked - failed) * load.windows, failed, *map(float, found.groups()[2:]))

    def _http_body(self, load: Load) -> tuple[str, dict[str, str], bytes]:
        window, count = self._window, load.windows
        if load.protocol == "json":
            rows = [[float(f"{value:.6g}") for value in row] for row in window.tolist()]
            given = {"unit": "1", "last_cycle": LAST_CYCLE, "readings": rows}
            body = json.dumps({"windows": [given] * count}).encode()
            return "/v1/predict", {"content-type": "application/json"}, body
        arrays = {
            "readings": np.repeat(window[None], count, axis=0),
            "last_cycle": np.full(count, LAST_CYCLE, dtype=np.float32),
        }
        body, size = binary_request(arrays, parameters={"binary_data_output": True})
        headers = {"content-type": "application/octet-stream", HEADER: str(size)}
        return f"/v2/models/{self._name}/infer", headers, body

    def _by_grpc(self, load: Load, target: str, seconds: float) -> Measured:
        method, message, size = self._grpc_call(load, target)
        framed, log = self._folder / "request.bin", self._folder / "requests.log"
        framed.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        log.unlink(missing_ok=True)
        command = ["h2load", f"-t{min(2, load.callers)}", f"-c{load.callers}", "-m1", f"-D{seconds:.0f}"]
        command += ["-d", str(framed), f"--log-file={log}", "-H", "content-type: application/grpc"]
        text = _said([*command, "-H", "te: trailers", f"http://{target}/{method}"])
        data = re.search(r"\((\d+)\) data", text)
        if data is None:
            raise RuntimeError(f"{load}: h2load's report has changed:\n{text}")
        waits = sorted(int(line.split("\t")[2]) / 1000 for line in log.read_text().splitlines())
        answered = min(len(waits), round(int(data[1]) / size))
        p99, p999 = (waits[int(share * (len(waits) - 1))] for share in (0.99, 0.999))
        return Measured(answered * load.windows, len(waits) - answered, statistics.median(waits), p99, p999)

    def _grpc_call(self, load: Load, target: str) -> tuple[str, bytes, int]:
        """A method, its message, and the bytes of a good answer."""
        readings = pb.Readings(values=self._window.ravel().tolist())
        window = pb.Window(unit="1", last_cycle=LAST_CYCLE, readings=readings)
        request = pb.PredictRequest(windows=[window] * load.windows)
        with grpc.insecure_channel(target) as channel:  # h2load does not see a status in trailers
            answer = rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request, timeout=30)
        return METHOD, request.SerializeToString(), answer.ByteSize() + 5


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
