"""The pod of a node, as far as it is the same in every kind of job."""

from __future__ import annotations

import json
import math
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.manifests import code
from kfnb.backends.kubernetes.target import Target

#: Seconds that a pod has to end, beyond the grace of its ranks.
LEAVE = 10

GPU = "nvidia.com/gpu"

#: A sidecar of a service mesh would keep the pod, and with it the job, from ending.
ANNOTATIONS = {"sidecar.istio.io/inject": "false"}

COMMAND = ["python3", "-u", "/kfnb/code/worker.zip", "--pod"]


def env(number: dict[str, Any], offset: int = 0) -> list[dict[str, Any]]:
    """How the pod knows its node: ``number`` is the EnvVar's source of its index, ``offset`` is added to it."""
    found: list[dict[str, Any]] = [{"name": "KFNB_NODE_INDEX", **number}]
    return [*found, {"name": "KFNB_NODE_OFFSET", "value": str(offset)}] if offset else found


def field(path: str) -> dict[str, Any]:
    """A pod's own field as an EnvVar's source."""
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def resources(submission: Submission) -> dict[str, Any]:
    """What a node asks for; memory and GPUs are its limits too, CPUs are not: a limit on them only slows."""
    spec = submission.spec
    limits = {
        **({"memory": spec.memory} if spec.memory is not None else {}),
        **({GPU: str(spec.gpus)} if spec.gpus else {}),
    }
    requests = {**({"cpu": spec.cpu} if spec.cpu is not None else {}), **limits}
    return {**({"limits": limits} if limits else {}), **({"requests": requests} if requests else {})}


def mounts() -> list[dict[str, Any]]:
    return [
        {"name": "kfnb-code", "mountPath": "/kfnb/code", "readOnly": True},
        {"name": "kfnb-secret", "mountPath": "/kfnb/secret", "readOnly": True},
        {"name": "kfnb-run", "mountPath": "/kfnb/run"},
        {"name": "kfnb-shm", "mountPath": "/dev/shm"},
    ]


def volumes(submission: Submission, target: Target, host: str) -> list[dict[str, Any]]:
    """The code, the secret, the pod's own folder, and shared memory as large as the node's."""
    maps = [
        {"configMap": {"name": names.code_map(submission.id, index)}} for index in range(code.count(submission, host))
    ]
    secret = names.secret(submission.id)
    source = {"secret": {"secretName": secret}} if target.secrets else {"configMap": {"name": secret}}
    return [
        {"name": "kfnb-code", "projected": {"sources": maps}},
        {"name": "kfnb-secret", **source},
        {"name": "kfnb-run", "emptyDir": {}},
        {"name": "kfnb-shm", "emptyDir": {"medium": "Memory"}},
    ]


def grace(submission: Submission) -> int:
    return math.ceil(submission.spec.grace) + LEAVE


def metadata(submission: Submission) -> dict[str, Any]:
    return {"labels": names.labels(submission), "annotations": dict(ANNOTATIONS)}


def template(
    submission: Submission, target: Target, container: str, host: str, environment: list[dict[str, Any]]
) -> dict[str, Any]:
    """A whole pod template, for the kinds that take one."""
    asked = resources(submission)
    main = {
        "name": container,
        "image": target.image,
        "command": list(COMMAND),
        "env": environment,
        **({"resources": asked} if asked else {}),
        "volumeMounts": mounts(),
    }
    return {
        "metadata": metadata(submission),
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace(submission),
            "containers": [main],
            "volumes": volumes(submission, target, host),
        },
    }


def job_metadata(submission: Submission, target: Target) -> dict[str, Any]:
    """The metadata of the job's own object: what a list shows, and what a repeat needs."""
    spec, first_line = submission.spec, submission.record.first_line
    summary = {"nodes": spec.nodes, "procs": spec.procs, "gpus": spec.gpus, "first_line": first_line}
    return {
        **names.metadata(submission, target.namespace, submission.id),
        "annotations": {names.SPEC: spec.model_dump_json(), names.SUMMARY: json.dumps(summary)},
    }
