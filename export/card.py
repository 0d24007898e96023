"""The model card: what a reader must know before believing a bundle, from its own manifest."""

from __future__ import annotations

from typing import Final

from export.bundle import Manifest
from model.domain import NOVELTY_LIMIT

FIGURES: Final = {
    "rmse": "RMSE, cycles",
    "mae": "MAE, cycles",
    "bias": "bias, cycles",
    "score": "NASA score a window",
    "coverage": "coverage of the interval",
    "width": "width of the interval, cycles",
}


def model_card(manifest: Manifest) -> str:
    """Markdown, with every figure taken from the manifest."""
    training = manifest.training
    settings = [column.name for column in manifest.columns if column.role == "setting"]
    sensors = [column.name for column in manifest.columns if column.role == "sensor"]
    entropy = manifest.entropy[0]
    return f"""# {manifest.name} {manifest.version}

Remaining useful life in cycles, from the last {manifest.context} cycles of a unit. Network
`{manifest.network}`: attention is the only road from the cycles to the answer, so the contributions
add up to it.

## What it reads

- Settings: {", ".join(settings) or "none"}.
- Sensors: {", ".join(sensors)}.
- Engineering units, NaN where missing: up to {manifest.max_missing_fraction:.0%} of a window.
- `last_cycle`, the unit's cycle number; it may be unknown.
- Operating regimes found in training: {len(manifest.regimes)}.

## How good it is

{_figures(manifest)}

RUL is capped at {manifest.cap:g} cycles, in truth and answer. Brackets: 95 % by bootstrap over units.
Windows end at random cycles of a unit's life. {training.units} units were dealt into {training.folds} \
folds, and
each was answered by a network that learnt from the other folds alone; the network of this bundle
learnt from all of them. The interval aims at {manifest.nominal_coverage:.0%} and is set on these errors; \
its coverage here
is that of intervals made without the unit's own.

{_attention(manifest)}## What to be careful with

- Above {manifest.cap:g} cycles the answer is "at least".
- `novelty` above 1: further from the training data than 99.5 % of it. Above {NOVELTY_LIMIT:g} the
answer is called `out_of_distribution`: do not trust it.
- `min_cycles` is {manifest.min_cycles}: fewer, of a longer life, are `insufficient_history`.
- The attention entropy ratio of 99 % of these windows is {entropy.low:.2f} to \
{entropy.high:.2f}, its median {entropy.median:.2f}.
- Golden windows are simulated: they show that the model runs as exported, not that it is right.

## Where it comes from

- Data `{training.data_name}`, SHA-256 `{training.data_sha256}`.
- Seed {training.seed}, code {training.code_version}.
- PyTorch and ONNX Runtime differ by at most {manifest.parity.rul_cycles:.1e} cycles of RUL and \
{manifest.parity.attention:.1e} of attention.
{_quantized(manifest)}
```console
{_commands(manifest)}
```
"""


def _figures(manifest: Manifest) -> str:
    rows = [
        f"| {title} | {_figure(manifest.metrics, f'crossvalidation_{name}')} |"
        for name, title in FIGURES.items()
    ]
    return "\n".join(["| cross-validation | |", "|---|---|", *rows])


def _attention(manifest: Manifest) -> str:
    """What hiding cycles showed, where it was measured."""
    metrics = {
        name.removeprefix("attention_"): _figure(manifest.metrics, name)
        for name in manifest.metrics
        if name.startswith("attention_") and not name.endswith(("_low", "_high"))
    }
    if "hidden_20_over_random" not in metrics or "hidden_20_over_last" not in metrics:
        return ""
    return f"""## What the attention is worth

On held-out units, cycles were hidden: they took the training mean of their regime.

| 20 % of a window's cycles | hidden: the RUL moves, cycles | alone kept: the RUL moves, cycles |
|---|---|---|
| the most attended | {metrics["hidden_20_attended"]} | {metrics["kept_20_attended"]} |
| random ones | {metrics["hidden_20_random"]} | {metrics["kept_20_random"]} |
| simply the last | {metrics["hidden_20_last"]} | {metrics["kept_20_last"]} |

Hidden, the most attended move it {metrics["hidden_20_over_random"]} times as far as random ones and \
{metrics["hidden_20_over_last"]} times
as far as the last. Attention and what hiding each cycle alone does agree in rank by \
{metrics["agreement"]} (1 is best).
`rul attention` measures more, on any data.

"""


def _quantized(manifest: Manifest) -> str:
    """What whole-number weights did, where the file has them."""
    found = manifest.quantized
    if found is None:
        return ""
    return f"""- Weights were then rounded to {found.weights}: RMSE {found.rmse:.3f} cycles on \
{found.windows} windows of
`{found.data_name}`, {found.rmse_float:.3f} before; no RUL moved by more than {found.farthest:.2f} cycles.
"""


def _commands(manifest: Manifest) -> str:
    training, config, name = manifest.training, manifest.training.config, manifest.name
    return "\n".join(
        (
            f"rul train --fleet {config['fleet']} --data {training.data_name} --name {name} \\",
            f"  --network {manifest.network} --seed {training.seed} --steps {config['steps']} \\",
            f"  --folds {training.folds} --out runs/{name}",
            f"rul export runs/{name} --out bundles/{name}{_how_quantized(manifest)}",
            f"rul check bundles/{name}",
        )
    )


def _how_quantized(manifest: Manifest) -> str:
    found = manifest.quantized
    return "" if found is None else f" --quantize --data {found.data_name}"


def _figure(metrics: dict[str, float], name: str) -> str:
    return f"{metrics[name]:.2f} [{metrics[name + '_low']:.2f}, {metrics[name + '_high']:.2f}]"
