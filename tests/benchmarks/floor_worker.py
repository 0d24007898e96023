"""A worker of the floor: the handler that `FLOOR_HANDLER` names, with the service's interpreter settings.

It imports nothing else, because a worker's memory is measured.
"""

from __future__ import annotations

import os
import runpy
from typing import Any

from service.processes.tuning import settle_interpreter

HANDLER = "FLOOR_HANDLER"
_app: Any = None


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer one request, or the start of the worker."""
    global _app  # noqa: PLW0603 a worker has one handler
    if _app is None:
        _app = runpy.run_path(os.environ[HANDLER])["app"]
        settle_interpreter(inference_threads=False)
    await _app(scope, receive, send)
