"""From a request to a job: what the magics, the command line and ``kfnb.train`` have in common."""

from __future__ import annotations

import asyncio
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfnb import portal
from kfnb.backends import backend_of, open_backend, submitted_to_clusters
from kfnb.backends.base import JobBackend, JobInfo, Submission
from kfnb.config import resolve, settings, working_directory
from kfnb.errors import KfnbError, NotFound, UsageError
from kfnb.job import Job
from kfnb.options import make_spec
from kfnb.record import Record, provenance
from kfnb.source import Bundle, cell_source, function_source, script_source
from kfnb.source.requirements import requirement_lines
from kfnb.spec import NAME_LIMIT, TrainSpec

if TYPE_CHECKING:
    from kfnb.backends.kubernetes.references import Reference

#: What an id can be: never a path.
_ID = re.compile(r"[a-z0-9][-a-z0-9]{0,99}")


@dataclass(frozen=True)
class Prepared:
    """A request that has been checked, and that nothing has been started for yet. ``notes`` are to be shown before."""

    spec: TrainSpec
    bundle: Bundle
    backend: JobBackend
    workdir: Path
    notes: list[str] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)

    async def submit(self, until: tuple[int, float] | None = None) -> Job:
        """Start the job. ``until``: (pid, start time) of a process whose end stops it. Raises ``BackendError``."""
        submission = await self._submission(await self.backend.new_id(self.spec.name), until)
        await self.backend.submit(submission)
        return Job(submission.id, self.backend)

    async def dry_run(self) -> str:
        """What ``submit`` would make, for a person to read: what travels, then the backend's plan."""
        plan = await self.backend.plan(await self._submission(f"{self.spec.name}-xxxxx", None))
        return "\n".join([*self._contents(), plan])

    def _contents(self) -> Iterator[str]:
        bundle = self.bundle
        lines = len(bundle.main.splitlines())
        yield f"Code: {lines} lines, {len(bundle.data):,} bytes in all, sha256 {bundle.sha256[:12]}"
        modules = sorted(name for name in bundle.files if name != "main.py" and not name.startswith("_kfnb/"))
        small = bundle.values
        parts = {
            "Values": [f"{name} = {small[name]!r}" if name in small else name for name in bundle.captured],
            "Definitions": bundle.shipped_definitions,
            "Modules": modules,
            "Packages": self.spec.pip,
            "Brings back": self.spec.out,
        }
        yield from (f"{title}: {', '.join(items)}" for title, items in parts.items() if items)

    async def _submission(self, id: str, until: tuple[int, float] | None) -> Submission:
        facts = await asyncio.to_thread(provenance, self.workdir)
        record = Record(
            id=id,
            spec=self.spec,
            bundle_sha256=self.bundle.sha256,
            code=self.bundle.main,
            first_line=self.bundle.first_line,
            values=self.bundle.values,
            definitions=tuple(self.bundle.shipped_definitions),
            **facts,
            **self.origin,
        )
        return Submission(record, self.bundle, _copied_environment(self.spec), until)


def _copied_environment(spec: TrainSpec) -> dict[str, str]:
    missing = [name for name in spec.env_copies if name not in os.environ]
    if missing:
        raise UsageError(
            f"--env {' --env '.join(missing)}: not set in your environment, so that there is nothing to copy.",
            fix=f"Set it first (`%env {missing[0]}=...`), or give the value: --env {missing[0]}=VALUE.",
        )
    return {name: os.environ[name] for name in spec.env_copies}


async def _prepare(
    spec: TrainSpec, bundle: Bundle, workdir: Path, *, notes: Sequence[str] = (), **origin: Any
) -> Prepared:
    backend = open_backend(spec.backend, context=spec.context, namespace=spec.namespace)
    found = [*notes, *bundle.notes, *await backend.check(spec)]
    _copied_environment(spec)  # refused now, before anything is made
    return Prepared(spec, bundle, backend, workdir, found, {k: v for k, v in origin.items() if v is not None})


async def prepare_cell(
    body: str,
    given: Mapping[str, Any],
    *,
    first_line: int,
    namespace: Mapping[str, object],
    history: Sequence[str] = (),
    notebook: str | None = None,
    cell_id: str | None = None,
    cwd: Path | None = None,
) -> Prepared:
    """A ``%%kftrain`` cell's body with the options of its line.

    Raises ``UsageError`` and its kin for what cannot run.
    """
    workdir = cwd or working_directory()
    spec = resolve(given, workdir)
    bundle = cell_source(
        body,
        first_line=first_line,
        namespace=namespace,
        use=spec.use,
        out=spec.out,
        modules=spec.module,
        pip=requirement_lines(spec.pip, workdir),
        cwd=workdir,
        history=history,
    )
    return await _prepare(spec, bundle, workdir, notebook=notebook, cell_id=cell_id)


