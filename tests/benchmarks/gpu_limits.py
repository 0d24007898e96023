"""Upper bounds of windows per second on a device, and the provider of each node of a graph.

Copying: the bytes of a batch to the device and back. Arithmetic: the products of the graph's matrices
at the speed of one large product in float32. Both are measured on the device with plain PyTorch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from export.bundle import Manifest
from export.outputs import output_shapes
from tests.benchmarks.reuse import inputs, kernels, session_options

MATRIX: Final = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the measured product."""
COPIED: Final = 1024
"""Windows of the measured copy, enough to make the cost of a call negligible."""
Node = dict[str, Any]


def rate(call: Callable[[], object], windows: int, seconds: float) -> float:
    """Measure windows per second of consecutive calls, after a warm-up call."""
    call()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        done += windows
    return done / (time.perf_counter() - start)


def copying_limit(manifest: Manifest, device: str, seconds: float) -> float:
    """Measure windows per second with inputs copied to the device and outputs copied back."""
    t, f = manifest.context, len(manifest.columns)
    outputs = output_shapes(manifest, windows=COPIED, cycles=t).values()
    there = torch.zeros(COPIED * (t * f + 3))  # lengths are int64
    back = torch.zeros(sum(map(prod, outputs)), device=device)
    return rate(lambda: (_copy(there, device), _copy(back, "cpu")), COPIED, seconds)


def _copy(x: torch.Tensor, device: str) -> torch.Tensor:
    return x.to(device, copy=True)


def arithmetic_limit(flops: float, device: str, seconds: float) -> float:
    """Return windows per second if all products ran at the speed of one large product in float32."""
    n = MATRIX[device]
    matrix = torch.ones(n, n, device=device)

    def multiply() -> None:
        torch.mm(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()

    return rate(multiply, 1, seconds) * 2.0 * n**3 / flops


def profiled_nodes(graph: Path, manifest: Manifest, providers: list[str]) -> list[Node]:
    """List the nodes that run for one full window: operator, provider, shapes."""
    window = inputs(np.zeros((manifest.context, len(manifest.columns)), np.float32), 1, manifest.context)
    events = kernels(str(graph), window, options=session_options(), providers=providers)
    return [event["args"] for event in events]


def flops_of(nodes: list[Node]) -> float:
    """Count the floating-point operations of matrix products; a multiply-add counts two."""
    return float(sum(_flops(node) for node in nodes))


def _flops(node: Node) -> int:
    given = [next(iter(each.values())) for each in node["input_type_shape"]]
    made = [next(iter(each.values())) for each in node["output_type_shape"]]
    name = node["op_name"].removeprefix("Fused")
    if name in {"MatMul", "Gemm"}:
        return 2 * prod(given[0]) * made[0][-1]
    if name == "Conv":
        return 2 * prod(made[0]) * prod(given[1][1:])
    if name == "LSTM":  # four gates; a cycle reads the input and the state
        return 2 * 4 * prod(made[0]) * (given[0][-1] + made[0][-1])
    return 0


def nodes_by_provider(nodes: list[Node]) -> str:
    """Describe the number of nodes of each provider, and the operators that stay on the CPU beside a GPU."""
    counts = Counter(node["provider"] for node in nodes)
    text = ", ".join(f"{provider} {count}" for provider, count in counts.most_common())
    if len(counts) > 1:
        on_cpu = Counter(node["op_name"] for node in nodes if node["provider"] == "CPUExecutionProvider")
        text += f" ({', '.join(f'{name} {count}' for name, count in on_cpu.most_common())})"
    return text
