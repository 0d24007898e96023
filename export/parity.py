"""Parity of the exported graph with the trained network.

This module must not know how the graph was written.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import torch

from export.bundle import InvalidBundle, Manifest, Parity
from export.golden import farthest
from export.outputs import MAP, tolerance_of
from export.outputs import TOLERANCE as GOLDEN
from export.probes import probe_windows
from export.session import Session
from model.calibration import tensors
from model.domain import FloatArray, WindowSet
from model.network import RulNetwork

BATCHES: Final = (1, 2, 64)
TOLERANCE: Final = GOLDEN | {"rul": 1e-4, "attention": 1e-5, "head_attention": 1e-5, MAP: 1e-5}
"""Largest difference of each output, RUL and contributions in cycles; see `tolerance_of`."""


def measure_parity(net: RulNetwork, session: Session, manifest: Manifest) -> Parity:
    """Measure the largest differences over batches of 1, 2 and 64 probe windows."""
    net.eval()
    names = (*session.outputs, *([MAP] if session.has_map else ()))
    worst = {name: 0.0 for name in TOLERANCE if name in names}
    windows = probe_windows(manifest)
    for part in chain.from_iterable(windows.batches(size) for size in BATCHES):
        served = session.answer(part.readings, part.lengths, part.last_cycle)
        if session.has_map:
            served[MAP] = session.self_attention(part.readings, part.lengths, part.last_cycle)
        trained = torch_answers(net, part)
        if not session.has_map:
            trained.pop(MAP, None)
        for name, expected in trained.items():
            got = served.get(name)
            if got is None or got.shape != expected.shape:
                shape = "missing" if got is None else str(got.shape)
                raise InvalidBundle(
                    f"output {name}: expected {expected.shape} as in the network, got {shape}"
                )
            if not np.isfinite(got).all():
                raise InvalidBundle(f"output {name}: the graph returns NaN or infinity for a valid window")
        for name, largest in worst.items():
            worst[name] = max(largest, farthest(name, served[name], trained[name]))
    for name, largest in worst.items():
        allowed = tolerance_of(name, TOLERANCE, cap=manifest.cap)
        if largest > allowed:
            raise InvalidBundle(
                f"the graph differs from the network: {name} by {largest:.2g} (at most {allowed:g})"
            )
    return Parity(
        rul_cycles=worst["rul"], attention=max(worst["attention"], worst.get("head_attention", 0.0))
    )


def torch_answers(net: RulNetwork, windows: WindowSet) -> dict[str, FloatArray]:
    """Run the network and return each output by its name."""
    with torch.no_grad():
        answers = net(*tensors(windows))
    return {name: value.numpy() for name, value in answers._asdict().items() if value is not None}
