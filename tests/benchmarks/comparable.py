"""A bundle of the sizes that DESIGN's table of others was measured with: speed alone, random weights.

17 columns -> two convolutions of 64 -> two BiLSTM layers of 64 -> additive attention, 30 cycles. Its
answers mean nothing; manifest and simulated windows are those of a shipped bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from export.bundle import Manifest, find_bundle
from export.handover import golden_windows, metadata_of
from export.seal import write_sums
from export.session import Session, open_bundle
from export.to_onnx import to_onnx, write_metadata
from model.amnl import Amnl
from model.layers import RaggedBiLstm
from model.network import Cycles, Inputs, NetworkConfig

CYCLES: Final = 30
WIDTH: Final = 64
NAME: Final = "comparable"


class Comparable(Amnl):
    """`amnl` with a second BiLSTM layer."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.frontend.recurrent = nn.Identity()
        self.layers = nn.ModuleList([RaggedBiLstm(WIDTH, WIDTH), RaggedBiLstm(2 * WIDTH, WIDTH)])

    def read_cycles(self, inputs: Inputs) -> Cycles:
        """See `RulNetwork`."""
        h: Tensor = self.frontend.first(inputs.z, inputs.valid)
        h = self.frontend.second(h, inputs.valid)  # [B, T, C]
        for layer in self.layers:
            h = layer(h, inputs.lengths)  # [B, T, 2H]
        return Cycles(self.score(h), h)


def make_comparable_bundle(folder: Path) -> Path:
    """Write the bundle `folder`/comparable; its path. Some seconds."""
    _, manifest = open_bundle(find_bundle("fd001"))
    made = folder / NAME
    made.mkdir(parents=True)
    changes: dict[str, Any] = {"name": NAME, "network": NAME, "version": "0", "context": CYCLES, "heads": 0}
    changes["explains_readings"] = False
    manifest = Manifest.model_validate(manifest.model_dump() | changes)
    to_onnx(comparable_network(manifest), made / "model.onnx")
    write_metadata(made / "model.onnx", metadata_of(manifest))
    golden_windows(Session(made / "model.onnx"), manifest).save(made / "golden.npz")
    write_sums(made)
    return made


def comparable_network(manifest: Manifest) -> Comparable:
    """The network of the bundle, with the same weights each time."""
    torch.manual_seed(0)
    return Comparable(_config(manifest)).eval()


def _config(manifest: Manifest) -> NetworkConfig:
    return NetworkConfig(
        network="amnl",
        columns=len(manifest.columns),
        settings=manifest.schema_of_columns.indices("setting"),
        regimes=1,
        context=CYCLES,
        cap=manifest.cap,
        horizons=tuple(manifest.horizons),
        coverage=manifest.nominal_coverage,
        critical_below=manifest.health_bounds.critical_below,
        degrading_below=manifest.health_bounds.degrading_below,
        convolution=WIDTH,
        hidden=WIDTH,
        attention=WIDTH,
    )
