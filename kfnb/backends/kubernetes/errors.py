"""What an API server refuses, in words: the server's own, and the right that is missing where one is."""

from __future__ import annotations

import json
import re
from typing import Any

from kfnb.errors import BackendError

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"(?: in API group "(?P<group>[^"]*)")?'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>.+)$"
)


class ApiError(BackendError):
    """An answer of the API server that is no success. ``status`` is HTTP's, ``reason`` Kubernetes' own word for it."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, status: int = 0, reason: str = "") -> None:
        super().__init__(what, why, fix)
        self.status, self.reason = status, reason


class Unreachable(BackendError):
    """The API server does not answer."""


def explain(status: int, body: bytes, doing: str) -> ApiError:
    """The answer ``status`` with its ``body`` (a ``Status`` object, or whatever a proxy sends) to ``doing``."""
    told = _status(body)
    message, reason = str(told.get("message") or ""), str(told.get("reason") or "")
    what, why, fix = f"{doing} was refused by the API server ({status}).", message, ""
    forbidden, quota = _FORBIDDEN.search(message), _QUOTA.search(message)
    if quota is not None:
        what = f"{doing} was refused: the quota {quota['quota']} has no room."
        why = f"Asked for {quota['asked']}, in use {quota['used']} of {quota['limit']}."
        fix = "Ask for less, wait until other jobs have ended, or have the quota raised."
    elif status == 403 and forbidden is not None:
        where = f" in the namespace {forbidden['namespace']}" if forbidden["namespace"] else ""
        group = f".{forbidden['group']}" if forbidden["group"] else ""
        what = f"{doing} needs a right that {forbidden['user']} does not have."
        why = f"It is to {forbidden['verb']} {forbidden['resource']}{group}{where}."
        fix = "Ask the cluster's administrator for it, or use another namespace (--namespace)."
    elif status == 401:
        what = "The API server does not know who you are (401)."
        fix = "Log in again, and see that `kubectl get pods` works."
    elif not told and status >= 500:
        what = f"{doing} failed: the API server, or what is before it, has a problem ({status})."
    return ApiError(what, why or str(body[:300], "utf-8", "replace"), fix, status=status, reason=reason)


def quota_sentence(message: str) -> str:
    """Which quota has no room for what, where a message is about that; else empty."""
    quota = _QUOTA.search(message)
    if quota is None:
        return ""
    used = f"in use {quota['used']} of {quota['limit']}"
    return f"the quota {quota['quota']} has no room: asked for {quota['asked']}, {used}"


def _status(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) and told.get("kind") == "Status" else {}