async def prepare_source(
    source: str | Path | Callable[..., object],
    given: Mapping[str, Any],
    *,
    kwargs: Mapping[str, object] | None = None,
    cwd: Path | None = None,
) -> Prepared:
    """A script's path, a function (with ``kwargs``), or code as text."""
    workdir = cwd or working_directory()
    if settings(given, workdir)["name"].source == "default":
        given = {**_named_after(source), **given}
    spec = resolve(given, workdir)
    shared: dict[str, Any] = {"out": spec.out, "modules": spec.module, "cwd": workdir}
    shared["pip"] = requirement_lines(spec.pip, workdir)
    if callable(source):
        bundle = function_source(source, dict(kwargs or {}), **shared)
    elif _is_path(source):
        bundle = script_source(Path(source), **shared)
    else:
        bundle = cell_source(str(source), first_line=1, namespace=None, use=(), **shared)
    if spec.use:
        raise UsageError(
            "--use ships values of a notebook, and there is none here.", fix="Pass them as kwargs=, or after --."
        )
    return await _prepare(spec, bundle, workdir)


def _named_after(source: str | Path | Callable[..., object]) -> dict[str, str]:
    """A job of a script or function has its name, as far as a job may be called so."""
    if callable(source):
        text = getattr(source, "__name__", "")
    else:
        text = Path(source).stem if _is_path(source) else ""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:NAME_LIMIT].rstrip("-")
    return {"name": name} if name[:1].isalpha() else {}


def _is_path(source: str | Path) -> bool:
    return isinstance(source, Path) or ("\n" not in source and source.endswith(".py"))


async def prepare_again(id: str, given: Mapping[str, Any], values: Mapping[str, object] | None = None) -> Prepared:
    """The job ``id`` again from its record, with changed options and captured values."""
    job = await find(id)
    record = await job.arecord()
    spec = make_spec({**record.spec.model_dump(exclude_defaults=True, exclude={"detach", "dry_run"}), **given})
    bundle = await job._backend.bundle(job.id)
    if values:
        bundle = bundle.with_values(dict(values))
    workdir = Path(record.workdir)
    notes = []
    if not workdir.is_dir():
        notes.append(f"{workdir}, where {job.id} ran, is gone; the job starts in {working_directory()}.")
        workdir = working_directory()
    return await _prepare(
        spec, bundle, workdir, notes=notes, notebook=record.notebook, cell_id=record.cell_id, again=job.id
    )


async def list_jobs() -> list[JobInfo]:
    """All jobs of this user, newest first: on this machine, and in the places on clusters where they have some.

    A cluster that does not answer is left out.
    """
    places = {(one.file, one.context, one.namespace): backend for one, backend in await _submitted()}
    infos = await open_backend("local").list()
    for listed in await asyncio.gather(*(backend.list() for backend in places.values()), return_exceptions=True):
        if isinstance(listed, list):
            infos += listed
        elif not isinstance(listed, KfnbError):
            raise listed
    return sorted(infos, key=lambda info: info.created, reverse=True)


async def _submitted() -> list[tuple[Reference, JobBackend]]:
    return await asyncio.to_thread(submitted_to_clusters)


async def find(name: str) -> Job:
    """The job with this id, else the user's newest of this name. Raises ``NotFound``, naming the likely ones."""
    local = open_backend("local")
    there: list[tuple[JobInfo | Reference, JobBackend]] = [(info, local) for info in await local.list()]
    there = sorted([*there, *await _submitted()], key=lambda one: one[0].created, reverse=True)
    for match, backend in (one for key in ("id", "name") for one in there if getattr(one[0], key) == name):
        return Job(match.id, backend)
    known = [one.id for one, _ in there] + [one.name for one, _ in there]
    near = list(dict.fromkeys(difflib.get_close_matches(name, known, n=4)))
    hint = f"Did you mean {', '.join(near)}?" if near else "`%kfjobs` (or `kfnb jobs`) lists those there are."
    raise NotFound(f"There is no job {name!r}.", fix=hint)


async def captured_names(name: str) -> list[str]:
    """The captured values of a job, which a repeat can change. Raises ``NotFound``."""
    job = await find(name)
    return (await job._backend.bundle(job.id)).captured


# -- the sync API that ``import kfnb`` gives ---------------------------------------------------------------------


def train(
    source: str | Path | Callable[..., object], *, kwargs: Mapping[str, object] | None = None, **options: Any
) -> Job:
    """Run a function, a script's path or code as a distributed job, and wait for it unless ``detach=True``.

    ``options`` are the fields of ``TrainSpec`` (``nodes=2, procs_per_node=2, out="model"``); ``kwargs`` go to the
    function. Raises ``UsageError`` before the start, ``JobFailed`` with the first failing rank's traceback after it.
    """
    prepared = portal.call(prepare_source(source, options, kwargs=kwargs))
    if prepared.spec.dry_run:
        raise UsageError(
            "dry_run shows, and kfnb.train runs.", fix="Use `kfnb train --dry-run`, or %%kftrain --dry-run."
        )
    job = portal.call(prepared.submit())
    return job if prepared.spec.detach else job.wait()


def jobs() -> list[JobInfo]:
    """All jobs of this user, newest first."""
    return portal.call(list_jobs())


def job_of(id: Any) -> Job:
    """The job with this id, which a page says, without looking whether there is one.

    Raises ``NotFound`` for what cannot be an id.
    """
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise NotFound(
            "There is no such job.", "That is no job's id.", "`%kfjobs` (or `kfnb jobs`) lists those there are."
        )
    return Job(id, backend_of(id))


def attach(name: str) -> Job:
    """The job with this id, or the newest of this name. Raises ``NotFound``."""
    return portal.call(find(name))
