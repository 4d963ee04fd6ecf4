"""A backend whose one job is what the test says, and a view at the other end of its feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.events import Batch, Cursor, JobEvent, LogLine, Phase, PhaseChanged
from kfnb.job import Job
from kfnb.record import Record
from kfnb.spec import TrainSpec
from kfnb.views.feed import Feed, Subscriber
from tests.waiting import wait_for


class ScriptedBackend:
    """Tells what was ``push``ed, batch by batch. ``streams`` is how many are open, ``opened`` how many ever were."""

    name = "scripted"

    def __init__(self, *newest: JobEvent) -> None:
        self.newest = list(newest)
        self.problem: KfnbError | None = None
        self.streams = self.opened = 0
        self.gate = asyncio.Event()  # what has been pushed is read only while it is open
        self.gate.set()
        self._batches: list[list[JobEvent]] = []
        self._pushed = asyncio.Event()
        self._closed = False

    def push(self, *events: JobEvent) -> None:
        """The job says this now; a terminal phase is its end."""

        def tell() -> None:
            self._batches.append(list(events))
            self._closed = any(isinstance(e, PhaseChanged) and e.phase.terminal for e in events)
            self._pushed.set()

        portal.loop().call_soon_threadsafe(tell)

    async def record(self, id: str) -> Record:
        if self.problem is not None:
            raise self.problem
        facts = {"created": 0.0, "owner": "me", "host": "here", "workdir": "/", "bundle_sha256": "0", "code": ""}
        return Record(id=id, spec=TrainSpec(), **facts)

    async def recent(self, id: str) -> list[JobEvent]:
        return self.newest

    async def events(self, id: str, cursor: Cursor | None = None, *, follow: bool = True) -> AsyncIterator[Batch]:
        self.streams, self.opened = self.streams + 1, self.opened + 1
        try:
            at = cursor["at"] if cursor else 0
            while True:
                while at < len(self._batches):
                    await self.gate.wait()
                    at += 1
                    yield Batch(self._batches[at - 1], {"at": at}, at / len(self._batches))
                if not follow or self._closed:
                    return
                self._pushed.clear()
                await self._pushed.wait()
        finally:
            self.streams -= 1


def feed_of(backend: ScriptedBackend, **options: Any) -> Feed:
    return Feed(Job("job-abcde", backend), **options)  # type: ignore[arg-type]


def printed(*texts: str, rank: int | None = 0, time: float = 1.0) -> list[LogLine]:
    return [LogLine(0, rank, number, text, time) for number, text in enumerate(texts)]


def phase(phase: Phase, time: float = 0.0, reason: str = "") -> PhaseChanged:
    return PhaseChanged(phase, reason, time)


class Page:
    """Applies what comes as a page does: batches in order, each once. ``acks``: whether it acknowledges them."""

    def __init__(self, feed: Feed, client: str = "page", *, acks: bool = True, subscriber: Subscriber | None = None):
        self.client, self.acks = client, acks
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.log: dict[int, str] = {}
        self.curves: dict[str, list[float]] = {}
        self.head: dict[str, Any] = {}
        self.ranks: dict[int, dict[str, Any]] = {}
        self.total = 0
        self.number: int | None = None
        self.subscriber = subscriber or feed.subscribe(self.take)

    def hello(self) -> None:
        self.say(type="hello", client=self.client, version=1)

    def say(self, **message: Any) -> None:
        self.subscriber.receive(message)

    def take(self, header: dict[str, Any], buffers: list[bytes]) -> None:
        self.messages.append((header, buffers))
        if header["type"] == "snapshot" and header["to"] in (None, self.client):
            self.log, self.curves, self.ranks = {}, {}, {}
        elif header["type"] == "batch" and self.number is not None:
            assert header["n"] == self.number + 1, "a batch is missing"
        else:
            return
        self.number = header["n"]
        self.head = header.get("head", self.head)
        self.ranks |= {rank["rank"]: rank for rank in header.get("ranks", [])}
        self._take_log(header, buffers)
        self._take_series(header.get("series", []), buffers[-3:])
        if self.acks:
            self.say(type="ack", n=self.number)

    def _take_log(self, header: dict[str, Any], buffers: list[bytes]) -> None:
        if "log" in header:
            log = header["log"]
            texts = buffers[0].decode().split("\n") if log["count"] else []
            assert len(texts) == log["count"]
            assert log["first"] + log["count"] == log["total"] >= self.total or header["type"] == "snapshot"
            for index, text in enumerate(texts, log["first"]):
                assert index not in self.log, "a line came twice"
                self.log[index] = text
            self.total = log["total"]

    def _take_series(self, entries: list[dict[str, Any]], buffers: list[bytes]) -> None:
        start = 0
        for entry in entries:
            values = np.frombuffer(buffers[2])[start : start + entry["count"]].tolist()
            start += entry["count"]
            self.curves[entry["tag"]] = (self.curves[entry["tag"]] if entry["mode"] == "add" else []) + values

    @property
    def lines(self) -> list[str]:
        return [self.log[index] for index in sorted(self.log)]

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [header for header, _ in self.messages if header["type"] == kind]

    def until_heard(self, kind: str, count: int = 1) -> dict[str, Any]:
        wait_for(lambda: len(self.heard(kind)) >= count, timeout=20, what=f"{count} x {kind}")
        return self.heard(kind)[-1]

    def until_total(self, total: int) -> None:
        wait_for(lambda: self.total >= total, timeout=20, what=f"{total} lines")

    def call(self, method: str, **params: Any) -> tuple[dict[str, Any], list[bytes]]:
        id = f"{len(self.messages)}-{method}"
        self.say(type="call", id=id, client=self.client, method=method, params=params)

        def answers() -> list[tuple[dict[str, Any], list[bytes]]]:
            return [(header, buffers) for header, buffers in self.messages if header.get("id") == id]

        wait_for(answers, timeout=20, what=f"the answer to {method}")
        return answers()[0]
