"""What a job's pods say: which node each is, what it waits for, and how it ended. Pure functions of what the API server
tells, whose texts are nobody's but theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from kfnb.decode import failure_from_record
from kfnb.events import Failure

Pod = Mapping[str, Any]

_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA, _TYPE = "training.kubeflow.org/replica-index", "training.kubeflow.org/replica-type"

#: Why a container does not start, and what of it a person is told. What ends by itself is not among them.
_WAITING = {
    "ErrImagePull": "the image cannot be pulled",
    "ImagePullBackOff": "the image cannot be pulled",
    "InvalidImageName": "the image's name is not valid",
    "ErrImageNeverPull": "the image is not on the node, and may not be pulled",
    "CreateContainerConfigError": "the container cannot be configured",
    "CreateContainerError": "the container cannot be made",
    "RunContainerError": "the container cannot be run",
    "CrashLoopBackOff": "the container ends again and again",
}


@dataclass(frozen=True)
class Incarnation:
    """One container of one pod: a worker process. ``previous``: its log is that of the container before the last;
    ``ended``: it has, and its log grows no more."""

    node: int
    pod: str
    uid: str
    container: str
    restart: int
    previous: bool
    ended: bool


def node_of(pod: Pod) -> int | None:
    """The number of the node that the pod is; None for a pod that is none (an MPI launcher)."""
    metadata = pod["metadata"]
    found = (metadata.get("annotations") or {}).get(_INDEX)
    if found is not None:
        return int(found)
    labels = metadata.get("labels") or {}
    if _REPLICA in labels:
        return int(labels[_REPLICA]) + (0 if labels.get(_TYPE) == "master" else 1)
    return None


def main_status(pod: Pod) -> Mapping[str, Any] | None:
    """The status of the container that runs the worker: the first that is no init container."""
    statuses: list[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    name = pod["spec"]["containers"][0]["name"]
    return next((status for status in statuses if status.get("name") == name), None)


def incarnations(pod: Pod) -> list[Incarnation]:
    """The pod's containers that have a log to read, the oldest first: the one before the last, and the last."""
    node, status = node_of(pod), main_status(pod)
    if node is None or status is None:
        return []
    metadata = pod["metadata"]
    state, count = status.get("state") or {}, int(status.get("restartCount") or 0)
    last_ended = bool((status.get("lastState") or {}).get("terminated"))
    found = []
    if "running" in state or "terminated" in state:
        if count and last_ended:
            found.append((count - 1, True, True))
        found.append((count, False, "terminated" in state))
    elif last_ended:  # it waits to be started again: the last one is that which ended, by either name
        found.append((count, True, True))
    name, uid, container = metadata["name"], metadata["uid"], status["name"]
    return [Incarnation(node, name, uid, container, restart, previous, ended) for restart, previous, ended in found]


def waits_for(pods: Iterable[Pod]) -> tuple[str, bool]:
    """(what the pods wait for, in a sentence; whether it ends by no means by itself). Empty: nothing that is known."""
    sentences: dict[str, list[str]] = {}
    stuck = False
    for pod in pods:
        sentence, hopeless = _waits_for(pod)
        if sentence:
            sentences.setdefault(sentence, []).append(pod["metadata"]["name"])
            stuck = stuck or hopeless
    parts = [f"{sentence} ({_some(names)})" for sentence, names in sentences.items()]
    return "; ".join(parts[:3]), stuck


def _waits_for(pod: Pod) -> tuple[str, bool]:
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return "", False
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or condition.get("reason") or "")
            return f"it cannot be scheduled: {message}", False
    main = main_status(pod) or {}
    waiting = (main.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in _WAITING:
        image = pod["spec"]["containers"][0].get("image", "")
        what = f"{_WAITING[reason]}: {image}" if "Image" in reason else _WAITING[reason]
        return f"{what}: {waiting.get('message') or reason}", reason in ("InvalidImageName", "ErrImageNeverPull")
    if reason in ("ContainerCreating", "PodInitializing"):
        return "its containers are being made", False
    return "", False


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def started(pods: Iterable[Pod]) -> float | None:
    """When the first worker began, in Unix seconds."""
    times = []
    for pod in pods:
        status = main_status(pod) or {}
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            for kind in ("running", "terminated"):
                told = (state.get(kind) or {}).get("startedAt")
                if told:
                    times.append(seconds(told))
    return min(times, default=None)


def first_failure(pods: Iterable[Pod], *, first_line: int = 1) -> Failure | None:
    """The failure that a worker left as its container's last words, the earliest; else what the kubelet says."""
    found = []
    for pod in pods:
        status = main_status(pod) or {}
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended = state.get("terminated")
            if ended and int(ended.get("exitCode") or 0) != 0:
                failure = told_failure(ended.get("message"), first_line=first_line) or _by_kubelet(pod, ended)
                if failure is not None:
                    found.append(failure)
    return min(found, key=lambda failure: (failure.kind == "lost", failure.time), default=None)


def last_words(pods: Iterable[Pod]) -> str:
    """What the first worker said that ended in failure: all nodes end then, and none is to start again."""
    found = []
    for pod in pods:
        status = main_status(pod) or {}
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended = state.get("terminated") or {}
            failure = told_failure(ended.get("message"))
            if failure is not None:
                found.append((failure.kind == "lost", failure.time, str(ended["message"])))
    return min(found)[-1] if found else ""


def told_failure(words: Any, *, first_line: int = 1) -> Failure | None:
    """The failure in a worker's last words; None where there is none, or they are somebody else's."""
    try:
        told = json.loads(words or "")
        return failure_from_record(told, first_line=first_line) if told.get("outcome") == "failed" else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _by_kubelet(pod: Pod, ended: Mapping[str, Any]) -> Failure | None:
    reason, code = str(ended.get("reason") or ""), int(ended.get("exitCode") or 0)
    if code in (75, 143):  # it only followed: another node failed, or it was asked to stop
        return None
    if reason == "OOMKilled":
        limit = ((pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}).get("memory")
        message = f"it used more memory than its limit of {limit}" if limit else "the node had no memory left for it"
    else:
        message = f"its container ended with exit code {code} ({reason or 'no reason is told'})"
    time = seconds(ended.get("finishedAt"))
    return Failure(node_of(pod), None, 0, "exit", reason or "Exit", message, "", None, time)


def seconds(time: Any) -> float:
    """Unix seconds of a time as Kubernetes writes it; 0 for what is none."""
    try:
        return datetime.fromisoformat(str(time).replace("Z", "+00:00")).astimezone(timezone.utc).timestamp()
    except ValueError:
        return 0.0
