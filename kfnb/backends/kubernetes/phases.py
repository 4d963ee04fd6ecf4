"""A job's phase, from its object's conditions and its pods, never from one of them alone. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.pods import Pod, last_words, seconds, started, told_failure, waits_for
from kfnb.backends.kubernetes.target import Kind
from kfnb.events import Phase

#: The conditions that end a job of each kind, and what they mean.
_ENDS: dict[Kind, dict[str, Phase]] = {
    "trainjob": {"Complete": Phase.SUCCEEDED, "Failed": Phase.FAILED},
    "pytorchjob": {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED},
    "job": {"Complete": Phase.SUCCEEDED, "Failed": Phase.FAILED},
}


#: The reason of a job whose pods are not there yet.
NOT_MADE = "its pods are being made"


@dataclass(frozen=True)
class Life:
    """Where a job is. Times in Unix seconds; ``time`` is that of the phase, as far as the cluster tells."""

    phase: Phase
    reason: str
    time: float
    created: float
    started: float | None = None
    ended: float | None = None


def life_of(kind: Kind, job: Mapping[str, Any], pods: Sequence[Pod]) -> Life:
    metadata = job["metadata"]
    created, began = seconds(metadata.get("creationTimestamp")), started(pods)
    asked = names.STOPPED in (metadata.get("annotations") or {})
    for condition in _true(job):
        phase = _ENDS[kind].get(condition["type"])
        if phase is not None:
            ended = seconds(condition.get("lastTransitionTime")) or created
            if phase is Phase.FAILED and asked:  # ranks that were stopped end as the user's code lets them
                return Life(Phase.STOPPED, "it was stopped on request", ended, created, began, ended)
            reason = "" if phase is Phase.SUCCEEDED else _reason(condition)
            return Life(phase, reason, ended, created, began or _start_time(job), ended)
    if metadata.get("deletionTimestamp") or asked:
        return Life(Phase.STOPPING, "it was asked to stop", seconds(metadata.get("deletionTimestamp")), created, began)
    words = last_words(pods) or (metadata.get("annotations") or {}).get(names.FAILED)
    failure = told_failure(words)
    if failure is not None:  # whatever the cluster does with its containers: the cell is not run again
        return Life(Phase.FAILED, "", failure.time or created, created, began, failure.time or created)
    suspended = next((condition for condition in _true(job) if condition["type"] == "Suspended"), None)
    if suspended is not None:
        return Life(Phase.QUEUED, _reason(suspended), seconds(suspended.get("lastTransitionTime")), created, began)
    if began is not None or _runs(kind, job):
        waiting, _ = waits_for(pods)
        return Life(Phase.RUNNING, waiting, began or created, created, began or _start_time(job))
    waiting, _ = waits_for(pods)
    return Life(Phase.PENDING, waiting or NOT_MADE, created, created)


def _runs(kind: Kind, job: Mapping[str, Any]) -> bool:
    """Whether the job's own object says that a pod runs: in a list, its pods are not asked for."""
    status = job.get("status") or {}
    if kind == "trainjob":
        return any(int(part.get("ready") or 0) > 0 for part in status.get("jobsStatus") or [])
    if kind == "job":
        return int(status.get("ready") or 0) > 0
    return any(condition["type"] == "Running" for condition in _true(job))


def has_ended(kind: Kind, job: Mapping[str, Any]) -> bool:
    """Whether the job's own object says so."""
    return any(condition["type"] in _ENDS[kind] for condition in _true(job))


def _true(job: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    conditions: list[Mapping[str, Any]] = (job.get("status") or {}).get("conditions") or []
    return [condition for condition in conditions if condition.get("status") == "True"]


def _reason(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "")


def _start_time(job: Mapping[str, Any]) -> float | None:
    return seconds((job.get("status") or {}).get("startTime")) or None
