"""A job as plain files: to keep, to send to somebody, to look at without kfnb."""

from __future__ import annotations

import asyncio
import csv
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kfnb.errors import UsageError
from kfnb.events import LogLine, Points
from kfnb.series import SeriesStore

if TYPE_CHECKING:
    from kfnb.backends.base import JobBackend


async def export(backend: JobBackend, id: str, folder: Path) -> Path:
    """Write ``code/`` (the bundle), ``record.json``, ``log.txt``, ``scalars.csv`` and ``results/`` into the new
    ``folder``.

    Raises ``UsageError`` where ``folder`` exists already.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already.", fix="Name a folder that is not there yet.")
    record, bundle = await backend.record(id), await backend.bundle(id)
    for name, content in bundle.files.items():
        target = folder / "code" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / "record.json").write_text(record.model_dump_json(indent=1) + "\n")
    store = SeriesStore()
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        async for batch in backend.events(id, follow=False):
            for event in batch.events:
                if isinstance(event, LogLine) and not event.transient:
                    log.write(f"[{'node' if event.rank is None else event.rank}] {event.text}\n")
                elif isinstance(event, Points):
                    store.add(event)
    await asyncio.to_thread(_write_scalars, store, folder / "scalars.csv")
    results = await backend.results(id)
    if results is not None:
        await asyncio.to_thread(shutil.copytree, results, folder / "results")
    return folder


def _write_scalars(store: SeriesStore, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "rank", "tag", "step", "wall_time", "value"])
        for key, series in store.items():
            for row in zip(series.step.tolist(), series.wall_time.tolist(), series.value.tolist(), strict=True):
                writer.writerow([key.run, key.rank, key.tag, *row])
