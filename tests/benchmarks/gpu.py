"""The graph and the service by provider: `make bench-gpu`.

    python -m tests.benchmarks.gpu --providers cpu,cuda,tensorrt

Windows per second of the served graph (copies included) for each batch size, beside the same network in
PyTorch, eager and compiled, and beside the limits of copying and of arithmetic. Then the service on each
provider, with the largest useful batch: on the CPU with one worker per core, on a GPU with several numbers
of workers. Providers that this machine lacks are named at the end. PyTorch measures
`comparable` only: other bundles hold no network.
Needs wrk and h2load (Debian: wrk, nghttp2-client).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import torch
import typer

from export.bundle import BundleFolder, InvalidBundle, Manifest, find_bundle
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from service.settings import MOST_WORKERS
from tests.benchmarks.comparable import NAME, comparable_network, make_comparable_bundle
from tests.benchmarks.front_ends import CORES, Figures, load_table, measure_all, serving
from tests.benchmarks.gpu_limits import (
    arithmetic_limit,
    copying_limit,
    flops_of,
    nodes_by_provider,
    profiled_nodes,
    rate,
)
from tests.benchmarks.loads import Load, batch_of, require_generators, window_of
from tests.benchmarks.payloads import calls_of
from tests.benchmarks.tables import keep, table

USEFUL: Final = 0.95
"""Minimum throughput of a useful batch, as a share of the largest throughput."""
LOADS: Final = tuple(
    Load(protocol, callers, windows)
    for protocol in ("json", "binary", "grpc")
    for callers, windows in ((1, 1), (64, 1), (8, 64))
)
Rates = dict[int, float]


@dataclass
class Results:
    """Measurements: windows per second by column and batch, notes, the service by provider."""

    rates: dict[str, Rates] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    service: dict[str, Figures] = field(default_factory=dict)


def main(  # noqa: PLR0917 - a command's options are its parameters
    bundle: str = NAME,
    providers: str = "cpu,cuda,tensorrt",
    largest: Annotated[int, typer.Option(min=1, help="Largest batch.")] = 2048,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each measurement.")] = 2.0,
    compiled: Annotated[bool, typer.Option(help="Measure torch.compile.")] = True,
    workers: Annotated[str, typer.Option(help="Of the service on a GPU.")] = "1,2,4,8",
    service: Annotated[bool, typer.Option(help="Measure the service.")] = True,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and write gpu.md and gpu.json to OUTPUT."""
    if service:
        require_generators()
    with tempfile.TemporaryDirectory() as work:
        path = str(make_comparable_bundle(Path(work))) if bundle == NAME else bundle
        sizes = [1 << power for power in range(largest.bit_length())]
        results = Results()
        for choice in map(ProviderChoice, providers.split(",")):
            measure_provider(path, choice, sizes, seconds, results)
        manifest = OnnxRuntime.load(find_bundle(path), provider=ProviderChoice.CPU).manifest
        if bundle == NAME:
            measure_torch(path, manifest, sizes, seconds, results, compiled=compiled)
        measure_limits(find_bundle(path), manifest, seconds, results)
        for column in [*results.rates] if service else []:
            counts = [min(CORES, MOST_WORKERS)] if column == ProviderChoice.CPU else workers.split(",")
            for count in counts if column in set(ProviderChoice) else []:
                measure_service(path, column, int(count), Path(work), results, seconds=seconds)
    keep(output, "gpu", markdown(results), asdict(results))


def measure_provider(
    path: str, choice: ProviderChoice, sizes: list[int], seconds: float, results: Results
) -> None:
    """Measure the served graph on one provider; add a note if the provider is not available."""
    try:
        runtime = OnnxRuntime.load(find_bundle(path), provider=choice, max_batch_windows=sizes[-1])
    except InvalidBundle as error:
        results.missing.append(f"{choice}: {error}")
        return
    if runtime.placement.fallback is not None:
        results.missing.append(f"{choice}: {runtime.placement.fallback}")
        return
    window = window_of(path)

    def call_of(size: int) -> Callable[[], object]:
        asked = batch_of(window, size)
        return lambda: runtime.run(*asked)

    results.rates[choice] = {size: rate(call_of(size), size, seconds) for size in sizes}
    best = useful(results.rates[choice])
    results.notes.append(f"{choice}: largest useful batch {best}, RUL_MAX_BATCH_WINDOWS={best}.")
    nodes = profiled_nodes(find_bundle(path).model, runtime.manifest, [*runtime.placement.providers])
    results.notes.append(f"{choice}: nodes of one run: {nodes_by_provider(nodes)}.")


