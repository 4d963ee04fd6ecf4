"""GPUs of this machine, leased to one job at a time by lock files, which are free once the supervisor has ended."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kfnb.backends.local import rundir
from kfnb.errors import BackendError


@dataclass(frozen=True)
class Gpu:
    """``name`` is what CUDA_VISIBLE_DEVICES calls it, ``key`` its lock file: the same from every kernel."""

    name: str
    key: str


def visible() -> list[Gpu]:
    """The GPUs that jobs of this process may use, in order.

    ``$KFNB_LOCAL_GPUS`` (ids, comma-separated) decides, else ``$CUDA_VISIBLE_DEVICES``, else nvidia-smi.
    """
    for variable in ("KFNB_LOCAL_GPUS", "CUDA_VISIBLE_DEVICES"):
        given = os.environ.get(variable)
        if given is not None:
            return [Gpu(name, _key(name)) for name in _names(given)]
    return [Gpu(uuid, _file_name(uuid)) for uuid in _installed()]


def check(nodes: int, per_node: int, gpus: list[Gpu]) -> None:
    """Raises ``BackendError`` where a job asks for more GPUs than there are, busy ones counted as there."""
    wanted = nodes * per_node
    if wanted <= len(gpus):
        return
    each = f" ({nodes} nodes with {per_node} each)" if nodes > 1 else ""
    have = f"it has {len(gpus)}: {', '.join(gpu.name for gpu in gpus)}" if gpus else "it has none that kfnb can see"
    fix = "Ask for fewer with --gpus or --nodes"
    if not gpus:
        fix += "; if there are some, `nvidia-smi -L` should list them and CUDA_VISIBLE_DEVICES should not hide them"
    raise BackendError(f"The job asks for {wanted} GPUs{each} of this machine", have, fix + ".")


class Leases:
    """The GPUs that a job holds, for as long as this object's process lives."""

    def __init__(self, folder: Path, holder: str) -> None:
        self._folder, self._holder = folder, holder
        self._descriptors: list[int] = []

    def take(self, gpus: list[Gpu], count: int) -> list[Gpu] | str:
        """Lease ``count`` of ``gpus``, all or none; otherwise a sentence that says who has the ones missing."""
        # one at a time, so that two jobs never hold half of what each needs
        turn = rundir.take_lock(self._folder / "turn.lock")
        if turn is None:
            return "another job is being given its GPUs"
        try:
            taken: list[tuple[Gpu, int]] = []
            busy: list[str] = []
            for gpu in gpus:
                if len(taken) == count:
                    break
                path = self._folder / f"{gpu.key}.lock"
                descriptor = rundir.take_lock(path)
                if descriptor is None:
                    busy.append(f"{gpu.name} is held by {_holder(path)}")
                else:
                    taken.append((gpu, descriptor))
            if len(taken) < count:
                for _, descriptor in taken:
                    os.close(descriptor)
                return f"waiting for {count} GPUs, {len(taken)} of {len(gpus)} free: {'; '.join(busy)}"
            for _, descriptor in taken:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, self._holder.encode(), 0)
                self._descriptors.append(descriptor)
            return [gpu for gpu, _ in taken]
        finally:
            os.close(turn)


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "another job"
    except OSError:
        return "another job"


def _names(given: str) -> list[str]:
    """What CUDA makes of its variable: the list ends at the first entry that names no device."""
    names = []
    for name in (part.strip() for part in given.split(",")):
        if not name or name.startswith("-") or name == "NoDevFiles":
            break
        names.append(name)
    return list(dict.fromkeys(names))


def _key(name: str) -> str:
    """The lock of a device given by index is that of its UUID, by which other kernels may know it."""
    if name.isdigit() and "KFNB_LOCAL_GPUS" not in os.environ:
        installed = _installed()
        if int(name) < len(installed):
            return _file_name(installed[int(name)])
    return _file_name(name)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """UUIDs of the devices that nvidia-smi lists; the slices (MIG) of a device in its place."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_listing(listing)


def parse_listing(listing: str) -> tuple[str, ...]:
    """The UUIDs in the output of ``nvidia-smi -L``."""
    uuids: list[str] = []
    for line in listing.splitlines():
        match = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if match is None:
            continue
        if match[1].startswith("MIG-") and uuids and uuids[-1].startswith("GPU-"):
            uuids.pop()
        uuids.append(match[1])
    return tuple(uuids)
