"""Weights of failed units if other units were censored.

A long life is censored more often than a short one, so the failures that are seen come too early. This module
must not know networks or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from model.domain import Trajectory

MOST_WEIGHT: Final = 10.0
"""Maximum weight: at high ages few units are left, and one must not decide alone."""


def failed_units(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Select units with a known failure, weighted by the inverse probability of being uncensored.

    That probability is the Kaplan-Meier estimate of being uncensored up to the unit's last cycle, over all
    units (Robins and Rotnitzky, 1992, "Recovery of information and adjustment for dependent censoring using
    surrogate markers"). It is right if censoring does not depend on a unit's state, as when units entered
    service at different times, and wrong if units were replaced because failure was near. Without a censored
    unit all weights are 1.
    """
    last = np.array([each.cycles[-1] for each in trajectories])
    ends, censored = np.unique(
        [each.cycles[-1] for each in trajectories if not each.failed], return_counts=True
    )
    later = len(last) - np.searchsorted(np.sort(last), ends, side="right")
    seen = np.concatenate(([1.0], np.cumprod(later / (later + censored))))  # past each end
    failed = [each for each in trajectories if each.failed]
    weights = [1.0 / seen[np.searchsorted(ends, each.cycles[-1])] for each in failed]
    return [
        replace(each, weight=min(weight, MOST_WEIGHT)) for each, weight in zip(failed, weights, strict=True)
    ]
