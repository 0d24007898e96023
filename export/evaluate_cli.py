"""`rul evaluate`: errors of a bundle on units with a known failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from export.bundle import Manifest, find_bundle
from export.comparison import Model, compare, comparison_table, verdict
from export.evaluation_windows import (
    answer_lives,
    is_training_data,
    last_windows,
    matching_fleet,
    nothing_to_answer,
    read_true_ruls,
    require_failures,
)
from export.pictures import require_matplotlib
from model.cells import counted, plain_number
from model.censoring import failed_units
from model.dataset import answerable, truncated_windows
from model.domain import FloatArray, InvalidData, Trajectory, WindowSet
from model.evaluation import TITLES, Answered, Figure, figures
from model.fleet import Fleet
from model.prognostics import (
    EDGES,
    Band,
    Life,
    brier_figures,
    by_answer,
    by_rul,
    ignorant_brier,
    join_lives,
    prognostic_figures,
    reliability,
)
from model.screen import cells, number_table, save_picture, say, stacked, tell

if TYPE_CHECKING:
    from export.session import Session

HELP = """
Evaluate a bundle on units with a known failure.

Windows are cut at random cycles of each unit, and each unit is predicted at every cycle of its life.
Units that did not fail are left out; in the table of windows, failed units are reweighted to stand for
them. With --rul, which gives true RULs, each unit is predicted at its last reading, as in NASA's test.
Use units that did not train the bundle: on its own training data the errors are too low. The model card
has the errors of cross-validation. Intervals are by bootstrap over units, or over their groups where the
fleet has the key `group`; one alone has none.

Example: rul evaluate bundles/mine --fleet fleet.toml --data new_units.csv --plot pictures

Example: rul evaluate fd001 --data test_FD001.txt --rul RUL_FD001.txt

