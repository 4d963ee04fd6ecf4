"""What a submission becomes on this machine: the worker's plan, and under "local" the supervisor's orders."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.local.gpus import Gpu
from kfnb.backends.local.rundir import RunDir

_REQUIREMENTS = "_kfnb/requirements.txt"


def build_plan(submission: Submission, run: RunDir, gpus: list[Gpu]) -> dict[str, Any]:
    """plan.json. A pure function; no value that was copied from the user's environment is in it."""
    spec, record = submission.spec, submission.record
    workdir = Path(record.workdir)
    return {
        "v": 1,
        "job": submission.id,
        "nodes": spec.nodes,
        "procs": spec.procs,
        "framework": spec.framework,
        "attempt": 0,
        "retries": spec.retries,
        "grace": spec.grace,
        "args": list(spec.args),
        "env": spec.env_values,
        "precision": spec.precision,
        "bundle": str(run.bundle),
        "bundle_sha256": record.bundle_sha256,
        "secret": str(run.secret),
        "coordinator": {"host": "127.0.0.1", "port": 0, "file": str(run.coordinator)},
        "python": sys.executable,
        "workdir": str(workdir / spec.workspace if spec.workspace else workdir),
        "node_dir": str(run.nodes / "{node}"),
        "logdir": str(workdir / spec.logdir if spec.logdir else run.logdir),
        "checkpoints": str(workdir / spec.checkpoint if spec.checkpoint else run.checkpoints),
        "results": str(run.results),
        "keep_checkpoints": spec.keep_checkpoints,
        "devices": None,
        "local": {
            "timeout": spec.timeout,
            "ttl": spec.ttl,
            "until": list(submission.until) if submission.until else None,
            "requirements": submission.bundle.files.get(_REQUIREMENTS, b"").decode(),
            "gpus": {"per_node": spec.gpus, "devices": [[gpu.name, gpu.key] for gpu in gpus]},
        },
    }


def build_secret(submission: Submission) -> dict[str, Any]:
    """secret.json: what only the job's own processes read."""
    return {"token": secrets.token_hex(32), "env": submission.secret_env}
