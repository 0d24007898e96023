"""The floor: a minimal handler of the same graph on the same front end, one worker per core.

    python -m tests.benchmarks.floor PORT

`FLOOR_HANDLER` names the handler's file, an ASGI application `app` that reads the graph at
`MODEL_PATH`. Workers are set up as those of the service: one event loop each, SCHED_BATCH and the same
interpreter settings. `make_floor_graph` writes the graph, with the names that the handler uses.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
import psutil
from onnx import helper

from service.processes.tuning import disable_huge_pages, schedule_as_batch
from tests.benchmarks.floor_worker import HANDLER
from tests.benchmarks.front_ends import CORES, ROOT, Served
from tests.integration.conftest import free_port

NAMES: Final = {"readings": "x", "health_state": "hs", "attention": "attn"}
READY: Final = b"ready\n"


def make_floor_graph(bundle: Path, path: Path) -> None:
    """Write a bundle's graph with the handler's names; the age of a unit is the length of its window."""
    graph = onnx.load(str(bundle / "model.onnx"))
    for each in [*graph.graph.input, *graph.graph.output]:
        each.name = NAMES.get(each.name, each.name)
    for node in graph.graph.node:
        node.input[:] = [NAMES.get(name, name) for name in node.input]
        node.output[:] = [NAMES.get(name, name) for name in node.output]
    kept = [each for each in graph.graph.input if each.name != "last_cycle"]
    del graph.graph.input[:]
    graph.graph.input.extend(kept)
    graph.graph.node.insert(
        0, helper.make_node("Cast", ["lengths"], ["last_cycle"], to=onnx.TensorProto.FLOAT)
    )
    onnx.save(graph, str(path))


@contextmanager
def serving_floor(handler: Path, graph: Path) -> Iterator[Served]:
    """Serve with the handler's workers."""
    port = free_port()
    environment = os.environ | {HANDLER: str(handler), "MODEL_PATH": str(graph), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.benchmarks.floor", str(port)]
    start = time.perf_counter()
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != READY:
                raise RuntimeError(f"{handler}: the floor did not start; its reason is above")
            ready = time.perf_counter() - start
            workers = [child.pid for child in psutil.Process(process.pid).children()]
            yield Served(f"http://127.0.0.1:{port}", f"127.0.0.1:{port}", workers, ready)
        finally:
            process.terminate()


async def main(port: int) -> None:
    """Run the workers until a signal ends them."""
    from pyvoy import PyvoyServer

    schedule_as_batch()
    disable_huge_pages()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    one = ["--concurrency", "1"]
    servers = [
        PyvoyServer(
            "tests.benchmarks.floor_worker:application", port=port, lifespan=True, additional_envoy_args=one
        )
        for _ in range(CORES)
    ]
    for server in servers:
        await server.start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    await stopped.wait()
    for server in servers:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
