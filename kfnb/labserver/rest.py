"""The questions that are answered once: the server's version, a job, and its stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from importlib import import_module
from types import ModuleType
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado.web import authenticated

from kfnb import portal
from kfnb.errors import KfnbError, NotFound, UsageError

#: What a user must be allowed to read or to write, where the server has rules for its users.
RESOURCE = "kfnb"

_STATUS: list[tuple[type[KfnbError], int]] = [(NotFound, 404), (UsageError, 400), (KfnbError, 500)]


async def load(name: str) -> ModuleType:
    """The module, imported in a thread: that can take a second, and the server answers others meanwhile."""
    return await asyncio.to_thread(import_module, name)


class _Handler(APIHandler):
    auth_resource = RESOURCE

    async def _answer(self, ask: Callable[[ModuleType], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        """Answer with what ``ask`` gives, given ``kfnb.labserver.jobs``, or with an error's three parts."""
        jobs = await load("kfnb.labserver.jobs")
        try:
            answer = await portal.wait(ask(jobs))
        except KfnbError as error:
            self.set_status(next(status for kind, status in _STATUS if isinstance(error, kind)))
            parts = {"what": error.what, "why": error.why, "fix": error.fix}
            # "message" is what Jupyter's own code shows of a refusal
            answer = {"message": " ".join(filter(None, parts.values())), **parts}
        await self.finish(json.dumps(answer))


class StatusHandler(_Handler):
    @authenticated
    @authorized
    async def get(self) -> None:
        """A page asks this at its start, and what a job's view needs is ready when it has one to show."""
        for name in ("kfnb.views.feed", "numpy"):
            await load(name)
        await self._answer(lambda jobs: jobs.status())


class JobHandler(_Handler):
    @authenticated
    @authorized
    async def get(self, id: str) -> None:
        await self._answer(lambda jobs: jobs.info(id))


class StopHandler(_Handler):
    @authenticated
    @authorized
    async def post(self, id: str) -> None:
        await self._answer(lambda jobs: jobs.stop(id))
