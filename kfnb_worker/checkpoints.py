"""Checkpoints that are whole or not there: a directory per step, loaded only once every rank has written its part.

    folder = kf.checkpoint_dir(step)          # every rank, or those that write
    torch.save(model.state_dict(), folder / "model.pt")
    kf.commit(step)                           # every rank
    ...
    folder = kf.latest()                      # None, or the newest complete one

What is being written is ``step-N.partial``; ``commit`` waits for all ranks, puts the marker in and renames it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from kfnb_worker.api import local_rank, rank, world_size
from kfnb_worker.channel import channel

MARKER = ".complete"
PARTIAL, OLD = ".partial", ".old"
BARRIER_SECONDS = 1800.0
KEPT = 3

_STEP = re.compile(r"step-(\d+)")


def checkpoint_dir(step: int) -> Path:
    """The directory to write the checkpoint of ``step`` to; it is loaded by nobody before ``commit(step)``."""
    path = _root() / ("step-%d%s" % (_whole(step), PARTIAL))
    path.mkdir(parents=True, exist_ok=True)
    return path


def commit(step: Union[int, str, os.PathLike[str]]) -> Path:
    """Make the checkpoint of ``step`` (or of a path from ``checkpoint_dir``) complete; returns where it lies now.

    To be called by every rank, also those that wrote nothing: it waits for all of them. Older ones than the last K
    (option keep_checkpoints) are removed. Raises ``RuntimeError`` when some rank does not come, ``FileNotFoundError``
    when there is nothing to commit.
    """
    number = _whole(step) if isinstance(step, int) else _step_of(Path(step))
    partial = _root() / ("step-%d%s" % (number, PARTIAL))
    final = _root() / ("step-%d" % number)
    if local_rank() == 0 and partial.is_dir():
        _sync(partial)
    _barrier("commit(%d)" % number)
    # Rank 0 does it; where nodes do not share the directory, the first rank of each does it for its own.
    if rank() == 0:
        _complete(partial, final)
    _barrier("the end of commit(%d)" % number)
    if rank() != 0 and local_rank() == 0 and partial.is_dir():
        _complete(partial, final)
    if rank() == 0:
        client = channel()
        if client is not None:
            client.send({"e": "checkpoint", "r": 0, "step": number, "path": str(final), "t": time.time()})
    return final


def latest() -> Optional[Path]:
    """The complete checkpoint of the highest step, ``.../step-N``; None where there is none."""
    complete = _all_complete()
    return complete[-1] if complete else None


def clean(root: str) -> None:
    """Remove what interrupted commits left; for the worker, while no rank runs."""
    for path in Path(root).glob("step-*"):
        if path.name.endswith(OLD) and not (path.with_name(path.name[: -len(OLD)])).exists():
            path.rename(path.with_name(path.name[: -len(OLD)]))  # the new one did not make it
        elif path.name.endswith((PARTIAL, OLD)):
            shutil.rmtree(path, ignore_errors=True)


def _root() -> Path:
    return Path(os.environ.get("KFNB_CHECKPOINTS") or "checkpoints")


def _whole(step: int) -> int:
    number = int(step)
    if number != step or number < 0:
        raise ValueError("a checkpoint's step is a whole number from 0, not %r" % (step,))
    return number


def _step_of(path: Path) -> int:
    match = _STEP.match(path.name)
    if match is None:
        raise ValueError("%s is no directory that checkpoint_dir gave" % path)
    return int(match.group(1))


def _all_complete() -> List[Path]:
    """Complete checkpoints, lowest step first."""
    found: Dict[int, Path] = {}
    for path in _root().glob("step-*"):
        match = _STEP.fullmatch(path.name)
        if match is not None and (path / MARKER).is_file():
            found[int(match.group(1))] = path
    return [found[step] for step in sorted(found)]


def _complete(partial: Path, final: Path) -> None:
    """Marker in, name changed; then the oldest go."""
    if not partial.is_dir():
        raise FileNotFoundError("there is nothing to commit: %s does not exist (checkpoint_dir makes it)" % partial)
    marker = partial / MARKER
    temporary = partial / (MARKER + ".new")
    temporary.write_text("%d\n" % time.time())
    _fsync(temporary)
    os.replace(temporary, marker)
    _fsync(partial)
    old = final.with_name(final.name + OLD)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial.rename(final)
    _fsync(final.parent)
    shutil.rmtree(old, ignore_errors=True)
    keep = max(1, int(os.environ.get("KFNB_KEEP_CHECKPOINTS") or KEPT))
    for path in _all_complete()[:-keep]:
        gone = path.with_name(path.name + PARTIAL)
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)  # first out of sight, then removed
        shutil.rmtree(gone, ignore_errors=True)


def _sync(directory: Path) -> None:
    """See this node's files on the disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            _fsync(Path(folder, name))
        _fsync(Path(folder))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems cannot, for directories
    finally:
        os.close(descriptor)


def _barrier(what: str) -> None:
    """Wait for all ranks: by the job's coordinator, which tells who is missing, else by torch.distributed."""
    if world_size() == 1:
        return None
    client = channel()
    if client is None:
        return _torch_barrier()
    try:
        client.ask({"e": "barrier", "r": rank(), "key": what}, "released", BARRIER_SECONDS)
    except TimeoutError:
        raise RuntimeError(
            "%s waited %g s for the other ranks: every rank has to call commit" % (what, BARRIER_SECONDS)
        ) from None
    except OSError as error:
        raise RuntimeError("%s: %s" % (what, error)) from None
    return None


def _torch_barrier() -> None:
    """Outside of a job of kfnb, as under torchrun."""
    import sys

    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError("commit with %d ranks needs torch.distributed.init_process_group first" % world_size())
    distributed.barrier()
