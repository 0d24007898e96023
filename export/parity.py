"""Parity: the exported graph answers what the trained network answers.

Also makes the windows that this is shown on, from reference statistics alone: plausible ones and
extreme ones. This module must not know how the graph was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from export.bundle import InvalidBundle, Manifest, Parity
from export.session import Session
from model.domain import FloatArray, IntArray, Trajectory, WindowSet, pad_windows
from model.network import RulNetwork
from model.simulation import simulate

BATCHES: Final = (1, 2, 64)
RUL_TOLERANCE_CYCLES: Final = 1e-4
ATTENTION_TOLERANCE: Final = 1e-5
SEED: Final = 20
UNITS: Final = 13


def measure_parity(net: RulNetwork, session: Session, manifest: Manifest) -> Parity:
    """The largest differences over batches of 1, 2 and 64, plausible and extreme windows.

    Raises:
        InvalidBundle: names or shapes differ, or a difference is above its tolerance.
    """
    net.eval()
    worst = {"rul": 0.0, "attention": 0.0}
    windows = probe_windows(manifest)
    for rows in _batches(len(windows)):
        part = windows.take(rows)
        served = session.answer(part.readings, part.lengths, part.last_cycle)
        trained = torch_answers(net, part)
        for name, expected in trained.items():
            got = served.get(name)
            if got is None or got.shape != expected.shape:
                shape = "missing" if got is None else str(got.shape)
                raise InvalidBundle(f"output {name}: the network gives {expected.shape}, the graph {shape}")
            if not np.isfinite(got).all():
                raise InvalidBundle(f"output {name}: the graph answers NaN or infinity to a legal window")
        for name, largest in worst.items():
            difference = np.abs(served[name].astype(np.float64) - trained[name].astype(np.float64))
            worst[name] = max(largest, float(difference.max()))
    parity = Parity(rul_cycles=worst["rul"], attention=worst["attention"])
    if parity.rul_cycles > RUL_TOLERANCE_CYCLES or parity.attention > ATTENTION_TOLERANCE:
        raise InvalidBundle(
            f"the graph does not answer what the network does: RUL differs by {parity.rul_cycles:.2g} cycles "
            f"(at most {RUL_TOLERANCE_CYCLES:g}), attention by {parity.attention:.2g} (at most "
            f"{ATTENTION_TOLERANCE:g})"
        )
    return parity


def torch_answers(net: RulNetwork, windows: WindowSet) -> dict[str, FloatArray]:
    """What the network itself answers, each output by its name."""
    with torch.no_grad():
        answers = net(
            torch.from_numpy(windows.readings),
            torch.from_numpy(windows.lengths),
            torch.from_numpy(windows.last_cycle),
        )
    return {name: value.numpy() for name, value in answers._asdict().items()}


def probe_windows(manifest: Manifest) -> WindowSet:
    """64 windows: plausible ones of every length and age, and legal ones that nobody hopes for."""
    context = manifest.context
    plausible = simulated_windows(manifest, count=48, seed=SEED)
    readings, lengths, last_cycle = plausible.readings, plausible.lengths, plausible.last_cycle
    rng = np.random.default_rng(SEED)
    readings[rng.random(readings.shape) < 0.03] = np.nan
    last_cycle[rng.random(len(last_cycle)) < 0.2] = np.nan
    lengths = np.concatenate([lengths, np.full(8, context), [1, 2, context, context], np.full(4, context)])
    extreme = extreme_readings(readings[lengths[:48] == context][-1])
    return WindowSet(
        np.concatenate([readings, extreme]),
        lengths,
        np.concatenate([last_cycle, np.resize([np.nan, 0.0, -5.0, 1e30, 1.0, 200.0], 16)]).astype(np.float32),
        np.zeros(64, np.float32),
        np.array(["probe"] * 64),
    )


def extreme_readings(whole: FloatArray) -> FloatArray:
    """Sixteen windows [16, T, F] made from one: constant, huge, all missing, nearly all missing, broken."""
    extreme = np.stack([whole] * 16)
    extreme[0] = np.nan
    extreme[1] = 0.0
    extreme[2] = 1e30
    extreme[3] = -1e30
    extreme[4] = whole[0]
    extreme[5, :, ::2] = np.nan
    extreme[6, ::2] = np.nan
    extreme[7, :-1] = np.nan
    extreme[8, 1:] = np.nan
    extreme[9, 2:] = np.inf
    extreme[10, ::3] = 1e30
    extreme[11, ::2] *= -1
    extreme[12, :, 0] = np.inf
    extreme[13] *= 1e6
    extreme[14] *= 1e-6
    extreme[15] = whole[::-1]
    return extreme


def simulated_windows(manifest: Manifest, *, count: int, seed: int) -> WindowSet:
    """Windows cut from simulated units, float32 [count, context, F]: some whole lives, some beginnings."""
    units = simulate(manifest, manifest.schema_of_columns, units=UNITS, seed=seed)
    rng = np.random.default_rng(seed)
    cuts = [_cut(units[i % UNITS], i, manifest.context, rng) for i in range(count)]
    windows = [unit.readings[max(0, end - manifest.context) : end] for unit, end in cuts]
    return WindowSet(
        pad_windows(windows, length=manifest.context),
        np.array([len(window) for window in windows], dtype=np.int64),
        np.array([unit.cycles[end - 1] for unit, end in cuts], dtype=np.float32),
        np.array([unit.cycles[-1] - unit.cycles[end - 1] for unit, end in cuts], dtype=np.float32),
        np.array([unit.unit for unit, _ in cuts]),
    )


def _cut(unit: Trajectory, i: int, context: int, rng: np.random.Generator) -> tuple[Trajectory, int]:
    """Where to end window i: in turn at the failure, early, just before failure, and anywhere."""
    ends = (len(unit), int(rng.integers(1, context + 1)), len(unit) - 10, int(rng.integers(1, len(unit) + 1)))
    return unit, min(max(ends[i % 4], 1), len(unit))


def _batches(windows: int) -> Iterator[IntArray]:
    for batch in BATCHES:
        for start in range(0, windows, batch):
            yield np.arange(start, min(start + batch, windows))
