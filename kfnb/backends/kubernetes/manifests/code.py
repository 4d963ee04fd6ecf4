"""What a job is given beside its pods: its code in ConfigMaps, and in a Secret what nobody else is to read."""

from __future__ import annotations

import base64
import json
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.target import Target
from kfnb.backends.package import worker_zip
from kfnb.errors import BackendError
from kfnb.source.bundle import size_text

#: Bytes of all code and values together, and of what one ConfigMap holds (the API server's limit is 1 MiB with base64).
LIMIT, MAP_BYTES = 16 << 20, 700 << 10

#: The port at which node 0 coordinates the others.
PORT = 29400

_REQUIREMENTS = "_kfnb/requirements.txt"


def build(submission: Submission, target: Target, host: str, token: str) -> list[dict[str, Any]]:
    """The ConfigMaps and the Secret. ``host`` is the name by which the other nodes reach node 0.

    Where the user may not make Secrets, a ConfigMap has what the job's nodes know each other by, and nothing else.
    """
    data = submission.bundle.data
    if len(data) > LIMIT:
        raise BackendError(
            f"{submission.id} was not submitted: its code and values take {size_text(len(data))}.",
            f"By way of ConfigMaps at most {size_text(LIMIT)} travel to a cluster.",
            "Ship less: leave large values out of --use, and have the job read them from where it finds them.",
        )
    worker = worker_zip()
    text = {"pod.json": _json(plan(submission, host)), "record.json": submission.record.model_dump_json(indent=1)}
    maps: list[dict[str, Any]] = []
    room = MAP_BYTES - len(worker) - sum(len(content.encode()) for content in text.values())
    binary = {"worker.zip": _base64(worker)}
    for index, start in enumerate(_starts(len(data), max(room, 0))):
        end = min(start + (room if index == 0 else MAP_BYTES), len(data))
        binary[f"bundle-{index:04d}"] = _base64(data[start:end])
        name = names.code_map(submission.id, index)
        maps.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": names.metadata(submission, target.namespace, name),
                **({"data": text} if index == 0 else {}),
                "binaryData": binary,
            }
        )
        binary = {}
    return [*maps, _secret(submission, target, token)]


def _secret(submission: Submission, target: Target, token: str) -> dict[str, Any]:
    metadata = names.metadata(submission, target.namespace, names.secret(submission.id))
    content = _json({"token": token, "env": submission.secret_env})
    if target.secrets:
        data = {"secret.json": _base64(content.encode())}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    assert not submission.secret_env
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"secret.json": content}}


def count(submission: Submission, host: str) -> int:
    """How many ConfigMaps ``build`` makes."""
    head = len(worker_zip()) + len(_json(plan(submission, host)).encode())
    head += len(submission.record.model_dump_json(indent=1).encode())
    return len(_starts(len(submission.bundle.data), max(MAP_BYTES - head, 0)))


def plan(submission: Submission, host: str) -> dict[str, Any]:
    """``pod.json``: the worker's plan, as far as all nodes share it. No secret value is in it."""
    spec = submission.spec
    return {
        "v": 1,
        "job": submission.id,
        "nodes": spec.nodes,
        "procs": spec.procs,
        "framework": spec.framework,
        "attempt": 0,
        "retries": spec.retries,
        "timeout": spec.timeout,
        "grace": spec.grace,
        "args": list(spec.args),
        "env": spec.env_values,
        "precision": spec.precision,
        "bundle_sha256": submission.record.bundle_sha256,
        "coordinator": {"host": host, "port": PORT},
        "keep_checkpoints": spec.keep_checkpoints,
        "results_in_log": True,
    }


def _starts(size: int, first: int) -> list[int]:
    """Where the slices of ``size`` bytes begin; the first is ``first`` bytes long, and there is always one."""
    return [0, *range(first, size, MAP_BYTES)] if size > first else [0]


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
