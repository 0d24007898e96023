"""Model card: a bundle's inputs, errors, limits and provenance, from its manifest.

Names and meanings of the figures of evidence serve tables too.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from export.bundle import Manifest, Training
from model.cells import counted, plain_number
from model.domain import NOVELTY_LIMIT
from model.evaluation import BOOSTING_TITLES, TITLES, boosting_caution, named_figure
from model.prognostics import THIRDS
from model.screen import shown

LISTED: Final = 3
"""Maximum data files to name."""
READ: Final = " The network reads them, as they decide how long units last: they contribute to answers."
"""Added if settings do more than determine the regime."""
LINE: Final = 80
"""Maximum characters in a line of a command."""


class Meaning(NamedTuple):
    """Title of a figure, and a sentence on what it says."""

    title: str
    sentence: str


MEANINGS: Final = {
    "agreement": Meaning(
        "agreement",
        "Rank correlation of a cycle's {ranking} with the change of RUL when it alone is hidden; 1 is best.",
    ),
    "beyond_place": Meaning(
        "agreement beyond place",
        "The same where other units' mean profile is removed from both: what is of this window.",
    ),
    "leak": Meaning(
        "leak",
        "Share of the influence of single cycles that lies where the last 5 % of {ranking} is; 0 is best.",
    ),
    "hidden_20_over_random": Meaning(
        "top 20 % over random", "Change of RUL with the 20 % of most {ranking} hidden, over random cycles."
    ),
    "hidden_20_over_last": Meaning(
        "top 20 % over last",
        "The same over the last cycles. Wear is latest there, so about 1 is usual and more is no aim.",
    ),
    "anomaly": Meaning(
        "sudden wear",
        "How many times their {ranking} five cycles in mid-window have when every sensor wears by 4 sigma.",
    ),
    "lag_attention": Meaning(
        "attention by lag alone",
        "Share of the attention's variance that lag explains: 1 is a profile, whatever the readings.",
    ),
    "lag_heads": Meaning("attention of all heads by lag alone", "The same over every head."),
    "moved": Meaning(
        "moved by one cycle",
        "Share of {ranking} that goes to other cycles when the unit runs one cycle more; 0 is stable.",
    ),
    "sensors": Meaning(
        "agreement of sensors",
        "Rank correlation of sensors' contributions with the change of RUL when each is hidden; 1 is best.",
    ),
}
"""Figures of `faithfulness_figures` and `sensitivity_figures` to show, in order."""


def meanings(names: Collection[str], *, explains_readings: bool) -> dict[str, Meaning]:
    """Return the meanings of the known names; cycles are ranked by evidence, or by attention without it."""
    ranking = "evidence" if explains_readings else "attention"
    return {
        name: meaning._replace(sentence=meaning.sentence.format(ranking=ranking))
        for name, meaning in MEANINGS.items()
        if name in names
    }


def model_card(manifest: Manifest, *, sha256: str) -> str:
    """Write the card in Markdown, with every number from the manifest; `sha256` is of `model.onnx`."""
    training = manifest.training
    settings = [column.name for column in manifest.columns if column.role == "setting"]
    sensors = [column.name for column in manifest.columns if column.role == "sensor"]
    whole = "unit" if training.config.get("group") is None else "group"
    entropy = manifest.entropy[0]
    low, high = entropy.limits(manifest.context)
    return f"""# {manifest.name} {manifest.version}

Remaining useful life (RUL) in cycles, from the last {manifest.context} cycles of a unit. Network
`{manifest.network}`: {_network(manifest)}

SHA-256 of `model.onnx`, as answers and `/v1/models` show it:
`{sha256}`

## Inputs

- Settings: {", ".join(settings) or "none"}.{READ if manifest.reads_settings else ""}
- Sensors: {", ".join(sensors)}.
- Readings are in engineering units, NaN where missing: up to {manifest.max_missing_fraction:.0%} of a window.
- `last_cycle` is the unit's cycle number; it may be unknown.
- Operating regimes found in training: {len(manifest.regimes)}.

## Accuracy

{_figures(manifest)}

RUL is capped at {manifest.cap:g} cycles, in truth and answer. Brackets: 95 % by bootstrap over {whole}s.
Windows end at random cycles of a unit's life. {_folds(training)} A \
network trained on the
other folds predicts each fold; the network of this bundle trained on all units. The nominal coverage \
of the
interval is {manifest.nominal_coverage:.0%}. The interval is calibrated on these errors; its coverage \
is measured with the
{whole}'s own errors left out.

{_thirds(manifest)}{_attention(manifest)}## Limits

