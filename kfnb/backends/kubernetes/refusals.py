"""Why a cluster does not make a job's pods: what the controllers that should say in events, for want of a condition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.errors import ApiError, quota_sentence
from kfnb.backends.kubernetes.pods import seconds


async def refusal(client: Client, namespace: str, id: str) -> str:
    """The newest, in a sentence; empty where there is none, or where the user may not read events."""
    found: list[Mapping[str, Any]] = []
    try:
        async for page in client.list(f"/api/v1/namespaces/{namespace}/events", fields="type=Warning"):
            found += page.get("items") or []
    except ApiError:
        return ""
    return newest(found, id)


def newest(events: Iterable[Mapping[str, Any]], id: str) -> str:
    """Of the job's own object, or one that came of it and is called after it; its pods speak for themselves."""
    told = []
    for event in events:
        about = event.get("involvedObject") or {}
        name = str(about.get("name") or "")
        if about.get("kind") != "Pod" and (name == id or name.startswith(f"{id}-")):
            when = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
            told.append((seconds(when), str(event.get("message") or event.get("reason") or "")))
    if not told:
        return ""
    message = max(told)[-1]
    return quota_sentence(message) or f"its pods are not made: {message}"
