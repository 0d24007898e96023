"""Providers of ONNX Runtime: their order, and the reasons for a fallback.

Pure functions, so that tests need no GPU. This module must not know ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from export.bundle import InvalidBundle, Manifest
from service.choices import ProviderChoice

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
ON_GPU: Final = frozenset({CUDA, TENSORRT})

FIRST: Final = {ProviderChoice.CPU: CPU, ProviderChoice.CUDA: CUDA, ProviderChoice.TENSORRT: TENSORRT}
"""First provider of each choice; `auto` prefers CUDA if ONNX Runtime has it."""

REPLAYED: Final = {"enable_cuda_graph": "1"}
"""CUDA replays the hundreds of kernels of a run as one: launching each takes longer than computing them.
Only a provider that runs every node can."""

Wanted = list[str | tuple[str, dict[str, str]]]
"""Providers with their options, in the form of ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Providers that a model really runs on.

    Attributes:
        providers: In the order of the session: a later one runs operators that earlier ones cannot.
        fallback: Why the first is not the requested one; None: it is.
    """

    providers: tuple[str, ...]
    fallback: str | None = None


def order(choice: ProviderChoice, available: Sequence[str]) -> list[str]:
    """Return the providers to request, best first; the CPU is always last.

    Raises:
        InvalidBundle: a GPU was requested, and this ONNX Runtime can use none.
    """
    if choice == ProviderChoice.CPU:
        return [CPU]
    if choice != ProviderChoice.AUTO and CUDA not in available:
        raise InvalidBundle(
            f"expected provider {choice}, this ONNX Runtime has {', '.join(available)}: install the "
            "extra `gpu` in place of `cpu`, or set RUL_PROVIDER=auto"
        )
    best_first = [TENSORRT, CUDA] if choice == ProviderChoice.TENSORRT else [CUDA]
    return [*(provider for provider in best_first if provider in available), CPU]


def attempts(providers: Sequence[str], manifest: Manifest, *, most_windows: int) -> list[Wanted]:
    """Return the provider lists to try in order: all providers, then each time without the first."""
    return [
        with_options(providers[first:], manifest, most_windows=most_windows)
        for first in range(len(providers))
    ]


def with_options(providers: Sequence[str], manifest: Manifest, *, most_windows: int) -> Wanted:
    """Add the options of each provider; TensorRT builds for batches up to `most_windows`."""
    least, most = (
        f"readings:{windows}x{manifest.context}x{len(manifest.columns)},lengths:{windows},last_cycle:{windows}"
        for windows in (1, most_windows)
    )
    options = {
        # The default search times convolutions at each new size, and may choose others at each start.
        CUDA: {"cudnn_conv_algo_search": "HEURISTIC"} | (REPLAYED if providers[0] == CUDA else {}),
        # One engine for all batches: without these bounds TensorRT would build one for each new shape.
        TENSORRT: {
            "trt_profile_min_shapes": least,
            "trt_profile_opt_shapes": most,
            "trt_profile_max_shapes": most,
        },
    }
    return [(name, options[name]) if name in options else name for name in providers]


def placement(
    choice: ProviderChoice,
    available: Sequence[str],
    got: Sequence[str],
    *,
    driver: bool,
    failure: str | None = None,
) -> Placement:
    """Compare the requested provider with those that ONNX Runtime has and that the session got.

    `driver`: whether an NVIDIA driver is installed; `failure`: the error of the first provider.

    Raises:
        InvalidBundle: a GPU was requested by name, and the session has none.
    """
    first = FIRST.get(choice, CUDA if CUDA in available or driver else CPU)
    if got[0] == first:
        return Placement(tuple(got))
    if first not in available:
        why = f"this ONNX Runtime was built without {first}"
    elif failure is not None:
        why = f"{first} failed: {failure}"
    else:
        why = f"ONNX Runtime could not load {first}: its log says which library or driver is missing"
    if choice in {ProviderChoice.CUDA, ProviderChoice.TENSORRT} and got[0] == CPU:
        raise InvalidBundle(
            f"provider {choice} cannot run, {why}: check the driver and that onnxruntime-gpu alone is "
            "installed, export a bundle of an earlier version again, or set RUL_PROVIDER=auto"
        )
    return Placement(tuple(got), why)
