"""What user code in a job says and asks (see ``kfnb_worker``). Cheap to call in every step; never fails a training."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar

from kfnb_worker import signals
from kfnb_worker.channel import channel

PROGRESS_SECONDS = 0.1

_Item = TypeVar("_Item")


def rank() -> int:
    """This process's number among all of the job, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the job has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """This process's number on its node, from 0: ``torch.device("cuda", kf.local_rank())``."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def node_rank() -> int:
    """The number of this process's node, from 0."""
    return int(os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0")))


def logdir() -> Path:
    """Where TensorBoard event files are written to be seen live; ``runs`` in the current directory outside of a job."""
    path = Path(os.environ.get("KFNB_LOGDIR") or "runs")
    path.mkdir(parents=True, exist_ok=True)
    return path


def stopping() -> bool:
    """Whether the job was asked to stop: save and leave the loop.

    Ask once a step: all ranks that ask get True at the same call, so that none waits for one that has left. Code that
    asks gets no SystemExit at SIGTERM; it has the job's grace (seconds) to come to its end.
    """
    return signals.stopping()


def log(step: int, **scalars: Any) -> None:
    """Tell scalars of this rank: ``kf.log(step, loss=loss, lr=0.1)``; ``**{"train/loss": loss}`` for other names.

    Values are numbers, numpy scalars or tensors of one element; NaN and infinities are points too. Raises
    ``TypeError`` or ``ValueError`` for what is no number, and for a step beyond 64 bits. Outside of a job it only
    checks that.
    """
    step, now = int(step), time.time()
    if not -(1 << 63) <= step < 1 << 63:
        raise ValueError("kf.log: step %d does not fit into 64 bits" % step)
    points: Dict[str, Tuple[List[int], List[float], List[Any]]] = {}
    for tag, value in scalars.items():
        if isinstance(value, (str, bytes)):
            raise TypeError("kf.log: %s is %r; a number is needed" % (tag, value))
        try:
            number = float(value)
        except OverflowError:  # an int beyond all floats
            number = math.inf if value > 0 else -math.inf
        if not math.isfinite(number):
            packed: Any = "nan" if number != number else "inf" if number > 0 else "-inf"
        else:
            packed = number
        points[tag] = ([step], [now], [packed])
    client = channel()
    if client is not None and points:
        client.send({"e": "s", "r": rank(), "p": points})


def progress(done: float, total: Optional[float] = None, unit: str = "") -> None:
    """Tell how far this rank is: ``done`` of ``total`` units. Told at most ten times a second; the last one is always.

    Amounts that are not finite, or beyond all floats, tell nothing.
    """
    if _finite(done) and (total is None or _finite(total)):
        _progress.tell(done, total, unit, final=total is not None and done >= total)


def _finite(amount: float) -> bool:
    try:
        return math.isfinite(amount)
    except OverflowError:  # an int beyond all floats
        return False


def track(iterable: Iterable[_Item], total: Optional[float] = None, unit: str = "step") -> Iterator[_Item]:
    """``for batch in kf.track(loader):`` tells after each item how far the loop is and how long an item takes, and how
    much of that it waited for the next one: for data. Told as often as ``progress`` is.

    ``total`` is the iterable's length where it has one. Outside of a job it only iterates.
    """
    if channel() is None:
        for item in iterable:
            yield item
        return
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]
        except Exception:  # it has none, or a data set's own __len__ cannot say it
            total = None
    if total is not None and not _finite(total):
        total = None
    done = untold = 0
    waited = 0.0  # for the items that are untold
    clock = time.perf_counter
    now = told = clock()
    try:
        for item in iterable:
            waited += clock() - now
            yield item
            now = clock()
            done += 1
            untold += 1
            if now - told >= PROGRESS_SECONDS:
                means = {"step": (now - told) / untold, "wait": waited / untold}
                _progress.tell(done, total, unit, means, final=False)
                told, untold, waited = now, 0, 0.0
    finally:  # also of a loop that is left
        if untold:
            means = {"step": (now - told) / untold, "wait": waited / untold}
            _progress.tell(done, total, unit, means, final=True)


class _Progress:
    """Tells the newest of what it is given, at most every ``PROGRESS_SECONDS``; a ``final`` one at once."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.RLock()  # a signal handler may tell too
        self._told = 0.0  # when, in Unix seconds
        self._held: Optional[Dict[str, Any]] = None
        self._waits = False

    def tell(
        self, done: float, total: Optional[float], unit: str, means: Optional[Dict[str, float]] = None, *, final: bool
    ) -> None:
        if channel() is None:
            return
        now = time.time()
        amount = None if total is None else float(total)
        message = {"e": "progress", "r": rank(), "done": float(done), "total": amount, "unit": str(unit)[:40], "t": now}
        with self._lock:
            self._held = {**message, **(means or {})}
            soon = self._told + PROGRESS_SECONDS - now
            if final or not 0.0 < soon <= PROGRESS_SECONDS:
                self.flush()
            elif not self._waits:
                self._flush_in(soon)

    def flush(self) -> None:
        with self._lock:
            message, self._held, self._waits = self._held, None, False
            client = channel()
            if message is not None and client is not None:
                self._told = time.time()
                client.send(message)

    def _flush_in(self, seconds: float) -> None:
        """However long the next step takes, it is known by then where this one was."""
        timer = threading.Timer(seconds, self.flush)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started: the process ends, and flushes then
            timer.start()
            self._waits = True


_progress = _Progress()
atexit.register(_progress.flush)
# a forked child has none of its parent's threads, and perhaps its locked lock
os.register_at_fork(after_in_child=_progress.reset)


def precision() -> Optional[str]:
    """The precision asked for: "bf16", "fp16", "tf32", "fp32"; None where nothing was."""
    return os.environ.get("KFNB_PRECISION") or None


def autocast(device: Optional[str] = None) -> ContextManager[Any]:
    """``with kf.autocast():`` torch's autocast in the precision asked for; nothing for none, fp32 and tf32.

    ``device`` is torch's device type; by default "cuda" where there is one, else "cpu".
    """
    import contextlib

    asked = precision()
    if asked in (None, "fp32", "tf32"):  # tf32 is a way to multiply matrices: see kfnb_worker.environment
        return contextlib.nullcontext()
    import torch

    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if asked not in types:
        raise ValueError("precision %r has no autocast; there are bf16, fp16, tf32 and fp32" % asked)
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    manager: ContextManager[Any] = torch.autocast(kind, dtype=types[asked])
    return manager
