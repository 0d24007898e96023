"""`python -m tests.golden.record`: ask everything again, and write today's answers into the record."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.golden.comparison import ANY
from tests.golden.player import Player, started

FOLDER: Final = Path(__file__).parent
ID: Final = "x-request-id"


def written(made: Any) -> str:
    """JSON, with a list of plain values on a line of its own."""
    text = json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n"


def in_order_of(before: Any, now: Any) -> Any:
    """Order the fields of `now` as they were before: Protobuf's maps have another order in each run."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*(name for name in before if name in now), *(name for name in now if name not in before)]
        return {name: in_order_of(before.get(name), now[name]) for name in names}
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [in_order_of(*both) for both in zip(before, now, strict=True)]
    return now


def main() -> int:
    """Write every file again; a case that has no answers yet gets its first."""
    with ExitStack() as stack:

        @cache
        def player(service: str) -> Player:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            return stack.enter_context(started(service, folder))

        for file in sorted(FOLDER.glob("*.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            for case in record["cases"]:
                answers = player(case["service"]).play([step["asked"] for step in case["steps"]])
                for step, answer in zip(case["steps"], answers, strict=True):
                    if ID in answer and step.get("answer", {}).get(ID) == ANY:
                        answer[ID] = ANY  # only the other front end gives liveness an id
                    step["answer"] = in_order_of(step.get("answer"), answer)
            file.write_text(written(record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
