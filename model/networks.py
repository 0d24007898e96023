"""The networks by their names: what `rul train --network NAME` and a checkpoint build.

A network is registered here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from model.amnl import Amnl
from model.domain import RulError
from model.flagship import Flagship
from model.fleet import Fleet
from model.network import NetworkConfig, RulNetwork
from model.selfattention import SelfAttention


class UnknownNetwork(RulError):
    """A network by a name that nobody has registered."""


class InvalidOption(RulError):
    """An option that the network or the training does not have, or a value that it cannot be."""


NETWORKS: Final[dict[str, type[RulNetwork]]] = {
    "flagship": Flagship,
    "amnl": Amnl,
    "selfattention": SelfAttention,
}


def network_class(name: str) -> type[RulNetwork]:
    """A network's class by its name.

    Raises:
        UnknownNetwork: nobody has registered the name.
    """
    if name not in NETWORKS:
        raise UnknownNetwork(f"no network {name!r}, there are: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def network_config(
    fleet: Fleet, *, network: str, regimes: int, options: Mapping[str, Any] | None = None
) -> NetworkConfig:
    """What a network for this fleet is built from: the fleet's terms, its own defaults, then `options`.

    Raises:
        UnknownNetwork: nobody has registered the name.
        InvalidOption: the network does not go by one of the options.
    """
    own = network_class(network).options
    strange = sorted(set(options or {}) - set(own))
    if strange:
        raise InvalidOption(f"network {network!r} has no {', '.join(strange)}, it has: {', '.join(own)}")
    return NetworkConfig(
        network=network,
        columns=len(fleet.schema),
        settings=fleet.schema.indices("setting"),
        regimes=regimes,
        context=fleet.context,
        cap=fleet.cap,
        horizons=fleet.horizons,
        coverage=fleet.nominal_coverage,
        critical_below=fleet.critical_below,
        degrading_below=fleet.degrading_below,
        **{**own, **(options or {})},
    )


def fleet_for(fleet: Fleet, network: str) -> Fleet:
    """The fleet with no more context than the network reads."""
    longest = network_class(network).longest
    return fleet if longest is None else replace(fleet, context=min(fleet.context, longest))


def build_network(config: NetworkConfig) -> RulNetwork:
    """A network with fresh weights, drawn from torch's own random numbers.

    Raises:
        UnknownNetwork: nobody has registered the name.
        UnknownScore: there is no score function of the name that the config has.
    """
    return network_class(config.network)(config)


def config_from_json(fields: dict[str, Any]) -> NetworkConfig:
    """The config that `dataclasses.asdict` made a JSON object from."""
    known: dict[str, Any] = {
        name: tuple(cast("list[int]", value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return NetworkConfig(**known)
