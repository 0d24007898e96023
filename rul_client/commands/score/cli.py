"""The options of `rul score`. Its dependencies are imported when it runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from model.cluster import RayAddress, connected
from rul_client.commands.options import FleetFile

PartReadings = Annotated[
    int,
    typer.Option(
        help="Maximum readings in a part (the unit of work); smaller parts need less memory.", min=1
    ),
]


def score(
    *,
    bundle: Annotated[str, typer.Option(help="A bundle's name or folder.")],
    source: Annotated[
        str,
        typer.Option("--input", help="Parquet file or folder: a path, or a URL such as s3://bucket/fleet."),
    ],
    output: Annotated[str, typer.Option(help="Folder for the answers: a path or a URL.")],
    windows: Annotated[
        str, typer.Option(help="Windows of each unit: last, all, or N: the last one and every Nth before it.")
    ] = "last",
    fleet: FleetFile = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Add lists: attention and evidence of each cycle.")
    ] = False,
    contributions: Annotated[
        bool, typer.Option("--contributions", help="Add lists: contributions by cycle and by sensor.")
    ] = False,
    part_readings: PartReadings = 32_768,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1)] = None,
    ray: RayAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Score a whole fleet: Parquet in, Parquet out, in constant memory, on all cores.

    Example: rul score --bundle fd001 --input fleet/ --output scored/ --windows all

    Columns are `unit`, `cycle` and those of the model, or as --fleet describes them. A unit's readings are in
    one file; folders may name columns (unit=17/). To continue a run that was killed, repeat the command. Rows
    without an answer are in OUTPUT/_refused, with their reasons. --ray scores on a Ray cluster, whose nodes
    all need input, output and bundle at the same path or URL.
    """
    every = _every(windows)
    if workers is not None and ray is not None:
        raise typer.BadParameter("is for one machine; a cluster has its own", param_hint="--workers")
    import pyarrow as pa  # noqa: PLC0415 heavy

    from rul_client.commands.score.job import Job  # noqa: PLC0415 heavy
    from rul_client.commands.score.run import print_report  # noqa: PLC0415 as above
    from rul_client.commands.score.run import score as run  # noqa: PLC0415 as above
    from rul_client.commands.score.runners import in_processes, on_nodes  # noqa: PLC0415 as above
    from service.machine import usable_cores  # noqa: PLC0415 as above

    job = Job(
        bundle, source, output, fleet, every, part_readings, attention=attention, contributions=contributions
    )
    with connected(ray, threads=1, start=partial(pa.set_cpu_count, 1), use_gpus=True) as cluster:
        here = partial(in_processes, workers or usable_cores())
        summary = run(job, here if cluster is None else partial(on_nodes, cluster))
        print_report(summary, job, as_json=as_json)


def _every(windows: str) -> int:
    """Read --windows as the distance between windows in cycles: 1 for all, `LAST` for the last one.

    Raises:
        BadParameter: it is not last, all or a number from 1.
    """
    from rul_client.unit_windows import LAST  # noqa: PLC0415 heavy

    named = {"last": LAST, "all": 1}.get(windows)
    if named is None and not (windows.isdecimal() and 0 < int(windows) <= LAST):
        raise typer.BadParameter(
            f"expected last, all or a number from 1, got {windows!r}", param_hint="--windows"
        )
    return named or int(windows)
