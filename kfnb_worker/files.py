"""The small JSON files of a node: its plan, its state, and how it ended."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, Dict, Optional

from kfnb_worker import wire

TERMINATION_BYTES = 4096


def told_outcome(outcome: str) -> str:
    """The outcome as clients know it: a job whose node was lost has failed, as far as this worker can tell."""
    return "failed" if outcome == "lost" else outcome


def write_termination(path: str, outcome: str, failure: Optional[Dict[str, Any]]) -> None:
    """At most 4096 bytes: what Kubernetes keeps of a container's termination message."""
    content = {**(failure or {}), "outcome": told_outcome(outcome)}
    message, trace = str(content.get("message", "")), str(content.get("traceback", ""))
    while len(wire.dump(content)) > TERMINATION_BYTES:
        if len(trace) > len(message):
            trace = trace[len(trace) // 4 + 1 :]  # the end of a traceback says most
            content["traceback"] = "..." + trace
        else:
            message = message[: len(message) * 3 // 4]
            content["message"] = message
    write_json(path, content)


def private_directory() -> str:
    """A new directory of this user alone, with a path short enough for a Unix socket (some 100 bytes)."""
    for parent in (os.environ.get("TMPDIR"), "/tmp", "/dev/shm", os.getcwd()):
        if parent and len(parent) < 60:
            with suppress(OSError):
                path = os.path.join(parent, "kfnb-" + os.urandom(6).hex())
                os.mkdir(path, 0o700)
                return path
    raise OSError("no directory for temporary files can be written to: set TMPDIR to one with a short path")


def read_json(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as source:
        content: Dict[str, Any] = json.load(source)
    return content


def write_json(path: str, content: Dict[str, Any]) -> None:
    """Whole or not at all; a full disk is no reason to stop."""
    with suppress(OSError):
        write_whole(path, content)


def write_whole(path: str, content: Dict[str, Any]) -> None:
    """A 0600 file that is there whole or not at all, and leaves nothing else. Raises ``OSError``."""
    new = path + ".new"
    try:
        with open(new, "wb", opener=_private) as out:
            out.write(wire.dump(content))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
