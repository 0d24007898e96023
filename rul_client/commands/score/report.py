"""The report at the end of `rul score`."""

from __future__ import annotations

import json
from typing import Any

import typer

from model.domain import printable
from rul_client.commands.score.job import Job
from rul_client.commands.score.part_table import REFUSED


def print_report(summary: dict[str, Any], job: Job, *, as_json: bool) -> None:
    """Print the summary of a run, for people or as JSON."""
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    lines = [
        f"{summary['windows']:,} windows of {summary['units']:,} units, {summary['readings']:,} readings"
    ]
    for name in ("health_states", "rul_states"):
        counts = summary[name]
        lines.append(" · ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items()))
    if summary["refused_readings"] or summary["refused_windows"]:
        lines.append(
            f"refused: {summary['refused_readings']:,} readings, {summary['refused_windows']:,} windows "
            f"(reasons: {job.output.rstrip('/')}/{REFUSED})"
        )
    if summary["infinite"]:
        lines.append(f"infinite readings, counted as missing: {summary['infinite']:,}")
    lines += _drift_lines(summary["drift"])
    model = summary["model"]
    lines.append(f"model {model['name']} {model['version']}")
    typer.echo("\n".join(map(printable, lines)))


def _drift_lines(drift: dict[str, Any]) -> list[str]:
    indices = drift["columns"] | {"the predictions": drift["prediction"]}
    beyond = {name: index for name, index in indices.items() if index["drifting"]}
    lines = [
        f"drift of {name}: {index['psi']:.2f}, limit {index['limit']:.2f}" for name, index in beyond.items()
    ]
    return lines or ["drift: none beyond its limit"]
