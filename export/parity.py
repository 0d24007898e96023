"""Parity of the exported graph with the trained network.

This module must not know how the graph was written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from export.bundle import InvalidBundle, Manifest, Parity
from export.probes import probe_windows
from export.session import Session
from model.calibration import tensors
from model.domain import FloatArray, WindowSet
from model.network import RulNetwork

BATCHES: Final = (1, 2, 64)
RUL_TOLERANCE_CYCLES: Final = 1e-4
ATTENTION_TOLERANCE: Final = 1e-5


def measure_parity(net: RulNetwork, session: Session, manifest: Manifest) -> Parity:
    """Measure the largest differences over batches of 1, 2 and 64 probe windows."""
    net.eval()
    worst = {"rul": 0.0, "attention": 0.0} | ({"head_attention": 0.0} if manifest.heads else {})
    windows = probe_windows(manifest)
    batches = [
        np.arange(s, min(s + size, len(windows))) for size in BATCHES for s in range(0, len(windows), size)
    ]
    for rows in batches:
        part = windows.take(rows)
        served = session.answer(part.readings, part.lengths, part.last_cycle)
        trained = torch_answers(net, part)
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
            difference = np.abs(served[name].astype(np.float64) - trained[name].astype(np.float64))
            worst[name] = max(largest, float(difference.max()))
    attention = max(worst["attention"], worst.get("head_attention", 0.0))
    parity = Parity(rul_cycles=worst["rul"], attention=attention)
    if parity.rul_cycles > RUL_TOLERANCE_CYCLES or parity.attention > ATTENTION_TOLERANCE:
        raise InvalidBundle(
            f"the graph differs from the network: RUL by {parity.rul_cycles:.2g} cycles "
            f"(at most {RUL_TOLERANCE_CYCLES:g}), attention by {parity.attention:.2g} (at most "
            f"{ATTENTION_TOLERANCE:g})"
        )
    return parity


def torch_answers(net: RulNetwork, windows: WindowSet) -> dict[str, FloatArray]:
    """Run the network and return each output by its name."""
    with torch.no_grad():
        answers = net(*tensors(windows))
    return {name: value.numpy() for name, value in answers._asdict().items() if value is not None}
