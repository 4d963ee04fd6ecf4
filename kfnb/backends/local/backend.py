"""``LocalBackend``: jobs as run directories of this user on this machine. It keeps no state of its own."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from kfnb.backends.base import JobInfo, Submission
from kfnb.backends.local import gpus, lost, processes, prune, rundir, stored
from kfnb.backends.local.follow import follow
from kfnb.backends.local.plan import build_plan, build_secret
from kfnb.backends.local.recent import recent
from kfnb.backends.local.rundir import RunDir
from kfnb.backends.package import worker_zip
from kfnb.errors import BackendError, NotFound
from kfnb.events import Batch, Cursor, JobEvent, Phase
from kfnb.home import home
from kfnb.record import Record
from kfnb.source import Bundle
from kfnb.spec import TrainSpec

#: Where kfnb and kfnb_worker are imported from. The supervisor has it last on its path: it finds them also where the
#: client had them from its working directory, and shadows nothing.
_ROOT = str(Path(__file__).resolve().parents[3])
_SUPERVISOR = (
    "import sys; sys.path.append(sys.argv[1]); from kfnb.backends.local.supervisor import main; main(*sys.argv[2:])"
)


#: Options that a cluster alone heeds.
_OF_CLUSTERS = ("image", "cpu", "memory", "context", "namespace", "runtime")

#: Bytes that a job takes or keeps free beside its code and the reserves of its nodes.
_ROOM = 3 * 2**19


class LocalBackend:
    """Runs jobs as processes of this machine. See ``kfnb.backends.base.JobBackend``."""

    name = "local"

    async def check(self, spec: TrainSpec) -> builtins.list[str]:
        return await asyncio.to_thread(_check, spec)

    async def new_id(self, name: str) -> str:
        return await asyncio.to_thread(lambda: rundir.reserve_id(rundir.open_home() / "jobs", name).id)

    async def plan(self, submission: Submission) -> str:
        return await asyncio.to_thread(_describe, submission)

    async def submit(self, submission: Submission) -> None:
        await asyncio.to_thread(_submit, submission)

    async def list(self) -> builtins.list[JobInfo]:
        return await asyncio.to_thread(_list)

    async def get(self, id: str) -> JobInfo:
        return await asyncio.to_thread(lambda: _info(rundir.find(id)))

    async def record(self, id: str) -> Record:
        return await asyncio.to_thread(stored.record, rundir.find(id))

    async def bundle(self, id: str) -> Bundle:
        return await asyncio.to_thread(stored.bundle, rundir.find(id))

    async def events(self, id: str, cursor: Cursor | None = None, *, follow: bool = True) -> AsyncIterator[Batch]:
        async for batch in _follow(rundir.find(id), cursor, to_end=follow):
            yield batch

    async def recent(self, id: str) -> builtins.list[JobEvent]:
        return await asyncio.to_thread(recent, rundir.find(id))

    async def stop(self, id: str) -> None:
        await asyncio.to_thread(_stop, rundir.find(id))

    async def delete(self, id: str) -> None:
        await asyncio.to_thread(_delete, rundir.find(id))

    async def stacks(self, id: str) -> str:
        return await asyncio.to_thread(_stacks, rundir.find(id))

    async def results(self, id: str) -> Path | None:
        folder = rundir.find(id).results
        return folder if await asyncio.to_thread(lambda: folder.is_dir() and any(folder.iterdir())) else None


_follow = follow  # the methods' parameter of the same name hides it


def _check(spec: TrainSpec) -> list[str]:
    rundir.open_home()
    there = gpus.visible()
    gpus.check(spec.nodes, spec.gpus, there)
    notes = []
    if there and not spec.gpus:
        count = f"{len(there)} GPU{'s' if len(there) > 1 else ''}"
        notes.append(f"This machine has {count}; the job uses none unless it asks with --gpus.")
    unused = [f"--{name}" for name in _OF_CLUSTERS if getattr(spec, name) is not None]
    if unused:
        notes.append(f"{', '.join(unused)}: without effect on this machine; the job runs in this Python environment.")
    return notes


# --- submission ----------------------------------------------------------------------------------------------------


def _submit(submission: Submission) -> None:
    run = RunDir(rundir.open_home() / "jobs" / submission.id)
    try:
        lock = rundir.take_lock(run.lock)
        if lock is None:
            raise BackendError(f"{run.id} was submitted already.")
        try:
            _check_room(submission, run)
            _write(submission, run)
            _start(run, lock)
        finally:
            os.close(lock)  # the supervisor holds it on
    except OSError as error:
        rundir.remove(run)
        raise BackendError(
            f"{run.id} could not be started",
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            f"Nothing was started. See that {home()} can be written to and its disk has room (`kfnb prune`).",
        ) from None
    except BaseException:
        rundir.remove(run)
        raise


def _check_room(submission: Submission, run: RunDir) -> None:
    """Refuse a job that would fill the disk before it has begun."""
    needed = len(submission.bundle.data) + submission.spec.nodes * rundir.NODE_RESERVE_BYTES + _ROOM
    free = rundir.free(run.path)
    if free < needed:
        raise BackendError(
            f"{run.id} could not be started",
            f"The disk that holds {home()} has {free / 2**20:.1f} MiB free, and the job needs {needed / 2**20:.1f} MiB "
            "to begin with.",
            "Nothing was started. Make room (`kfnb prune` removes old jobs), or set KFNB_HOME to another disk.",
        )


def _write(submission: Submission, run: RunDir) -> None:
    for own in (run.nodes, run.logdir, run.checkpoints, run.results):
        own.mkdir(mode=0o700)
    plan = build_plan(submission, run, gpus.visible())
    for folder in (plan["workdir"], plan["logdir"], plan["checkpoints"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    rundir.write_atomic(run.bundle, submission.bundle.data)
    rundir.write_atomic(run.worker, worker_zip())
    rundir.write_json(run.secret, build_secret(submission))
    rundir.write_json(run.plan, plan)
    rundir.write_reserve(run.reserve, rundir.RESERVE_BYTES)
    rundir.append_phase(run, "Submitting", "")
    # last: a directory with a record is a job
    rundir.write_atomic(run.record, submission.record.model_dump_json(indent=1).encode())


def _start(run: RunDir, lock: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
    environment["KFNB_HOME"] = str(home())  # whatever it was relative to
    if environment.get("MPLBACKEND", "").startswith("module://"):
        del environment["MPLBACKEND"]  # the kernel's own, which draws into a notebook that the ranks do not have
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISOR, _ROOT, str(run.path), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=run.path,
            pass_fds=[lock],
            start_new_session=True,
        )
    finally:
        os.close(log)
    # collects its exit status while this process lives; it needs nothing else from here
    threading.Thread(target=process.wait, name=f"kfnb-{run.id}", daemon=True).start()


def _describe(submission: Submission) -> str:
    """A dry run: what would be started, with names in place of secret values."""
    spec = submission.spec
    run = RunDir(home() / "jobs" / submission.id)
    plan = build_plan(submission, run, gpus.visible())
    lines = [
        f"{run.id}: {spec.nodes} x {spec.procs} ranks of {plan['python']} on this machine, in {plan['workdir']}",
        f"Run directory: {run.path}",
    ]
    if submission.secret_env:
        lines.append(f"Copied from the environment (secret): {', '.join(sorted(submission.secret_env))}")
    return "\n".join([*lines, "Plan:", json.dumps(plan, indent=2)])


# --- looking -------------------------------------------------------------------------------------------------------


def _list() -> list[JobInfo]:
    prune.remove_expired()
    infos = []
    for run in rundir.jobs():
        try:
            infos.append(_info(run))
        except NotFound:  # deleted while we looked
            continue
        except BackendError as error:
            infos.append(_unreadable_info(run, error))
    return sorted(infos, key=lambda info: info.created, reverse=True)


def _info(run: RunDir) -> JobInfo:
    last = lost.present_phase(run)
    record = stored.record(run)
    times = [(entry["phase"], float(entry["t"])) for entry, _ in rundir.read_phases(run)]
    phase = Phase(last["phase"])
    return JobInfo(
        id=run.id,
        name=run.id.rpartition("-")[0],
        backend=LocalBackend.name,
        phase=phase,
        reason=last["reason"],
        created=record.created,
        started=next((t for name, t in times if name == "Running"), None),
        ended=float(last["t"]) if phase.terminal else None,
        nodes=record.spec.nodes,
        procs=record.spec.procs,
        gpus=record.spec.gpus,
        attempt=last["a"],
        owner=record.owner,
    )


def _unreadable_info(run: RunDir, error: BackendError) -> JobInfo:
    """A job of which too little is known to show it, and which is listed so that it can be stopped and deleted."""
    phase = Phase(lost.present_phase(run)["phase"])
    try:
        written = run.record.stat().st_mtime
    except OSError:
        written = 0.0
    return JobInfo(
        id=run.id,
        name=run.id.rpartition("-")[0],
        backend=LocalBackend.name,
        phase=Phase.LOST if phase.terminal else phase,
        reason=f"{error.what} {error.why}",
        created=written,
        started=None,
        ended=written if phase.terminal else None,
        nodes=0,
        procs=0,
        gpus=0,
    )


# --- asking --------------------------------------------------------------------------------------------------------


def _stop(run: RunDir) -> None:
    if lost.present_phase(run)["phase"] in rundir.TERMINAL:
        return
    try:
        rundir.write_json(run.stop, {"reason": "It was stopped on request.", "t": time.time()})
    except OSError as error:  # a full disk: the signal alone says it
        print(f"kfnb: {error}", file=sys.stderr)
    who = rundir.read_json(run.supervisor) or {}
    supervisor = processes.find(who.get("pid"), who.get("started"))
    if supervisor is not None:
        supervisor.send_signal(signal.SIGTERM)  # so that it looks at once


def _delete(run: RunDir) -> None:
    phase = lost.present_phase(run)["phase"]
    if phase not in rundir.TERMINAL:
        raise BackendError(f"{run.id} is not deleted: it is {phase}.", fix=f"`%kfstop {run.id}` first.")
    deadline = time.monotonic() + 10
    while rundir.is_locked(run.lock):  # its supervisor is on its way out
        if time.monotonic() > deadline:
            raise BackendError(
                f"{run.id} is not deleted: its supervisor has not left yet.", fix="Try again in a moment."
            )
        time.sleep(0.05)
    try:
        rundir.remove(run)
    except FileNotFoundError:  # by another client, just now
        return
    except OSError as error:
        raise BackendError(
            f"{run.id} is not deleted.", f"{error.strerror or error}: {run.path}", f"See that {home()} can be written."
        ) from None


def _stacks(run: RunDir) -> str:
    """Ask the coordinator; the ranks' answers come through their logs."""
    request = secrets.token_hex(4)
    where, secret = rundir.read_json(run.coordinator), rundir.read_json(run.secret)
    try:
        if where is None or secret is None:
            raise OSError("its ranks are not running")
        with socket.create_connection((str(where["host"]), int(where["port"])), timeout=5) as connection:
            question = {"op": "stacks", "request": request, "token": secret["token"]}
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline(65536) or b"{}")
        if answer.get("ok") is not True:
            raise OSError(str(answer.get("error") or "no answer"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BackendError(
            f"{run.id} cannot be asked for its stacks",
            f"{error}",
            "It can while its ranks run; try again in a moment.",
        ) from None
    return request
