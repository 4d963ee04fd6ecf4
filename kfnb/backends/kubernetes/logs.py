"""The log of one worker process, out of its container: each line once, over any number of broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from kfnb.backends.kubernetes.client import Client, Pauses
from kfnb.backends.kubernetes.errors import ApiError, Unreachable
from kfnb.backends.kubernetes.pods import Incarnation
from kfnb.decode import Position, StreamDecoder
from kfnb.events import Gap, JobEvent

#: Seconds before the last line that a log is read again from: pieces of a long line, and clocks of a node.
OVERLAP = 30.0

#: Connections being opened at a time in this process, so that a job of many nodes does not knock all at once.
OPENING = 32

_opening: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}


class PodLog:
    """``position`` is where a client stands, from a cursor; ``number`` tells the node's worker processes apart."""

    def __init__(
        self, client: Client, namespace: str, which: Incarnation, number: int, *, first_line: int, position: Any = None
    ) -> None:
        self.which, self.number = which, number
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods/{which.pod}/log"
        stood = Position.from_json(position) if position else None
        self._decoder = StreamDecoder(which.node, number, stood, first_line=first_line).resumed()
        #: Whether there is no more to come.
        self.done = False

    @property
    def position(self) -> list[float]:
        return self._decoder.position.to_json()

    async def follow(self, ended: asyncio.Event) -> AsyncIterator[list[JobEvent]]:
        """The events after ``position``, until the container has ended (``ended`` says so) and all was read."""
        pauses = Pauses()
        while True:
            last = ended.is_set()
            try:
                async for events in self.read(follow=not last):
                    pauses.reset()
                    if events:
                        yield events
                if last:
                    self.done = True
                    return
                if not ended.is_set():  # the kubelet ends a log some time before the pod's status says so
                    await _either(ended, pauses)
                    continue
            except Unreachable:
                await pauses.rest()
            except ApiError as error:
                if error.status == 404 or (last and error.status < 500):
                    self.done = True
                    yield [self._gone("its pod is gone, and its log with it")]
                    return
                if error.status in (401, 403):
                    raise
                await pauses.rest()  # a container that is not there yet, a kubelet that does not answer

    async def read(self, *, follow: bool) -> AsyncIterator[list[JobEvent]]:
        """What one connection brings."""
        query: dict[str, str | int] = {"container": self.which.container}
        if self.which.previous:
            query["previous"] = "true"
        if follow:
            query["follow"] = "true"
        if self._decoder.position.time:
            since = datetime.fromtimestamp(self._decoder.position.time - OVERLAP, timezone.utc)
            query["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._decoder.position.sequence:
            self._decoder = self._decoder.resumed()
        stream = self._client.stream(self._path, query)
        try:
            async with _semaphore():
                first = await anext(stream, None)
            if first is not None:
                yield self._decoder.feed(first)
                async for chunk in stream:
                    yield self._decoder.feed(chunk)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    def _gone(self, why: str) -> Gap:
        return Gap(self.which.node, 0, why, self._decoder.position.time)


def _semaphore() -> asyncio.Semaphore:
    return _opening.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(OPENING))


async def _either(ended: asyncio.Event, pauses: Pauses) -> None:
    """Wait until the container has ended, or a while."""
    waiting = asyncio.ensure_future(ended.wait())
    resting = asyncio.ensure_future(pauses.rest())
    await asyncio.wait({waiting, resting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    resting.cancel()
