"""A run directory in which anything may lie: it harms no other job, hangs nobody, and can be deleted."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfnb.backends.local import LocalBackend, prune, rundir
from kfnb.backends.local.processes import boot
from kfnb.backends.local.rundir import RunDir
from kfnb.errors import KfnbError, NotFound
from kfnb.events import Phase, PhaseChanged
from tests.records import write_record

Damage = Callable[[RunDir], None]


def make_run(name: str = "job") -> RunDir:
    run = rundir.reserve_id(rundir.open_home() / "jobs", name)
    run.node(0).mkdir(parents=True)
    write_record(run)
    rundir.write_json(run.plan, {"local": {"ttl": None}})
    rundir.append_phase(run, "Running", "")
    rundir.append_phase(run, "Succeeded", "")
    return run


def written(name: str, content: str | bytes) -> Damage:
    def damage(run: RunDir) -> None:
        (run.path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def edited(**fields: Any) -> Damage:
    def damage(run: RunDir) -> None:
        record = json.loads(run.record.read_text())
        run.record.write_text(json.dumps({**record, **fields}))

    return damage


def folder(name: str) -> Damage:
    def damage(run: RunDir) -> None:
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).mkdir()

    return damage


def pipe(name: str) -> Damage:
    def damage(run: RunDir) -> None:
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)

    return damage


RUNNING = b'{"t":1,"phase":"Running","reason":"","a":0}\n'
MINE = {"host": socket.gethostname(), "boot": boot()}

RECORDS: dict[str, Damage] = {
    "empty": written("record.json", ""),
    "torn": written("record.json", '{"id": "x'),
    "object": written("record.json", "{}"),
    "list": written("record.json", "[]"),
    "bytes": written("record.json", b"\xff\xfe"),
    "deep": written("record.json", "[" * 100_000),
    "created": edited(created="x"),
    "created far": edited(created=1e300),
    "created nan": edited(created=float("nan")),
    "spec": edited(spec={"nodes": "x"}),
    "spec of a newer version": edited(spec={"version": 9}),
    "option of a newer version": edited(spec={"new": 1}),
    "newer version": edited(version=2),
    "first_line": edited(first_line=None),
    "first_line low": edited(first_line=-3),
    "workdir": edited(workdir="a\0"),
}

OTHERS: dict[str, Damage] = {
    "plan": written("plan.json", "x"),
    "plan deep": written("plan.json", "[" * 100_000),
    "plan types": written("plan.json", '{"nodes": "x", "local": 3}'),
    "ttl nan": written("plan.json", '{"local": {"ttl": NaN}}'),
    "plan pipe": pipe("plan.json"),
    "phases": written("phases.jsonl", b"\x00\x01\n{}\n[]\n" + b"[" * 100_000 + b"\n"),
    "phases missing": lambda run: run.phases.unlink(),
    "phases folder": folder("phases.jsonl"),
    "phases pipe": pipe("phases.jsonl"),
    "phase without a time": written("phases.jsonl", '{"phase":"Succeeded"}\n'),
    "phase of no name": written("phases.jsonl", '{"t":1,"phase":["Foo"]}\n'),
    "phase of a newer version": written("phases.jsonl", '{"t":1,"phase":"Foo","reason":"","a":0}\n'),
    "phase types": written("phases.jsonl", '{"t":"x","phase":"Succeeded","reason":3,"a":"y"}\n'),
    "phase far": written("phases.jsonl", '{"t":1e999,"phase":"Succeeded","reason":"","a":0}\n'),
    "phase attempt": written("phases.jsonl", '{"t":1,"phase":"Failed","reason":[],"a":1e999,"failure":[1]}\n'),
    "phase failure": written(
        "phases.jsonl",
        '{"t":1,"phase":"Failed","a":0,"failure":{"source":"supervisor","kind":1,"r":1e999,"line":"x","t":[]}}\n',
    ),
    "supervisor": lambda run: (
        written("phases.jsonl", RUNNING)(run),
        written("supervisor.json", json.dumps({**MINE, "pid": "x", "workers": 7}))(run),
    )[0],
    "workers": lambda run: (
        written("phases.jsonl", RUNNING)(run),
        written("supervisor.json", json.dumps({**MINE, "pid": 1 << 80, "workers": [1, {"pid": 1 << 80}]}))(run),
        written("nodes/0/state.json", '{"ranks": 3}')(run),
    )[0],
    "log folder": folder("nodes/0/0.log"),
    "log pipe": pipe("nodes/0/0.log"),
    "node names": lambda run: (
        folder("nodes/²")(run),
        written("nodes/²/1.log", "x")(run),
        written("nodes/0/³.log", "x")(run),
        written(f"nodes/0/{'9' * 200}.log", "x")(run),
    )[0],
    "lock folder": folder("supervisor.lock"),
    "lock pipe": pipe("supervisor.lock"),
    "judge": lambda run: (written("phases.jsonl", RUNNING)(run), folder("judge.lock")(run))[0],
    "secret folder": lambda run: (written("phases.jsonl", RUNNING)(run), folder("secret.json")(run))[0],
    "log of the supervisor": lambda run: (written("phases.jsonl", RUNNING)(run), folder("supervisor.log")(run))[0],
}


async def events(backend: LocalBackend, id: str) -> list[object]:
    return [event async for batch in backend.events(id) for event in batch.events]


@pytest.mark.parametrize("name", RECORDS)
async def test_a_record_that_cannot_be_read(name: str) -> None:
    backend, run, other = LocalBackend(), make_run("damaged"), make_run("other")
    RECORDS[name](run)
    infos = {info.id: info for info in await backend.list()}
    assert infos[other.id].phase is Phase.SUCCEEDED
    assert infos[run.id].phase is Phase.LOST
    assert "record cannot be read" in infos[run.id].reason
    for ask in (backend.get(run.id), backend.record(run.id), events(backend, run.id)):
        with pytest.raises(KfnbError, match="record cannot be read") as caught:
            await ask
        assert caught.value.why
        assert run.id in caught.value.fix
    await backend.delete(run.id)
    assert [info.id for info in await backend.list()] == [other.id]


@pytest.mark.parametrize("name", OTHERS)
async def test_the_rest_of_a_directory_that_cannot_be_read(name: str) -> None:
    backend, run, other = LocalBackend(), make_run("damaged"), make_run("other")
    OTHERS[name](run)
    infos = {info.id: info for info in await backend.list()}
    assert infos[other.id].phase is Phase.SUCCEEDED
    assert infos[run.id].phase.terminal
    last = (await asyncio.wait_for(events(backend, run.id), 60))[-1]
    assert isinstance(last, PhaseChanged)
    assert last.phase is infos[run.id].phase
    assert (await backend.record(run.id)).id == run.id
    with pytest.raises(KfnbError, match="code cannot be read"):
        await backend.bundle(run.id)
    await backend.stop(run.id)
    with pytest.raises(KfnbError):
        await backend.stacks(run.id)
    prune.prune(max_age=math.inf)
    await backend.delete(run.id)
    assert [info.id for info in await backend.list()] == [other.id]


async def test_a_running_job_whose_record_is_damaged_is_not_deleted() -> None:
    backend, run = LocalBackend(), make_run()
    written("phases.jsonl", RUNNING)(run)
    written("record.json", "{}")(run)
    lock = rundir.take_lock(run.lock)
    assert lock is not None
    assert [info.phase for info in await backend.list()] == [Phase.RUNNING]
    with pytest.raises(KfnbError, match="not deleted"):
        await backend.delete(run.id)
    os.close(lock)


@pytest.mark.parametrize("content", [b"", b"PK junk"])
async def test_a_bundle_that_cannot_be_read(content: bytes) -> None:
    backend, run = LocalBackend(), make_run()
    run.bundle.write_bytes(content)
    with pytest.raises(KfnbError, match="cannot be read"):
        await backend.bundle(run.id)


async def test_what_is_not_named_like_a_job_is_none(home: Path) -> None:
    run = make_run()
    for name in ("Not a job", "x", "job-ABCDE", os.fsdecode(b"job-\xff\xff\xff\xff\xff")):
        (home / "jobs" / name).mkdir()
        (home / "jobs" / name / "record.json").write_bytes(run.record.read_bytes())
    assert [info.id for info in await LocalBackend().list()] == [run.id]
    for id in ("x", "job-\0aaaa", "../jobs"):
        with pytest.raises(NotFound):
            await LocalBackend().get(id)
