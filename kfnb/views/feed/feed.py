"""The one follower of a job in this process: folds its stream, keeps its log, and tells the subscribers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.events import Batch
from kfnb.job import Job
from kfnb.state import JobState
from kfnb.views.feed.source import Facts, News, Source
from kfnb.views.feed.subscriber import Subscriber

#: Seconds that a feed goes on without anybody who looks or waits.
LINGER = 60.0

#: Seconds between two looks at who is there.
LOOK = 1.0

#: Seconds of reading after which what has been read so far is shown.
PATIENCE = 1.0

_logger = logging.getLogger(__name__)
_feeds: WeakValueDictionary[tuple[int, str, str], Feed] = WeakValueDictionary()
_feeds_lock = threading.Lock()


def open_feed(job: Job) -> Feed:
    """The process's one feed of this job, from any thread. Nothing is read before somebody looks or waits."""
    key = (os.getpid(), job.backend, job.id)
    with _feeds_lock:
        feed = _feeds.get(key)
        if feed is None:
            feed = _feeds[key] = Feed(job)
        return feed


class Feed:
    """Everything is for the portal's loop, but what is said to be for any thread.

    It follows the job while a view listens or somebody waits, and for ``linger`` seconds after that. When it begins
    again it reads the job anew, and its subscribers get all of it.
    """

    def __init__(self, job: Job, *, linger: float = LINGER) -> None:
        self.job = job
        #: To be held while ``state`` is read from another thread.
        self.lock = threading.Lock()
        self.source = Source(Facts(job.id, job.name, job.backend))
        #: The newest part of a long log, while the whole is being read.
        self.preview: Source | None = None
        #: Whether ``source`` has all that there is.
        self.whole = False
        #: Why the job cannot be read.
        self.error: KfnbError | None = None
        self._linger = linger
        self._subscribers: list[Subscriber] = []
        self._waiters = 0
        self._left = 0.0
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._further = asyncio.Condition()
        #: Searches of the log that run at a time.
        self.searches = asyncio.Semaphore(2)

    @property
    def state(self) -> JobState:
        """The job as far as it is known here: from other threads with ``lock``."""
        return self.source.state

    @property
    def following(self) -> bool:
        """Whether the job is being followed, or has been to its end and its log is kept."""
        return self._following is not None

    def subscribe(self, send: Callable[[dict[str, Any], list[bytes]], None]) -> Subscriber:
        """A new carrier of messages: ``send`` is called on the portal's loop once a view has said hello. Any thread."""
        subscriber = Subscriber(self, send)
        portal.loop().call_soon_threadsafe(self._subscribers.append, subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    async def wait(self) -> JobState:
        """The state at the job's end. Raises what reading the job raises: ``NotFound``, ``BackendError``."""
        with self._waiting() as following:
            await asyncio.shield(following)
            if self.error is not None:
                raise self.error
            return self.state

    async def read(self) -> Source:
        """All that there is now. Raises what reading the job raises."""
        with self._waiting():
            async with self._further:
                await self._further.wait_for(lambda: self.whole or self.error is not None)
            if self.error is not None:
                raise self.error
            return self.source

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[asyncio.Task[None]]:
        self._waiters += 1
        try:
            self.look(again=True)
            assert self._following is not None
            yield self._following
        finally:
            self._waiters -= 1

    def look(self, *, again: bool = False) -> None:
        """Follow the job where somebody is there, and no longer where nobody has been for a while.

        ``again``: even if it could not be read before.
        """
        now = time.monotonic()
        if self._waiters or any(subscriber.listens(now) for subscriber in self._subscribers):
            self._left = now
            if self._following is None or (again and self.error is not None and self._following.done()):
                self._begin()
        elif self._following is not None and now - self._left >= self._linger:
            self._stop()
        for subscriber in self._subscribers:
            subscriber.beat(now)
        if self._looking is None and self._following is not None:
            self._looking = asyncio.get_running_loop().call_later(min(LOOK, self._linger), self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self.look()

    def _begin(self) -> None:
        self.source.log.close()
        with self.lock:
            self.source = Source(self.source.facts, read=0.0)
        self.whole, self.error = False, None
        self._following = asyncio.get_running_loop().create_task(self._follow(self.source))
        for subscriber in self._subscribers:
            subscriber.begin()

    def _stop(self) -> None:
        assert self._following is not None
        self._following.cancel()
        self._following = None
        self.whole = False
        self._show(None)
        self.source.log.close()

    async def _follow(self, source: Source) -> None:
        try:
            await self._catch_up(source)
            if not source.state.phase.terminal:
                async with contextlib.aclosing(self.job.astream(source.state.cursor)) as stream:  # type: ignore[type-var]
                    async for batch in stream:
                        news = self._fold(source, batch)
                        for subscriber in self._subscribers:
                            subscriber.news(news)
        except KfnbError as error:
            await self._fail(error)
        except Exception as problem:  # else there were only a page that waits for ever
            _logger.exception("job %s cannot be followed", self.job.id)
            await self._fail(KfnbError(f"{self.job.id} cannot be read.", f"{type(problem).__name__}: {problem}"))

    async def _catch_up(self, source: Source) -> None:
        """Read all that there is; meanwhile show the newest part of it."""
        job = self.job
        record = await job.arecord()
        source.facts = Facts(job.id, job.name, job.backend, record.first_line, record.notebook)
        recent = await job.arecent()
        if recent:
            preview = Source(source.facts)
            preview.add(recent)
            preview.all_read()
            preview.read = 0.0
            self._show(preview)
        began = time.monotonic()
        async with contextlib.aclosing(job.astream(None, follow=False)) as stream:  # type: ignore[type-var]
            async for batch in stream:
                self._fold(source, batch)
                source.read = batch.read
                if self.preview is None and time.monotonic() - began > PATIENCE:
                    self._show(source)
                if self.preview is not None:
                    self.preview.read = batch.read
                    for subscriber in self._subscribers:
                        subscriber.news()
                await asyncio.sleep(0)  # others on this loop get their turn
        with self.lock:
            source.all_read()
        self._show(None)
        self.whole = True
        await self._is_further()

    def _fold(self, source: Source, batch: Batch) -> News:
        with self.lock:
            news = source.add(batch.events)
            source.state.cursor = batch.cursor
        return news

    def _show(self, preview: Source | None) -> None:
        if self.preview is not None and self.preview is not self.source:
            self.preview.log.close()
        self.preview = preview

    async def _fail(self, error: KfnbError) -> None:
        self._show(None)
        self.error = error
        await self._is_further()

    async def _is_further(self) -> None:
        async with self._further:
            self._further.notify_all()
        for subscriber in self._subscribers:
            subscriber.news()
