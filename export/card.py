"""Model card: a bundle's inputs, errors, limits and provenance, from its manifest."""

from __future__ import annotations

from typing import Final

from export.bundle import Manifest
from model.domain import NOVELTY_LIMIT

FIGURES: Final = {
    "rmse": "RMSE, cycles",
    "mae": "MAE, cycles",
    "bias": "bias, cycles",
    "score": "NASA score per window",
    "coverage": "coverage of the interval",
    "width": "width of the interval, cycles",
}


def model_card(manifest: Manifest) -> str:
    """Write the card in Markdown, with every number taken from the manifest."""
    training = manifest.training
    settings = [column.name for column in manifest.columns if column.role == "setting"]
    sensors = [column.name for column in manifest.columns if column.role == "sensor"]
    entropy = manifest.entropy[0]
    return f"""# {manifest.name} {manifest.version}

Remaining useful life (RUL) in cycles, from the last {manifest.context} cycles of a unit. Network
`{manifest.network}`: {_network(manifest)}

## Inputs

- Settings: {", ".join(settings) or "none"}.
- Sensors: {", ".join(sensors)}.
- Readings are in engineering units, NaN where missing: up to {manifest.max_missing_fraction:.0%} of a window.
- `last_cycle` is the unit's cycle number; it may be unknown.
- Operating regimes found in training: {len(manifest.regimes)}.

## Accuracy

{_figures(manifest)}

RUL is capped at {manifest.cap:g} cycles, in truth and answer. Brackets: 95 % by bootstrap over units.
Windows end at random cycles of a unit's life. {training.units} units form {training.folds} folds. A \
network trained on the
other folds predicts each fold; the network of this bundle trained on all units. The nominal coverage \
of the
interval is {manifest.nominal_coverage:.0%}. The interval is calibrated on these errors; its coverage \
is measured with the
unit's own errors left out.

{_attention(manifest)}## Limits

- Above {manifest.cap:g} cycles the answer is "at least".
- `novelty` above 1: the window is further from the training data than 99.5 % of that data. Above \
{NOVELTY_LIMIT:g} the
answer is marked `out_of_distribution`: do not trust it.
- `min_cycles` is {manifest.min_cycles}: shorter windows of a longer life are marked `insufficient_history`.
- The attention entropy ratio is {entropy.low:.2f} to {entropy.high:.2f} in 99 % of these windows; the \
median is {entropy.median:.2f}.
- Golden windows are simulated: they show that the model runs as exported, not that it is accurate.

{_provenance(manifest)}"""


def _network(manifest: Manifest) -> str:
    if manifest.explains_readings:
        return """attention weighs the readings, and the answer divides exactly into contributions
of the readings, of each cycle's place, and of the window (age, length, what is missing). `evidence` is
the share of each cycle in the contributions of the readings; `attention` says where the network looked."""
    return """the answer is an attention-weighted sum over cycles, so the contributions of the
cycles add up to it."""


def _figures(manifest: Manifest) -> str:
    rows = [
        f"| {title} | {_figure(manifest.metrics, f'crossvalidation_{name}')} |"
        for name, title in FIGURES.items()
    ]
    return "\n".join(["| cross-validation | |", "|---|---|", *rows])


def _attention(manifest: Manifest) -> str:
    """Write the section on faithfulness, where the manifest has its metrics."""
    metrics = {
        name.removeprefix("attention_"): _figure(manifest.metrics, name)
        for name in manifest.metrics
        if name.startswith("attention_") and not name.endswith(("_low", "_high"))
    }
    if "hidden_20_over_random" not in metrics or "hidden_20_over_last" not in metrics:
        return ""
    what, most = "attention", "most attended"
    if manifest.explains_readings:
        what, most = "evidence", "most evident"
    return f"""## Faithfulness of the {what}

On held-out units, cycles were hidden: replaced by the training mean of their regime.

| 20 % of a window's cycles | change of RUL when hidden, cycles | change when all others are hidden |
|---|---|---|
| {most} | {metrics["hidden_20_attended"]} | {metrics["kept_20_attended"]} |
| random | {metrics["hidden_20_random"]} | {metrics["kept_20_random"]} |
| last | {metrics["hidden_20_last"]} | {metrics["kept_20_last"]} |

Hiding the {most} cycles changes the RUL {metrics["hidden_20_over_random"]} times as much as \
hiding random ones
and {metrics["hidden_20_over_last"]} times as much as hiding the last ones. The rank correlation of \
{what} with the
effect of hiding single cycles is {metrics["agreement"]} (1 is best). `rul attention` measures more on any
data.

"""


def _provenance(manifest: Manifest) -> str:
    training = manifest.training
    return f"""## Provenance

- Data `{training.data_name}`, SHA-256 `{training.data_sha256}`.
- Seed {training.seed}, code {training.code_version}.
- PyTorch and ONNX Runtime differ by at most {manifest.parity.rul_cycles:.1e} cycles of RUL and \
{manifest.parity.attention:.1e} of attention.
{_quantized(manifest)}
```console
{_commands(manifest)}
```
"""


def _quantized(manifest: Manifest) -> str:
    """Write the line on quantization, where the weights are quantized."""
    found = manifest.quantized
    if found is None:
        return ""
    return f"""- The weights are quantized to {found.weights}: RMSE {found.rmse:.3f} cycles on \
{found.windows} windows of
`{found.data_name}`, {found.rmse_float:.3f} before; a RUL changes by at most {found.farthest:.2f} cycles.
"""


def _commands(manifest: Manifest) -> str:
    training, config, name = manifest.training, manifest.training.config, manifest.name
    quantize = f" --quantize --data {manifest.quantized.data_name}" if manifest.quantized else ""
    return f"""rul train --fleet {config["fleet"]} --data {training.data_name} --name {name} \\
  --network {manifest.network} --seed {training.seed} --steps {config["steps"]} \\
  --folds {training.folds} --out runs/{name}
rul export runs/{name} --out bundles/{name}{quantize}
rul check bundles/{name}"""


def _figure(metrics: dict[str, float], name: str) -> str:
    return f"{metrics[name]:.2f} [{metrics[name + '_low']:.2f}, {metrics[name + '_high']:.2f}]"
