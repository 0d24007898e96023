"""Two versions of the service side by side, measured in turn.

    python -m tests.benchmarks.versions --checkout OLD --checkout NEW [--floor floor_handler.py]

Each version is served from its checkout, by that checkout's `.venv/dev/bin/rul serve`. In each round every
cell measures OLD and NEW one after the other, in alternating order, then the floor; the ratio NEW / OLD is
the median of the rounds' ratios. Realistic payloads go to four bundles, identical ones to `comparable` alone;
both request `comparable` (see `payloads`). The floor answers the same windows by the Open Inference Protocol.
Needs wrk and h2load (Debian: wrk, nghttp2-client).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress

from tests.benchmarks.comparable import make_comparable_bundle
from tests.benchmarks.floor import make_floor_graph, serving_floor
from tests.benchmarks.front_ends import ROOT, Figures, Served, measure, measure_ceiling, programs_of, serving
from tests.benchmarks.loads import Load, require_generators
from tests.benchmarks.memory import of
from tests.benchmarks.payloads import calls_of
from tests.benchmarks.tables import keep
from tests.benchmarks.versions_report import FLOOR, NEW, OLD, markdown

MAKE: Final = (
    "import sys; from pathlib import Path; from tests.benchmarks.comparable import make_comparable_bundle; "
    "make_comparable_bundle(Path(sys.argv[1]))"
)
BESIDE: Final = "fd001,fd002,fd003"
"""Bundles loaded in addition to `comparable` for realistic payloads."""
SHAPES: Final = ((64, 1), (8, 64))
"""Callers, and windows per call."""
REALISTIC: Final = ("json", "binary", "grpc")
IDENTICAL: Final = ("json", "oip json", "binary", "grpc", "oip grpc")
AT_THE_FLOOR: Final = {"json": "oip json", "grpc": "oip grpc"}
"""Protocols of the floor, by the protocol of the service to compare with."""
CELLS: Final = (
    *(Load(door, *shape, realistic=True) for door in REALISTIC for shape in ((1, 1), *SHAPES)),
    *(Load(door, *shape) for door in IDENTICAL for shape in SHAPES),
)


def main(
    *,
    checkout: Annotated[list[Path], typer.Option(help="A version's folder; twice: old, then new.")],
    rounds: Annotated[int, typer.Option(min=1, help="Each asks every version once in every cell.")] = 5,
    seconds: Annotated[int, typer.Option(min=1, help="Of each cell, in each round.")] = 5,
    starts: Annotated[int, typer.Option(min=0, help="Cold starts of four bundles, each version.")] = 5,
    only: Annotated[str, typer.Option(help="Measure only cells whose name contains this.")] = "",
    floor: Annotated[Path | None, typer.Option(help="The floor's handler, an ASGI application.")] = None,
    output: Path = Path("bench-results"),
) -> None:
    """Measure, and write versions.md and versions.json to OUTPUT."""
    require_generators()
    if len(checkout) != 2:
        raise typer.BadParameter(f"expected two checkouts, got {len(checkout)}")
    cells = [cell for cell in CELLS if only in str(cell)]
    if not cells:
        raise typer.BadParameter(f"no cell's name contains {only!r}; names are like {str(CELLS[0])!r}")
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        run = Run(dict(zip((OLD, NEW), checkout, strict=True)), floor, Path(folder), seconds)
        task = progress.add_task("cold starts", total=2 * starts + rounds * len(cells))
        for number in range(starts):
            for name in order(run.versions, number):
                run.start(name)
                progress.advance(task)
        for realistic in (True, False):
            chosen = [cell for cell in cells if cell.realistic is realistic]
            with ExitStack() as stack:
                servers = run.serve(stack, realistic=realistic) if chosen else {}
                for number in range(rounds if chosen else 0):
                    run.ceiling()
                    for cell in chosen:
                        progress.update(task, description=str(cell))
                        run.ask(servers, cell, number)
                        progress.advance(task)
                run.memory(servers, "realistic" if realistic else "identical")
    keep(output, "versions", markdown(run.figures, [str(cell) for cell in cells]), run.figures)


def order(names: Any, number: int) -> list[str]:
    """Return the order of the versions in a round; it alternates."""
    return list(names) if number % 2 == 0 else list(reversed(list(names)))


class Run:
    """Measurements of two versions and, if given, of the floor.

    Attributes:
        versions: Checkouts by their roles.
        figures: By role and name, one value per round.
    """

    def __init__(self, versions: dict[str, Path], floor: Path | None, folder: Path, seconds: int) -> None:
        self.versions: Final = {name: path.resolve() for name, path in versions.items()}
        self.figures: Final[dict[str, Figures]] = {name: {} for name in versions}
        self._folder: Final = folder
        self._seconds: Final = seconds
        self._own: Final = make_comparable_bundle(folder)
        made = {ROOT: str(self._own)}  # a bundle for each version: their formats may differ
        for path in self.versions.values():
            made[path] = made.get(path) or self._made(path)
        self._floor: Final = floor
        if floor is not None:
            self.figures[FLOOR] = {}
            make_floor_graph(self._own, folder / "floor.onnx")
        self._bundles: Final = {name: made[path] for name, path in self.versions.items()}

    def _made(self, checkout: Path) -> str:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        command = [str(programs_of(checkout) / "python"), "-c", MAKE, str(folder)]
        subprocess.run(command, check=True, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
        return str(folder / "comparable")

    def start(self, name: str) -> None:
        """Start a version with four bundles, and record the seconds until it is ready."""
        with ExitStack() as stack:
            self.figures[name].setdefault("ready s", []).append(
                self._version(stack, name, realistic=True).ready
            )

    def serve(self, stack: ExitStack, *, realistic: bool) -> dict[str, Served]:
        """Start every version, and the floor."""
        servers = {name: self._version(stack, name, realistic=realistic) for name in self.versions}
        if self._floor is not None:
            servers[FLOOR] = stack.enter_context(serving_floor(self._floor, self._folder / "floor.onnx"))
        return servers

    def _version(self, stack: ExitStack, name: str, *, realistic: bool) -> Served:
        bundles = f"{self._bundles[name]},{BESIDE}" if realistic else self._bundles[name]
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # an empty store
        return stack.enter_context(serving("envoy", bundles, state, checkout=self.versions[name]))

    def ceiling(self) -> None:
        """Measure bare ONNX Runtime on these cores."""
        found: Figures = {}
        measure_ceiling(str(self._own), self._seconds, found)
        for figures in self.figures.values():
            for name, values in found.items():
                figures.setdefault(name, []).extend(values)

    def ask(self, servers: dict[str, Served], cell: Load, number: int) -> None:
        """Measure one cell on every server in turn."""
        for name in [*order(self.versions, number), *([FLOOR] if FLOOR in servers else [])]:
            doors = AT_THE_FLOOR if name == FLOOR else {}
            asked = replace(cell, protocol=doors.get(cell.protocol, cell.protocol))
            calls = calls_of(str(self._own), asked)
            measure(cell, calls, servers[name], self._seconds, self.figures[name])

    def memory(self, servers: dict[str, Served], payload: str) -> None:
        """Record the largest memory of a worker after the load."""
        for name, served in servers.items():
            held = [of(pid) for pid in served.workers()]
            for kind, values in zip(("RSS", "PSS", "anonymous"), zip(*held, strict=True), strict=True):
                self.figures[name].setdefault(f"{payload}: {kind} MiB", []).append(max(values))


if __name__ == "__main__":
    typer.run(main)
