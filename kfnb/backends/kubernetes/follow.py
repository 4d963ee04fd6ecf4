"""A job's events: its phases out of its object and its pods, its lines and points out of its pods' logs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.errors import ApiError
from kfnb.backends.kubernetes.logs import PodLog
from kfnb.backends.kubernetes.phases import NOT_MADE, Life, has_ended, life_of
from kfnb.backends.kubernetes.pods import Incarnation, Pod, first_failure, incarnations, last_words, told_failure
from kfnb.backends.kubernetes.reflector import reflector
from kfnb.backends.kubernetes.refusals import refusal
from kfnb.backends.kubernetes.target import Kind
from kfnb.errors import BackendError, NotFound
from kfnb.events import Batch, Cursor, JobEvent, Phase, PhaseChanged

#: Seconds in which what comes together is one batch, and events of one batch.
TOGETHER, EVENTS = 0.05, 5_000

#: Seconds without news after which the logs of an ended job that have not come to their end are given up, and those
#: after which containers that still run are taken for ended too.
PATIENCE, LEFT_RUNNING = 60.0, 45.0

#: Pieces of logs that are kept for a client that is slower than they come; then they wait on the cluster.
AHEAD = 32

#: Seconds between two looks for what keeps a cluster from making a job's pods.
REFUSALS = 3.0

#: Seconds that the cluster has to say itself that a job has failed whose worker said so.
HESITATION = 2.0


@dataclass(frozen=True)
class Where:
    """A job's object."""

    kind: Kind
    path: str
    namespace: str
    id: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def labels(self) -> str:
        return f"{names.JOB}={self.id}"


async def follow(
    client: Client, where: Where, cursor: Cursor | None, *, to_end: bool, first_line: int = 1
) -> AsyncGenerator[Batch, None]:
    """The batches after ``cursor``; with ``to_end`` until the job has ended, else up to what there is now.

    Raises ``NotFound`` for a job that is not there, and what the API server refuses.
    """
    follower = _Follower(client, where, cursor or {}, first_line)
    async with contextlib.aclosing(follower.to_end() if to_end else follower.present()) as batches:
        async for batch in batches:
            yield batch


@dataclass
class _Log:
    """``position`` is up to where its events have been handed out."""

    log: PodLog
    position: list[Any] | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass
class _News:
    """What came: events of a log, and where it stood after them; or only that there is something to look at."""

    events: list[JobEvent] = field(default_factory=list)
    log: _Log | None = None
    position: list[Any] | None = None


