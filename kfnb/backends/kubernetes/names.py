"""The names, labels and annotations of what kfnb makes on a cluster."""

from __future__ import annotations

import re
from typing import Any

from kfnb.backends.base import Submission

MANAGED_BY = "app.kubernetes.io/managed-by"
JOB, NAME, OWNER = "kfnb.dev/job", "kfnb.dev/name", "kfnb.dev/owner"

#: Annotations of the job's object: the spec as JSON, what a list shows of it, when its stop was asked for, and the last
#: words of the worker that ended it in failure.
SPEC, SUMMARY, STOPPED, FAILED = "kfnb.dev/spec", "kfnb.dev/summary", "kfnb.dev/stopped", "kfnb.dev/failed"

#: The manager of a TrainJob's patches.
MANAGER = "kfnb.dev/kfnb"

_NO_LABEL = re.compile(r"[^-_.A-Za-z0-9]+")


def label_value(text: str) -> str:
    """As much of ``text`` as a label's value can hold: 63 of ``[-_.A-Za-z0-9]``, alphanumeric at both ends."""
    return _NO_LABEL.sub("-", text)[:63].strip("-_.")


def labels(submission: Submission) -> dict[str, str]:
    """The labels of everything that belongs to the job."""
    return {
        MANAGED_BY: "kfnb",
        JOB: submission.id,
        NAME: submission.spec.name,
        OWNER: label_value(submission.record.owner),
    }


def code_map(id: str, index: int) -> str:
    """The ``index``-th ConfigMap with a job's code."""
    return f"{id}-code-{index}"


def secret(id: str) -> str:
    return f"{id}-secret"


def metadata(submission: Submission, namespace: str, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "labels": labels(submission)}
