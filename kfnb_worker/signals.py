"""SIGTERM in a rank: asked to stop. Code that asks ``stopping()`` leaves by itself; other code gets a SystemExit."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Optional

EXIT = 128 + signal.SIGTERM

_asked = False
_cares = False


def install() -> None:
    """Take SIGTERM in this process. Forked children (DataLoader workers) have the default again."""
    signal.signal(signal.SIGTERM, _terminate)
    os.register_at_fork(after_in_child=_default)


def ignore() -> None:
    """From now on SIGTERM changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def stopping() -> bool:
    """Whether this job was asked to stop (and from now on: leave it to this code to do so)."""
    global _cares
    _cares = True
    return _asked


def _terminate(number: int, frame: Optional[FrameType]) -> None:
    global _asked
    _asked = True
    if not _cares:
        raise SystemExit(EXIT)


def _default() -> None:
    if signal.getsignal(signal.SIGTERM) in (_terminate, signal.SIG_IGN):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
