"""Registry of networks by name, for `rul train --network NAME` and checkpoints."""

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
    """There is no network of this name."""


class InvalidOption(RulError):
    """The option is unknown, or its value is invalid."""


NETWORKS: Final[dict[str, type[RulNetwork]]] = {
    "flagship": Flagship,
    "amnl": Amnl,
    "selfattention": SelfAttention,
}


def network_class(name: str) -> type[RulNetwork]:
    """Look up a network's class by its name."""
    if name not in NETWORKS:
        raise UnknownNetwork(f"no network {name!r}, there are: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def network_config(
    fleet: Fleet, *, network: str, regimes: int, units: int = 0, options: Mapping[str, Any] | None = None
) -> NetworkConfig:
    """Build a network's configuration from the fleet, its defaults for these units, and `options`."""
    kind = network_class(network)
    own = {**kind.options, **kind.options_for(units)}
    strange = sorted(set(options or {}) - set(own))
    if strange:
        raise InvalidOption(
            f"network {network!r} has no option {', '.join(strange)}, its options are: {', '.join(own)}"
        )
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
    """Limit the fleet's context to the longest that the network reads."""
    longest = network_class(network).longest
    return fleet if longest is None else replace(fleet, context=min(fleet.context, longest))


def build_network(config: NetworkConfig) -> RulNetwork:
    """Build a network with random weights from torch's global generator."""
    return network_class(config.network)(config)


def config_from_json(fields: dict[str, Any]) -> NetworkConfig:
    """Build a config from the JSON object of its `dataclasses.asdict`."""
    known: dict[str, Any] = {
        name: tuple(cast("list[int]", value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    return NetworkConfig(**known)
