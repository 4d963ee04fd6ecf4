"""What a backend is: the only place that knows how and where a job runs, and the only keeper of its state.

A backend holds nothing in memory that another client would need: two kernels, the server extension and the command
line are independent clients of the same jobs. To write one, implement ``JobBackend`` and name it in
``kfnb.backends.open_backend``.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kfnb.events import Batch, Cursor, JobEvent, Phase
from kfnb.record import Record
from kfnb.source import Bundle
from kfnb.spec import TrainSpec


@dataclass(frozen=True)
class Submission:
    """A job about to start.

    ``secret_env`` holds the values copied from the user's environment; a backend keeps them where only the job reads
    them, and nowhere else. ``until`` is (pid, start time in Unix seconds) of a process whose end stops the job: the
    kernel of a notebook that nobody can attach to.
    """

    record: Record
    bundle: Bundle
    secret_env: dict[str, str] = field(default_factory=dict, repr=False)
    until: tuple[int, float] | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def spec(self) -> TrainSpec:
        return self.record.spec


@dataclass(frozen=True, repr=False)
class JobInfo:
    """A job in a list. Times in Unix seconds; ``started`` is the first Running, ``ended`` the terminal phase."""

    id: str
    name: str
    backend: str
    phase: Phase
    reason: str
    created: float
    started: float | None
    ended: float | None
    nodes: int
    procs: int
    gpus: int
    attempt: int = 0
    owner: str = ""

    def __repr__(self) -> str:
        return f"JobInfo({self.id!r}, {self.phase}, {self.nodes} x {self.procs} ranks)"

    def as_dict(self) -> dict[str, Any]:
        return {name: str(value) if name == "phase" else value for name, value in self.__dict__.items()}


class JobBackend(Protocol):
    """Runs jobs and tells what they say.

    All methods raise ``KfnbError`` subclasses; ``NotFound`` for an unknown id.
    """

    #: "local", "kubernetes": the value of --backend.
    name: str

    async def check(self, spec: TrainSpec) -> list[str]:
        """Refuse at once what cannot run here (``BackendError``); return the notes to show before the start."""
        ...

    async def new_id(self, name: str) -> str:
        """An id ``NAME-xxxxx`` that no other job has, reserved for this client's submission."""
        ...

    async def plan(self, submission: Submission) -> str:
        """What ``submit`` would make, as text that a person can read (``--dry-run``)."""
        ...

    async def submit(self, submission: Submission) -> None:
        """Start the job and return as soon as its life no longer depends on this client."""
        ...

    async def list(self) -> list[JobInfo]:
        """All jobs of this user, newest first."""
        ...

    async def get(self, id: str) -> JobInfo: ...

    async def record(self, id: str) -> Record: ...

    async def bundle(self, id: str) -> Bundle: ...

    def events(self, id: str, cursor: Cursor | None = None, *, follow: bool = True) -> AsyncIterator[Batch]:
        """The job's stream from ``cursor`` (None: its beginning), each event once, over any number of calls.

        With ``follow`` it ends when the job has ended and everything was read; without, at what there is now.
        """
        ...

    async def recent(self, id: str) -> builtins.list[JobEvent]:
        """The newest part of a job whose log is long, to show at once while ``events`` is read from the beginning.

        Its phases, the last lines of every node, and every series from its first point to its last, thinned. Nothing
        of a job that is soon read as a whole. What is left out is no ``Gap``.
        """
        ...

    async def stop(self, id: str) -> None:
        """Ask the job to end (SIGTERM, its grace, SIGKILL); return when the request is made.

        A no-op once it has ended.
        """
        ...

    async def delete(self, id: str) -> None:
        """Remove an ended job and all that it left. ``BackendError`` while it runs."""
        ...

    async def stacks(self, id: str) -> str:
        """Ask every rank for its stacks; they arrive as ``Stacks`` events with the request's id, which is returned."""
        ...

    async def results(self, id: str) -> Path | None:
        """The local folder of rank 0's values in the format of ``kfnb_worker.values``; None where there are none."""
        ...
