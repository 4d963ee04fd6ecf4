"""From a submission to manifests: pure functions, with no client, no clock and no randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes.manifests import code, job, pytorchjob, trainjob
from kfnb.backends.kubernetes.target import Kind, Target

_BUILDERS: dict[Kind, Callable[[Submission, Target], list[dict[str, Any]]]] = {
    "trainjob": trainjob.build,
    "pytorchjob": pytorchjob.build,
    "job": job.build,
}


def build(submission: Submission, target: Target, token: str) -> list[dict[str, Any]]:
    """Everything to be created, in that order: the code, the secret, what the job needs beside it, and the job last.

    ``token`` is what the job's own processes know each other by. Raises ``BackendError`` for code that is too large.
    """
    host = {
        "trainjob": trainjob.host,
        "pytorchjob": pytorchjob.host,
        "job": job.host,
    }[target.kind](submission.id)
    return [*code.build(submission, target, host, token), *_BUILDERS[target.kind](submission, target)]
