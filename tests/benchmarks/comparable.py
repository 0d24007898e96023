"""A bundle with the layer sizes that other servers were measured with: random weights, for speed alone.

17 columns -> two convolutions of 64 -> two BiLSTM layers of 64 -> additive attention, 30 cycles. Its
answers mean nothing; manifest and simulated windows are those of a shipped bundle. Scaling and novelty are
fitted to such windows, because strange windows cause warnings and more work for the service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from export.bundle import Manifest, find_bundle
from export.handover import golden_windows, metadata_of
from export.probes import simulated_windows
from export.seal import write_sums
from export.session import Session, open_bundle
from export.to_onnx import to_onnx, write_metadata
from model.amnl import Amnl
from model.calibration import tensors
from model.layers import RaggedBiLstm, set_buffer
from model.network import Cycles, Inputs, NetworkConfig

CYCLES: Final = 30
WIDTH: Final = 64
NAME: Final = "comparable"
FITTED_WINDOWS: Final = 1000


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
            h = layer(h, inputs.valid)  # [B, T, 2H]
        return Cycles(self.score(h), h)


def make_comparable_bundle(folder: Path) -> Path:
    """Write the bundle `folder`/comparable and return its path; takes some seconds."""
    manifest = comparable_manifest()
    made = folder / NAME
    made.mkdir(parents=True)
    to_onnx(comparable_network(manifest), made / "model.onnx")
    write_metadata(made / "model.onnx", metadata_of(manifest))
    golden_windows(Session(made / "model.onnx"), manifest).save(made / "golden.npz")
    write_sums(made)
    return made


def comparable_manifest() -> Manifest:
    """Adapt the manifest of fd001 to the bundle."""
    _, manifest = open_bundle(find_bundle("fd001"))
    changes: dict[str, Any] = {"name": NAME, "network": NAME, "version": "0", "context": CYCLES, "heads": 0}
    changes["explains_readings"] = False
    return Manifest.model_validate(manifest.model_dump() | changes)


def comparable_network(manifest: Manifest) -> Comparable:
    """Build the network of the bundle, always with the same weights."""
    torch.manual_seed(0)
    net = Comparable(_config(manifest)).eval()
    usual = simulated_windows(manifest, count=FITTED_WINDOWS, seed=0)
    deviation = np.nanstd(usual.readings, axis=(0, 1))
    set_buffer(net.standardise, "mean", np.nanmean(usual.readings, axis=(0, 1))[None])
    set_buffer(net.standardise, "standard_deviation", np.where(deviation > 0, deviation, 1.0)[None])
    net.fit_novelty([tensors(usual)])
    return net


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
