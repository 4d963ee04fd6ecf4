"""PyTorchJob of the Training Operator: one master, which is node 0, and the other nodes as its workers."""

from __future__ import annotations

import math
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes.manifests import pod
from kfnb.backends.kubernetes.target import Target

#: What the operator wants the container to be called.
CONTAINER = "pytorch"

INDEX = "metadata.labels['training.kubeflow.org/replica-index']"


def host(id: str) -> str:
    """The operator makes a service for each pod."""
    return f"{id}-master-0"


def build(submission: Submission, target: Target) -> list[dict[str, Any]]:
    spec = submission.spec

    def replicas(count: int, offset: int) -> dict[str, Any]:
        environment = pod.env(pod.field(INDEX), offset)
        template = pod.template(submission, target, CONTAINER, host(submission.id), environment)
        del template["spec"]["restartPolicy"]  # it is the replicas'
        return {"replicas": count, "restartPolicy": "Never", "template": template}

    specs = {"Master": replicas(1, 0), **({"Worker": replicas(spec.nodes - 1, 1)} if spec.nodes > 1 else {})}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": pod.job_metadata(submission, target),
        "spec": {
            "runPolicy": {
                # the others still say their last words when the master has ended
                "cleanPodPolicy": "None",
                "backoffLimit": 0,
                **({"ttlSecondsAfterFinished": math.ceil(spec.ttl)} if spec.ttl is not None else {}),
            },
            "pytorchReplicaSpecs": specs,
        },
    }
    return [job]
