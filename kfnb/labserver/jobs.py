"""Jobs by the ids that pages say. Importing this is what takes time: it is done in a thread, at the first question."""

from __future__ import annotations

import asyncio
import re
from importlib import metadata
from typing import Any

from kfnb.backends import open_backend
from kfnb.errors import NotFound
from kfnb.job import Job

#: What an id can be: never a path.
_ID = re.compile(r"[a-z0-9][-a-z0-9]{0,99}")


def job_of(id: Any) -> Job:
    """The job ``id``, without looking whether there is one. Raises ``NotFound`` for what cannot be an id."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise NotFound(
            "There is no such job.", "That is no job's id.", "`%kfjobs` (or `kfnb jobs`) lists those there are."
        )
    return Job(id, open_backend())


async def status() -> dict[str, Any]:
    try:
        return {"version": await asyncio.to_thread(metadata.version, "kfnb")}
    except metadata.PackageNotFoundError:  # the sources, used as they are
        return {"version": None}


async def info(id: str) -> dict[str, Any]:
    return (await job_of(id).ainfo()).as_dict()


async def stop(id: str) -> dict[str, Any]:
    """Ask the job to stop, without waiting for its end."""
    job = job_of(id)
    await job.astop(wait=False)
    return {"phase": str((await job.ainfo()).phase)}
