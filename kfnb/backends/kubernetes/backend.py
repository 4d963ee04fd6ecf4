"""``KubernetesBackend``: jobs as objects of a namespace. It keeps no state of its own."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfnb import portal
from kfnb.backends.base import JobInfo, Submission
from kfnb.backends.kubernetes import names, references
from kfnb.backends.kubernetes.access import Access, find
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.discovery import Offer, choose, discover
from kfnb.backends.kubernetes.errors import ApiError
from kfnb.backends.kubernetes.follow import Where, follow
from kfnb.backends.kubernetes.manifests import build
from kfnb.backends.kubernetes.phases import life_of
from kfnb.backends.kubernetes.pods import seconds
from kfnb.backends.kubernetes.references import Reference
from kfnb.backends.kubernetes.target import Kind, Target
from kfnb.errors import BackendError, NotFound, UsageError
from kfnb.events import Batch, Cursor, JobEvent, Phase, PhaseChanged, ResultPiece
from kfnb.home import home
from kfnb.record import Record
from kfnb.source import Bundle
from kfnb.spec import TrainSpec, option_name

#: Where the objects of each kind are, below a namespace.
_COLLECTIONS: dict[str, tuple[str, str]] = {
    "trainjob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "pytorchjob": ("/apis/kubeflow.org/v1", "pytorchjobs"),
    "job": ("/apis/batch/v1", "jobs"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
}
_KINDS = {"TrainJob": "trainjob", "PyTorchJob": "pytorchjob", "Job": "job"}

#: Seconds for which what a cluster offers is taken to stay so.
_OFFER = 300.0

#: Seconds after which what a submission made, that was cut off before its job, is removed.
_ORPHAN = 600.0

#: Options that this backend does not heed yet, and that would be missed.
_NOT_YET = ("pip", "workspace", "logdir", "checkpoint")

_CODE = re.compile(r".*-code-\d+")
_RESULT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_RESULTS_LIMIT = 2 << 20

#: One client and one answer of what it offers for each cluster that this process talks to.
_clients: dict[tuple[int, str | None, str], Client] = {}
_offers: dict[tuple[str | None, str, str], tuple[float, Offer]] = {}


class KubernetesBackend:
    """Runs jobs on the cluster of ``context``, in ``namespace``. See ``kfnb.backends.base.JobBackend``."""

    name = "kubernetes"

    def __init__(self, context: str | None = None, namespace: str | None = None, file: str | None = None) -> None:
        self._context, self._namespace, self._file = context, namespace, file
        self._found: Access | None = None

    async def check(self, spec: TrainSpec) -> builtins.list[str]:
        missed = [f"--{option_name(name)}" for name in _NOT_YET if getattr(spec, name)]
        if missed:
            raise UsageError(
                f"{', '.join(missed)}: not on a cluster yet.",
                "The pods of a job have neither this machine's folders nor a package index.",
                "Leave it out, and take an --image that has what the job needs; or --backend local.",
            )
        target = await self._target(spec)
        kept = "What is kept of each node's output is what the cluster keeps: the newest 10 MiB, until its pod is gone."
        notes = [f"{_where(target)}. {kept}"]
        if not target.secrets:
            notes.append(
                "You may not make Secrets here: what the job's nodes know each other by lies in a ConfigMap, where all"
                f" who may read those of {target.namespace} can see it."
            )
        if spec.ttl is not None and target.kind == "trainjob":
            raise UsageError(
                "--ttl: a TrainJob has none.", fix="Leave it out (`%kfdelete` removes the job), or take --kind job."
            )
        if target.runtime is not None and not target.runtime.ours:
            notes.append(
                f"{target.runtime.name} is no runtime for notebooks: after a failure the cluster starts the containers"
                " again for a while, and then removes them with their output."
            )
        return notes

    async def new_id(self, name: str) -> str:
        """Not reserved: what is made first is refused where there is one of its name already."""
        return f"{name}-{''.join(secrets.choice('abcdefghijklmnopqrstuvwxyz0123456789') for _ in range(5))}"

    async def plan(self, submission: Submission) -> str:
        import yaml

        target = await self._target(submission.spec)
        manifests = [_shown(manifest) for manifest in build(submission, target, "")]
        return f"{_where(target)}, as:\n" + yaml.safe_dump_all(manifests, sort_keys=False)

    async def submit(self, submission: Submission) -> None:
        client, target = self._client(), await self._target(submission.spec)
        *beside, wanted = build(submission, target, secrets.token_hex(32))
        there: builtins.list[dict[str, Any]] = []

        async def make(manifest: dict[str, Any]) -> dict[str, Any]:
            collection = self._collection(_KINDS.get(manifest["kind"], manifest["kind"]))
            made = await client.create(collection, manifest, fieldValidation="Strict")
            there.append(manifest)
            return made

        try:
            for result in await asyncio.gather(*map(make, beside), return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            job = await make(wanted)
        except BaseException:
            await self._undo(there)
            raise
        owner = {
            "apiVersion": wanted["apiVersion"],
            "kind": wanted["kind"],
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        owned = {"metadata": {"ownerReferences": [owner]}}
        text, data = submission.record.model_dump_json(), submission.bundle.data
        await asyncio.gather(
            asyncio.to_thread(references.remember, self._reference(submission.record), text, data),
            *(client.patch(self._path(manifest), owned) for manifest in beside),
        )

    async def _undo(self, manifests: builtins.list[dict[str, Any]]) -> None:
        for manifest in reversed(manifests):
            with contextlib.suppress(BackendError):
                await asyncio.shield(self._client().delete(self._path(manifest)))

    # -- looking ---------------------------------------------------------------------------------------------------

    async def list(self) -> builtins.list[JobInfo]:
        client, offer = self._client(), await self._offer()
        infos = []
        for kind in offer.kinds:
            with contextlib.suppress(ApiError):  # a kind that the user may not list
                async for page in client.list(self._collection(kind), labels=f"{names.MANAGED_BY}=kfnb"):
                    infos += [_info(kind, item) for item in page.get("items") or []]
        await self._sweep({info.id for info in infos})
        return sorted(infos, key=lambda info: info.created, reverse=True)

    async def get(self, id: str) -> JobInfo:
        try:
            kind, job = await self._job(id)
        except NotFound:
            stopped = await asyncio.to_thread(references.recall, id)
            if stopped is None or stopped.stopped is None:
                raise
            return _info_of_stopped(stopped, await self.record(id))
        return _info(kind, job)

    async def record(self, id: str) -> Record:
        kept = await asyncio.to_thread(references.kept, id, "record.json")
        if kept is None:
            kept = (await self._code(id))[0]["data"]["record.json"]
        return Record.model_validate_json(kept)

    async def bundle(self, id: str) -> Bundle:
        import base64

        kept = await asyncio.to_thread(references.kept, id, "bundle.zip")
        if kept is not None:
            return Bundle.from_bytes(kept)
        parts = {
            name: base64.b64decode(content)
            for part in await self._code(id)
            for name, content in (part.get("binaryData") or {}).items()
            if name.startswith("bundle-")
        }
        return Bundle.from_bytes(b"".join(parts[name] for name in sorted(parts)))

    async def events(self, id: str, cursor: Cursor | None = None, *, follow: bool = True) -> AsyncIterator[Batch]:
        try:
            kind, job = await self._job(id)
        except NotFound:
            info = await self.get(id)  # it was stopped, and no more of it is known than that
            told = [str(info.phase), info.reason]
            if (cursor or {}).get("phase") != told:
                end = PhaseChanged(info.phase, info.reason, info.ended or info.created)
                yield Batch([end], {"phase": told, "nodes": {}})
            return
        first_line = _summary(job).get("first_line", 1)
        where = Where(kind, f"{self._collection(kind)}/{id}", self._access().namespace, id)
        stream = _follow(self._client(), where, cursor, to_end=follow, first_line=first_line)
        async with contextlib.aclosing(stream) as batches:
            async for batch in batches:
                yield batch

    async def recent(self, id: str) -> builtins.list[JobEvent]:
        return []  # what a cluster keeps of a log is soon read as a whole

    async def results(self, id: str) -> Path | None:
        _, job = await self._job(id)
        folder = home() / "kubernetes" / str(job["metadata"]["uid"]) / "results"
        if not await asyncio.to_thread(folder.is_dir):
            pieces = [
                event
                async for batch in self.events(id, follow=False)
                for event in batch.events
                if isinstance(event, ResultPiece)
            ]
            if not pieces:
                return None
            await asyncio.to_thread(_store, pieces, folder)
        return folder

    async def stacks(self, id: str) -> str:
        raise BackendError(
            f"{id} cannot be asked for its stacks.", "Its pods cannot be reached from outside of the cluster."
        )

    # -- changing --------------------------------------------------------------------------------------------------

    async def stop(self, id: str) -> None:
        kind, job = await self._job(id)
        if life_of(kind, job, ()).phase.terminal:
            return
        path = f"{self._collection(kind)}/{id}"
        asked = {"metadata": {"annotations": {names.STOPPED: f"{time.time():.3f}"}}}
        await self._client().patch(path, asked)
        # in the foreground: the job's object stays until its pods have had their grace and ended
        await self._client().delete(path, propagationPolicy="Foreground")
        reference = await asyncio.to_thread(references.recall, id) or self._reference(await self.record(id))
        await asyncio.to_thread(references.remember, replace(reference, stopped=time.time()))

    async def delete(self, id: str) -> None:
        phase = (await self.get(id)).phase
        if not phase.terminal:
            raise BackendError(f"{id} is not deleted: it is {phase}.", fix=f"`%kfstop {id}` ends it and removes it.")
        with contextlib.suppress(NotFound):  # it went with its stop
            kind, _ = await self._job(id)
            await self._client().delete(f"{self._collection(kind)}/{id}", propagationPolicy="Background")
        await asyncio.to_thread(references.forget, id)

    async def _sweep(self, ids: set[str]) -> None:
        """Remove what a submission made that was cut off before its job was there."""
        for kind in ("ConfigMap", "Secret", "Service"):
            with contextlib.suppress(BackendError):  # another client's, or without the right to it
                async for page in self._client().list(self._collection(kind), labels=f"{names.MANAGED_BY}=kfnb"):
                    for item in page.get("items") or []:
                        metadata = item["metadata"]
                        age = time.time() - seconds(metadata.get("creationTimestamp"))
                        orphan = not metadata.get("ownerReferences") and metadata["labels"].get(names.JOB) not in ids
                        if orphan and age > _ORPHAN:
                            await self._client().delete(f"{self._collection(kind)}/{metadata['name']}")

    # -- the cluster -----------------------------------------------------------------------------------------------

    def _access(self) -> Access:
        if self._found is None:
            if find_spec("kubernetes") is None:
                raise BackendError(
                    "kfnb cannot talk to a cluster here.",
                    "The package kubernetes is not installed.",
                    "pip install 'kfnb[kubernetes]', or run on this machine: --backend local.",
                )
            self._found = find(self._context, self._namespace, self._file)
        if self._found is None:
            raise BackendError(
                "There is no cluster to train on.",
                "There is no kubeconfig with a current context, and no service account of a pod.",
                "Name one (--context, or $KUBECONFIG), or run on this machine: --backend local.",
            )
        return self._found

    def _path(self, manifest: dict[str, Any]) -> str:
        """Of the object that is made beside a job, or the job itself."""
        kind = _KINDS.get(manifest["kind"], manifest["kind"])
        return f"{self._collection(kind)}/{manifest['metadata']['name']}"

    def _reference(self, record: Record) -> Reference:
        access = self._access()
        return Reference(
            record.id, record.spec.name, access.file, access.context, access.namespace, record.created
        )

    def _client(self) -> Client:
        access = self._access()
        key = (id(portal.loop()), access.file, access.context)
        if key not in _clients:
            _clients[key] = Client(access)
        return _clients[key]

    async def _offer(self) -> Offer:
        access = self._access()
        key = (access.file, access.context, access.namespace)
        if key not in _offers or time.monotonic() - _offers[key][0] > _OFFER:
            _offers[key] = time.monotonic(), await discover(self._client(), access.namespace)
        return _offers[key][1]

    async def _target(self, spec: TrainSpec) -> Target:
        return choose(spec, await self._offer(), self._access())

    def _collection(self, kind: str) -> str:
        group, plural = _COLLECTIONS[kind]
        return f"{group}/namespaces/{self._access().namespace}/{plural}"

    async def _job(self, id: str) -> tuple[Kind, dict[str, Any]]:
        """The job's object, of whichever kind it is."""
        for kind in (await self._offer()).kinds:
            try:
                job = await self._client().get(f"{self._collection(kind)}/{id}")
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                continue
            if (job["metadata"].get("labels") or {}).get(names.JOB) == id:
                return kind, job
        raise NotFound(f"There is no job {id} in {self._access().namespace} ({self._access().how}).")

    async def _code(self, id: str) -> builtins.list[dict[str, Any]]:
        found: builtins.list[dict[str, Any]] = []
        async for page in self._client().list(self._collection("ConfigMap"), labels=f"{names.JOB}={id}"):
            found += [item for item in page.get("items") or [] if _CODE.fullmatch(item["metadata"]["name"])]
        if not found:
            raise NotFound(f"The code of {id} is not in {self._access().namespace}.")
        return sorted(found, key=lambda part: int(part["metadata"]["name"].rpartition("-")[2]))


