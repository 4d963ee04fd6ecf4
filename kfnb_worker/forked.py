"""Work with files in a forked child: zlib, zipfile, OpenSSL and a slow disk stay out of the worker."""

from __future__ import annotations

import os
import signal
from typing import Callable, List

from kfnb_worker.loop import READ, Loop


class Forked:
    """Calls ``work()`` in a child; then ``done(sentence)`` with what it returned: "", or what went wrong."""

    def __init__(self, loop: Loop, work: Callable[[], str], done: Callable[[str], None]) -> None:
        self._loop, self._done = loop, done
        self._read, write = os.pipe()
        self._told: List[bytes] = []
        if os.fork() == 0:
            try:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                try:
                    told = work()
                except Exception as error:
                    told = "%s: %s" % (type(error).__name__, error)
                os.write(write, told.encode("utf-8", "replace")[:4000] + b"\n")
            finally:
                os._exit(0)
        os.close(write)
        loop.add(self._read, READ, self._readable)

    def _readable(self) -> None:
        data = os.read(self._read, 4096)
        if data:
            self._told.append(data)
            return
        self._loop.remove(self._read)
        os.close(self._read)
        told = b"".join(self._told).decode("utf-8", "replace")
        self._done(told.strip() if told else "the process that was to do it was killed")


def unpack(bundle: str, sha256: str, target: str) -> str:
    """Verify the zip ``bundle``, and unpack it into the directory ``target`` (replaced whole); "" or what is wrong."""
    import hashlib
    import shutil
    import zipfile

    digest = hashlib.sha256()
    with open(bundle, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != sha256:
        what = "the bundle is not the one that was submitted: its sha256 is %s and should be %s"
        return what % (digest.hexdigest(), sha256)
    temporary = target + ".new"
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(temporary)  # which keeps every name below the directory
    shutil.rmtree(target, ignore_errors=True)
    os.rename(temporary, target)
    return ""
