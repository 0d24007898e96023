"""The graph of every peer, in the peer's environment, with the options of rulserve.

This folder must not know the project: a peer's environment has only the packages of its tutorial.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime as ort

MODEL = os.environ.get("PEER_MODEL", "")
PORT = int(os.environ.get("PEER_PORT", "0"))
CORES = len(os.sched_getaffinity(0))
MAX_BATCH = 32
WAIT_SECONDS = 0.002
OUTPUTS = (
    "rul", "rul_interval", "failure_probability", "health_state", "attention", "contribution", "novelty",
)  # fmt: skip


class Graph:
    """One session with one thread; a peer has one process, or one calling thread, per core."""

    def __init__(self, path: str = MODEL) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, readings: Any, last_cycle: Any = None) -> dict[str, Any]:
        """Run readings [B, T, F] and ages of units [B]; all outputs have B first."""
        count, cycles = readings.shape[:2]
        ages = np.full(count, np.nan) if last_cycle is None else np.reshape(last_cycle, count)
        given = {
            "readings": readings.astype(np.float32, copy=False),
            "lengths": np.full(count, cycles, dtype=np.int64),
            "last_cycle": ages.astype(np.float32, copy=False),
        }
        return dict(zip(OUTPUTS, self._session.run(OUTPUTS, given), strict=True))

    def answer(self, windows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer the windows of a JSON body with the content of the JSON answer."""
        readings = np.array([window["readings"] for window in windows], dtype=np.float32)
        ages = np.array([window["last_cycle"] for window in windows], dtype=np.float32)
        return rows(self.run(readings, ages))


def rows(outputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert outputs with B first to one object per window."""
    lists = {name: values.tolist() for name, values in outputs.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
