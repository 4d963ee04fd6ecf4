"""TrainJob of Kubeflow Trainer: a runtime of the cluster, and what this job changes of its pods."""

from __future__ import annotations

from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.manifests import pod
from kfnb.backends.kubernetes.target import Target

#: The replicated job and the container that a runtime for training has.
NODE = "node"

#: Trainer's jobs are Indexed ones.
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def host(id: str) -> str:
    """Node 0 of the JobSet that Trainer makes, below the JobSet's service."""
    return f"{id}-{NODE}-0-0.{id}"


def build(submission: Submission, target: Target) -> list[dict[str, Any]]:
    assert target.runtime is not None
    spec = submission.spec
    asked = pod.resources(submission)
    trainer = {
        "numNodes": spec.nodes,
        "numProcPerNode": spec.procs,
        **({"image": target.image} if target.image is not None else {}),
        "command": list(pod.COMMAND),
        "env": pod.env(pod.field(INDEX)),
        **({"resourcesPerNode": asked} if asked else {}),
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pod.job_metadata(submission, target),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": target.runtime.kind,
                "name": target.runtime.name,
            },
            "trainer": trainer,
            target.patches: [
                _patch(submission, target) if target.patches == "runtimePatches" else _override(submission, target)
            ],
        },
    }
    return [job]


def _pod_changes(submission: Submission, target: Target) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": pod.grace(submission),
        "volumes": pod.volumes(submission, target, host(submission.id)),
        "containers": [{"name": NODE, "volumeMounts": pod.mounts()}],
    }


def _patch(submission: Submission, target: Target) -> dict[str, Any]:
    """Trainer 2.2 and newer."""
    changes = {"metadata": pod.metadata(submission), "spec": _pod_changes(submission, target)}
    replicated = [{"name": NODE, "template": {"spec": {"template": changes}}}]
    return {
        "manager": names.MANAGER,
        "trainingRuntimeSpec": {
            "template": {"metadata": {"labels": names.labels(submission)}, "spec": {"replicatedJobs": replicated}}
        },
    }


def _override(submission: Submission, target: Target) -> dict[str, Any]:
    """Trainer 2.1."""
    return {
        "targetJobs": [{"name": NODE}],
        "metadata": pod.metadata(submission),
        "spec": _pod_changes(submission, target),
    }
