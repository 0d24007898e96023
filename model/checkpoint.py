"""Checkpoint: the folder of a training run.

A finished run `RUN/` holds `network.pt` (tensors only) and `run.json` (config, facts for the
manifest, metrics); an unfinished one holds `state.pt`. Only tensors and plain values are unpickled.
This module must not know how a network is trained.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, cast

import torch
from torch import Tensor

from model.domain import RulError
from model.network import NetworkConfig, RulNetwork
from model.networks import build_network, config_from_json
from model.outputs import whole_file

NETWORK_FILE: Final = "network.pt"
RUN_FILE: Final = "run.json"
STATE_FILE: Final = "state.pt"
FORMAT: Final = 5


class InvalidCheckpoint(RulError):
    """The run's folder is missing, unfinished, damaged or of another version."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A trained and calibrated network with the facts for its manifest."""

    name: str  # Name of the model, also in the bundle
    config: NetworkConfig  # Configuration of the network
    weights: dict[str, Tensor]  # Parameters and buffers
    facts: dict[str, Any]  # Manifest fields that training determines, as JSON values

    def network(self) -> RulNetwork:
        """Build the network with its weights, in eval mode."""
        net = build_network(self.config)
        net.load_state_dict(self.weights)
        return net.eval()

    def digest(self) -> str:
        """Return the SHA-256 of the weights."""
        whole = hashlib.sha256()
        for name, weight in sorted(self.weights.items()):
            whole.update(name.encode() + weight.contiguous().numpy().tobytes())
        return whole.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the folder; each file is written completely or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / NETWORK_FILE, self.weights)
        run = {"format": FORMAT, "name": self.name, "config": asdict(self.config), "facts": self.facts}
        with whole_file(folder / RUN_FILE) as part:
            part.write_text(json.dumps(run, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read a finished run.

        Raises:
            InvalidCheckpoint: the run is missing, unfinished, damaged or of another version.
        """
        if not (folder / RUN_FILE).is_file():
            unfinished = (folder / STATE_FILE).is_file()
            hint = (
                "the run is unfinished, use `rul train --resume`" if unfinished else "the folder has no run"
            )
            raise InvalidCheckpoint(f"{folder}: {RUN_FILE} is missing: {hint}")
        try:
            stored = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
            if stored["format"] != FORMAT:
                raise InvalidCheckpoint(
                    f"{folder}: run format {stored['format']}, this version reads {FORMAT}: train again"
                )
            config = config_from_json(stored["config"])
            weights = cast("dict[str, Tensor]", load_tensors(folder / NETWORK_FILE))
            checkpoint = cls(stored["name"], config, weights, stored["facts"])
            checkpoint.network()
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise InvalidCheckpoint(f"{folder}: cannot be read, train again: {error}") from error
        return checkpoint


def save_tensors(path: Path, values: dict[str, Any]) -> None:
    """Write tensors and plain values completely or not at all.

    Raises:
        CannotWrite: the file system refuses.
    """
    content = BytesIO()  # PyTorch words a full disk as a fault of its own
    torch.save(values, content)
    with whole_file(path) as part:
        part.write_bytes(content.getvalue())


def load_tensors(path: Path) -> dict[str, Any]:
    """Read a file of `save_tensors`; nothing in it is executed.

    Raises:
        InvalidCheckpoint: the file is missing or damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise InvalidCheckpoint(f"{path}: cannot be read, train again: {error}") from error
