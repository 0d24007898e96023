"""What training leaves behind: a folder that an export, a resumed run or a reader opens.

`RUN/` holds `network.pt` (tensors alone) with `run.json` (config, facts for the manifest,
figures) once it is done, and `state.pt` while it is not. Nothing in it is ever unpickled beyond
tensors and plain values. This module must not know how a network is trained.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, cast

import torch
from torch import Tensor

from model.domain import RulError
from model.network import NetworkConfig, RulNetwork
from model.networks import build_network, config_from_json

NETWORK_FILE: Final = "network.pt"
RUN_FILE: Final = "run.json"
STATE_FILE: Final = "state.pt"
FORMAT: Final = 1


class InvalidCheckpoint(RulError):
    """A run's folder that is missing, unfinished, damaged or of another version."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A trained and calibrated network, with everything that its manifest will say.

    Attributes:
        name: Of the model, as a bundle will carry it.
        config: What the network was built from.
        weights: Its parameters and buffers.
        facts: Fields of the manifest that training settles, as JSON values.
    """

    name: str
    config: NetworkConfig
    weights: dict[str, Tensor]
    facts: dict[str, Any]

    def network(self) -> RulNetwork:
        """The network with its weights, in eval mode."""
        net = build_network(self.config)
        net.load_state_dict(self.weights)
        return net.eval()

    def digest(self) -> str:
        """SHA-256 of the weights."""
        whole = hashlib.sha256()
        for name, weight in sorted(self.weights.items()):
            whole.update(name.encode() + weight.contiguous().numpy().tobytes())
        return whole.hexdigest()

    def save(self, folder: Path) -> None:
        """Write what `load` reads; the folder is complete or as it was."""
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / NETWORK_FILE, self.weights)
        text = json.dumps(
            {"format": FORMAT, "name": self.name, "config": asdict(self.config), "facts": self.facts},
            indent=1,
        )
        _write(folder / RUN_FILE, text.encode())

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read a finished run.

        Raises:
            InvalidCheckpoint: it is missing, unfinished, damaged or of another version.
        """
        if not (folder / RUN_FILE).is_file():
            hint = (
                "unfinished, go on with `rul train --resume`" if (folder / STATE_FILE).is_file() else "no run"
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
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise InvalidCheckpoint(f"{folder}: cannot be read, train again: {error}") from error
        return checkpoint


def save_tensors(path: Path, values: dict[str, Any]) -> None:
    """Write tensors and plain values; the file is complete or as it was."""
    partial = path.with_suffix(".partial")
    torch.save(values, partial)
    partial.replace(path)


def load_tensors(path: Path) -> dict[str, Any]:
    """Read what `save_tensors` wrote; nothing in the file is executed.

    Raises:
        InvalidCheckpoint: the file is missing or damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise InvalidCheckpoint(f"{path}: cannot be read, train again: {error}") from error


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)
