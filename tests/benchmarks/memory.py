"""Memory of workers and its growth, after numbers of single windows by 64 callers.

    python -m tests.benchmarks.memory --bundles fd001 --requests 200000

Resident memory (RSS) counts shared pages of files in each worker; the proportional set size (PSS)
divides each page by the processes that map it; anonymous memory belongs to one worker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import typer

from tests.benchmarks.front_ends import serving
from tests.benchmarks.loads import Load, put_under, require_generators
from tests.benchmarks.payloads import calls_of

CALLERS: Final = 64
MIB: Final = 1024
"""Kibibytes, the kernel's unit, per mebibyte."""


def main(
    *, bundles: str = "fd001", requests: int = 200_000, seconds: float = 10.0, server: str = "envoy"
) -> None:
    """Load a server until it has answered `requests`, and report the memory of its workers at intervals."""
    require_generators()
    one = "," not in bundles
    # With several bundles a request must name one, as the path of the binary protocol does.
    loads = [Load("json", CALLERS), Load("grpc", CALLERS)] if one else [Load("binary", CALLERS)]
    with tempfile.TemporaryDirectory() as folder, serving(server, bundles, Path(folder)) as served:
        workers = served.workers()
        first = bundles.split(",", maxsplit=1)[0]
        print(f"ready after {served.ready:.1f} s\n{'requests':>9}  MiB of each worker: RSS, PSS, anonymous")
        answered, step = 0, 0
        show(answered, workers)
        while answered < requests:
            load = loads[step % len(loads)]
            answered += put_under(load, calls_of(first, load), served.http, served.target, seconds).windows
            step += 1
            show(answered, workers)


def show(answered: int, workers: list[int]) -> None:
    """Print one line: requests so far, and memory of each worker."""
    print(f"{answered:9,}  " + "   ".join(" ".join(f"{held:6.1f}" for held in of(w)) for w in workers))


def of(pid: int) -> tuple[float, float, float]:
    """Read RSS, PSS and anonymous memory of a process from Linux, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return sizes["Rss"] / MIB, sizes["Pss"] / MIB, sizes["Anonymous"] / MIB


if __name__ == "__main__":
    typer.run(main)
