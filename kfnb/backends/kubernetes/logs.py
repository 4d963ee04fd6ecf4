"""The log of one worker process, out of its container: each line once, over any number of broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime, timezone
from typing import Any

from kfnb.backends.kubernetes.client import Client, Pauses
from kfnb.backends.kubernetes.errors import ApiError, Unreachable
from kfnb.backends.kubernetes.pods import Incarnation
from kfnb.decode import Position, StreamDecoder
from kfnb.events import JobEvent, Note

#: Seconds before the last line that a log is read again from: pieces of a long line, and clocks of a node.
OVERLAP = 30.0

#: Connections being opened at a time in this process, so that a job of many nodes does not knock all at once.
OPENING = 32

#: Seconds that a connection has to come to its end by itself once the container has.
SETTLE = 5.0

_opening: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}


class PodLog:
    """``position`` is where a client stands, from a cursor; ``number`` tells the node's worker processes apart.

    ``which`` is to be kept up to date: a container that was started again has its log under another name.
    """

    def __init__(
        self, client: Client, namespace: str, which: Incarnation, number: int, *, first_line: int, position: Any = None
    ) -> None:
        self.which, self.number = which, number
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods/{which.pod}/log"
        stood = Position.from_json(position) if position else None
        self._decoder = StreamDecoder(which.node, number, stood, first_line=first_line)
        #: Whether the cluster has it no more: the pod was deleted, or the container started again twice.
        self.gone = False
        #: Whether there is no more to come.
        self.done = False

    @property
    def position(self) -> list[Any]:
        return self._decoder.position.to_json()

    async def follow(self, ended: asyncio.Event) -> AsyncIterator[list[JobEvent]]:
        """The events after ``position``, until the container has ended (``ended`` says so) and all was read."""
        pauses = Pauses()
        while not self.gone:
            last = ended.is_set()
            try:
                async for events in _until(self.read(follow=not last), ended):
                    pauses.reset()
                    if events:
                        yield events
                if last and not self._decoder.foreign:
                    self.done = True
                    yield self.finish()
                    if not self.which.ended:
                        yield self.missing("its container still ran when the job had ended")
                    return
                if last:  # it was started again, and ``which`` is about to say so
                    await pauses.rest()
                elif not ended.is_set():  # the kubelet ends a log some time before the pod's status says so
                    await _either(ended, pauses)
            except Unreachable:
                await pauses.rest()
            except ApiError as error:
                if error.status == 404 or (last and error.status < 500):
                    self.gone = True
                elif error.status == 403:  # the job's phases can be seen all the same
                    self.done = True
                    yield self.missing(error.why)
                    return
                elif error.status == 401:
                    raise
                else:  # a container that is not there yet, a kubelet that does not answer
                    await pauses.rest()
        self.done = True
        yield self.missing("its pod is gone, and its log with it")

    async def read(self, *, follow: bool) -> AsyncGenerator[list[JobEvent], None]:
        """What one connection brings."""
        self._decoder = self._decoder.resumed()
        position = self._decoder.position
        query: dict[str, str | int] = {"container": self.which.container}
        if self.which.previous:
            query["previous"] = "true"
        if follow:
            query["follow"] = "true"
        if position.time:
            since = datetime.fromtimestamp(position.time - OVERLAP, timezone.utc)
            query["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        async with contextlib.aclosing(self._client.stream(self._path, query)) as stream:
            async with _semaphore():
                chunk = await anext(stream, None)
            while chunk is not None and not self._decoder.foreign:
                yield self._decoder.feed(chunk)
                chunk = await anext(stream, None)

    def finish(self) -> list[JobEvent]:
        """What a line holds that the worker was killed in the middle of."""
        return self._decoder.feed(b"\n")

    def missing(self, why: str) -> list[JobEvent]:
        """What is told where nobody knows how much is missing; nothing where the worker has said its last."""
        if self._decoder.ended:
            return []
        node = self.which.node
        return [Note(f"What else node {node} has said is not here: {why}.", "warning", time.time(), node)]


def _semaphore() -> asyncio.Semaphore:
    return _opening.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(OPENING))


async def _until(stream: AsyncGenerator[list[JobEvent], None], ended: asyncio.Event) -> AsyncIterator[list[JobEvent]]:
    """``stream``, for ``SETTLE`` seconds more once ``ended`` is set: a half-open connection does not end by itself."""
    over = asyncio.ensure_future(ended.wait())
    already = ended.is_set()  # then this is a read that has an end
    step: asyncio.Task[list[JobEvent] | None] | None = None
    deadline: float | None = None
    try:
        while True:
            step = asyncio.ensure_future(_next(stream))
            if not already:
                await asyncio.wait({step, over}, return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    deadline = deadline or time.monotonic() + SETTLE
                    await asyncio.wait({step}, timeout=max(deadline - time.monotonic(), 0))
                    if not step.done():
                        return
            events = await step
            if events is None:
                return
            yield events
    finally:
        for task in (over, step):
            if task is not None:
                task.cancel()
        if step is not None:
            await asyncio.gather(step, return_exceptions=True)
        await stream.aclose()


async def _next(stream: AsyncGenerator[list[JobEvent], None]) -> list[JobEvent] | None:
    return await anext(stream, None)


async def _either(ended: asyncio.Event, pauses: Pauses) -> None:
    """Wait until the container has ended, or a while."""
    waiting = asyncio.ensure_future(ended.wait())
    resting = asyncio.ensure_future(pauses.rest())
    await asyncio.wait({waiting, resting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    resting.cancel()
