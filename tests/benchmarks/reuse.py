"""What of the graph could be kept from one cycle to the next: `python -m tests.benchmarks.reuse`.

Time by part of the network, as ONNX Runtime's own profile has it, on full windows of a shipped bundle.
Only scaling and convolution see a cycle the same in the next window: see docs/performance.md.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from export.bundle import find_bundle
from tests.benchmarks.loads import LAST_CYCLE, window_of

KEPT: Final = frozenset({"standardise", "convolution"})
RUNS: Final = 200
NAMED: Final = 3  # "/net/part/..."


def main(bundle: str = "fd001", batches: str = "1,16") -> None:
    """Profile the graph at each size of batch."""
    table = Table(title=f"share of the graph's time, {bundle}, full windows")
    sizes = [int(size) for size in batches.split(",")]
    found = [shares(bundle, size) for size in sizes]
    for heading in ("part", *(f"batch of {size}" for size in sizes), "could be kept"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for part in sorted(found[0], key=lambda part: -found[-1][part]):
        table.add_row(part, *(f"{share[part]:.2f}" for share in found), "yes" if part in KEPT else "")
    Console().print(table)


def shares(bundle: str, batch: int) -> Counter[str]:
    """The share of each part, by the node names that the exporter gives."""
    window = window_of(bundle)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        path = str(find_bundle(bundle).path / "model.onnx")
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = {
            "readings": np.repeat(window[None], batch, axis=0),
            "lengths": np.full(batch, len(window), dtype=np.int64),
            "last_cycle": np.full(batch, LAST_CYCLE, dtype=np.float32),
        }
        for _ in range(RUNS):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    micros: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            parts = event["name"].split("/")
            micros[parts[2] if len(parts) > NAMED else "features of change, age, attention"] += event["dur"]
    total = sum(micros.values())
    return Counter({part: spent / total for part, spent in micros.items()})


if __name__ == "__main__":
    typer.run(main)
