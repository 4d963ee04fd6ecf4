"""Events and lists as JSON for programs: one strict JSON object a line."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

from kfnb.events import JobEvent, LogLine, PhaseChanged, Points
from kfnb_worker import wire

_NAMES = {
    "AttemptStarted": "attempt",
    "Checkpoint": "checkpoint",
    "Failure": "failure",
    "Gap": "gap",
    "LogLine": "log",
    "NodeStarted": "node",
    "Note": "note",
    "PhaseChanged": "phase",
    "Points": "points",
    "Progress": "progress",
    "RankState": "rank",
    "Result": "result",
    "Stacks": "stacks",
}


def as_dict(event: JobEvent) -> dict[str, Any]:
    """The event's fields, with its kind under ``event``. Non-finite values are the strings nan, inf and -inf."""
    if isinstance(event, LogLine):
        return {"event": "log", **event._asdict()}
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, PhaseChanged) and event.failure is not None:
        values["failure"] = asdict(event.failure)
    if isinstance(event, Points):
        values["values"] = wire.pack_floats(event.values)
    strict = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return {"event": _NAMES[type(event).__name__], **strict}


def dumps(value: Any) -> str:
    """One line of strict JSON; what is no JSON becomes its text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
