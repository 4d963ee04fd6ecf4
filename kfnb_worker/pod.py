"""The worker of a pod: puts together what is mounted there, and runs the node that the pod is.

Mounted are, below ``/kfnb``, ``code/`` (the parts of the bundle, this zip and ``pod.json``: the plan that all nodes
share), ``secret/secret.json`` and ``run/``, which is the pod's own and outlives its container.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Dict, List, Optional

from kfnb_worker import wire
from kfnb_worker.files import read_json
from kfnb_worker.launcher import EXITS, Worker

#: Where Kubernetes reads a container's last words; the folder above is there in every container.
TERMINATION_LOG = "/dev/termination-log"


def main(arguments: List[str]) -> int:
    """Run the pod's node; the exit code of its worker."""
    root = os.environ.get("KFNB_POD_ROOT", "/kfnb")
    node = node_number(os.environ)
    run = os.path.join(root, "run")
    plan = make_plan(read_json(os.path.join(root, "code", "pod.json")), root, node)
    last_words = os.path.join(plan["node_dir"], "termination.json")
    if os.path.exists(last_words):
        return _ended_before(last_words)
    for folder in ("work", "home", "tmp", plan["node_dir"], plan["logdir"], plan["checkpoints"], plan["results"]):
        os.makedirs(os.path.join(run, folder), exist_ok=True)
    _join_parts(os.path.join(root, "code"), plan["bundle"])
    if not os.access(os.environ.get("HOME", ""), os.W_OK):  # a user of any number has none
        os.environ["HOME"] = os.path.join(run, "home")
    if not os.access(os.environ.get("TMPDIR", "/tmp"), os.W_OK):  # a root file system that is read-only
        os.environ["TMPDIR"] = os.path.join(run, "tmp")
    code = Worker(plan, node).run()
    _say_last_words(last_words)
    return code


def node_number(environ: Any) -> int:
    """The pod's node: its index among its kind of pods, after as many of another kind."""
    return int(environ["KFNB_NODE_INDEX"]) + int(environ.get("KFNB_NODE_OFFSET", "0"))


def make_plan(common: Dict[str, Any], root: str, node: int) -> Dict[str, Any]:
    """``pod.json`` with the paths of this pod."""
    run = os.path.join(root, "run")
    return {
        **common,
        "bundle": os.path.join(run, "bundle.zip"),
        "secret": os.path.join(root, "secret", "secret.json"),
        "python": common.get("python") or sys.executable,
        "workdir": os.path.join(run, "work"),
        "node_dir": os.path.join(run, "node-%d" % node),
        "logdir": os.path.join(run, "logdir"),
        "checkpoints": os.path.join(run, "checkpoints"),
        "results": os.path.join(run, "results"),
        "devices": None,
    }


def _join_parts(code: str, bundle: str) -> None:
    """The bundle travels in slices, since a ConfigMap holds 1 MiB."""
    with open(bundle, "wb") as whole:
        for name in sorted(name for name in os.listdir(code) if name.startswith("bundle-")):
            with open(os.path.join(code, name), "rb") as part:
                whole.write(part.read())


def _ended_before(last_words: str) -> int:
    """This container was started again, where the node had come to its end: the cell is not run a second time."""
    ended = read_json(last_words)
    text = "this container was started again after its worker had ended (%s); the cell is not run again"
    told = os.stat(last_words).st_mtime
    record = {"e": "note", "level": "info", "text": text % ended["outcome"], "t": told}
    sys.stdout.buffer.write(b"".join(wire.frame_record(0, record)))
    sys.stdout.flush()
    _say_last_words(last_words)
    return EXITS.get(ended["outcome"], 1)


def _say_last_words(last_words: str) -> Optional[int]:
    """A mounted file cannot be replaced, as ``write_json`` does it; what cannot be written is in the log as well."""
    with suppress(OSError), open(last_words, "rb") as source, open(
        os.environ.get("KFNB_TERMINATION_LOG", TERMINATION_LOG), "wb", buffering=0
    ) as target:
        return target.write(source.read())
    return None
