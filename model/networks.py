"""The networks by their names: what `rul train --network NAME` and a checkpoint build.

A network is registered here and nowhere else.
"""

from __future__ import annotations

from typing import Any, Final, cast

from model.domain import RulError
from model.flagship import Flagship
from model.network import NetworkConfig, RulNetwork


class UnknownNetwork(RulError):
    """A network by a name that nobody has registered."""


NETWORKS: Final[dict[str, type[RulNetwork]]] = {"flagship": Flagship}


def build_network(config: NetworkConfig) -> RulNetwork:
    """A network with fresh weights, drawn from torch's own random numbers.

    Raises:
        UnknownNetwork: nobody has registered the name.
    """
    if config.network not in NETWORKS:
        raise UnknownNetwork(f"no network {config.network!r}, there are: {', '.join(NETWORKS)}")
    return NETWORKS[config.network](config)


def config_from_json(fields: dict[str, Any]) -> NetworkConfig:
    """The config that `dataclasses.asdict` made a JSON object from."""
    known: dict[str, Any] = {
        name: tuple(cast("list[int]", value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return NetworkConfig(**known)
