"""The WebSocket of a page: many channels, each of which is one view of one job.

From the page comes text: ``{channel, job?, message}``; a channel's first message is a ``hello`` and names the job. To
the page go binary frames (``kfnb.views.feed.frames.pack``) of the channel's name, a message and its buffers. What they
say is described in ``kfnb.views.feed.subscriber``; besides, ``{type: "error", what, why, fix}`` answers a frame that
cannot be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from kfnb import portal
from kfnb.errors import KfnbError
from kfnb.labserver.rest import RESOURCE, load

if TYPE_CHECKING:
    from kfnb.views.feed import Subscriber

#: Jobs that one page follows at a time, and the longest name of a channel, in characters.
CHANNELS, NAME = 64, 100

#: Longest message of a page, in bytes.
MESSAGE = 1 << 20

#: Bytes that may wait for a page that does not read them; with more, its socket is closed.
WAITING = 64 << 20

#: Calls that change something.
_CHANGES = ("stop", "again")

_UNUSABLE = KfnbError("What the page sent cannot be used.", fix="Reload the page.")
_TOO_MANY = KfnbError(
    f"This page follows {CHANNELS} jobs already.",
    "A page can follow no more.",
    "Close a notebook, and reload the page.",
)
_FORBIDDEN = KfnbError(
    "You are not allowed to do this.", "This server lets you look at jobs, and not change them.", "Ask its owner."
)


class EventsHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    auth_resource = RESOURCE

    @property
    def max_message_size(self) -> int:
        return MESSAGE

    def skip_check_origin(self) -> bool:
        """Never: whoever gives a token is asked too, since a page of another site may have got hold of one."""
        return False

    def initialize(self) -> None:
        self._channels: dict[str, Subscriber] = {}
        self._waiting = 0
        self._closed = False

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        may = self.authorizer.is_authorized(self, self.current_user, "write", RESOURCE)
        self._may_write = await ensure_async(may)
        self._loop = asyncio.get_running_loop()
        await super().get(*args, **kwargs)

    # -- from the page -----------------------------------------------------------------------------------------

    async def on_message(self, frame: str | bytes) -> None:
        """The next one is handled when this one has been."""
        name, job, message = _read(frame)
        frames = await load("kfnb.views.feed.frames")
        if name is None or message is None:
            self._tell(frames, name or "", _error("error", _UNUSABLE))
        elif name in self._channels:
            self._hear(frames, name, message)
        elif message.get("type") == "hello":
            await self._begin(frames, name, job, message)
        elif message.get("type") != "bye":
            self._tell(frames, name, _error("error", _UNUSABLE))

    async def _begin(self, frames: ModuleType, name: str, job: Any, hello: Mapping[str, Any]) -> None:
        if len(self._channels) >= CHANNELS:
            self._tell(frames, name, _error("gone", _TOO_MANY))
            return
        feeds, jobs = await load("kfnb.views.feed"), await load("kfnb.labserver.jobs")

        def send(header: dict[str, Any], buffers: list[bytes]) -> None:
            """Called on the portal's loop."""
            packed = frames.pack(name, header, buffers)
            with contextlib.suppress(RuntimeError):  # the server ends, and its loop is closed
                self._loop.call_soon_threadsafe(self._write, packed)

        try:
            found = jobs.job_of(job)
            await portal.wait(found.ainfo())  # a feed may linger after its job was deleted
            if self._closed:
                return
            self._channels[name] = feeds.open_feed(found).subscribe(send)
        except KfnbError as error:
            self._tell(frames, name, _error("gone", error))
        else:
            self._hear(frames, name, hello)

    def _hear(self, frames: ModuleType, name: str, message: Mapping[str, Any]) -> None:
        if message.get("type") == "call" and not self._may_write and message.get("method") in _CHANGES:
            to, id = _plain(message.get("client")), _plain(message.get("id"))
            self._tell(frames, name, {"type": "reply", "to": to, "id": id, "ok": False, "error": _parts(_FORBIDDEN)})
            return
        subscriber = self._channels[name]
        subscriber.receive(message)
        if message.get("type") == "bye":  # there is one view a channel
            del self._channels[name]
            subscriber.close()

    def on_close(self) -> None:
        self._closed = True
        for subscriber in self._channels.values():
            subscriber.close()
        self._channels.clear()
        super().on_close()

    # -- to the page -------------------------------------------------------------------------------------------

    def _tell(self, frames: ModuleType, name: str, message: dict[str, Any]) -> None:
        self._write(frames.pack(name, frames.strict(message), []))

    def _write(self, packed: bytes) -> None:
        if self._closed:
            return
        if self._waiting > WAITING:
            self.close(1008, "the page does not read what it asked for")
            return
        try:
            written = self.write_message(packed, binary=True)
        except WebSocketClosedError:
            return
        self._waiting += len(packed)

        def done(written: asyncio.Future[None]) -> None:
            self._waiting -= len(packed)
            if not written.cancelled():
                written.exception()  # that of a page that has gone in the meantime; nobody misses the message

        written.add_done_callback(done)


def _read(frame: str | bytes) -> tuple[str | None, Any, Mapping[str, Any] | None]:
    """(channel, job, message) of a frame, None for what is not as it has to be."""
    try:
        said = json.loads(frame) if isinstance(frame, str) else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return None, None, None
    name, message = said.get("channel"), said.get("message")
    return (
        name if isinstance(name, str) and 0 < len(name) <= NAME and name.isascii() else None,
        said.get("job"),
        message if isinstance(message, dict) else None,
    )


def _plain(said: Any) -> str | int | None:
    """What may be repeated to a page."""
    return said if isinstance(said, (str, int)) else None


def _error(kind: str, error: KfnbError) -> dict[str, Any]:
    return {"type": kind, **_parts(error)}


def _parts(error: KfnbError) -> dict[str, str]:
    return {"what": error.what, "why": error.why, "fix": error.fix}
