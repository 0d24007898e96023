"""Check of a quantized graph against the float graph, on data that the user names.

This module must not know how weights are quantized, nor torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from export.bundle import InvalidBundle, Manifest, Quantization
from export.evaluation_windows import labelled_windows, matching_fleet
from export.promises import measure_promises
from export.session import Session
from model.domain import FloatArray, WindowSet, capped_rul
from model.evaluation import root_mean_square_error

MOST_CYCLES_LOST: Final = 0.1
"""Of RMSE."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckData:
    """Labelled windows and the files they come from."""

    windows: WindowSet
    data_name: str
    data_sha256: str


def read_check_data(manifest: Manifest, data: Sequence[Path], fleet: str | None) -> CheckData:
    """Read labelled windows from files; `fleet` defaults to the training fleet."""
    from model.readers import data_files, data_sha256, read_trajectories  # noqa: PLC0415 with PyArrow

    kind = matching_fleet(manifest, fleet or manifest.training.config["fleet"])
    files = data_files(data, kind)
    windows = labelled_windows(read_trajectories(data, kind), manifest)
    return CheckData(windows, ", ".join(file.name for file in files), data_sha256(files))


def measure_quantization(exact: Session, rounded: Session, manifest: Manifest, on: CheckData) -> Quantization:
    """Measure the effect of quantization, for the manifest."""
    broken = [finding.promise for finding in measure_promises(rounded, manifest) if not finding.kept]
    if broken:
        raise InvalidBundle(
            f"{manifest.name} with int8 weights breaks: {'; '.join(broken)}; export it without --quantize"
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
            f"of {found.data_name}, {found.rmse_float:.3f} without; expected an increase of at most "
            f"{MOST_CYCLES_LOST:g}: export it without --quantize"
        )
    return found


def _rul(session: Session, windows: WindowSet) -> FloatArray:
    answers = session.answer_all(windows.readings, windows.lengths, windows.last_cycle)
    return answers["rul"].astype(np.float64)
