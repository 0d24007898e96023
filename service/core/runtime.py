"""The runtime of a graph: the protocol that serving needs, and its ONNX Runtime implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from export.arrays import one_line
from export.bundle import BundleFolder, InvalidBundle, Manifest
from export.drift_reference import DriftReference
from export.golden import Golden, replay
from export.outputs import MAP, output_shapes
from export.seal import read_bundle
from model.domain import FloatArray, IntArray
from service.choices import ProviderChoice
from service.core.providers import CPU, ON_GPU, Placement, attempts, order, placement
from service.core.session import BoundSession, available_providers, bucket, cpu_session, gpu_session
from service.core.window import Windows, aligned
from service.machine import NVIDIA_DRIVER

ANY: Final = -1
"""A size that each batch chooses."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Inputs of a batch: float32 [B, T, F] readings, int64 [B] lengths, float32 [B] last cycles."""

    readings: FloatArray
    lengths: IntArray
    last_cycle: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Outputs of the graph for a batch, under their names in the graph.

    Attributes:
        rul: float32 [B], cycles, 0..cap.
        rul_interval: float32 [B, 2], lower and upper, cycles.
        failure_probability: float32 [B, K], K horizons.
        health_state: float32 [B, C], probabilities.
        attention: float32 [B, T], sums to 1 over the valid cycles, 0 on padding.
        contribution: float32 [B, T], cycles.
        novelty: float32 [B].
        head_attention: float32 [B, H, T], where the network has heads.
        sensor_contribution: float32 [B, T, F], cycles, where the network explains readings.
        window_contribution: float32 [B], cycles of age, length and what is missing, likewise.
        evidence: float32 [B, T], sums to 1, likewise.
    """

    rul: FloatArray
    rul_interval: FloatArray
    failure_probability: FloatArray
    health_state: FloatArray
    attention: FloatArray
    contribution: FloatArray
    novelty: FloatArray
    head_attention: FloatArray | None = None
    sensor_contribution: FloatArray | None = None
    window_contribution: FloatArray | None = None
    evidence: FloatArray | None = None

    @classmethod
    def joined(cls, parts: Sequence[Outputs]) -> Outputs:
        """Join the outputs of several batches with windows of equal length."""
        values = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        given = {name: each for name, each in values.items() if each[0] is not None}
        return cls(**{name: np.concatenate(each) for name, each in given.items()})


class Runtime(Protocol):
    """A loaded model. `run` may be called by several threads at once.

    Attributes:
        sha256: The digest of the model's file.
        provider: The execution provider in use.
        placement: All providers in use, and the reason for a fallback.
    """

    manifest: Manifest
    drift_reference: DriftReference
    sha256: str
    provider: str
    placement: Placement

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Outputs:
        """float32 [B, T, F], int64 [B], float32 [B] -> `Outputs`."""
        ...


@dataclass(eq=False)
class OnnxRuntime:
    """ONNX Runtime with one thread per call: batches, not operators, run in parallel."""

    session: Any
    manifest: Manifest
    drift_reference: DriftReference
    sha256: str
    placement: Placement

    def __post_init__(self) -> None:
        self._names = [*output_shapes(self.manifest, windows=ANY, cycles=ANY)]
        self.provider = self.placement.providers[0]
        on_gpu = self.provider in ON_GPU
        self._bound = BoundSession(self.session, self.manifest, device="cuda") if on_gpu else None

    @classmethod
    def load(
        cls,
        folder: BundleFolder,
        *,
        provider: ProviderChoice = ProviderChoice.AUTO,
        max_batch_windows: int = 32,
        public_key: Path | None = None,
    ) -> OnnxRuntime:
        """Open a bundle on a provider and replay its golden windows; TensorRT builds for the largest batch.

        Raises:
            InvalidBundle: a file is damaged, altered or not signed by `public_key`; graph, manifest and
                golden windows do not fit; an answer differs; or the provider is not available.
        """
        available = available_providers()
        wanted = order(provider, available)
        contents = read_bundle(folder, public_key=public_key)
        session, failure = cpu_session(folder.model, contents.model), None
        metadata = session.get_modelmeta().custom_metadata_map
        manifest = Manifest.from_metadata(metadata, origin=folder.model)
        _check_graph(session, manifest, folder.model)
        contents.golden.check(manifest, origin=folder.golden)
        drift_reference = DriftReference.from_metadata(metadata, manifest, origin=folder.model)
        if wanted != [CPU]:
            golden_windows = len(contents.golden.lengths)  # one batch
            most = bucket(max(max_batch_windows, golden_windows))
            session, failure = gpu_session(contents.model, attempts(wanted, manifest, most_windows=most))
        got = placement(
            provider, available, session.get_providers(), driver=NVIDIA_DRIVER.exists(), failure=failure
        )
        runtime = cls(session, manifest, drift_reference, contents.sha256, got)
        replay_golden(runtime, contents.golden, origin=folder.golden)
        if runtime._bound is not None:
            runtime._bound.warm_up(max_batch_windows)
            replay_golden(runtime, contents.golden, origin=folder.golden)  # what was captured stays as it was
        return runtime

    def run(self, readings: FloatArray, lengths: IntArray, last_cycle: FloatArray) -> Outputs:
        """Run the graph once; the GIL is released meanwhile."""
        if self._bound is not None:
            return Outputs(**self._bound.run(readings, lengths, last_cycle))
        feed = {"readings": readings, "lengths": lengths, "last_cycle": last_cycle}
        answers = self.session.run(self._names, feed)
        return Outputs(**dict(zip(self._names, answers, strict=True)))


def replay_golden(runtime: Runtime, golden: Golden, *, origin: Path) -> None:
    """Compare answers on this machine's provider with the golden ones; also warms up the provider.

    Raises:
        InvalidBundle: the graph fails, or an answer differs from the exporter's or contradicts the manifest's
            cap or baseline.
    """
    try:
        outputs = runtime.run(golden.readings, golden.lengths, golden.last_cycle)
    except Exception as error:
        raise InvalidBundle(
            f"{origin}: the graph fails on the golden windows, export the model again: {one_line(error)}"
        ) from error
    got: dict[str, FloatArray] = {name: getattr(outputs, name) for name in golden.expected}
    broken = next((each for each in replay(golden, got, runtime.manifest) if not each.kept), None)
    if broken is not None:
        raise InvalidBundle(
            f"{origin}: {runtime.provider}: {broken}: export the model again, or choose another provider "
            "(RUL_PROVIDER)"
        )


def _check_graph(session: Any, manifest: Manifest, path: Path) -> None:  # noqa: ANN401 - untyped library
    """Check names, types and sizes of inputs and outputs.

    Raises:
        InvalidBundle: the graph is not the one that the manifest describes.
    """
    expected_inputs = {
        "readings": ("tensor(float)", (ANY, ANY, len(manifest.columns))),
        "lengths": ("tensor(int64)", (ANY,)),
        "last_cycle": ("tensor(float)", (ANY,)),
    }
    shapes = output_shapes(manifest, windows=ANY, cycles=ANY)
    expected_outputs = {name: ("tensor(float)", shape) for name, shape in shapes.items()}
    for what, nodes, expected in (
        ("input", session.get_inputs(), expected_inputs),
        ("output", session.get_outputs(), expected_outputs),
    ):
        got = {node.name: (node.type, tuple(node.shape)) for node in nodes if node.name != MAP}
        if set(got) != set(expected):
            raise InvalidBundle(
                f"{path}: expected the {what}s {', '.join(expected)}, the graph has {', '.join(got)}: "
                "export the model again"
            )
        for name, (kind, shape) in expected.items():
            if not _fits(got[name], kind, shape):
                raise InvalidBundle(
                    f"{path}: expected {what} {name} to be {kind} {shape}, the graph has {got[name][0]} "
                    f"{got[name][1]}: graph and manifest do not belong together, export the model again"
                )


def _fits(got: tuple[str, tuple[Any, ...]], kind: str, shape: tuple[int, ...]) -> bool:
    """Whether a declared shape allows the expected one; a name or None means any size."""
    if got[0] != kind or len(got[1]) != len(shape):
        return False
    return all(
        not isinstance(size, int) or size == wanted for size, wanted in zip(got[1], shape, strict=True)
    )


def stacked(shares: Sequence[tuple[Windows, Sequence[int]]]) -> Asked:
    """Collect the windows at these places of several requests as inputs of the graph."""
    lengths: list[int] = []
    last_cycle: list[float] = []
    parts: list[FloatArray] = []
    for windows, places in shares:
        if isinstance(places, range) and len(places) == len(windows.lengths):  # the whole request
            lengths += windows.lengths
            last_cycle += windows.last_cycle
            part = windows.readings
        else:
            lengths += [windows.lengths[i] for i in places]
            last_cycle += [windows.last_cycle[i] for i in places]
            at = slice(places.start, places.stop) if isinstance(places, range) else places
            part = windows.readings[at]
        parts.append(part)
    most = max(lengths)
    readings = aligned(parts, most) if len(parts) > 1 else np.ascontiguousarray(parts[0][:, :most])
    return Asked(readings, np.array(lengths, np.int64), np.array(last_cycle, np.float32))
