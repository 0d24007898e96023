"""Search for options of a row: trials by Optuna's tree-structured Parzen estimator (TPE).

Only this module imports Optuna. It must not know how a row runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler

from model.experiments import Found, Wanted, row_named
from model.networks import InvalidOption

AT_ONCE: Final = 4
"""Trials between two updates of the estimator, with a cluster or without: both try the same options."""


class Space(NamedTuple):
    """A row, its settings that all trials share, and the values of the searched ones."""

    row: str
    fixed: Sequence[str]
    searched: Mapping[str, BaseDistribution]


def read_space(row: str, settings: Sequence[str]) -> Space:
    """Read settings: NAME=LOW..HIGH and NAME=A,B,C are searched, the others are the same in all trials.

    Raises:
        InvalidOption: no setting is searched, or the row does not take one of them.
    """
    ranges = [text for text in settings if _mark(text)]
    fixed = [text for text in settings if not _mark(text)]
    row_named(row, fixed)
    if not ranges:
        raise InvalidOption("--search: expected --set NAME=LOW..HIGH or --set NAME=A,B,C to search in")
    return Space(row, fixed, {text.partition("=")[0]: _distribution(row, text) for text in ranges})


def search_rows(
    space: Space, run: Callable[[Sequence[Wanted]], Iterator[Found]], *, trials: int, seed: int
) -> Iterator[tuple[Wanted, Found]]:
    """Run a row with options that lower its RMSE on held-out units; yield each trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=TPESampler(seed=seed))
    for start in range(0, trials, AT_ONCE):
        asked = [study.ask(dict(space.searched)) for _ in range(min(AT_ONCE, trials - start))]
        rows = [Wanted(space.row, [*space.fixed, *_settings(space, trial.params)]) for trial in asked]
        for trial, wanted, found in zip(asked, rows, run(rows), strict=True):
            study.tell(trial, found.rmse)
            yield wanted, found


def _mark(setting: str) -> str:
    """Return the mark between the values of a setting; empty if it has one value."""
    return next((mark for mark in ("..", ",") if mark in setting), "")


def _distribution(row: str, setting: str) -> BaseDistribution:
    """Describe the values of a searched setting; numbers above 0 are drawn on a logarithmic scale."""
    name, _, value = setting.partition("=")
    texts = value.split(_mark(setting))
    rows = [row_named(row, [f"{name}={text}"]) for text in texts]  # refuses what the row does not take
    if _mark(setting) == ",":
        return CategoricalDistribution(texts)
    values = [{**each.options, **each.recipe}[name] for each in rows]
    if len(values) != 2 or isinstance(values[0], str | bool) or values[0] >= values[1]:
        raise InvalidOption(f"{name}: expected LOW..HIGH, numbers with LOW below HIGH, got {value!r}")
    low, high = values
    return (
        IntDistribution(low, high, log=True)
        if isinstance(low, int)
        else FloatDistribution(low, high, log=low > 0)
    )


def _settings(space: Space, params: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_rounded(value, space.searched[name])}" for name, value in params.items()]


def _rounded(value: Any, among: BaseDistribution) -> Any:  # noqa: ANN401 a number or a text
    """Round a number to four digits, within its bounds; a whole number and a text stay."""
    if not isinstance(among, FloatDistribution):
        return value
    return min(max(float(f"{value:.4g}"), among.low), among.high)
