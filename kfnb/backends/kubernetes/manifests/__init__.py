"""From a submission to manifests: pure functions, with no client, no clock and no randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfnb.backends.base import Submission
from kfnb.backends.kubernetes.manifests import code, job, pytorchjob, trainjob
from kfnb.backends.kubernetes.target import Kind, Target

#: For each kind: the name by which the other nodes reach node 0, and what is made beside the code.
_BUILDERS: dict[Kind, tuple[Callable[[str], str], Callable[[Submission, Target], list[dict[str, Any]]]]] = {
    "trainjob": (trainjob.host, trainjob.build),
    "pytorchjob": (pytorchjob.host, pytorchjob.build),
    "job": (job.host, job.build),
}


def build(submission: Submission, target: Target, token: str) -> list[dict[str, Any]]:
    """Everything to be created, in that order: the code, the secret, what the job needs beside it, and the job last.

    ``token`` is what the job's own processes know each other by. Raises ``BackendError`` for code that is too large.
    """
    host, make = _BUILDERS[target.kind]
    return [*code.build(submission, target, host(submission.id), token), *make(submission, target)]
