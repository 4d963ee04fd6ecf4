"""A job in a run directory whose worker is a small script of the test, so that every way a worker can end can be had.

The script runs in place of ``kfnb_worker`` with ``plan`` (dict), ``node`` (int), ``folder`` (its node directory, a
Path), ``restart`` (from 0) and ``state(name)``, which writes state.json.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from typing import Any

from kfnb.backends.local import rundir
from kfnb.backends.local.rundir import RunDir
from tests.records import write_record
from tests.waiting import wait_for

_PRELUDE = """
import json, os, pathlib, signal, subprocess, sys, threading, time
plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
node = int(sys.argv[sys.argv.index("--node") + 1])
folder = pathlib.Path(plan["node_dir"].replace("{node}", str(node)))
restart = len(list(folder.glob("*.log"))) - 1
def state(name, ranks=()):
    new = folder / "state.new"
    new.write_text(json.dumps({"attempt": plan["attempt"], "state": name, "ranks": list(ranks), "t": time.time()}))
    new.replace(folder / "state.json")
def lifeline():
    os.read(0, 1)
    os._exit(75)
threading.Thread(target=lifeline, daemon=True).start()
"""


def worker(script: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("__main__.py", _PRELUDE + script)
    return out.getvalue()


def make_run(
    script: str, *, name: str = "job", nodes: int = 1, retries: int = 0, grace: float = 2.0, **local: Any
) -> RunDir:
    """A run directory that is ready for its supervisor."""
    run = rundir.reserve_id(rundir.open_home() / "jobs", name)
    run.nodes.mkdir()
    orders = {"timeout": None, "ttl": None, "until": None, "requirements": "", "gpus": {"per_node": 0, "devices": []}}
    plan = {
        "v": 1,
        "job": run.id,
        "nodes": nodes,
        "procs": 1,
        "attempt": 0,
        "retries": retries,
        "grace": grace,
        "python": sys.executable,
        "workdir": str(run.path.parent),
        "node_dir": str(run.nodes / "{node}"),
        "local": {**orders, **local},
    }
    rundir.write_atomic(run.worker, worker(script))
    rundir.write_json(run.plan, plan)
    rundir.write_json(run.secret, {"token": "t", "env": {}})
    rundir.write_atomic(run.reserve, b"x" * rundir.RESERVE_BYTES)
    write_record(run)
    return run


def supervise(run: RunDir, **environment: str) -> subprocess.Popen[bytes]:
    """Start the supervisor as a client does."""
    lock = rundir.take_lock(run.lock)
    assert lock is not None
    try:
        with open(run.log, "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "kfnb.backends.local.supervisor", str(run.path), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                pass_fds=[lock],
                start_new_session=True,
            )
    finally:
        os.close(lock)


def phases(run: RunDir) -> list[str]:
    """The phases so far, each once in a row."""
    names = [entry["phase"] for entry, _ in rundir.read_phases(run)]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


def last(run: RunDir) -> dict[str, Any]:
    return rundir.last_phase(run) or {"phase": "", "reason": ""}


def wait_phase(run: RunDir, phase: str) -> dict[str, Any]:
    """Wait until the job is in ``phase``, and return that entry."""

    def there() -> dict[str, Any]:
        now = last(run)
        assert now["phase"] == phase or now["phase"] not in rundir.TERMINAL, (now, log_text(run))
        return now if now["phase"] == phase else {}

    return wait_for(there, timeout=60, what=f"{run.id} to be {phase}")


def end(run: RunDir, supervisor: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the supervisor to leave, and return the job's last phase."""
    assert supervisor.wait(timeout=90) == 0, log_text(run)
    entry = last(run)
    assert entry["phase"] in rundir.TERMINAL, (entry, log_text(run))
    return entry


def log_text(run: RunDir) -> str:
    return run.log.read_text() + "".join(path.read_text()[-2000:] for _, _, path in run.logs())


def pids_of(run: RunDir) -> list[int]:
    return [entry["pid"] for entry in (rundir.read_json(run.supervisor) or {}).get("workers", [])]
