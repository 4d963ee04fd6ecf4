"""One list and watch of a collection for all of a process that look at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from kfnb.backends.kubernetes.client import Client

#: Seconds for which a watch goes on after its last user: a view that is opened again finds it still there.
LINGER = 60.0

Change = tuple[str, dict[str, Any]]

_shared: dict[tuple[Client, str, str], Reflector] = {}


def reflector(client: Client, path: str, labels: str = "") -> Reflector:
    """The one of this process: made where there is none."""
    return _shared.setdefault((client, path, labels), Reflector(client, path, labels))


class Reflector:
    """The objects below ``path`` that have ``labels``, as they are now. To be used on the loop of ``client``.

    The watch begins with the first user and ends ``LINGER`` seconds after the last one.
    """

    def __init__(self, client: Client, path: str, labels: str = "") -> None:
        self._client, self._path, self._labels = client, path, labels
        self._objects: dict[str, dict[str, Any]] = {}
        self._listed = False
        self._users: set[asyncio.Queue[Change | BaseException]] = set()
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None

    async def changes(self) -> AsyncGenerator[Change, None]:
        """``("LISTED", {"items": [...]})`` once, then each ``("ADDED" | "MODIFIED" | "DELETED", object)``, for ever.

        What went while nobody could tell is told as ``DELETED`` too, with the object as it was last seen. The objects
        are shared with the other users: they are for reading. Raises what the server refuses.
        """
        told: asyncio.Queue[Change | BaseException] = asyncio.Queue()
        self._join(told)
        try:
            while True:
                change = await told.get()
                if isinstance(change, BaseException):
                    raise change
                yield change
        finally:
            self._leave(told)

    def _join(self, user: asyncio.Queue[Change | BaseException]) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        self._users.add(user)
        if self._listed:
            user.put_nowait(self._all())
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def _leave(self, user: asyncio.Queue[Change | BaseException]) -> None:
        self._users.discard(user)
        if not self._users and self._task is not None:
            self._end = asyncio.get_running_loop().call_later(LINGER, self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._reset()

    def _reset(self) -> None:
        self._task, self._listed, self._objects = None, False, {}
        _shared.pop((self._client, self._path, self._labels), None)

    def _all(self) -> Change:
        return "LISTED", {"items": list(self._objects.values())}

    async def _run(self) -> None:
        try:
            async with aclosing(self._client.watch(self._path, labels=self._labels)) as changes:
                async for kind, thing in changes:
                    if kind == "LISTED":
                        self._replace(thing["items"])
                    else:
                        self._take(kind, thing)
        except Exception as error:  # each user raises it: none of them can go on
            for user in self._users:
                user.put_nowait(error)
            self._users.clear()
            self._reset()

    def _replace(self, items: list[dict[str, Any]]) -> None:
        """The list anew: what has changed since is told, and what is not in it any more has gone."""
        now = {_uid(thing): thing for thing in items}
        if not self._listed:
            self._objects, self._listed = now, True
            self._tell(self._all())
            return
        for gone in [thing for uid, thing in self._objects.items() if uid not in now]:
            self._take("DELETED", gone)
        for uid, thing in now.items():
            known = self._objects.get(uid)
            if known is None or _version(known) != _version(thing):
                self._take("ADDED" if known is None else "MODIFIED", thing)

    def _take(self, kind: str, thing: dict[str, Any]) -> None:
        if kind == "DELETED":
            self._objects.pop(_uid(thing), None)
        else:
            self._objects[_uid(thing)] = thing
        self._tell((kind, thing))

    def _tell(self, change: Change) -> None:
        for user in self._users:
            user.put_nowait(change)


def _uid(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["uid"])


def _version(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["resourceVersion"])