class _Follower:
    """Where a client stands with a job."""

    def __init__(self, client: Client, where: Where, cursor: Cursor, first_line: int) -> None:
        self._client, self._where, self._first_line = client, where, first_line
        #: The phase that was told last, and its reason.
        self._told: list[str] = list(cursor.get("phase", ()))
        self._logs: dict[tuple[str, int], _Log] = {}
        #: By node, its worker processes in the order in which they were seen: [uid of the pod, restart, position].
        self._known: dict[str, list[list[Any]]] = {
            node: [list(entry) for entry in entries] for node, entries in cursor.get("nodes", {}).items()
        }
        self._job: dict[str, Any] = {}
        self._pods: dict[str, Pod] = {}
        self._deleted = False
        #: Why its pods are not made, as far as somebody says so.
        self._refusal = ""
        self._queue: asyncio.Queue[_News | Exception] = asyncio.Queue(AHEAD)

    # -- what there is now ---------------------------------------------------------------------------------------

    async def present(self) -> AsyncGenerator[Batch, None]:
        await self._look()
        if self._at_end:
            return
        if self._life().reason == NOT_MADE:
            self._refusal = await refusal(self._client, self._where.namespace, self._where.id)
        events = self._phases()
        if events:
            yield Batch(events, self._cursor())
        over, last = self._life().phase.terminal, []
        for log in self._new_logs():
            try:
                async for found in log.log.read(follow=False):
                    log.position = log.log.position
                    if found:
                        yield Batch(found, self._cursor())
                last += log.log.finish() if over else []
            except ApiError as error:  # not there any more, or not yet
                last += log.log.missing(error.why) if over else []
            log.position = log.log.position
        if over:
            events = last + self._end()
            yield Batch(events, self._cursor())

    async def _look(self) -> None:
        try:
            self._job = await self._client.get(self._where.path)
        except ApiError as error:
            if error.status == 404:
                raise NotFound(f"There is no job {self._where.id} in {self._where.namespace}.") from None
            raise
        async for page in self._client.list(self._where.pods, labels=self._where.labels):
            self._pods.update((pod["metadata"]["uid"], pod) for pod in page.get("items") or [])

    # -- to the end ----------------------------------------------------------------------------------------------

    async def to_end(self) -> AsyncGenerator[Batch, None]:
        await self._look()
        if self._at_end:
            return
        watches = (self._watch_job(), self._watch_pods(), self._look_for_refusals())
        tasks = [self._start(watch) for watch in watches]
        ended: float | None = None
        heard = 0.0
        try:
            while True:
                events = self._phases()
                if events:
                    yield Batch(events, self._cursor())
                tasks += [self._start(self._read(log)) for log in self._new_logs()]
                over = self._life().phase.terminal
                if over:
                    now = time.monotonic()
                    ended = ended or now
                    heard = max(heard, ended)
                    if now > ended + LEFT_RUNNING:
                        for log in self._logs.values():
                            log.ended.set()
                    read = self._queue.empty() and all(log.log.done for log in self._logs.values())
                    told = has_ended(self._where.kind, self._job) or self._deleted or now > ended + HESITATION
                    if (read and told) or now > heard + PATIENCE:
                        await self._end_for_good()
                        events = self._unread() + self._end()
                        yield Batch(events, self._cursor())
                        return
                found = await self._next(0.5 if over else 60.0)
                if found:
                    heard = time.monotonic()
                    yield Batch(found, self._cursor())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def told() -> None:
            try:
                await work
            except Exception as error:
                await self._queue.put(error)

        return asyncio.ensure_future(told())

    async def _next(self, seconds: float) -> list[JobEvent]:
        """What comes next, and what comes within ``TOGETHER`` of it."""
        events: list[JobEvent] = []
        deadline = time.monotonic() + seconds
        together = False
        with contextlib.suppress(asyncio.TimeoutError):
            while len(events) < EVENTS:
                news = await asyncio.wait_for(self._queue.get(), deadline - time.monotonic())
                if isinstance(news, Exception):
                    raise news
                events += news.events
                if news.log is not None:
                    news.log.position = news.position
                if not together:
                    deadline, together = time.monotonic() + TOGETHER, True
        return events

    async def _read(self, log: _Log) -> None:
        async for events in log.log.follow(log.ended):
            await self._queue.put(_News(events, log, log.log.position))
        await self._queue.put(_News())

    async def _watch_job(self) -> None:
        collection, _, name = self._where.path.rpartition("/")
        async for kind, thing in reflector(self._client, collection, self._where.labels).changes():
            if kind == "LISTED":
                found = [item for item in thing["items"] if item["metadata"]["name"] == name]
                self._deleted = not found
                self._job = found[0] if found else self._job
            elif thing["metadata"]["name"] == name:
                self._deleted = kind == "DELETED"
                self._job = thing
            await self._queue.put(_News())

    async def _watch_pods(self) -> None:
        async for kind, thing in reflector(self._client, self._where.pods, self._where.labels).changes():
            listed = thing["items"] if kind == "LISTED" else [thing]
            present = {pod["metadata"]["uid"]: pod for pod in listed}
            gone = set(self._pods) - set(present) if kind == "LISTED" else set(present) if kind == "DELETED" else set()
            self._pods.update(present)
            for (uid, _), log in self._logs.items():
                if uid in gone:  # what they said last stays known
                    log.log.gone = True
                    log.ended.set()
            await self._queue.put(_News())

    async def _look_for_refusals(self) -> None:
        """While there is no pod that could say what it waits for."""
        while True:
            await asyncio.sleep(REFUSALS)
            if life_of(self._where.kind, self._job, list(self._pods.values())).reason == NOT_MADE:
                self._refusal = await refusal(self._client, self._where.namespace, self._where.id)
                await self._queue.put(_News())

    # -- logs ----------------------------------------------------------------------------------------------------

    def _new_logs(self) -> list[_Log]:
        """Logs that were not read before; those of containers that have ended are told so."""
        new = []
        for pod in list(self._pods.values()):
            found = incarnations(pod)
            for which in found:
                key = (which.uid, which.restart)
                if key not in self._logs:
                    self._logs[key] = self._open(which)
                    new.append(self._logs[key])
                self._logs[key].log.which = which
                if which.ended:
                    self._logs[key].ended.set()
            for restart in range(found[0].restart if found else 0):  # the cluster keeps one container before the last
                log = self._logs.get((found[0].uid, restart))
                if log is not None:
                    log.log.gone = True
                    log.ended.set()
        return new

    def _unread(self) -> list[JobEvent]:
        """What is told of the logs that did not come to their end."""
        why = f"the cluster did not send it within {PATIENCE:.0f} s"
        return [event for log in self._logs.values() if not log.log.done for event in log.log.missing(why)]

    def _open(self, which: Incarnation) -> _Log:
        known = self._known.setdefault(str(which.node), [])
        entry = next((entry for entry in known if entry[:2] == [which.uid, which.restart]), None)
        if entry is None:
            entry = [which.uid, which.restart, None]
            known.append(entry)
        position, number, namespace = entry[2], known.index(entry), self._where.namespace
        log = PodLog(self._client, namespace, which, number, first_line=self._first_line, position=position)
        return _Log(log, position)

    def _cursor(self) -> Cursor:
        for entries in self._known.values():
            for entry in entries:
                log = self._logs.get((entry[0], entry[1]))
                entry[2] = log.position if log is not None else entry[2]
        nodes = {node: [list(entry) for entry in entries] for node, entries in self._known.items()}
        return {"phase": list(self._told), "nodes": nodes}

    # -- phases --------------------------------------------------------------------------------------------------

    @property
    def _at_end(self) -> bool:
        """Whether the cursor is behind the job's end already."""
        return bool(self._told) and Phase(self._told[0]).terminal

    def _life(self) -> Life:
        life = life_of(self._where.kind, self._job, list(self._pods.values()))
        if life.reason == NOT_MADE and self._refusal:
            life = replace(life, reason=self._refusal)
        if self._deleted and not life.phase.terminal:
            asked = life.phase is Phase.STOPPING
            reason = "it was stopped on request" if asked else "its object was deleted from the cluster"
            return Life(Phase.STOPPED, reason, time.time(), life.created, life.started, time.time())
        return life

    def _phases(self) -> list[JobEvent]:
        """The phases that are new, but for the last, at the times that the cluster tells."""
        life = self._life()
        steps = [] if self._told else [(Phase.PENDING, "", life.created)]
        if not life.phase.terminal:
            steps.append((life.phase, life.reason, life.time))
        elif not self._told and life.started is not None:
            steps.append((Phase.RUNNING, "", life.started))
        return [
            PhaseChanged(phase, reason, when or time.time())
            for phase, reason, when in steps
            if self._tell(phase, reason)
        ]

    def _end(self) -> list[JobEvent]:
        """The last phase, with the failure behind it."""
        life = self._life()
        failed = life.phase is Phase.FAILED
        failure = first_failure(self._pods.values(), first_line=self._first_line) if failed else None
        if failed and failure is None:
            kept = (self._job["metadata"].get("annotations") or {}).get(names.FAILED)
            failure = told_failure(kept, first_line=self._first_line)
        self._tell(life.phase, life.reason)
        return [PhaseChanged(life.phase, life.reason, life.time or time.time(), failure=failure)]

    async def _end_for_good(self) -> None:
        """A runtime that starts failed containers again would hold the job's GPUs meanwhile, and then throw away what
        they said: this keeps their last words, and takes the pods."""
        words = last_words(self._pods.values())
        if self._where.kind != "trainjob" or not words or self._deleted or has_ended("trainjob", self._job):
            return
        kept = {"metadata": {"annotations": {names.FAILED: words}}, "spec": {"suspend": True}}
        with contextlib.suppress(BackendError):  # without the right to it the cluster comes to the same end, later
            await self._client.patch(self._where.path, kept)

    def _tell(self, phase: Phase, reason: str) -> bool:
        """Whether this is news."""
        news = self._told != [str(phase), reason]
        self._told = [str(phase), reason]
        return news
