"""The Indexed Job of Kubernetes itself: for clusters without an operator for training."""

from __future__ import annotations

import math
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.manifests import pod
from kfnb.backends.kubernetes.target import Target

CONTAINER = "node"

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def host(id: str) -> str:
    """Pod K of an Indexed Job is called JOB-K, below the service."""
    return f"{id}-0.{id}"


def build(submission: Submission, target: Target) -> list[dict[str, Any]]:
    spec = submission.spec
    template = pod.template(submission, target, CONTAINER, host(submission.id), pod.env(pod.field(INDEX)))
    template["spec"]["subdomain"] = submission.id
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(submission, target.namespace, submission.id),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.JOB: submission.id}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pod.job_metadata(submission, target),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimit": 0,
            # a pod that is drained or preempted is not the cell's failure
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            **({"ttlSecondsAfterFinished": math.ceil(spec.ttl)} if spec.ttl is not None else {}),
            "template": template,
        },
    }
    return [service, job]
