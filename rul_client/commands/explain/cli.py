"""The command `rul explain`. Its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rul_client.commands.options import FleetFile, Source


def explain(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a bundle's folder.")],
    *,
    source: Source,
    unit: Annotated[str | None, typer.Option(help="Unit to explain; default: the only one.")] = None,
    cycle: Annotated[int | None, typer.Option(help="Cycle to explain; default: the last one.")] = None,
    fleet: FleetFile = None,
    out: Annotated[
        Path | None, typer.Option("--output", "--out", help="Picture to write. Needs matplotlib.")
    ] = None,
) -> None:
    """Explain a model's answer for one unit in a sentence and a picture.

    Example: rul explain fd001 --input test_FD001.txt --unit 20 --output unit20.png

    Each clause of the sentence is recomputed: the model answers the same window with the sensor in its
    healthy range. The picture shows the estimate over the unit's life, the leading sensors with their healthy
    range, the contribution of each cycle and each reading, and how far to trust it.
    """
    from rul_client.commands.explain.run import explain_unit  # noqa: PLC0415 loads ONNX Runtime

    explain_unit(bundle, source, unit=unit, cycle=cycle, fleet=fleet, out=out)
