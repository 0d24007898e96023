"""Names and meanings of the figures of evidence, for tables and model cards.

This module must not know screens, torch or how figures are measured.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple


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
"""Figures of `faithfulness_figures` and `sensitivity_figures` that are told, in order."""


def meanings(names: Collection[str], *, explains_readings: bool) -> dict[str, Meaning]:
    """Return the meanings of the known names; cycles are ranked by evidence, or by attention without it."""
    ranking = "evidence" if explains_readings else "attention"
    return {
        name: meaning._replace(sentence=meaning.sentence.format(ranking=ranking))
        for name, meaning in MEANINGS.items()
        if name in names
    }
