"""Options `NAME=VALUE` of a network and its training, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from model.attention import SCORES
from model.networks import InvalidOption, network_class
from model.training import TrainConfig

ELSEWHERE: Final = ("seed", "steps")
"""Fields of `TrainConfig` with their own command-line options."""

SHARES: Final = (
    "attention_dropout",
    "recurrent_dropout",
    "average",
    "age_missing",
    "columns_missing",
    "readings_missing",
    "cycles_missing",
    "history_missing",
)
WORDS: Final = {"true": True, "false": False}


def read_options(texts: Sequence[str], *, network: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse options into those of the network and those of its training.

    Options of training start from the network's recipe.

    >>> read_options(["score=dot", "noise=0.1"], network="amnl")
    ({'score': 'dot'}, {'low_rul_weight': 1.0, 'noise': 0.1})
    """
    kind = network_class(network)
    trained = {name: value for name, value in asdict(TrainConfig()).items() if name not in ELSEWHERE}
    of_network: dict[str, Any] = {}
    of_training: dict[str, Any] = dict(kind.recipe)
    for text in texts:
        name, _, value = text.partition("=")
        if name in kind.options:
            of_network[name] = read_value(name, value, like=kind.options[name])
        elif name in trained:
            of_training[name] = read_value(name, value, like=trained[name])
        else:
            raise InvalidOption(
                f"{text!r}: expected NAME=VALUE with a name of network {network!r} ({_listed(kind.options)}) "
                f"or of training ({_listed(trained)})"
            )
    if of_training.get("heads_apart") and "heads" not in kind.options:
        raise InvalidOption(f"heads_apart: network {network!r} has no heads to drive apart")
    return of_network, of_training


def read_value(name: str, text: str, *, like: float | str) -> float | str:
    """Parse a value of the same type as the default."""
    if isinstance(like, str):
        expected, value = f"one of {', '.join(SCORES)}", text if text in SCORES else None
    elif isinstance(like, bool):
        expected, value = "true or false", WORDS.get(text)
    elif name in SHARES:
        expected, value = "a share from 0 to below 1", _number(text)
        value = value if value is not None and 0.0 <= value < 1.0 else None
    elif isinstance(like, int):
        expected, value = "a whole number above 0", int(text) if text.isdecimal() and int(text) > 0 else None
    else:
        expected, value = "a number", _number(text)
        value = value if value is not None and (value >= 0.0 or name == "entropy_weight") else None
        expected += "" if name == "entropy_weight" else ", 0 or more"
    if value is None:
        raise InvalidOption(f"{name}: expected {expected}, got {text!r}")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={str(value).lower()}" for name, value in options.items())
