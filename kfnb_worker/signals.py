"""SIGTERM in a rank: asked to stop. Code that asks ``stopping()`` leaves by itself; other code gets a SystemExit.

Ranks that wait for each other in each step have to leave at the same step, or those that stay wait for ever. So they
count their calls of ``stopping()``: each that was asked to stop tells its count and goes on; the coordinator says at
which count all of those that ask leave, a little ahead of the highest.
"""

from __future__ import annotations

import math
import os
import signal
import time
from types import FrameType
from typing import Any, Dict, Optional

from kfnb_worker.channel import channel

EXIT = 128 + signal.SIGTERM

#: A rank leaves without the coordinator's word after so many calls and seconds.
PATIENCE_CALLS = 5
PATIENCE_SECONDS = 3.0

#: How far ahead of the highest count ranks leave, in seconds: the word has to reach all of them before.
AHEAD_SECONDS = 0.5

_asked = False
_calls = 0
_first_call = 0.0
_told: Optional[float] = None  # when this rank told its count
_told_calls = 0


def install() -> None:
    """Take SIGTERM in this process. Forked children (DataLoader workers) have the default again."""
    signal.signal(signal.SIGTERM, _terminate)
    os.register_at_fork(after_in_child=_default)


def ignore() -> None:
    """From now on SIGTERM changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def stopping() -> bool:
    """Whether to leave now. From the first call on, SIGTERM only changes what this returns."""
    global _calls, _first_call, _told, _told_calls
    _calls += 1
    if _calls == 1:
        _first_call = time.monotonic()
        _tell({"e": "asks"})
    if not _asked:
        return False
    client = channel()
    if client is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    now = time.monotonic()
    if _told is None:
        _told, _told_calls = now, _calls
        rate = _calls / max(now - _first_call, 1e-3) if _calls > 1 else 0.0
        _tell({"e": "asked", "calls": _calls, "ahead": 1 + math.floor(rate * AHEAD_SECONDS)})
    word = client.heard("leave")
    if word is not None:
        return _calls >= int(word["calls"])
    return _calls - _told_calls >= PATIENCE_CALLS and now - _told >= PATIENCE_SECONDS


def _tell(message: Dict[str, Any]) -> None:
    client = channel()
    if client is not None:
        client.send({**message, "r": int(os.environ["RANK"]), "pid": os.getpid()})


def _terminate(number: int, frame: Optional[FrameType]) -> None:
    global _asked
    _asked = True
    if not _calls:
        raise SystemExit(EXIT)


def _default() -> None:
    if signal.getsignal(signal.SIGTERM) in (_terminate, signal.SIG_IGN):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