Example: rul evaluate bundles/new --against bundles/old --fleet fleet.toml --data new_units.csv
"""

TRUNCATIONS: Final = 20
"""Windows per unit."""
OF_LIVES: Final = {
    "alpha_lambda": "alpha-lambda accuracy (20 %, half-way)",
    "within_alpha": "cycles within 20 % of the truth",
    "horizon": "prognostic horizon, lasting, cycles",
    "first_horizon": "prognostic horizon, first met, cycles",
    "relative_accuracy": "cumulative relative accuracy",
    "relative_accuracy_by_rul": "the same, weighted by RUL",
    "monotonicity": "monotonicity of the answers",
    "life_coverage": "coverage of the interval",
}
LARGE: Final = 100.0
"""Figures in cycles from this on are shown without decimals, so that the table fits a terminal."""
GIVE_RULS: Final = "give their true RULs with --rul FILE (0 for a unit that failed)"
CAUTION: Final = (
    "Warning: this data trained the network, so these errors are too low. See the errors of "
    "cross-validation in the model card."
)


def evaluate(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a folder.")],
    *,
    data: Annotated[list[Path], typer.Option(help="File or folder of readings; may be repeated.")],
    fleet: Annotated[str, typer.Option(help="TOML file, or name of a shipped fleet.")] = "cmapss",
    rul: Annotated[
        Path | None,
        typer.Option(
            help="True RULs of units that did not fail: one number a line, or CSV with unit and rul."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another bundle: compare the errors of both on the same windows.")
    ] = None,
    truncations: Annotated[int, typer.Option(help="Windows per unit.", min=1)] = TRUNCATIONS,
    seed: Annotated[int, typer.Option(help="Seed of the random cycles.", min=0)] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(help="Folder for pictures: trajectories, residuals, reliability. Needs matplotlib."),
    ] = None,
) -> None:
    """Evaluate a bundle; see HELP."""
    from model.findings import inspected_trajectories  # noqa: PLC0415 with PyArrow

    if plot is not None:
        if rul is not None:
            raise typer.BadParameter(
                "pictures show whole lives: give one of both", param_hint="--rul / --plot"
            )
        require_matplotlib()
    (session, manifest), kind = _opened(bundle, fleet)
    rival = None if against is None else _opened(against, fleet)[0]
    trajectories = inspected_trajectories(data, kind, fleet=fleet, true_ruls=rul is not None)
    units: list[Trajectory] = []
    if rul is not None:
        truth = read_true_ruls(rul, [unit.unit for unit in trajectories])
        cut = partial(last_windows, trajectories, truth)
    else:
        units = with_known_failure(session, manifest, trajectories, kind, instead=GIVE_RULS)
        cut = partial(_cut, units, per_unit=truncations, seed=seed, shortest=kind.shortest)
    windows = _answered(cut(context=manifest.context), manifest)
    Console().print(*_window_tables(session, manifest, windows), sep="\n")
    if units:
        _judge_lives(session, manifest, units, plot)
    if is_training_data(manifest, data, kind):
        tell(CAUTION)
    if against is not None and rival is not None:
        _compare((bundle, against), ((session, manifest), rival), cut)
        if is_training_data(rival[1], data, kind):
            tell(f"Warning: this data trained {against}, so its error is too low.")


def _opened(bundle: str, fleet: str) -> tuple[Model, Fleet]:
    from export.session import open_bundle  # noqa: PLC0415 with ONNX Runtime

    model = open_bundle(find_bundle(bundle))
    return model, matching_fleet(model[1], fleet)


def _compare(bundles: tuple[str, str], models: tuple[Model, Model], cut: Callable[..., WindowSet]) -> None:
    """Print which of two bundles has the smaller error."""
    compared = compare(*models, cut)
    Console().print(comparison_table(bundles, compared))
    say(verdict(bundles, compared.difference))


def _cut(units: Sequence[Trajectory], *, context: int, per_unit: int, seed: int, shortest: int) -> WindowSet:
    """Cut windows of any length at the same random cycles."""
    rng = np.random.default_rng(seed)
    return truncated_windows(units, length=context, per_unit=per_unit, rng=rng, shortest=shortest)


def _answered(windows: WindowSet, manifest: Manifest) -> WindowSet:
    """Leave out the windows that the service would refuse, and say how many."""
    refused = ~answerable(windows, manifest.max_missing_fraction)
    if refused.all():
        raise nothing_to_answer(manifest)
    if refused.any():
        tell(f"{refused.sum()} of {len(windows)} windows miss too many readings for an answer: left out")
    return windows.take(np.flatnonzero(~refused))


def with_known_failure(
    session: Session, manifest: Manifest, trajectories: Sequence[Trajectory], kind: Fleet, *, instead: str
) -> list[Trajectory]:
    """Return the units with a known failure; say how many others are left out.

    Raises:
        InvalidData: no unit failed, or most only seem to have; the message says what to do `instead`.
    """
    units = failed_units(trajectories)
    censored = len(trajectories) - len(units)
    if not units:
        raise InvalidData(f"none of {counted(censored, 'unit')} failed: {instead}")
    if kind.failure is None:
        require_failures(session, manifest, units, instead=instead)
    if censored:
        tell(f"{censored} of {len(trajectories)} units did not fail and are left out")
    return units


def _window_tables(session: Session, manifest: Manifest, windows: WindowSet) -> tuple[Table, Table]:
    """Predict windows and tabulate their metrics, over all and by predicted RUL."""
    with Console(stderr=True).status(f"predicting {counted(len(windows), 'window')}"):
        answers = session.answer_all(windows)
        lower, upper = answers["rul_interval"].T
        of_units = windows.unit, windows.group, windows.weight
        answered = Answered(windows.rul, answers["rul"], lower, upper, *of_units)
        thirds = by_answer(answered, cap=manifest.cap)
        return (
            windows_table(manifest, answered, answers["failure_probability"]),
            bands_table(f"{manifest.name}: windows by predicted RUL", thirds),
        )


def _judge_lives(
    session: Session, manifest: Manifest, units: Sequence[Trajectory], plot: Path | None
) -> None:
    """Predict every cycle of whole lives, print their metrics and draw them."""
    screen = Console(stderr=True)
    shown = track(units, "predicting every cycle", console=screen, transient=True)
    lives = answer_lives(session, manifest, shown)
    with screen.status("bootstrap"):
        bands = by_rul(join_lives(lives), cap=manifest.cap)
        tables = (
            lives_table(manifest, prognostic_figures(lives, cap=manifest.cap), lives),
            bands_table(f"{manifest.name}: every cycle by true RUL", bands),
            reliability_table(manifest.name, lives, manifest.horizons),
        )
    Console().print(*tables, sep="\n")
    if plot is not None:
        with screen.status("drawing"):
            written = _draw(plot, manifest, lives=lives, bands=bands)
        say(*map(str, written))


def windows_table(manifest: Manifest, answered: Answered, stated: FloatArray) -> Table:
    """Tabulate the metrics of windows and of their failure probabilities, [W, K]."""
    found = figures(answered, cap=manifest.cap)
    truth, weight = answered.truth, answered.weight
    brier = brier_figures(stated, truth, answered.group, horizons=manifest.horizons, weight=weight)
    count, units = len(answered.truth), len(set(answered.unit.tolist()))
    shown = f"{counted(count, 'window')} of {counted(units, 'unit')}"
    title = f"{manifest.name}: {shown}, RUL capped at {manifest.cap:g}"
    table = number_table(title, "figure", "value", "95 % interval")
    for name, title in TITLES.items():
        if name in found:
            table.add_row(title, *cells(found[name], digits=3))
    for horizon, figure in brier.items():
        ignorant = ignorant_brier(truth, horizon=horizon, weight=weight)
        title = f"Brier score at {horizon} (constant forecast {ignorant:.3f})"
        table.add_row(title, *cells(figure, digits=3))
    return table


def lives_table(manifest: Manifest, found: Mapping[str, Figure], lives: Sequence[Life]) -> Table:
    """Tabulate the metrics of whole lives, from the cycle where the RUL meets the cap."""
    shown = counted(len(lives), "unit")
    title = f"{manifest.name}: {shown}, every cycle from RUL {manifest.cap:g} on, mean over units"
    table = number_table(title, "figure", "value", "95 % interval")
    for name, title in OF_LIVES.items():
        table.add_row(title, *cells(found[name], digits=3))
    return table


def bands_table(title: str, bands: Sequence[Band]) -> Table:
    """Tabulate the metrics of bands, each above its 95 % interval."""
    title = f"{title}, 95 % interval below"
    table = number_table(title, "RUL", "windows", "RMSE", "bias", "coverage", "width")
    in_cycles = (band.figures[name] for band in bands for name in ("rmse", "bias", "width"))
    is_large = any(abs(end) >= LARGE for each in in_cycles for end in (each.value, each.low, each.high))
    digits = 0 if is_large else 1
    for band in bands:
        shown = band.figures
        table.add_row(
            f"{plain_number(band.low)} to {plain_number(band.high)}"
            if isfinite(band.high)
            else f"from {plain_number(band.low)}",
            str(band.windows),
            *(stacked(shown[name], digits=digits) for name in ("rmse", "bias")),
            stacked(shown["coverage"], digits=2),
            stacked(shown["width"], digits=digits),
        )
    return table


def reliability_table(name: str, lives: Sequence[Life], horizons: Sequence[int]) -> Table:
    """Tabulate failures beside the stated probabilities, at every prediction of whole lives."""
    truth = np.concatenate([life.truth for life in lives])
    stated = np.concatenate([life.failure_probability for life in lives])
    shown = f"{counted(len(truth), 'prediction')} of {counted(len(lives), 'unit')}"
    title = f"{name}: failures by stated probability, {shown}"
    table = number_table(title, "stated", *(f"failed within {horizon}" for horizon in horizons))
    columns = [reliability(stated[:, k], truth, horizon=horizon) for k, horizon in enumerate(horizons)]
    for row, (low, high) in enumerate(pairwise(EDGES)):
        found = [(each.observed[row], each.windows[row]) for each in columns]
        cells = [f"{share:.1%} of {count}" if count else "" for share, count in found]
        table.add_row(f"{100 * low:g} to {100 * high:g} %", *cells)
    failed = [int((truth <= horizon).sum()) for horizon in horizons]
    sums = [f"{count} of {total:.0f}" for count, total in zip(failed, stated.sum(axis=0), strict=True)]
    table.add_row("all, of the sum of the stated", *sums)
    return table


def _draw(folder: Path, manifest: Manifest, *, lives: Sequence[Life], bands: Sequence[Band]) -> list[Path]:
    from export import evaluation_pictures as pictures  # noqa: PLC0415 with matplotlib

    drawn = {
        "trajectories.png": pictures.trajectory_picture(lives, manifest),
        "residuals.png": pictures.residual_picture(lives, manifest),
        "reliability.png": pictures.reliability_picture(lives, bands, manifest),
    }
    for name, picture in drawn.items():
        save_picture(picture, folder / name)
    return [folder / name for name in drawn]
