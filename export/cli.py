"""`rul export`, `convert` and `check`; registers the commands of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from export import attention_cli, decide_cli, evaluate_cli, simulate_cli
from export.bundle import InvalidBundle, find_bundle
from export.drift_reference import DriftReference
from export.golden import replay
from export.seal import SIGNATURE, read_bundle
from model.screen import say

EXPORT_HELP = """
Export a finished run as a bundle: ONNX with its manifest, golden windows, model card.

Example: rul export runs/fd001 --output bundles/fd001

--sign signs the digests with an Ed25519 private key in PEM, made by openssl genpkey -algorithm ed25519.
"""

CONVERT_HELP = """
Convert a bundle of an earlier version, in place: format 1 or 2, or a bundle without SHA256SUMS.

The graph, the golden windows and all answers stay the same; from format 1 and 2 the digest of the ONNX
file changes. A signature is removed: sign the bundle again. Simulated units of a converted bundle all age
in one way: for several, train and export again.

Example: rul convert bundles/pumps
"""

CHECK_HELP = """
Check a bundle's digests, replay its golden windows and measure every promise of the model contract.

With --public-key (or RUL_BUNDLE_PUBLIC_KEY) the bundle must also be signed by that key's private key.

These checks need no data. They verify that an explanation is exact (contributions add up, missing and typical
readings contribute nothing), not that it identifies the worn component: the model card measures that on
held-out units, `rul attention` on any data.

The exit code is 1 if the bundle breaks a promise.

Example: rul check fd001
"""


def register(app: typer.Typer) -> None:
    """Add `export`, `convert`, `check`, `attention`, `evaluate`, `decide` and `simulate`."""
    app.command("export", help=EXPORT_HELP)(export_command)
    app.command(help=CONVERT_HELP)(convert)
    app.command(help=CHECK_HELP)(check)
    app.command(help=attention_cli.HELP)(attention_cli.attention)
    app.command(help=evaluate_cli.HELP)(evaluate_cli.evaluate)
    app.command(help=decide_cli.HELP)(decide_cli.decide)
    app.command("simulate", help=simulate_cli.HELP)(simulate_cli.simulate_command)


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    *,
    out: Annotated[Path, typer.Option("--output", "--out", help="Folder of the bundle.")],
    version: Annotated[
        str | None, typer.Option(help="Default: the code's version with a digest of the weights.")
    ] = None,
    with_map: Annotated[
        bool, typer.Option("--with-map", help="Add the attention between cycles, for rul attention --cycle.")
    ] = False,
    sign: Annotated[Path | None, typer.Option(help="Ed25519 private key in PEM: sign the bundle.")] = None,
) -> None:
    """Export a run as a bundle; see EXPORT_HELP."""
    import torch  # noqa: PLC0415 takes seconds

    from export.handover import export_bundle  # noqa: PLC0415 with torch
    from model.checkpoint import Checkpoint  # noqa: PLC0415 with torch

    # Threads of small operations wait for each other, on busy cores ten times as long as they compute.
    torch.set_num_threads(1)
    checkpoint = Checkpoint.load(run)
    with Console(stderr=True).status("exporting and comparing PyTorch with ONNX Runtime"):
        manifest = export_bundle(checkpoint, out, version=version, with_map=with_map, signing_key=sign)
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    say(
        f"{out}: {manifest.name} {manifest.version}, {size:.2f} MB; PyTorch against ONNX Runtime: "
        f"RUL {manifest.parity.rul_cycles:.1e} cycles, attention {manifest.parity.attention:.1e}"
    )


def convert(bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a folder.")]) -> None:
    """Convert a bundle of an earlier version; see CONVERT_HELP."""
    from export.convert import convert_bundle  # noqa: PLC0415 with onnx

    folder = find_bundle(bundle)
    signed = (folder.path / SIGNATURE).exists()
    manifest = convert_bundle(folder)
    say(f"{folder.path}: {manifest.name} {manifest.version}, bundle format {manifest.format}")
    if signed:
        say(f"{SIGNATURE} removed, its digests have changed: sign it again (docs/security.md)")


def check(
    bundle: Annotated[str, typer.Argument(help="Name of a shipped bundle, or a folder.")],
    *,
    public_key: Annotated[
        Path | None,
        typer.Option(
            help="Ed25519 public key in PEM: the bundle must be signed.", envvar="RUL_BUNDLE_PUBLIC_KEY"
        ),
    ] = None,
) -> None:
    """Measure a bundle's promises; see CHECK_HELP."""
    from export.promises import check_shapes, measure_promises  # noqa: PLC0415
    from export.session import open_contents  # noqa: PLC0415 with ONNX Runtime

    folder = find_bundle(bundle)
    contents = read_bundle(folder, public_key=public_key)
    session, manifest, golden = open_contents(folder, contents)
    DriftReference.from_metadata(session.metadata, manifest, origin=folder.model)
    check_shapes(session, manifest)
    got = session.answer(golden.readings, golden.lengths, golden.last_cycle)
    findings = list(replay(golden, got, manifest))
    with Console(stderr=True).status("measuring promises"):
        findings += measure_promises(session, manifest)
    title = f"{manifest.name} {manifest.version}, SHA-256 {contents.sha256[:12]}"
    table = Table("promise", "worst", "allowed", "", title=title)
    for finding in findings:
        verdict = "kept" if finding.kept else "BROKEN"
        table.add_row(finding.promise, f"{finding.worst:.2g}", f"{finding.allowed:g}", verdict)
    Console().print(table)
    broken = [finding.promise for finding in findings if not finding.kept]
    if broken:
        raise InvalidBundle(f"{folder.path}: breaks: {'; '.join(broken)}; export it again")
