"""Facts that determine the output of a run, stored in `_run.json`, and differences of two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from model.cells import counted
from model.fleet import fleet_toml
from model.version import VERSION
from rul_client.commands.score.plan import Plan
from rul_client.commands.score.scorer import Scorer
from rul_client.unit_windows import LAST


def facts_of(scorer: Scorer, plan: Plan) -> dict[str, Any]:
    """Return the facts that determine the output."""
    every = scorer.job.every
    return {
        "rul": VERSION,
        "bundle": msgspec.to_builtins(scorer.name),
        "provider": scorer.provider,
        "batch_windows": scorer.batch_windows,
        "windows": {LAST: "last", 1: "all"}.get(every, every),
        "attention": scorer.job.attention,
        "contributions": scorer.job.contributions,
        "columns": hashlib.sha256(fleet_toml(scorer.fleet).encode()).hexdigest(),
        "part_readings": scorer.job.part_readings,
        "input": {"files": plan.files, "readings": plan.rows, "units": plan.units, "sha256": plan.sha256},
    }


def digest_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of a run's facts, the same for a copy of the input with other times of files."""
    counts = {name: value for name, value in facts["input"].items() if name != "sha256"}
    return hashlib.sha256(msgspec.json.encode({**facts, "input": counts})).hexdigest()


def differences(stored: bytes, now: Mapping[str, Any]) -> list[str]:
    """Describe each fact that differs from those that a run stored."""
    try:
        before = msgspec.json.decode(stored, type=dict[str, Any])
        return [_difference(name, before[name], now[name]) for name in now if before[name] != now[name]]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return ["its record is damaged or of another version"]


def _difference(name: str, old: Any, new: Any) -> str:  # noqa: ANN401 any JSON
    if name == "columns":
        return "the columns are described otherwise (--fleet)"
    if name == "input" and _input(old) == _input(new):
        return "the input's files have other names, sizes or times"
    word, worded = WORDED[name]
    return f"{word} was {worded(old)}, now {worded(new)}"


def _plain(value: object) -> str:
    return ("given" if value else "not given") if isinstance(value, bool) else str(value)


def _model(bundle: Mapping[str, str]) -> str:
    return f"{bundle['name']} {bundle['version']} ({bundle['sha256'][:12]})"


def _input(counts: Mapping[str, Any]) -> str:
    return ", ".join(counted(counts[f"{noun}s"], noun) for noun in ("file", "unit", "reading"))


WORDED: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "rul": ("the version of rul", _plain),
    "bundle": ("the model", _model),
    "provider": ("the execution provider", _plain),
    "batch_windows": ("a batch's number of windows", _plain),
    "windows": ("--windows", _plain),
    "attention": ("--attention", _plain),
    "contributions": ("--contributions", _plain),
    "part_readings": ("--part-readings", _plain),
    "input": ("the input", _input),
}
"""Name of each fact in errors, and the function that words its value."""
