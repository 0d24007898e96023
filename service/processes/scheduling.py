"""How the kernel deals the cores among the service's threads and whoever else wants them."""

from __future__ import annotations

import os


def yield_to_running() -> bool:
    """From here on no thread that wakes takes the core from one that runs, in this process and its children.

    Linux's SCHED_BATCH. A request goes through four threads; where each that wakes interrupts the one that
    woke it, the next request is read with cold caches and every batch leaves half full.

    Returns:
        Whether it is so; another system may have nothing like it, or not allow it.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # a sandbox that does not allow it
        return False
    return True