def measure_torch(
    path: str, manifest: Manifest, sizes: list[int], seconds: float, results: Results, *, compiled: bool
) -> None:
    """Measure the network in PyTorch, eager and compiled, with the copies to the device and back."""
    device = torch_device()
    torch.set_num_threads(1)  # as ONNX Runtime on the CPU
    torch.backends.cudnn.allow_tf32 = False
    net, window = comparable_network(manifest).to(device), window_of(path)
    networks: dict[str, Callable[..., object]] = {"PyTorch": net}
    if compiled:
        networks["torch.compile"] = torch.compile(net)
    for name, network in networks.items():

        def call_of(size: int, network: Callable[..., object] = network) -> Callable[[], object]:
            asked = batch_of(window, size)
            given = [torch.from_numpy(x) for x in asked]

            @torch.inference_mode()
            def call() -> None:
                for answer in network(*(x.to(device) for x in given)):
                    if answer is not None:
                        answer.cpu()

            return call

        found = {size: rate(call_of(size), size, seconds) for size in sizes}
        results.rates[f"{name}, {device}"] = found


def measure_limits(bundle: BundleFolder, manifest: Manifest, seconds: float, results: Results) -> None:
    """Measure the limits of PyTorch's device."""
    device = torch_device()
    flops = flops_of(profiled_nodes(bundle.model, manifest, ["CPUExecutionProvider"]))
    copying = copying_limit(manifest, device, seconds)
    arithmetic = arithmetic_limit(flops, device, seconds)
    results.notes.append(
        f"Limits of {device}: copying {copying:,.0f} windows/s; arithmetic {arithmetic:,.0f} windows/s "
        f"({flops / 1e6:.2f} MFLOP a window)."
    )


def measure_service(
    path: str, provider: str, workers: int, work: Path, results: Results, *, seconds: float
) -> None:
    """Measure the service on a provider, with the largest useful batch; ratios are to the graph's best."""
    graph = results.rates[provider]
    settings = {"provider": provider, "max_batch_windows": str(useful(graph)), "workers": str(workers)}
    figures: Figures = {"ceiling windows/s": [max(graph.values())]}
    before = device_mib()
    with serving("one", path, work, **settings) as served:
        measure_all(partial(calls_of, path), LOADS, served, max(1, round(seconds)), figures)
        on_device = device_mib() - before
    title = f"{provider}, {workers} worker{'s' * (workers > 1)}"
    results.service[title] = figures
    results.notes.append(
        f"{title}: ready after {figures['ready s'][0]:.1f} s; {figures['memory MiB'][0]:,.0f} MiB resident, "
        f"{on_device:,.0f} MiB on the device."
    )


def device_mib() -> float:
    """Return the GPU memory in use by all processes; 0 without a GPU."""
    if torch_device() == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def useful(found: Rates) -> int:
    """Return the smallest batch with nearly the highest throughput."""
    return min(size for size, value in found.items() if value >= USEFUL * max(found.values()))


def torch_device() -> str:
    """Return the device of PyTorch."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def markdown(results: Results) -> str:
    """Write the tables of graph and service, the notes, and what is missing."""
    sizes = next(iter(results.rates.values()))
    graph = ([size, *(f"{found[size]:,.0f}" for found in results.rates.values())] for size in sizes)
    lines = [table(["windows/s, batch", *results.rates], graph, texts=0)]
    lines += ["", *(f"- {note}" for note in results.notes)]
    for title, figures in results.service.items():
        lines += ["", f"The service on {title}; the ceiling is one graph:", "", load_table(figures, LOADS)]
    lines += ["", *(f"Not measured: {line}" for line in results.missing)]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    typer.run(main)