_follow = follow  # the methods' parameter of the same name hides it


def _info(kind: Kind, job: dict[str, Any]) -> JobInfo:
    metadata = job["metadata"]
    labels, life = metadata.get("labels") or {}, life_of(kind, job, ())
    summary = _summary(job)
    return JobInfo(
        id=metadata["name"],
        name=labels.get(names.NAME) or metadata["name"].rpartition("-")[0],
        backend=KubernetesBackend.name,
        phase=life.phase,
        reason=life.reason,
        created=life.created,
        started=life.started,
        ended=life.ended,
        nodes=summary.get("nodes", 0),
        procs=summary.get("procs", 0),
        gpus=summary.get("gpus", 0),
        owner=labels.get(names.OWNER) or "",
    )


def _info_of_stopped(reference: Reference, record: Record) -> JobInfo:
    """A job whose objects went with its stop."""
    spec = record.spec
    return JobInfo(
        id=reference.id,
        name=reference.name,
        backend=KubernetesBackend.name,
        phase=Phase.STOPPED,
        reason="it was stopped on request",
        created=reference.created,
        started=None,
        ended=reference.stopped,
        nodes=spec.nodes,
        procs=spec.procs,
        gpus=spec.gpus,
        owner=record.owner,
    )


def _summary(job: dict[str, Any]) -> dict[str, int]:
    """What the job's object says of its size; empty where somebody has changed that."""
    try:
        told = json.loads((job["metadata"].get("annotations") or {})[names.SUMMARY])
        return {name: int(number) for name, number in told.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _where(target: Target) -> str:
    """Where a job goes, for a person."""
    kind = next(word for word, name in _KINDS.items() if name == target.kind)
    runtime = f" of the runtime {target.runtime.name}" if target.runtime is not None else ""
    image = f"image {target.image}" if target.image is not None else "the runtime's own image"
    context = f"context {target.context}" if target.context else "this pod's cluster"
    return f"A {kind}{runtime} in the namespace {target.namespace} ({context}), {image}"


def _shown(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest for a person to read: sizes in place of bytes and of secrets."""
    shown = dict(manifest)
    if manifest["kind"] == "Secret":
        shown["data"] = dict.fromkeys(manifest["data"], "(secret)")
    if "binaryData" in manifest:
        shown["binaryData"] = {
            name: f"({len(content) * 3 // 4:,} bytes)" for name, content in manifest["binaryData"].items()
        }
    return shown


def _store(pieces: builtins.list[ResultPiece], folder: Path) -> None:
    """Rank 0's result files, whole or not at all. What a job says is not trusted: names stay below the folder."""
    files: dict[str, dict[int, bytes]] = {}
    counts = {piece.name: piece.count for piece in pieces}
    for piece in pieces:
        files.setdefault(piece.name, {})[piece.index] = piece.data
    size = sum(len(piece.data) for piece in pieces)
    for name, parts in files.items():
        if not _RESULT.fullmatch(name) or sorted(parts) != list(range(counts[name])) or size > _RESULTS_LIMIT:
            raise BackendError(
                "The results of this job cannot be read.", f"{name[:100]!r} did not come whole by its log."
            )
    new = folder.with_name(f"results-{secrets.token_hex(4)}")
    for name, parts in files.items():
        (new / name).parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        (new / name).write_bytes(b"".join(parts[index] for index in sorted(parts)))
    new.rename(folder)


@atexit.register
def _close() -> None:
    """Connections are closed, as aiohttp wants it."""

    async def close_all() -> None:
        for client in _clients.values():
            await client.close()

    if _clients:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(close_all(), portal.loop()).result(timeout=2)