- Above {manifest.cap:g} cycles the answer is "at least".
- `novelty` above 1: the window is further from the training data than 99.5 % of that data. Above \
{NOVELTY_LIMIT:g} the
answer is marked `out_of_distribution`: do not trust it.
- `min_cycles` is {manifest.min_cycles}: shorter windows of a longer life are marked `insufficient_history`.
- The attention entropy ratio is {low[-1]:.2f} to {high[-1]:.2f} in 99 % of full windows; the \
median of all windows is {entropy.median:.2f}.
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
    titles = {f"crossvalidation_{name}": title for name, title in TITLES.items()} | BOOSTING_TITLES
    metrics = manifest.metrics
    rows = [f"| {title} | {_figure(metrics, name)} |" for name, title in titles.items() if name in metrics]
    table = "\n".join(["| cross-validation | |", "|---|---|", *rows])
    caution = boosting_caution(metrics)
    return f"{table}\n\n{caution}" if caution else table


def _folds(training: Training) -> str:
    group = training.config.get("group")
    together = "" if group is None else f", those of one `{group}`, a group, in one fold"
    return f"{training.units} units form {training.folds} folds{together}.{_censored(training)}"


def _censored(training: Training) -> str:
    if not training.censored:
        return ""
    return (
        f" {training.censored} more had no known failure: failed units count for those censored at a lower "
        "age. That is right where units were censored whatever their state. Where they were replaced before "
        "they failed, answers are too early."
    )


def _thirds(manifest: Manifest) -> str:
    """Write the table of coverage by predicted RUL, if the manifest has its metrics."""
    metrics = manifest.metrics
    rows = [
        f"| {plain_number((n - 1) * manifest.cap / THIRDS)} to {plain_number(n * manifest.cap / THIRDS)} "
        f"| {metrics[f'third_{n}_windows']:.0f} "
        f"| {_figure(metrics, f'third_{n}_coverage')} | {_figure(metrics, f'third_{n}_width')} |"
        for n in range(1, THIRDS + 1)
        if f"third_{n}_windows" in metrics
    ]
    if not rows:
        return ""
    head = [
        "| predicted RUL, cycles | windows | coverage of the interval | its width, cycles |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n\n"


def _attention(manifest: Manifest) -> str:
    """Write the section on faithfulness, if the manifest has its metrics."""
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
    told = meanings(metrics, explains_readings=manifest.explains_readings)
    rows = "\n".join(f"| {each.title} | {metrics[name]} | {each.sentence} |" for name, each in told.items())
    return f"""## Faithfulness of the {what}

On held-out units, cycles were hidden: replaced by the training mean of their regime.

| 20 % of a window's cycles | change of RUL when hidden, cycles | change when all others are hidden |
|---|---|---|
| {most} | {metrics["hidden_20_attended"]} | {metrics["kept_20_attended"]} |
| random | {metrics["hidden_20_random"]} | {metrics["kept_20_random"]} |
| last | {metrics["hidden_20_last"]} | {metrics["kept_20_last"]} |

| figure | value | meaning |
|---|---|---|
{rows}

`rul attention` measures the same on any data. `rul check` has no data: it checks that contributions add \
up exactly,
not that they point at what wears.

"""


def _provenance(manifest: Manifest) -> str:
    training = manifest.training
    return f"""## Provenance

- Data {_files(training.data_name)}, SHA-256 `{training.data_sha256}`.
- Seed {training.seed}, code {training.code_version}.
- PyTorch and ONNX Runtime differ by at most {manifest.parity.rul_cycles:.1e} cycles of RUL and \
{manifest.parity.attention:.1e} of attention.

To make the bundle again, in the folder that the paths start from:

```console
{_commands(manifest)}
```
"""


def _files(data_name: str) -> str:
    """Name the files of the data; if there are many, only the first."""
    names = data_name.split(", ")
    more = f" and {counted(len(names) - LISTED, 'more file')}" if len(names) > LISTED else ""
    return ", ".join(f"`{name}`" for name in names[:LISTED]) + more


def _commands(manifest: Manifest) -> str:
    """Write the commands that make this bundle, each argument quoted for a shell."""
    training, config, name = manifest.training, manifest.training.config, manifest.name
    read = ["reads_settings=true"] if manifest.reads_settings else []
    given = {"fleet": config["fleet"], "data": training.data_name.split(", "), "set": [], "threads": 1}
    given |= config.get("given", {})
    train = {
        "--fleet": [given["fleet"]],
        "--data": given["data"],
        "--name": [name],
        "--network": [manifest.network],
        "--set": list(dict.fromkeys([*given["set"], *read])),
        "--seed": [training.seed],
        "--steps": [config["steps"]],
        "--folds": [training.folds],
        "--threads": [threads for threads in (given["threads"],) if threads != 1],
        "--output": [f"runs/{name}"],
    }
    return f"""rul train{_options(train)}
rul export runs/{name} --output bundles/{name}
rul check bundles/{name}"""


def _options(values: Mapping[str, Sequence[Any]]) -> str:
    """Write options of a command, in lines of at most `LINE` characters if they can be broken."""
    words = [f"{option} {shlex.quote(str(value))}" for option, each in values.items() for value in each]
    text, line = "", 0
    for word in words:
        if line + len(word) > LINE:
            text, line = f"{text} \\\n ", 0
        text, line = f"{text} {word}", line + len(word) + 1
    return text


def _figure(metrics: dict[str, float], name: str) -> str:
    return shown(named_figure(metrics, name))
