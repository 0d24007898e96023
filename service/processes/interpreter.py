"""What a process that serves asks of its Python interpreter."""

from __future__ import annotations

import gc
import sys
from typing import Final

COLLECT_AFTER_OBJECTS: Final = 20_000
SWITCH_SECONDS: Final = 0.0005
"""How long the event loop may keep the interpreter's lock from an inference thread that asks for it. The
usual 5 ms are the time of a batch: a core would idle as long as one loop's worth of requests is parsed."""


def settle() -> None:
    """Tell the interpreter that start-up is over: what lives by now lives as long as the process.

    A request makes some hundred objects and lets go of all of them without the collector's help, so
    with the usual threshold a tenth of the event loop's time went to collections that found nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(SWITCH_SECONDS)
