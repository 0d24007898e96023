"""Whether a rounded graph still answers as well as the one that it was made from.

The run keeps no data, so that the user says what to judge on. This module must not know how
weights are rounded, nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from export.bundle import InvalidBundle, Manifest, Quantization
from export.held_out import fleet_for, judged_windows
from export.promises import measure_promises
from export.session import Session
from model.domain import FloatArray, WindowSet, capped_rul
from model.evaluation import root_mean_square_error

MOST_CYCLES_LOST: Final = 0.1
"""Of RMSE."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Windows of units whose failure is known, and where they came from."""

    windows: WindowSet
    data_name: str
    data_sha256: str


def judged_on(manifest: Manifest, data: Sequence[Path], fleet: str | None) -> Judged:
    """Windows of the units in files, read as the fleet that the network learnt from unless one is named.

    Raises:
        InvalidData: a file or the fleet is missing or not valid, or no unit's failure is known.
    """
    from model.readers import data_files, data_sha256, read_trajectories  # noqa: PLC0415 with PyArrow

    kind = fleet_for(manifest, fleet or manifest.training.config["fleet"])
    files = data_files(data, kind)
    windows = judged_windows(read_trajectories(data, kind), manifest)
    return Judged(windows, ", ".join(file.name for file in files), data_sha256(files))


def judge(exact: Session, rounded: Session, manifest: Manifest, on: Judged) -> Quantization:
    """What rounding costs, for the manifest.

    Raises:
        InvalidBundle: it costs too much, or a promise of the model contract no longer holds.
    """
    broken = [finding.promise for finding in measure_promises(rounded, manifest) if not finding.kept]
    if broken:
        raise InvalidBundle(
            f"{manifest.name} with int8 weights does not keep: {'; '.join(broken)}: export it without "
            "--quantize"
        )
    before, after = (_rul(session, on.windows) for session in (exact, rounded))
    truth = capped_rul(on.windows.rul, cap=manifest.cap)
    found = Quantization(
        weights="int8",
        rmse=root_mean_square_error(after - truth),
        rmse_float=root_mean_square_error(before - truth),
        farthest=float(np.abs(after - before).max()),
        windows=len(on.windows),
        data_name=on.data_name,
        data_sha256=on.data_sha256,
    )
    if not found.rmse - found.rmse_float <= MOST_CYCLES_LOST:
        raise InvalidBundle(
            f"{manifest.name} with int8 weights has RMSE {found.rmse:.3f} cycles on {found.windows} windows "
            f"of {found.data_name}, {found.rmse_float:.3f} without: at most {MOST_CYCLES_LOST:g} may be "
            "lost; export it without --quantize"
        )
    return found


def _rul(session: Session, windows: WindowSet) -> FloatArray:
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    return answers["rul"].astype(np.float64)
