"""The handle of a job: what users hold. Sync for them; the methods with an ``a`` in front are the async core.

A handle has no state of its own: the job lives in its backend, and any number of handles in any number of processes see
the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfnb import portal
from kfnb.errors import BackendError, JobFailed, JobLost, JobStopped, KfnbError, NotFound, UsageError
from kfnb.events import Batch, Cursor, Failure, JobEvent, LogLine, Phase, PhaseChanged, Points, Stacks
from kfnb.failures import OUT_ADVICE, Failures, advice, cell_stacks, explain
from kfnb.series import SeriesStore

if TYPE_CHECKING:
    from kfnb.backends.base import JobBackend, JobInfo
    from kfnb.record import Record

#: How long ``stacks`` waits for the ranks' answers, in seconds.
STACKS_DEADLINE = 15.0


class Job:
    """A job of any backend, running or ended."""

    def __init__(self, id: str, backend: JobBackend) -> None:
        self.id, self._backend = id, backend

    def __repr__(self) -> str:
        return f"Job({self.id!r}, backend={self.backend!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self.backend) == (other.id, other.backend)

    def __hash__(self) -> int:
        return hash((self.id, self.backend))

    @property
    def name(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def backend(self) -> str:
        return self._backend.name

    # -- the sync API ------------------------------------------------------------------------------------------

    @property
    def info(self) -> JobInfo:
        """Phase, times and size as they are now. Raises ``NotFound`` once the job is deleted."""
        return portal.call(self.ainfo())

    @property
    def phase(self) -> Phase:
        return self.info.phase

    @property
    def record(self) -> Record:
        """What was asked for, the code, small values, and where it came from."""
        return portal.call(self.arecord())

    def wait(self, timeout: float | None = None) -> Job:
        """Wait for the end, at most ``timeout`` seconds.

        Raises ``JobFailed`` (``JobStopped``, ``JobLost``) where it did not succeed, ``TimeoutError`` where it goes on.
        """
        portal.call(self.await_end(timeout))
        return self

    def events(self, cursor: Cursor | None = None, *, follow: bool = True) -> Iterator[Batch]:
        """The job's stream from ``cursor`` on, as it happens, until the end (or, without ``follow``, until now)."""
        return portal.iterate(self.astream(cursor, follow=follow))

    def logs(self, rank: int | None = None, *, follow: bool = False, tail: int | None = None) -> Iterator[LogLine]:
        """The lines that the ranks printed (of one ``rank``), the last ``tail`` of them, without transient ones.

        An iterator; raises ``UsageError`` for a rank that the job does not have.
        """
        portal.call(self.acheck_rank(rank))
        kept: deque[LogLine] = deque(maxlen=tail)
        cursor: Cursor | None = None
        for batch in self.events(follow=False):
            cursor = batch.cursor
            lines = [event for event in batch.events if _wanted(event, rank)]
            if tail is None:
                yield from lines  # type: ignore[misc]
            else:
                kept.extend(lines)  # type: ignore[arg-type]
        yield from kept
        if follow:
            for batch in self.events(cursor):
                yield from (event for event in batch.events if _wanted(event, rank))  # type: ignore[misc]

    def scalars(self) -> SeriesStore:
        """All series up to now, as numpy arrays by ``SeriesKey(run, rank, tag)``;

        ``.find(tag)`` and ``.to_pandas()`` too.
        """
        return portal.call(self.ascalars())

    def stop(self, *, wait: bool = True) -> Job:
        """Ask the ranks to end (SIGTERM, the job's grace, SIGKILL) and, unless told otherwise, wait until they have."""
        portal.call(self.astop(wait=wait))
        return self

    def delete(self) -> None:
        """Remove the ended job and everything that it left. Raises ``BackendError`` while it runs."""
        portal.call(self.adelete())

    def stacks(self) -> dict[int, str]:
        """The Python stacks of all threads of every rank, now."""
        return portal.call(self.astacks())

    def result(self, *, partial: bool = False) -> dict[str, Any]:
        """Rank 0's values by name (``--out``), once the job has succeeded; waits for that, and raises as ``wait`` does.

        Raises ``KfnbError`` where a name could not be brought back, saying why; with ``partial`` gives what there is.
        """
        return portal.call(self.aresult(partial=partial))

    def export(self, path: str | Path) -> Path:
        """Write the job as plain files into the new folder ``path``: code, record, log, scalars, results."""
        from kfnb.export import export

        return portal.call(export(self._backend, self.id, Path(path)))

    # -- the async core, on the portal's loop ------------------------------------------------------------------

    def astream(self, cursor: Cursor | None = None, *, follow: bool = True) -> AsyncIterator[Batch]:
        return self._backend.events(self.id, cursor, follow=follow)

    async def arecent(self) -> list[JobEvent]:
        """The newest part of a long log, to show while ``astream`` is read; nothing of a short one."""
        return await self._backend.recent(self.id)

    async def ainfo(self) -> JobInfo:
        return await self._backend.get(self.id)

    async def arecord(self) -> Record:
        return await self._backend.record(self.id)

    async def await_end(self, timeout: float | None = None) -> None:
        try:
            phase, reason, failure = await asyncio.wait_for(self._last_word(), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"{self.id} has not ended after {timeout:g} s; it goes on.") from None
        raise_unless_succeeded(self, phase, reason, failure)

    async def _last_word(self) -> tuple[Phase, str, Failure | None]:
        phase, reason, failures = Phase.SUBMITTING, "", Failures()
        async for batch in self.astream():
            for event in batch.events:
                if isinstance(event, (PhaseChanged, Failure)):
                    failures.add(event)
                if isinstance(event, PhaseChanged):
                    phase, reason = event.phase, event.reason
        return phase, reason, failures.first

    async def acheck_rank(self, rank: int | None) -> None:
        """Raise ``UsageError`` for a rank that the job does not have."""
        info = await self.ainfo()
        if rank is not None and not 0 <= rank < info.nodes * info.procs:
            raise UsageError(f"{self.id} has no rank {rank}; it has ranks 0 to {info.nodes * info.procs - 1}.")

    async def ascalars(self) -> SeriesStore:
        store = SeriesStore()
        async for batch in self.astream(follow=False):
            for event in batch.events:
                if isinstance(event, Points):
                    store.add(event)
        return store

    async def astop(self, *, wait: bool = True) -> None:
        await self._backend.stop(self.id)
        if wait:
            with contextlib.suppress(NotFound):  # where a job goes with its stop
                async for _ in self.astream():
                    pass

    async def adelete(self) -> None:
        await self._backend.delete(self.id)

    async def astacks(self) -> dict[int, str]:
        info = await self.ainfo()
        if info.phase.terminal:
            raise BackendError(f"{self.id} has ended ({info.phase}); there are no stacks to show.")
        cursor: Cursor | None = None
        async for batch in self.astream(follow=False):
            cursor = batch.cursor
        request = await self._backend.stacks(self.id)
        found: dict[int, str] = {}
        deadline = time.monotonic() + STACKS_DEADLINE
        stream = self.astream(cursor)
        try:
            while len(found) < info.nodes * info.procs:
                batch = await asyncio.wait_for(anext(stream), deadline - time.monotonic())
                found.update((e.rank, e.text) for e in batch.events if isinstance(e, Stacks) and e.request == request)
        except (asyncio.TimeoutError, StopAsyncIteration):
            if not found:
                raise BackendError(
                    f"No rank of {self.id} answered with its stacks.",
                    "The ranks may not have started yet, or just ended.",
                    f"Try again, or see `%kflogs {self.id}`.",
                ) from None
        first_line = (await self.arecord()).first_line
        return {rank: cell_stacks(text, first_line) for rank, text in sorted(found.items())}

    async def aresult(self, *, partial: bool = False) -> dict[str, Any]:
        await self.await_end()
        values, errors = await self.aresults()
        if errors and not partial:
            raise incomplete(self, errors)
        return values

    async def aresults(self) -> tuple[dict[str, Any], dict[str, str]]:
        """(values by name, why a name has none): without waiting, and without raising for a part."""
        asked = (await self.arecord()).spec.out
        folder = await self._backend.results(self.id)
        stored: dict[str, Any] = {}
        errors: dict[str, str] = {}
        if folder is not None and asked:
            from kfnb_worker import values

            stored, errors = await asyncio.to_thread(values.load_results, str(folder))
        # a job decides what it stores, and nothing but what was asked for is taken from it
        found = {name: stored[name] for name in asked if name in stored}
        unexplained = [name for name in asked if name not in stored and name not in errors and "*" not in errors]
        return found, {**errors, **{name: f"{name}: rank 0 stored no such value" for name in unexplained}}


def _wanted(event: object, rank: int | None) -> bool:
    return isinstance(event, LogLine) and not event.transient and (rank is None or event.rank == rank)


def incomplete(job: Job, errors: dict[str, str]) -> KfnbError:
    """The error of a job that succeeded without bringing back all that was asked for."""
    return KfnbError(f"{job.id} succeeded, and not all of --out came back.", "; ".join(errors.values()), OUT_ADVICE)


def raise_unless_succeeded(job: Job, phase: Phase, reason: str, failure: Failure | None) -> None:
    """Raise the error that says how the job ended, unless it succeeded."""
    if phase is Phase.SUCCEEDED:
        return
    kind = {Phase.STOPPED: JobStopped, Phase.LOST: JobLost}.get(phase, JobFailed)
    if phase is Phase.FAILED and failure is not None:
        reason = explain(failure)
    raise kind(
        f"{job.id} {phase.value.lower()}: {reason}" if reason else f"{job.id} {phase.value.lower()}.",
        fix=advice(phase, job.id, failure),
        job=job,
        failure=failure if phase is Phase.FAILED else None,
    )
