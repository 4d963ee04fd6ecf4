"""One carrier of a feed's messages (a comm, a channel of a WebSocket) and the views behind it.

A message is a JSON object and a list of buffers. To the views go ``snapshot`` (everything), numbered ``batch``es (what
changed since), ``reply`` (to a ``call``) and ``gone`` (the job cannot be read, and why). From them come ``hello``
(wants a snapshot), ``ack`` (the newest batch that was applied), ``visible``, ``resend`` (batches that never came),
``call`` and ``bye``. Views that share a carrier get the same batches; a ``snapshot`` says whose hello it answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.views.feed.calls import answer
from kfnb.views.feed.frames import strict
from kfnb.views.feed.source import News, Source
from kfnb.views.feed.told import Told

if TYPE_CHECKING:
    from kfnb.views.feed.feed import Feed

VERSION = 1

#: Shortest time between two batches, in seconds, where somebody sees a view, and where nobody does.
VISIBLE, HIDDEN = 0.1, 0.25

#: Batches that may be under way unacknowledged: more than that, and the page is busy or gone.
UNDER_WAY = 8

#: Seconds without a message after which a view gets a sign of life, while the job is not over.
BEAT = 5.0

#: Seconds without a word from any view after which nobody is there: a page acknowledges every sign of life.
SILENCE = 120.0

#: Batches that are kept to be sent again, and their bytes.
KEPT, KEPT_BYTES = 64, 8 << 20

#: Calls that are answered at a time, characters of an id, and views that are told apart.
CALLS, ID, CLIENTS = 32, 200, 100

_WRONG_VERSION = KfnbError(
    "This page's view is not that of the installed kfnb.", "One of them was updated.", "Reload the page."
)

_log = logging.getLogger(__name__)


class Subscriber:
    """Made by ``Feed.subscribe``. ``heard`` is when a view said something last (``time.monotonic()``)."""

    def __init__(self, feed: Feed, send: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        self.heard: float | None = None
        self._feed, self._send = feed, send
        self._told: Told | None = None  # None: a snapshot is owed
        self._previewed = self._gone = False
        self._clients: dict[str, None] = {}
        self._hellos: set[str] = set()
        self._visible = True
        self._number = self._acknowledged = 0
        self._kept: deque[tuple[int, dict[str, Any], list[bytes], int]] = deque()
        self._kept_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sent = -1e9
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = False

    # -- from any thread ---------------------------------------------------------------------------------------

    def receive(self, message: Mapping[str, Any]) -> None:
        """A message of a view: anything may come, and what cannot be used is ignored."""
        portal.loop().call_soon_threadsafe(self._receive, message)

    def close(self) -> None:
        """Nothing is sent any more."""
        portal.loop().call_soon_threadsafe(self._close)

    @property
    def has_views(self) -> bool:
        """Whether some view has said hello and not goodbye. On the portal's loop."""
        return bool(self._clients)

    # -- for the feed, on the portal's loop ----------------------------------------------------------------------

    def listens(self, now: float) -> bool:
        """Whether somebody is there."""
        return bool(self._clients) and self.heard is not None and now - self.heard < SILENCE

    def begin(self) -> None:
        """The feed begins anew: all that was told may be otherwise."""
        self._told, self._previewed, self._gone = None, False, False
        self._plan()

    def news(self, news: News | None = None) -> None:
        """Something happened, or the feed is further on."""
        if self._told is not None and news is not None:
            self._told.add(news)
        self._plan()

    def beat(self, now: float) -> None:
        """Give a sign of life where one is due."""
        over = self._feed.state.phase.terminal
        if self._told is not None and self._feed.whole and not over and now - self._sent >= BEAT and self._may_send():
            self._batch(now, head=True)

    # -- what views say ------------------------------------------------------------------------------------------

    def _receive(self, message: Any) -> None:
        if self._closed or not isinstance(message, Mapping):
            return
        self.heard = time.monotonic()
        kind = _text(message.get("type"))
        handler = _HANDLERS.get(kind) if kind is not None else None
        if handler is not None:
            handler(self, message)
            if self._clients:
                self._feed.look(again=kind == "hello")

    def _hello(self, message: Mapping[str, Any]) -> None:
        client = _text(message.get("client"))
        if client is None:
            return
        if _count(message.get("version")) != VERSION:
            self._dispatch(_gone(_WRONG_VERSION), [])
            return
        self._clients.pop(client, None)
        self._clients[client] = None
        while len(self._clients) > CLIENTS:
            del self._clients[next(iter(self._clients))]
        self._hellos.add(client)
        self._acknowledged = self._number
        self._plan()

    def _ack(self, message: Mapping[str, Any]) -> None:
        number = _count(message.get("n"))
        if number is not None and number <= self._number:
            self._acknowledged = max(self._acknowledged, number)
            self._plan()

    def _seen(self, message: Mapping[str, Any]) -> None:
        self._visible = message.get("visible") is not False
        self._plan()

    def _resend(self, message: Mapping[str, Any]) -> None:
        first, last = _count(message.get("from")), _count(message.get("to"))
        if first is None or last is None or self._told is None:
            return
        if not self._kept or first < self._kept[0][0]:
            self._told = None
            self._plan()
            return
        for number, header, buffers, _ in list(self._kept):
            if first <= number <= last:
                self._dispatch(header, buffers)

    def _bye(self, message: Mapping[str, Any]) -> None:
        client = _text(message.get("client"))
        if client is None:
            self._clients.clear()
        else:
            self._clients.pop(client, None)
        if not self._clients:
            self._hellos.clear()
            self._told = None

    def _call(self, message: Mapping[str, Any]) -> None:
        id, client, params = _text(message.get("id")), _text(message.get("client")), message.get("params")
        if id is None or client is None:
            return
        method = _text(message.get("method")) or ""
        if len(self._calls) >= CALLS:
            busy = KfnbError("Too much is asked at once.", fix="Try again.")
            self._dispatch({"type": "reply", "to": client, "id": id, "ok": False, "error": _error(busy)}, [])
            return
        answering = self._reply(client, id, method, params if isinstance(params, Mapping) else {})
        task = asyncio.get_running_loop().create_task(answering)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _reply(self, client: str, id: str, method: str, params: Mapping[str, Any]) -> None:
        header: dict[str, Any] = {"type": "reply", "to": client, "id": id}
        buffers: list[bytes] = []
        try:
            result, buffers = await answer(self._feed, method, params)
            header |= {"ok": True, "result": result}
        except KfnbError as error:
            header |= {"ok": False, "error": _error(error)}
        except Exception as problem:  # a page must not wait for an answer that never comes
            _log.exception("a view's call of %r failed", method)
            header |= {"ok": False, "error": _error(KfnbError("This failed.", f"{type(problem).__name__}: {problem}"))}
        self._dispatch(header, buffers)

    # -- what they are told ----------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        return bool(self._clients) and self._number - self._acknowledged <= UNDER_WAY and not self._closed

    def _plan(self) -> None:
        """See to it that what is to be told is told in time."""
        if not self._may_send():
            return
        now = time.monotonic()
        idle = self._told is not None and not self._hellos and self._feed.error is None
        wait = self._told.due(now) if idle and self._told is not None else 0.0
        if wait is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(wait, self._sent + (VISIBLE if self._visible else HIDDEN) - now, 0.0)
        if self._timer is None or due < self._timer.when() - 0.001:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if not self._may_send():
            return
        now = time.monotonic()
        if self._feed.error is not None:
            if self._hellos or not self._gone:
                self._gone = True
                self._hellos.clear()
                self._dispatch(_gone(self._feed.error), [])
        elif self._feed.whole:
            if self._told is not None and not self._told.outdated:
                self._batch(now)
                if self._hellos and self._told.complete:
                    self._snapshot(self._feed.source, alone=True)
                elif self._hellos:
                    self._told = self._snapshot(self._feed.source, alone=False)
            else:
                self._told = self._snapshot(self._feed.source, alone=False)
            self._plan()
        elif self._feed.preview is not None:
            if self._hellos or not self._previewed:
                self._snapshot(self._feed.preview, alone=self._previewed, preview=True)
                self._previewed = True
            else:
                with self._feed.lock:
                    head = self._feed.preview.head(time.time())
                self._send_batch({"head": head}, [])

    def _snapshot(self, source: Source, *, alone: bool, preview: bool = False) -> Told:
        """Send everything; ``alone``: to the one who said hello, since the others have it."""
        told = Told(source)
        with self._feed.lock:
            parts, buffers = told.whole(time.monotonic(), time.time())
        one = len(self._hellos) == 1 and (alone or len(self._clients) == 1)
        to = next(iter(self._hellos)) if one else None
        self._hellos.clear()
        self._sent = time.monotonic()
        self._dispatch({"type": "snapshot", "to": to, "n": self._number, "preview": preview, **parts}, buffers)
        return told

    def _batch(self, now: float, *, head: bool = False) -> None:
        assert self._told is not None
        with self._feed.lock:
            parts, buffers = self._told.rest(now, time.time(), head=head)
        if parts:
            self._send_batch(parts, buffers)

    def _send_batch(self, parts: dict[str, Any], buffers: list[bytes]) -> None:
        self._number += 1
        self._sent = time.monotonic()
        header = {"type": "batch", "n": self._number, **parts}
        size = sum(map(len, buffers))
        self._kept.append((self._number, header, buffers, size))
        self._kept_bytes += size
        while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft()[-1]
        self._dispatch(header, buffers)

    def _dispatch(self, header: dict[str, Any], buffers: list[bytes]) -> None:
        if self._closed:
            return
        try:
            self._send(strict(header), buffers)
        except Exception:  # a carrier that is gone; the others and the job are not concerned
            _log.exception("a message of job %s could not be sent to its views", self._feed.job.id)

    def _close(self) -> None:
        self._closed = True
        self._clients.clear()
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._calls:
            task.cancel()
        self._feed.leave(self)


_HANDLERS: dict[str, Callable[[Subscriber, Mapping[str, Any]], None]] = {
    "hello": Subscriber._hello,
    "ack": Subscriber._ack,
    "visible": Subscriber._seen,
    "resend": Subscriber._resend,
    "call": Subscriber._call,
    "bye": Subscriber._bye,
}


def _gone(error: KfnbError) -> dict[str, Any]:
    return {"type": "gone", **_error(error)}


def _error(error: KfnbError) -> dict[str, str]:
    return {"what": error.what, "why": error.why, "fix": error.fix}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= ID else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
