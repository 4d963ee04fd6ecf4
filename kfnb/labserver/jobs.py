"""Jobs by the ids that pages say. Importing this is what takes time: it is done in a thread, at the first question."""

from __future__ import annotations

import asyncio
from importlib import metadata
from typing import Any

from kfnb.api import job_of

__all__ = ["info", "job_of", "status", "stop"]


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
