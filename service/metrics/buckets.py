"""Buckets of the histograms, and the reason for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper ends of a histogram's buckets, ascending, and the reason for them; docs/metrics.md shows both."""

    bounds: tuple[float, ...]
    reason: str


SECONDS: Final = Buckets(
    (
        0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
        10.0,
    ),
    "A bare call of a small network takes 0.4 ms, and callers give up after seconds: 1-2-5 steps, closer "
        "around a millisecond, where the service should be.",
)  # fmt: skip
STAGE_SECONDS: Final = Buckets(
    (0.00001, 0.00002, 0.00005, 0.0001, *SECONDS.bounds),
    "Stages are parts of a request: down to the clock's resolution on a busy core.",
)
WINDOWS: Final = Buckets(
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "Powers of two up to the largest batch that a GPU profits from.",
)
TWENTIETHS: Final = Buckets(
    tuple(round(0.05 * i, 2) for i in range(1, 21)),
    "Ratios: 0.05 steps show a drift of the attention long before it collapses.",
)
CYCLES: Final = Buckets(
    (2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 125, 150, 200, 300, 500, 1000),
    "RULs and interval widths lie between 0 and a cap of some hundred cycles; maintenance is planned "
    "in tens, and the first ten matter most.",
)
LAGS: Final = Buckets(
    (0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200),
    "Windows have tens of cycles; short lags differ by single cycles.",
)
NOVELTY: Final = Buckets(
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0),
    '1 is the 99.5 % quantile of the training windows, 2 the limit of "out of distribution".',
)
FRACTIONS: Final = Buckets(
    (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
    "Most windows miss nothing; bundles refuse more than half.",
)
ERROR_CYCLES: Final = Buckets(
    (1, 2, 3, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300),
    "A good bundle errs by ten cycles; an error cannot exceed the cap of some hundred.",
)
