"""Errors due to gaps of cycles, for both ways to cut a window, as a table.

    python -m tests.benchmarks.gaps --data FOLDER [--bundles fd001,fd002,fd003,fd004]

Cycles of the training units are dropped at random. A window by cycle counts them as missing, as the service
does; a window by reading puts the readings around a gap side by side. Both end at the same reading. The
networks were trained on these units, so the errors compare the two ways but do not measure accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from export.bundle import Manifest, find_bundle
from export.evaluation_windows import matching_fleet
from export.session import Session, open_bundle
from model.dataset import join_windows, windows_ending_at
from model.domain import Trajectory, WindowSet, capped_rul
from model.evaluation import root_mean_square_error
from model.readers import read_trajectories
from tests.benchmarks.tables import table

SHARES: Final = (0.0, 0.1, 0.3, 0.5)
PER_UNIT: Final = 3
SHORTEST: Final = 20


def main(
    *,
    data: Annotated[Path, typer.Option(help="Folder with train_FD001.txt .. train_FD004.txt.")],
    bundles: Annotated[str, typer.Option(help="Separated by commas.")] = "fd001,fd002,fd003,fd004",
    seed: Annotated[int, typer.Option(help="Of ends and dropped cycles.")] = 0,
) -> None:
    """Print the table."""
    rows: list[tuple[object, ...]] = []
    for name in bundles.split(","):
        session, manifest = open_bundle(find_bundle(name))
        file = data / f"train_{name.upper()}.txt"
        units = read_trajectories([file], matching_fleet(manifest, "cmapss"))
        for share in SHARES:
            pairs = list(cut_both_ways(units, manifest, share, np.random.default_rng(seed)))
            errors = (rmse(session, manifest, join_windows(way)) for way in zip(*pairs, strict=True))
            rows.append((name, f"{share:.0%}", *(f"{error:.2f}" for error in errors)))
    print(table(("model", "dropped", "RMSE by cycle", "by reading"), rows))


def cut_both_ways(
    units: list[Trajectory], manifest: Manifest, share: float, rng: np.random.Generator
) -> Iterator[tuple[WindowSet, WindowSet]]:
    """Yield windows by cycle and by reading, with a share of the cycles before the last dropped."""
    for unit in units:
        for end in rng.integers(SHORTEST, len(unit) - 1, PER_UNIT).tolist():
            kept = np.append(np.flatnonzero(rng.random(end) >= share), end)
            rul = np.float32([unit.cycles[-1] - unit.cycles[end]])
            last = np.array([len(kept) - 1])
            ways = (unit.cycles[kept], np.arange(1, len(kept) + 1))
            gappy = (Trajectory(unit.unit, cycles, unit.readings[kept], failed=False) for cycles in ways)
            cut = (windows_ending_at(each, last, length=manifest.context) for each in gappy)
            by_cycle, by_reading = (
                replace(each, rul=rul, last_cycle=np.float32([unit.cycles[end]])) for each in cut
            )
            yield by_cycle, by_reading


def rmse(session: Session, manifest: Manifest, windows: WindowSet) -> float:
    """Compute the error of capped RULs, in cycles."""
    answered = session.answer_all(windows)["rul"]
    truth, cap = capped_rul(windows.rul, cap=manifest.cap), np.float32(manifest.cap)
    return root_mean_square_error(np.minimum(answered, cap) - truth)


if __name__ == "__main__":
    typer.run(main)
