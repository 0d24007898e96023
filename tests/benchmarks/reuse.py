"""Share of the graph's work that could be reused at the next cycle: `python -m tests.benchmarks.reuse`.

Every node's output on a window is compared with its output on the next window of the same unit, cycle by
cycle and to the bit. Equal parts count with the node's time in ONNX Runtime's profile (lower quartile of its
runs). Outputs without cycles (shapes, sums over the window) are never reusable. Two cases: a full window
slides, a short one grows. See docs/performance.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import typer
from numpy.typing import NDArray

from export.bundle import find_bundle
from export.outputs import INPUTS
from model.domain import FloatArray
from tests.benchmarks.loads import LAST_CYCLE, batch_of, window_of
from tests.benchmarks.tables import table

RUNS: Final = 200
CPU: Final = ("CPUExecutionProvider",)
KERNEL: Final = "_kernel_time"
"""End of a kernel's name in a profile."""
OFF: Final = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
Shares = dict[str, float]
Outputs = dict[str, NDArray[Any]]


def main(bundle: str = "fd001", batches: str = "1,16,32") -> None:
    """Profile the graph at each batch size, and compare outputs of its nodes on successive windows."""
    sizes = [int(size) for size in batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "optimised.onnx")
        options = session_options()
        options.optimized_model_filepath = path
        session_of(str(find_bundle(bundle).path / "model.onnx"), options)
        slides, grows = kept(path, window_of(bundle))
        profiles = [profile(path, window_of(bundle), size) for size in sizes]
    rows: list[list[str]] = []
    for heading, same in (("while a full window slides", slides), ("while a window grows", grows)):
        sums = [sum(share * same.get(node, 0.0) for node, share in times.items()) for times in profiles]
        rows.append([heading, *(f"{value:.3f}" for value in sums)])
    print(f"Share of the graph's time, {bundle}, for what is the same a cycle later:\n")
    print(table(["", *(f"batch of {size}" for size in sizes)], rows))


def kept(path: str, window: FloatArray) -> tuple[Shares, Shares]:
    """Return the share of each node's output that the unit's next window has too: sliding, growing."""
    graph = onnx.load(path)
    names = {node.output[0]: node.name for node in graph.graph.node if node.output[0]}
    given = {output.name for output in graph.graph.output}
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    options = session_options()
    options.graph_optimization_level = OFF
    session = session_of(graph.SerializeToString(), options)
    # One cycle more than the window has; another value in each, as sensors are never the same twice.
    noise = np.random.default_rng(0).normal(1.0, 1e-3, (len(window) + 1, window.shape[1]))
    cycles = (np.vstack((window, window[-1:])) * noise).astype(np.float32)
    half = len(window) // 2

    def seen(first: int, end: int) -> Outputs:
        found: Any = session.run(list(names), inputs(cycles[first:end], 1, LAST_CYCLE + end))
        return dict(zip(names.values(), found, strict=True))

    full = len(window)
    return (
        same(seen(0, full), seen(1, full + 1), cycles=(full, full)),
        same(seen(0, half), seen(0, half + 1), cycles=(half, half + 1)),
    )


def same(before: Outputs, after: Outputs, *, cycles: tuple[int, int]) -> Shares:
    """Return the share of common cycles with equal output of each node; 0 for outputs without cycles.

    Each direction of the LSTM counts separately: [T, 2, B, H].
    """
    shares: Shares = {}
    for node, old in before.items():
        new = after[node]
        axes = [i for i, sizes in enumerate(zip(old.shape, new.shape, strict=False)) if sizes == cycles]
        if axes:
            slides = cycles[0] == cycles[1]
            earlier = np.moveaxis(old, axes[0], 0)[1 if slides else 0 :]
            later = np.moveaxis(new, axes[0], 0)[: len(earlier)]
            equal = np.isclose(earlier, later, rtol=0.0, atol=0.0, equal_nan=True)
            shares[node] = float(np.mean(equal.all(axis=-1) if equal.ndim > 1 else equal))
    return shares


def profile(path: str, window: FloatArray, batch: int) -> Shares:
    """Return each node's share of the time."""
    options = session_options()
    options.graph_optimization_level = OFF
    micros: dict[str, list[float]] = {}
    for event in kernels(path, inputs(window, batch, LAST_CYCLE), options=options, runs=RUNS):
        micros.setdefault(event["name"].removesuffix(KERNEL), []).append(event["dur"])
    typical = {node: float(np.quantile(spent, 0.25)) for node, spent in micros.items()}
    total = sum(typical.values())
    return {node: spent / total for node, spent in typical.items()}


def kernels(
    graph: str, given: Outputs, *, options: Any, runs: int = 1, providers: Sequence[str] = CPU
) -> list[dict[str, Any]]:
    """Run a graph; return the events of its kernels in ONNX Runtime's profile."""
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
        session = session_of(graph, options, providers)
        for _ in range(runs):
            session.run(None, given)
        events = json.loads(Path(session.end_profiling()).read_text())
    return [event for event in events if event["name"].endswith(KERNEL)]


def inputs(window: FloatArray, batch: int, last_cycle: float) -> dict[str, NDArray[Any]]:
    """Repeat a window."""
    return dict(zip(INPUTS, batch_of(window, batch, last_cycle=last_cycle), strict=True))


def session_options() -> Any:
    """Return session options with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def session_of(graph: str | bytes, options: Any, providers: Sequence[str] = CPU) -> Any:
    """Open a session, by default on the CPU."""
    return onnxruntime.InferenceSession(graph, options, providers=providers)


if __name__ == "__main__":
    typer.run(main)
