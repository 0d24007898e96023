"""The model card: what a reader must know before believing a bundle, from its own manifest."""

from __future__ import annotations

from export.bundle import Manifest


def model_card(manifest: Manifest) -> str:
    """Markdown, with every figure taken from the manifest."""
    training, metrics = manifest.training, manifest.metrics
    settings = [column.name for column in manifest.columns if column.role == "setting"]
    sensors = [column.name for column in manifest.columns if column.role == "sensor"]
    entropy = manifest.entropy[0]
    return f"""# {manifest.name} {manifest.version}

Remaining useful life in cycles, from the last {manifest.context} cycles of a unit. Network
`{manifest.network}`: attention is the only road from the cycles to the answer, so the contributions
add up to it.

## What it reads

- Settings: {", ".join(settings) or "none"}. Sensors: {", ".join(sensors)}.
- Engineering units, NaN where missing: up to {manifest.max_missing_fraction:.0%} of a window. \
Operating regimes found: {len(manifest.regimes)}.
- `last_cycle`, the unit's cycle number, may be unknown; the answer is then less exact.

## How good it is

RUL is capped at {manifest.cap:g} cycles, in truth and answer. Brackets: 95 % by bootstrap over units.

| | validation: chose the weights | calibration: neither trained nor chose |
|---|---|---|
| units | {training.units_validated} | {training.units_calibrated} |
{_rows(metrics)}

Windows are cut at random cycles of units that training has not seen ({training.units_trained} units
trained). The interval aims at {manifest.nominal_coverage:.0%}; under calibration it was made from the
other units each time. With so few units a difference of one cycle of RMSE means little.

## What to be careful with

- Above {manifest.cap:g} cycles the answer is "at least".
- `novelty` above 1 means: further from the training data than 99.5 % of it. Do not trust such an answer.
- Attention entropy ratio in calibration: {entropy.low:.2f} to {entropy.high:.2f} (99 % of windows), \
median {entropy.median:.2f}.
- The golden windows are simulated; they say that the model runs as exported, not that it is right.

## Where it comes from

- Data: `{training.data_name}`, SHA-256 `{training.data_sha256}`; seed {training.seed}, \
code {training.code_version}.
- PyTorch against ONNX Runtime: RUL {manifest.parity.rul_cycles:.1e} cycles, attention \
{manifest.parity.attention:.1e}, at most.

```console
rul train --fleet {training.config.get("fleet", "FLEET")} --data {training.data_name} --name {manifest.name} \
--network {manifest.network} --seed {training.seed} --steps {training.config.get("steps", 0)} \
--out runs/{manifest.name}
rul export runs/{manifest.name} --out bundles/{manifest.name}
rul check bundles/{manifest.name}
```
"""


def _rows(metrics: dict[str, float]) -> str:
    names = {
        "rmse": "RMSE, cycles",
        "mae": "MAE, cycles",
        "bias": "bias, cycles",
        "score": "NASA score a window",
        "coverage": "coverage of the interval",
        "width": "width of the interval, cycles",
    }
    return "\n".join(
        f"| {title} | {_figure(metrics, f'validation_{name}')} | {_figure(metrics, f'calibration_{name}')} |"
        for name, title in names.items()
    )


def _figure(metrics: dict[str, float], name: str) -> str:
    if name not in metrics:
        return "not measured"
    return f"{metrics[name]:.2f} [{metrics[name + '_low']:.2f}, {metrics[name + '_high']:.2f}]"
